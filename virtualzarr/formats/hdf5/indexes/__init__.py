"""Chunk indexes of HDF5, one module for each type, as columns."""

from __future__ import annotations

from collections.abc import Callable

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.byte_source import Parsing
from virtualzarr.formats.hdf5.indexes import (
    btree_v1,
    btree_v2,
    extensible_array,
    fixed_array,
    implicit,
    single,
)
from virtualzarr.formats.hdf5.indexes.columns import (
    ChunkIndex,
    Grids,
    NumberedChunks,
    SmallIndex,
    to_columns,
)
from virtualzarr.formats.hdf5.layout_message import Layout
from virtualzarr.formats.hdf5.superblock import Superblock

__all__ = ["ChunkIndex", "Grids", "read"]

_Reader = Callable[
    [Superblock, Layout, Grids], Parsing[ChunkIndex | NumberedChunks | SmallIndex | None]
]
_READERS: dict[str, _Reader] = {
    "B-tree v1": btree_v1.read,
    "single chunk": single.read,
    "implicit": implicit.read,
    "fixed array": fixed_array.read,
    "extensible array": extensible_array.read,
    "B-tree v2": btree_v2.read,
}


def read(
    superblock: Superblock,
    base: int,
    layout: Layout,
    shape: tuple[int, ...],
    limits: tuple[int | None, ...],
) -> Parsing[ChunkIndex | None]:
    """Read the chunk index of a dataset.

    Parameters
    ----------
    superblock : Superblock
    base : int
        Byte of the file that address 0 is.
    layout : Layout
        Of class "chunked".
    shape : tuple of int
        The dataset's present extent.
    limits : tuple of int or None
        How far each axis can grow; None where without end.

    Returns
    -------
    ChunkIndex or None
        None when no chunk was ever written.

    Raises
    ------
    SourceError
        If the index is broken or reaches out of the file.
    UnsupportedError
        If the grid is large and almost empty.
    """
    if len(shape) != len(layout.chunk):
        raise SourceError(f"chunks have {len(layout.chunk)} axes, the dataset {len(shape)}")
    grids = Grids.of(shape, limits, layout.chunk)
    if layout.address is None:
        return None
    superblock.take_cells(0)
    chunks = yield from _READERS[layout.index](superblock, layout, grids)
    index = to_columns(chunks, grids, superblock.size, base)
    superblock.take_cells(0 if index is None else index.source.size)
    return index
