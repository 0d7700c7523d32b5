"""Versions of datasets: opened by number, time or tag, and compared with others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Self, TypeVar

from virtualzarr.array import Array
from virtualzarr.choices import Duplicates
from virtualzarr.dataset import objects
from virtualzarr.dataset.arrays import VersionChunks, build_arrays
from virtualzarr.dataset.commit import Change, find_commit
from virtualzarr.dataset.diff import Diff, compare
from virtualzarr.dataset.file_names import find_files as find_named_files
from virtualzarr.dataset.file_versions import tells_versions
from virtualzarr.dataset.fitting import Addition, fit
from virtualzarr.dataset.head import Head, find_version, read_head, read_version, walk_log
from virtualzarr.dataset.history import (
    History,
    from_nanoseconds,
    list_versions,
    to_nanoseconds,
)
from virtualzarr.dataset.joined_changes import apply_changes
from virtualzarr.dataset.layers import Covered, LayerInfo, add_layers, find_layers, list_layers
from virtualzarr.dataset.named import Named
from virtualzarr.dataset.open_storage import open_storage
from virtualzarr.dataset.operations import HEAD, Protocol
from virtualzarr.dataset.row_finder import RowFinder
from virtualzarr.dataset.row_tables import (
    RowLookup,
    at_static,
    read_contents,
    read_entries,
    read_runs,
)
from virtualzarr.dataset.runs import Runs
from virtualzarr.dataset.schema import Schema, read_named_schema
from virtualzarr.dataset.segment import DATA
from virtualzarr.dataset.segment_opener import SegmentOpener
from virtualzarr.dataset.snapshot import Snapshot
from virtualzarr.dataset.sources import find_files as find_versions
from virtualzarr.dataset.sources import select_new_files
from virtualzarr.dataset.stretches import Stretch, Stretches
from virtualzarr.dataset.verbs import Stored
from virtualzarr.display.html import facts_html, group_html
from virtualzarr.errors import SourceNotFoundError, VersionExpiredError, VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.stores.files import resolve_uri
from virtualzarr.stores.location import Location

T = TypeVar("T")


class DatasetVersion:
    """A dataset at one version, to be read.

    Everything that is taken from it (arrays, lazy views, pickles, datasets of xarray) stays at
    that version.

    Parameters
    ----------
    path : path or str
        A directory, or the URL of a folder: ``s3://``, ``gs://`` or ``az://`` (the last two with
        the extra ``object-stores``), ``memory://``, and any other that can be read, such as
        ``https://``.
    version : int, optional
    at : datetime or str, optional
        The version that was the newest then; in UTC if there is no time zone.
    tag : str, optional
    allowed, storage_options
        As for `virtualzarr.open`.
    single_writer : bool
        Whether commits are made where the store cannot keep several writers apart: you answer for
        it that nobody else writes at the same time.

    Raises
    ------
    SourceNotFoundError
        There is no dataset.
    VersionExpiredError, IndexError, KeyError
        There is no such version or tag.
    """

    def __init__(
        self,
        path: Any,
        *,
        version: int | None = None,
        at: datetime | str | None = None,
        tag: str | None = None,
        allowed: str | Iterable[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        single_writer: bool = False,
    ) -> None:
        if sum(choice is not None for choice in (version, at, tag)) > 1:
            raise ValueError("give one of version, at and tag")
        self.path = resolve_uri(path).rstrip("/")
        self._options: dict[str, Any] = {
            "allowed": allowed,
            "storage_options": storage_options,
            "single_writer": single_writer,
        }
        if allowed is not None:
            # What was written to the dataset itself is always allowed.
            prefixes = [allowed] if isinstance(allowed, str | os.PathLike) else allowed
            allowed = [*prefixes, f"{self.path}/{DATA}"]
        location = Location.of(f"{self.path}/", storage_options, allowed)
        self._place = open_storage(location, single_writer)
        self._schemas: dict[Named | None, Schema] = {}
        head = self._place.run(read_head())
        self._open = SegmentOpener(location, head.snapshot.version, self._place)
        if tag is not None:
            if tag not in head.snapshot.tags:
                raise KeyError(f"there is no tag {tag!r}, but {sorted(head.snapshot.tags)}")
            version = head.snapshot.tags[tag]
        if at is not None:
            time = to_nanoseconds(at)
            version = self.run(walk_log(head, lambda now: find_version(now, time)))
            if not version:
                raise IndexError("the dataset did not exist then")
        if version is None:
            self._set_newest(head)
        else:
            self._set(head, self._read_version(head, version))

    def _read_version(self, head: Head, version: int) -> Snapshot:
        try:
            return self._place.run(walk_log(head, lambda now: read_version(now, version)))
        except SourceNotFoundError as error:
            raise self._open.at(version).explain_missing(error) from error

    def _set_newest(self, head: Head) -> None:
        """Be the dataset at the version of a head, or at a later one if a vacuum was quicker."""
        while True:
            try:
                return self._set(head, head.snapshot)
            except VersionExpiredError:
                head = self._place.run(read_head())

    def _set(self, head: Head, snapshot: Snapshot) -> None:
        self.head, self.snapshot = head, snapshot
        self._open = self._open.at(snapshot.version)
        named = snapshot.schema
        if named not in self._schemas:
            # Schemas are named by what they are: one that was read never has to be read again.
            self._schemas = {named: self.run(read_named_schema(named))}
        self._schema = self._schemas[named]

    @property
    def access(self) -> dict[str, Any]:
        """How files are reached: `storage_options` and `allowed`, as far as they are given."""
        names = ("storage_options", "allowed")
        return {name: self._options[name] for name in names if self._options[name] is not None}

    @property
    def is_single_writer(self) -> bool:
        """Whether commits are made as if nobody else wrote."""
        return bool(self._options["single_writer"])

    def run(self, protocol: Protocol[T]) -> T:
        """Run a protocol in the dataset's store.

        Raises
        ------
        VersionExpiredError
            What this version names is not there any more.
        """
        try:
            return self._place.run(protocol)
        except SourceNotFoundError as error:
            raise self._open.explain_missing(error) from error

    def _at(self, head: Head, snapshot: Snapshot | None = None) -> Self:
        """Return the dataset at a version, by default the one of a head or a later one."""
        result = object.__new__(type(self))
        result.path, result._options, result._place = self.path, self._options, self._place
        result._schemas, result._open = self._schemas, self._open
        if snapshot is None:
            result._set_newest(head)
        else:
            result._set(head, snapshot)
        return result

    def __repr__(self) -> str:
        newest = self.head.snapshot.version
        which = f"{self.version}" if self.version == newest else f"{self.version} of {newest}"
        rows = ", ".join(f"{name}: {len(rows)}" for name, rows in self.snapshot.rows.items())
        arrays = len(self.schema.arrays)
        tags = sorted(name for name, version in self.tags.items() if version == self.version)
        tagged = f", tagged {', '.join(map(repr, tags))}" if tags else ""
        return (
            f"<Dataset {self.path} version {which} ({rows}), "
            f"{arrays} array{'s' * (arrays != 1)}{tagged}>"
        )

    def _repr_html_(self) -> str:
        """Return tables of what this version is and has, for notebooks."""
        state = self.snapshot
        rows: list[tuple[str, Any]] = [
            ("Dataset", self.path),
            ("Version", f"{self.version} of {self.head.snapshot.version}"),
            ("Time (UTC)", f"{from_nanoseconds(state.time):%Y-%m-%d %H:%M:%S}"),
            ("Rows", ", ".join(f"{len(runs):,} along {name}" for name, runs in state.rows.items())),
            ("Tags", ", ".join(sorted(n for n, v in self.tags.items() if v == self.version))),
        ]
        try:
            members = group_html(self.group)
        except VirtualZarrError as error:
            # A version that has expired is shown as what it is.
            rows, members = [*rows, ("Arrays", error.message)], ""
        return facts_html(rows) + members

    @property
    def version(self) -> int:
        """The version that this is."""
        return self.snapshot.version

    @property
    def schema(self) -> Schema:
        """Documents of the arrays and groups, and the options that later files are treated by."""
        return self._schema

    @property
    def dimension(self) -> str:
        """The dimension along which rows come and go."""
        return self._schema.growing

    @property
    def open_segment(self) -> SegmentOpener:
        """What opens the segments of this version."""
        return self._open

    @property
    def group(self) -> Group:
        """All arrays and groups, read as they are needed; they stay at this version."""
        return self._group(self._find_rows())

    def _group(self, rows: RowFinder | Stretches) -> Group:
        schema = self._schema
        has_fixed = len(schema.axes) < len(schema.arrays)
        fixed = self.run(read_entries(self.snapshot, at_static)) if has_fixed else []
        with objects.parse_errors(f"{self.path}/{HEAD}"):
            built = build_arrays(rows, fixed, schema.arrays, self.dimension, self._open)
            if isinstance(rows, RowFinder) and rows.may_have_layers:
                add_layers(built, schema.arrays, rows.contents, self.dimension, self._open)
        return _nest(schema.groups, built, "")

    def _find_rows(self) -> RowFinder:
        return RowFinder(self.snapshot, self.dimension, self._open.run)

    def growing_arrays(self) -> dict[str, Array]:
        """Return the arrays that grow as their documents have them, by path, without chunks."""
        arrays = self._schema.arrays
        chunks = {path: VersionChunks(arrays[path], path, None, None, self._open)
                  for path in self._schema.axes}  # fmt: skip
        return {path: Array(arrays[path], chunks[path], path) for path in chunks}

    @property
    def layers(self) -> list[LayerInfo]:
        """Chunkings that some rows have beside the first: see `Dataset.compact`."""
        return list_layers(self.run(read_contents(self.snapshot)), self.dimension)

    def find_layer(self, chunks: Mapping[str, int]) -> list[Covered]:
        """Return which rows a layer has."""
        contents = self.run(read_contents(self.snapshot))
        return find_layers(contents, self.dimension).get(tuple(sorted(chunks.items())), [])

    def read_runs(self) -> Runs:
        """Return all rows along the growing dimension."""
        return self.run(read_runs(self.snapshot, self.dimension))

    def read_stretches(self) -> Stretches:
        """Return where all rows lie."""
        return self._find_rows().load()

    def select_rows(self, stretches: Stretches) -> Group:
        """Return all arrays with some rows only."""
        return self._group(stretches)

    def put_object(self, kind: str, data: bytes, digest: str | None = None) -> Named:
        """Store an object in this version's epoch, which a commit will name."""
        return self.run(Stored(kind, data, digest).put(self.snapshot.epoch))

    def preview(self, changes: Sequence[Change]) -> Self:
        """Return the dataset as changes leave it that are part of a commit to come."""
        head = self.run(apply_changes(self.head, changes))
        return self._at(head, head.snapshot)

    def find_files(self, files: Sequence[str]) -> set[str]:
        """Return those of several files that rows of this version come from, as URIs."""
        uris = [resolve_uri(file) for file in files]
        find = find_named_files(
            self.snapshot, self.dimension, uris, self.path, self._open.coordinates
        )
        return set(self.run(find))

    def find_unclear_files(self, files: Sequence[str]) -> set[str]:
        """Return those of several files that are there, but nobody knows in which version.

        Some rows of theirs came without a date and a tag, or by a package that did not store
        versions, and were folded: what they are now cannot be compared. As URIs.
        """
        uris = [resolve_uri(file) for file in files]
        stored = self.run(
            find_versions(
                self.snapshot, self.dimension, self.schema.axes, self._open, self.path, uris
            )
        )
        return {uri for uri, each in stored.items() if not all(map(tells_versions, each))}

    def list_objects(self) -> dict[str, int]:
        """Return the sizes of all stored objects, those that are garbage as well."""
        return self._place.ask(self._place.list_objects)

    def select_new_files(self, files: Sequence[str], duplicates: Duplicates) -> list[str]:
        """Return those of several files that no rows of this version come from.

        Raises
        ------
        MismatchError, SourceChangedError
            As for `Dataset.append`.
        """
        return self.run(
            select_new_files(
                self.snapshot, self.dimension, self.schema.axes, self._open, self.path,
                files, duplicates, self._options["storage_options"],
            )
        )  # fmt: skip

    def fit(self, group: Group, options: Mapping[str, Any]) -> Addition:
        """Return new rows in the terms of what is stored, checked against it.

        Raises
        ------
        MismatchError
            They differ in what must be equal.
        """
        return fit(self, group, options)

    def select_last_row(self) -> Group:
        """Return all arrays with the last row only, or none if there is none."""
        stretches = []
        if count := len(self.snapshot.rows_of(self.dimension)):
            last = self.run(RowLookup(self.snapshot, self.dimension).find(count - 1))
            row = last.offset + count - 1 - last.start
            stretches = [Stretch(last.entry, row, row + 1)]
        return self._group(Stretches.of(stretches))

    def fixed_arrays(self) -> dict[str, Array]:
        """Return the arrays that do not grow, by path."""
        arrays = self._schema.arrays
        fixed = {path: arrays[path] for path in arrays if path not in self._schema.axes}
        entries = self.run(read_entries(self.snapshot, at_static)) if fixed else []
        return build_arrays(Stretches.of([]), entries, fixed, self.dimension, self._open)

    def refresh(self) -> Self:
        """Return the dataset at its newest version."""
        head = self.run(read_head(self.head))
        is_same = head is self.head and self.snapshot is head.snapshot
        return self if is_same else self._at(head)

    def has_commit(self, commit_id: str) -> bool:
        """Tell whether a commit is in the history, up to what was read of it."""
        return self.run(walk_log(self.head, lambda now: find_commit(now, commit_id, 0), 1))

    def history(self, start: int = 1, stop: int | None = None) -> History:
        """Return versions, the oldest first.

        Parameters
        ----------
        start : int
            The first of them; negative numbers count from the newest one.
        stop : int, optional
            The version after the last of them.

        Returns
        -------
        list of Version
            When, by whom, why, and with which files each was made. It is shown as a table.
        """
        newest = self.head.snapshot.version
        start = max(newest + 1 + start, 1) if start < 0 else start
        stop = newest + 1 if stop is None else min(stop, newest + 1)
        return self.run(
            walk_log(self.head, lambda now: list_versions(now, self.path, start, stop), start)
        )

    def diff(self, a: int, b: int | None = None) -> Diff:
        """Compare two versions.

        Parameters
        ----------
        a, b : int
            The second is this one by default.

        Returns
        -------
        Diff
            Rows that came, went and were replaced, by coordinates and files; what changed in
            arrays and attributes.
        """
        later = self.version if b is None else b
        return compare(self, *(self._at_version(version) for version in (a, later)))

    def _at_version(self, version: int) -> Self:
        snapshot = self._read_version(self.head, version)
        # A head of that version, of which nothing but the snapshot is looked at.
        return self._at(replace(self.head, snapshot=snapshot), snapshot)

    @property
    def tags(self) -> dict[str, int]:
        """The versions that have a name."""
        return dict(self.head.snapshot.tags)


def _nest(groups: Mapping[str, Any], arrays: Mapping[str, Array], path: str) -> Group:
    """Return a group with what is in it, from nodes by path."""
    prefix = f"{path}/" if path else ""
    members: dict[str, Any] = {}
    for node in [*groups, *arrays]:
        if node != path and node.startswith(prefix) and "/" not in node[len(prefix) :]:
            name = node[len(prefix) :]
            members[name] = arrays[node] if node in arrays else _nest(groups, arrays, node)
    return Group(groups.get(path, {}), members, path)
