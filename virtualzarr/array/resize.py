"""Resizing and appending: chunks past the new shape are removed, and never come back.

An array that shrinks changes its metadata first, and then loses its chunks; one that grows first
clears what is about to come into sight again, and then changes its metadata. So no reader sees
anything but what the array holds, and what a crash leaves behind is cleared by whoever grows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grids import ChunkGrid, SeparableGrid
from grids.axis import Axis
from grids.grid import normalize_axis
from virtualzarr.array.chunk_source import StoreChunks
from virtualzarr.array.write import write, writing_grid
from virtualzarr.codecs.core.fill_value import full_block, is_filled
from virtualzarr.codecs.sharding import find_sharding
from virtualzarr.errors import MismatchError, VirtualZarrError, error_context
from virtualzarr.metadata import ArrayMetadata, default_fill
from virtualzarr.stores.store import Store, is_remote, lock_key
from virtualzarr.stores.thread_pools import run_tasks

if TYPE_CHECKING:
    from virtualzarr.array.array import Array

Int64 = NDArray[np.int64]


def lock_resizing(store: Store, path: str) -> AbstractContextManager[Any]:
    """Lock out other appends and resizes of an array, as far as its store can do that."""
    return lock_key(store, f"{path}/.resizing" if path else ".resizing")


def resize(array: Array, chunks: StoreChunks, shape: Sequence[int]) -> None:
    """Resize a stored array; elements within both shapes keep their values."""
    old = array.metadata
    # In two steps where some axes shrink and others grow: each has its own safe order of metadata
    # and chunks.
    smaller = tuple(min(pair) for pair in zip(old.shape, shape, strict=True))
    if smaller != old.shape:
        grid = old.grid.resize(smaller)
        array.update_metadata(shape=smaller, grid=grid)
        try:
            _clear_outside(array, chunks, grid)
        except VirtualZarrError as error:
            error.message += f" (the shape is {smaller} already; who grows it removes what is left)"
            raise
    if tuple(shape) != smaller:
        grid = _round_up_to_shards(array.metadata, array.grid.resize(shape))
        grown = [i for i, n in enumerate(smaller) if shape[i] > n]
        _clear_outside(array, chunks, array.grid, grown)
        array.update_metadata(shape=tuple(shape), grid=grid)


def check_direction(
    array: Array, shape: Sequence[int], expand_only: bool, shrink_only: bool
) -> None:
    """Refuse a shape in which an axis is shorter or longer than it may become."""
    for axis, (old, new) in enumerate(zip(array.shape, shape, strict=True)):
        option = "expand_only" if expand_only and new < old else "shrink_only"
        if (expand_only and new < old) or (shrink_only and new > old):
            raise MismatchError(
                f"{option}: axis {axis} would change from {old} to {new}",
                variable=array.path or "/",
            )


def _clear_outside(
    array: Array, chunks: StoreChunks, grid: ChunkGrid, grown: Sequence[int] = ()
) -> None:
    """Remove all that is stored past the extents of a grid, which then grows along some axes."""
    metadata = array.metadata
    # Listed, not computed: a crashed resize may have left chunks any distance outside.
    cells, _ = chunks.list_cells(grid.ndim)
    if len(unlisted := chunks.find_unlisted_cells(grid, grown)):
        cells = np.unique(np.concatenate([cells, unlisted]), axis=0)
    outside = (cells >= np.array(grid.grid_shape, np.int64)).any(axis=1)
    inside = cells[~outside]
    shapes, extents = _cell_shapes(grid, inside)
    # Chunks across the end hold elements past it, which would come back when the array grows.
    cut = (shapes > extents).any(axis=1)
    tasks: list[Callable[[], None]] = [
        partial(chunks.store.delete, key) for key in chunks.keys(cells[outside])
    ]
    entries = zip(
        chunks.keys(inside[cut]), shapes[cut].tolist(), extents[cut].tolist(), strict=True
    )
    for key, block, extent in entries:
        tasks.append(partial(_clear_chunk, array, chunks, metadata, key, tuple(block), extent))
    run_tasks(tasks, is_remote(chunks.store), True)


def _cell_shapes(grid: ChunkGrid, cells: Int64) -> tuple[Int64, Int64]:
    """Return the declared shapes of cells, and the parts of them inside of the array."""
    if isinstance(grid, SeparableGrid):
        return grid.cell_shapes(cells), grid.cell_extents(cells)
    each = cells.tolist()
    shapes = np.array([grid.cell_shape(cell) for cell in each], np.int64)
    extents = np.array([grid.cell_extent(cell) for cell in each], np.int64)
    return shapes.reshape(cells.shape), extents.reshape(cells.shape)


def _clear_chunk(
    array: Array,
    chunks: StoreChunks,
    metadata: ArrayMetadata,
    key: str,
    shape: tuple[int, ...],
    extent: list[int],
) -> None:
    """Set the elements of a chunk past the extents to the fill value, if they are not that."""
    fill = metadata.fill_value
    value = default_fill(metadata.dtype) if fill is None else fill
    codec = metadata.pipeline.for_block(shape, metadata.dtype, value)
    has_conditions = getattr(chunks.store, "has_conditions", False)

    def change(old: bytes | None) -> bytes | None:
        if old is None:
            return None
        block = codec.decode(old)
        cleared = full_block(shape, value, metadata.dtype)
        inside = tuple(slice(0, n) for n in extent)
        cleared[inside] = block[inside]
        # A deletion has no condition: what others write meanwhile would go with it.
        is_left_out = not array.write_empty_chunks and not has_conditions
        if fill is not None and is_left_out and is_filled(cleared, fill):
            return None
        # One slab for each axis: together they are all elements past the extents.
        past = [(*inside[:i], slice(n, None)) for i, n in enumerate(extent)]
        if all(is_filled(block[part], value) for part in past):
            return old
        return codec.encode(cleared)

    with error_context(file=f"{chunks.store.uri}/{key}", variable=array.path):
        chunks.store.update(key, change)


def append(array: Array, chunks: StoreChunks, data: Any, axis: int) -> tuple[int, ...]:
    """Write data behind an array's last elements along an axis, and return the new shape."""
    metadata = array.metadata
    data = np.asarray(data)
    axis = normalize_axis(axis, metadata.ndim)
    others = [(n, m) for i, (n, m) in enumerate(zip(metadata.shape, data.shape, strict=False))
              if i != axis]  # fmt: skip
    if data.ndim != metadata.ndim or any(n != m for n, m in others):
        raise ValueError(
            f"data of shape {data.shape} cannot be appended to {metadata.shape} along axis {axis}: "
            "all other axes must have the array's lengths"
        )
    before, length = metadata.shape[axis], data.shape[axis]
    if not length:
        return metadata.shape
    shape = tuple(before + length if i == axis else n for i, n in enumerate(metadata.shape))
    grid = _append_grid(metadata, axis, length, shape)
    new = metadata.replace(shape=shape, grid=grid)
    box = tuple(slice(before if i == axis else 0, n) for i, n in enumerate(shape))
    # Chunks first: until the metadata change, readers see nothing of them.
    write(
        new,
        chunks,
        writing_grid(new).project(box),
        data,
        variable=array.path,
        write_empty_chunks=array.write_empty_chunks,
    )
    array.update_metadata(shape=shape, grid=grid)
    return shape


