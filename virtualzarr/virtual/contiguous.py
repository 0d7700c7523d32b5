"""Contiguous parts of uncompressed blocks, as byte ranges of their own."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs import Pipeline

Layout = tuple[np.dtype[Any], tuple[int, ...]]


def uncompressed_layout(pipeline: Pipeline, dtype: np.dtype[Any], ndim: int) -> Layout | None:
    """Return the dtype and the order of axes of what is stored; None if it has to be decoded."""
    if pipeline.serializer.needs_fill or dtype.hasobject:
        return None
    return pipeline.for_block((1,) * ndim, dtype).raw


class BlockParts(NamedTuple):
    """Byte ranges of parts of blocks, as arrays that broadcast to one entry for each part.

    Attributes
    ----------
    contiguous : bool array
        Whether the part is one range of its block.
    first, nbytes : int64 arrays
        The range within the block, where it is one.
    block_nbytes : int64 array
        Bytes of the whole block.
    """

    contiguous: NDArray[np.bool_]
    first: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    block_nbytes: NDArray[np.int64]


def locate_parts(
    layout: Layout, part: Any, origin: Any, block: Any, valid: Any = None
) -> BlockParts:
    """Locate parts of uncompressed blocks.

    Parameters
    ----------
    layout : (dtype, order)
        Of the blocks, as `uncompressed_layout` gives it.
    part, origin, block : sequences of int64 arrays, one for each axis
        Lengths of the parts, where they begin, and lengths of the blocks; any arrays that
        broadcast to one entry for each part.
    valid : sequence of int64 arrays, optional
        How much of each part counts. Along the slowest axis, the rest may lie past the end of the
        block: whatever the file has there.

    Examples
    --------
    >>> rows = locate_parts((np.dtype("i4"), (0, 1)), (2, np.array([6, 3])), (1, 0), (5, 6))
    >>> rows.contiguous, rows.first, rows.nbytes
    (array([ True, False]), 24, array([48, 24]))
    """
    dtype, order = layout
    contiguous: Any = np.True_
    single: Any = np.True_  # all axes so far have length 1
    # Contiguous in C order: whole along every axis, but for one behind leading axes of length 1.
    for axis in order:
        full = (origin[axis] == 0) & (part[axis] == block[axis])
        inside = origin[axis] + part[axis] <= block[axis]
        if valid is not None:
            inside = inside | (single & (origin[axis] + valid[axis] <= block[axis]))
        contiguous = contiguous & (full | single) & inside
        single = single & (part[axis] == 1)
    step: Any = dtype.itemsize
    first: Any = 0
    nbytes: Any = dtype.itemsize
    # Strides from the last stored axis to the first, of each part's own block.
    for axis in reversed(order):
        first = first + origin[axis] * step
        step = step * block[axis]
        nbytes = nbytes * part[axis]
    return BlockParts(contiguous, first, nbytes, step)
