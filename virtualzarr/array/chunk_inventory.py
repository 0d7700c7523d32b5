"""Chunk inventory: which chunks are stored, their sizes, and iteration over them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grids import RegularGrid, SeparableGrid
from virtualzarr.array.chunk_source import ManifestChunks, StoreChunks
from virtualzarr.array.read.engine import read
from virtualzarr.codecs.sharding import find_sharding
from virtualzarr.errors import UnsupportedError
from virtualzarr.manifest import Manifest
from virtualzarr.nodes.documents import DOCUMENT_NAMES, join

if TYPE_CHECKING:
    from virtualzarr.array.array import Array
    from virtualzarr.array.properties import ArrayProperties

Int64 = NDArray[np.int64]

MAX_CELLS = 1 << 31
"""The most cells of a grid for which an array with an entry for each is made."""


def find_stored_chunks(array: ArrayProperties) -> NDArray[np.bool_]:
    """Tell for each cell of the grid whether it has a chunk."""
    _check_cells(array)
    if isinstance(array.chunk_source, ManifestChunks):
        return array.chunk_source.manifest.source >= 0
    cells, _ = _list_stored(array)
    return _scatter(array, cells, np.True_)


def measure_chunks(array: ArrayProperties) -> Int64:
    """Return for each cell of the grid how many bytes its chunk has; 0 where there is none."""
    _check_cells(array)
    if isinstance(array.chunk_source, ManifestChunks):
        return _chunk_lengths(array.chunk_source.manifest)
    return _scatter(array, *_stored_chunks(array).list_sizes_within(array.grid.grid_shape))


def _scatter(array: ArrayProperties, cells: Int64, values: Any) -> NDArray[Any]:
    """Return an array over the grid that has values in some cells, and zero elsewhere."""
    scattered = np.zeros(array.grid.grid_shape, values.dtype)
    if len(cells):
        # With `...`, as an array without axes has one cell and an empty index.
        scattered[(*cells.T, ...)] = values
    return scattered


def count_objects(array: ArrayProperties) -> int:
    """Count the cells of the grid that have a chunk, or a shard."""
    if isinstance(array.chunk_source, ManifestChunks):
        return array.chunk_source.manifest.nrefs
    return len(_list_stored(array)[0])


def count_initialized(array: ArrayProperties) -> int:
    """Count the chunks that exist; those of a shard that exists are all counted."""
    codec, grid = find_sharding(array.metadata.pipeline), array.grid
    if codec is None:
        return count_objects(array)
    if isinstance(grid, RegularGrid):
        each = zip(grid.chunk_shape, codec.chunk_shape, strict=True)
        return count_objects(array) * math.prod(n // c for n, c in each)
    assert isinstance(grid, SeparableGrid)
    # Shards of a rectilinear grid differ in length, and so in how many sub-chunks they hold.
    cells = np.argwhere(find_stored_chunks(array)) if array.is_virtual else _list_stored(array)[0]
    inside = grid.cell_shapes(cells) // np.array(codec.chunk_shape, np.int64)
    return int(inside.prod(axis=1).sum())


def sum_stored_bytes(array: ArrayProperties) -> int:
    """Sum up the bytes of all that is stored for an array."""
    source = array.chunk_source
    if isinstance(source, ManifestChunks):
        _check_cells(array)
        return int(_chunk_lengths(source.manifest).sum())
    chunks = _stored_chunks(array)
    if not chunks.lists_pages:
        return sum(size for _, size in chunks.store.list(array.path))
    # What a page leaves out, or lists without its size, is asked for.
    _, sizes = chunks.list_sizes_within(array.grid.grid_shape)
    keys = [join(array.path, name) for name in DOCUMENT_NAMES]
    return int(sizes.sum()) + sum(len(chunks.store.get(key) or b"") for key in keys)


def iter_chunks(array: Array) -> Iterator[tuple[tuple[slice, ...], NDArray[Any]]]:
    """Yield where each chunk lies in the array, and its elements, in C order."""
    metadata, chunks = array._resolve_shards()
    grid = metadata.grid
    for cell in _iter_cells(grid.grid_shape):
        corner, extent = grid.cell_origin(cell), grid.cell_extent(cell)
        box = tuple(slice(i, i + n) for i, n in zip(corner, extent, strict=True))
        options: Any = {"variable": array.path, "fill_missing": array.fill_missing}
        yield box, read(metadata, chunks, grid.project(box), **options)


def _iter_cells(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield all cells of a grid, which may have any number of them."""
    if not shape:
        yield ()
        return
    # Not `np.ndindex`, which runs out of memory on axes as long as those of a virtual grid may be.
    for i in range(shape[0]):
        for inner in _iter_cells(shape[1:]):
            yield (i, *inner)


def _list_stored(array: ArrayProperties) -> tuple[Int64, Int64]:
    """List the cells of the grid that have a chunk in the store, and the sizes of the chunks."""
    return _stored_chunks(array).list_cells_within(array.grid.grid_shape)


def _stored_chunks(array: ArrayProperties) -> StoreChunks:
    source = array.chunk_source
    if not isinstance(source, StoreChunks):
        raise UnsupportedError(
            f"which chunks exist is not known of {type(source).__name__}", variable=array.path
        )
    return source


def _chunk_lengths(manifest: Manifest) -> Int64:
    """Return the bytes of each chunk; some reach to the end of their source."""
    length = np.where(manifest.source < 0, 0, np.asarray(manifest.length))
    flat = length.reshape(-1)
    to_end = np.flatnonzero(flat < 0)
    if len(to_end):
        # Each source is asked for its size once, however many chunks end with it.
        rows, inverse = np.unique(manifest.source.reshape(-1)[to_end], return_inverse=True)
        sizes = np.array([manifest.sources[row].find_size() for row in rows.tolist()], np.int64)
        offset = np.asarray(manifest.offset).reshape(-1)[to_end]
        flat[to_end] = np.maximum(sizes[inverse] - offset, 0)
    return length


def _check_cells(array: ArrayProperties) -> None:
    cells = math.prod(array.grid.grid_shape)
    if cells > MAX_CELLS:
        raise ValueError(
            f"the grid of /{array.path} has {cells} cells: too many for an array with an entry "
            f"for each, which has at most {MAX_CELLS}"
        )
