"""Datasets with versions: opened at one, changed by commits, with their history."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.combine.concat_stack import concat_rows
from virtualzarr.combine.harmonize_to_stored import harmonize_to_stored
from virtualzarr.dataset import objects
from virtualzarr.dataset.arrays import Stretch, build_arrays, find_stretches
from virtualzarr.dataset.commit import Change, CommitFailedError, commit, create
from virtualzarr.dataset.describe import (
    as_virtual_v3,
    build_cells,
    count_rows,
    describe_nodes,
    find_growing,
    list_sources,
    read_coordinates,
)
from virtualzarr.dataset.directory import Directory
from virtualzarr.dataset.head import (
    Head,
    VersionExpiredError,
    read_head,
    read_records,
    read_version,
)
from virtualzarr.dataset.merge import group_chunks, merge
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.segment import Cells, Segment, pack
from virtualzarr.dataset.snapshot import Entry, Named, Record, Snapshot
from virtualzarr.dataset.vacuum import VacuumReport, vacuum
from virtualzarr.dataset.verbs import Rows, Stored, add_rows, drop_rows, roll_back, set_tag
from virtualzarr.errors import (
    MetadataError,
    MismatchError,
    NodeExistsError,
    SourceNotFoundError,
    VirtualZarrError,
)
from virtualzarr.hierarchy.group import Group
from virtualzarr.metadata import (
    ArrayMetadata,
    GroupMetadata,
    dumps_json,
    with_dtypes,
)
from virtualzarr.metadata.node_documents import from_documents, to_documents
from virtualzarr.references.native.manifest_growth import check_alike
from virtualzarr.stores.files import LocalFile, resolve_uri
from virtualzarr.stores.location import Location
from virtualzarr.virtual.rechunk import with_decoder

_MARKER = "virtualzarr.dataset"
_MOST_SEGMENTS = 128
_LEFT_BEHIND = {"zarr.json", "schemas", "segments", "log", "head.__lock", "zarr.json.__lock"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SegmentOpener:
    """Opens segments for a version of a dataset, and keeps those that were used lately."""

    def __init__(self, location: Location, version: int) -> None:
        self.location, self.folder = location, location.uri.rstrip("/")
        self.version = version
        self._segments: dict[str, Segment] = {}

    def __call__(self, named: Named) -> Segment:
        """Return a segment."""
        segment = self._segments.pop(named.name, None)
        if segment is None:
            file = LocalFile(f"{self.folder}/{named.name}")
            try:
                segment = Segment(file, named, self.folder, self.location)
            except SourceNotFoundError as error:
                raise self._explain(error) from error
            while len(self._segments) >= _MOST_SEGMENTS:
                self._segments.pop(next(iter(self._segments)))
        self._segments[named.name] = segment
        return segment

    def __reduce__(self) -> tuple[Any, ...]:
        return SegmentOpener, (self.location, self.version)

    def _explain(self, error: SourceNotFoundError) -> VirtualZarrError:
        """Tell a version that a vacuum took away from a dataset that is damaged."""
        now = Directory(self.folder).run(read_head()).snapshot
        if self.version < now.expired and self.version not in now.tags.values():
            return VersionExpiredError(
                f"version {self.version} has expired; open the dataset anew", file=error.file
            )
        return MetadataError("a segment of the dataset is missing", file=error.file)

    def coordinates(self, entry: Entry) -> Protocol[NDArray[Any]]:
        """Return the coordinates of the rows of an entry."""
        return self(entry.segment).coordinates()
        yield  # a protocol that asks for nothing: segments never change


@dataclass(frozen=True, slots=True)
class Version:
    """One version in the history of a dataset.

    Attributes
    ----------
    version : int
    time : datetime
        With a time zone (UTC).
    commit : str
    about : mapping
        Verb, writer, message and source files, as far as they are known.
    """

    version: int
    time: datetime
    commit: str
    about: Mapping[str, Any]


class Dataset:
    """A dataset at one version.

    Parameters
    ----------
    path : path or str
        A directory.
    version : int, optional
    at : datetime or str, optional
        The version that was the newest then; in UTC if there is no time zone.
    tag : str, optional
    allowed, storage_options
        As for `virtualzarr.open`.

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
    ) -> None:
        if sum(choice is not None for choice in (version, at, tag)) > 1:
            raise ValueError("give one of version, at and tag")
        self.path = resolve_uri(path).rstrip("/")
        self._options: dict[str, Any] = {"allowed": allowed, "storage_options": storage_options}
        self._place = Directory(self.path)
        self.head = self._place.run(read_head())
        if tag is not None:
            version = self.head.snapshot.tags[tag]
        if at is not None:
            version = self._place.run(find_version(self.head, to_nanoseconds(at)))
        self.snapshot = self.head.snapshot
        if version is not None:
            self.snapshot = self._place.run(read_version(self.head, version))
        location = Location.of(f"{self.path}/", storage_options, allowed)
        self._open = SegmentOpener(location, self.snapshot.version)
        self._schema = self._read_schema(self.snapshot)

    def __repr__(self) -> str:
        rows = ", ".join(f"{name}: {len(runs)}" for name, runs in self.snapshot.runs.items())
        return f"<Dataset {self.path} version {self.version} ({rows})>"

    @property
    def version(self) -> int:
        """The version that this is."""
        return self.snapshot.version

    @property
    def dimension(self) -> str:
        """The dimension along which rows come and go."""
        return str(self._schema["growing"])

    def _read_schema(self, state: Snapshot) -> dict[str, Any]:
        if state.schema is None:
            return {"nodes": {}, "growing": "", "dtypes": {}}
        (data,) = self._place.run(objects.read([state.schema]))
        schema: dict[str, Any] = objects.decode(data)
        return schema

    @property
    def group(self) -> Group:
        """All arrays and groups, read as they are needed; they stay at this version."""
        return self._group(None)

    def _group(self, stretches: Sequence[Stretch] | None) -> Group:
        groups: dict[str, dict[str, Any]] = {}
        arrays: dict[str, ArrayMetadata] = {}
        for path, document in self._schema["nodes"].items():
            metadata = from_documents({"zarr.json": document})
            dtypes = self._schema["dtypes"].get(path, {})
            metadata.attributes.update(with_dtypes(metadata.attributes, dtypes))
            if isinstance(metadata, ArrayMetadata):
                arrays[path] = metadata
            else:
                groups[path] = dict(metadata.attributes)
        built = build_arrays(self.snapshot, arrays, self.dimension, self._open, stretches)
        return _nest(groups, built, "")

    # Changes.

    def append(self, group: Group, *, message: str | None = None, replaced: bool = False,
               commit_id: str | None = None, **options: Any) -> Dataset:  # fmt: skip
        """Add rows where their coordinates belong: at the end, or between others.

        Parameters
        ----------
        group : Group
            Virtual, such as `virtualzarr.virtualize` returns.
        message : str, optional
            For the history.
        replaced : bool
            Whether rows from the first to the last of these coordinates go.
        commit_id : str, optional
            Of a commit whose outcome is not known: it is done once.
        **options
            As for `concat`.

        Returns
        -------
        Dataset
            At the new version.

        Raises
        ------
        MismatchError
            The rows differ in what must be equal, or there are rows of these coordinates.
        """
        fitting = self._fit(group, options)
        growing = find_growing(fitting, self.dimension)
        cells = {path: build_cells(array, self.dimension) for path, array in growing.items()}
        coordinates = read_coordinates(fitting, self.dimension)
        data, digest = pack(cells, coordinates)
        rows = Rows(
            self.dimension,
            Stored("segments", data, digest),
            count_rows(fitting, self.dimension),
            coordinates,
            group_chunks({path: item.chunks or () for path, item in cells.items()}),
        )
        about = _about("replace" if replaced else "append", message, list_sources(group))
        change = add_rows(rows, self._open.coordinates, about, replaced=replaced)
        dataset = self._commit(change, commit_id)
        while dataset.merge():
            dataset = dataset.refresh()
        return dataset

    def merge(self) -> bool:
        """Make one segment of several small ones if it is time to; tell whether it was.

        A later merge does what this one cannot, as it met another writer.
        """
        axes: dict[str, tuple[int, int]] = {}
        for path, document in self._schema["nodes"].items():
            names = document.get("dimension_names") or ()
            if self.dimension in names:
                axes[path] = (len(names), names.index(self.dimension))
        change = merge(self.head, self.dimension, axes, self._open)
        if change is None:
            return False
        try:
            self._place.run(commit(self.head, change))
        except (MismatchError, CommitFailedError):
            return False
        return True

    def _fit(self, group: Group, options: Mapping[str, Any]) -> Group:
        """Return an addition in the terms of what is stored, checked against it."""
        addition = group.map_arrays(as_virtual_v3)
        if not len(self.snapshot.runs.get(self.dimension, ())):
            return addition
        last = find_stretches(self.snapshot, self.dimension)[-1]
        ends = self._group([Stretch(last.entry, last.stop - 1, last.stop)])
        addition = harmonize_to_stored(ends, addition, options)
        # Attributes stay as they are stored.
        joined = concat_rows(
            [ends, addition], self.dimension, **{"combine_attrs": "override", **options}
        )

        def new_rows(array: Array) -> Array:
            if self.dimension not in array.dims:
                return array
            axis = array.dims.index(self.dimension)
            last = ends[array.path]
            assert isinstance(last, Array)
            check_alike(last, array, axis)
            stored = last.metadata.pipeline
            if array.metadata.pipeline.decoding_key(array.dtype) != stored.decoding_key(
                array.dtype
            ):
                manifest = with_decoder(array.manifest, array.metadata.pipeline)
                array = array.replace(array.metadata.replace(pipeline=stored), manifest)
            return array.lazy[tuple(slice(1 if i == axis else 0, None) for i in range(array.ndim))]

        return joined.map_arrays(new_rows)

    def drop(self, start: Any, stop: Any, *, message: str | None = None) -> Dataset:
        """Drop the rows with coordinates from `start` to `stop`, both included."""
        change = drop_rows(
            self.dimension, start, stop, self._open.coordinates, _about("drop", message)
        )
        return self._commit(change)

    def tag(self, name: str, version: int | None = None) -> Dataset:
        """Give a version a name, by which it stays: this one by default."""
        return self._commit(set_tag(name, version or self.version, _about("tag", name)))

    def delete_tag(self, name: str) -> Dataset:
        """Take a tag away; the version may expire then."""
        return self._commit(set_tag(name, None, _about("delete tag", name)))

    def rollback(self, version: int, *, message: str | None = None) -> Dataset:
        """Make everything as it was at a version, in a new one; nothing leaves the history."""
        return self._commit(roll_back(version, _about("rollback", message)))

    def vacuum(self, keep: int = 1) -> VacuumReport:
        """Delete what only versions before the last `keep` ones need, tagged ones excepted."""
        head = self._place.run(read_head())
        return self._place.run(vacuum(head, max(1, head.snapshot.version - keep + 1)))

    def _commit(self, change: Change, commit_id: str | None = None) -> Dataset:
        self._place.run(commit(self.head, change, commit_id))
        return self.refresh()

    # The past.

    def refresh(self) -> Dataset:
        """Return the dataset at its newest version."""
        return Dataset(self.path, **self._options)

    def history(self, start: int = 1) -> list[Version]:
        """Return all versions from one on, the oldest first."""
        records = self._place.run(read_records(self.head, start))
        first = self.head.snapshot.version - len(records) + 1
        return [
            Version(
                first + k,
                _EPOCH + timedelta(microseconds=record.time // 1000),
                record.commit,
                dict(record.about),
            )
            for k, record in enumerate(records)
        ]

    @property
    def tags(self) -> dict[str, int]:
        """The versions that have a name."""
        return dict(self.head.snapshot.tags)


def create_dataset(
    path: Any, group: Group, dimension: str, *, message: str | None = None
) -> Dataset:
    """Make a dataset of virtual arrays, along one of whose dimensions rows come and go.

    Raises
    ------
    NodeExistsError
        There is something at the path.
    PublishError, UnsupportedError
        An array has no form in it.
    """
    folder = resolve_uri(path).rstrip("/")
    # What a creation left that was stopped before its head was there is in nobody's way.
    if os.path.isdir(folder) and not {*os.listdir(folder)} <= _LEFT_BEHIND:
        raise NodeExistsError("there is something already", file=folder)
    group = group.map_arrays(as_virtual_v3)
    growing = find_growing(group, dimension)
    if not growing:
        raise ValueError(f"no array has a dimension {dimension!r}")
    cells = {path: build_cells(array, dimension) for path, array in growing.items()}
    static = {
        path: Cells(array.manifest, None)
        for path, array in group.members(None)
        if isinstance(array, Array) and path not in growing
    }
    coordinates = read_coordinates(group, dimension)
    schema = Stored("schemas", objects.encode({"growing": dimension} | describe_nodes(group)))
    moving = Stored("segments", *pack(cells, coordinates))
    fixed = Stored("segments", *pack(static, None)) if static else None
    rows = Rows(
        dimension,
        moving,
        count_rows(group, dimension),
        coordinates,
        group_chunks({path: item.chunks or () for path, item in cells.items()}),
    )
    directory = Directory(folder)

    def change(head: Head) -> Protocol[Record]:
        new_record = yield from add_rows(
            rows, _no_coordinates, _about("create", message, list_sources(group))
        )(head)
        entries = new_record.added
        if fixed is not None:
            named = yield from fixed.put(head.snapshot.epoch)
            entries = (Entry(named, head.snapshot.sequence, {}), *entries)
        return replace(
            new_record, added=entries, schema=(yield from schema.put(head.snapshot.epoch))
        )

    marker = {_MARKER: {"must_understand": True, "version": 2}}
    root = to_documents(GroupMetadata({}, 3))["zarr.json"] | marker
    # Other readers refuse the dataset from its first moment on.
    directory.store.set("zarr.json", dumps_json(root))
    directory.run(create(change))
    return Dataset(folder)


def is_dataset(path: str) -> bool:
    """Tell whether a directory is a dataset."""
    return os.path.isfile(os.path.join(path, "head"))


def _no_coordinates(entry: Entry) -> Protocol[NDArray[Any]]:
    raise AssertionError("there are no entries yet")
    yield


def find_version(head: Head, time: int) -> Protocol[int]:
    """Return the version that was the newest at a time.

    Raises
    ------
    IndexError
        There was none.
    """
    low, high = 1, head.snapshot.version
    if time >= head.snapshot.time:
        return high
    while low < high:
        middle = (low + high) // 2
        (record, *_) = yield from read_records(head, middle, 1)
        low, high = (middle + 1, high) if record.time <= time else (low, middle)
    if low == 1:
        raise IndexError("the dataset did not exist then")
    return low - 1


def to_nanoseconds(time: datetime | str) -> int:
    """Return a time as nanoseconds since 1970."""
    if isinstance(time, str):
        time = datetime.fromisoformat(time)
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    past = time - _EPOCH
    return ((past.days * 86_400 + past.seconds) * 10**6 + past.microseconds) * 1000


def _about(verb: str, message: str | None, files: Sequence[str] = ()) -> dict[str, Any]:
    about: dict[str, Any] = {"verb": verb, "writer": f"{socket.gethostname()}:{os.getpid()}"}
    if message:
        about["message"] = message
    if files:
        about["files"] = list(files)
    return about


def _nest(groups: Mapping[str, Any], arrays: Mapping[str, Array], path: str) -> Group:
    """Return a group with what is in it, from nodes by path."""
    prefix = f"{path}/" if path else ""
    members: dict[str, Any] = {}
    for node in [*groups, *arrays]:
        if node != path and node.startswith(prefix) and "/" not in node[len(prefix) :]:
            name = node[len(prefix) :]
            members[name] = arrays[node] if node in arrays else _nest(groups, arrays, node)
    return Group(groups.get(path, {}), members, path)
