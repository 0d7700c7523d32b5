"""Metadata documents of a reference file, read into nodes by path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from virtualzarr.array import Array
from virtualzarr.errors import BadReferenceError, MetadataError, VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.metadata import (
    ArrayMetadata,
    loads_json,
    normalize_path,
    parse_array_v2,
    parse_array_v3,
    parse_group_v2,
    parse_group_v3,
)
from virtualzarr.metadata.portable import type_mask
from virtualzarr.references.kerchunk.columns import inline_bytes

DOCUMENTS = frozenset((".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json"))
"""Last parts of the keys that hold metadata."""


def is_document(key: str) -> bool:
    """Whether a key holds metadata and not a chunk."""
    return key.rpartition("/")[2] in DOCUMENTS


@dataclass
class Hierarchy:
    """The nodes of a document.

    Attributes
    ----------
    arrays : dict of ArrayMetadata by path
    groups : dict of attributes by path
    errors : dict of errors by path
        Nodes whose metadata could not be read.
    """

    arrays: dict[str, ArrayMetadata] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, VirtualZarrError] = field(default_factory=dict)


def read_hierarchy(documents: Mapping[str, Any], fetch: Callable[[Any], bytes]) -> Hierarchy:
    """Read the metadata of all nodes.

    Parameters
    ----------
    documents : mapping
        By key such as ``a/.zarray``: an object, its JSON as text, or a reference to it.
    fetch : callable
        Returns the bytes of a reference.
    """
    hierarchy = Hierarchy()
    by_path: dict[str, dict[str, Any]] = {}
    for key, value in documents.items():
        path, _, name = key.rpartition("/")
        try:
            if normalize_path(path) != path:
                raise BadReferenceError(f"{path!r} is no path of a node")
            by_path.setdefault(path, {})[name] = _document(key, value, fetch)
        except VirtualZarrError as error:
            hierarchy.errors[path] = error.at(variable=path or "/")
    # Before nodes are read, as parts of a node may be in consolidated metadata only.
    _spread_consolidated(hierarchy, by_path)
    for path, parts in by_path.items():
        if path in hierarchy.errors:
            continue
        try:
            normalize_path(path)  # consolidated metadata may hold any
            _read_node(hierarchy, path, parts)
        except VirtualZarrError as error:
            hierarchy.errors[path] = error.at(variable=path or "/")
    _check_nesting(hierarchy)
    return hierarchy


def _document(key: str, value: Any, fetch: Callable[[Any], bytes]) -> Any:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, str):
        return loads_json(inline_bytes(value, key))
    return loads_json(fetch(value))


def _spread_consolidated(hierarchy: Hierarchy, by_path: dict[str, dict[str, Any]]) -> None:
    """Take from consolidated metadata what has no document of its own.

    Where both exist and say different things, other readers believe the first, or the second:
    nobody can tell which is meant.
    """
    for root, parts in list(by_path.items()):
        for path, name, value in _iter_consolidated(root, parts):
            stored = by_path.setdefault(path, {})
            if (member := _find_difference(stored.setdefault(name, value), value)) is not None:
                error = BadReferenceError(
                    f"{name} and the consolidated metadata differ in {member!r}, and readers "
                    "believe either; remove the one that is wrong"
                )
                hierarchy.errors.setdefault(path, error.at(variable=path or "/"))


def _iter_consolidated(root: str, parts: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield path, name and value of the documents in those of a group."""
    lead = f"{root}/" if root else ""
    zmetadata = parts.pop(".zmetadata", None)
    for key, value in _members(_members(zmetadata).get("metadata")).items():
        path, _, name = f"{lead}{key}".rpartition("/")
        if name in DOCUMENTS:
            yield path, name, value
    consolidated = _members(parts.get("zarr.json")).get("consolidated_metadata")
    for key, value in _members(_members(consolidated).get("metadata")).items():
        yield f"{lead}{key}", "zarr.json", value


_REPEATED = ("consolidated_metadata", "storage_transformers")
"""Members that may be in one of two documents of a node: others say them, or leave them out."""


def _find_difference(a: Any, b: Any) -> str | None:
    """Return the first member in which two documents differ, None if they are alike."""
    if a is b or not (isinstance(a, Mapping) and isinstance(b, Mapping)):
        return None if a is b or _is_alike(a, b) else "all"
    for name in dict.fromkeys((*a, *b)):
        if name not in _REPEATED and not _is_alike(a.get(name), b.get(name)):
            return str(name)
    return None


def _is_alike(a: Any, b: Any) -> bool:
    """Tell whether two JSON values mean the same: None is as good as none, and 1 as 1.0."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return all(_is_alike(a.get(name), b.get(name)) for name in {*a, *b})
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_is_alike, a, b))
    if a in (None, [], {}) and b in (None, [], {}):
        return True
    return bool(a == b) or bool(a != a and b != b)


def _members(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _read_node(hierarchy: Hierarchy, path: str, parts: dict[str, Any]) -> None:
    # Both formats for one node: readers pick either, and nobody can tell which is meant.
    if "zarr.json" in parts:
        if ".zarray" in parts or ".zgroup" in parts:
            raise BadReferenceError("the node has documents of Zarr v2 and of v3; which is meant?")
        document = parts["zarr.json"]
        if _members(document).get("node_type") == "group":
            # What consolidated metadata say was spread over the nodes already.
            plain = {k: v for k, v in document.items() if k != "consolidated_metadata"}
            hierarchy.groups[path] = parse_group_v3(plain).attributes
        else:
            metadata = parse_array_v3(document)
            type_mask(metadata)
            hierarchy.arrays[path] = metadata
    elif ".zarray" in parts:
        metadata = parse_array_v2(parts[".zarray"], parts.get(".zattrs"))
        type_mask(metadata)
        hierarchy.arrays[path] = metadata
    # Documents with the root's attributes, but without its .zgroup, occur.
    elif ".zgroup" in parts or (path == "" and ".zattrs" in parts):
        zgroup = parts.get(".zgroup", {"zarr_format": 2})
        hierarchy.groups[path] = parse_group_v2(zgroup, parts.get(".zattrs")).attributes
    elif parts:
        raise MetadataError(".zattrs: there is neither .zarray nor .zgroup beside it")


def _check_nesting(hierarchy: Hierarchy) -> None:
    """Refuse nodes within arrays."""
    for path in [*hierarchy.arrays, *hierarchy.groups]:
        above = path
        while above:
            above = above.rpartition("/")[0]
            if above in hierarchy.arrays:
                raise BadReferenceError(
                    f"the node lies within the array {above or '/'!r}", variable=path
                )


def build_node(
    hierarchy: Hierarchy, arrays: Mapping[str, Array], skipped: dict[str, str]
) -> Group | Array:
    """The nodes as a tree; groups without metadata of their own are made where needed."""
    if "" in arrays:
        return arrays[""]
    members: dict[str, dict[str, Any]] = {"": {}}

    def folder(path: str) -> dict[str, Any]:
        if path not in members:
            members[path] = {}
            above, _, last = path.rpartition("/")
            inside = members[path]
            folder(above)[last] = Group(hierarchy.groups.get(path), inside, path)
        return members[path]

    for path in hierarchy.groups:
        folder(path)
    for path, array in arrays.items():
        above, _, last = path.rpartition("/")
        folder(above)[last] = array
    return Group(hierarchy.groups.get(""), members[""], skipped=skipped)
