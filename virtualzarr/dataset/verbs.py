"""Changes of a dataset: rows that are appended, inserted, replaced and dropped; tags; rollbacks.

Each is a function from a head to a record, which `commit` asks again when another writer was
quicker. What a change puts in the store it puts once, and anew only after a vacuum's fence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.dataset import objects
from virtualzarr.dataset.commit import Change, record
from virtualzarr.dataset.head import Head, read_version
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.runs import EMPTY, Runs
from virtualzarr.dataset.snapshot import Entry, Named, Record, Snapshot, Splice
from virtualzarr.errors import MismatchError

Coordinates = Callable[[Entry], Protocol[NDArray[Any]]]
"""Reads the coordinates of the rows of an entry's segment, all that it was stored with."""


class Stored:
    """An object that a change names: put once for each epoch in which the change is tried.

    Parameters
    ----------
    kind : str
        The folder that it lies in.
    data : bytes
    digest : str, optional
        What it is checked by when it is read; of all bytes by default.
    """

    def __init__(self, kind: str, data: bytes, digest: str | None = None) -> None:
        self.kind, self.data, self.digest = kind, data, digest
        self._named: dict[int, Named] = {}

    def put(self, epoch: int) -> Protocol[Named]:
        """Return the object's name, stored under this epoch."""
        if epoch not in self._named:
            named = yield from objects.put(self.kind, epoch, self.data)
            self._named[epoch] = replace(named, digest=self.digest) if self.digest else named
        return self._named[epoch]


@dataclass(frozen=True, slots=True)
class Rows:
    """New rows along one growing dimension, ready to be stored.

    Attributes
    ----------
    dimension : str
    segment : Stored
    count : int
    coordinates : array, shape (count,), optional
        Increasing, without duplicates; None where the rows just follow those that are there.
    chunks : sequence
        How they are chunked, see `Entry`.
    """

    dimension: str
    segment: Stored
    count: int
    coordinates: NDArray[Any] | None
    chunks: tuple[Any, ...] = ()


def add_rows(
    rows: Rows, coordinates: Coordinates, about: Mapping[str, Any], *, replaced: bool = False
) -> Change:
    """Rows come where their coordinates belong: at the end, or between others.

    Parameters
    ----------
    rows : Rows
    coordinates : callable
        Reads the coordinates of what is stored.
    about : mapping
        For the history.
    replaced : bool
        Whether rows of the same coordinates, and all between them, go.

    Raises
    ------
    MismatchError
        By the change: a coordinate is there already, or rows are to be replaced and are not there,
        or the new rows belong in several places.
    """

    def change(head: Head) -> Protocol[Record]:
        state, dimension = head.snapshot, rows.dimension
        start, stop = yield from _place_of(rows, state, coordinates, replaced)
        named = yield from rows.segment.put(state.epoch)
        first, count = state.next_ids.get(dimension, 0), rows.count
        bounds = {}
        if rows.coordinates is not None:
            bounds = {dimension: (_plain(rows.coordinates[0]), _plain(rows.coordinates[-1]))}
        entry = Entry(named, state.sequence, {dimension: (first, count)}, bounds, rows.chunks)
        splice = Splice(start, stop - start, ((first, count),))
        new_record = yield from record(head, dict(about))
        return replace(
            new_record,
            splices={dimension: (splice,)},
            added=(entry,),
            removed=find_unused(state, dimension, splice),
        )

    return change


def _place_of(
    rows: Rows, state: Snapshot, coordinates: Coordinates, replaced: bool
) -> Protocol[tuple[int, int]]:
    """Return the positions of the rows that go, and where the new ones come."""
    dimension = rows.dimension
    if rows.coordinates is None:
        if replaced:
            raise MismatchError(f"{dimension!r} has no coordinate that rows are found by")
        end = len(state.runs.get(dimension, EMPTY))
        return end, end
    low, high = rows.coordinates[0], rows.coordinates[-1]
    start, stop = yield from locate(state, dimension, coordinates, low, high)
    if start != stop and not replaced:
        raise MismatchError(f"there are rows from {low} to {high} along {dimension!r} already")
    if start == stop and replaced:
        raise MismatchError(f"there are no rows from {low} to {high} along {dimension!r}")
    return start, stop


def drop_rows(
    dimension: str, low: Any, high: Any, coordinates: Coordinates, about: Mapping[str, Any]
) -> Change:
    """Rows with coordinates from `low` to `high` go, no matter how they are chunked."""

    def change(head: Head) -> Protocol[Record]:
        state = head.snapshot
        start, stop = yield from locate(state, dimension, coordinates, low, high)
        if start == stop:
            raise MismatchError(f"there are no rows from {low} to {high} along {dimension!r}")
        splice = Splice(start, stop - start, ())
        new_record = yield from record(head, dict(about))
        gone = find_unused(state, dimension, splice)
        return replace(new_record, splices={dimension: (splice,)}, removed=gone)

    return change


