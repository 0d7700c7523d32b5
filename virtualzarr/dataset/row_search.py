"""Search of rows by their ids: where they are now, if they are there.

Tables are in the order of positions, which says nothing of ids. But an entry has the coordinates
of its rows, dropped ones as well, and by these they are found as new rows are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from virtualzarr.dataset.entry import Entry
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.placing import Coordinates, bisect
from virtualzarr.dataset.row_tables import (
    RowLookup,
    has_rows,
    read_overlapping,
    read_runs,
    read_runs_between,
)
from virtualzarr.dataset.runs import Runs
from virtualzarr.dataset.snapshot import Snapshot
from virtualzarr.dataset.tables import Memo

Pairs = Iterable[tuple[int, int]]
"""Ids, as the first one and the count of those that follow each other."""

_MOST_SEARCHES = 16
"""Entries whose rows are looked for one by one: for more, all runs are read."""


def find_ids(
    state: Snapshot, dimension: str, pairs: Pairs, coordinates: Coordinates | None = None
) -> Protocol[list[tuple[int, Runs]]]:
    """Read stretches of a version that have all rows of some ids which are there.

    Parameters
    ----------
    state : Snapshot
    dimension : str
    pairs : iterable of (int, int)
    coordinates : callable, optional
        Reads the coordinates of stored rows; without it, all runs are read.

    Returns
    -------
    list of (int, Runs)
        The position of the first row of each stretch, and its rows. Two may overlap.
    """
    rows = state.rows_of(dimension)
    ids = merge_pairs(pairs)
    if not len(ids):
        return []
    if rows.table is None:
        return [(0, rows.tail)]
    # The tail is at hand: what it has need not be looked for.
    counts = rows.tail.count_ids(ids.first, ids.first + ids.count)
    ids = Runs(ids.first[counts < ids.count], ids.count[counts < ids.count])
    entries = yield from read_overlapping(state, dimension, ids)
    if coordinates is None or len(entries) > _MOST_SEARCHES or not _have_bounds(entries, dimension):
        return [(0, (yield from read_runs(state, dimension)))]
    memo: Memo = {}
    lookup = RowLookup(state, dimension, memo)
    stretches = [(rows.table_rows, rows.tail)]
    for entry in entries:
        first, _ = entry.rows[dimension]
        # All between the least and the greatest coordinate: rows of others may lie there, too.
        inside = ids.intersect(*entry.rows[dimension])
        values, end = (yield from coordinates(entry)), len(rows)
        low, high = int(inside.first.min()), int((inside.first + inside.count).max())
        least, greatest = values.find_bounds(low - first, high - first)
        start = yield from bisect(lookup, end, coordinates, least, "left")
        stop = yield from bisect(lookup, end, coordinates, greatest, "right")
        if start < min(stop, rows.table_rows):
            stretches.append((yield from read_runs_between(state, dimension, start, stop, memo)))
    return stretches


_MOST_BETWEEN = 1 << 12
"""Rows from the least to the greatest coordinate of an entry that are looked through."""


def find_live(
    state: Snapshot,
    dimension: str,
    entries: Sequence[Entry],
    coordinates: Coordinates | None = None,
    others: Sequence[Entry] | None = None,
) -> Protocol[list[bool | None]]:
    """Tell of entries whether any of their rows is there; None where that takes reading much.

    Parameters
    ----------
    state : Snapshot
    dimension : str
    entries : sequence of Entry
        That extend the dimension.
    coordinates : callable, optional
        Reads the coordinates of stored rows; without it, all runs are read.
    others : sequence of Entry, optional
        Rows are looked for only where newer ones of these have such coordinates, too, as those
        have that came in their place.
    """
    rows = state.rows_of(dimension)
    if not entries or len(rows) == state.next_ids.get(dimension, 0):
        return [True] * len(entries)  # no row has ever gone
    if coordinates is None or rows.table is None or not rows.table.height:
        runs = yield from read_runs(state, dimension)
        return [has_rows(entry, dimension, runs) for entry in entries]
    memo: Memo = {}
    lookup = RowLookup(state, dimension, memo)
    result: list[bool | None] = []
    for entry in entries:
        is_live: bool | None = has_rows(entry, dimension, rows.tail) or None
        if not is_live and (others is None or _has_newer(entry, others, dimension)):
            is_live = yield from _is_live(state, entry, coordinates, lookup, memo)
        result.append(is_live)
    return result


def _has_newer(entry: Entry, others: Iterable[Entry], dimension: str) -> bool:
    if dimension not in entry.bounds:
        return False
    low, high = entry.bounds[dimension]
    bounds = (each.bounds.get(dimension) for each in others if each.sequence > entry.sequence)
    return any(pair is not None and pair[0] <= high and pair[1] >= low for pair in bounds)


def _is_live(
    state: Snapshot, entry: Entry, coordinates: Coordinates, lookup: RowLookup, memo: Memo
) -> Protocol[bool | None]:
    """Look for any row of an entry where its coordinates belong."""
    dimension = lookup.dimension
    if dimension not in entry.bounds:
        return None
    (least, greatest), end = entry.bounds[dimension], len(state.rows_of(dimension))
    start = yield from bisect(lookup, end, coordinates, least, "left")
    # Mostly its first row is there: of nothing else the coordinate need be looked for.
    if start < end and (yield from lookup.find(start)).entry.key == entry.key:
        return True
    stop = yield from bisect(lookup, end, coordinates, greatest, "right")
    if stop - start > _MOST_BETWEEN:
        return None
    if start == stop:
        return False
    _, runs = yield from read_runs_between(state, dimension, start, stop, memo)
    return has_rows(entry, dimension, runs)


def _have_bounds(entries: Iterable[Entry], dimension: str) -> bool:
    return all(dimension in entry.bounds for entry in entries)


def merge_pairs(pairs: Pairs) -> Runs:
    """Return ids by increasing value, each once.

    Examples
    --------
    >>> merge_pairs([(8, 2), (0, 4), (2, 3)])
    <Runs: 7 rows: 0-4, 8-9>
    """
    table = np.array([*pairs], np.int64).reshape(-1, 2)
    table = table[np.argsort(table[:, 0], kind="stable")]
    first, stop = table[:, 0], np.maximum.accumulate(table.sum(axis=1))
    at = np.flatnonzero(np.concatenate([[True], first[1:] > stop[:-1]])[: len(first)])
    ends = stop[np.append(at[1:], len(first)) - 1] if len(at) else stop
    return Runs(first[at], ends - first[at])


def locate(stretches: Iterable[tuple[int, Runs]], pairs: Pairs) -> list[tuple[int, int]]:
    """Return the positions of ids as ranges, in order, from what `find_ids` returns."""
    pairs = [*pairs]
    parts = [
        runs.locate_ids(first, count) + begin for begin, runs in stretches for first, count in pairs
    ]
    start, stop = np.concatenate([np.empty((2, 0), np.int64), *parts], axis=1)
    merged = merge_pairs(zip(start.tolist(), (stop - start).tolist(), strict=True))
    return [(first, first + count) for first, count in merged.pairs]
