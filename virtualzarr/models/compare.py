"""In what two hierarchies differ, by their JSON forms."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from virtualzarr.errors import short
from virtualzarr.metadata.json_documents import same_json

Document = Mapping[str, Any]


def documents_differ(
    here: Document,
    there: Document,
    include: Collection[str] | None = None,
    exclude: Collection[str] = (),
    path: str = "",
) -> Iterator[str]:
    """Yield a line for each member of a node in which two JSON forms of models differ."""
    if _kind(here) != _kind(there):
        yield f"{path or '/'}: {_kind(here)} here, {_kind(there)} there"
        return
    for name in [*here, *(name for name in there if name not in here)]:
        skipped = name in exclude or (include is not None and name not in include)
        if name == "attributes" and not skipped:
            yield from _values(f"{path or '/'}: attributes", here[name], there[name])
        elif not _is_members(name, here) and not skipped:
            yield from _values(path or "/", here, there, [name])
    if _kind(here) == "a group" and "members" not in exclude:
        yield from _members(here, there, include, exclude, path)


def _kind(document: Document) -> str:
    return "an array" if "shape" in document else "a group"


def _is_members(name: str, document: Document) -> bool:
    return name == "members" and _kind(document) == "a group"


def _values(
    where: str, here: Document, there: Document, names: Collection[str] | None = None
) -> Iterator[str]:
    for name in names or [*here, *(name for name in there if name not in here)]:
        if name in here and name in there and same_json(here[name], there[name]):
            continue
        values = [short(side[name]) if name in side else "missing" for side in (here, there)]
        yield f"{where}: {name}: {values[0]} here, {values[1]} there"


def _members(
    here: Document,
    there: Document,
    include: Collection[str] | None,
    exclude: Collection[str],
    path: str,
) -> Iterator[str]:
    if "members" not in here or "members" not in there:
        return  # one of the two was not looked into
    mine, its = here["members"], there["members"]
    for name in sorted({*mine, *its}):
        below = f"{path}/{name}".lstrip("/")
        if name not in mine or name not in its:
            found = mine.get(name, its.get(name))
            yield f"{below}: {_kind(found)}, only {'here' if name in mine else 'there'}"
        else:
            yield from documents_differ(mine[name], its[name], include, exclude, below)
