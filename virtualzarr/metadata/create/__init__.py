"""Metadata of new arrays and groups: from the parameters users give, the rest chosen."""

from virtualzarr.metadata.create.array import (
    ZERO,
    ArrayParams,
    create_array_metadata,
    to_plain_json,
)
from virtualzarr.metadata.create.constraints import find_differences

__all__ = ["ZERO", "ArrayParams", "create_array_metadata", "find_differences", "to_plain_json"]
