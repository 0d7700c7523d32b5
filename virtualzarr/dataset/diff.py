"""Differences of two versions of a dataset: rows by coordinates and files, arrays, attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.dataset.head import read_records, walk_log
from virtualzarr.dataset.history import list_files
from virtualzarr.dataset.placing import read_stored
from virtualzarr.dataset.row_tables import read_runs
from virtualzarr.dataset.runs import Runs
from virtualzarr.dataset.schema import Schema
from virtualzarr.dataset.sources import as_ranges
from virtualzarr.dataset.verbs import plain

if TYPE_CHECKING:
    from virtualzarr.dataset.version import DatasetVersion

_SHOWN = 8
"""Lines of each kind that a representation shows."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows that follow each other in a version.

    Attributes
    ----------
    first, last : number
        Coordinates; positions where there are no coordinates.
    count : int
    """

    first: int | float
    last: int | float
    count: int

    def __str__(self) -> str:
        return f"{self.first} to {self.last} ({self.count})" if self.count > 1 else f"{self.first}"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A change of an array, a group, or one of its attributes or other members.

    Attributes
    ----------
    path : str
        Of the node; "" for the root.
    member : str
        What of it changed, such as ``attributes/units``; empty if it came or went as a whole.
    old, new : JSON
        None where there is none.
    """

    path: str
    member: str
    old: Any
    new: Any

    def __str__(self) -> str:
        name = f"{self.path or '/'}{' ' if self.member else ''}{self.member}"
        if self.old is None:
            return f"{name} is new" + (f": {self.new!r}" if self.member else "")
        return f"{name} is gone" if self.new is None else f"{name}: {self.old!r} -> {self.new!r}"


@dataclass(frozen=True)
class Diff:
    """What is different in a later version of a dataset.

    Attributes
    ----------
    a, b : int
        The versions.
    dimension : str
    added, dropped, replaced : sequence of RowRange
        Replaced rows have the same coordinates in both versions. Those that were folded between
        them are among these: their chunks are others, though their values are the same.
    files : sequence of str
        Source files that came with the commits from the one to the other.
    schema : sequence of SchemaChange

    Examples
    --------
    >>> Diff(1, 2, "time", (RowRange(10, 12, 3),), (), (), ("air.nc",), ())
    <Diff: version 1 -> 2
      added along time: 10 to 12 (3)
      files: air.nc>
    """

    a: int
    b: int
    dimension: str
    added: tuple[RowRange, ...]
    dropped: tuple[RowRange, ...]
    replaced: tuple[RowRange, ...]
    files: tuple[str, ...]
    schema: tuple[SchemaChange, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.dropped or self.replaced or self.schema)

    def __repr__(self) -> str:
        lines = [f"version {self.a} -> {self.b}"]
        for verb in ("added", "dropped", "replaced"):
            if ranges := getattr(self, verb):
                lines.append(f"{verb} along {self.dimension}: {_list(ranges)}")
        lines += [str(change) for change in self.schema[:_SHOWN]]
        if len(self.schema) > _SHOWN:
            lines.append(f"... and {len(self.schema) - _SHOWN} more changes")
        if self.files:
            lines.append(f"files: {_list(self.files)}")
        if not self:
            lines.append("the same rows, arrays and attributes")
        return "<Diff: " + "\n  ".join(lines) + ">"

    def to_json(self) -> dict[str, Any]:
        """Return the difference as JSON."""
        members = asdict(self).items()
        return {name: [*value] if isinstance(value, tuple) else value for name, value in members}


def _list(items: Sequence[Any]) -> str:
    text = ", ".join(map(str, items[:_SHOWN]))
    return f"{text}, ... ({len(items)} in all)" if len(items) > _SHOWN else text


def compare(newest: DatasetVersion, a: DatasetVersion, b: DatasetVersion) -> Diff:
    """Return what is different in `b`; the commits between are those that `newest` has."""
    dimension = b.dimension or a.dimension
    gone, came = (_only_in(one, other, dimension) for one, other in ((a, b), (b, a)))
    both = None
    if came.values is not None and gone.values is not None:
        both = np.intersect1d(came.values, gone.values)
    low, high = sorted([a.version, b.version])
    records = newest.run(
        walk_log(newest.head, lambda head: read_records(head, low + 1, high - low), low + 1)
    )
    files = [file for each in records for file in list_files(each.about, newest.path)]
    return Diff(
        a.version, b.version, dimension,
        came.ranges(both, inside=False), gone.ranges(both, inside=False),
        came.ranges(both, inside=True),
        tuple(dict.fromkeys(files)), tuple(compare_schemas(a.schema, b.schema)),
    )  # fmt: skip


