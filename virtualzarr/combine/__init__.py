"""Many arrays or groups as one, without copying: concatenated, or stacked along a new axis."""

from virtualzarr.combine.api import concat, stack

__all__ = ["concat", "stack"]
