"""Store operations of datasets, as values: protocols yield them and are sent what came of them.

A protocol that does nothing by itself can be run against a directory, an object store, or a
simulation that stops it, delays it and lies to it at each step.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
Protocol = Generator[Any, Any, T]
"""A protocol: yields operations, is sent their results, and returns one of its own."""

HEAD = "head"


class UnreachableError(Exception):
    """The store could not be asked: whether an operation took place is not known.

    Attributes
    ----------
    retry_after : float
        Seconds that the store asks to wait.
    """

    retry_after = 0.0


class RefusedError(Exception):
    """The store does not allow an operation: it did not take place."""


@dataclass(frozen=True, slots=True)
class Get:
    """Read an object, or a range of its bytes: bytes and tag, or None where there is none."""

    name: str
    byte_range: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """Store an object under a name that was never used; durable when this returns.

    Attributes
    ----------
    name : str
    data : bytes
    may_repeat : bool
        Whether others may store the same bytes under this name, now or before.
    """

    name: str
    data: bytes
    may_repeat: bool = False


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace the head if it has a tag still, or create it (no tag): its new tag, or None.

    None, like an `UnreachableError`, leaves open whether it was done: clients of object stores
    repeat requests by themselves, and the second one finds the head changed by the first.
    """

    data: bytes
    tag: str | None


@dataclass(frozen=True, slots=True)
class WaitTurn:
    """Wait in line with other writers, where the store has a line: whether it has.

    Until `EndTurn` nobody else in the line replaces the head. Nothing but speed depends on it.
    """


@dataclass(frozen=True, slots=True)
class EndTurn:
    """Let the next one in the line go on.

    Attributes
    ----------
    others : int
        How many commits of others there were since what this one is based on.
    """

    others: int = 0


@dataclass(frozen=True, slots=True)
class ListNames:
    """Return the names of objects, those made meanwhile or not."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object, whether it is there or not."""

    name: str


@dataclass(frozen=True, slots=True)
class Now:
    """Return the time in nanoseconds since 1970, of a clock that may be wrong."""


@dataclass(frozen=True, slots=True)
class NewId:
    """Return 16 hexadecimal digits that nobody else has."""


@dataclass(frozen=True, slots=True)
class BackOff:
    """Wait before trying again; False once all that was tried took too long.

    Attributes
    ----------
    attempt : int
        How many have failed.
    is_lost_race : bool
        Whether another writer was quicker, rather than the store not answering.
    """

    attempt: int
    is_lost_race: bool = False
