"""Decoded chunks, and indexes of shards, kept in memory up to a limit.

What is kept belongs to a file, of which it is known what version it was and when that was last
seen to be so. Whoever asks says since when this must be known; if it is older, the file is looked
at, and what was kept of another version is dropped. What this process writes is dropped at once.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from numpy.typing import NDArray

from virtualzarr.array.read.cache_policy import CachePolicy
from virtualzarr.codecs import BlockCodec
from virtualzarr.config import config
from virtualzarr.errors import SourceError
from virtualzarr.stores import invalidation
from virtualzarr.stores.files import ByteFile, Fingerprint, LocalFile, RemoteFile

SETTLED_NS = 2_000_000_000
"""A file changed less than this long ago may change again without its times telling."""

ENTRY_OVERHEAD = 512
"""About what an entry takes besides what it holds."""

T = TypeVar("T")


class LocalVersion(NamedTuple):
    """What tells what a file is now from what it will be.

    Attributes
    ----------
    fingerprint : Fingerprint
        Of a local file, the tag is made of its inode and of when it was last changed in any way.
    settled : bool
        Whether any later change will give other fingerprint.
    """

    fingerprint: Fingerprint
    settled: bool


def stat_version(path: str) -> LocalVersion:
    """Look at a local file.

    Raises
    ------
    OSError
        It is not there, or cannot be looked at.
    """
    found = os.stat(path)
    times = found.st_mtime_ns, found.st_ctime_ns
    tag = f"{found.st_dev:x}-{found.st_ino:x}-{found.st_ctime_ns:x}"
    fingerprint = Fingerprint(found.st_size, found.st_mtime_ns, tag)
    return LocalVersion(fingerprint, is_settled(*times))


def is_settled(*times_ns: int) -> bool:
    """Tell whether a file that was last changed then would show it if it were changed again."""
    return time.time_ns() - max(times_ns) > SETTLED_NS


def fetch_version(file: ByteFile) -> Fingerprint | None:
    """Return what tells a file from all later versions of it, or None if nothing does."""
    if isinstance(file, RemoteFile):
        return _fetch_remote_version(file)
    try:
        version = stat_version(file.uri)
    except OSError:
        return None  # reading it will say what is wrong
    return version.fingerprint if version.settled else None


def _fetch_remote_version(file: RemoteFile) -> Fingerprint | None:
    try:
        fingerprint = file.connection.fingerprint(file.path, file.uri)
    except SourceError:
        return None
    if fingerprint.etag is None:
        return None
    fingerprint = fingerprint.as_recorded()
    file.pin(fingerprint)  # what is read by this object later, too, is of this version
    return fingerprint


class PinnedFile(LocalFile):
    """A local file as it was when it was looked at: reading another version is an error."""

    __slots__ = ("checked", "version")

    def __init__(self, path: str, version: LocalVersion, checked: float) -> None:
        super().__init__(path, version.fingerprint)
        self.version = version
        self.checked = checked


class SourceVersion(NamedTuple):
    """What values made from a file are kept with.

    Attributes
    ----------
    uri : str
    owner : hashable
        How the file is reached: one URL may be different files to those with other options.
    version : hashable
        What it was; None where nothing tells.
    checked : float
        When it was that, by `time.monotonic`.
    """

    uri: str
    owner: Hashable
    version: Any
    checked: float


class _CachedFile:
    """A file of which something is kept."""

    __slots__ = ("checked", "keys", "owner", "version")

    def __init__(self, origin: SourceVersion) -> None:
        _, self.owner, self.version, self.checked = origin
        self.keys: set[Hashable] = set()


class FileCache(Generic[T]):
    """Values made from parts of files; those not used for longest are dropped to make room.

    Attributes
    ----------
    nbytes : int
        Bytes that are kept now.
    hits, misses : int
        How often something was asked for that was there, or was not.
    """

    def __init__(self, limit: int) -> None:
        if limit < 0:
            raise ValueError(f"a cache keeps 0 bytes or more, not {limit}")
        self._limit = limit
        self._begin()
        invalidation.subscribe(self)

    @property
    def limit(self) -> int:
        """Bytes that are kept at most; when it is set, what is too much is dropped."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._lock:
            self._limit = limit
            self._shrink()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[str | None, Hashable], tuple[T, int]] = OrderedDict()
        self._files: dict[str, _CachedFile] = {}
        self.nbytes = self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._entries)

    def seen(self, uri: str, owner: Hashable, since: float) -> tuple[Any, float] | None:
        """Return of which version a file is, and when that was seen; None if not since then."""
        with self._lock:
            file = self._files.get(uri)
            if file is None or file.owner != owner or file.checked < since:
                return None
            return file.version, file.checked

    def check(self, uri: str, owner: Hashable, version: Hashable, checked: float) -> None:
        """Take note of a file's version, and drop what is kept of another one."""
        with self._lock:
            file = self._files.get(uri)
            if file is None:
                return
            if version is not None and file.owner == owner and file.version == version:
                file.checked = max(file.checked, checked)
            elif file.checked <= checked:
                self._drop_file(uri)

    def get(self, key: Hashable, origin: SourceVersion | None = None) -> T | None:
        """Return what was made from a version of a file, which then counts as used last.

        Parameters
        ----------
        key : hashable
            Which part of the file, and what was made of it.
        origin : Origin, optional
            None where the key is all that it was made from.
        """
        with self._lock:
            uri = None if origin is None else origin.uri
            if origin is not None and not self._is_of(origin):
                found = None
            else:
                found = self._entries.get((uri, key))
            if found is None:
                self.misses += 1
                return None
            self.hits += 1
            self._entries.move_to_end((uri, key))
            return found[0]

    def _is_of(self, origin: SourceVersion) -> bool:
        """Tell whether what is kept of a file is of a version of it."""
        file = self._files.get(origin.uri)
        if file is None:
            return False
        return file.version == origin.version and file.owner == origin.owner

    def put(
        self,
        key: Hashable,
        value: T,
        nbytes: int,
        origin: SourceVersion | None = None,
        moment: int = 0,
    ) -> None:
        """Keep a value, and drop those not used for longest to make room.

        Parameters
        ----------
        key, origin
            As for `get`.
        moment : int
            `invalidation.next_tick` before the file was read.
        """
        nbytes += ENTRY_OVERHEAD
        uri = None if origin is None else origin.uri
        with self._lock:
            if nbytes > self._limit or (uri, key) in self._entries:
                return
            if origin is not None and not self._joins(origin, key, moment):
                return
            self._entries[uri, key] = value, nbytes
            self.nbytes += nbytes
            self._shrink()

    def _joins(self, origin: SourceVersion, key: Hashable, moment: int) -> bool:
        """Add a key to those of its file, if what is kept of that is of the same version."""
        if not invalidation.is_unchanged(origin.uri, moment):
            return False
        file = self._files.get(origin.uri)
        if file is None:
            file = self._files[origin.uri] = _CachedFile(origin)
        elif not self._is_of(origin):
            return False
        elif origin.version is None:
            # Nothing tells versions apart: all of it is as old as the oldest part.
            file.checked = min(file.checked, origin.checked)
        file.keys.add(key)
        return True

    def _shrink(self) -> None:
        while self.nbytes > self._limit:
            (uri, key), (_, nbytes) = self._entries.popitem(last=False)
            self.nbytes -= nbytes
            if uri is not None:
                file = self._files[uri]
                file.keys.discard(key)
                if not file.keys:
                    del self._files[uri]

    def _drop_file(self, uri: str) -> None:
        for key in self._files.pop(uri).keys:
            self.nbytes -= self._entries.pop((uri, key))[1]

    def invalidate(self, uri: str) -> None:
        """Drop what is kept of a file."""
        with self._lock:
            if uri in self._files:
                self._drop_file(uri)

    def invalidate_below(self, uri: str) -> None:
        """Drop what is kept of all files in a folder."""
        with self._lock:
            start = uri.rstrip("/") + "/"
            for name in [name for name in self._files if name.startswith(start)]:
                self._drop_file(name)

    def reset_after_fork(self) -> None:
        """Begin anew: another thread may have held the lock when the process was forked."""
        self._begin()

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._entries.clear()
            self._files.clear()
            self.nbytes = 0


