"""Indexes of shards: read, with likely data where that saves a round trip, and cached."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from grids import Projection
from virtualzarr.array.chunk_source import LocatedChunks
from virtualzarr.array.read.chunk_cache import (
    FileCache,
    LocalVersion,
    PinnedFile,
    SourceVersion,
    is_distinct,
    stat_version,
    time_of_look,
)
from virtualzarr.array.read.output import format_cell
from virtualzarr.codecs.core.base import Buffer, as_view
from virtualzarr.codecs.sharding import Index, Shard
from virtualzarr.config import config
from virtualzarr.errors import SourceChangedError, SourceNotFoundError, VirtualZarrError
from virtualzarr.nodes.vanished import confirm_missing
from virtualzarr.stores import invalidation
from virtualzarr.stores.files import (
    ByteFile,
    FetchedFile,
    FileWithEnd,
    Fingerprint,
    InlineFile,
    LocalFile,
    Pin,
    RemoteFile,
)
from virtualzarr.stores.fingerprints import LengthError, check_unchanged, differences
from virtualzarr.stores.thread_pools import Task, run_shared

MAX_RETRIES = 100
"""Retries for a shard that is replaced while its index is read."""


class ShardFetch(NamedTuple):
    """What is fetched of a shard with its index.

    Attributes
    ----------
    nbytes : int
        Bytes beside the index, or most bytes of the whole.
    is_whole : bool
    """

    nbytes: int
    is_whole: bool


@dataclass(frozen=True, slots=True)
class CachedIndex:
    """An index that is kept, and the version of the remote file that it was read from."""

    index: Index
    fingerprint: Fingerprint | None


@dataclass
class ShardIndexReader:
    """Reads the indexes of some shards, which are located on their grid."""

    projection: Projection
    located: LocatedChunks
    shards: list[Shard]
    since: float
    fetches: Mapping[int, ShardFetch] = field(default_factory=dict)  # by number of the shard

    def __post_init__(self) -> None:
        self._files: dict[int, ByteFile] = {}
        self._tick = invalidation.next_tick()

    def file(self, row: int) -> ByteFile:
        """Return a file pinned to the version whose indexes were read."""
        file = self._files.get(row)
        if file is None:
            file = self._files[row] = _pin_version(self.located.open_file(row), self.since)
        return file

    def read_all(self, alone: bool) -> list[Index | None]:
        """Return the index of each shard, None for those never written.

        Parameters
        ----------
        alone : bool
            Whether this thread reads alone: one of the pool must not wait for others of it.
        """
        count = len(self.shards)
        indexes: list[Index | None] = [None] * count

        def read(j: int) -> None:
            indexes[j] = self._read_index(j)

        def read_some(numbers: Sequence[int]) -> bool:
            tasks: list[Task] = [partial(read, j) for j in numbers]
            first = self.located.open_file(int(self.located.file[0])) if tasks else None
            if len(tasks) > 1 and not alone and first is not None and first.remote:
                run_shared(tasks, remote=True, may_leave=True)
            else:
                for task in tasks:
                    task()
            return any(indexes[j] is None for j in numbers)

        if read_some(range(count)):
            missing = [j for j, index in enumerate(indexes) if index is None]
            check, recheck = self.located.check_missing, self.located.recheck
            confirm_missing(check, recheck, missing, read_some)
        return indexes

    def read_first(self) -> Index | None:
        """Return the index of the first shard, None if that was never written."""
        index = self._read_index(0)
        if index is None:
            self.located.check_missing()
        return index

    def _read_index(self, j: int, tries: int = MAX_RETRIES) -> Index | None:
        """Return the index of one of the shards, None if that was never written."""
        located, shard = self.located, self.shards[j]
        row = int(located.file[j])
        try:
            extent = int(located.offset[j]), int(located.length[j])
            fetch = partial(self._fetch, row, j) if j in self.fetches else None
            return _read_index(self.file(row), *extent, shard, self.since, self._tick, fetch)
        except SourceChangedError as error:
            # A shard within a shard is located again with its outer one.
            if not located.may_be_missing or not tries or located.relocate is not None:
                error.at(**self._context(j))
                raise
            self._files.pop(row, None)
            file = located.open_file(row)
            invalidation.notify_change(file.uri)
            if isinstance(file, RemoteFile):
                file.version = Pin()  # nothing of the old version was used yet
            self.since, self._tick = math.inf, invalidation.next_tick()
            return self._read_index(j, tries - 1)
        except SourceNotFoundError as error:
            if located.may_be_missing and not located.must_exist:
                return None
            error.at(**self._context(j))
            raise
        except VirtualZarrError as error:
            error.at(**self._context(j))
            raise

    def _context(self, j: int) -> dict[str, str]:
        """Return where a shard is, for errors; as a chunk it is one of the grid of shards."""
        located = self.located
        cell = self.projection.cells(located.cell[j : j + 1])[0]
        return {"file": located.open_file(int(located.file[j])).uri, "chunk": format_cell(cell)}

    def _fetch(self, row: int, j: int) -> ByteFile:
        """Return a file, with bytes in memory if no other request is needed to know its length."""
        file, fetch = self.file(row), self.fetches[j]
        if not isinstance(file, RemoteFile) or not file.connection.knows_lengths:
            return file
        if fetch.is_whole:
            try:
                file = FetchedFile(bytes(file.read(0, None, fetch.nbytes)), file.uri)
            except LengthError:  # with large gaps, which some writers leave: by its index, then
                return file
        else:
            nbytes = fetch.nbytes + self.shards[j].index_size
            at_start = self.shards[j].codec.at_start
            file = file.fetch_end(*((0, nbytes) if at_start else (-nbytes, None)))
        self._files[row] = file
        return file


def _pin_version(file: ByteFile, since: float) -> ByteFile:
    """Return a local file pinned to its version now, or to one that was checked lately enough."""
    if not isinstance(file, LocalFile):
        return file
    noted = file.fingerprint
    if noted is not None and noted.has_version:
        return file
    last = shard_indexes.last_version(file.uri, file.place, since)
    if last is not None and _is_wanted(file, last[0]):
        return PinnedFile(file.uri, *last, file.pin)
    checked_at = time.monotonic()
    try:
        version = stat_version(file.uri)
    except FileNotFoundError as error:
        file.read(0, 0)  # its error is the better one, where anything else is wrong
        raise SourceNotFoundError("there was no such file", file=file.uri) from error
    check_unchanged(file.uri, noted, version.fingerprint)  # by its size, where that is noted
    shard_indexes.revalidate(SourceVersion(file.uri, file.place, version, checked_at))
    return PinnedFile(file.uri, version, checked_at, file.pin)


def _is_wanted(file: LocalFile, version: LocalVersion) -> bool:
    """Tell whether what was read of a file, or noted of it, was of a version."""
    seen = Fingerprint(version.fingerprint.size, version.fingerprint.mtime_ns)
    if file.fingerprint is not None and differences(file.fingerprint, seen):
        return False
    return file.pin is None or file.pin.fits(file.uri, seen)


def _read_index(
    file: ByteFile,
    offset: int,
    length: int,
    shard: Shard,
    since: float,
    tick: int,
    fetch: Callable[[], ByteFile] | None = None,
) -> Index:
    """Return the index of the shard in a range of bytes; a length of -1 is to the end.

    Unless it is cached, it is read from the file that `fetch` returns, if that is given.
    """
    checked_at, version = time_of_look(file), _index_version(file, since)
    key, pin = (offset, length, shard), getattr(file, "version", None)
    cached = None if version is None else shard_indexes.get_of(version, key)
    if version is not None and cached is not None:
        if not isinstance(pin, Pin):
            return cached.index
        # Sub-chunks have to be of the version that the index was read from.
        if pin.fits(file.uri, cached.fingerprint):
            pin.index_read_at = version.checked_at
            return cached.index
    if isinstance(pin, Pin):
        pin.index_read_at = checked_at
    file = file if fetch is None else fetch()
    size = _bytes_after(file, offset) if length < 0 else length
    # Checked first: a range that began before the shard would read another chunk's bytes as the
    # index.
    if size is not None and size < shard.index_size:
        if isinstance(file, LocalFile):
            file.read(0, 0)  # the size may be that of a version that is not there any more
        raise shard.too_short_error(size)
    start = offset
    if not shard.codec.at_start and size is not None:
        start += size - shard.index_size
    if shard.codec.at_start or size is not None:
        data = file.read(start, start + shard.index_size)
    else:
        data = _read_tail(file, offset, shard)
    if isinstance(file, PinnedFile):  # of a file whose size is known
        file.expect(start, data)
    index = shard.read_index(data, size)
    if version is not None:
        if shard_indexes.limit != config.shard_index_bytes:
            shard_indexes.limit = config.shard_index_bytes
        nbytes = index.offset.nbytes + index.length.nbytes
        fingerprint = pin.fingerprint if isinstance(pin, Pin) else None
        shard_indexes.put_of(version, key, CachedIndex(index, fingerprint), nbytes, tick)
    return index


def _index_version(file: ByteFile, since: float) -> SourceVersion | None:
    """Return the version that indexes in a file are cached with, or None if they are not."""
    if not isinstance(file, LocalFile | RemoteFile):
        return None
    checked_at, fingerprint = time_of_look(file), file.fingerprint
    if isinstance(file, PinnedFile):
        # File systems stamp times in ticks of some milliseconds: a file changed twice within one
        # looks unchanged, and the index of the one would be used with the data of the other.
        pinned = SourceVersion(file.uri, file.place, file.version, file.checked_at)
        return pinned if file.version.settled and config.verify_sources else None
    connection: Hashable = fingerprint
    if isinstance(file, RemoteFile):
        connection = file.connection.scope, fingerprint
    if fingerprint is not None and config.verify_sources and is_distinct(fingerprint):
        # Sub-chunks that the index locates are read from this very version, or not at all.
        version = SourceVersion(file.uri, connection, fingerprint, checked_at)
        shard_indexes.revalidate(version)
        return version
    if since == math.inf:
        return None
    last = shard_indexes.last_version(file.uri, connection, since)
    if last is None:
        shard_indexes.revalidate(SourceVersion(file.uri, connection, None, checked_at))
    return SourceVersion(file.uri, connection, *(last or (None, checked_at)))


def _bytes_after(file: ByteFile, offset: int) -> int | None:
    """Return how many bytes there are from an offset on, if no request is needed to know."""
    if isinstance(file, InlineFile):
        return file.data.nbytes - offset
    if isinstance(file, FileWithEnd):
        return None if file.size is None else file.size - offset
    fingerprint = getattr(file, "fingerprint", None)
    return (
        None if fingerprint is None or fingerprint.size is None else int(fingerprint.size) - offset
    )


def _read_tail(file: ByteFile, offset: int, shard: Shard) -> Buffer:
    """Return the index at the end of a file of unknown size."""
    # HTTP's suffix ranges (`bytes=-n`) read from the end of a file without asking for its size.
    tail = None if offset else getattr(file, "tail", None)
    data = as_view(tail(shard.index_size) if tail else file.read(offset, None))
    if len(data) < shard.index_size:
        raise shard.too_short_error(len(data))
    return data[len(data) - shard.index_size :]


shard_indexes: FileCache[CachedIndex] = FileCache(config.shard_index_bytes)
"""LRU cache of shard indexes, for all arrays, of `config.shard_index_bytes`."""
