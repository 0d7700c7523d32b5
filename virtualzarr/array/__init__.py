"""What users hold: arrays, and how a selection is read from chunks."""

from virtualzarr.array.array import Array

__all__ = ["Array"]
