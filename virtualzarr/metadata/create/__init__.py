"""Metadata of arrays that are to be: from what users ask for, the rest chosen."""

from virtualzarr.metadata.create.array import ZERO, ArrayWishes, Wishes, new_array, plain_json
from virtualzarr.metadata.create.constraints import differences

__all__ = ["ZERO", "ArrayWishes", "Wishes", "differences", "new_array", "plain_json"]
