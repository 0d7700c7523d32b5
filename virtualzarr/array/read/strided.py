"""Strided reads: many small uncompressed chunks are copied by a few numpy calls.

Such chunks are, for one, the records of a file that interleaves variables. Where they lie at even
distances, the bytes read are viewed as an array of them; elsewhere they are gathered by offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grids import BoxProjection
from grids.box_projection import Run
from virtualzarr.array.read.partial import UncompressedBlock
from virtualzarr.codecs.core.strided import StridedLayout
from virtualzarr.config import config
from virtualzarr.stores.coalesce import ReadPlan, plan_reads
from virtualzarr.stores.files import Buffer
from virtualzarr.stores.thread_pools import Task

if TYPE_CHECKING:
    from virtualzarr.array.read.request import ReadRequest

MAX_RUNS = 3
"""Runs of cells along one axis that are tried: first, last, and all others are common."""


def plan_strided_reads(
    request: ReadRequest, remaining: NDArray[np.int64]
) -> tuple[list[Task], NDArray]:
    """Return tasks that copy many chunks at once, and the chunks that remain.

    Parameters
    ----------
    request : Request
    remaining : int64 array
        Which of the located chunks to read.
    """
    located, projection = request.located, request.projection
    minimum, per_read = config.tuning.strided_chunks, config.tuning.strided_chunks_per_read
    plain = located.origin is None and located.relocate is None and not located.may_be_missing
    if len(remaining) < minimum or not plain or not isinstance(projection, BoxProjection):
        return [], remaining
    # Only blocks that are stored in memory layout: anything compressed is decoded one by one.
    numbers = [number for number, (codec, _) in enumerate(request.block_codecs)
             if codec.strided is not None and codec.strided.nbytes]  # fmt: skip
    runs = [axis.runs() for axis in projection.axes]
    # The longest first: what they take need not be compared with the others.
    runs = [sorted(along, key=lambda run: run.first - run.last)[:MAX_RUNS] for along in runs]
    tasks: list[Task] = []
    for number, box in product(numbers, product(*runs)):
        if len(remaining) < minimum:
            break
        layout = request.block_codecs[number][0].strided
        assert layout is not None
        group = _StridedGroup(request, layout, box, projection.cell_shape)
        fits = group.select(remaining, number)
        chunks = remaining if fits is None else remaining[fits]
        if len(chunks) < minimum:
            continue
        every = slice(None) if len(chunks) == len(located) else chunks
        columns = located.file[every], located.offset[every], located.length[every]
        plan = plan_reads(*columns, gap=request.gap, limit=request.limit)
        # Scattered chunks: with few in a read, the ordinary way does the same with less setup.
        if len(chunks) < per_read * len(plan):
            continue
        tasks += group.plan_tasks(plan, chunks)
        remaining = remaining[:0] if fits is None else remaining[~fits]
    return tasks, remaining


@dataclass
class _StridedGroup:
    """Chunks of one codec in a box of cells, of each of which the same part is selected."""

    request: ReadRequest
    layout: StridedLayout
    box: tuple[Run, ...]
    cell_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        # Along other axes, all chunks have the same index.
        self.long = [axis for axis, count in enumerate(self.cell_shape) if count > 1]
        self.inside = [run.inside for run in self.box]
        work = self.request.output
        counts = [run.last - run.first for run in self.box]
        within = work[tuple(slice(run.where, run.where + n * run.length)
                            for run, n in zip(self.box, counts, strict=True))]  # fmt: skip
        shape = [counts[axis] for axis in self.long] + [run.length for run in self.box]
        strides = [self.box[axis].length * work.strides[axis] for axis in self.long]
        # One view of the output has an entry for each cell: within a run, every cell's part of the
        # output follows that of the cell before.
        self.parts = np.lib.stride_tricks.as_strided(within, shape, [*strides, *work.strides])

    def positions(self, chunks: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the positions of chunks in the box, along each of its long axes."""
        cells = self.request.located.cell[chunks]
        if len(self.long) == 1:
            columns: Sequence[NDArray[np.int64]] = [cells]
        else:
            columns = np.unravel_index(cells, [self.cell_shape[axis] for axis in self.long])
        return [column - self.box[axis].first
                for axis, column in zip(self.long, columns, strict=True)]  # fmt: skip

    def select(self, chunks: NDArray[np.int64], number: int) -> NDArray[np.bool_] | None:
        """Return a mask of the chunks that are of this group; None if all are."""
        request = self.request
        every = slice(None) if len(chunks) == len(request.located) else chunks
        # A chunk of another length is damaged, or reaches to the end of its file: decoded alone, it
        # raises its own error.
        fits = request.located.length[every] == self.layout.nbytes
        if len(request.block_codecs) > 1:
            fits &= request.codec_index[chunks] == number
        ends = [self.box[axis].last - self.box[axis].first for axis in self.long]
        if any(end < self.cell_shape[axis] for axis, end in zip(self.long, ends, strict=True)):
            for position, end in zip(self.positions(chunks), ends, strict=True):
                fits &= (position >= 0) & (position < end)
        return None if fits.all() else fits

    def plan_tasks(self, plan: ReadPlan, chunks: NDArray[np.int64]) -> list[Task]:
        """Return tasks that read all of some chunks."""
        bounds = plan.first * self.layout.nbytes
        self.request.decoded_nbytes += int(bounds[-1])
        batches = self.request.group_reads(bounds)
        return [_StridedReads(self, plan, chunks, first, last) for first, last in batches]

    def elements(self, data: Buffer, offsets: NDArray[np.int64]) -> NDArray[Any]:
        """Return the elements of chunks, given where each begins in the bytes read."""
        layout = self.layout
        gaps = np.diff(offsets)
        if not len(gaps) or (gaps == gaps[0]).all():
            # Equal distances are one more stride in front of the block's: a view, without any copy.
            # numpy refuses strides that leave the buffer, so that a wrong offset cannot read past
            # it.
            step = int(gaps[0]) if len(gaps) else 0
            strides = (step, *UncompressedBlock(layout.shape, layout.dtype).strides)
            shape = (len(offsets), *layout.shape)
            return np.ndarray(shape, layout.dtype, data, int(offsets[0]), strides)
        # Overlapping items, one at each byte: indexing by the offsets copies whole chunks.
        nbytes = layout.nbytes
        items = np.ndarray((len(data) - nbytes + 1,), f"V{nbytes}", data, 0, (1,))
        return items[offsets].view(layout.dtype).reshape(-1, *layout.shape)


@dataclass
class _StridedReads:
    """Coalesced reads ``first:last`` of a group's plan."""

    group: _StridedGroup
    plan: ReadPlan
    chunks: NDArray[np.int64]
    first: int
    last: int

    def __call__(self) -> None:
        plan = self.plan
        for read in range(self.first, self.last):
            chunks = self.chunks[plan.order[plan.first[read] : plan.first[read + 1]]]
            try:
                self._read(read, chunks)
            except Exception as error:
                self.group.request.add_context(int(chunks[0]), error)
                raise

    def _read(self, read: int, chunks: NDArray[np.int64]) -> None:
        located, group, plan = self.group.request.located, self.group, self.plan
        start, stop = int(plan.start[read]), int(plan.stop[read])
        data = located.open_file(int(plan.file[read])).read(start, stop)
        elements = group.elements(data, located.offset[chunks] - start)
        part = group.layout.take(elements, group.inside)
        positions: tuple[Any, ...] = tuple(group.positions(chunks))
        # Copying by a slice is several times as fast as by indices.
        if len(positions) == 1 and (np.diff(positions[0]) == 1).all():
            positions = (slice(int(positions[0][0]), int(positions[0][-1]) + 1),)
        group.parts[positions] = part
