"""Block planning: in which blocks an array is copied, so that memory suffices.

A block is made of whole chunks of the destination, or of whole shards: each is written once. The
longer blocks are, the less often a chunk of the source lies in several of them and is decoded for
each. Which lengths are best is searched for axis by axis: how often chunks are decoded is a product
of one number for each axis, and so is the size of a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from grids import Axis, SeparableGrid, coarsen, from_axes

TARGET_BYTES = 64 * 1024 * 1024
"""Blocks are not made larger than this many bytes, unless chunks are decoded less often then."""

MAX_COMPARED_CELLS = 100_000
"""Axes of irregular cells are compared boundary by boundary up to so many cells."""

MAX_FOLDED_CELLS = 10_000
"""Axes of irregular cells are folded in few ways if they have more."""

MAX_CANDIDATES = 200
"""So many choices are kept from axis to axis."""

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""The corners of a part of an array: the first element in it, and the first behind it."""


@dataclass(frozen=True)
class Blocks:
    """How an array is copied in blocks.

    Attributes
    ----------
    grid : SeparableGrid
        Whose cells are the blocks.
    reads : float
        How often a chunk of the source is decoded, on average.
    at_once : int
        How many chunks may be decoded, or encoded, at the same time.
    best : int
        The memory, in bytes, with which each chunk would be decoded once.
    """

    grid: SeparableGrid
    reads: float
    at_once: int
    best: int


def least_memory(source: SeparableGrid, target: SeparableGrid, itemsize: int) -> int:
    """Return the least memory that a copy takes: a block, and what one thread needs besides."""
    block = math.prod(_max_length(axis) for axis in target.axes) * itemsize
    return block + _codec_elements(source, target) * itemsize


def _codec_elements(source: SeparableGrid, target: SeparableGrid) -> int:
    """Return the elements of a chunk that is decoded and of one that is encoded, each twice.

    Once as they are and once encoded; threads keep the memory they decoded in.
    """
    return 2 * (_chunk_elements(source) + _chunk_elements(target))