class ChunkCache(FileCache[NDArray[Any]]):
    """Memory for decoded chunks, shared by all arrays that are opened with it.

    A chunk that is kept is read again without a request and without decoding. Chunks larger than
    the limit, and those of Python objects, are not kept. It may be used by several threads; a copy
    that is unpickled is empty, or the cache itself where that is in the same process.

    Parameters
    ----------
    limit : int
        Bytes of chunks, as they are in memory, that are kept at most. Those not used for longest
        are dropped first.

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
        """Tell whether the blocks of a codec can be kept."""
        return not codec.dtype.hasobject and 0 < codec.nbytes <= self.limit - ENTRY_OVERHEAD


_caches: WeakValueDictionary[str, ChunkCache] = WeakValueDictionary()


def _restore_cache(name: str, limit: int) -> ChunkCache:
    found = _caches.get(name)
    return ChunkCache(limit, _name=name) if found is None else found


_shared = ChunkCache(0)


def chunk_cache(caching: CachePolicy) -> ChunkCache | None:
    """Return where an array's chunks are kept, or None if they are not."""
    cache = caching.cache
    if cache is None:
        cache = _shared
        if cache.limit != config.chunk_cache_bytes:
            cache.limit = config.chunk_cache_bytes
    return cache if cache.limit else None
