"""Chunk sources: where an array's chunks lie, by a manifest or under the keys of a store."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from grids import ChunkGrid, Projection
from virtualzarr.array.thread_pools import run_shared
from virtualzarr.config import config
from virtualzarr.errors import (
    SourceChangedError,
    SourceNotFoundError,
    UnsupportedError,
    VirtualZarrError,
)
from virtualzarr.manifest import Decoder, Manifest, References, Source
from virtualzarr.manifest.decoders import select_decoders
from virtualzarr.metadata import ArrayMetadata, KeyEncoding
from virtualzarr.nodes.vanished import check_not_vanished, count_renewals
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
from virtualzarr.stores.renewals import RenewedError, ask_again
from virtualzarr.stores.uris import is_cached, is_web

_NO_CHUNK = -2


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
        # Open files cannot be pickled.
        return ManifestChunks, (self.manifest,)

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
            file.version = source.pins.setdefault(source.uri, file.version)
        return file
    if source.checksums is not None:
        return ArchiveFile(source.uri, fingerprint, source.checksums)
    if source.pins is None or fingerprint.mtime_ns is not None:
        return LocalFile(source.uri, fingerprint)
    return LocalFile(source.uri, fingerprint, source.pins.setdefault(source.uri, Pin()))


class StoreChunks:
    """Chunks that lie under the keys of a store, one object each.

    Parameters
    ----------
    store : Store
    path : str
        That of the array.
    encoding : KeyEncoding
    document : str, optional
        What the array's document is called, which is looked for where chunks are missing.
    """

    def __init__(
        self, store: Store, path: str, encoding: KeyEncoding, document: str | None = None
    ) -> None:
        self.store = store
        self.path = path
        self.encoding = encoding
        self.document = document

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

    def keys(self, cells: NDArray[np.int64]) -> list[str]:
        """Return the keys of the chunks of some cells, which have shape (cells, ndim)."""
        keys = self.encoding.keys(cells)
        return [f"{self.path}/{key}" for key in keys] if self.path else keys

    def list_cells(self, ndim: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """List the cells that have a chunk, also those outside of the array.

        Returns
        -------
        cells : int64 array, shape (chunks, ndim)
        sizes : int64 array
            Bytes of each chunk.

        Raises
        ------
        UnsupportedError
            The store cannot be listed.
        """
        return ask_again(partial(self._list_cells, ndim))

    def _list_cells(self, ndim: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        renewals = self.renewals
        pattern, start = self.encoding.pattern(ndim), len(self.path) + 1 if self.path else 0
        folder = "/".join(filter(None, [self.path, self.encoding.folder(ndim)]))
        listed = [
            (key[start:], size)
            for key, size in self.store.list(folder)
            if pattern.fullmatch(key, start)
        ]
        self.check_missing(renewals)
        if is_cached(self.store.uri) and not self.is_listable:
            raise SourceChangedError(
                "a cache of fsspec has the array's document, which is not there any more, or not "
                "listed: clear the cache",
                file=self.store.uri,
            ).at(variable=self.path)
        # An empty listing of a server that lists nothing must not read as "no chunk exists".
        if not listed and getattr(self.store, "remote", False) and not self.is_listable:
            raise UnsupportedError(
                "the server does not list which chunks there are", file=self.store.uri
            ).at(variable=self.path)
        cells = self.encoding.parse([key for key, _ in listed], ndim)
        return cells, np.array([size for _, size in listed], np.int64)

    @property
    def is_listable(self) -> bool:
        """Whether the store can be listed: if so, the listing has the array's document."""
        try:
            names = {self.document} if self.document else {"zarr.json", ".zarray"}
            return bool(names & {*self.store.list_dir(self.path)})
        except UnsupportedError:
            return False

    @property
    def renewals(self) -> int:
        """How often credentials were replaced by others."""
        return count_renewals(self.store)

    def check_missing(self, renewals: int | None = None) -> None:
        """Raise an error if chunks that are missing may have been there.

        Parameters
        ----------
        renewals : int, optional
            What `renewals` was before they were asked for.

        Raises
        ------
        RenewedError
            Others than asked for them may be told more.
        """
        check_not_vanished(self.store, self.path, self.document)
        if renewals is not None and renewals != self.renewals:
            raise RenewedError(
                "credentials changed while chunks were asked for that are missing: with those of "
                "now they may be there; do it again",
                file=self.store.uri,
                variable=self.path or "/",
            )

    def _begin_check(self) -> Callable[[], None]:
        """Return `check_missing` for what is asked for from now on."""
        return partial(self.check_missing, self.renewals)

    def list_cells_within(
        self, shape: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the cells within a grid that have a chunk, and the bytes of each (-1: unknown).

        Each chunk is queried where a server does not list; and each that is not on its page where
        it is a web server, whose pages may leave out what they please.

        Raises
        ------
        UnsupportedError
            There are more cells to query than `config.limits.chunk_queries`.
        """
        count = math.prod(shape)
        try:
            cells, sizes = self.list_cells(len(shape))
        except UnsupportedError as error:
            self._check_queries(count, error)
            cells, sizes = self._query_missing(np.arange(count), shape)
            if count and not len(cells):
                # A server that denies every chunk may deny whatever it is asked for.
                raise error.at(variable=self.path) from None
            return cells, sizes
        inside = np.asarray((cells < np.array(shape, np.int64)).all(axis=1))
        cells, sizes = cells[inside], sizes[inside]
        if not self.lists_pages or len(cells) == count:
            return cells, sizes
        problem = (
            f"the server's page lists {len(cells)} of {count} chunks, and may leave some out; to "
            "ask for each of the others is more than config.limits.chunk_queries"
        )
        self._check_queries(count - len(cells), UnsupportedError(problem, file=self.store.uri))
        listed = np.ravel_multi_index(tuple(cells.T), shape) if shape else np.zeros(len(cells), int)
        others = self._query_missing(np.setdiff1d(np.arange(count), listed), shape)
        return np.concatenate([cells, others[0]]), np.concatenate([sizes, others[1]])

    @property
    def lists_pages(self) -> bool:
        """Whether what the store lists is what links on a web page say."""
        # Behind a cache of fsspec, too.
        return is_web(re.sub(r"^(\w+::)+", "", self.store.uri))

    def _check_queries(self, count: int, error: UnsupportedError) -> None:
        """Raise an error if so many chunks cannot be queried."""
        if not hasattr(self.store, "size") or count > config.limits.chunk_queries:
            raise error.at(variable=self.path)

    def list_sizes_within(
        self, shape: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Do what `list_cells_within` does, and query the bytes of chunks where a page says none.

        Raises
        ------
        UnsupportedError
            The server does not say how long a chunk is.
        """
        cells, sizes = self.list_cells_within(shape)
        unknown = np.flatnonzero(sizes < 0)
        if len(unknown):
            sizes[unknown] = self._query_sizes(cells[unknown])
        # Of those that were deleted meanwhile, nothing is stored.
        is_there = sizes != _NO_CHUNK
        if (sizes[is_there] < 0).any():
            raise UnsupportedError(
                "the server does not say how many bytes the chunks have", file=self.store.uri
            ).at(variable=self.path)
        return cells[is_there], sizes[is_there]

    def _query_missing(
        self, numbers: NDArray[np.int64], shape: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Do what `_query_cells` does, and check that the array was there all the time."""
        # Before, too: what was shown tells the store whether credentials are good.
        self.check_missing()
        cells, sizes = self._query_cells(numbers, shape)
        self.check_missing()
        return cells, sizes

    def _query_cells(
        self, numbers: NDArray[np.int64], shape: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which of some cells, numbered in C order, have a chunk, and the bytes of each."""
        # The reshape keeps two axes also where the array has no axes, or no cells.
        cells = np.array(np.unravel_index(numbers, shape) if shape else [], np.int64).T
        cells = cells.reshape(len(numbers), len(shape))
        sizes = self._query_sizes(cells)
        inside = sizes != _NO_CHUNK
        return cells[inside], sizes[inside]

    def _query_sizes(self, cells: NDArray[np.int64]) -> NDArray[np.int64]:
        query_size: Any = self.store.size  # type: ignore[attr-defined]
        sizes, keys = np.full(len(cells), _NO_CHUNK), self.keys(cells)

        def query(i: int) -> None:
            size = query_size(keys[i])
            sizes[i] = _NO_CHUNK if size is None else size

        run_shared([partial(query, i) for i in range(len(keys))], remote=True)
        return sizes

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
