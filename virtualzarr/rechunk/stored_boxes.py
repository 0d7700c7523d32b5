"""Stored chunks of a copied array, and the boxes of the copy that they fall into."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grids import ChunkGrid, SeparableGrid
from grids.grouping import group_keys, rank_rows
from virtualzarr.array import Array
from virtualzarr.array.chunk_source import LocatedChunks, ManifestChunks, StoreChunks
from virtualzarr.errors import UnsupportedError
from virtualzarr.manifest.manifest import CANONICAL
from virtualzarr.rechunk.blocks import Box

Int64 = NDArray[np.int64]


class Boxes(NamedTuple):
    """Parts of an array that hold stored chunks, one in each of some blocks.

    Attributes
    ----------
    low, high : int64 arrays, shape (boxes, ndim)
        The corners of each.
    order, bounds : int64 arrays
        Stored chunks ``order[bounds[i]:bounds[i + 1]]`` lie in box `i`.
    """

    low: Int64
    high: Int64
    order: Int64
    bounds: Int64

    def __len__(self) -> int:
        return len(self.low)


def list_stored_cells(array: Array) -> tuple[Int64, Int64] | None:
    """Return the cells that have a chunk or shard, in C order, and the bytes of each.

    Returns
    -------
    cells : int64 array, shape (chunks, ndim)
    sizes : int64 array
        None instead of both where that cannot be known: any cell may have one.
    """
    source, grid = array.chunk_source, array.grid
    if isinstance(source, ManifestChunks):
        manifest = source.manifest
        if not manifest.nrefs:
            return np.empty((0, array.ndim), np.int64), np.empty(0, np.int64)
        # C order by construction; listings of stores come in any order and are sorted below.
        cells = np.argwhere(manifest.source >= 0).astype(np.int64, copy=False)
        cells = cells.reshape(manifest.nrefs, array.ndim)
        sizes = manifest.take(tuple(cells.T)).length if array.ndim else manifest.take(()).length
        return cells, _fill_unknown_sizes(sizes, array)
    if not isinstance(source, StoreChunks) or not source.is_listable:
        return None
    try:
        whole = source.list_cells_within if source.lists_pages else None
        cells, sizes = whole(grid.grid_shape) if whole else source.list_cells(array.ndim)
    except UnsupportedError:  # there are too many that a page leaves out
        return None
    # Arrays may have shrunk: chunks behind the end are not part of them.
    within = (cells < np.array(grid.grid_shape, np.int64)).all(axis=1)
    cells, sizes = cells[within], _fill_unknown_sizes(sizes[within], array)
    if not array.ndim or len(cells) < 2:
        return cells, sizes
    # The last key sorts first in lexsort: reversed, the first axis is slowest.
    order = np.lexsort(cells.T[::-1])
    return cells[order], sizes[order]


def locate_cells(array: Array, cells: Int64) -> LocatedChunks:
    """Find the chunks of some cells, which are distinct and in C order."""
    grid = array.grid
    if isinstance(grid, SeparableGrid):
        origins = grid.cell_origins(cells)
    else:
        origins = np.array([grid.cell_origin(cell) for cell in cells.tolist()], np.int64)
    # Coordinates of one point would be a selection of points; a slice is cheaper.
    if len(cells) == 1:
        projection = grid.project(tuple(slice(i, i + 1) for i in origins[0].tolist()))
    else:
        projection = grid.project(tuple(origins.T), "coordinate")
    return array.chunk_source.locate(projection)


def has_one_pipeline(array: Array) -> bool:
    """Tell whether all chunks decode as the array declares."""
    source = array.chunk_source
    if not isinstance(source, ManifestChunks):
        return True
    return not source.has_decoders


def are_canonical(array: Array, cells: Int64) -> NDArray[np.bool_]:
    """Tell which chunks the array's pipeline decodes to exactly their cells.

    As they are located: a manifest may name fewer bytes of a chunk of which a cell is a part.
    """
    canonical = np.ones(len(cells), bool)
    if not len(cells) or has_one_pipeline(array):
        return canonical
    located = locate_cells(array, cells)
    if located.decoder is not None:
        canonical[located.cell[located.decoder != CANONICAL]] = False
    if located.origin is not None:
        canonical[located.cell[located.origin.any(axis=1)]] = False
    return canonical


def _fill_unknown_sizes(sizes: Int64, array: Array) -> Int64:
    """Return the bytes of chunks, those of elements where a manifest or a server does not say."""
    most = math.prod(_max_chunk_shape(array.grid)) * max(1, array.dtype.itemsize)
    return np.where(sizes <= 0, most, sizes)


def _max_chunk_shape(grid: ChunkGrid) -> tuple[int, ...]:
    if isinstance(grid, SeparableGrid):
        return tuple(int(axis.runs()[0].max(initial=1)) for axis in grid.axes)
    return grid.shape


def group_into_boxes(
    source: ChunkGrid, blocks: SeparableGrid, target: SeparableGrid, cells: Int64
) -> Boxes:
    """Return the part of each block that holds stored chunks, made of whole cells of the target.

    Parameters
    ----------
    source : ChunkGrid
        What `cells` are cells of.
    blocks, target : SeparableGrid
        Blocks consist of whole cells of the target.
    cells : int64 array, shape (chunks, ndim)

    Examples
    --------
    >>> from grids import RegularGrid
    >>> grid, blocks = RegularGrid((30,), (4,)), RegularGrid((30,), (10,))
    >>> boxes = group_into_boxes(grid, blocks, RegularGrid((30,), (5,)), np.array([[2], [7]]))
    >>> boxes.low.ravel(), boxes.high.ravel()
    (array([ 5, 10, 25]), array([10, 15, 30]))
    """
    assert isinstance(source, SeparableGrid)
    ndim = len(blocks.axes)
    start = source.cell_origins(cells)
    stop = start + source.cell_extents(cells)
    first, last = np.empty_like(start), np.empty_like(start)
    for i, axis in enumerate(blocks.axes):
        first[:, i], last[:, i] = axis.cell_of(start[:, i]), axis.cell_of(stop[:, i] - 1)
    # One row for each pair of a chunk and a block that it lies in.
    counts = last - first + 1
    each = counts.prod(axis=1, dtype=np.int64)
    # All pairs at once, without a loop over chunks: `number` counts the blocks of each chunk, and
    # is taken apart into one index for each axis below.
    row = np.repeat(np.arange(len(cells)), each)
    number = np.arange(len(row)) - np.repeat(np.cumsum(each) - each, each)
    block = np.empty((len(row), ndim), np.int64)
    for i in reversed(range(ndim)):
        block[:, i] = first[row, i] + number % counts[row, i]
        number //= counts[row, i]
    keys = (
        rank_rows(list(block.T), list(blocks.grid_shape)) if ndim else np.zeros(len(row), np.int64)
    )
    # Sorted by block: what lies between two bounds is of one block.
    order, bounds, _ = group_keys(keys)
    row, block = row[order], block[order]
    origin = blocks.cell_origins(block)
    # The box around all chunks of a block, cut at the block's ends and widened to whole cells of
    # the target, as those are written whole.
    low = np.minimum.reduceat(np.maximum(start[row], origin), bounds[:-1], axis=0)
    ends = np.minimum(stop[row], origin + blocks.cell_extents(block))
    high = np.maximum.reduceat(ends, bounds[:-1], axis=0)
    for i, axis in enumerate(target.axes):
        low[:, i] = axis.start(axis.cell_of(low[:, i]))
        behind = axis.cell_of(high[:, i] - 1)
        high[:, i] = axis.start(behind) + axis.length(behind)
    return Boxes(low, high, row, bounds)


def cells_with_data(
    source: ChunkGrid, target: SeparableGrid, box: Box, cells: Int64
) -> NDArray[np.bool_]:
    """Tell which cells of the target in a box have something in common with stored chunks."""
    assert isinstance(source, SeparableGrid)
    bounds = [(axis.cell_of(low), axis.cell_of(high - 1) + 1)
              for axis, low, high in zip(target.axes, *box, strict=True)]  # fmt: skip
    has_data = np.zeros([last - first for first, last in bounds], bool)
    low = np.maximum(source.cell_origins(cells), np.array(box[0], np.int64))
    high = np.minimum(
        source.cell_origins(cells) + source.cell_extents(cells), np.array(box[1], np.int64)
    )
    for corners in zip(low.tolist(), high.tolist(), strict=True):
        has_data[tuple(
            slice(axis.cell_of(a) - first, axis.cell_of(b - 1) + 1 - first)
            for axis, a, b, (first, _) in zip(target.axes, *corners, bounds, strict=True)
        )] = True  # fmt: skip
    return has_data
