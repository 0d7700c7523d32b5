"""Cached blocks of one read: looked up before chunks are fetched, added once they are decoded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array.chunk_source import LocatedChunks
from virtualzarr.array.read.chunk_cache import (
    ChunkCache,
    PinnedFile,
    SourceVersion,
    fetch_version,
    is_distinct,
    time_of_look,
)
from virtualzarr.codecs import BlockCodec
from virtualzarr.stores import invalidation
from virtualzarr.stores.files import (
    Buffer,
    ByteFile,
    Fingerprint,
    InlineFile,
    LocalFile,
    Pin,
    RemoteFile,
    is_url,
)
from virtualzarr.stores.thread_pools import Task, run_shared


class CachedBlocks:
    """The blocks of one read's chunks in a cache.

    A block's key holds all that it is made from: the file, how it is reached, its version, the
    range of bytes, and the codec. The key of inline bytes is those bytes.

    Parameters
    ----------
    cache : ChunkCache
    since : float
        Since when, by `time.monotonic`, the version of a file must have been checked.
    located : LocatedChunks
    codecs : sequence of BlockCodec
    codec_index : int array
        Which of the codecs decodes each chunk.
    """

    def __init__(
        self,
        cache: ChunkCache,
        since: float,
        located: LocatedChunks,
        codecs: Sequence[BlockCodec],
        codec_index: NDArray[np.int64],
    ) -> None:
        self.cache, self.located = cache, located
        self.since = since
        self.tick = invalidation.next_tick()
        self.versions: dict[int, SourceVersion | None] = {}
        rows = located.file.tolist()
        # Once for each file, not for each chunk: versions cost a system call or a request.
        files = self.files = {row: located.open_file(row) for row in dict.fromkeys(rows)}
        self._check_versions(files)
        fits = [cache.fits(codec) for codec in codecs]
        columns = located.offset.tolist(), located.length.tolist(), codec_index.tolist()
        self.keys = [
            self._key(row, files[row], offset, length, codecs[k]) if fits[k] else None
            for row, offset, length, k in zip(rows, *columns, strict=True)
        ]

    def _check_versions(self, files: dict[int, ByteFile]) -> None:
        """Find the version of each file, fetched where the last check is too old."""

        def check(row: int, file: ByteFile) -> None:
            self.versions[row] = self._check_version(file)

        # One request for each file to revalidate: side by side, they take the time of one.
        if self.since == math.inf and any(file.remote for file in files.values()):
            checks: list[Task] = [partial(check, row, file) for row, file in files.items()]
            run_shared(checks, remote=True, may_leave=True)
            return
        for row, file in files.items():
            check(row, file)

    def _check_version(self, file: ByteFile) -> SourceVersion | None:
        """Return the version that blocks of a file are cached with, or None if they are not."""
        always = self.since == math.inf
        connection: Hashable
        if isinstance(file, PinnedFile):
            connection = None, file.place
            current = file.version.fingerprint
            seen = SourceVersion(file.uri, connection, current, file.checked_at)
            self.cache.revalidate(seen)
            # Just written, it may change again under the same fingerprint.
            return seen if file.version.settled else None
        if isinstance(file, RemoteFile):
            connection = file.connection.scope, file.fingerprint
            index_read_at, pinned = file.version.index_read_at, file.pinned
            if index_read_at is not None and pinned is not None and pinned.has_version:
                # The index tells where chunks are in its own version, and in no other.
                if not is_distinct(pinned):
                    return None
                of_index = SourceVersion(file.uri, connection, pinned, index_read_at)
                self.cache.revalidate(of_index)
                return of_index
            if index_read_at is not None and always:
                return None
        elif isinstance(file, LocalFile):
            connection = file.fingerprint, file.place
        else:
            return None
        last = self.cache.last_version(file.uri, connection, self.since)
        if last is not None and _fits(_pin_of(file), file.uri, last[0]):
            return SourceVersion(file.uri, connection, *last)
        # Taken before the request: what changes during it must look newer than the check.
        checked_at = time.monotonic() if always else time_of_look(file)
        fingerprint = fetch_version(file) if always or not file.remote else None
        version = SourceVersion(file.uri, connection, fingerprint, checked_at)
        self.cache.revalidate(version)
        if fingerprint is not None and not _fits(_pin_of(file), file.uri, fingerprint):
            return None  # reading it raises the error that says what changed
        return None if always and fingerprint is None else version

    def _key(
        self, row: int, file: ByteFile, offset: int, length: int, codec: BlockCodec
    ) -> tuple[SourceVersion | None, Hashable] | None:
        """Return the key of a chunk's block, or None if it is not cached."""
        version = self.versions[row]
        if version is not None:
            return version, (offset, length, codec)
        if isinstance(file, InlineFile):
            return None, (_inline_key(file, offset, length), codec)
        return None

    def is_cacheable(self) -> NDArray[np.bool_]:
        """Tell for each chunk whether its block is cached once it is decoded."""
        return np.array([key is not None for key in self.keys], bool)

    def get_all(self) -> list[NDArray[Any] | None]:
        """Return the block of each chunk, None for those not in the cache."""
        get = self.cache.get_of
        return [None if key is None else get(*key) for key in self.keys]

    def decode(self, i: int, codec: BlockCodec, data: Buffer) -> NDArray[Any] | None:
        """Decode a chunk whose block is cacheable, and add it; None for others."""
        if (key := self.keys[i]) is None:
            return None
        block = np.empty(codec.shape, codec.dtype)
        codec.decode_into(data, block)
        # All later reads share the block: a write into it would change what they give.
        block.flags.writeable = False
        version, part = key
        if version is None:  # the key of inline bytes keeps them in memory, too
            self.cache.put_of(None, part, block, block.nbytes + len(data), self.tick)
        elif (read := self._version_read(i, version)) is not None:
            self.cache.put_of(read, part, block, block.nbytes, self.tick)
        return block

    def _version_read(self, i: int, version: SourceVersion) -> SourceVersion | None:
        """Return the version that a chunk was read of: answers say more than was asked for.

        None if another one may look the same, which would be mixed with it in the cache.
        """
        pin = _pin_of(self.files[int(self.located.file[i])])
        read = None if pin is None else pin.fingerprint
        if version.version is not None or read is None or not read.has_version:
            return version
        return version._replace(version=read) if is_distinct(read) else None


CacheLookup = Callable[[LocatedChunks, Sequence[BlockCodec], NDArray[np.int64]], CachedBlocks]
"""Looks up the chunks of a read: `CachedBlocks` with its cache and age already given."""


def _pin_of(file: ByteFile) -> Pin | None:
    return file.version if isinstance(file, RemoteFile) else getattr(file, "pin", None)


def _fits(pin: Pin | None, uri: str, kept: Fingerprint | None) -> bool:
    """Tell whether what is kept of a version may be used beside what has been read of a file."""
    if kept is not None and not is_url(uri):
        kept = replace(kept, etag=None)  # which is ours: pins have none of local files
    return pin is None or pin.fits(uri, kept)


def _inline_key(file: InlineFile, offset: int, length: int) -> Hashable:
    """Return what no other bytes have: the name of stored bytes, or the bytes themselves."""
    if (name := getattr(file, "name", None)) is not None:
        return name, offset, length
    data = file.data.obj
    if type(data) is bytes and not offset and length in (-1, len(data)):
        return data
    return bytes(file.read(offset, None if length < 0 else offset + length))
