"""Changes of a dataset: rows that come, go and are replaced; attributes; tags; rollbacks.

Each is a function from a head to a record, which `commit` asks again when another writer was
quicker. What a change puts in the store it puts once, and anew only after a vacuum's fence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.choices import Duplicates, Overlap
from virtualzarr.dataset import objects
from virtualzarr.dataset.commit import Change, record
from virtualzarr.dataset.entry import ChunkRuns, Entry
from virtualzarr.dataset.head import Head, read_version
from virtualzarr.dataset.named import Named
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.placing import Coordinates, locate, merge_rows, read_stored
from virtualzarr.dataset.runs import Splice
from virtualzarr.dataset.schema import Schema, merge_schemas, read_base_schema, read_schema
from virtualzarr.dataset.snapshot import (
    FileNames,
    Names,
    Parts,
    Record,
    Snapshot,
    StoredRows,
    as_names,
)
from virtualzarr.errors import BelowFloorError, MismatchError


class NothingToDoError(MismatchError):
    """A change would change nothing."""


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
    schema : Named, optional
        The schema in whose terms the references are; None if it does not matter.
    grids : mapping
        See `Entry`.
    files : array
        Names of source files, as `as_names` returns them, with rows that are counted from 0.
    cells : int
        See `Entry`.
    """

    dimension: str
    segment: Stored
    count: int
    coordinates: NDArray[Any] | None
    chunks: tuple[Any, ...] = ()
    schema: Named | None = None
    grids: Mapping[str, tuple[ChunkRuns, ...]] = field(default_factory=dict)
    files: Names = field(default_factory=as_names)
    cells: int = 0

    def entry(self, named: Named, sequence: int, first: int) -> Entry:
        """Return where the rows are, given the id of the first."""
        ids = {self.dimension: (first, self.count)}
        return Entry(named, sequence, ids, self.bounds(), self.chunks, self.grids, cells=self.cells)

    def named_files(self, first: int) -> dict[str, Names]:
        """Return the source files as records have them, given the id of the first row."""
        if not len(self.files):
            return {}
        files = self.files.copy()
        files["first"] += first
        return {self.dimension: files}

    def bounds(self) -> dict[str, tuple[Any, Any]]:
        """Return the first and last coordinate, as an entry has them."""
        if self.coordinates is None:
            return {}
        return {self.dimension: (plain(self.coordinates[0]), plain(self.coordinates[-1]))}


Unfilled = Callable[[Snapshot, int, int], Protocol[NDArray[np.bool_]]]
"""Tells which of the rows from one position to another have no references."""


