"""Delivery of chunks: passed through in pieces, or encoded once for all who ask."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from virtualzarr.config import config
from virtualzarr.serve.budget import Budget
from virtualzarr.serve.disk_cache import DiskCache
from virtualzarr.serve.memory_files import MemoryFile, MemoryFiles
from virtualzarr.serve.messages import compress
from virtualzarr.serve.metrics import Metrics
from virtualzarr.serve.served_array import Piece, ServedArray
from virtualzarr.serve.source_reads import check_source, read_range, read_resident
from virtualzarr.serve.tags import digest
from virtualzarr.stores.lru_cache import LRUCache

T = TypeVar("T")

_log = logging.getLogger(__name__)

STEP = 1 << 20
"""Bytes that are read by a thread at a time, of chunks that pass through."""

RESIDENT_STEP = 256 << 10
"""Bytes that are read and sent at a time without a thread: processors have as much in caches."""

_RECENT = 16 << 20
"""Bytes of encoded chunks that stay in memory: HEAD and GET, or two ranges, follow each other."""

_READERS = 16


class Delivery:
    """Reads and encodes chunks, within a budget of memory.

    Parameters
    ----------
    memory : int
        Bytes for chunks on their way, and for those that were encoded last.
    cache : DiskCache, optional
    """

    def __init__(self, memory: int, cache: DiskCache | None = None) -> None:
        recent = min(_RECENT, memory // 4)
        sent = min(_RECENT, memory // 8)
        self.budget = Budget(memory - recent - sent)
        self.metrics = Metrics(self.budget)
        self.cache = cache
        self._recent: LRUCache[str, bytes] = LRUCache(recent)
        self._files = MemoryFiles(sent)
        self._flights: dict[str, asyncio.Task[tuple[bytes, str]]] = {}
        self._start_threads()

    def _start_threads(self) -> None:
        # Apart, as reading waits, for disks or servers, and decoding does not.
        self._readers = ThreadPoolExecutor(_READERS, "virtualzarr-read")
        self._encoders = ThreadPoolExecutor(max(config.threads, 1), "virtualzarr-encode")

    def close(self) -> None:
        """Let threads end once they have done what they are at; others start if it goes on."""
        self._readers.shutdown(wait=False)
        self._encoders.shutdown(wait=False)
        self._start_threads()

    async def read(self, function: Callable[..., T], *arguments: object) -> T:
        """Run what waits for files in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, partial(function, *arguments))

    async def encode(self, function: Callable[..., T], *arguments: object) -> T:
        """Run what keeps a processor busy in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._encoders, partial(function, *arguments))

    async def find(self, array: ServedArray, cell: tuple[int, ...]) -> Piece | None:
        """Return the chunk of a cell; the first time, references are loaded."""
        piece = array.recall(cell)
        if piece is not None:
            return piece
        if not array.is_ready or array.may_look:
            return await self.read(array.find, cell)
        return array.find(cell)

    async def compress(self, tag: str, document: bytes) -> bytes:
        """Return a document in the content coding gzip."""
        key = f"{tag}-gzip"
        packed: bytes | None = self._recent.get(key)
        if packed is None:
            packed = await self.encode(compress, document)
            self._recent.put(key, packed, len(packed))
        return packed

    def take_at_once(self, tag: str, piece: Piece) -> MemoryFile | tuple[bytes, bytes] | None:
        """Return a chunk, if nothing has to be waited for, as a file or its head and the rest.

        Raises
        ------
        VirtualZarrError
            It cannot be read.
        """
        file = self._files.get(tag)
        if file is not None:
            if piece.file is None:
                self.metrics.count_encoded("memory")
            else:
                check_source(piece.file)
            return file
        if piece.nbytes is None:
            data = self._recall(tag)
        elif piece.nbytes > STEP:
            return None
        else:
            assert piece.file is not None
            stop = piece.offset + piece.nbytes - len(piece.head)
            data = read_resident(piece.file, piece.offset, stop)
        if data is None:
            return None
        return self._files.offer(tag, piece.head, data) or (piece.head, data)

    def _recall(self, tag: str) -> bytes | None:
        data: bytes | None = self._recent.get(tag)
        if data is not None:
            self.metrics.count_encoded("memory")
        return data

    @asynccontextmanager
    async def encoded(self, key: str, piece: Piece) -> AsyncIterator[tuple[bytes, str]]:
        """Give bytes and tag of a chunk that is computed; they count while they are sent.

        Parameters
        ----------
        key : str
            Of the chunk and its version, for a chunk without a tag.
        """
        data, tag = await self._get(piece.tag or key, piece)
        async with self.budget.hold(len(data)):
            yield data, tag

    async def _get(self, key: str, piece: Piece) -> tuple[bytes, str]:
        if piece.tag is not None:
            recent = self._recall(piece.tag)
            if recent is not None:
                return recent, piece.tag
        flight = self._flights.get(key)
        if flight is None:
            flight = asyncio.get_running_loop().create_task(self._compute(piece))
            self._flights[key] = flight
            flight.add_done_callback(lambda done: self._land(key, done))
        # Shielded: others may wait for the same, and the next who asks finds it.
        return await asyncio.shield(flight)

    def _land(self, key: str, done: asyncio.Task[tuple[bytes, str]]) -> None:
        self._flights.pop(key, None)
        if not done.cancelled():
            done.exception()  # seen, also if nobody waits any more

    async def _compute(self, piece: Piece) -> tuple[bytes, str]:
        async with self.budget.take(piece.cost):
            data = None
            if self.cache is not None and piece.tag is not None:
                data = await self.read(self.cache.get, piece.tag)
            self.metrics.count_encoded("computed" if data is None else "disk")
            if data is None:
                data = await self.encode(piece.compute)
                if self.cache is not None and piece.tag is not None:
                    await self.read(self.cache.put, piece.tag, data)
        if piece.tag is None:
            return data, digest(data)
        self._recent.put(piece.tag, data, len(data))
        return data, piece.tag

    async def stream(self, piece: Piece, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a chunk that passes through; each piece counts until the next."""
        # Places in the chunk, which begins with what the file does not have.
        file, offset = piece.file, piece.offset - len(piece.head)
        assert file is not None
        head = piece.head[start:stop]
        start += len(head)
        if start == stop:
            yield head
        while start < stop:
            end = min(start + RESIDENT_STEP, stop)
            async with self.budget.take(end - start):
                data = read_resident(file, offset + start, offset + end)
                if data is not None:
                    yield head + data if head else data
                    start, head = end, b""
                    continue
            end = min(start + STEP, stop)
            async with self.budget.take(end - start):
                yield head + await self.read(read_range, file, offset + start, offset + end)
            start, head = end, b""
