"""Read tasks: each fetches the bytes of some chunks, which are decoded into the output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, pairwise, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grids import PointProjection
from grids.projection import Part
from virtualzarr.array.read.output import is_all_slices, shift_selection
from virtualzarr.array.read.partial import (
    PartialRead,
    UncompressedBlock,
    plan_box,
    plan_points,
    plan_slices,
)
from virtualzarr.codecs.core.strided import StridedLayout
from virtualzarr.errors import (
    ChunkNotFoundError,
    CodecError,
    SourceChangedError,
    SourceNotFoundError,
)
from virtualzarr.stores.files import SMALL_FILE_BYTES, Buffer, FileWithEnd, RemoteFile
from virtualzarr.stores.streams import StreamedRead
from virtualzarr.stores.thread_pools import Task

if TYPE_CHECKING:
    from virtualzarr.array.read.request import ReadRequest


@dataclass
class PartialReads:
    """Partial reads of one uncompressed block."""

    request: ReadRequest
    i: int
    reads: list[PartialRead]
    layout: StridedLayout
    out: NDArray[Any]
    finish: Task | None

    def __call__(self) -> None:
        """Read the selected bytes and copy them into the output."""
        located = self.request.located
        offset = int(located.offset[self.i])
        undo = self.layout.decode if self.layout.undo else None
        try:
            # Opened once for all pieces, which are then of one version, and cost no open call each.
            with located.open_file(int(located.file[self.i])).open() as file:
                for read in self.reads:
                    read.run(file, offset, self.layout.dtype, self.out, undo)
        except SourceNotFoundError as error:
            fill_missing_chunk(
                self.request, self.i, error, lambda: self.out.fill(self.request.fill)
            )
        except SourceChangedError as error:
            self.request.note_replaced(self.i, error)
            return
        except Exception as error:
            self.request.add_context(self.i, error)
            raise
        if self.finish is not None:
            self.finish()


def plan_partial_reads(request: ReadRequest, i: int) -> list[Task]:
    """Return tasks that read only the bytes needed of one uncompressed block."""
    codec, shape = request.block_codecs[request.codec_index[i]]
    layout = codec.strided
    assert layout is not None
    length = int(request.located.length[i])
    # Whole reads find a truncated chunk when decoding it; a part would look right here, or come
    # from the bytes of the next chunk.
    if length != layout.nbytes:
        raise CodecError(f"the chunk has {length} bytes, the block needs {layout.nbytes}").at(
            **request.chunk_context(i)
        )
    chunk_sel, out_sel, _ = next(iter(request.projection.parts(request.located.cell[i : i + 1])))
    if request.located.origin is not None:
        chunk_sel = shift_selection(chunk_sel, request.located.origin[i])
    # Index arrays give a copy of the output: pieces are read into that, which `finish` copies.
    out = request.output[out_sel] if out_sel else request.output
    finish = None if is_all_slices(out_sel) else partial(request.output.__setitem__, out_sel, out)
    block = UncompressedBlock(layout.shape, layout.dtype)
    if isinstance(request.projection, PointProjection):
        points = [np.arange(*s.indices(n)) if isinstance(s, slice) else s
                  for s, n in zip(chunk_sel, shape, strict=True)]  # fmt: skip
        points = [np.arange(s.start, s.stop) if isinstance(s, slice) else s
                  for s in layout.to_stored(points)]  # fmt: skip
        pieces = plan_points(block, points, request.gap, request.limit)
        return [PartialReads(request, i, pieces, layout, out, finish)]
    # Transposes and reversals are undone on the output's side: a view in stored order, into
    # which pieces are read without a copy.
    out, select = layout.arrange_output(out, chunk_sel), layout.to_stored(chunk_sel)
    if finish is not None or not is_all_slices(chunk_sel):
        flat = [s if isinstance(s, slice) else np.asarray(s).reshape(-1) for s in select]
        pieces = plan_box(block, flat, request.gap, request.limit)
        return [PartialReads(request, i, pieces, layout, out, finish)]
    bounds = tuple((s.start, s.stop, s.step) for s in select)
    groups, nbytes = plan_slices(block, bounds, request.gap, request.limit, request.remote)
    request.decoded_nbytes += nbytes
    if request.located.relocate is not None:
        # One task opens the file once: all pieces are then of one version of it.
        groups = [list(chain.from_iterable(groups))]
    return [PartialReads(request, i, pieces, layout, out, None) for pieces in groups]


@dataclass
class CoalescedReads:
    """Coalesced reads ``first:last`` of a plan, and the chunks in them."""

    request: ReadRequest
    plan: Any
    chunks: NDArray[np.int64]
    first: int
    last: int
    shared: NDArray[np.bool_] | None = None  # in the plan's order, whether the next has its block

    def __call__(self) -> None:
        """Fetch the chunks and decode them into the output."""
        located, plan = self.request.located, self.plan
        if located.read_small is not None:
            for i, part, data in self.iter_files():
                self.request.read_file_into_output(i, part, data)
            return
        chunks, parts = self._chunks()
        bounds = plan.first[self.first : self.last + 1]
        bounds = (bounds - bounds[0]).tolist()
        for read, (first, last) in enumerate(pairwise(bounds), self.first):
            parts_of_read: Iterable[Part] = islice(parts, last - first)
            if located.may_be_missing:
                # An error in the middle may need them again.
                parts_of_read = [*parts_of_read]
            self._read(read, chunks[first:last], parts_of_read)

    def as_streamed_read(self) -> StreamedRead | None:
        """Return the bytes to request, if an event loop can do that."""
        if self.last - self.first != 1 or self.request.located.read_small is not None:
            return None
        file = self.request.located.open_file(int(self.plan.file[self.first]))
        start, stop = int(self.plan.start[self.first]), int(self.plan.stop[self.first])
        end = stop if stop >= 0 else None
        if isinstance(file, FileWithEnd) and not file.has(start, end):
            file = file.file
        if not isinstance(file, RemoteFile):
            return None
        codec = int(
            self.request.codec_index[self.chunks[self.plan.order[self.plan.first[self.first]]]]
        )
        if stop >= 0:
            return StreamedRead(file, start, stop, None, stop - start)
        nbytes = self.request.block_codecs[codec][0].max_nbytes
        return StreamedRead(file, start, None, self.request.max_lengths[codec], nbytes)

    def finish(self, fetch: Callable[[], Buffer]) -> None:
        """Decode the chunks of the single read; `fetch` gives its bytes, or raises."""
        chunks, parts = self._chunks()
        self._read(self.first, chunks, [*parts], fetch)

    def _chunks(self) -> tuple[NDArray[np.int64], Iterator[Part]]:
        bounds = self.plan.first[self.first], self.plan.first[self.last]
        chunks = self.chunks[self.plan.order[slice(*bounds)]]
        return chunks, self.request.projection.parts(self.request.located.cell[chunks])

    def iter_files(self) -> Iterator[tuple[int, Part, bytes | None]]:
        """Yield chunks that are a file each, with the bytes of the file if it is small."""
        located = self.request.located
        chunks, parts = self._chunks()
        contents: Iterable[bytes | None] = repeat(None, len(chunks))
        nbytes = self.request.block_codecs[0][0].nbytes
        if located.read_small is not None and nbytes < SMALL_FILE_BYTES:
            contents = located.read_small(located.file[chunks])
        return zip(chunks.tolist(), parts, contents, strict=True)

    def _read(
        self,
        read: int,
        chunks: NDArray[np.int64],
        parts: Iterable[Part],
        fetch: Callable[[], Buffer] | None = None,
    ) -> None:
        """Fetch one coalesced range and decode the chunks in it."""
        request, located = self.request, self.request.located
        start, stop = int(self.plan.start[read]), int(self.plan.stop[read])
        begins = (located.offset[chunks] - start).tolist()
        ends = [b + n if n >= 0 else None
                for b, n in zip(begins, located.length[chunks].tolist(), strict=True)]  # fmt: skip
        numbers, codecs = chunks.tolist(), request.codec_index[chunks].tolist()
        shared: Iterable[bool] = repeat(False, len(chunks))
        if self.shared is not None:
            # The plan's order groups the chunks of a block: the flags of this read are a slice.
            shared = self.shared[self.plan.first[read] :][: len(chunks)].tolist()
        block: NDArray[Any] | None = None  # kept while the next chunk is a part of it, too
        done = 0
        try:
            if fetch is not None:
                data = memoryview(fetch())
            else:
                file = located.open_file(int(self.plan.file[read]))
                # An unknown length means up to the end of the file, at most what a block may take
                # encoded.
                limit = request.max_lengths[codecs[0]] if stop < 0 else None
                data = memoryview(file.read(start, None if stop < 0 else stop, limit))
            encoded = [data[begin:end] for begin, end in zip(begins, ends, strict=True)]
            blocks = request.decode_in_batches(codecs, encoded)
            for i, (codec, chunk), part, is_shared in zip(
                numbers, blocks, parts, shared, strict=True
            ):
                if is_shared and block is None:
                    block = request.decode_shared_block(i, codec, chunk)
                request.decode_into_output(i, codec, chunk, part, block)
                block = block if is_shared else None
                done += 1
        except SourceNotFoundError as error:
            for i, (_, out_sel, _) in zip(numbers, parts, strict=True):
                fill = partial(request.output.__setitem__, (*out_sel, ...), request.fill)
                fill_missing_chunk(request, i, error, fill)
        except SourceChangedError as error:
            request.note_replaced(numbers[0], error)
        except Exception as error:
            request.add_context(numbers[done], error)
            raise


def fill_missing_chunk(
    request: ReadRequest, i: int, error: SourceNotFoundError, fill: Task
) -> None:
    """Fill in a chunk whose file does not exist, if that means it was never written."""
    if request.located.relocate is not None:
        # Others of the file may have been read before it was deleted.
        request.note_replaced(i, error)
        return
    if not request.located.may_be_missing or request.located.must_exist:
        raise error.at(**request.chunk_context(i))
    if not request.fill_missing:
        request.located.check_missing()
        raise ChunkNotFoundError("the chunk is missing").at(**request.chunk_context(i)) from error
    fill()
    if request.remote or not request.missing:  # of local files, one is enough to look at the array
        request.missing.append(int(request.located.cell[i]))
