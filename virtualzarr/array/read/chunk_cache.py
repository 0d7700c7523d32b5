"""LRU cache of decoded chunks, and of shard indexes, revalidated by the versions of their files.

Every entry belongs to a version of a file that was checked at some time. A look-up says since when
the check must be; if it is older, the file's version is fetched again, and entries of another one
are dropped. What this process writes is dropped at once.
"""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Hashable
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from numpy.typing import NDArray

from virtualzarr.array.read.cache_policy import CachePolicy
from virtualzarr.codecs import BlockCodec
from virtualzarr.codecs.core.base import Buffer
from virtualzarr.config import config
from virtualzarr.errors import SourceChangedError, SourceError
from virtualzarr.stores import invalidation
from virtualzarr.stores.files import ByteFile, Fingerprint, LocalFile, OpenFile, RemoteFile
from virtualzarr.stores.fingerprints import differences
from virtualzarr.stores.lru_cache import LRUCache
from virtualzarr.stores.pins import Pin

ENTRY_OVERHEAD = 512
"""About how many bytes an entry takes besides its value."""

T = TypeVar("T")


class LocalVersion(NamedTuple):
    """Version of a local file.

    Attributes
    ----------
    fingerprint : Fingerprint
        Its tag is made of the inode and of when the file was last changed in any way.
    settled : bool
        Whether any later change will give another fingerprint.
    """

    fingerprint: Fingerprint
    settled: bool


def stat_version(path: str) -> LocalVersion:
    """Return the version that a local file is of now.

    Raises
    ------
    OSError
        There is no such file, or its status cannot be read.
    """
    status = os.stat(path)
    settled = is_settled(status.st_mtime_ns, status.st_ctime_ns)
    return LocalVersion(_fingerprint_of(status), settled)


def _fingerprint_of(status: os.stat_result) -> Fingerprint:
    # Tools restore the time of modification (rsync, tar); nothing sets that of the last change.
    changed_ns = status.st_ctime_ns
    if os.name == "nt":  # where paths and descriptors do not mean the same by it
        changed_ns = getattr(status, "st_birthtime_ns", changed_ns)
    tag = f"{status.st_dev:x}-{status.st_ino:x}-{changed_ns:x}"
    return Fingerprint(status.st_size, status.st_mtime_ns, tag)


def is_settled(*times_ns: int) -> bool:
    """Tell whether a file that was last changed then would show it if it were changed again."""
    return time.time_ns() - max(times_ns) > config.settled_ns


def is_distinct(fingerprint: Fingerprint) -> bool:
    """Tell whether no other version of a file has the same fingerprint."""
    return (
        fingerprint.etag is not None
        if fingerprint.mtime_ns is None
        else is_settled(fingerprint.mtime_ns)
    )


def time_of_look(file: ByteFile) -> float:
    """Return until when, by `time.monotonic`, a file is known to be current once it is read now.

    What is pinned may come from the disk cache, without a look at the file.
    """
    is_kept = isinstance(file, RemoteFile) and config.disk_cache and file.pinned is not None
    return -math.inf if is_kept else time.monotonic()


def fetch_version(file: ByteFile) -> Fingerprint | None:
    """Return what tells a file from all later versions of it, or None if nothing does."""
    if isinstance(file, RemoteFile):
        return _fetch_remote_version(file)
    try:
        version = stat_version(file.uri)
    except OSError:
        return None  # reading it will raise the error that says what is wrong
    return version.fingerprint if version.settled else None


def _fetch_remote_version(file: RemoteFile) -> Fingerprint | None:
    try:
        fingerprint = file.connection.fingerprint(file.path, file.uri)
    except SourceError:
        return None
    if fingerprint.etag is None:
        return None
    noted = file.fingerprint if config.verify_sources else None
    if noted is not None and differences(noted, fingerprint):
        return None  # reading it raises the error that says so; it may be as noted again
    file.version.check(file.uri, fingerprint)  # what is read of it later is of this version, too
    return fingerprint.as_recorded()


