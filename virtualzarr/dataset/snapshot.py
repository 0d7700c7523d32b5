"""Snapshots of a dataset, and the records of commits that lead from one to the next.

What is long is in tables, of which a snapshot names the root; it has the last rows, entries and
names itself. A record has what a commit changed among those, and new roots where it changed tables:
so that versions are made from records without reading any table.

Source: ``specs/dataset.md``, *Snapshots*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.dataset.entry import ChunkRuns, Entry
from virtualzarr.dataset.named import Named, Node
from virtualzarr.dataset.runs import EMPTY, Runs, Splice, splice_runs
from virtualzarr.errors import MetadataError

__all__ = [
    "FORMAT", "ChunkRuns", "Entries", "Entry", "FileNames", "FileRows", "Named", "Parts", "Record",
    "Snapshot", "StoredRows", "as_names", "as_tuples", "hash_to_hex",
]  # fmt: skip

FORMAT = 2

FileRows = tuple[str, int, int, str]
"""A source file: the hash of its URI, the id of its first row, how many rows it has, and which
version of the file they came from, as far as that is known (``file_versions``)."""

Names = NDArray[Any]
"""Many of these, as an array: a commit may bring those of a million files."""

_NAMES = np.dtype([("hash", "S16"), ("first", "<i8"), ("count", "<i8"), ("version", "S8")])
"""Bytes that numpy compares, and takes zeros from the end of where it gives them to Python."""


def as_names(files: Iterable[FileRows] = ()) -> Names:
    """Return names as an array, which has the fields hash, first, count and version."""
    from_hex = bytes.fromhex
    items = [(from_hex(name), first, count, from_hex(v)) for name, first, count, v in files]
    return np.array(items, _NAMES)


def as_tuples(names: Names) -> tuple[FileRows, ...]:
    """Return what `as_names` was given."""
    return tuple(
        (hash_to_hex(name), first, count, version.ljust(8, b"\0").hex() if version else "")
        for name, first, count, version in names.tolist()
    )


def hash_to_hex(name: bytes) -> str:
    """Return a hash of an array of names as it is in JSON."""
    return name.ljust(16, b"\0").hex()


def _to_json(node: Node | None) -> list[Any] | None:
    return None if node is None else node.to_json()


def _node(document: Sequence[Any] | None) -> Node | None:
    return None if document is None else Node.from_json(document)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The rows along a growing dimension.

    Attributes
    ----------
    table : Node, optional
        A table of the first runs, where they are many.
    tail : Runs
        Those after.
    """

    table: Node | None = None
    tail: Runs = field(default_factory=lambda: EMPTY)

    @property
    def table_rows(self) -> int:
        """How many rows the table has."""
        return 0 if self.table is None else int(self.table.summary[0])

    def __len__(self) -> int:
        return self.table_rows + len(self.tail)

    def apply(self, splices: Sequence[Splice]) -> StoredRows:
        """Return the rows with changes of those after the table."""
        border = self.table_rows
        moved = [replace(splice, position=splice.position - border) for splice in splices]
        return replace(self, tail=splice_runs(self.tail, moved))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> StoredRows:
        """Read what `to_json` returned."""
        return cls(_node(document["table"]), Runs.of(document["tail"]))

    def to_json(self) -> dict[str, Any]:
        """Return the rows as JSON, but for the contents of the table."""
        return {"table": _to_json(self.table), "tail": self.tail.pairs}


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of all segments, by increasing sequence.

    Attributes
    ----------
    table : Node, optional
        A table of the first ones, where they are many.
    tail : sequence of Entry
        Those after.
    """

    table: Node | None = None
    tail: tuple[Entry, ...] = ()

    @property
    def last_in_table(self) -> int:
        """The sequence from which on entries belong in the tail."""
        return -1 if self.table is None else int(self.table.summary[1])

    def apply(self, added: Sequence[Entry], removed: Sequence[tuple[int, str]]) -> Entries:
        """Return the entries with changes of those after the table.

        Raises
        ------
        MetadataError
            If an entry to be removed is not there, or one to be added belongs in the table.
        """
        if not added and not removed:
            return self
        gone = set(removed)
        left = [entry for entry in self.tail if entry.key not in gone]
        if len(left) + len(gone) > len(self.tail):
            raise MetadataError(f"there are no entries of some segments to remove: {removed}")
        if any(entry.sequence < self.last_in_table for entry in added):
            raise MetadataError("an entry belongs before the last ones")
        return replace(self, tail=tuple(sorted([*left, *added], key=lambda e: e.sequence)))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Entries:
        """Read what `to_json` returned."""
        return cls(_node(document["table"]), tuple(map(Entry.from_json, document["tail"])))

    def to_json(self) -> dict[str, Any]:
        """Return the entries as JSON, but for the contents of the table."""
        tail = [entry.to_json() for entry in self.tail]
        return {"table": _to_json(self.table), "tail": tail}


@dataclass(frozen=True, slots=True)
class FileNames:
    """Which source files have rows along a dimension, or had.

    Attributes
    ----------
    tables : sequence of Node
        Tables by hash, the oldest first.
    tail : sequence of FileRows
        Those that are in no table yet.
    """

    tables: tuple[Node, ...] = ()
    tail: tuple[FileRows, ...] = ()

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> FileNames:
        """Read what `to_json` returned."""
        return cls(tuple(map(Node.from_json, document["tables"])), _files(document["tail"]))

    def to_json(self) -> dict[str, Any]:
        """Return the names as JSON, but for the contents of tables."""
        tables = [table.to_json() for table in self.tables]
        return {"tables": tables, "tail": _files_to_json(self.tail)}


def _files(document: Sequence[Sequence[Any]]) -> tuple[FileRows, ...]:
    return tuple(
        (str(name), int(first), int(count), str(version[0]) if version else "")
        for name, first, count, *version in document
    )


def _files_to_json(files: Sequence[FileRows]) -> list[Sequence[Any]]:
    return [item if item[-1] else item[:-1] for item in files]


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a snapshot that have tables, as they are after a commit that changed those.

    Attributes
    ----------
    rows : mapping of str to StoredRows
    entries : Entries, optional
    names : mapping of str to FileNames
    """

    rows: Mapping[str, StoredRows] = field(default_factory=dict)
    entries: Entries | None = None
    names: Mapping[str, FileNames] = field(default_factory=dict)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Parts:
        """Read what `to_json` returned."""
        entries = document.get("entries")
        return cls(
            {name: StoredRows.from_json(rows) for name, rows in document.get("rows", {}).items()},
            None if entries is None else Entries.from_json(entries),
            {name: FileNames.from_json(item) for name, item in document.get("names", {}).items()},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the parts as JSON, those that are there."""
        document: dict[str, Any] = {
            "rows": {name: rows.to_json() for name, rows in self.rows.items()},
            "entries": None if self.entries is None else self.entries.to_json(),
            "names": {name: names.to_json() for name, names in self.names.items()},
        }
        return {name: value for name, value in document.items() if value}


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """What one commit changed: enough to make its version from the one before.

    Attributes
    ----------
    commit : str
        The commit's id, which no other has.
    time : int
        When, in nanoseconds since 1970 by its writer's clock, but after the commit before.
    about : mapping
        Verb, writer, message and source files: for people.
    splices : mapping of str to sequence of Splice
        By growing dimension, to be applied one after the other.
    added : sequence of Entry
    removed : sequence of (int, str)
        Keys of the entries that go.
    files : mapping of str to array
        Source files that come, by growing dimension, where `parts` have no names of it.
    floors : mapping
        By growing dimension, the least coordinate that rows may have from now on.
    schema : Named, optional
        The documents of arrays and groups, where they change.
    tags : mapping
        Tags that are set to a version, or taken away (None).
    leases : mapping
        When tags that are set may be taken away by a vacuum, in nanoseconds since 1970.
    epoch : int, optional
        A vacuum's fence: objects that come from now on have this epoch in their names.
    expired : int, optional
        Versions before this one can no longer be opened, unless a tag holds them.
    parts : Parts, optional
        What the commit makes of parts whose tables it changes, whatever was there before.
    history : int, optional
        A vacuum's: records of versions before this one are forgotten, as far as the log can.
    """

    commit: str
    time: int
    about: Mapping[str, Any] = field(default_factory=dict)
    splices: Mapping[str, tuple[Splice, ...]] = field(default_factory=dict)
    added: tuple[Entry, ...] = ()
    removed: tuple[tuple[int, str], ...] = ()
    files: Mapping[str, Names] = field(default_factory=dict)
    floors: Mapping[str, Any] = field(default_factory=dict)
    schema: Named | None = None
    tags: Mapping[str, int | None] = field(default_factory=dict)
    leases: Mapping[str, int] = field(default_factory=dict)
    epoch: int | None = None
    expired: int | None = None
    parts: Parts | None = None
    history: int | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Record:
        """Read what `to_json` returned."""
        schema, parts = document.get("schema"), document.get("parts")
        return cls(
            document["commit"],
            int(document["time"]),
            dict(document.get("about", {})),
            {
                name: tuple(map(Splice.from_json, splices))
                for name, splices in document.get("splices", {}).items()
            },
            tuple(map(Entry.from_json, document.get("added", ()))),
            tuple((int(number), str(name)) for number, name in document.get("removed", ())),
            {n: as_names(_files(files)) for n, files in document.get("files", {}).items()},
            document.get("floors", {}),
            None if schema is None else Named.from_json(schema),
            document.get("tags", {}),
            document.get("leases", {}),
            document.get("epoch"),
            document.get("expired"),
            None if parts is None else Parts.from_json(parts),
            document.get("history"),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON, without what it does not change."""
        document: dict[str, Any] = {
            "commit": self.commit,
            "time": self.time,
            "about": dict(self.about),
            "splices": {
                name: [splice.to_json() for splice in splices]
                for name, splices in self.splices.items()
            },
            "added": [entry.to_json() for entry in self.added],
            "removed": [list(key) for key in self.removed],
            "files": {n: _files_to_json(as_tuples(files)) for n, files in self.files.items()},
            "floors": dict(self.floors),
            "schema": None if self.schema is None else self.schema.to_json(),
            "tags": dict(self.tags),
            "leases": dict(self.leases),
            "epoch": self.epoch,
            "expired": self.expired,
            "parts": None if self.parts is None else self.parts.to_json(),
            "history": self.history,
        }
        return {name: value for name, value in document.items() if value not in (None, {}, [])}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of a dataset: everything that its elements, attributes and tags follow from.

    Attributes
    ----------
    version : int
        1 for the first one, and one more with each commit.
    commit, time
        Of the commit that made it, see `Record`.
    rows : mapping of str to StoredRows
        The rows of each growing dimension.
    next_ids : mapping of str to int
        The first row id of each dimension that was never given out.
    sequence : int
        The sequence of the next entry.
    entries : Entries
    names : mapping of str to FileNames
    tags, leases, floors : mapping
        See `Record`.
    """

    version: int
    commit: str
    time: int
    epoch: int = 0
    expired: int = 0
    schema: Named | None = None
    rows: Mapping[str, StoredRows] = field(default_factory=dict)
    next_ids: Mapping[str, int] = field(default_factory=dict)
    sequence: int = 0
    entries: Entries = field(default_factory=Entries)
    names: Mapping[str, FileNames] = field(default_factory=dict)
    tags: Mapping[str, int] = field(default_factory=dict)
    leases: Mapping[str, int] = field(default_factory=dict)
    floors: Mapping[str, Any] = field(default_factory=dict)

    def rows_of(self, dimension: str) -> StoredRows:
        """Return the rows along a dimension, which may have none yet."""
        return self.rows.get(dimension, NO_ROWS)

    def is_expired(self, version: int) -> bool:
        """Tell whether a version can no longer be opened."""
        return version < self.expired and version not in self.tags.values()

    def apply(self, record: Record) -> Snapshot:
        """Return the version after this one.

        Raises
        ------
        MetadataError
            If the record is not one of a commit to this version.
        """
        parts, next_ids = record.parts or Parts(), dict(self.next_ids)
        rows = {**self.rows, **parts.rows}
        for dimension, splices in record.splices.items():
            if dimension not in parts.rows:
                rows[dimension] = rows.get(dimension, NO_ROWS).apply(splices)
            ends = [first + count for splice in splices for first, count in splice.added]
            next_ids[dimension] = max([next_ids.get(dimension, 0), *ends])
        for entry in record.added:
            # Also rows that have no position: no other entry gets their ids.
            for dimension, (first, count) in entry.rows.items():
                next_ids[dimension] = max(next_ids.get(dimension, 0), first + count)
        names = {**self.names, **parts.names}
        for dimension, files in record.files.items():
            if dimension not in parts.names:
                old = names.get(dimension, FileNames())
                names[dimension] = replace(old, tail=(*old.tail, *as_tuples(files)))
        tags = {**self.tags, **record.tags}
        leases = {n: until for n, until in self.leases.items() if n not in record.tags}
        return Snapshot(
            self.version + 1,
            record.commit,
            record.time,
            self.epoch if record.epoch is None else record.epoch,
            self.expired if record.expired is None else record.expired,
            record.schema or self.schema,
            rows,
            next_ids,
            max([self.sequence, *(entry.sequence + 1 for entry in record.added)]),
            parts.entries or self.entries.apply(record.added, record.removed),
            names,
            {name: version for name, version in tags.items() if version is not None},
            leases | dict(record.leases),
            {**self.floors, **record.floors},
        )

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Snapshot:
        """Read what `to_json` returned."""
        schema, parts = document.get("schema"), Parts.from_json(document)
        return cls(
            int(document["version"]),
            document["commit"],
            int(document["time"]),
            int(document["epoch"]),
            int(document["expired"]),
            None if schema is None else Named.from_json(schema),
            parts.rows,
            dict(document["next_ids"]),
            int(document["sequence"]),
            parts.entries or Entries(),
            parts.names,
            dict(document["tags"]),
            dict(document.get("leases", {})),
            dict(document.get("floors", {})),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the snapshot as JSON, but for the contents of tables."""
        document: dict[str, Any] = {
            "version": self.version,
            "commit": self.commit,
            "time": self.time,
            "epoch": self.epoch,
            "expired": self.expired,
            "schema": None if self.schema is None else self.schema.to_json(),
            "next_ids": dict(self.next_ids),
            "sequence": self.sequence,
            "tags": dict(self.tags),
        }
        if self.leases:
            document["leases"] = dict(self.leases)
        if self.floors:
            document["floors"] = dict(self.floors)
        return document | Parts(self.rows, self.entries, self.names).to_json()


NO_ROWS = StoredRows()
