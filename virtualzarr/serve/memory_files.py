"""Chunks in memory as files without names, which the system sends without copying them."""

from __future__ import annotations

import os

from virtualzarr.stores.lru_cache import LRUCache

MIN = 128 << 10
"""Bytes of a chunk below which a copy takes less than it saves; each takes a descriptor, too."""

MAX = 1 << 20


class MemoryFile:
    """Bytes that nobody changes any more, also not while they are sent.

    Attributes
    ----------
    nbytes : int
    """

    def __init__(self, *parts: bytes) -> None:
        self.nbytes = sum(map(len, parts))
        self._descriptor = os.memfd_create("virtualzarr-chunk")
        if os.writev(self._descriptor, parts) != self.nbytes:
            raise OSError("a chunk was not written to memory as a whole")

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def read(self, start: int, stop: int) -> bytes:
        """Return a part of the bytes."""
        return os.pread(self._descriptor, stop - start, start)

    def send_to(self, connection: int) -> int:
        """Send as many bytes as a descriptor takes at once; return how many."""
        try:
            return os.sendfile(connection, self._descriptor, 0, self.nbytes)
        except OSError:
            return 0


class MemoryFiles:
    """The files of chunks that are asked for again and again, by tag: LRU, bounded by bytes."""

    def __init__(self, limit: int) -> None:
        self._files: LRUCache[str, MemoryFile] = LRUCache(limit)
        self._offered: LRUCache[str, int] = LRUCache(limit)

    def get(self, tag: str) -> MemoryFile | None:
        """Return the file of a chunk, if there is one."""
        file: MemoryFile | None = self._files.get(tag)
        return file

    def offer(self, tag: str, *parts: bytes) -> MemoryFile | None:
        """Make a file of a chunk that is offered for the second time, if few came in between.

        So many, that is, as would be kept: of more, each would be evicted before it is used.
        """
        nbytes = sum(map(len, parts))
        if not MIN <= nbytes <= MAX or not hasattr(os, "memfd_create"):
            return None
        if self._offered.get(tag) is None:
            self._offered.put(tag, nbytes, nbytes)
            return None
        try:
            file = MemoryFile(*parts)
        except OSError:
            return None  # Of descriptors there may be none left; it is sent without.
        self._files.put(tag, file, nbytes)
        return file
