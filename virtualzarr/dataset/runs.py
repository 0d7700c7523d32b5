"""Runs of row ids: what the positions along a growing dimension mean.

Row ids are given out in the order of commits and never used again. A dimension is a list of runs,
one for any number of rows that were appended in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.errors import MetadataError


@dataclass(frozen=True, eq=False)
class Runs:
    """Rows along a dimension, as runs of consecutive ids.

    Parameters
    ----------
    first, count : array of int64, shape (runs,)
        The first id of each run, and how many rows it has, at least one.

    Examples
    --------
    >>> runs = Runs.of([(0, 10)]).insert(4, 10, 2).drop(0, 1)
    >>> runs
    <Runs: 11 rows: 1-3, 10-11, 4-9>
    >>> runs.ids(2, 6).tolist()
    [3, 10, 11, 4]
    >>> runs.count_ids([0, 8], [4, 12]).tolist()
    [3, 4]
    """

    first: NDArray[np.int64]
    count: NDArray[np.int64]

    def __post_init__(self) -> None:
        # Positions where runs start, and where the last one stops: what every query bisects.
        object.__setattr__(self, "starts", np.concatenate([[0], np.cumsum(self.count)]))

    starts: Any = None

    @classmethod
    def of(cls, pairs: Iterable[Iterable[int]]) -> Runs:
        """Return runs from pairs of first id and count, neighbours that go on joined.

        Raises
        ------
        MetadataError
            If a run has no rows, or an id is negative or comes twice.
        """
        table = np.array([tuple(pair) for pair in pairs], np.int64).reshape(-1, 2)
        first, count = table[:, 0], table[:, 1]
        if len(table) and (int(count.min()) < 1 or int(first.min()) < 0):
            raise MetadataError("runs have one row at least, and ids from 0")
        order = np.argsort(first, kind="stable")
        if (first[order][1:] < (first + count)[order][:-1]).any():
            raise MetadataError("a row id comes twice in the runs of a dimension")
        return cls(first, count).join()

    def join(self) -> Runs:
        """Return the same rows with runs joined where ids go on."""
        if len(self.first) < 2:
            return self
        # A run starts a new group unless it continues the ids of the one before.
        leads = np.concatenate([[True], self.first[1:] != (self.first + self.count)[:-1]])
        if leads.all():
            return self
        groups = np.flatnonzero(leads)
        return Runs(self.first[groups], np.add.reduceat(self.count, groups))

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def pairs(self) -> list[list[int]]:
        """First id and count of each run, as JSON."""
        return [list(pair) for pair in zip(self.first.tolist(), self.count.tolist(), strict=True)]

    def slice(self, start: int, stop: int) -> Runs:
        """Return the rows at positions ``start:stop``."""
        start, stop = max(start, 0), min(stop, len(self))
        if start >= stop:
            return EMPTY
        low = int(np.searchsorted(self.starts, start, "right")) - 1
        high = int(np.searchsorted(self.starts, stop, "left"))
        first, count = self.first[low:high].copy(), self.count[low:high].copy()
        # The stop is cut before the start: both may cut the same run.
        count[-1] -= int(self.starts[high]) - stop
        skipped = start - int(self.starts[low])
        first[0] += skipped
        count[0] -= skipped
        return Runs(first, count)

    def insert(self, position: int, first: int, count: int) -> Runs:
        """Return the runs with rows of new ids before a position."""
        rows = Runs(np.array([first], np.int64), np.array([count], np.int64))
        return concat(self.slice(0, position), rows, self.slice(position, len(self)))

    def drop(self, start: int, stop: int) -> Runs:
        """Return the runs without the rows at positions ``start:stop``."""
        return concat(self.slice(0, start), self.slice(stop, len(self)))

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the ids at positions ``start:stop``, one by one."""
        part = self.slice(start, stop)
        return np.repeat(part.first - part.starts[:-1], part.count) + np.arange(len(part))

    def positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of ids, -1 for those that are no rows (any more)."""
        ids = np.asarray(ids, np.int64)
        if not len(self.first):
            return np.full(ids.shape, -1, np.int64)
        order = np.argsort(self.first, kind="stable")
        run = order[np.maximum(np.searchsorted(self.first[order], ids, "right") - 1, 0)]
        within = ids - self.first[run]
        return np.where((within >= 0) & (within < self.count[run]), self.starts[run] + within, -1)

    def intersect(self, first: int, count: int) -> Runs:
        """Return the rows with ids from one on.

        Examples
        --------
        >>> Runs.of([(0, 4), (20, 2), (4, 4)]).intersect(2, 4)
        <Runs: 4 rows: 2-3, 4-5>
        """
        begin = np.clip(self.first, first, first + count)
        end = np.clip(self.first + self.count, first, first + count)
        inside = begin < end
        return Runs(begin[inside], (end - begin)[inside])

    def locate_ids(self, first: int, count: int) -> NDArray[np.int64]:
        """Return the positions of the ids from one on, as far as they are rows, in order.

        Returns
        -------
        array of int64, shape (2, n)
            Where each of several stretches starts and stops.

        Examples
        --------
        >>> Runs.of([(0, 4), (20, 2), (4, 4)]).locate_ids(2, 4).tolist()
        [[2, 6], [4, 8]]
        """
        begin = np.clip(self.first, first, first + count)
        end = np.clip(self.first + self.count, first, first + count)
        inside = np.flatnonzero(begin < end)
        start = self.starts[:-1][inside] + (begin - self.first)[inside]
        return np.array([start, start + (end - begin)[inside]])

    def count_ids(self, start: NDArray[np.int64], stop: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many of the ids from each of some to before others are rows."""
        if not len(self.first):
            return np.zeros(np.shape(start), np.int64)
        order = np.argsort(self.first, kind="stable")
        first, ends = self.first[order], (self.first + self.count)[order]
        below = np.concatenate([[0], np.cumsum(self.count[order])])

        def count_below(ids: NDArray[np.int64]) -> NDArray[np.int64]:
            runs = first.searchsorted(ids)
            past = np.where(runs > 0, np.maximum(ends[runs - 1] - ids, 0), 0)
            return np.asarray(below[runs] - past)

        return count_below(np.asarray(stop)) - count_below(np.asarray(start))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Runs) and self.pairs == other.pairs

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        listed = ", ".join(f"{a}-{a + n - 1}" for a, n in self.pairs[:8])
        ellipsis = ", ..." if len(self.first) > 8 else ""
        return f"<Runs: {len(self)} rows{': ' if listed else ''}{listed}{ellipsis}>"


