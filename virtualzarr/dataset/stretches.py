"""Stretches: rows that follow each other both in a version and in a segment, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from virtualzarr.dataset.entry import Entry
from virtualzarr.dataset.runs import Runs
from virtualzarr.errors import MetadataError

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows that follow each other in a version and in one segment.

    Attributes
    ----------
    entry : Entry
    start, stop : int
        Which rows of the segment.
    """

    entry: Entry
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Stretches:
    """Where rows of a version lie, in their order; no object of Python for each.

    Attributes
    ----------
    entries : sequence of Entry
    number : int64 array, shape (stretches,)
        Which of the entries.
    start, stop : int64 arrays, shape (stretches,)
        Which rows of its segment.
    """

    entries: Sequence[Entry]
    number: Int64
    start: Int64
    stop: Int64

    @classmethod
    def of(cls, stretches: Iterable[Stretch]) -> Stretches:
        """Return some stretches as columns."""
        numbers: dict[tuple[int, str], int] = {}
        entries: list[Entry] = []
        rows = []
        for stretch in stretches:
            number = numbers.setdefault(stretch.entry.key, len(numbers))
            if number == len(entries):
                entries.append(stretch.entry)
            rows.append((number, stretch.start, stretch.stop))
        columns = np.array(rows, np.int64).reshape(-1, 3).T
        return cls(tuple(entries), *columns)

    def __len__(self) -> int:
        return len(self.number)

    def __iter__(self) -> Iterator[Stretch]:
        columns = self.number.tolist(), self.start.tolist(), self.stop.tolist()
        for number, start, stop in zip(*columns, strict=True):
            yield Stretch(self.entries[number], start, stop)

    @cached_property
    def ends(self) -> Int64:
        """The position after the last row of each."""
        return np.cumsum(self.stop - self.start)

    @property
    def nrows(self) -> int:
        """How many rows there are."""
        return int(self.ends[-1]) if len(self) else 0

    def list_entries(self) -> list[Entry]:
        """Return the entries that have any of the rows."""
        return [self.entries[number] for number in np.unique(self.number).tolist()]

    def cut(self, start: int, stop: int) -> Stretches:
        """Return where the rows at the positions ``start:stop`` lie."""
        begins = self.ends - (self.stop - self.start)
        chosen = np.flatnonzero((begins < stop) & (self.ends > start))
        shift = (self.start - begins)[chosen]
        low = np.maximum(begins[chosen], start) + shift
        high = np.minimum(self.ends[chosen], stop) + shift
        return Stretches(self.entries, self.number[chosen], low, high)

    def locate(self, positions: Int64) -> tuple[Int64, Int64]:
        """Return which entry has each of some rows, and which row of its segment it is."""
        at = self.ends.searchsorted(positions, side="right")
        return self.number[at], self.stop[at] - (self.ends[at] - positions)

    def load(self) -> Stretches:
        """Return where all rows lie: these."""
        return self


def find_stretches(runs: Runs, entries: Iterable[Entry], dimension: str) -> Stretches:
    """Return where the rows of a dimension lie, in their order.

    Raises
    ------
    MetadataError
        A row is in no segment.
    """
    ordered = sorted(
        (entry for entry in entries if dimension in entry.rows),
        key=lambda entry: entry.rows[dimension][0],
    )
    table = np.array([entry.rows[dimension] for entry in ordered], np.int64).reshape(-1, 2)
    first, stop = table[:, 0], table.sum(axis=1)
    # Entries tile the ids: those that a run needs lie next to each other.
    begin, end = runs.first, runs.first + runs.count
    low = first.searchsorted(begin, side="right") - 1
    high = first.searchsorted(end, side="left")
    if (not len(first) and len(begin)) or (low < 0).any():
        raise _no_segment(int(begin[np.argmin(low)]), dimension)
    counts = high - low
    run = np.repeat(np.arange(len(begin)), counts)
    number = np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts) + low[run]
    start, last = np.maximum(begin[run], first[number]), np.minimum(end[run], stop[number])
    # Each stretch goes on where the one before it ended, up to where the run ends.
    is_lead = np.diff(run, prepend=-1) > 0
    expected = np.where(is_lead, begin[run], np.roll(last, 1))
    is_tail = np.diff(run, append=len(begin)) > 0
    wrong = (start != expected) | (last <= start) | (is_tail & (last != end[run]))
    if wrong.any():
        raise _no_segment(int(expected[wrong][0]), dimension)
    return Stretches(tuple(ordered), number, start - first[number], last - first[number])


def _no_segment(row: int, dimension: str) -> MetadataError:
    return MetadataError(f"row {row} of {dimension!r} is in no segment")
