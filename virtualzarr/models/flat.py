"""Hierarchies of models from models by path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from virtualzarr.errors import MetadataError
from virtualzarr.metadata import normalize_path
from virtualzarr.models.node import NodeSpec


def nested(nodes: Mapping[str, NodeSpec], empty: Callable[[], Any]) -> Any:
    """Return the root of a hierarchy, with groups put in where none is given.

    Parameters
    ----------
    nodes : mapping
        By path, in any order.
    empty : callable
        Makes a group.
    """
    found: dict[str, NodeSpec] = {}
    for path, node in nodes.items():
        place = normalize_path(path)
        if place in found:
            raise MetadataError(f"{place or '/'}: two models are given for one path")
        found[place] = node
    found.setdefault("", empty())
    for path in list(found):
        while path:
            path = path.rpartition("/")[0]
            if found.setdefault(path, empty()).node_type == "array":
                raise MetadataError(f"{path or '/'}: is an array, but there is a node below it")
    # From the deepest up: a group is complete before it is put into another. Else as given.
    inner: dict[str, dict[str, NodeSpec]] = {}
    for path in sorted(found, key=lambda path: (path == "", -path.count("/"))):
        whole: Any = found[path]
        if path in inner:
            whole = whole.replace(members={**(whole.members or {}), **inner[path]})
        if not path:
            return whole
        above, _, name = path.rpartition("/")
        inner.setdefault(above, {})[name] = whole
    raise AssertionError("the root is always there")
