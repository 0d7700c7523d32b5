"""Many arrays or groups as one, without copying: concatenated, stacked, merged, or put in order."""

from virtualzarr.combine.api import concat, stack
from virtualzarr.combine.by_coords import combine_by_coords
from virtualzarr.combine.coordinates import from_attribute, from_filename, from_variable
from virtualzarr.combine.merge import merge

__all__ = [
    "combine_by_coords",
    "concat",
    "from_attribute",
    "from_filename",
    "from_variable",
    "merge",
    "stack",
]
