"""Zarr v2 and v3 hierarchies as a source format: opened in place, without a scan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtualzarr.array import Array
from virtualzarr.choices import OnError
from virtualzarr.errors import VirtualZarrError, warn_caller
from virtualzarr.formats.registry import has_extension
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.open_node import open_hierarchy
from virtualzarr.nodes.documents import MARKERS
from virtualzarr.stores import open_store
from virtualzarr.stores.files import is_url
from virtualzarr.stores.read_only import as_read_only
from virtualzarr.stores.upgraded import is_dataset_root


def is_hierarchy(uri: str, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Tell whether a Zarr array or group is at a path or URL."""
    # Names of files are not probed for keys below them, which would only cost requests: content
    # decides about them.
    if is_url(uri) and has_extension(uri):
        return False
    store = open_store(uri, storage_options)
    documents = (store.get(marker) for marker in MARKERS)
    document = next((document for document in documents if document is not None), None)
    return document is not None and not is_dataset_root(document)


def scan(
    path_or_url: Any,
    *,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> Group:
    """Open a Zarr hierarchy; a root that is an array becomes the member of a group."""
    node = open_hierarchy(as_read_only(open_store(path_or_url, storage_options)))
    if isinstance(node, Group):
        return node if on_error == "raise" else _skip_unreadable(node)
    name = str(path_or_url).rstrip("/").rsplit("/", 1)[-1].removesuffix(".zarr") or "array"
    return Group({}, {name: node})


def _skip_unreadable(group: Group) -> Group:
    """Return a group without the nodes that cannot be opened, with a warning for each."""
    members: dict[str, Array | Group] = {}
    skipped: dict[str, str] = {}
    for name in group:
        try:
            node = group[name]
        except VirtualZarrError as error:
            warn_caller(f"{group.path}/{name}: {error}")
            skipped[name] = str(error)
            continue
        if isinstance(node, Group):
            node = _skip_unreadable(node)
            skipped |= {f"{name}/{path}": why for path, why in node.skipped.items()}
        members[name] = node
    return Group(group.attributes, members, group.path, skipped)