@dataclass(frozen=True)
class _Only:
    """Rows that are in one version and not in another: positions, and coordinates if any."""

    positions: NDArray[np.int64]
    values: NDArray[Any] | None

    def ranges(self, both: NDArray[Any] | None, *, inside: bool) -> tuple[RowRange, ...]:
        """Return the rows as ranges: those with coordinates in `both`, or all others."""
        keep = np.full(len(self.positions), not inside)
        if both is not None and self.values is not None:
            keep = np.isin(self.values, both) == inside
        chosen = self.positions[keep]
        labels = chosen if self.values is None else self.values[keep]
        at = 0
        result = []
        for start, stop in as_ranges(chosen):
            count = stop - start
            result.append(RowRange(plain(labels[at]), plain(labels[at + count - 1]), count))
            at += count
        return tuple(result)


def _only_in(one: DatasetVersion, other: DatasetVersion, dimension: str) -> _Only:
    """Return the rows of a version whose ids are not in another one."""
    runs, others = (each.run(read_runs(each.snapshot, dimension)) for each in (one, other))
    ranges = select_absent(runs, [others])
    positions = np.concatenate(
        [np.empty(0, np.int64), *(np.arange(start, stop) for start, stop in ranges)]
    )
    parts = []
    has_coordinates = dimension in one.schema.arrays
    for start, stop in ranges if has_coordinates else ():
        protocol = read_stored(one.snapshot, dimension, one.open_segment.coordinates, start, stop)
        parts.append(one.run(protocol))
    values = np.concatenate(parts) if parts else np.empty(0)
    return _Only(positions, values if has_coordinates else None)


def select_absent(runs: Runs, others: Sequence[Runs]) -> list[tuple[int, int]]:
    """Return the positions of rows, as ranges, whose ids are in none of other versions."""
    ranges = list(
        zip(runs.starts[:-1].tolist(), runs.first.tolist(), runs.count.tolist(), strict=True)
    )
    for other in others:
        ranges = [
            (position + low, first + low, high - low)
            for position, first, count in ranges
            for low, high in _without(first, count, other)
        ]
    return [(position, position + count) for position, _, count in ranges]


def _without(first: int, count: int, others: Runs) -> list[tuple[int, int]]:
    """Return the offsets in a run of ids that are not in other runs."""
    order = np.argsort(others.first, kind="stable")
    begin = np.clip(others.first[order] - first, 0, count)
    end = np.clip(others.first[order] + others.count[order] - first, 0, count)
    inside = begin < end
    edges = [0, *np.column_stack([begin[inside], end[inside]]).reshape(-1).tolist(), count]
    return [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if low < high]


def compare_schemas(old: Schema, new: Schema) -> list[SchemaChange]:
    """Return what differs in the documents of nodes.

    Examples
    --------
    >>> old = Schema({"": {"attributes": {"title": "a"}}})
    >>> print(*compare_schemas(old, old.with_attributes("", {"title": "b", "by": "c"})), sep="; ")
    / attributes/title: 'a' -> 'b'; / attributes/by is new: 'c'
    """
    changes = []
    for path in dict.fromkeys([*old.nodes, *new.nodes]):
        before, after = (_flatten(schema.nodes.get(path)) for schema in (old, new))
        if before is None or after is None:
            changes.append(SchemaChange(path, "", old.nodes.get(path), new.nodes.get(path)))
            continue
        changes += [
            SchemaChange(path, name, before.get(name), after.get(name))
            for name in dict.fromkeys([*before, *after])
            if before.get(name) != after.get(name) or (name in before) != (name in after)
        ]
    return changes


def _flatten(document: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if document is None:
        return None
    flat = {name: value for name, value in document.items() if name != "attributes"}
    attributes = document.get("attributes", {})
    return flat | {f"attributes/{name}": value for name, value in attributes.items()}
