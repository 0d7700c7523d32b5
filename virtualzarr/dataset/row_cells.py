"""Cells along the growing dimension: which stored cells those of a version are, or are parts of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from grids import Axis
from virtualzarr.dataset.entry import ChunkRuns, Entry
from virtualzarr.dataset.stretches import Stretches
from virtualzarr.errors import MetadataError

Int64 = NDArray[np.int64]


class Rows(Protocol):
    """Rows of a version: all at hand, or looked up in tables."""

    @property
    def entries(self) -> Sequence[Entry]:
        """The entries that rows are said to be in."""
        ...

    def locate(self, positions: Int64) -> tuple[Int64, Int64]:
        """Return which entry has each of some rows, and which row of its segment it is."""
        ...

    def load(self) -> Stretches:
        """Return where all rows lie."""
        ...


@dataclass(frozen=True, slots=True)
class StoredCells:
    """Stored cells along the growing dimension, one for each of some cells of a version.

    Attributes
    ----------
    number : int64 array
        Which entry.
    cell : int64 array
        Which of its cells.
    inside : int64 array
        How many of its rows come before the cell of the version.
    edge : int64 array
        Rows of the stored cell.
    """

    number: Int64
    cell: Int64
    inside: Int64
    edge: Int64


class RowCells(Protocol):
    """The cells of an array along the growing dimension.

    Attributes
    ----------
    axis : Axis
        Those of the version.
    is_whole : bool
        Whether each of them is a whole stored cell.
    """

    axis: Axis
    is_whole: bool

    @property
    def entries(self) -> Sequence[Entry]:
        """The entries that stored cells are in."""
        ...

    def find(self, cells: Int64) -> StoredCells:
        """Return the stored cells that some cells are parts of."""
        ...

    def load(self) -> CutCells:
        """Return all cells with where each is."""
        ...


class UniformCells:
    """Cells of one length that no run of rows cuts: each is where its first row is.

    Parameters
    ----------
    path : str
        Of the array.
    rows : Rows
    nrows, length : int
    dimension : str
    """

    is_whole = True

    def __init__(self, path: str, rows: Rows, nrows: int, length: int, dimension: str) -> None:
        self.path, self.rows, self.length, self.dimension = path, rows, length, dimension
        self.axis = Axis(nrows, [length], [max(nrows // length, 1)])

    @property
    def entries(self) -> Sequence[Entry]:
        """The entries that stored cells are in."""
        return self.rows.entries

    def find(self, cells: Int64) -> StoredCells:
        """Return the stored cells that some cells are."""
        number, row = self.rows.locate(cells * self.length)
        edge = np.full(len(cells), self.length)
        return StoredCells(number, row // self.length, np.zeros(len(cells), np.int64), edge)

    def load(self) -> CutCells:
        """Return all cells with where each is."""
        return CutCells(self.path, self.rows.load(), self.dimension)


class CutCells:
    """Cells of any lengths, of which those at the ends of runs of rows may be cut.

    Parameters
    ----------
    path : str
        Of the array.
    stretches : Stretches
    dimension : str
    """

    def __init__(self, path: str, stretches: Stretches, dimension: str) -> None:
        self.stretches = stretches
        # All stored rows, one entry after the other: with their own numbers of rows and cells,
        # stretches of all entries are looked up at once.
        chunks = [_chunks(entry, path, dimension) for entry in stretches.entries]
        spans = [sum(length * count for length, count in runs) for runs in chunks]
        counts = [sum(count for _, count in runs) for runs in chunks]
        runs = [run for runs in chunks for run in runs] or [(1, 1)]
        self.stored = Axis(sum(spans) or 1, *zip(*runs, strict=True))
        begin = _sum_before(spans)[stretches.number]
        self.first_cells = _sum_before(counts)
        start, stop = stretches.start + begin, stretches.stop + begin
        self.first = np.asarray(self.stored.cell_of(start))
        last = np.asarray(self.stored.cell_of(stop - 1))
        self.skipped = start - self.stored.start(self.first)
        self.counts = last - self.first + 1
        past = self.stored.start(last) + self.stored.edge(last) - stop
        self.is_whole = not (self.skipped.any() or past.any())
        self.ends = np.cumsum(self.counts)
        self.axis = self._build_axis(stop, last, past)

    @property
    def entries(self) -> Sequence[Entry]:
        """The entries that stored cells are in."""
        return self.stretches.entries

    def _build_axis(self, stop: Int64, last: Int64, past: Int64) -> Axis:
        """Return the axis of the version, of cells that are cut where stretches end."""
        if not len(last):
            return Axis(0, [1])
        # Of each run of stored chunks that a stretch has cells of: how many, but for cut ones.
        edges, counts = self.stored.edges, self.stored.counts
        firsts = np.cumsum(counts) - counts
        low = firsts.searchsorted(self.first, side="right") - 1
        high = firsts.searchsorted(last, side="right") - 1
        number = high - low + 1
        which = np.repeat(np.arange(len(last)), number)
        run = np.arange(len(which)) - np.repeat(np.cumsum(number) - number, number) + low[which]
        begin = np.maximum(firsts[run], self.first[which])
        end = np.minimum(firsts[run] + counts[run], last[which] + 1)
        is_first = run == low[which]
        is_last = run == high[which]
        is_single = (self.counts == 1)[which]
        head = is_first & ~is_single & (self.skipped > 0)[which]
        tail = is_last & ~is_single & (past > 0)[which]
        middle = np.where(is_single, 0, end - begin - head - tail)
        # A stretch within one stored cell is a cell of its own length.
        size = stop - (self.stored.start(self.first) + self.skipped)
        lengths = np.stack([
            np.where(is_single, size[which], edges[run] - self.skipped[which]),
            edges[run],
            edges[run] - past[which],
        ], axis=1)  # fmt: skip
        times = np.stack([head | is_single, middle, tail], axis=1).astype(np.int64)
        used = times.reshape(-1) > 0
        extent = self.stretches.nrows
        return Axis(extent, lengths.reshape(-1)[used], times.reshape(-1)[used])

    def number_cells(self, cells: Int64) -> tuple[Int64, Int64]:
        """Return the numbers of stored cells among those of all entries, and where in them."""
        at = self.ends.searchsorted(cells, side="right")
        stored = cells - (self.ends - self.counts)[at] + self.first[at]
        return stored, np.where(stored == self.first[at], self.skipped[at], 0)

    def find(self, cells: Int64) -> StoredCells:
        """Return the stored cells that some cells are parts of."""
        stored, inside = self.number_cells(cells)
        number = self.stretches.number[self.ends.searchsorted(cells, side="right")]
        edge = np.asarray(self.stored.edge(stored))
        return StoredCells(number, stored - self.first_cells[number], inside, edge)

    def load(self) -> CutCells:
        """Return all cells with where each is: these."""
        return self

    @cached_property
    def is_in_order(self) -> bool:
        """Whether each entry has cells in one place only."""
        return len(np.unique(self.stretches.number)) == len(self.stretches)


def _chunks(entry: Entry, path: str, dimension: str) -> ChunkRuns:
    count = entry.count(dimension)
    chunks = entry.chunks_of(path) or ((count, 1),)
    if sum(length * repeats for length, repeats in chunks) < count:
        raise MetadataError(f"chunks of {path!r} do not cover {count} rows")
    return chunks


def _sum_before(counts: Sequence[int]) -> Int64:
    return np.cumsum([0, *counts], dtype=np.int64)[:-1] if counts else np.zeros(0, np.int64)
