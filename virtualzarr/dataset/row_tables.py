"""Tables of runs and of entries: what snapshots have too many of, changed and looked into.

Source: ``specs/dataset.md``, *Tables*.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from virtualzarr.dataset import objects
from virtualzarr.dataset.chunk_lengths import describe_chunks, find_step, join_chunks
from virtualzarr.dataset.entry import Entry
from virtualzarr.dataset.limits import Limits
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.runs import EMPTY, Runs, Splice, concat, is_descending, splice_runs
from virtualzarr.dataset.snapshot import Entries, Snapshot, StoredRows
from virtualzarr.dataset.tables import (
    Choice,
    Memo,
    Pack,
    Summaries,
    Table,
    choose_all,
    choose_last,
)
from virtualzarr.errors import MetadataError

_INT64 = np.dtype("<i8")

_MOST_EDITS = 8
"""Changes of a table that are made one by one, each of which writes a leaf and the nodes above."""


def encode_columns(columns: Sequence[Any]) -> bytes:
    """Return columns of equal length as compressed little-endian numbers."""
    data = b"".join(np.ascontiguousarray(column).tobytes() for column in columns)
    return zstandard.compress(data, 3)


def decode_columns(data: bytes, dtypes: Sequence[np.dtype[Any]]) -> list[Any]:
    """Return the columns that `encode_columns` was given.

    Raises
    ------
    MetadataError
        If they are not whole.
    """
    return split_columns(objects.decompress(data), dtypes)


def split_columns(raw: bytes, dtypes: Sequence[np.dtype[Any]]) -> list[Any]:
    """Return the columns of bytes, one after the other.

    Raises
    ------
    MetadataError
        If they are not whole.
    """
    count, remainder = divmod(len(raw), sum(dtype.itemsize for dtype in dtypes))
    if remainder:
        raise MetadataError("a table of a dataset is damaged")
    columns, offset = [], 0
    for dtype in dtypes:
        columns.append(np.frombuffer(raw, dtype, count, offset))
        offset += count * dtype.itemsize
    return columns


class RunTable(Table[Runs]):
    """Runs of row ids; the summary has how many rows there are, and their step, see `find_step`."""

    def encode(self, items: Runs) -> bytes:
        """Return a leaf."""
        return encode_columns([items.first.astype(_INT64), items.count.astype(_INT64)])

    def decode(self, data: bytes) -> Runs:
        """Return the items of a leaf."""
        return Runs(*decode_columns(data, [_INT64, _INT64]))

    def join(self, parts: Sequence[Runs]) -> Runs:
        """Return items of several leaves, one after the other."""
        return concat(*parts) if parts else EMPTY

    def count(self, items: Runs) -> int:
        """Return how many items there are."""
        return len(items.first)

    def part(self, items: Runs, start: int, stop: int) -> Runs:
        """Return some of the items."""
        return Runs(items.first[start:stop], items.count[start:stop])

    def summarize(self, items: Runs) -> tuple[Any, ...]:
        """Return the summary of a leaf."""
        return len(items), find_step(items)

    def combine(self, summaries: Summaries) -> tuple[Any, ...]:
        """Return the summary of a node with such children."""
        rows, steps = zip(*summaries, strict=True)
        return sum(rows), math.gcd(*steps)


class EntryTable(Table[list[Entry]]):
    """Entries; the summary has their sequences and ids, from the least to the greatest, how many
    have no rows of any growing dimension, and how the others are chunked, see `describe_chunks`.
    """

    def encode(self, items: list[Entry]) -> bytes:
        """Return a leaf."""
        return objects.encode([entry.to_json() for entry in items])

    def decode(self, data: bytes) -> list[Entry]:
        """Return the items of a leaf."""
        return [Entry.from_json(item) for item in objects.decode(data)]

    def join(self, parts: Sequence[list[Entry]]) -> list[Entry]:
        """Return items of several leaves, one after the other."""
        return [entry for part in parts for entry in part]

    def summarize(self, items: list[Entry]) -> tuple[Any, ...]:
        """Return the summary of a leaf."""
        ids: dict[str, list[int]] = {}
        for entry in items:
            for name, (first, count) in entry.rows.items():
                _widen(ids, name, first, first + count)
            if entry.layer is not None:
                for first, count in entry.layer.ids:
                    _widen(ids, entry.layer.dimension, first, first + count)
        static = sum(entry.is_static for entry in items)
        return items[0].sequence, items[-1].sequence, ids, static, describe_chunks(items)

    def combine(self, summaries: Summaries) -> tuple[Any, ...]:
        """Return the summary of a node with such children."""
        ids: dict[str, list[int]] = {}
        for summary in summaries:
            for name, (low, high) in summary[2].items():
                _widen(ids, name, low, high)
        static = sum(summary[3] for summary in summaries)
        chunks = join_chunks(summary[4] for summary in summaries)
        return summaries[0][0], summaries[-1][1], ids, static, chunks


def _widen(ids: dict[str, list[int]], name: str, low: int, high: int) -> None:
    old = ids.get(name, [low, high])
    ids[name] = [min(old[0], low), max(old[1], high)]


def run_table(limits: Limits) -> RunTable:
    """Return how runs are stored."""
    return RunTable(limits.leaf_runs, limits.fan_out)


def entry_table(limits: Limits) -> EntryTable:
    """Return how entries are stored."""
    return EntryTable(limits.leaf_entries, limits.fan_out)


RUNS, ENTRIES = run_table(Limits()), entry_table(Limits())
"""For reading, which depends on no limits."""


def at_rows(low: int, high: int) -> Choice:
    """Choose children with rows from `low` to `high`, or that touch those."""

    def choose(summaries: Summaries, start: int) -> tuple[Sequence[int], int]:
        stops = start + np.cumsum([summary[0] for summary in summaries])
        first = min(int(np.searchsorted(stops, low)), len(summaries) - 1)
        last = min(int(np.searchsorted(stops, high)), len(summaries) - 1)
        begin = start if first == 0 else int(stops[first - 1])
        return range(first, last + 1), begin

    return choose


def at_sequences(low: int, high: int) -> Choice:
    """Choose children whose sequences may be from `low` to `high`; one at least."""

    def choose(summaries: Summaries, start: int) -> tuple[Sequence[int], int]:
        chosen = [k for k, s in enumerate(summaries) if s[0] <= high and s[1] >= low]
        if not chosen:
            chosen = [max((k for k, s in enumerate(summaries) if s[0] <= low), default=0)]
        return range(chosen[0], chosen[-1] + 1), start

    return choose


def at_ids(dimension: str, low: int, high: int) -> Choice:
    """Choose children that may have ids from `low` to before `high`."""

    def choose(summaries: Summaries, start: int) -> tuple[Sequence[int], int]:
        ids = [summary[2].get(dimension, (0, 0)) for summary in summaries]
        return [k for k, (least, most) in enumerate(ids) if least < high and most > low], start

    return choose


def at_runs(dimension: str, runs: Runs) -> Choice:
    """Choose children that may have any of some rows."""
    first, stop = np.sort(runs.first), np.sort(runs.first + runs.count)

    def choose(summaries: Summaries, start: int) -> tuple[Sequence[int], int]:
        bounds = np.array([s[2].get(dimension, (0, 0)) for s in summaries], np.int64).reshape(-1, 2)
        # Runs that begin before its last id, but for those that stop before its first one.
        begun, stopped = first.searchsorted(bounds[:, 1]), stop.searchsorted(bounds[:, 0], "right")
        return np.flatnonzero(begun > stopped).tolist(), start

    return choose


def at_any_id(dimension: str, ids: NDArray[np.int64]) -> Choice:
    """Choose children that may have any of some ids, which increase."""

    def choose(summaries: Summaries, start: int) -> tuple[Sequence[int], int]:
        bounds = np.array([s[2].get(dimension, (0, 0)) for s in summaries], np.int64).reshape(-1, 2)
        low, high = ids.searchsorted(bounds[:, 0]), ids.searchsorted(bounds[:, 1])
        return np.flatnonzero(low < high).tolist(), start

    return choose


def at_static(summaries: Summaries, start: int) -> tuple[Sequence[int], int]:
    """Choose children with entries of arrays that do not grow."""
    return [k for k, summary in enumerate(summaries) if summary[3]], start


# Changes.


def splice_rows(
    rows: StoredRows, splices: Iterable[Splice], pack: Pack, limits: Limits
) -> Protocol[tuple[StoredRows, bool]]:
    """Return the rows after changes, and whether their table is another."""
    table = run_table(limits)
    root = rows.table
    for group in _group_splices(tuple(splices), rows.table_rows):
        border = rows.table_rows
        if group[-1].position >= border:
            rows = rows.apply(group)
            continue
        low, end = group[-1].position, group[0].position + group[0].removed
        high = min(end, border)
        within = [replace(group[0], removed=high - group[0].position), *group[1:]]

        def change(runs: Runs, start: int, within: Sequence[Splice] = within) -> Runs:
            moved = [replace(splice, position=splice.position - start) for splice in within]
            return splice_runs(runs, moved)

        node = yield from table.edit(rows.table, at_rows(low, high), change, pack)
        rows = replace(rows, table=node, tail=rows.tail.slice(end - high, len(rows.tail)))
    if len(rows.tail.first) > limits.runs:
        half = len(rows.tail.first) - limits.runs // 2
        cut = int(rows.tail.starts[half])
        older, tail = rows.tail.slice(0, cut), rows.tail.slice(cut, len(rows.tail))
        node = yield from table.edit(
            rows.table, choose_last, lambda runs, start: concat(runs, older), pack
        )
        rows = replace(rows, table=node, tail=tail)
    return rows, rows.table is not root


def _group_splices(splices: Sequence[Splice], border: int) -> list[Sequence[Splice]]:
    """Return changes that are made at once: of a table with many, all leaves between are read."""
    if not is_descending(splices):
        return [[splice] for splice in splices]
    inside = [splice for splice in splices if splice.position < border]
    behind = splices[: len(splices) - len(inside)]
    single = [[splice] for splice in inside] if len(inside) <= _MOST_EDITS else [inside]
    return [*([behind] if behind else []), *single]


def change_entries(
    entries: Entries,
    added: Sequence[Entry],
    removed: Sequence[tuple[int, str]],
    pack: Pack,
    limits: Limits,
) -> Protocol[tuple[Entries, bool]]:
    """Return the entries after a change, and whether their table is another."""
    table, root = entry_table(limits), entries.table
    in_tail = {entry.key for entry in entries.tail}
    inner = {key for key in removed if key not in in_tail}
    older = [entry for entry in added if entry.sequence < entries.last_in_table]
    if inner or older:
        sequences = [key[0] for key in inner] + [entry.sequence for entry in older]

        def change(items: list[Entry], start: int) -> list[Entry]:
            left = [entry for entry in items if entry.key not in inner]
            if len(left) + len(inner) > len(items):
                raise MetadataError("there are no entries of some segments to remove")
            return sorted([*left, *older], key=lambda entry: entry.sequence)

        choice = at_sequences(min(sequences), max(sequences))
        node = yield from table.edit(entries.table, choice, change, pack)
        entries = replace(entries, table=node)
    newer = [entry for entry in added if entry not in older]
    entries = entries.apply(newer, [key for key in removed if key in in_tail])
    if len(entries.tail) > limits.entries:
        half = len(entries.tail) - limits.entries // 2
        first, tail = list(entries.tail[:half]), entries.tail[half:]
        node = yield from table.edit(
            entries.table, choose_last, lambda items, start: items + first, pack
        )
        entries = Entries(node, tail)
    return entries, entries.table is not root


# Reading.


@dataclass(frozen=True, slots=True)
class Contents:
    """All rows and entries of a version, in memory.

    Attributes
    ----------
    runs : mapping of str to Runs
    entries : sequence of Entry
        By increasing sequence.
    """

    runs: Mapping[str, Runs]
    entries: tuple[Entry, ...]


def read_contents(state: Snapshot) -> Protocol[Contents]:
    """Read all rows and entries of a version."""
    runs = {}
    for dimension in state.rows:
        runs[dimension] = yield from read_runs(state, dimension)
    return Contents(runs, tuple((yield from read_entries(state))))


def read_runs(state: Snapshot, dimension: str) -> Protocol[Runs]:
    """Read all rows along a dimension."""
    rows = state.rows_of(dimension)
    runs, _ = yield from RUNS.scan(rows.table, choose_all)
    return concat(runs, rows.tail)


def read_runs_between(
    state: Snapshot, dimension: str, start: int, stop: int, memo: Memo | None = None
) -> Protocol[tuple[int, Runs]]:
    """Read the rows at some positions and maybe more; return the position of the first one, too."""
    rows = state.rows_of(dimension)
    border = rows.table_rows
    if start >= border:
        return border, rows.tail
    runs, begin = yield from RUNS.scan(rows.table, at_rows(start, min(stop, border)), memo=memo)
    return begin, concat(runs, rows.tail) if stop > border else runs


def read_entries(state: Snapshot, choose: Choice = choose_all) -> Protocol[list[Entry]]:
    """Read all entries, or those of the table that are chosen, and all after it."""
    older, _ = yield from ENTRIES.scan(state.entries.table, choose)
    return [*older, *state.entries.tail]


def read_overlapping(state: Snapshot, dimension: str, runs: Runs) -> Protocol[list[Entry]]:
    """Read the entries that have any of some rows, the oldest first."""
    entries = [*state.entries.tail]
    # The tail has the rows that came last, which most searches are for.
    ids = (entry.rows.get(dimension, (0, 0)) for entry in entries)
    if sum(len(runs.intersect(*pair)) for pair in ids) < len(runs):
        entries = yield from read_entries(state, at_runs(dimension, runs))
    return [entry for entry in entries if has_rows(entry, dimension, runs)]


def has_rows(entry: Entry, dimension: str, runs: Runs) -> bool:
    """Tell whether an entry has any of some rows."""
    first, count = entry.rows.get(dimension, (0, 0))
    return bool(((runs.first < first + count) & (runs.first + runs.count > first)).any())


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that follow each other both in a version and in a segment.

    Attributes
    ----------
    entry : Entry
    start, stop : int
        Their positions in the version.
    offset : int
        Which row of the segment is the first.
    """

    entry: Entry
    start: int
    stop: int
    offset: int


