"""Zarr v2 and v3 hierarchies in a store, opened in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from virtualzarr.array import Array
from virtualzarr.errors import NodeNotFoundError, VirtualZarrError
from virtualzarr.group import Group
from virtualzarr.metadata import (
    ArrayMetadata,
    GroupMetadata,
    loads_json,
    parse_array_v2,
    parse_array_v3,
    parse_group_v2,
    parse_group_v3,
)
from virtualzarr.stores import Store, open_store

_MARKERS = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")


def is_hierarchy(store: Store) -> bool:
    """Tell whether a store's root is a Zarr array or group."""
    return any(store.get(marker) is not None for marker in _MARKERS)


def scan(
    path_or_url: Any,
    *,
    on_error: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> Group:
    """Open a Zarr hierarchy; a root that is an array becomes the member of a group."""
    node = open_hierarchy(open_store(path_or_url, storage_options))
    if isinstance(node, Group):
        return node
    name = str(path_or_url).rstrip("/").rsplit("/", 1)[-1].removesuffix(".zarr") or "array"
    return Group({}, {name: node})


def open_hierarchy(store: Store, path: str = "") -> Array | Group:
    """Open the array or group under a path of a store, v3 before v2.

    Raises
    ------
    NodeNotFoundError
        If nothing is stored there.
    MetadataError
        If a document breaks its specification.
    """
    path = path.strip("/")
    metadata = read_metadata(store, path)
    if metadata is None:
        raise NodeNotFoundError(f"no Zarr array or group at {path!r}", file=store.uri)
    if isinstance(metadata, ArrayMetadata):
        return Array.stored(metadata, store, path)
    return Group(metadata.attributes, StoredMembers(store, path, metadata), path)


class StoredMembers(Mapping[str, "Array | Group"]):
    """The members of a stored group, read when they are asked for."""

    def __init__(self, store: Store, path: str, metadata: GroupMetadata) -> None:
        self._store = store
        self._path = path
        self._metadata = metadata
        self._names: list[str] | None = None

    def _join(self, name: str) -> str:
        return f"{self._path}/{name}" if self._path else name

    def __getitem__(self, name: str) -> Array | Group:
        path = self._join(name)
        consolidated = self._metadata.consolidated
        if consolidated is None:
            return open_hierarchy(self._store, path)
        metadata = consolidated.get(name)
        if isinstance(metadata, ArrayMetadata):
            return Array.stored(metadata, self._store, path)
        below = {
            inner.removeprefix(f"{name}/"): node
            for inner, node in consolidated.items()
            if inner.startswith(f"{name}/")
        }
        if metadata is None and not below:
            raise KeyError(name)
        group = metadata or GroupMetadata({}, zarr_format=self._metadata.zarr_format)
        group = group.replace(consolidated=below)
        return Group(group.attributes, StoredMembers(self._store, path, group), path)

    def __iter__(self) -> Iterator[str]:
        if self._names is None:
            if self._metadata.consolidated is not None:
                self._names = sorted({key.split("/", 1)[0] for key in self._metadata.consolidated})
            else:
                self._names = [
                    name
                    for name in self._store.list_dir(self._path)
                    if not name.startswith((".z", "zarr.json"))
                    and read_metadata(self._store, self._join(name)) is not None
                ]
        return iter(self._names)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def read_metadata(store: Store, path: str) -> ArrayMetadata | GroupMetadata | None:
    """Read the metadata of a node, or None where there is none."""
    prefix = f"{path}/" if path else ""

    def document(key: str) -> Any:
        data = store.get(prefix + key)
        return None if data is None else loads_json(data)

    try:
        if (node := document("zarr.json")) is not None:
            is_group = isinstance(node, dict) and node.get("node_type") == "group"
            return parse_group_v3(node) if is_group else parse_array_v3(node)
        if (zarray := document(".zarray")) is not None:
            return parse_array_v2(zarray, document(".zattrs") or {})
        zgroup, consolidated = document(".zgroup"), document(".zmetadata")
        if zgroup is None and consolidated is None:
            return None
        return parse_group_v2(zgroup, document(".zattrs") or {}, consolidated)
    except VirtualZarrError as error:
        raise error.at(file=store.uri, variable=path or "/") from error.__cause__
