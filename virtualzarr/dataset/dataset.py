"""Datasets with versions: opened at one, changed by commits, with their history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from virtualzarr.array import Array
from virtualzarr.combine.concat_stack import concat_rows
from virtualzarr.combine.harmonize_to_stored import harmonize_to_stored
from virtualzarr.dataset import objects
from virtualzarr.dataset.arrays import Stretch, build_arrays, find_stretches
from virtualzarr.dataset.commit import Change, commit
from virtualzarr.dataset.describe import (
    as_virtual_v3,
    build_cells,
    count_rows,
    describe_commit,
    find_growing,
    list_sources,
    read_coordinates,
)
from virtualzarr.dataset.head import (
    read_head,
    read_version,
)
from virtualzarr.dataset.history import Version, find_version, list_versions, to_nanoseconds
from virtualzarr.dataset.merge import group_chunks, merge
from virtualzarr.dataset.open_storage import open_storage
from virtualzarr.dataset.segment import pack
from virtualzarr.dataset.segment_opener import SegmentOpener
from virtualzarr.dataset.snapshot import Snapshot
from virtualzarr.dataset.vacuum import VacuumReport, vacuum
from virtualzarr.dataset.verbs import Rows, Stored, add_rows, drop_rows, roll_back, set_tag
from virtualzarr.errors import CommitFailedError, MismatchError
from virtualzarr.hierarchy.group import Group
from virtualzarr.metadata import (
    ArrayMetadata,
    with_dtypes,
)
from virtualzarr.metadata.node_documents import from_documents
from virtualzarr.references.native.manifest_growth import check_alike
from virtualzarr.stores.files import resolve_uri
from virtualzarr.stores.location import Location
from virtualzarr.virtual.rechunk import with_decoder


class Dataset:
    """A dataset at one version.

    Parameters
    ----------
    path : path or str
        A directory, or the URL of a folder: ``s3://``, ``gs://`` or ``az://`` (with the extra
        ``object-stores``), ``memory://``, and any other that can be read, such as ``https://``.
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
        location = Location.of(f"{self.path}/", storage_options, allowed)
        self._place = open_storage(location, single_writer)
        self.head = self._place.run(read_head())
        if tag is not None:
            version = self.head.snapshot.tags[tag]
        if at is not None:
            version = self._place.run(find_version(self.head, to_nanoseconds(at)))
        self.snapshot = self.head.snapshot
        if version is not None:
            self.snapshot = self._place.run(read_version(self.head, version))
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
        about = describe_commit("replace" if replaced else "append", message, list_sources(group))
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
            self.dimension, start, stop, self._open.coordinates, describe_commit("drop", message)
        )
        return self._commit(change)

    def tag(self, name: str, version: int | None = None) -> Dataset:
        """Give a version a name, by which it stays: this one by default."""
        return self._commit(set_tag(name, version or self.version, describe_commit("tag", name)))

    def delete_tag(self, name: str) -> Dataset:
        """Take a tag away; the version may expire then."""
        return self._commit(set_tag(name, None, describe_commit("delete tag", name)))

    def rollback(self, version: int, *, message: str | None = None) -> Dataset:
        """Make everything as it was at a version, in a new one; nothing leaves the history."""
        return self._commit(roll_back(version, describe_commit("rollback", message)))

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
        return self._place.run(list_versions(self.head, start))

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