class PinnedFile(LocalFile):
    """A local file pinned to one version: reading another one is an error."""

    __slots__ = ("_expected", "_seen", "checked_at", "version")

    def __init__(
        self, path: str, version: LocalVersion, checked_at: float, pin: Pin | None = None
    ) -> None:
        super().__init__(path, version.fingerprint, pin)
        self.version = version
        self.checked_at = checked_at
        self._expected: list[tuple[int, bytes]] = []
        self._seen: object = None
        if pin is not None:
            pin.check(path, Fingerprint(version.fingerprint.size, version.fingerprint.mtime_ns))

    def expect(self, start: int, data: Buffer) -> None:
        """Take a version that has other bytes there for another one.

        One that was just changed may have been replaced within a tick of the file system's clock:
        nothing tells the new one from it but what is in it.
        """
        if not self.version.settled:
            self._expected.append((start, bytes(data)))

    def _open(self) -> OpenFile:
        file = super()._open()
        try:
            for start, data in self._expected:
                if file.size < start + len(data) or file.take(start, len(data)) != data:
                    message = "the file was replaced while it was read"
                    raise SourceChangedError(message, file=self.uri)
        except BaseException:
            os.close(file.descriptor)
            raise
        return file

    def _check_kept(self, file: OpenFile) -> None:
        # Its date may have been restored after it was written to.
        if config.verify_sources:
            self._check_status(os.fstat(file.descriptor))

    def _check_status(self, status: os.stat_result) -> None:
        # Not by size and date alone: tools that copy restore the date.
        current = (
            status.st_dev,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )
        if current == self._seen:
            return
        assert self.fingerprint is not None
        if changes := differences(self.fingerprint, _fingerprint_of(status)):
            # Or it would be opened again with what was kept.
            (self.pin or Pin()).drop_kept(self.uri)
            message = f"the file changed since it was first looked at; open it again ({changes})"
            raise SourceChangedError(message, file=self.uri)
        self._seen = current


class SourceVersion(NamedTuple):
    """Which version of which file cached values were made from.

    Attributes
    ----------
    uri : str
    connection : hashable
        How the file is reached: one URL may be different files to those with other options.
    version : hashable
        Equal for equal versions; None where nothing tells versions apart.
    checked_at : float
        When the file was last seen to be of that version, by `time.monotonic`.
    """

    uri: str
    connection: Hashable
    version: Any
    checked_at: float


class _CachedFile:
    """A file that has entries in the cache, all of one version."""

    __slots__ = ("checked_at", "connection", "keys", "version")

    def __init__(self, source: SourceVersion) -> None:
        _, self.connection, self.version, self.checked_at = source
        self.keys: set[Hashable] = set()

    def is_of(self, connection: Hashable, version: Hashable) -> bool:
        return bool(self.version == version and self.connection == connection)


