"""Snapshots of a dataset, and the records of commits that lead from one to the next.

Source: ``specs/dataset.md``, *Snapshots*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from virtualzarr.dataset.runs import EMPTY, Runs, concat
from virtualzarr.errors import MetadataError

FORMAT = 2

ChunkRuns = tuple[tuple[int, int], ...]
"""Chunk lengths, and how often each comes one after the other."""


@dataclass(frozen=True, slots=True)
class Named:
    """An object that another one names: what is read under the name must be exactly this."""

    name: str
    size: int
    digest: str

    @classmethod
    def from_json(cls, document: Sequence[Any]) -> Named:
        """Read what `to_json` returned."""
        name, size, digest = document
        return cls(str(name), int(size), str(digest))

    def to_json(self) -> list[Any]:
        """Return name, size in bytes, and digest."""
        return [self.name, self.size, self.digest]


@dataclass(frozen=True, slots=True)
class Entry:
    """Where the rows of a segment are among those of the dataset.

    Attributes
    ----------
    segment : Named
    sequence : int
        Which of two entries that overlap is in force: the greater one.
    rows : mapping of str to (int, int)
        For each growing dimension that the segment extends, the id of its first row and how many
        rows it has.
    bounds : mapping of str to (JSON, JSON)
        The least and greatest coordinate of those rows, where they are known.
    chunks : sequence of (runs, paths)
        How the rows of arrays are chunked: chunk lengths with how often each comes, and of which
        arrays; None for all arrays that are not listed.
    grids : mapping of str to sequence of runs
        Of arrays that are chunked otherwise than their document says along other axes: chunk
        lengths along each of their axes but the growing one.
    commits : int
        How many commits' rows were merged into it.
    data : sequence of Named
        Objects of the dataset's own that its references lie in.
    """

    segment: Named
    sequence: int
    rows: Mapping[str, tuple[int, int]]
    bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    chunks: tuple[tuple[ChunkRuns, tuple[str, ...] | None], ...] = ()
    grids: Mapping[str, tuple[ChunkRuns, ...]] = field(default_factory=dict)
    commits: int = 1
    data: tuple[Named, ...] = ()

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Entry:
        """Read what `to_json` returned."""
        return cls(
            Named.from_json(document["segment"]),
            int(document["sequence"]),
            {name: (int(first), int(count)) for name, (first, count) in document["rows"].items()},
            {name: (low, high) for name, (low, high) in document.get("bounds", {}).items()},
            tuple(
                (_to_runs(runs), None if paths is None else tuple(paths))
                for runs, paths in document.get("chunks", ())
            ),
            {
                path: tuple(_to_runs(runs) for runs in axes)
                for path, axes in document.get("grids", {}).items()
            },
            int(document.get("commits", 1)),
            tuple(map(Named.from_json, document.get("data", ()))),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the entry as JSON."""
        document: dict[str, Any] = {
            "segment": self.segment.to_json(),
            "sequence": self.sequence,
            "rows": {name: list(rows) for name, rows in self.rows.items()},
        }
        if self.bounds:
            document["bounds"] = {name: list(pair) for name, pair in self.bounds.items()}
        if self.grids:
            document["grids"] = {
                path: [[list(run) for run in runs] for runs in axes]
                for path, axes in self.grids.items()
            }
        if self.data:
            document["data"] = [item.to_json() for item in self.data]
        if self.commits > 1:
            document["commits"] = self.commits
        if self.chunks:
            document["chunks"] = [
                [[list(run) for run in runs], None if paths is None else list(paths)]
                for runs, paths in self.chunks
            ]
        return document

    def chunks_of(self, path: str) -> ChunkRuns:
        """Return how the rows of an array are chunked."""
        others: ChunkRuns = ()
        for runs, paths in self.chunks:
            if paths is None:
                others = runs
            elif path in paths:
                return runs
        return others


def _to_runs(document: Sequence[Any]) -> ChunkRuns:
    return tuple((int(length), int(count)) for length, count in document)


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