class RowLookup:
    """Finds what is at a position, of one version; nodes of tables are read once.

    Parameters
    ----------
    state : Snapshot
    dimension : str
    memo : dict, optional
        Nodes that were read, shared with others.
    """

    def __init__(self, state: Snapshot, dimension: str, memo: Memo | None = None) -> None:
        self.dimension = dimension
        self._rows, self._entries = state.rows_of(dimension), state.entries
        # What was read: runs with the position of the first row, and entries by their first ids.
        self._parts: list[tuple[int, Runs]] = [(self._rows.table_rows, self._rows.tail)]
        self._seen: list[Entry] = []
        self._firsts: list[int] = []
        self._note(self._entries.tail)
        self._memo: Memo = {} if memo is None else memo

    def find(self, position: int) -> Protocol[Piece]:
        """Return the piece that has a position.

        Raises
        ------
        MetadataError
            The row is in no segment.
        """
        start, runs = yield from self._runs_at(position)
        run = int(np.searchsorted(runs.starts, position - start, "right")) - 1
        begin = start + int(runs.starts[run])
        row = int(runs.first[run]) + position - begin
        entry = yield from self._entry_at(row)
        first, count = entry.rows[self.dimension]
        shift = row - position  # ids minus positions within this run
        low = max(first - shift, begin)
        high = min(first + count - shift, begin + int(runs.count[run]))
        return Piece(entry, low, high, low + shift - first)

    def _runs_at(self, position: int) -> Protocol[tuple[int, Runs]]:
        for start, runs in self._parts:
            if start <= position < start + len(runs):
                return start, runs
        choice = at_rows(position, position + 1)
        runs, start = yield from RUNS.scan(self._rows.table, choice, memo=self._memo)
        self._parts.append((start, runs))
        return start, runs

    def _entry_at(self, row: int) -> Protocol[Entry]:
        entry = self._search(row)
        if entry is None:
            choice = at_ids(self.dimension, row, row + 1)
            older, _ = yield from ENTRIES.scan(self._entries.table, choice, memo=self._memo)
            self._note(older)
            entry = self._search(row)
        if entry is None:
            raise MetadataError(f"row {row} of {self.dimension!r} is in no segment")
        return entry

    def _note(self, entries: Iterable[Entry]) -> None:
        new = [entry for entry in entries if self.dimension in entry.rows]
        self._seen = sorted([*self._seen, *new], key=lambda entry: entry.rows[self.dimension])
        self._firsts = [entry.rows[self.dimension][0] for entry in self._seen]

    def _search(self, row: int) -> Entry | None:
        at = bisect_right(self._firsts, row) - 1
        if at < 0:
            return None
        first, count = self._seen[at].rows[self.dimension]
        return self._seen[at] if row < first + count else None