class FileCache(LRUCache[tuple[str | None, Hashable], T]):
    """LRU cache of values made from parts of files, dropped when their file changes.

    Parameters
    ----------
    limit : int
        Bytes of all values.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        invalidation.subscribe(self)

    def reset_after_fork(self) -> None:
        """Begin empty: another thread may have held the lock when the process was forked."""
        super().reset_after_fork()
        self._files: dict[str, _CachedFile] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that are kept now."""
        return self.size

    def last_version(
        self, uri: str, connection: Hashable, since: float
    ) -> tuple[Any, float] | None:
        """Return the version of a file and when it was checked; None if not since a time."""
        with self._lock:
            file = self._files.get(uri)
            if file is None or file.connection != connection or file.checked_at < since:
                return None
            return file.version, file.checked_at

    def revalidate(self, source: SourceVersion) -> None:
        """Record which version a file was found to have, and drop entries of any other."""
        uri, connection, version, checked_at = source
        with self._lock:
            file = self._files.get(uri)
            if file is None:
                return
            if version is not None and file.is_of(connection, version):
                file.checked_at = max(file.checked_at, checked_at)
            # An older check than that of the entries says nothing against them.
            elif file.checked_at <= checked_at:
                self._drop_file(uri)

    def get_of(self, source: SourceVersion | None, key: Hashable) -> T | None:
        """Return the value made from a version of a file, which then counts as used last.

        Parameters
        ----------
        source : SourceVersion, optional
            None where the key is all that the value was made from.
        key : hashable
            Which part of the file, and what was made of it.
        """
        with self._lock:
            if source is None:
                return self._get((None, key))
            file = self._files.get(source.uri)
            if file is None or not file.is_of(source.connection, source.version):
                self.misses += 1
                return None
            return self._get((source.uri, key))

    def put_of(
        self, source: SourceVersion | None, key: Hashable, value: T, nbytes: int, tick: int = 0
    ) -> None:
        """Add the value made from a version of a file.

        Parameters
        ----------
        source, key
            As for `get_of`.
        tick : int
            `invalidation.next_tick` from before the file was read.
        """
        size = nbytes + ENTRY_OVERHEAD
        entry = (None if source is None else source.uri), key
        with self._lock:
            # A value above the limit would evict all others first, and then itself.
            if size > self._limit or entry in self._entries:
                return
            if source is None or self._register(source, key, tick):
                self._put(entry, value, size)

    def _register(self, source: SourceVersion, key: Hashable, tick: int) -> bool:
        """Add a key to those of its file; False if they are of another version than the value."""
        # Written to by this process since the read began: the value may be of either version.
        if not invalidation.is_unchanged(source.uri, tick):
            return False
        file = self._files.get(source.uri)
        if file is None:
            file = self._files[source.uri] = _CachedFile(source)
        elif not file.is_of(source.connection, source.version):
            return False
        elif source.version is None:
            # Nothing tells versions apart: all entries are as old as the oldest.
            file.checked_at = min(file.checked_at, source.checked_at)
        file.keys.add(key)
        return True

    def _on_evict(self, key: tuple[str | None, Hashable]) -> None:
        uri, part = key
        if uri is not None:
            file = self._files[uri]
            file.keys.discard(part)
            if not file.keys:
                del self._files[uri]

    def _drop_file(self, uri: str) -> None:
        for key in self._files.pop(uri).keys:
            self._drop((uri, key))

    def invalidate(self, uri: str) -> None:
        """Drop the entries of a file."""
        with self._lock:
            if uri in self._files:
                self._drop_file(uri)

    def invalidate_below(self, uri: str) -> None:
        """Drop the entries of all files in a folder."""
        with self._lock:
            start = uri.rstrip("/") + "/"
            for name in [name for name in self._files if name.startswith(start)]:
                self._drop_file(name)

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._entries.clear()
            self._files.clear()
            self.size = 0


class ChunkCache(FileCache[NDArray[Any]]):
    """LRU cache of decoded chunks, shared by all arrays that are opened with it.

    A cached chunk is read again without a request and without decoding. Chunks larger than the
    limit, and those of Python objects, are not cached. It may be used by several threads; a copy
    that is unpickled is empty, or the cache itself where that is in the same process.

    Parameters
    ----------
    limit : int
        Most bytes of decoded chunks. The least recently used are evicted first.

    Examples
    --------
    >>> import virtualzarr as vz
    >>> cache = vz.ChunkCache(64 * 1024 * 1024)
    >>> a = vz.create_array({}, shape=(1000, 1000), chunks=(500, 500), dtype="f4", cache=cache)
    >>> a[...] = 1
    >>> [float(a[0, i]) for i in range(3)], len(cache), cache.hits
    ([1.0, 1.0, 1.0], 1, 2)
    """

    def __init__(self, limit: int, *, _name: str | None = None) -> None:
        super().__init__(limit)
        self._name = _name or uuid.uuid4().hex
        _caches[self._name] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_cache, (self._name, self.limit)

    def __repr__(self) -> str:
        plural = "" if len(self) == 1 else "s"
        return f"<ChunkCache: {len(self)} chunk{plural}, {self.nbytes:,} of {self.limit:,} bytes>"

    def fits(self, codec: BlockCodec) -> bool:
        """Tell whether the blocks of a codec can be cached."""
        return not codec.dtype.hasobject and 0 < codec.nbytes <= self.limit - ENTRY_OVERHEAD


_caches: WeakValueDictionary[str, ChunkCache] = WeakValueDictionary()


def _restore_cache(name: str, limit: int) -> ChunkCache:
    cache = _caches.get(name)
    return ChunkCache(limit, _name=name) if cache is None else cache


_shared = ChunkCache(0)


def resolve_cache(policy: CachePolicy) -> ChunkCache | None:
    """Return the cache for an array's chunks, or None if they are not cached."""
    cache = policy.cache
    if cache is None:
        cache = _shared
        # Set on use: a change of the setting holds from the next read on, without a listener.
        if cache.limit != config.chunk_cache_bytes:
            cache.limit = config.chunk_cache_bytes
    return cache if cache.limit else None
