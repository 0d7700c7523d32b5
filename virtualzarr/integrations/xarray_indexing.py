"""Advanced indexing of duck arrays: read only where no orthogonal selection is the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array


def is_integer(item: Any) -> bool:
    """Whether an item of a selection is one index."""
    return isinstance(item, int | np.integer) and not isinstance(item, bool)


def select_outer(array: Array, key: tuple[Any, ...]) -> Array | None:
    """Return an orthogonal selection, None if numpy would understand another.

    One array next to slices, or arrays of which each runs along an axis of its own in the result,
    as `numpy.ix_` makes them.
    """
    arrays = [np.asarray(item) for item in key if not isinstance(item, slice)]
    # One array beside slices: numpy and orthogonal selection agree on the axis of the result.
    if len(arrays) == 1 and arrays[0].ndim == 1:
        return array.lazy.oindex[key]
    if len(arrays) < len(key):
        return None
    # Arrays that vary along one axis of the result each, in order, are `numpy.ix_`.
    shape = np.broadcast_shapes(*(item.shape for item in arrays))
    last = -1
    for item in arrays:
        long_axes = [len(shape) - item.ndim + i for i, n in enumerate(item.shape) if n != 1]
        if (
            len(long_axes) > 1
            or (long_axes and long_axes[0] <= last)
            or item.dtype.kind not in "iu"
        ):
            return None
        last = long_axes[0] if long_axes else last
    return with_unit_axes(array.lazy.oindex[tuple(item.reshape(-1) for item in arrays)], shape)


def read_points(array: Array, key: tuple[Any, ...]) -> NDArray[Any]:
    """Read points, with their axes where numpy has them."""
    if not any(isinstance(item, slice) for item in key):
        return np.asarray(array.vindex[tuple(np.broadcast_arrays(*key))])
    outer: list[Any] = []
    inner: list[Any] = []
    for item, n in zip(key, array.shape, strict=True):
        if isinstance(item, slice):
            outer.append(item)
            inner.append(slice(None))
        else:
            # Negative indices and Booleans become positions, and numpy raises what is out of
            # bounds.
            indices = np.arange(n)[item]
            unique, inverse = np.unique(indices, return_inverse=True)
            outer.append(unique)
            # Each index is read once by the outer selection; the inner one repeats it in memory.
            inner.append(inverse.reshape(np.shape(indices)))
    return np.asarray(array.oindex[tuple(outer)])[tuple(inner)]


def with_unit_axes(array: Array, shape: Sequence[int]) -> Array | None:
    """Return an array with axes of length 1 elsewhere; None if that is not all."""
    if [n for n in array.shape if n != 1] != [n for n in shape if n != 1]:
        return None
    if array.shape == tuple(shape):
        return array
    array = array.lazy.squeeze()
    for axis, n in enumerate(shape):
        if n == 1:
            array = array.lazy.expand_dims(axis)
    return array
