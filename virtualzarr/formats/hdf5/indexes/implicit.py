"""Implicit chunk index: unfiltered chunks one after the other."""

from __future__ import annotations

import math

import numpy as np

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.byte_source import Parsing
from virtualzarr.formats.hdf5.indexes.columns import MAX_NUMBER, Chunks, Grids, NumberedChunks
from virtualzarr.formats.hdf5.layout_message import Layout
from virtualzarr.formats.hdf5.superblock import Superblock


def count_chunk_bytes(layout: Layout) -> int:
    """Return the bytes of a chunk without filters.

    Raises `SourceError` if no file is as long.
    """
    size = math.prod(layout.chunk) * layout.itemsize
    if size >= MAX_NUMBER:
        raise SourceError(f"a chunk of {size} bytes lies outside the file")
    return size


def read(superblock: Superblock, layout: Layout, grids: Grids) -> Parsing[NumberedChunks]:
    """Compute where the chunks are. HDF5 file format specification, section VII.B.

    Raises
    ------
    SourceError
        If the file is shorter than its chunks.
    """
    yield from ()
    if layout.address is None or None in grids.most:
        raise SourceError("the chunk index is of a kind that this dataset cannot have")
    # The library allocates all chunks of the largest grid at once ("early allocation", section
    # VII.B); the slowest axis can be cut to the present extent, the others are part of the stride.
    count = grids.now[0] * math.prod([n for n in grids.most[1:] if n is not None])
    size = count_chunk_bytes(layout)
    if superblock.recorder is not None:
        superblock.recorder.require_size(layout.address + count * size)
    if layout.address + count * size > superblock.size:
        raise SourceError(
            f"{count} chunks of {size} bytes at {layout.address} do not fit into the file"
        )
    superblock.spend(8 * count)
    address = layout.address + size * np.arange(count, dtype=np.int64)
    return NumberedChunks([(0, Chunks(address, size, 0))])
