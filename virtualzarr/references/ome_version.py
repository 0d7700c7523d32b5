"""OME-Zarr metadata in the version that goes with a Zarr format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from virtualzarr.array import Array
from virtualzarr.hierarchy.group import Group
from virtualzarr.metadata.ome import find_ome_changes

T = TypeVar("T", bound="Array | Group")


def in_zarr_format(node: T, zarr_format: int) -> T:
    """Return a hierarchy as OME-Zarr wants it in a Zarr format, or itself if nothing changes."""
    if not isinstance(node, Group):
        return node
    nodes = {"": node, **dict(node.members(max_depth=None))}
    groups = {path: one.attributes for path, one in nodes.items() if isinstance(one, Group)}
    arrays = {path: one.dims for path, one in nodes.items() if isinstance(one, Array)}
    attributes, dims = find_ome_changes(groups, arrays, zarr_format)
    if not attributes:
        return node
    return _with(node, "", attributes, dims)


def _with(
    group: Any, path: str, attributes: Mapping[str, Any], dims: Mapping[str, tuple[str, ...]]
) -> Any:
    members: dict[str, Array | Group] = {}
    for name in group:
        node, below = group[name], f"{path}/{name}".lstrip("/")
        if isinstance(node, Group):
            node = _with(node, below, attributes, dims)
        elif below in dims:
            node = node.lazy.rename_dims(dict(enumerate(dims[below]))).with_path(node.path)
        members[name] = node
    return group.replace(attributes.get(path), members)
