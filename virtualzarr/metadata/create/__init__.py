"""Metadata of new arrays and groups: from the parameters users give, the rest chosen."""

from virtualzarr.metadata.create.array import ZERO, ArrayParams, new_array, plain_json
from virtualzarr.metadata.create.constraints import differences

__all__ = ["ZERO", "ArrayParams", "differences", "new_array", "plain_json"]
