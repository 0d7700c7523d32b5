"""Parsing of `chunks` arguments, those of numpy users and of dask, into grids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from grids.axis import Axis, GridError, show
from grids.grid import ChunkGrid, check_shape, from_json
from grids.rectilinear import RectilinearGrid, axis_from_json, from_axes
from grids.regular import RegularGrid


def parse(chunks: Any, shape: Iterable[int]) -> ChunkGrid:
    """Return the grid that a `chunks` argument means.

    Parameters
    ----------
    chunks : int, None, sequence, mapping or ChunkGrid
        One entry per axis, or one integer for all axes. An entry is a chunk length, -1 or None for
        one chunk along the full axis, or a list of chunk lengths, in which a pair
        ``[length, count]`` stands for a run of equal ones. A grid, or its JSON, is taken as it is.
    shape : iterable of int
        Shape of the array.

    Returns
    -------
    RegularGrid where no entry is a list, otherwise RectilinearGrid

    Raises
    ------
    GridError
        The argument is malformed, or does not fit the shape.

    Examples
    --------
    >>> parse((100, -1), (731, 53))
    RegularGrid(shape=(731, 53), chunk_shape=(100, 53))
    >>> parse([[[1, 700], 31], 53], (731, 53))
    RectilinearGrid(shape=(731, 53), chunk_shapes=[[[1, 700], 31], 53])
    """
    extents = check_shape(shape)
    if isinstance(chunks, ChunkGrid):
        if chunks.shape != extents:
            raise GridError(f"the grid has shape {chunks.shape}, but the array {extents}")
        return chunks
    if isinstance(chunks, Mapping):
        return from_json(chunks, extents)
    if isinstance(chunks, str):
        raise GridError(f"chunks must be integers or lists of chunk lengths, not {show(chunks)}")
    # A numpy scalar is one integer for all axes, as in zarr-python; arrays are entries per axis.
    is_array = isinstance(chunks, np.ndarray) and chunks.ndim > 0
    is_sequence = isinstance(chunks, Sequence) or is_array
    entries = list(chunks) if is_sequence else [chunks] * len(extents)
    if len(entries) != len(extents):
        # `[4, 3]` for one axis could be a slip for two axes: it is never guessed.
        hint = "; write [[...]] for the chunk lengths along one axis" if len(extents) == 1 else ""
        raise GridError(f"chunks has {len(entries)} entries for {len(extents)} axes{hint}")
    axes = []
    for i, (entry, extent) in enumerate(zip(entries, extents, strict=True)):
        is_full = entry is None or (isinstance(entry, int | np.integer) and entry == -1)
        try:
            axes.append(axis_from_json(extent, max(extent, 1) if is_full else entry))
        except GridError as error:
            raise GridError(f"chunks, axis {i}: {error}") from None
    return from_axes(axes)


def from_dask(chunks: Sequence[Sequence[int]]) -> RegularGrid | RectilinearGrid:
    """Return the grid with the lengths of cells along each axis, as dask lists them.

    An axis where only the last length is shorter than the others is regular, so that its last
    chunk reaches past the extent. The shape of the array is the sum of the lengths.

    Raises
    ------
    GridError
        A length is unknown (nan), or is 0 on an axis that has elements.

    Examples
    --------
    >>> from_dask(((4, 4, 2), (5,)))
    RegularGrid(shape=(10, 5), chunk_shape=(4, 5))
    >>> from_dask(((4, 2, 4), (5,)))
    RectilinearGrid(shape=(10, 5), chunk_shapes=[[4, 2, 4], 5])
    >>> from_dask(((4, 2, 4), (5,))).chunks
    ((4, 2, 4), (5,))
    """
    axes = []
    for i, lengths in enumerate(chunks):
        try:
            axes.append(_from_lengths(list(lengths)))
        except GridError as error:
            raise GridError(f"dask chunks, axis {i}: {error}") from None
        except TypeError:
            raise GridError(f"dask chunks, axis {i}: {show(lengths)} is not a tuple") from None
    return from_axes(axes)


def _from_lengths(lengths: list[Any]) -> Axis:
    if lengths in ([], [0]):
        return Axis.bare(0, 1)
    if any(isinstance(length, list | tuple) for length in lengths):
        raise GridError("a length must be an integer")
    # dask lists lengths inside of the array, whereas regular chunks all have one declared length:
    # the first length repeated must give as many cells, and all but the last must have it.
    listed = axis_from_json(0, lengths)
    edge, end = int(listed.edges[0]), listed.end
    bare = len(lengths) == -(-end // edge) and listed.counts[0] >= len(lengths) - 1
    return Axis.bare(end, edge) if bare else listed.resize(end)