EMPTY = Runs(np.empty(0, np.int64), np.empty(0, np.int64))


def concat(*parts: Runs) -> Runs:
    """Return the rows of several runs, one after the other."""
    return Runs(
        np.concatenate([part.first for part in parts]),
        np.concatenate([part.count for part in parts]),
    ).join()


@dataclass(frozen=True, slots=True)
class Splice:
    """A change of a dimension: at a position, some rows go and runs of others come."""

    position: int
    removed: int
    added: tuple[tuple[int, int], ...]

    @classmethod
    def from_json(cls, document: Sequence[Any]) -> Splice:
        """Read what `to_json` returned."""
        position, removed, added = document
        return cls(int(position), int(removed), tuple((int(a), int(n)) for a, n in added))

    def to_json(self) -> list[Any]:
        """Return position, number of rows that go, and runs that come."""
        return [self.position, self.removed, [list(run) for run in self.added]]

    def apply(self, runs: Runs) -> Runs:
        """Return the runs with this change.

        Raises
        ------
        MetadataError
            If it reaches past the end.
        """
        stop = self.position + self.removed
        if not 0 <= self.position <= stop <= len(runs):
            raise MetadataError(f"rows {self.position} to {stop} of {len(runs)} cannot be replaced")
        return concat(
            runs.slice(0, self.position), Runs.of(self.added), runs.slice(stop, len(runs))
        )


def is_descending(splices: Sequence[Splice]) -> bool:
    """Tell whether each of several changes is of rows before those of the one before it."""
    pairs = zip(splices[1:], splices, strict=False)
    return all(after.position + after.removed <= before.position for after, before in pairs)


def splice_runs(runs: Runs, splices: Sequence[Splice]) -> Runs:
    """Return runs with changes that follow each other.

    Raises
    ------
    MetadataError
        If one reaches past the end.

    Examples
    --------
    >>> splice_runs(Runs.of([(0, 9)]), [Splice(6, 1, ((20, 2),)), Splice(3, 0, ((10, 1),))])
    <Runs: 11 rows: 0-2, 10-10, 3-5, 20-21, 7-8>
    """
    if len(splices) < 2 or not is_descending(splices) or splices[-1].position < 0:
        for splice in splices:
            runs = splice.apply(runs)
        return runs
    if splices[0].position + splices[0].removed > len(runs):
        raise MetadataError(f"there are {len(runs)} rows, of which later ones cannot be replaced")
    # From the end on, none moves what the next one is about: the runs are copied once for all.
    parts, low = [], 0
    for splice in reversed(splices):
        parts += [runs.slice(low, splice.position), Runs.of(splice.added)]
        low = splice.position + splice.removed
    return concat(*parts, runs.slice(low, len(runs)))
