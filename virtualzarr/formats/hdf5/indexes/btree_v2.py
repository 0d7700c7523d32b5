"""Version 2 B-trees of chunks: the index of datasets with several unlimited dimensions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.btree_v2 import PREFIX, Tree
from virtualzarr.formats.hdf5.byte_source import Parsing
from virtualzarr.formats.hdf5.indexes.columns import ChunkIndex, ColumnBuilder, Grids
from virtualzarr.formats.hdf5.indexes.elements import (
    declare_elements,
    make_element_dtype,
    to_chunks,
)
from virtualzarr.formats.hdf5.indexes.implicit import count_chunk_bytes
from virtualzarr.formats.hdf5.layout_message import Layout
from virtualzarr.formats.hdf5.superblock import Superblock

_PLAIN, _FILTERED = 10, 11


def read(superblock: Superblock, layout: Layout, grids: Grids) -> Parsing[ChunkIndex | None]:
    """Read the tree. HDF5 file format specification, section III.A.2, records 10 and 11.

    Raises
    ------
    SourceError
        If the tree is broken, or chunks are where HDF5 would not find them.
    UnsupportedError
        If the grid is large and almost empty.
    """
    assert layout.address is not None
    tree = yield from Tree.read(superblock, layout.address, (_PLAIN, _FILTERED))
    if not tree.total:
        return None
    dtype = make_element_dtype(
        tree.width, superblock.address_size, tree.kind == _FILTERED, len(layout.chunk)
    )
    builder, size = ColumnBuilder(grids, tree.total), count_chunk_bytes(layout)

    def take(rows: NDArray[np.uint8]) -> NDArray[np.int64]:
        records = rows.view(dtype)[:, 0]
        # "Scaled offsets": cells already, unlike the corners in elements that v1 trees have
        # (section VII.E).
        cells: NDArray[np.int64] = records["cell"]
        if len(cells) and int(cells.min()) < 0:
            raise SourceError("the chunk index names a place where no chunk can be")
        builder.add(cells, to_chunks(records, superblock, size), ascending=True)
        return cells

    if superblock.recorder is not None and not tree.depth:
        with superblock.region(tree.root) as position:
            starts = position + PREFIX + tree.width * np.arange(tree.count)
            declare_elements(superblock.recorder, layout.address, starts, dtype)
    yield from tree.records(take)
    return builder.build()
