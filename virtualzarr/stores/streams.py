"""Streams of answers: many reads are requested at once by the event loop, and taken up by threads.

A thread that hands each request over to the event loop and waits for its answer takes turns for the
interpreter with the loop and all the other threads, twice for each request. That costs far more
than the requests do themselves where these are small.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeAlias

from virtualzarr.config import config
from virtualzarr.stores.cached_reads import CachedRead
from virtualzarr.stores.files import Buffer, RemoteFile
from virtualzarr.stores.transport import BufferAnswer

Outcome: TypeAlias = BufferAnswer | CachedRead | BaseException
"""An answer, or why there is none."""


@dataclass(frozen=True, slots=True)
class StreamedRead:
    """Bytes of a remote file that are to be requested.

    Attributes
    ----------
    nbytes : int
        About how much memory the answer takes.
    """

    file: RemoteFile
    start: int
    stop: int | None
    limit: int | None
    nbytes: int

    async def fetch(self) -> Outcome:
        """Request the bytes, in the event loop."""
        try:
            return await self.file.fetch(self.start, self.stop, self.limit)
        except Exception as error:
            return error

    def accept(self, outcome: Outcome) -> Buffer:
        """Return the bytes of an answer after all checks; raise what it is instead of one."""
        if isinstance(outcome, BaseException):
            self.file.explain(outcome)
            raise outcome
        return self.file.accept(outcome, self.start, self.stop, self.limit)


class AnswerStream:
    """Answers to reads in the order in which they come, for any number of threads.

    `config.requests` requests are under way at most, and `config.stream_bytes` of answers that are
    requested or have come and that no thread has taken up.

    Parameters
    ----------
    loop : asyncio event loop
        Runs in another thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._answers: SimpleQueue[list[tuple[int, Outcome]] | None] = SimpleQueue()
        # All others are of the event loop alone.
        self._queued: list[StreamedRead] = []
        self._next = self._nbytes = self._running = 0
        self._came: list[tuple[int, Outcome]] = []
        self._complete = self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, reads: Sequence[StreamedRead], *, last: bool) -> None:
        """Request more reads; they are numbered in the order in which they were added."""
        self._loop.call_soon_threadsafe(self._add, reads, last)

    @property
    def has_answers(self) -> bool:
        """Whether answers have come that no thread has taken up."""
        return not self._answers.empty()

    def close(self) -> None:
        """Cancel what is under way, and end all iterations."""
        self._answers.put(None)
        self._loop.call_soon_threadsafe(self._cancel)

    def __iter__(self) -> Iterator[tuple[int, Outcome]]:
        """Yield numbers of reads and their outcomes, each to one of the threads that ask."""
        while (batch := self._answers.get()) is not None:
            yield from batch
            self._loop.call_soon_threadsafe(self._release, [number for number, _ in batch])
        self._answers.put(None)  # the next thread is told, too

    def _add(self, reads: Sequence[StreamedRead], last: bool) -> None:
        self._queued += reads
        self._complete = last
        self._start_requests()

    def _start_requests(self) -> None:
        while not self._closed and self._next < len(self._queued) and self._may_start():
            number = self._next
            self._next += 1
            self._running += 1
            self._nbytes += self._queued[number].nbytes
            task = self._loop.create_task(self._request(number))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._complete and not self._running and self._next == len(self._queued):
            self._flush()
            self._answers.put(None)

    def _may_start(self) -> bool:
        nbytes = self._nbytes + self._queued[self._next].nbytes
        return self._running < config.requests and (
            not self._nbytes or nbytes <= config.stream_bytes
        )

    async def _request(self, number: int) -> None:
        outcome = await self._queued[number].fetch()
        if not self._came:
            # Those that come at about the same time are taken up by one thread.
            self._loop.call_soon(self._flush)
        self._came.append((number, outcome))
        self._running -= 1
        self._start_requests()

    def _flush(self) -> None:
        """Hand over what came, together as long as it is little."""
        batch: list[tuple[int, Outcome]] = []
        nbytes = 0
        for number, outcome in self._came:
            batch.append((number, outcome))
            nbytes += self._queued[number].nbytes
            if nbytes >= config.batch_bytes:
                self._answers.put(batch)
                batch, nbytes = [], 0
        if batch:
            self._answers.put(batch)
        self._came = []

    def _release(self, numbers: Sequence[int]) -> None:
        self._nbytes -= sum(self._queued[number].nbytes for number in numbers)
        self._start_requests()

    def _cancel(self) -> None:
        self._closed = True
        for task in [*self._tasks]:
            task.cancel()
