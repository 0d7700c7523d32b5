"""Chunk sources: where an array's chunks lie, by a manifest or under the keys of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from grids import ChunkGrid, Projection
from virtualzarr.array.stored_keys import StoredKeys
from virtualzarr.config import config
from virtualzarr.errors import SourceNotFoundError, VirtualZarrError
from virtualzarr.manifest import Decoder, Manifest, References, Source
from virtualzarr.manifest.decoders import select_decoders
from virtualzarr.metadata import ArrayMetadata, KeyEncoding
from virtualzarr.stores import Store
from virtualzarr.stores.archive import ArchiveFile
from virtualzarr.stores.files import (
    ByteFile,
    InlineFile,
    LocalFile,
    MissingFile,
    Pin,
    RemoteFile,
    is_url,
)
from virtualzarr.stores.pins import take_along


@dataclass(slots=True, eq=False)
class LocatedChunks:
    """Where the chunks of one read lie, as columns with one entry for each chunk.

    Attributes
    ----------
    cell : int64 array
        Which of the projection's touched cells.
    file : int64 array
        Which of `files`.
    offset, length : int64 arrays
        Which bytes of the file; a length of -1 means all the rest.
    open_file : callable
        Returns the file of a number in `file`.
    decoder : int32 array, optional
        Which of `decoders`; -1 for chunks that decode as the array declares.
    origin : int32 array, shape (chunks, ndim), optional
        Where in its decoded block each cell starts.
    may_be_missing : bool
        Whether a file that does not exist is a chunk never written.
    must_exist : bool
        Whether they have been there, so that it is not.
    check_missing : callable, optional
        Raises an error if files that do not exist may have been chunks.
    recheck : callable, optional
        Returns `check_missing` for files that are asked for from now on.
    relocate : callable, optional
        Locates cells anew whose files were replaced in the meantime, given some of each file.
        Returns which cells of the projection are in these files, and where they lie now.
    read_small : callable, optional
        Reads the files of several numbers, faster than one by one; it yields None for those that
        are large, or that only reading one by one tells what is wrong with.
    """

    cell: NDArray[np.int64]
    file: NDArray[np.int64]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    open_file: Callable[[int], ByteFile]
    decoders: Sequence[Decoder] = ()
    decoder: NDArray[np.int32] | None = None
    origin: NDArray[np.int32] | None = None
    may_be_missing: bool = False
    must_exist: bool = False
    check_missing: Callable[[], None] = lambda: None
    recheck: Callable[[], Callable[[], None]] | None = None
    relocate: Callable[[NDArray[np.int64]], tuple[NDArray[np.int64], LocatedChunks]] | None = None
    read_small: Callable[[NDArray[np.int64]], Iterator[bytes | None]] | None = None

    def __len__(self) -> int:
        return len(self.cell)

    def to_ask_again(self, rows: NDArray[np.int64]) -> LocatedChunks:
        """Return some of the chunks of a store, to be asked for again."""
        return replace(
            self, cell=self.cell[rows], file=self.file[rows], offset=self.offset[rows],
            length=self.length[rows],
        )  # fmt: skip


class ChunkSource(Protocol):
    """Locates the chunks of an array."""

    def locate(self, projection: Projection) -> LocatedChunks:
        """Find the chunks of the cells that a projection touches; missing ones are left out."""
        ...


class ManifestChunks:
    """Chunks that lie where a manifest says."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._files: dict[int, ByteFile] = {}
        # Of files whose tags references do not say. They outlive the files, which are evicted: one
        # opened anew could be of another version than what was read of it before.
        self._pins: dict[int, Pin] = {}

    def locate(self, projection: Projection) -> LocatedChunks:
        """Find the chunks of the cells that a projection touches; missing ones are left out."""
        refs = self._take_references(projection.grid_index)
        cell = np.flatnonzero(refs.source >= 0)
        decoders, decoder = select_decoders(self.manifest.decoders, refs.decoder)
        # Without missing chunks, the columns need not be copied.
        if len(cell) == len(refs.source):
            source = refs.source.astype(np.int64)
            columns = refs.offset, refs.length, self._file, decoders
            return LocatedChunks(cell, source, *columns, decoder, refs.origin)
        return LocatedChunks(
            cell,
            refs.source[cell].astype(np.int64),
            refs.offset[cell],
            refs.length[cell],
            self._file,
            decoders,
            None if decoder is None else decoder[cell],
            None if refs.origin is None else refs.origin[cell],
        )

    def _take_references(self, index: tuple[Any, ...]) -> References:
        return self.manifest.take(index)

    def __str__(self) -> str:
        return str(self.manifest)

    @property
    def has_decoders(self) -> bool:
        """Whether some chunks may have decoders other than the array's pipeline."""
        return self.manifest.decoder is not None or self.manifest.origin is not None

    def explain_missing(self, error: SourceNotFoundError) -> VirtualZarrError:
        """Return the error that says why a file is missing, as far as more is known of it."""
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        # Open files cannot be pickled; what was read of them goes along where it is not noted.
        read = {
            row: Pin(version)
            for row, pin in self._pins.items()
            if (version := take_along(pin)) is not None
            and (source := self.manifest.sources[row]).pins is None
            and not source.fingerprint.has_version
        }
        return ManifestChunks, (self.manifest,), {"_pins": read} if read else None

    def _file(self, row: int) -> ByteFile:
        file = self._files.get(row)
        if file is None:
            # Cleared at once, as an LRU order would have to be updated for each chunk.
            if len(self._files) >= config.open_sources:
                self._files.clear()
            file = self._files[row] = self._open_pinned(row)
        return file

    def _open_pinned(self, row: int) -> ByteFile:
        """Return a file anew, of the version that was read of it before."""
        file = self._open_file(row)
        if isinstance(file, RemoteFile):
            recorded = file.fingerprint
            if recorded is None or recorded.etag is None:
                file.version = self._pin(row, file.version)
        return file

    def _pin(self, row: int, version: Pin) -> Pin:
        return self._pins.setdefault(row, version)

    def _open_file(self, row: int) -> ByteFile:
        return open_source(self.manifest.sources[row])


