"""Writing over references: chunks are stored under the array's own keys, and hide what was there.

A cell is first marked as one that may be stored natively, then its chunk is stored, then it is
marked as stored. What a crash leaves behind at most makes readers look for a chunk that is not
there. No chunk is left out for being nothing but fill values: it would not hide a reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grids import ChunkGrid, SeparableGrid
from virtualzarr.array.chunk_source import StoreChunks
from virtualzarr.codecs.core.fill_value import full_block
from virtualzarr.config import config
from virtualzarr.references.native.save_columns import chunk_shape
from virtualzarr.references.native.storage_transformer import Configuration
from virtualzarr.references.native.written_cells import PENDING, STORED, Marks
from virtualzarr.stores import Store
from virtualzarr.stores.files import Buffer
from virtualzarr.stores.store import Change

if TYPE_CHECKING:
    from virtualzarr.array import Array
    from virtualzarr.references.native.manifest_chunks import NativeChunks

Int64 = NDArray[np.int64]


@contextmanager
def writing(array: Array) -> Iterator[NativeWriter]:
    """Give what the write path writes to, within a with statement."""
    writer = NativeWriter(array)
    try:
        yield writer
    finally:
        writer.close()


class NativeWriter(StoreChunks):
    """The keys of an array with a manifest, while they are written.

    Parameters
    ----------
    array : Array
        Its metadata are changed when something is written for the first time.
    """

    def __init__(self, array: Array) -> None:
        chunks: NativeChunks = array.chunk_source  # type: ignore[assignment]
        super().__init__(Beneath(chunks.store, self), chunks.path, array.metadata.key_encoding)
        self.array = array
        self._marks: Marks | None = chunks.marks
        self._pending: list[Int64] = []
        self.stored_keys: set[str] = set()
        self.deleted_keys: set[str] = set()

    @property
    def marks(self) -> Marks:
        """The record of native chunks; it is begun, and that it is there made known, if need be."""
        if self._marks is None:

            def begin(found: Any) -> dict[str, Any]:
                value = Configuration.of(found)
                if value.native is None:
                    shape = [*found.grid.grid_shape]
                    if shape:
                        shape[value.axis] = config.tuning.column_cells  # there may be many more
                    value = replace(value, native=chunk_shape(shape))
                return {"storage_transformers": (value.to_json(),)}

            self.array._change_metadata(begin)
            marks = self.array.chunk_source.marks  # type: ignore[attr-defined]
            assert marks is not None
            self._marks = marks
        return self._marks

    def keys(self, cells: Int64) -> list[str]:
        """Return the keys of the chunks of some cells, which are about to be written."""
        if len(cells):
            state = self.marks.read(cells)
            outside = (cells >= np.array(self.array.grid.grid_shape, np.int64)).any(axis=1)
            # Chunks outside are deleted, or were left there by who did not come to that.
            change = (state == 0) | (outside & (state != PENDING))
            self.marks.write(cells[change], PENDING)
            self._pending.append(np.array(cells))
        return super().keys(cells)

    def close(self) -> None:
        """Mark what was written, and what was deleted."""
        for cells in self._pending:
            keys = super().keys(cells)
            # Only states that change are written: the record is a chunked array, and a write
            # costs a chunk.
            for names, state in ((self.stored_keys, STORED), (self.deleted_keys, 0)):
                chosen = np.fromiter((key in names for key in keys), bool, len(keys))
                cells_now = cells[chosen]
                self.marks.write(cells_now[self.marks.read(cells_now) != state], state)
        self._pending = []

    def find_unlisted_cells(self, grid: ChunkGrid, axes: Sequence[int]) -> Int64:
        """Return the cells with references that reach past the end of a grid along some axes."""
        if not isinstance(grid, SeparableGrid):
            return np.empty((0, grid.ndim), np.int64)
        candidates = [np.empty((0, grid.ndim), np.int64)]
        for number in axes:
            axis = grid.axes[number]
            last = axis.ncells - 1
            if last >= 0 and axis.length(last) < axis.edge(last):
                shape = grid.grid_shape
                rows = [np.arange(n) for n in shape]
                rows[number] = np.array([last])
                candidates.append(
                    np.stack(np.meshgrid(*rows, indexing="ij"), -1).reshape(-1, len(shape))
                )
        cells = np.unique(np.concatenate(candidates), axis=0).astype(np.int64)
        return cells[self.has_reference(cells)]

    def has_reference(self, cells: Int64) -> NDArray[np.bool_]:
        """Tell which cells have a reference, hidden or not."""
        chunks: NativeChunks = self.array.chunk_source  # type: ignore[assignment]
        result = np.zeros(len(cells), bool)
        inside = (cells < np.array(self.array.grid.grid_shape, np.int64)).all(axis=1)
        rows = np.flatnonzero(inside)
        result[rows[chunks.find(cells[rows], native=False).cell]] = True
        return result

    def cell_of(self, key: str) -> Int64:
        """Return the cell of a key, shape (1, ndim)."""
        start = len(self.path) + 1 if self.path else 0
        return self.encoding.parse([key[start:]], self.array.ndim)

    def base(self, key: str) -> bytes | None:
        """Return what a reference makes of a cell, encoded as the array declares; None without."""
        cell = self.cell_of(key)
        if not self.has_reference(cell)[0]:
            return None
        return self._encode(cell, filled=False)

    def fill_chunk(self, key: str) -> bytes | None:
        """Return a chunk of nothing but fill values, where there is a reference to hide."""
        cell = self.cell_of(key)
        return self._encode(cell, filled=True) if self.has_reference(cell)[0] else None

    def _encode(self, cell: Int64, *, filled: bool) -> bytes:
        metadata, index = self.array.metadata, cell[0].tolist()
        fill = metadata.effective_fill
        grid = metadata.grid
        shape = grid.cell_shape(index)
        block = full_block(tuple(shape), fill, metadata.dtype)
        if not filled:
            corner, extent = grid.cell_origin(index), grid.cell_extent(index)
            where = tuple(slice(i, i + n) for i, n in zip(corner, extent, strict=True))
            beneath = type(self.array)(
                metadata, OnlyReferences(self.array.chunk_source), self.array.path
            )
            block[tuple(slice(0, n) for n in extent)] = beneath.read(where)
        return bytes(metadata.pipeline.for_block(shape, metadata.dtype, fill).encode(block))


class OnlyReferences:
    """Chunks of an array as they would be had nothing been written over them."""

    def __init__(self, chunks: Any) -> None:
        self.chunks = chunks
        self.has_decoders = chunks.has_decoders

    def locate(self, projection: Any) -> Any:
        """Find the referenced chunks that a projection touches."""
        return self.chunks.find(projection.cells(), native=False)


class Beneath:
    """A store in which keys that were never written have what the array's references give."""

    def __init__(self, store: Store, writer: NativeWriter) -> None:
        self.store, self.writer = store, writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def set(self, key: str, data: Buffer) -> None:
        """Give a key a value."""
        self.store.set(key, data)
        self.writer.stored_keys.add(key)

    def update(self, key: str, change: Change) -> None:
        """Replace a key's value by what `change` makes of it, or of what a reference gives."""
        left = False

        def apply(old: bytes | None) -> Buffer | None:
            nonlocal left
            # A chunk that is changed in part begins with what its reference holds: copy on write.
            base = self.writer.base(key) if old is None else old
            new = change(base)
            if new is None:
                # Deleting would bring the reference back to light: a chunk of fill values hides
                # it.
                new = self.writer.fill_chunk(key)
            left = new is None
            return new

        self.store.update(key, apply)
        (self.writer.deleted_keys if left else self.writer.stored_keys).add(key)

    def delete(self, key: str) -> None:
        """Take a key's value away; where there is a reference, it is hidden."""
        data = self.writer.fill_chunk(key)
        if data is not None:
            self.set(key, data)
        else:
            self.store.delete(key)
            self.writer.deleted_keys.add(key)
