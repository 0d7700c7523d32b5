"""Comparison of hierarchies by their JSON forms: a line for each difference."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from virtualzarr.errors import short
from virtualzarr.metadata.json_documents import is_same_json

Document = Mapping[str, Any]


def compare_documents(
    left: Document,
    right: Document,
    include: Collection[str] | None = None,
    exclude: Collection[str] = (),
    path: str = "",
) -> Iterator[str]:
    """Yield a line for each member of a node in which two JSON forms of models differ."""
    if _kind(left) != _kind(right):
        yield f"{path or '/'}: {_kind(left)} here, {_kind(right)} there"
        return
    for name in _names(left, right):
        if name in exclude or (include is not None and name not in include):
            continue
        if name == "attributes":
            yield from _compare_values(f"{path or '/'}: attributes", left[name], right[name])
        # An array may have an extra member of that name; only those of groups are nodes.
        elif name != "members" or _kind(left) == "an array":
            yield from _compare_values(path or "/", left, right, [name])
    if _kind(left) == "a group" and "members" not in exclude:
        yield from _compare_members(left, right, include, exclude, path)


def _kind(document: Document) -> str:
    return "an array" if "shape" in document else "a group"


def _names(left: Document, right: Document) -> list[str]:
    return [*left, *(name for name in right if name not in left)]


def _compare_values(
    path: str, left: Document, right: Document, names: Collection[str] | None = None
) -> Iterator[str]:
    for name in names or _names(left, right):
        if name in left and name in right and is_same_json(left[name], right[name]):
            continue
        values = [short(side[name]) if name in side else "missing" for side in (left, right)]
        yield f"{path}: {name}: {values[0]} here, {values[1]} there"


def _compare_members(
    left: Document,
    right: Document,
    include: Collection[str] | None,
    exclude: Collection[str],
    path: str,
) -> Iterator[str]:
    if "members" not in left or "members" not in right:
        return  # one of the two was not looked into
    nodes, others = left["members"], right["members"]
    for name in sorted({*nodes, *others}):
        child = f"{path}/{name}".lstrip("/")
        if name in nodes and name in others:
            yield from compare_documents(nodes[name], others[name], include, exclude, child)
        else:
            kind = _kind(nodes.get(name, others.get(name)))
            yield f"{child}: {kind}, only {'here' if name in nodes else 'there'}"
