"""Single chunk index: the layout message itself."""

from __future__ import annotations

import numpy as np

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.byte_source import Parsing
from virtualzarr.formats.hdf5.indexes.columns import MAX_NUMBER, Chunks, Grids, NumberedChunks
from virtualzarr.formats.hdf5.indexes.implicit import count_chunk_bytes
from virtualzarr.formats.hdf5.layout_message import Layout
from virtualzarr.formats.hdf5.superblock import Superblock


def read(superblock: Superblock, layout: Layout, grids: Grids) -> Parsing[NumberedChunks]:
    """Return the one chunk. HDF5 file format specification, section VII.A.

    Raises
    ------
    SourceError
        If the dataset has several, or it is longer than any file.
    """
    yield from ()
    if grids.cells != 1:
        raise SourceError("the chunk index is of a kind that this dataset cannot have")
    size = count_chunk_bytes(layout) if layout.size is None else layout.size
    if size >= MAX_NUMBER:
        raise SourceError(f"a chunk of {size} bytes lies outside the file")
    address = np.array([layout.address], dtype=np.uint64).astype(np.int64)
    mask = np.full(1, layout.mask, dtype=np.uint32) if layout.mask else 0
    return NumberedChunks([(0, Chunks(address, size, mask))])
