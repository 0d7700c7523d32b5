"""Datasets created from virtual arrays."""

from __future__ import annotations

import os
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
from virtualzarr.dataset.directory import Directory
from virtualzarr.dataset.head import Head
from virtualzarr.dataset.merge import group_chunks
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.segment import Cells, pack
from virtualzarr.dataset.snapshot import Entry, Record
from virtualzarr.dataset.verbs import Rows, Stored, add_rows
from virtualzarr.errors import NodeExistsError
from virtualzarr.hierarchy.group import Group
from virtualzarr.metadata import GroupMetadata, dumps_json
from virtualzarr.metadata.node_documents import to_documents
from virtualzarr.stores.files import resolve_uri

_MARKER = "virtualzarr.dataset"
_LEFT_BEHIND = {"zarr.json", "schemas", "segments", "log", "head.__lock", "zarr.json.__lock"}


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
    directory.store.set("zarr.json", dumps_json(root))
    directory.run(create(change))
    return Dataset(folder)


def is_dataset(path: str) -> bool:
    """Tell whether a directory is a dataset."""
    return os.path.isfile(os.path.join(path, "head"))


def _no_coordinates(entry: Entry) -> Protocol[NDArray[Any]]:
    raise AssertionError("there are no entries yet")
    yield