def _append_grid(
    metadata: ArrayMetadata, axis: int, length: int, shape: tuple[int, ...]
) -> ChunkGrid:
    """Return the grid that an append gives: one more cell where edges are listed."""
    grid = metadata.grid
    if not isinstance(grid, SeparableGrid):
        return grid.resize(shape)
    return _round_up_to_shards(metadata, grid.append(axis, length))


def _round_up_to_shards(metadata: ArrayMetadata, grid: ChunkGrid) -> ChunkGrid:
    """Lengthen edges that were added to a grid of shards, so that they hold whole sub-chunks."""
    codec = find_sharding(metadata.pipeline)
    if codec is None or not isinstance(grid, SeparableGrid):
        return grid
    axes = list(grid.axes)
    for i, (axis, edge) in enumerate(zip(grid.axes, codec.chunk_shape, strict=True)):
        # A shard that does not divide into sub-chunks is invalid (sharding codec, v3 spec). Only
        # listed edges may need it: those of a regular grid were checked at creation.
        excess = -axis.end % edge
        if axis.regular or not excess:
            continue
        counts = axis.counts.copy()
        counts[-1] -= 1
        runs = counts > 0
        edges = np.append(axis.edges[runs], axis.edges[-1] + excess)
        axes[i] = Axis(axis.extent, edges, np.append(counts[runs], 1))
    return grid.with_axes(axes)
