"""Zarr v2 and v3 hierarchies in a store, opened in place."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from virtualzarr.array import Array
from virtualzarr.errors import (
    NodeNotFoundError,
    RefusedWarning,
    UnsupportedError,
    VirtualZarrError,
)
from virtualzarr.group import Group
from virtualzarr.metadata import (
    ArrayMetadata,
    Consolidated,
    GroupMetadata,
    loads_json,
    normalize_path,
    parse_array_v2,
    parse_array_v3,
    parse_consolidated_v2,
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
        return node if on_error == "raise" else _what_works(node)
    name = str(path_or_url).rstrip("/").rsplit("/", 1)[-1].removesuffix(".zarr") or "array"
    return Group({}, {name: node})


def _what_works(group: Group) -> Group:
    """Return a group without the nodes that cannot be opened, which are warned about."""
    members: dict[str, Array | Group] = {}
    refused: dict[str, str] = {}
    for name in group:
        try:
            node = group[name]
        except VirtualZarrError as error:
            warnings.warn(f"{group.path}/{name}: {error}", RefusedWarning, stacklevel=3)
            refused[name] = str(error)
            continue
        if isinstance(node, Group):
            node = _what_works(node)
            refused |= {f"{name}/{path}": why for path, why in node.refused.items()}
        members[name] = node
    return Group(group.attributes, members, group.path, refused)


def open_hierarchy(
    store: Store, path: str = "", *, zarr_format: int | None = None
) -> Array | Group:
    """Open the array or group under a path of a store, v3 before v2 if no format is asked for.

    Consolidated metadata are used in stores that are only read: where there are writers, they may
    not be up to date.

    Raises
    ------
    NodeNotFoundError
        If nothing is stored there.
    MetadataError
        If a document breaks its specification.
    """
    path = normalize_path(path)
    metadata = read_metadata(store, path, zarr_format)
    if metadata is None:
        kind = "Zarr" if zarr_format is None else f"Zarr v{zarr_format}"
        raise NodeNotFoundError(f"no {kind} array or group at {path!r}", file=store.uri)
    if isinstance(metadata, ArrayMetadata):
        return Array.stored(metadata, store, path)
    if getattr(store, "writable", False):
        metadata = metadata.replace(consolidated=None)
    return Group(metadata.attributes, StoredMembers(store, path, metadata), path)


class StoredMembers(Mapping[str, "Array | Group"]):
    """The members of a stored group, read when they are asked for.

    Attributes
    ----------
    store : Store
    path : str
    metadata : GroupMetadata
    """

    def __init__(self, store: Store, path: str, metadata: GroupMetadata) -> None:
        self.store = store
        self.path = path
        self.metadata = metadata
        self._names: list[str] | None = None

    def _join(self, name: str) -> str:
        return f"{self.path}/{name}" if self.path else name

    def __getitem__(self, name: str) -> Array | Group:
        path = self._join(name)
        everything = self.metadata.consolidated
        if everything is None:
            try:
                return open_hierarchy(self.store, path, zarr_format=self.metadata.zarr_format)
            except NodeNotFoundError:
                return open_hierarchy(self.store, path)
        if name in everything.refused:
            raise everything.refused[name].with_traceback(None)
        metadata = everything.nodes.get(name)
        if isinstance(metadata, ArrayMetadata):
            return Array.stored(metadata, self.store, path)
        if metadata is None and name not in self._listed():
            raise KeyError(name)
        group = metadata or GroupMetadata(zarr_format=self.metadata.zarr_format)
        below = Consolidated(_below(everything.nodes, name), _below(everything.refused, name))
        members = StoredMembers(self.store, path, group.replace(consolidated=below))
        return Group(group.attributes, members, path)

    def _listed(self) -> list[str]:
        # Where there are writers, names may come and go.
        if self._names is None or getattr(self.store, "writable", False):
            everything = self.metadata.consolidated
            if everything is not None:
                paths = [*everything.nodes, *everything.refused]
                self._names = sorted({path.split("/", 1)[0] for path in paths if path})
            else:
                self._names = self._found()
        return self._names

    def _found(self) -> list[str]:
        """Return the names below which the store has nodes.

        Raises
        ------
        UnsupportedError
            The store cannot list: not even the group's own document is in the listing.
        """
        listed = list(self.store.list_dir(self.path))
        names = [name for name in listed if name not in _MARKERS and self._is_node(name)]
        if not names and not set(_MARKERS) & {*listed}:
            raise UnsupportedError(
                "the server does not list what the group holds; name the members, "
                "or consolidate the metadata",
                file=self.store.uri,
                variable=self.path or "/",
            )
        return names

    def _is_node(self, name: str) -> bool:
        keys = (f"{self._join(name)}/{marker}" for marker in _MARKERS)
        return any(self.store.get(key) is not None for key in keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed())

    def __len__(self) -> int:
        return len(self._listed())


T = TypeVar("T")


def _below(nodes: Mapping[str, T], name: str) -> dict[str, T]:
    """Return the nodes below a name, by their paths from there."""
    start = f"{name}/"
    return {path[len(start) :]: node for path, node in nodes.items() if path.startswith(start)}


def read_metadata(
    store: Store, path: str, zarr_format: int | None = None
) -> ArrayMetadata | GroupMetadata | None:
    """Read the metadata of a node, or None where there is none, v3 before v2."""
    prefix = f"{path}/" if path else ""

    def document(key: str) -> Any:
        data = store.get(prefix + key)
        return None if data is None else loads_json(data)

    try:
        if zarr_format != 2 and (node := document("zarr.json")) is not None:
            is_group = isinstance(node, dict) and node.get("node_type") == "group"
            return parse_group_v3(node) if is_group else parse_array_v3(node)
        if zarr_format == 3:
            return None
        if (zarray := document(".zarray")) is not None:
            return parse_array_v2(zarray, document(".zattrs"))
        zgroup, consolidated = document(".zgroup"), document(".zmetadata")
        if zgroup is None and consolidated is None:
            return None
        group = parse_group_v2(zgroup or {"zarr_format": 2}, document(".zattrs"))
        if consolidated is None:
            return group
        return group.replace(consolidated=parse_consolidated_v2(consolidated))
    except VirtualZarrError as error:
        error.at(file=store.uri, variable=path or "/")
        raise
