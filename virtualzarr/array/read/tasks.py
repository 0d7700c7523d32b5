"""What threads do of one read: fetch the bytes of some chunks, and have them put in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grids.projection import Part
from virtualzarr.array.read.partial import PartialRead
from virtualzarr.array.thread_pools import Task
from virtualzarr.codecs.core.strided import StridedLayout
from virtualzarr.errors import ChunkNotFoundError, SourceChangedError, SourceNotFoundError
from virtualzarr.stores.files import SMALL_FILE_BYTES

if TYPE_CHECKING:
    from virtualzarr.array.read.engine import ReadRequest


@dataclass
class PartialReads:
    """Some pieces of an uncompressed block."""

    request: ReadRequest
    i: int
    pieces: list[PartialRead]
    layout: StridedLayout
    out: NDArray[Any]
    finish: Task | None

    def __call__(self) -> None:
        """Read and place the pieces."""
        located = self.request.located
        offset = int(located.offset[self.i])
        undo = self.layout.decode if self.layout.undo else None
        try:
            with located.open_file(int(located.file[self.i])).open() as file:
                for piece in self.pieces:
                    piece.run(file, offset, self.layout.dtype, self.out, undo)
        except SourceNotFoundError as error:
            fill_missing_chunk(
                self.request, self.i, error, lambda: self.out.fill(self.request.fill)
            )
        except SourceChangedError as error:
            self.request.read_again(np.array([self.i]), error)
            return
        except Exception as error:
            self.request.explain(self.i, error)
            raise
        if self.finish is not None:
            self.finish()


@dataclass
class CoalescedReads:
    """Some merged reads and the chunks in them."""

    request: ReadRequest
    plan: Any
    rest: NDArray[np.int64]
    first: int
    last: int
    again: NDArray[np.bool_] | None = None

    def __call__(self) -> None:
        """Read and place the chunks."""
        located, plan = self.request.located, self.plan
        if located.read_small is not None:
            for i, part, data in self.files():
                self.request.place_file(i, part, data)
            return
        chunks, parts = self._chunks()
        bounds = plan.first[self.first : self.last + 1]
        bounds = (bounds - bounds[0]).tolist()
        for read, (first, last) in enumerate(pairwise(bounds), self.first):
            mine: Iterable[Part] = islice(parts, last - first)
            if located.may_be_missing:
                mine = [*mine]
            self._read(read, chunks[first:last], mine)

    def _chunks(self) -> tuple[NDArray[np.int64], Iterator[Part]]:
        bounds = self.plan.first[self.first], self.plan.first[self.last]
        chunks = self.rest[self.plan.order[slice(*bounds)]]
        return chunks, self.request.projection.parts(self.request.located.cell[chunks])

    def files(self) -> Iterator[tuple[int, Part, bytes | None]]:
        """Yield chunks that are a file each, with what is in those files that are small."""
        located = self.request.located
        chunks, parts = self._chunks()
        every: Iterable[bytes | None] = repeat(None, len(chunks))
        if located.read_small is not None and self.request.codecs[0][0].nbytes < SMALL_FILE_BYTES:
            every = located.read_small(located.file[chunks])
        return zip(chunks.tolist(), parts, every, strict=True)

    def _read(self, read: int, chunks: NDArray[np.int64], parts: Iterable[Part]) -> None:
        """Read some chunks that lie close to each other in a file."""
        request, located = self.request, self.request.located
        start, stop = int(self.plan.start[read]), int(self.plan.stop[read])
        file = located.open_file(int(self.plan.file[read]))
        begins = (located.offset[chunks] - start).tolist()
        ends = [b + n if n >= 0 else None
                for b, n in zip(begins, located.length[chunks].tolist(), strict=True)]  # fmt: skip
        numbers, kinds = chunks.tolist(), request.kind[chunks].tolist()
        again: Iterable[bool] = repeat(False, len(chunks))
        if self.again is not None:
            again = self.again[self.plan.first[read] :][: len(chunks)].tolist()
        block: NDArray[Any] | None = None  # it is kept while it is also that of the next chunk
        done = 0
        try:
            if stop < 0:
                data = memoryview(file.read(start, None, request.most[kinds[0]]))
            else:
                data = memoryview(file.read(start, stop))
            for i, begin, end, kind, part, more in zip(
                numbers, begins, ends, kinds, parts, again, strict=True
            ):
                if more and block is None:
                    block = request.decoded(i, kind, data[begin:end])
                request.place(i, kind, data[begin:end], part, block)
                block = block if more else None
                done += 1
        except SourceNotFoundError as error:
            for i, (_, out_sel, _) in zip(numbers, parts, strict=True):
                fill = partial(request.work.__setitem__, (*out_sel, ...), request.fill)
                fill_missing_chunk(request, i, error, fill)
        except SourceChangedError as error:
            request.read_again(chunks, error)
        except Exception as error:
            request.explain(numbers[done], error)
            raise


def fill_missing_chunk(
    request: ReadRequest, i: int, error: SourceNotFoundError, fill: Task
) -> None:
    """Fill the place of a chunk whose file is not there, if that means it was never written."""
    if not request.located.may_be_missing:
        raise error.at(**request.whereabouts(i))
    if not request.fill_missing:
        raise ChunkNotFoundError("the chunk is missing").at(**request.whereabouts(i)) from error
    fill()
