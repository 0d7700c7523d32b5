"""Record of natively written cells, beside the manifest, so that no reader need look for chunks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grids import RegularGrid
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.nodes.documents import join
from virtualzarr.references.native.storage_transformer import FOLDER
from virtualzarr.stores import Store

Int64 = NDArray[np.int64]

PENDING, STORED = 1, 2
"""States of a cell: a native chunk may be there, or is there; 0 is none."""

FOLDER_NAME = "native"


class Marks:
    """The record of an array: a Zarr array with one byte for each cell, zero where none is.

    Parameters
    ----------
    path : str
        Of the array whose cells these are.
    chunks : tuple of int
        Chunk shape of the record.
    """

    def __init__(self, store: Store, path: str, chunks: tuple[int, ...]) -> None:
        self.store, self.path, self.chunks = store, path, chunks

    def _array(self, shape: tuple[int, ...]) -> Array:
        # Whole chunks, so that no writer takes the cells it knows of for all there are. Keys do
        # not depend on the shape.
        shape = tuple(-(-n // c) * c for n, c in zip(shape, self.chunks, strict=True))
        metadata = ArrayMetadata(
            shape, np.dtype("u1"), RegularGrid(shape, self.chunks),
            Pipeline([make("bytes"), make("zstd", level=1, checksum=True)]), 0,
        )  # fmt: skip
        return Array.from_store(metadata, self.store, join(self.path, FOLDER, FOLDER_NAME))

    def read(self, cells: Int64) -> NDArray[np.uint8]:
        """Return the states of some cells, as they are now."""
        if not cells.shape[1]:
            return np.full(len(cells), self._array(())[()], np.uint8)
        if not len(cells):
            return np.empty(0, np.uint8)
        shape = tuple((cells.max(axis=0) + 1).tolist())
        return np.asarray(self._array(shape).vindex[tuple(cells.T)]).reshape(-1)

    def write(self, cells: Int64, state: int) -> None:
        """Change the states of some cells; all others keep theirs, whoever else is writing."""
        if not len(cells):
            return
        if not cells.shape[1]:
            self._array(())[()] = state
            return
        shape = tuple((cells.max(axis=0) + 1).tolist())
        self._array(shape).vindex[tuple(cells.T)] = state

    def find_marked(self, shape: tuple[int, ...]) -> Int64:
        """Return the cells of a grid that are, or may be, stored natively."""
        states = self._array(shape)[tuple(map(slice, shape))]
        return np.argwhere(states != 0).astype(np.int64)

    def keys(self, cells: Int64, metadata: ArrayMetadata) -> list[str]:
        """Return the keys under which chunks of cells are stored natively."""
        return [join(self.path, key) for key in metadata.key_encoding.keys(cells)]