def plan_blocks(source: SeparableGrid, target: SeparableGrid, itemsize: int, memory: int) -> Blocks:
    """Return the blocks with which chunks are decoded least often.

    Parameters
    ----------
    source : SeparableGrid
        The chunks that are decoded: within shards, those.
    target : SeparableGrid
        What is written at once: chunks, or shards.
    itemsize : int
        Bytes of an element.
    memory : int
        How many bytes may be used; at least `least_memory`.

    Examples
    --------
    >>> from grids import RegularGrid
    >>> rows, columns = RegularGrid((100, 100), (1, 100)), RegularGrid((100, 100), (100, 1))
    >>> [plan_blocks(rows, columns, 1, memory).reads for memory in (10**6, 3000)]
    [1.0, 4.0]
    """
    overhead = _codec_elements(source, target) * itemsize
    # Twice: within memory, and without a limit to say how much would be best. Memory for the codecs
    # of one thread is set aside first.
    size, reads, axes = _search(source, target, itemsize, memory - overhead)
    best = memory
    if reads > 1:
        best = _search(source, target, itemsize, 1 << 62)[0] + overhead
    # Blocks that cost no more reads but hold more chunks let threads work side by side.
    axes = _lengthen(axes, source, reads, itemsize, min(memory - overhead, max(size, TARGET_BYTES)))
    reads = math.prod(map(_mean_reads, source.axes, axes))
    remaining = memory - math.prod(map(_max_length, axes)) * itemsize
    return Blocks(from_axes(axes), reads, max(1, remaining // overhead), best)


def _search(
    source: SeparableGrid, target: SeparableGrid, itemsize: int, limit: int
) -> tuple[int, float, list[Axis]]:
    """Return the size of the best blocks, how often chunks are decoded, and the blocks' axes."""
    front: list[tuple[int, float, list[Axis]]] = [(itemsize, 1.0, [])]
    for i, axis in enumerate(source.axes):
        lengths = [
            (_max_length(c), _mean_reads(axis, c), c) for c in _candidate_axes(axis, target, i)
        ]
        # Axes not yet chosen take one cell at least: choices that leave no room for that go now.
        later = math.prod(map(_max_length, target.axes[i + 1 :]))
        choices = [
            (size * length, reads * factor, [*axes, candidate])
            for size, reads, axes in front
            for length, factor, candidate in lengths
        ]
        # The shortest blocks are always among them.
        least = min(size for size, _, _ in choices)
        front = _pareto_front([c for c in choices if c[0] * later <= limit or c[0] == least])
    return front[-1]


def _chunk_elements(grid: SeparableGrid) -> int:
    """Return how many elements the largest chunk has, as codecs see it."""
    return math.prod(int(axis.runs()[0].max(initial=1)) for axis in grid.axes)


def _max_length(axis: Axis) -> int:
    """Return the length of the longest cell, inside of the array."""
    return int(axis.runs(clipped=True)[0].max(initial=1))


def _candidate_axes(source: Axis, target: SeparableGrid, number: int) -> list[Axis]:
    """Return axes of blocks: cells of the target folded to more and more."""
    axis = target.axes[number]
    if axis.ncells < 2:
        return [axis]
    edge, other = _max_length(axis), _max_length(source)
    # The useful lengths: the whole axis, one chunk of the source, and the least common multiple, at
    # which no chunk is read twice.
    lengths = {axis.end, -(-other // edge) * edge, math.lcm(edge, other)}
    if axis.uniform or axis.ncells < MAX_FOLDED_CELLS:
        # Equal parts of the axis: a last block that is nearly empty costs as much as a full one.
        lengths |= {-(-axis.ncells // n) * edge for n in range(2, 17)}
    length = edge
    # And powers of two, so that any limit of memory has a candidate within a factor of two.
    while length < axis.extent:
        lengths.add(length)
        length *= 2
    candidates: dict[Axis, None] = {axis: None}
    for length in sorted(lengths):
        candidates[coarsen(target, number, min(length, axis.end)).axes[number]] = None
    return list(candidates)


def _mean_reads(source: Axis, blocks: Axis) -> float:
    """Return in how many blocks a cell of the source lies, on average, along one axis."""
    if not source.ncells or not blocks.ncells:
        return 1.0
    # Every boundary of blocks that is none of the source cuts one of its cells in two.
    return (
        source.ncells + blocks.ncells - 1 - _count_common_boundaries(source, blocks)
    ) / source.ncells


def _count_common_boundaries(a: Axis, b: Axis) -> int:
    """Count the boundaries inside of the array that two axes have in common."""
    # Arithmetic, without listing boundaries: axes may have 10**9 cells.
    if a.uniform and b.uniform:
        return (a.extent - 1) // math.lcm(a.uniform, b.uniform)
    if max(a.ncells, b.ncells) > MAX_COMPARED_CELLS:
        return 0  # too many to compare: taken to have none
    boundaries, others = a.start(np.arange(1, a.ncells)), b.start(np.arange(1, b.ncells))
    return len(np.intersect1d(boundaries, others))


def _pareto_front(
    choices: list[tuple[int, float, list[Axis]]],
) -> list[tuple[int, float, list[Axis]]]:
    """Return the choices that none beats in both size and reads, the smallest first."""
    front: list[tuple[int, float, list[Axis]]] = []
    # By size: a larger choice stays only if it reads less than all smaller ones (Pareto front).
    for choice in sorted(choices, key=lambda entry: entry[:2]):
        if not front or choice[1] < front[-1][1]:
            front.append(choice)
    # The last is the one with the fewest reads: it stays.
    return front if len(front) <= MAX_CANDIDATES else [*front[: MAX_CANDIDATES - 1], front[-1]]


def _lengthen(
    axes: list[Axis], source: SeparableGrid, reads: float, itemsize: int, goal: int
) -> list[Axis]:
    """Return longer blocks with no more reads: many chunks at a time keep all threads busy."""
    # The last axes are contiguous in C order: long runs there are cheapest to copy.
    for i in reversed(range(len(axes))):
        while axes[i].ncells > 1:
            longer = coarsen(from_axes(axes), i, 2 * int(axes[i].runs()[0].max())).axes[i]
            candidate = [*axes[:i], longer, *axes[i + 1 :]]
            longer_reads = math.prod(map(_mean_reads, source.axes, candidate))
            size = math.prod(map(_max_length, candidate)) * itemsize
            if longer_reads > reads or size > goal or longer.ncells == axes[i].ncells:
                break
            axes = candidate
    return axes


def split_box(grid: SeparableGrid, box: Box, count: int) -> Iterator[Box]:
    """Cut a part of an array into parts that touch at most so many cells of a grid.

    Examples
    --------
    >>> from grids import RegularGrid
    >>> list(split_box(RegularGrid((10,), (4,)), ((2,), (10,)), 2))
    [((2,), (8,)), ((8,), (10,))]
    """
    steps: list[Sequence[tuple[int, int]]] = []
    for axis, low, high in reversed(list(zip(grid.axes, *box, strict=True))):
        first, last = axis.cell_of(low), axis.cell_of(high - 1) + 1
        step = max(1, min(count, last - first))
        count //= step
        steps.append([
            (max(low, axis.start(i)), min(high, axis.start(min(i + step, last))))
            for i in range(first, last, step)
        ])  # fmt: skip
    for pairs in product(*reversed(steps)):
        yield tuple(low for low, _ in pairs), tuple(high for _, high in pairs)