def add_rows(
    rows: Rows,
    coordinates: Coordinates,
    about: Mapping[str, Any],
    *,
    replaced: bool = False,
    overlap: Overlap = "raise",
    old_rows: Duplicates = "raise",
    unfilled: Unfilled | None = None,
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
    overlap : {"raise", "first", "last"}
        What is done about single coordinates that are there already.
    old_rows : {"raise", "skip"}
        What is done about rows below the floor.
    unfilled : callable, optional
        Which rows may be replaced in any case, as they stand for a gap.

    Raises
    ------
    MismatchError
        By the change: a coordinate is there already, or rows are to be replaced and are not there.
    BelowFloorError, NothingToDoError, SchemaChangedError
    """

    def change(head: Head) -> Protocol[Record]:
        state, dimension = head.snapshot, rows.dimension
        yield from _check_schema(rows, state)
        first = state.next_ids.get(dimension, 0)
        keep = _above_floor(rows, state, old_rows)
        if replaced:
            splices = yield from _replace(rows, state, coordinates, first, keep)
        else:
            splices = yield from _insert(rows, state, coordinates, first, overlap, keep, unfilled)
        if not splices:
            raise NothingToDoError("all rows are there already, or too old")
        return (yield from _add(head, rows, first, splices, about))

    return change


def _add(
    head: Head, rows: Rows, first: int, splices: tuple[Splice, ...], about: Mapping[str, Any]
) -> Protocol[Record]:
    """Store rows, and return the record by which they come where splices say."""
    state = head.snapshot
    named = yield from rows.segment.put(state.epoch)
    entry = rows.entry(named, state.sequence, first)
    new_record = yield from _cut(head, rows.dimension, splices, about)
    return replace(new_record, added=(entry,), files=rows.named_files(first))


def _check_schema(rows: Rows, state: Snapshot) -> Protocol[None]:
    """Refuse rows that were prepared by a schema whose numbers meant something else."""
    if rows.schema is not None and state.schema != rows.schema:
        base = yield from read_base_schema(rows.schema)
        (yield from read_schema(state)).check_meaning(base)


def _above_floor(rows: Rows, state: Snapshot, old_rows: Duplicates) -> NDArray[np.bool_] | None:
    """Return which rows are not below the floor; None for all."""
    floor = state.floors.get(rows.dimension)
    if floor is None or rows.coordinates is None or rows.coordinates[0] >= floor:
        return None
    keep: NDArray[np.bool_] = rows.coordinates >= floor
    if old_rows == "raise":
        # Rows that come are never left out in silence, also where others of the file can stay.
        last = rows.coordinates[~keep][-1]
        raise BelowFloorError(
            f"rows from {rows.coordinates[0]} to {last} along {rows.dimension!r} are below "
            f"{floor}, "
            'before which all was dropped; append(duplicates="skip") leaves these rows out'
        )
    return keep


def _replace(
    rows: Rows,
    state: Snapshot,
    coordinates: Coordinates,
    first: int,
    keep: NDArray[np.bool_] | None,
) -> Protocol[tuple[Splice, ...]]:
    """Return the splice by which new rows come for all stored ones between the same bounds."""
    dimension = rows.dimension
    if rows.coordinates is None:
        raise MismatchError(f"{dimension!r} has no coordinate that rows are found by; name the "
                            "file that is replaced (source=)")  # fmt: skip
    low, high = rows.coordinates[0], rows.coordinates[-1]
    start, stop = yield from locate(state, dimension, coordinates, low, high)
    if start == stop:
        raise MismatchError(f"there are no rows from {low} to {high} along {dimension!r}")
    # Coordinates increase: rows below the floor are the first ones.
    skipped = 0 if keep is None else int(np.argmax(keep)) if keep.any() else rows.count
    new = ((first + skipped, rows.count - skipped),) if skipped < rows.count else ()
    return (Splice(start, stop - start, new),)


def _insert(
    rows: Rows,
    state: Snapshot,
    coordinates: Coordinates,
    first: int,
    overlap: Overlap,
    keep: NDArray[np.bool_] | None,
    unfilled: Unfilled | None,
) -> Protocol[tuple[Splice, ...]]:
    """Return the splices by which new rows come between those that are stored."""
    dimension = rows.dimension
    if rows.coordinates is None:
        end = len(state.rows_of(dimension))
        return (Splice(end, 0, ((first, rows.count),)),)
    low, high = rows.coordinates[0], rows.coordinates[-1]
    start, stop = yield from locate(state, dimension, coordinates, low, high)
    if start == stop and keep is None:
        return (Splice(start, 0, ((first, rows.count),)),)
    stored = yield from read_stored(state, dimension, coordinates, start, stop)
    free = None
    if unfilled is not None and start < stop and np.isin(stored, rows.coordinates).any():
        free = yield from unfilled(state, start, stop)
    return merge_rows(
        dimension, rows.coordinates, stored, start, first,
        overlap=overlap, keep=keep, unfilled=free,
    )  # fmt: skip


def drop_rows(
    dimension: str,
    low: Any,
    high: Any,
    coordinates: Coordinates,
    about: Mapping[str, Any],
) -> Change:
    """Rows with coordinates from `low` to `high` go, no matter how they are chunked.

    None stands for the first one, or the last.
    """

    def change(head: Head) -> Protocol[Record]:
        state = head.snapshot
        start, stop = 0, len(state.rows_of(dimension))
        if low is not None:
            start, _ = yield from locate(state, dimension, coordinates, low, low)
        if high is not None:
            _, stop = yield from locate(state, dimension, coordinates, high, high)
        if start >= stop:
            raise MismatchError(f"there are no rows from {low} to {high} along {dimension!r}")
        splices = (Splice(start, stop - start, ()),)
        return (yield from _cut(head, dimension, splices, about))

    return change


def drop_before(
    dimension: str, least: Any, coordinates: Coordinates, about: Mapping[str, Any]
) -> Change:
    """Rows with coordinates below one go, and none such can come again: the floor is raised."""

    def change(head: Head) -> Protocol[Record]:
        state = head.snapshot
        floor = state.floors.get(dimension)
        start, _ = yield from locate(state, dimension, coordinates, least, least)
        if floor is not None and floor >= least and not start:
            raise NothingToDoError(f"all before {least} was dropped already")
        splices = (Splice(0, start, ()),) if start else ()
        new_record = yield from _cut(head, dimension, splices, about)
        highest = least if floor is None else max(floor, least)
        return replace(new_record, floors={dimension: plain(highest)})

    return change


Ranges = Callable[[Snapshot], Protocol[list[tuple[int, int]]]]
"""Finds rows in a version: ranges of positions, in order."""


def drop_ranges(dimension: str, find: Ranges, about: Mapping[str, Any]) -> Change:
    """Rows go that are found in the version that is changed, such as those of a file."""

    def change(head: Head) -> Protocol[Record]:
        ranges = yield from find(head.snapshot)
        splices = tuple(Splice(start, stop - start, ()) for start, stop in reversed(ranges))
        return (yield from _cut(head, dimension, splices, about))

    return change


def replace_ranges(rows: Rows, find: Ranges, about: Mapping[str, Any]) -> Change:
    """Rows without coordinates come in the place of others that are found."""

    def change(head: Head) -> Protocol[Record]:
        state, dimension = head.snapshot, rows.dimension
        yield from _check_schema(rows, state)
        ranges = yield from find(state)
        if len(ranges) != 1:
            raise MismatchError(
                f"the rows to be replaced are in {len(ranges)} places along {dimension!r}, and "
                "there is no coordinate by which new ones would be placed"
            )
        (start, stop), first = ranges[0], state.next_ids.get(dimension, 0)
        splices = (Splice(start, stop - start, ((first, rows.count),)),)
        return (yield from _add(head, rows, first, splices, about))

    return change


def _cut(
    head: Head, dimension: str, splices: tuple[Splice, ...], about: Mapping[str, Any]
) -> Protocol[Record]:
    new_record = yield from record(head, dict(about))
    if not splices:
        return new_record
    return replace(new_record, splices={dimension: splices})


def change_schema(
    base: Named | None, new: Schema, about: Mapping[str, Any], fixed: Stored | None = None
) -> Change:
    """Arrays or attributes change; what others changed since stays.

    Parameters
    ----------
    base : Named, optional
        The schema that `new` was made from.
    fixed : Stored, optional
        A segment of arrays that do not grow, and come with the schema.

    Raises
    ------
    SchemaChangedError
        By the change: another commit changed the same attribute or array.
    """
    stored: dict[bytes, Stored] = {}

    def change(head: Head) -> Protocol[Record]:
        state, merged = head.snapshot, new
        if state.schema != base:
            theirs = yield from read_schema(state)
            merged = merge_schemas((yield from read_base_schema(base)), new, theirs)
        data = objects.encode(merged.to_json())
        named = yield from stored.setdefault(data, Stored("schemas", data)).put(state.epoch)
        new_record = yield from record(head, dict(about))
        if fixed is not None:
            entry = Entry((yield from fixed.put(state.epoch)), state.sequence, {})
            new_record = replace(new_record, added=(entry,))
        return replace(new_record, schema=named)

    return change


def set_tag(
    name: str, version: int | None, about: Mapping[str, Any], until: int | None = None
) -> Change:
    """A tag holds a version, as long as it is set; None takes it away; 0 is the commit's own.

    `until`, in nanoseconds since 1970, lets a vacuum after that take it away.
    """

    def change(head: Head) -> Protocol[Record]:
        tagged = head.snapshot.version + 1 if version == 0 else version
        if version:
            yield from read_version(head, version)  # it must not have expired
        if version is None and name not in head.snapshot.tags:
            raise MismatchError(f"there is no tag {name!r}")
        new_record = yield from record(head, dict(about))
        leases = {} if until is None else {name: until}
        return replace(new_record, tags={name: tagged}, leases=leases)

    return change


def roll_back(version: int, about: Mapping[str, Any]) -> Change:
    """The dataset is again as it was at a version; nothing leaves the history."""

    def change(head: Head) -> Protocol[Record]:
        now, then = head.snapshot, (yield from read_version(head, version))
        # Dimensions that came later have no rows again.
        rows = dict.fromkeys(now.rows, StoredRows()) | dict(then.rows)
        names = dict.fromkeys(now.names, FileNames()) | dict(then.names)
        new_record = yield from record(head, dict(about))
        return replace(
            new_record,
            parts=Parts(rows, then.entries, names),
            schema=then.schema,
            # A floor that was raised since then is lowered again; one cannot be taken away.
            floors={name: then.floors.get(name) for name in now.floors},
        )

    return change


def plain(value: Any) -> Any:
    """Return a number of numpy as one of Python, which JSON has."""
    return value.item() if isinstance(value, np.generic) else value