def check_grid_shape(metadata: ArrayMetadata, manifest: Manifest) -> None:
    """Raise ValueError if a manifest has another shape than the grid."""
    if manifest.shape != metadata.grid.grid_shape:
        raise ValueError(
            f"the manifest has {manifest.shape} cells, the grid {metadata.grid.grid_shape}"
        )


def open_source(source: Source) -> ByteFile:
    """Return the file that a source names, guarded by its fingerprint."""
    if source.data is not None:
        return InlineFile(source.data)
    fingerprint = source.fingerprint
    if is_url(source.uri):
        file = RemoteFile(source.location, fingerprint)
        if source.pins is not None and fingerprint.etag is None:
            file.version = source.pins.at(source.uri)
        return file
    if source.checksums is not None:
        return ArchiveFile(source.uri, fingerprint, source.checksums)
    if source.pins is None or fingerprint.mtime_ns is not None:
        return LocalFile(source.uri, fingerprint)
    return LocalFile(source.uri, fingerprint, source.pins.at(source.uri))


class StoreChunks(StoredKeys):
    """Chunks that lie under the keys of a store, one object each."""

    def replace(
        self, store: Store | None = None, encoding: KeyEncoding | None = None
    ) -> StoreChunks:
        """Return chunks of another store, or with other keys."""
        return StoreChunks(
            self.store if store is None else store,
            self.path,
            self.encoding if encoding is None else encoding,
            self.document,
        )

    def find_unlisted_cells(self, grid: ChunkGrid, axes: Sequence[int]) -> NDArray[np.int64]:
        """Return cells that `list_cells` leaves out and that reach past a grid along some axes."""
        return np.empty((0, grid.ndim), np.int64)

    def locate(self, projection: Projection) -> LocatedChunks:
        """Return the keys of the cells that a projection touches; reading tells which exist."""
        cells = projection.cells()
        # Each chunk is a file of its own: its number is its row, and its bytes are all of it.
        every = np.arange(len(cells))
        nothing = np.zeros(len(cells), np.int64)
        first: list[ByteFile] = []

        def file(row: int) -> ByteFile:
            # Only when it is needed: keys take far more memory than cells.
            if not row and first:
                return first[0]
            key = self.keys(cells[row : row + 1])[0]
            opened = self.store.file(key) or MissingFile(key)
            if not row:
                first.append(opened)  # the request asks it whether files are remote, too
            return opened

        read_small: Any = getattr(self.store, "read_small_files", None)

        def read_many(rows: NDArray[np.int64]) -> Iterator[bytes | None]:
            contents: Iterator[bytes | None] = read_small(self.keys(cells[rows]))
            return contents

        return LocatedChunks(
            every,
            every,
            nothing,
            nothing - 1,
            file,
            may_be_missing=True,
            check_missing=self._begin_check(),
            recheck=self._begin_check,
            read_small=read_many if read_small else None,
        )


class ListedChunks(StoreChunks):
    """Chunks of a store of which it is known which there are.

    One of these that is not found has vanished, or cannot be seen from where it is read: an error.

    Parameters
    ----------
    chunks : StoreChunks
    shape : tuple of int
        That of the grid.
    cells : int64 array, shape (chunks, ndim)
        Those that have a chunk.
    """

    def __init__(
        self, chunks: StoreChunks, shape: tuple[int, ...], cells: NDArray[np.int64]
    ) -> None:
        super().__init__(chunks.store, chunks.path, chunks.encoding, chunks.document)
        self.shape = shape
        self._numbers = np.append(np.sort(self._number(cells)), -1)  # -1 is what is not found

    def locate(self, projection: Projection) -> LocatedChunks:
        """Return the keys of the chunks that a projection touches."""
        located = super().locate(projection)
        numbers = self._number(projection.cells())
        # By a search in what is in order: each of many reads asks for few of many chunks.
        at = np.searchsorted(self._numbers[:-1], numbers)
        rows = np.flatnonzero(self._numbers[at] == numbers)
        nothing = np.zeros(len(rows), np.int64)
        return replace(
            located, cell=rows, file=rows, offset=nothing, length=nothing - 1, must_exist=True
        )

    def _number(self, cells: NDArray[np.int64]) -> NDArray[np.int64]:
        if not self.shape:
            return np.zeros(len(cells), np.int64)
        return np.asarray(np.ravel_multi_index(tuple(cells.T), self.shape))
