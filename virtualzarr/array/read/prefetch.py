"""Many small files: they are read by one thread while another decodes those read before.

Two threads that both read and decode would mostly wait for each other, as either takes little more
than a system call. Decoding many chunks in one go needs nothing of Python meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol

from grids.projection import Part
from virtualzarr.array.thread_pools import Task, submit
from virtualzarr.stores.files import Buffer

BATCHES_PER_TASK = 64
"""After so many batches it is asked anew whether reading takes waiting."""

FileChunk = tuple[int, Part, bytes | None]
BatchDecode = Callable[[list[bytes]], Sequence[Buffer] | None]


class BlockPlacer(Protocol):
    """What puts chunks where they belong."""

    def place_file(self, i: int, part: Part, data: Buffer | None) -> None:
        """Place a chunk that is a file, and read it if it has not been read."""
        ...

    def place(self, i: int, kind: int, data: Buffer, part: Part) -> None:
        """Place a chunk, decoded by the codec of a number."""
        ...


def plan_prefetch(
    request: BlockPlacer, batches: Sequence[Callable[[], Iterable[FileChunk]]], unpack: BatchDecode
) -> list[Task]:
    """Return tasks that read batches of small files.

    Parameters
    ----------
    batches : sequence of callables
        Each gives the chunks of a batch with what is in their files.
    unpack : callable
        Undoes the last codec of all chunks of a batch at once; what it gives is placed with the
        last of the request's codecs. It gives None where the chunks have to be decoded one by one.
    """
    bounds = [0, *range(1, len(batches), BATCHES_PER_TASK), len(batches)]
    return [_PrefetchTask(request, batches[i:j], unpack) for i, j in pairwise(bounds)]


@dataclass
class _PrefetchTask:
    """Some batches, one after the other."""

    request: BlockPlacer
    batches: Sequence[Callable[[], Iterable[FileChunk]]]
    unpack: BatchDecode

    def __call__(self) -> None:
        place: Task | None = None
        for batch in self.batches:
            files = []
            for i, part, data in batch():
                if data is None:
                    self.request.place_file(i, part, None)
                else:
                    files.append((i, part, data))
            unpacked = submit(partial(self.unpack, [data for _, _, data in files]))
            if place is not None:
                place()
            place = partial(self._place, files, unpacked)
        if place is not None:
            place()

    def _place(
        self, files: list[tuple[int, Part, bytes]], unpacked: Callable[[], Sequence[Buffer] | None]
    ) -> None:
        blocks = unpacked()
        if blocks is None:
            for i, part, data in files:
                self.request.place_file(i, part, data)
        else:
            for k, (i, part, _) in enumerate(files):
                self.request.place(i, -1, blocks[k], part)
