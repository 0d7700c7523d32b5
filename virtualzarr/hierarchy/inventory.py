"""Arrays, source files and Zarr formats of a hierarchy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from virtualzarr.array import Array
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Source


def iter_arrays(node: Group | Array) -> Iterator[tuple[str, Array]]:
    """Yield all arrays of a hierarchy with their paths; that of an array itself is ""."""
    if isinstance(node, Array):
        yield "", node
        return
    for path, member in node.members(None):
        if isinstance(member, Array):
            yield path, member


def list_arrays(node: Group | Array) -> dict[str, Array]:
    """Return what `iter_arrays` yields."""
    return dict(iter_arrays(node))


def list_group_attributes(node: Group | Array) -> dict[str, dict[str, Any]]:
    """Return the attributes of all groups of a hierarchy by path; that of its root is ""."""
    if isinstance(node, Array):
        return {}
    groups = {path: member for path, member in node.members(None) if isinstance(member, Group)}
    return {path: dict(group.attrs) for path, group in {"": node, **groups}.items()}


def list_uris(node: Group | Array) -> list[str]:
    """Return the files that the tables of sources of a hierarchy have, each once."""
    arrays = (array for _, array in iter_arrays(node) if array.is_virtual)
    uris = (source.uri for array in arrays for source in array.manifest.sources)
    return list(dict.fromkeys(uri for uri in uris if uri))


def list_sources(node: Group | Array) -> list[Source]:
    """Return the files that a hierarchy refers to, each once."""
    sources: dict[Source, None] = {}
    for array in list_arrays(node).values():
        if array.is_virtual:
            manifest = array.manifest
            sources |= dict.fromkeys(manifest.sources.select(np.asarray(manifest.source)))
    return [source for source in sources if not source.is_inline]


def list_zarr_formats(node: Group | Array) -> set[int]:
    """Return the Zarr formats of the arrays of a hierarchy."""
    return {array.metadata.zarr_format for array in list_arrays(node).values()}
