"""What one request for chunks finds in a cache, and what it adds."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array.chunk_source import LocatedChunks
from virtualzarr.array.read.chunk_cache import ChunkCache, PinnedFile, SourceVersion, fetch_version
from virtualzarr.array.thread_pools import run_shared
from virtualzarr.codecs import BlockCodec
from virtualzarr.stores import invalidation
from virtualzarr.stores.files import Buffer, ByteFile, InlineFile, LocalFile, RemoteFile


class CacheLookup(Protocol):
    """Makes `CachedBlocks` for the chunks of a request."""

    def __call__(
        self, located: LocatedChunks, codecs: Sequence[BlockCodec], kinds: NDArray[np.int64], /
    ) -> CachedBlocks:
        """Find out what there is of the chunks."""
        ...


class CachedBlocks:
    """The blocks of the chunks that one request needs.

    A block is kept with all that it is made from: the file, how it is reached and which version it
    was, the range of bytes, and what decoded them. What is in memory already, encoded, is kept
    with its very bytes.

    Parameters
    ----------
    cache : ChunkCache
    since : float
        Since when, by `time.monotonic`, a file must be known to be as it was.
    located : Located
    codecs : sequence of BlockCodec
    kinds : int array
        Which of the codecs decodes each chunk.
    """

    def __init__(
        self,
        cache: ChunkCache,
        since: float,
        located: LocatedChunks,
        codecs: Sequence[BlockCodec],
        kinds: NDArray[np.int64],
    ) -> None:
        self.cache = cache
        self.since = since
        self.moment = invalidation.next_tick()
        self.is_shard = located.again is not None
        self.origins: dict[int, SourceVersion | None] = {}
        rows = located.file.tolist()
        files = {row: located.files(row) for row in dict.fromkeys(rows)}
        self._look_at(files)
        fits = [cache.fits(codec) for codec in codecs]
        columns = located.offset.tolist(), located.length.tolist(), kinds.tolist()
        self.keys = [
            self._key(row, files[row], offset, length, codecs[kind]) if fits[kind] else None
            for row, offset, length, kind in zip(rows, *columns, strict=True)
        ]

    def _look_at(self, files: dict[int, ByteFile]) -> None:
        """Find out of which version each file is, where what is known of it is too old."""

        def note(row: int, file: ByteFile) -> None:
            self.origins[row] = self._origin(file)

        if self.since == math.inf and any(file.remote for file in files.values()):
            run_shared([partial(note, row, file) for row, file in files.items()], remote=True)
            return
        for row, file in files.items():
            note(row, file)

    def _origin(self, file: ByteFile) -> SourceVersion | None:
        """Return what chunks of a file are kept with, or None if they are not."""
        always = self.since == math.inf
        if isinstance(file, PinnedFile):
            fingerprint = file.version.fingerprint
            self.cache.check(file.uri, None, fingerprint, file.checked)
            settled = file.version.settled or not always
            return SourceVersion(file.uri, None, fingerprint, file.checked) if settled else None
        if isinstance(file, RemoteFile):
            # An index that was read says nothing of the version that sub-chunks are read from.
            if self.is_shard and always:
                return None
            owner: Hashable = (file.connection._fs, file.fingerprint)
        elif isinstance(file, LocalFile):
            owner = file.fingerprint
        else:
            return None
        known = self.cache.seen(file.uri, owner, self.since)
        if known is None:
            checked = time.monotonic()
            version = fetch_version(file) if always or not file.remote else None
            self.cache.check(file.uri, owner, version, checked)
            if always and version is None:
                return None
            known = version, checked
        return SourceVersion(file.uri, owner, *known)

    def _key(
        self, row: int, file: ByteFile, offset: int, length: int, codec: BlockCodec
    ) -> tuple[Hashable, SourceVersion | None] | None:
        """Return what a chunk's block is kept as, or None if it is not."""
        origin = self.origins[row]
        if origin is not None:
            return (offset, length, codec), origin
        if isinstance(file, InlineFile):
            return (_content(file, offset, length), codec), None
        return None

    def wanted(self) -> NDArray[np.bool_]:
        """Tell for each chunk whether its block is to be kept."""
        return np.array([key is not None for key in self.keys], bool)

    def found(self) -> list[NDArray[Any] | None]:
        """Return the block of each chunk, None for those not there."""
        return [None if key is None else self.cache.get(*key) for key in self.keys]

    def block(self, i: int, codec: BlockCodec, data: Buffer) -> NDArray[Any] | None:
        """Decode a chunk whose block is to be kept, and keep it; None for others."""
        kept_as = self.keys[i]
        if kept_as is None:
            return None
        key, origin = kept_as
        block = np.empty(codec.shape, codec.dtype)
        codec.decode_into(data, block)
        block.flags.writeable = False
        # In memory already, encoded: that stays, too.
        more = len(data) if origin is None else 0
        self.cache.put(key, block, block.nbytes + more, origin, self.moment)
        return block


def _content(file: InlineFile, offset: int, length: int) -> Hashable:
    """Return what no other bytes have: a name that they keep, or themselves."""
    if (name := getattr(file, "name", None)) is not None:
        return name, offset, length
    whole = file.data.obj
    if type(whole) is bytes and not offset and length in (-1, len(whole)):
        return whole
    return bytes(file.read(offset, None if length < 0 else offset + length))