def set_tag(name: str, version: int | None, about: Mapping[str, Any]) -> Change:
    """A tag holds a version, as long as it is set; None takes it away."""

    def change(head: Head) -> Protocol[Record]:
        if version is not None:
            yield from read_version(head, version)  # it must not have expired
        new_record = yield from record(head, dict(about))
        return replace(new_record, tags={name: version})

    return change


def roll_back(version: int, about: Mapping[str, Any]) -> Change:
    """The dataset is again as it was at a version; nothing leaves the history."""

    def change(head: Head) -> Protocol[Record]:
        now, then = head.snapshot, (yield from read_version(head, version))
        splices = {
            dimension: (Splice(0, len(runs), _pairs(then.runs.get(dimension, EMPTY))),)
            for dimension, runs in now.runs.items()
        }
        new_record = yield from record(head, dict(about))
        return replace(
            new_record,
            splices=splices,
            added=tuple(e for name, e in then.entries.items() if name not in now.entries),
            removed=tuple(name for name in now.entries if name not in then.entries),
            schema=then.schema,
        )

    return change


def _pairs(runs: Runs) -> tuple[tuple[int, int], ...]:
    return tuple((first, count) for first, count in runs.pairs)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def find_unused(state: Snapshot, dimension: str, splice: Splice) -> tuple[str, ...]:
    """Return the segments that no row is in any more after a splice."""
    if not splice.removed:
        return ()
    left = splice.apply(state.runs[dimension])
    cut = state.runs[dimension].slice(splice.position, splice.position + splice.removed)
    names = []
    for entry in entries_of(state, dimension, cut):
        first, count = entry.rows[dimension]
        if not overlaps(left, first, first + count):
            names.append(entry.segment.name)
    return tuple(names)


def entries_of(state: Snapshot, dimension: str, runs: Runs) -> list[Entry]:
    """Return the entries that have any of some rows, the oldest first."""
    return [
        entry
        for entry in state.entries.values()
        if dimension in entry.rows
        and overlaps(runs, entry.rows[dimension][0], sum(entry.rows[dimension]))
    ]


def overlaps(runs: Runs, low: int, high: int) -> bool:
    """Tell whether runs have an id from `low` to before `high`."""
    return bool(((runs.first < high) & (runs.first + runs.count > low)).any())


def locate(
    state: Snapshot, dimension: str, coordinates: Coordinates, low: Any, high: Any
) -> Protocol[tuple[int, int]]:
    """Return the positions at which rows with coordinates from `low` to `high` start and stop.

    Where there are none, both are the position at which they would be inserted.
    """
    runs = state.runs.get(dimension, EMPTY)
    start = yield from _bisect(state, dimension, runs, coordinates, low, "left")
    stop = yield from _bisect(state, dimension, runs, coordinates, high, "right")
    return start, stop


def _bisect(
    state: Snapshot, dimension: str, runs: Runs, coordinates: Coordinates, value: Any, side: str
) -> Protocol[int]:
    """Return the position before which (left) or after which (right) a coordinate belongs."""
    low, high = 0, len(runs)
    while low < high:
        # Rows of one segment that follow each other are looked at together: one read for each.
        middle = (low + high) // 2
        start, stop, entry, offset = _piece(state, dimension, runs, middle, low, high)
        values = (yield from coordinates(entry))[offset : offset + stop - start]
        at = int(np.searchsorted(values, value, side))  # type: ignore[call-overload]
        if 0 < at < len(values):
            return start + at
        low, high = (stop, high) if at else (low, start)
    return low


def _piece(
    state: Snapshot, dimension: str, runs: Runs, position: int, low: int, high: int
) -> tuple[int, int, Entry, int]:
    """Return the rows around a position that are consecutive in one segment, and where in it."""
    run = int(np.searchsorted(runs.starts, position, "right")) - 1
    first = int(runs.first[run]) + position - int(runs.starts[run])
    entry = next(
        entry
        for entry in reversed(tuple(state.entries.values()))
        if dimension in entry.rows
        and entry.rows[dimension][0] <= first < sum(entry.rows[dimension])
    )
    begin, count = entry.rows[dimension]
    shift = first - position  # ids minus positions within this run
    start = max(begin - shift, int(runs.starts[run]), low)
    stop = min(begin + count - shift, int(runs.starts[run + 1]), high)
    return start, stop, entry, start + shift - begin
