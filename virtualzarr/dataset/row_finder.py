"""Rows of a version found as they are asked for: of its tables, only those nodes are read.

So opening a version takes the same time however many rows, runs and segments it has.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property
from threading import Lock
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from virtualzarr.dataset.chunk_lengths import (
    ChunkLengths,
    describe_chunks,
    find_step,
    join_chunks,
)
from virtualzarr.dataset.entry import Entry
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.row_tables import (
    ENTRIES,
    RUNS,
    Contents,
    at_any_id,
    at_rows,
    read_contents,
)
from virtualzarr.dataset.runs import EMPTY, Runs
from virtualzarr.dataset.snapshot import Snapshot
from virtualzarr.dataset.stretches import Stretches, find_stretches
from virtualzarr.dataset.tables import Memo
from virtualzarr.errors import MetadataError

Int64 = NDArray[np.int64]
Runner = Callable[[Protocol[Any]], Any]


class RowFinder:
    """Finds the segments of rows by position; what was read of tables is kept.

    Parameters
    ----------
    state : Snapshot
    dimension : str
    run : callable
        Runs protocols in the dataset's store.

    Attributes
    ----------
    entries : list of Entry
        Those that were looked at, in no order; more may come, and none goes.
    """

    def __init__(self, state: Snapshot, dimension: str, run: Runner) -> None:
        self.state, self.dimension, self._run = state, dimension, run
        self._rows = state.rows_of(dimension)
        self.entries: list[Entry] = []
        self._lock, self._all = Lock(), cast("Stretches | None", None)
        self._memo: Memo = {}
        self._parts: dict[int, Runs] = {self._rows.table_rows: self._rows.tail}
        self._index = _index([], dimension)
        self._numbers: dict[tuple[int, str], int] = {}
        self._add(state.entries.tail)

    def __reduce__(self) -> tuple[Any, ...]:
        return RowFinder, (self.state, self.dimension, self._run)

    def __len__(self) -> int:
        return len(self._rows)

    def find_chunk_length(self, path: str) -> int | None:
        """Return the one length that all chunks of an array have; None if there are several.

        It is a divisor of the first id and of the length of each run, so that no chunk is cut.
        """
        step, lengths = self._chunks or (0, ())
        by_path = {path: n for n, paths in lengths if paths is not None for path in paths}
        others = next((n for n, paths in lengths if paths is None), 0)
        length = by_path.get(path, others)
        return None if not length or step % length else length

    @cached_property
    def _chunks(self) -> tuple[int, ChunkLengths] | None:
        table, rows = self.state.entries.table, self._rows.table
        older = [] if table is None else [table.summary[4]]
        chunks = join_chunks([*older, describe_chunks(self.state.entries.tail)])
        if chunks is None:
            return None
        steps = [chunks[0], find_step(self._rows.tail)]
        return math.gcd(*steps, *([] if rows is None else [int(rows.summary[1])])), chunks[1]

    @cached_property
    def contents(self) -> Contents:
        """All rows and entries of the version."""
        contents: Contents = self._run(read_contents(self.state))
        return contents

    @property
    def may_have_layers(self) -> bool:
        """Whether rows may be stored in other chunks as well: their entries are never uniform."""
        return self._chunks is None

    def load(self) -> Stretches:
        """Return where all rows lie: all tables are read."""
        if self._all is None:
            runs = self.contents.runs.get(self.dimension, EMPTY)
            self._all = find_stretches(runs, self.contents.entries, self.dimension)
        return self._all

    def locate(self, positions: Int64) -> tuple[Int64, Int64]:
        """Return which entry has each of some rows, and which row of its segment it is.

        Raises
        ------
        MetadataError
            A row is in no segment.
        """
        ordered, back = np.unique(positions, return_inverse=True)
        with self._lock:
            ids = self._find_ids(ordered)
            number, row = self._find_entries(ids)
        return number[back], row[back]

    def _find_ids(self, positions: Int64) -> Int64:
        ids = np.empty(len(positions), np.int64)
        at = 0
        while at < len(positions):
            position = int(positions[at])
            start, runs = self._read_runs_at(position, positions[at:])
            stop = int(positions.searchsorted(start + len(runs)))
            inside = positions[at:stop] - start
            run = runs.starts.searchsorted(inside, side="right") - 1
            ids[at:stop] = runs.first[run] + inside - runs.starts[run]
            at = stop
        return ids

    def _read_runs_at(self, position: int, positions: Int64) -> tuple[int, Runs]:
        """Return runs that have a position, and where they begin."""
        begins = sorted(self._parts)
        at = bisect_right(begins, position) - 1
        if at >= 0 and position < begins[at] + len(self._parts[begins[at]]):
            return begins[at], self._parts[begins[at]]
        # Rows that lie close together are read at once, others leaf by leaf.
        last = min(int(positions[-1]), self._rows.table_rows - 1)
        is_dense = (last - position) // len(positions) < _SPARSE
        stop = last + 1 if is_dense else position + 1
        runs, start = self._run(
            RUNS.scan(self._rows.table, at_rows(position, stop), memo=self._memo)
        )
        if not start <= position < start + len(runs):
            raise MetadataError(f"the table of rows of {self.dimension!r} is damaged")
        self._parts[start] = runs
        return start, runs

    def _find_entries(self, ids: Int64) -> tuple[Int64, Int64]:
        number, row = self._search(ids)
        if len(missing := np.unique(ids[number < 0])):
            choice = at_any_id(self.dimension, missing)
            self._add(self._run(ENTRIES.scan(self.state.entries.table, choice, memo=self._memo))[0])
            number, row = self._search(ids)
        if (number < 0).any():
            raise MetadataError(f"row {ids[number < 0][0]} of {self.dimension!r} is in no segment")
        return number, row

    def _search(self, ids: Int64) -> tuple[Int64, Int64]:
        first, stop, numbers = self._index
        at = first.searchsorted(ids, side="right") - 1
        is_there = (at >= 0) & (ids < stop[at]) if len(first) else np.zeros(len(ids), bool)
        number = np.where(is_there, numbers[at], -1) if len(first) else np.full(len(ids), -1)
        return number, ids - first[at] if len(first) else ids

    def _add(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if self.dimension in entry.rows and entry.key not in self._numbers:
                self._numbers[entry.key] = len(self.entries)
                self.entries.append(entry)
        self._index = _index(self.entries, self.dimension)


_SPARSE = 1 << 12
"""Rows between two that are asked for, from which on those between are not read, too."""


def _index(entries: Sequence[Entry], dimension: str) -> tuple[Int64, Int64, Int64]:
    """Return first ids, those after the last, and numbers of entries, by increasing ids."""
    table = np.array([entry.rows[dimension] for entry in entries], np.int64).reshape(-1, 2)
    order = np.argsort(table[:, 0], kind="stable")
    first = table[order, 0]
    return first, first + table[order, 1], order
