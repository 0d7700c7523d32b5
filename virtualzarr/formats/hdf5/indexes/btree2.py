"""The v2 B-tree of chunks: the index of datasets that grow without end along several axes."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.btree import records
from virtualzarr.formats.hdf5.indexes.columns import Grids, Listed
from virtualzarr.formats.hdf5.indexes.elements import chunks, element
from virtualzarr.formats.hdf5.indexes.implicit import chunk_bytes
from virtualzarr.formats.hdf5.layouts import Layout
from virtualzarr.formats.hdf5.superblock import Superblock

_PLAIN, _FILTERED = 10, 11


def read(superblock: Superblock, layout: Layout, grids: Grids) -> Generator[Any, Any, Listed]:
    """Read the tree. HDF5 file format specification, section III.A.2, records 10 and 11.

    Raises
    ------
    SourceError
        If the tree is broken.
    """
    assert layout.address is not None
    kind, rows = yield from records(superblock, layout.address, (_PLAIN, _FILTERED))
    rank = len(layout.chunk)
    dtype = element(rows.shape[1], superblock.address_size, kind == _FILTERED, rank)
    found = np.ndarray((len(rows),), dtype, np.ascontiguousarray(rows))
    cells = found["cell"].astype(np.int64)
    if len(cells) and int(cells.min()) < 0:
        raise SourceError("the chunk index names a place where no chunk can be")
    return Listed(cells, chunks(found, superblock, chunk_bytes(layout)))
