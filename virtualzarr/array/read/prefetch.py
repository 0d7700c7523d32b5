"""Prefetching of many small files: one thread reads while another decodes those read before.

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
from virtualzarr.config import config
from virtualzarr.stores.files import Buffer
from virtualzarr.stores.thread_pools import Task, submit

FileChunk = tuple[int, Part, bytes | None]
BatchDecode = Callable[[list[bytes]], Sequence[Buffer] | None]


class BlockPlacer(Protocol):
    """Decodes chunks into the output of a read."""

    def read_file_into_output(self, i: int, part: Part, data: Buffer | None) -> None:
        """Decode a chunk that is a file of its own, fetched first if `data` is None."""
        ...

    def decode_into_output(self, i: int, codec_index: int, data: Buffer, part: Part) -> None:
        """Decode a chunk by the codec of an index."""
        ...


def plan_prefetch(
    request: BlockPlacer,
    batches: Sequence[Callable[[], Iterable[FileChunk]]],
    decode_batch: BatchDecode,
) -> list[Task]:
    """Return tasks that read batches of small files.

    Parameters
    ----------
    batches : sequence of callables
        Each gives the chunks of a batch with what is in their files.
    decode_batch : callable
        Decodes the last codec of all chunks of a batch at once; the last of the request's codecs
        decodes the others. It returns None where chunks have to be decoded one by one.
    """
    # The first task is a single batch, so that waiting for the disk is noticed at once.
    # Between tasks, `run_tasks` measures again whether reading has to wait for the disk.
    step = config.tuning.prefetch_batches
    bounds = [0, *range(1, len(batches), step), len(batches)]
    return [_PrefetchTask(request, batches[i:j], decode_batch) for i, j in pairwise(bounds)]


@dataclass
class _PrefetchTask:
    """Reads batches one after the other, each while the one before is decoded."""

    request: BlockPlacer
    batches: Sequence[Callable[[], Iterable[FileChunk]]]
    decode_batch: BatchDecode

    def __call__(self) -> None:
        finish: Task | None = None
        for batch in self.batches:
            files = []
            for i, part, data in batch():
                # A large file, or one of which only reading it alone tells what is wrong.
                if data is None:
                    self.request.read_file_into_output(i, part, None)
                else:
                    files.append((i, part, data))
            # Finished one batch later: reading the next overlaps with decoding this one.
            decoded = submit(partial(self.decode_batch, [data for _, _, data in files]))
            if finish is not None:
                finish()
            finish = partial(self._finish, files, decoded)
        if finish is not None:
            finish()

    def _finish(
        self, files: list[tuple[int, Part, bytes]], decoded: Callable[[], Sequence[Buffer] | None]
    ) -> None:
        blocks = decoded()
        if blocks is None:
            for i, part, data in files:
                self.request.read_file_into_output(i, part, data)
        else:
            for k, (i, part, _) in enumerate(files):
                self.request.decode_into_output(i, -1, blocks[k], part)
