"""Unlimited dimensions of netCDF-4: datasets as long as the longest one on the dimension."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from virtualzarr.array import Array
from virtualzarr.errors import UnsupportedError
from virtualzarr.manifest import Manifest
from virtualzarr.virtual.axis_slices import AxisSlices
from virtualzarr.virtual.rechunk import get_axes
from virtualzarr.virtual.transforms import MAX_CELLS, slice_with_fill


class Growth:
    """Lengthens the datasets of one scan, up to a limit: a small file may claim any length."""

    def __init__(self) -> None:
        self._left = MAX_CELLS

    def grow(self, array: Array, lengths: tuple[int, ...], fill_value: Any) -> Array:
        """Return an array that is longer, with missing chunks past its old end.

        Raises `UnsupportedError` if there would be too many cells.

        Parameters
        ----------
        lengths : tuple of int
            None is less than the array's own.
        fill_value : scalar
            What is read past the old end.
        """
        grid: Any = array.grid.resize(lengths)
        if not array.manifest.nrefs and (not array.size or _same(array, fill_value)):
            metadata = array.metadata.replace(shape=lengths, grid=grid, fill_value=fill_value)
            return array.replace(metadata, Manifest.missing(grid.grid_shape))
        self._left -= math.prod([axis.ncells + 1 for axis in grid.axes])
        if self._left < 0:
            raise UnsupportedError(
                f"it is shorter than its unlimited dimensions, which make it {lengths}: with the "
                f"chunks that are missing there would be more than {MAX_CELLS:,} in the file"
            )
        pieces = [
            AxisSlices.grow(axis, length) if length > axis.extent else None
            for axis, length in zip(get_axes(array), lengths, strict=True)
        ]
        return slice_with_fill(array, pieces, fill_value)


def _same(array: Array, fill_value: Any) -> bool:
    """Whether missing chunks of an array read as a value, to the bit."""
    if array.dtype.hasobject:
        return bool(array.fill_value == fill_value)
    ours, theirs = (np.asarray(value, array.dtype) for value in (array.fill_value, fill_value))
    return ours.tobytes() == theirs.tobytes()
