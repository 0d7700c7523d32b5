"""Splitting of chunks without a copy, and empty arrays like others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import grids
from grids import GridError
from virtualzarr.array.array import Array
from virtualzarr.config import config
from virtualzarr.errors import UnsupportedError
from virtualzarr.keywords import strict_keywords
from virtualzarr.manifest import Manifest
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.virtual.axis_slices import AxisSlices
from virtualzarr.virtual.from_store import as_virtual
from virtualzarr.virtual.rechunk import apply_axis_slices, get_axes


@strict_keywords()
def split_chunks(array: Array, chunks: Any) -> Array:
    """Return an array cut into smaller chunks, without copying anything.

    Parts of uncompressed chunks that lie there in one piece become ranges of bytes of their own,
    so that other readers read no more than they need. Any other part refers to all of its chunk,
    which is decoded once in each request; only this package reads that.

    Parameters
    ----------
    array : Array
    chunks : int, sequence, or anything else that `grids.parse` takes
        Where to cut, besides where chunks begin and end already.

    Raises
    ------
    UnsupportedError
        References cannot point to the array's chunks, or there would be more of them than
        `config.limits.derived_cells`.

    Examples
    --------
    >>> import numpy as np
    >>> import virtualzarr as vz
    >>> a = vz.create_array({}, shape=(4, 6), chunks=(4, 6), dtype="u1", compressors=None)
    >>> a[:] = np.arange(24).reshape(4, 6)
    >>> b = split_chunks(a, (1, 6))
    >>> b.chunks, b[2].tolist(), b.manifest.length.tolist()
    ((1, 6), [12, 13, 14, 15, 16, 17], [[6], [6], [6], [6]])
    """
    requested = grids.parse(chunks, array.shape)
    axes = get_axes(array)
    if not isinstance(requested, grids.SeparableGrid):
        raise UnsupportedError("chunks must cut each axis on its own", variable=array.path)
    try:
        # The union of both cuts: each new chunk then lies within one stored chunk.
        finer = [
            grids.refine([grids.from_axes([a]), grids.from_axes([b])]).axes[0]
            for a, b in zip(axes, requested.axes, strict=True)
        ]
    except GridError as error:
        raise UnsupportedError(f"chunks: {error}", variable=array.path) from error
    cells = math.prod(axis.ncells for axis in finer)
    most = config.limits.derived_cells
    if cells > most:
        raise UnsupportedError(
            f"{cells:,} chunks would be made, at most {most:,} are "
            "(virtualzarr.config.limits.derived_cells)",
            variable=array.path,
        )
    return apply_axis_slices(
        as_virtual(array), [AxisSlices.refine(a, b) for a, b in zip(axes, finer, strict=True)]
    )


@strict_keywords()
def empty_like(array: Array, shape: Sequence[int] | None = None) -> Array:
    """Return an array like another without any chunk: it reads as the fill value.

    It stands for an input whose file is missing.

    Parameters
    ----------
    array : Array
    shape : sequence of int, optional
        That of `array` by default.

    Examples
    --------
    >>> import virtualzarr as vz
    >>> day = vz.create_array({}, shape=(2,), chunks=(2,), dtype="i4", fill_value=-1)
    >>> day[:] = 7
    >>> vz.concat([day, empty_like(day), day])[...]
    array([ 7,  7, -1, -1,  7,  7], dtype=int32)
    """
    metadata: ArrayMetadata = array.metadata
    if shape is not None:
        grid = metadata.grid.resize(tuple(shape))
        metadata = metadata.replace(shape=grid.shape, grid=grid)
    missing = Manifest.missing(metadata.grid.grid_shape)
    return array.replace(metadata, missing, fill_missing=True)
