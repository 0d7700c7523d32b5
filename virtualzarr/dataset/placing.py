"""Placing of rows: where new coordinates belong among those that are stored.

Source: ``specs/dataset.md``, *Rows and runs*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.choices import Overlap
from virtualzarr.dataset.coordinates import SegmentCoordinates
from virtualzarr.dataset.entry import Entry
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.row_tables import RowLookup, read_overlapping, read_runs_between
from virtualzarr.dataset.runs import Runs, Splice
from virtualzarr.dataset.snapshot import Snapshot
from virtualzarr.errors import MetadataError, MismatchError

Coordinates = Callable[[Entry], Protocol[SegmentCoordinates]]
"""Opens the coordinates of the rows of an entry's segment, all that it was stored with."""

Bools = NDArray[np.bool_]

_AT_ONCE = 1 << 20
"""Rows that are looked up at a time."""

_STEP = 16
"""Rows of the first step back from the end, and how much longer each one after it is."""


def merge_rows(
    dimension: str,
    new: NDArray[Any],
    stored: NDArray[Any],
    start: int,
    first: int,
    *,
    overlap: Overlap = "raise",
    keep: Bools | None = None,
    unfilled: Bools | None = None,
) -> tuple[Splice, ...]:
    """Return the splices by which new rows come between stored ones, the last place first.

    Parameters
    ----------
    dimension : str
        For messages.
    new : array, shape (rows,)
        Their coordinates, which increase.
    stored : array
        Coordinates that are stored from position `start` on, as far as they matter.
    first : int
        The id of the first new row.
    overlap : {"raise", "first", "last"}
        What is done about new rows whose coordinates are stored: an error; the stored ones stay;
        the new ones come in their place.
    keep : array of bool, optional
        Which new rows are wanted at all.
    unfilled : array of bool, optional
        Which stored rows have no references: new ones come in their place, whatever `overlap` is.

    Raises
    ------
    MismatchError
        A coordinate is stored already.

    Examples
    --------
    >>> for splice in merge_rows("time", np.array([1, 3, 4]), np.array([2, 5]), 10, 0):
    ...     print(splice)
    Splice(position=11, removed=0, added=((1, 2),))
    Splice(position=10, removed=0, added=((0, 1),))
    """
    at = np.searchsorted(stored, new)
    is_stored = np.zeros(len(new), bool)
    inside = at < len(stored)
    is_stored[inside] = stored[at[inside]] == new[inside]
    is_added = np.ones(len(new), bool) if keep is None else keep.copy()
    replaces = is_stored & (overlap == "last")
    if unfilled is not None:
        replaces[is_stored] |= unfilled[at[is_stored]]
    conflicts = new[is_added & is_stored & ~replaces]
    if len(conflicts) and overlap == "raise":
        raise MismatchError(
            f"there are rows from {conflicts[0]} to {conflicts[-1]} along {dimension!r} already; "
            "replace() them, or say which are to stay (overlap)"
        )
    is_added &= replaces | ~is_stored
    return _as_splices(np.flatnonzero(is_added), at + start, replaces, first)


def _as_splices(
    rows: NDArray[np.int64], at: NDArray[Any], replaces: Bools, first: int
) -> tuple[Splice, ...]:
    """Return splices for rows with their positions; neighbours that go to one place are one."""
    if not len(rows):
        return ()
    step = np.diff(at[rows]) == replaces[rows][1:]
    joined = (np.diff(rows) == 1) & step & (np.diff(replaces[rows].astype(np.int8)) == 0)
    begins = np.concatenate([[0], np.flatnonzero(~joined) + 1])
    ends = np.append(begins[1:], len(rows))
    splices = [
        Splice(
            int(at[rows[begin]]),
            int(end - begin) if replaces[rows[begin]] else 0,
            ((first + int(rows[begin]), int(end - begin)),),
        )
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    ]
    # From the end: what comes before a position does not move it.
    return tuple(reversed(splices))


