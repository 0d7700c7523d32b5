"""Datasets created from virtual arrays."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.dataset import objects
from virtualzarr.dataset.commit import create
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.dataset.describe import (
    as_virtual_v3,
    build_cells,
    count_rows,
    describe_commit,
    describe_nodes,
    find_growing,
    list_sources,
    read_coordinates,
)
from virtualzarr.dataset.head import Head
from virtualzarr.dataset.merge import group_chunks
from virtualzarr.dataset.open_storage import open_storage
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.segment import Cells, pack
from virtualzarr.dataset.snapshot import Entry, Record
from virtualzarr.dataset.verbs import Rows, Stored, add_rows
from virtualzarr.errors import NodeExistsError
from virtualzarr.hierarchy.group import Group
from virtualzarr.metadata import GroupMetadata, dumps_json
from virtualzarr.metadata.node_documents import to_documents
from virtualzarr.stores.files import resolve_uri
from virtualzarr.stores.location import Location

_MARKER = "virtualzarr.dataset"
_LEFT_BEHIND = {"zarr.json", "schemas", "segments", "log"}


def create_dataset(
    path: Any,
    group: Group,
    dimension: str,
    *,
    message: str | None = None,
    allowed: str | Iterable[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    single_writer: bool = False,
) -> Dataset:
    """Make a dataset of virtual arrays, along one of whose dimensions rows come and go.

    Parameters
    ----------
    path : path or str
        A directory, or a URL; see `Dataset`.
    group : Group
    dimension : str
    message : str, optional
        For the history.
    allowed, storage_options, single_writer
        As for `Dataset`.

    Raises
    ------
    NodeExistsError
        There is something at the path.
    PublishError, UnsupportedError
        An array has no form in it.
    """
    folder = resolve_uri(path).rstrip("/")
    options: dict[str, Any] = {"allowed": allowed, "storage_options": storage_options}
    storage = open_storage(Location.of(folder, **options), single_writer)
    storage.require_commits()
    # What a creation left that was stopped before its head was there is in nobody's way.
    if any(name not in _LEFT_BEHIND and name[-4:] != ".new" for name in storage.list_top()):
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

    def change(head: Head) -> Protocol[Record]:
        new_record = yield from add_rows(
            rows, _no_coordinates, describe_commit("create", message, list_sources(group))
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
    storage.put_root(dumps_json(root))
    storage.run(create(change))
    return Dataset(folder, single_writer=single_writer, **options)


def is_dataset(path: str) -> bool:
    """Tell whether a directory is a dataset."""
    return os.path.isfile(os.path.join(path, "head"))


def _no_coordinates(entry: Entry) -> Protocol[NDArray[Any]]:
    raise AssertionError("there are no entries yet")
    yield
