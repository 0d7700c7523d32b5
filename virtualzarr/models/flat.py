"""Nested hierarchies of models, built from models by path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from virtualzarr.errors import MetadataError
from virtualzarr.metadata import normalize_path
from virtualzarr.models.node import NodeSpec


def nest(nodes: Mapping[str, NodeSpec], empty: Callable[[], Any]) -> Any:
    """Return the root of a hierarchy, with groups put in where none is given.

    Parameters
    ----------
    nodes : mapping
        By path, in any order.
    empty : callable
        Returns a new group.
    """
    by_path: dict[str, NodeSpec] = {}
    for path, node in nodes.items():
        path = normalize_path(path)
        if path in by_path:
            raise MetadataError(f"{path or '/'}: two models are given for one path")
        by_path[path] = node
    by_path.setdefault("", empty())
    # Up to the root from every node: any group on the way may have been left out.
    for path in list(by_path):
        while path:
            path = path.rpartition("/")[0]
            if by_path.setdefault(path, empty()).node_type == "array":
                raise MetadataError(f"{path or '/'}: is an array, but there is a node below it")
    # From the deepest up: models do not change, so a group is complete before it is put into
    # another. Members of one group stay in the order given.
    members: dict[str, dict[str, NodeSpec]] = {}
    for path in sorted(by_path, key=lambda path: (path == "", -path.count("/"))):
        model: Any = by_path[path]
        if path in members:
            model = model.replace(members={**(model.members or {}), **members[path]})
        if not path:
            return model
        parent, _, name = path.rpartition("/")
        members.setdefault(parent, {})[name] = model
    raise AssertionError("the root is always there")
