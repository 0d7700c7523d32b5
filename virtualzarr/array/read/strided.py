"""Many small uncompressed chunks: placed by a few strided copies, and not one by one.

Records of a file that interleaves variables are such chunks. Where they lie at even distances, what
was read of the file is seen as an array of them; elsewhere they are gathered by their offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grids import BoxProjection
from grids.projection import Run
from virtualzarr.array.read.partial import UncompressedBlock
from virtualzarr.array.thread_pools import Task
from virtualzarr.codecs.core.strided import StridedLayout
from virtualzarr.stores.coalesce import ReadPlan, plan_reads
from virtualzarr.stores.files import Buffer

if TYPE_CHECKING:
    from virtualzarr.array.read.engine import ReadRequest

MIN_CHUNKS = 32
"""Of fewer chunks it makes no difference."""

MIN_CHUNKS_PER_READ = 8
"""So many chunks must be read by one call, or else it is the calls that cost."""

MAX_RUNS = 3
"""Runs of cells along one axis that are placed: first, last, and all others are common."""


def plan_strided_reads(request: ReadRequest, rest: NDArray[np.int64]) -> tuple[list[Task], NDArray]:
    """Return tasks that place many of some chunks at once, and the chunks that are left.

    Parameters
    ----------
    request : Request
    rest : int64 array
        Which of the located chunks are to be placed.
    """
    located, projection = request.located, request.projection
    plain = located.origin is None and located.relocate is None and not located.may_be_missing
    if len(rest) < MIN_CHUNKS or not plain or not isinstance(projection, BoxProjection):
        return [], rest
    kinds = [number for number, (codec, _) in enumerate(request.codecs)
             if codec.strided is not None and codec.strided.nbytes]  # fmt: skip
    runs = [axis.runs() for axis in projection.axes]
    runs = [sorted(own, key=lambda run: run.first - run.last)[:MAX_RUNS] for own in runs]
    tasks: list[Task] = []
    for kind, box in product(kinds, product(*runs)):
        if len(rest) < MIN_CHUNKS:
            break
        layout = request.codecs[kind][0].strided
        assert layout is not None
        group = _StridedGroup(request, layout, box, projection.cell_shape)
        fits = group.has(rest, kind)
        mine = rest if fits is None else rest[fits]
        if len(mine) < MIN_CHUNKS:
            continue
        every = slice(None) if len(mine) == len(located) else mine
        columns = located.file[every], located.offset[every], located.length[every]
        plan = plan_reads(*columns, gap=request.gap, limit=request.limit)
        if len(mine) < MIN_CHUNKS_PER_READ * len(plan):
            continue
        tasks += group.tasks(plan, mine)
        rest = rest[:0] if fits is None else rest[~fits]
    return tasks, rest


@dataclass
class _StridedGroup:
    """Chunks of one kind in a box of cells, of each of which the same part is taken."""

    request: ReadRequest
    layout: StridedLayout
    box: tuple[Run, ...]
    cell_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        # Only axes with several cells have to be told apart.
        self.long = [axis for axis, count in enumerate(self.cell_shape) if count > 1]
        self.select = [run.inside for run in self.box]
        work = self.request.work
        counts = [run.last - run.first for run in self.box]
        within = work[tuple(slice(run.where, run.where + n * run.length)
                            for run, n in zip(self.box, counts, strict=True))]  # fmt: skip
        shape = [counts[axis] for axis in self.long] + [run.length for run in self.box]
        strides = [self.box[axis].length * work.strides[axis] for axis in self.long]
        # What is taken of a cell follows what is taken of the one before, as runs have it.
        self.blocks = np.lib.stride_tricks.as_strided(within, shape, [*strides, *work.strides])

    def places(self, chunks: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return where chunks lie in the box, along each of its long axes."""
        cells = self.request.located.cell[chunks]
        if len(self.long) == 1:
            columns: Sequence[NDArray[np.int64]] = [cells]
        else:
            columns = np.unravel_index(cells, [self.cell_shape[axis] for axis in self.long])
        return [column - self.box[axis].first
                for axis, column in zip(self.long, columns, strict=True)]  # fmt: skip

    def has(self, chunks: NDArray[np.int64], kind: int) -> NDArray[np.bool_] | None:
        """Tell which of some chunks are of this group; None if all are."""
        request = self.request
        every = slice(None) if len(chunks) == len(request.located) else chunks
        fits = request.located.length[every] == self.layout.nbytes
        if len(request.codecs) > 1:
            fits &= request.kind[chunks] == kind
        ends = [self.box[axis].last - self.box[axis].first for axis in self.long]
        if any(end < self.cell_shape[axis] for axis, end in zip(self.long, ends, strict=True)):
            for place, end in zip(self.places(chunks), ends, strict=True):
                fits &= (place >= 0) & (place < end)
        return None if fits.all() else fits

    def tasks(self, plan: ReadPlan, chunks: NDArray[np.int64]) -> list[Task]:
        """Return tasks that place all of some chunks."""
        bounds = plan.first * self.layout.nbytes
        self.request.cost += int(bounds[-1])
        batches = self.request.batches(bounds)
        return [_StridedReads(self, plan, chunks, first, last) for first, last in batches]

    def elements(self, data: Buffer, offsets: NDArray[np.int64]) -> NDArray[Any]:
        """Return the elements of chunks that begin at some offsets of what was read."""
        layout = self.layout
        gaps = np.diff(offsets)
        if not len(gaps) or (gaps == gaps[0]).all():
            step = int(gaps[0]) if len(gaps) else 0
            strides = (step, *UncompressedBlock(layout.shape, layout.dtype).strides)
            shape = (len(offsets), *layout.shape)
            return np.ndarray(shape, layout.dtype, data, int(offsets[0]), strides)
        nbytes = layout.nbytes
        every = np.ndarray((len(data) - nbytes + 1,), f"V{nbytes}", data, 0, (1,))
        return every[offsets].view(layout.dtype).reshape(-1, *layout.shape)


@dataclass
class _StridedReads:
    """Some merged reads of a group."""

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
                self.group.request.explain(int(chunks[0]), error)
                raise

    def _read(self, read: int, chunks: NDArray[np.int64]) -> None:
        located, group, plan = self.group.request.located, self.group, self.plan
        start, stop = int(plan.start[read]), int(plan.stop[read])
        data = located.open_file(int(plan.file[read])).read(start, stop)
        elements = group.elements(data, located.offset[chunks] - start)
        part = group.layout.take(elements, group.select)
        places: tuple[Any, ...] = tuple(group.places(chunks))
        if len(places) == 1 and (np.diff(places[0]) == 1).all():
            places = (slice(int(places[0][0]), int(places[0][-1]) + 1),)
        group.blocks[places] = part