@dataclass(frozen=True, slots=True)
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
    added, removed : sequence
        Entries that come, and names of the segments of those that go.
    schema : Named, optional
        The documents of arrays and groups, where they change.
    tags : mapping
        Tags that are set to a version, or taken away (None).
    leases : mapping
        Until when tags are in force, in nanoseconds since 1970; others are for ever.
    floors : mapping
        By growing dimension, the least coordinate that rows may have from now on.
    epoch : int, optional
        A vacuum's fence: objects that come from now on have this epoch in their names.
    expired : int, optional
        Versions before this one can no longer be opened, unless a tag holds them.
    """

    commit: str
    time: int
    about: Mapping[str, Any] = field(default_factory=dict)
    splices: Mapping[str, tuple[Splice, ...]] = field(default_factory=dict)
    added: tuple[Entry, ...] = ()
    removed: tuple[str, ...] = ()
    schema: Named | None = None
    tags: Mapping[str, int | None] = field(default_factory=dict)
    epoch: int | None = None
    expired: int | None = None
    leases: Mapping[str, int] = field(default_factory=dict)
    floors: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Record:
        """Read what `to_json` returned."""
        schema = document.get("schema")
        return cls(
            document["commit"],
            int(document["time"]),
            document.get("about", {}),
            {
                name: tuple(map(Splice.from_json, splices))
                for name, splices in document.get("splices", {}).items()
            },
            tuple(map(Entry.from_json, document.get("added", ()))),
            tuple(document.get("removed", ())),
            None if schema is None else Named.from_json(schema),
            document.get("tags", {}),
            document.get("epoch"),
            document.get("expired"),
            document.get("leases", {}),
            document.get("floors", {}),
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
            "removed": list(self.removed),
            "schema": None if self.schema is None else self.schema.to_json(),
            "tags": dict(self.tags),
            "epoch": self.epoch,
            "expired": self.expired,
            "leases": dict(self.leases),
            "floors": dict(self.floors),
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
    runs : mapping of str to Runs
        The rows of each growing dimension.
    next_ids : mapping of str to int
        The first row id of each dimension that was never given out.
    sequence : int
        The sequence of the next entry.
    entries : mapping of str to Entry
        By name of the segment, the oldest first.
    tags, leases, floors : mapping
        See `Record`.
    """

    version: int
    commit: str
    time: int
    epoch: int = 0
    expired: int = 0
    schema: Named | None = None
    runs: Mapping[str, Runs] = field(default_factory=dict)
    next_ids: Mapping[str, int] = field(default_factory=dict)
    sequence: int = 0
    entries: Mapping[str, Entry] = field(default_factory=dict)
    tags: Mapping[str, int] = field(default_factory=dict)
    leases: Mapping[str, int] = field(default_factory=dict)
    floors: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, record: Record) -> Snapshot:
        """Return the version after this one.

        Raises
        ------
        MetadataError
            If the record is not one of a commit to this version.
        """
        runs, next_ids = dict(self.runs), dict(self.next_ids)
        for dimension, splices in record.splices.items():
            for splice in splices:
                runs[dimension] = splice.apply(runs.get(dimension, EMPTY))
                ends = [first + count for first, count in splice.added]
                next_ids[dimension] = max([next_ids.get(dimension, 0), *ends])
        entries = dict(self.entries)
        for name in record.removed:
            if entries.pop(name, None) is None:
                raise MetadataError(f"there is no entry of segment {name} to remove")
        entries |= {entry.segment.name: entry for entry in record.added}
        for entry in record.added:
            # Also rows that have no position: no other entry gets their ids.
            for dimension, (first, count) in entry.rows.items():
                next_ids[dimension] = max(next_ids.get(dimension, 0), first + count)
        tags = dict(self.tags) | dict(record.tags)
        # A tag that is set anew is for ever, unless its record says until when.
        leases = {name: until for name, until in self.leases.items() if name not in record.tags}
        return replace(
            self,
            version=self.version + 1,
            commit=record.commit,
            time=record.time,
            epoch=self.epoch if record.epoch is None else record.epoch,
            expired=self.expired if record.expired is None else record.expired,
            schema=record.schema or self.schema,
            runs=runs,
            next_ids=next_ids,
            sequence=max([self.sequence, *(entry.sequence + 1 for entry in record.added)]),
            entries=entries,
            tags={name: version for name, version in tags.items() if version is not None},
            leases=leases | dict(record.leases),
            floors=dict(self.floors) | dict(record.floors),
        )

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Snapshot:
        """Read what `to_json` returned, with all runs and entries in it."""
        schema = document.get("schema")
        return cls(
            int(document["version"]),
            document["commit"],
            int(document["time"]),
            int(document["epoch"]),
            int(document["expired"]),
            None if schema is None else Named.from_json(schema),
            {name: Runs.of(pairs) for name, pairs in document["runs"].items()},
            dict(document["next_ids"]),
            int(document["sequence"]),
            {entry.segment.name: entry for entry in map(Entry.from_json, document["entries"])},
            dict(document["tags"]),
            dict(document["leases"]),
            dict(document["floors"]),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the snapshot as JSON, with all runs and entries in it."""
        return {
            "version": self.version,
            "commit": self.commit,
            "time": self.time,
            "epoch": self.epoch,
            "expired": self.expired,
            "schema": None if self.schema is None else self.schema.to_json(),
            "runs": {name: runs.pairs for name, runs in self.runs.items()},
            "next_ids": dict(self.next_ids),
            "sequence": self.sequence,
            "entries": [entry.to_json() for entry in self.entries.values()],
            "tags": dict(self.tags),
            "leases": dict(self.leases),
            "floors": dict(self.floors),
        }