def read_stored(
    state: Snapshot, dimension: str, coordinates: Coordinates, start: int, stop: int
) -> Protocol[NDArray[Any]]:
    """Read the coordinates of the rows at some positions.

    Raises
    ------
    MetadataError
        A row is in no segment.
    """
    if start >= stop:
        return np.empty(0)
    begin, runs = yield from read_runs_between(state, dimension, start, stop)
    runs = runs.slice(start - begin, stop - begin)
    entries = yield from read_overlapping(state, dimension, runs)
    entries.sort(key=lambda entry: entry.rows[dimension])
    values, bounds = [], []
    for entry in entries:
        first, content = yield from _read_touched(entry, dimension, runs, coordinates)
        if len(entries) == len(runs.first) == 1 and len(content) == len(runs):
            return content
        values.append(content)
        bounds.append((first, len(content)))
    table = np.array(bounds, np.int64).reshape(-1, 2)
    parts = []
    for low in range(0, len(runs), _AT_ONCE):
        ids = runs.ids(low, low + _AT_ONCE)
        number = table[:, 0].searchsorted(ids, "right") - 1
        if (number < 0).any() or (ids >= table.sum(axis=1)[number]).any():
            raise MetadataError(f"a row of {dimension!r} is in no segment")
        parts.append(_take(values, number, ids - table[number, 0]))
    return np.concatenate(parts)


def _read_touched(
    entry: Entry, dimension: str, runs: Runs, coordinates: Coordinates
) -> Protocol[tuple[int, NDArray[Any]]]:
    """Read the coordinates of an entry from the first to the last of some rows; return its id."""
    first, count = entry.rows[dimension]
    inside = runs.intersect(first, count)
    low, high = int(inside.first.min()), int((inside.first + inside.count).max())
    return low, (yield from coordinates(entry)).read(low - first, high - first)


def _take(
    columns: Sequence[NDArray[Any]], number: NDArray[np.int64], row: NDArray[np.int64]
) -> NDArray[Any]:
    """Return rows of several columns, each of which has a number."""
    order = np.argsort(number, kind="stable")
    used, first = np.unique(number[order], return_index=True)
    groups = np.split(order, first[1:])
    taken = [columns[k][row[group]] for k, group in zip(used.tolist(), groups, strict=True)]
    values = np.concatenate(taken)
    result = np.empty_like(values)
    result[order] = values
    return result


def locate(
    state: Snapshot, dimension: str, coordinates: Coordinates, low: Any, high: Any
) -> Protocol[tuple[int, int]]:
    """Return the positions at which rows with coordinates from `low` to `high` start and stop.

    Where there are none, both are the position at which they would be inserted.
    """
    lookup = RowLookup(state, dimension)
    end = len(state.rows_of(dimension))
    start = yield from bisect(lookup, end, coordinates, low, "left")
    stop = yield from bisect(lookup, end, coordinates, high, "right")
    return start, stop


def bisect(
    lookup: RowLookup, end: int, coordinates: Coordinates, value: Any, side: str
) -> Protocol[int]:
    """Return the position before which (left) or after which (right) a coordinate belongs."""
    low, high, step = 0, end, _STEP
    # Most rows come at the end or not long before, which the head knows of: steps back from there
    # become longer and longer until one is too long, and then intervals are halved.
    middle = end - 1
    while low < high:
        # Rows of one segment that follow each other are looked at together: one read for each.
        piece = yield from lookup.find(middle)
        start, stop = max(piece.start, low), min(piece.stop, high)
        offset = piece.offset + start - piece.start
        least, greatest = piece.entry.bounds.get(lookup.dimension, (value, value))
        if value < least or value > greatest:
            # The entry says enough: nothing is read to append at the end.
            low, high = (low, start) if value < least else (stop, high)
            middle, step = _choose_middle(low, high, step)
            continue
        values = yield from coordinates(piece.entry)
        at = values.search(value, side, offset, offset + stop - start)
        if 0 < at < stop - start:
            return start + at
        low, high = (stop, high) if at else (low, start)
        middle, step = _choose_middle(low, high, step)
    return low


def _choose_middle(low: int, high: int, step: int) -> tuple[int, int]:
    """Return the position to look at next, and the step back after it."""
    middle = (low + high) // 2
    return (middle, step) if low else (max(middle, high - step), step * _STEP)
