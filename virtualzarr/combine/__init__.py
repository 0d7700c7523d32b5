"""Joins without copying: concat, stack, merge, and combination by coordinates."""

from virtualzarr.combine.by_coords import combine_by_coords
from virtualzarr.combine.concat_stack import concat, stack
from virtualzarr.combine.coordinates import from_attribute, from_filename, from_variable
from virtualzarr.combine.merge_groups import merge

__all__ = [
    "combine_by_coords",
    "concat",
    "from_attribute",
    "from_filename",
    "from_variable",
    "merge",
    "stack",
]
