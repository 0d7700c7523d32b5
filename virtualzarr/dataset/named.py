"""Names of stored objects, with what is read under them: nodes of trees, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Named:
    """An object, or part of one, that another object names: it must be exactly this.

    Attributes
    ----------
    name : str
    size : int
        In bytes.
    digest : str
    offset : int, optional
        Where the part begins in the object; None if it is the whole.
    """

    name: str
    size: int
    digest: str
    offset: int | None = None

    @classmethod
    def from_json(cls, document: Sequence[Any]) -> Named:
        """Read what `to_json` returned."""
        name, size, digest, *offset = document
        return cls(str(name), int(size), str(digest), int(offset[0]) if offset else None)

    def to_json(self) -> list[Any]:
        """Return name, size in bytes, digest, and the offset of a part."""
        members = [self.name, self.size, self.digest]
        return members if self.offset is None else [*members, self.offset]


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a tree: the root, or the child of another.

    Attributes
    ----------
    named : Named
    height : int
        0 for a leaf, which has items; others have nodes.
    summary : sequence
        What is under it, by which it is decided whether to read it.
    """

    named: Named
    height: int
    summary: tuple[Any, ...]

    @classmethod
    def from_json(cls, document: Sequence[Any]) -> Node:
        """Read what `to_json` returned."""
        named, height, summary = document
        return cls(Named.from_json(named), int(height), tuple(summary))

    def to_json(self) -> list[Any]:
        """Return the node as JSON, without what is under it."""
        return [self.named.to_json(), self.height, list(self.summary)]
