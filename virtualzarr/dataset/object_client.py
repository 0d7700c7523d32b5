"""Clients of object stores: requests that are sent once each, and what the errors of each mean."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal, Protocol

from virtualzarr.dataset.operations import RefusedError, UnreachableError
from virtualzarr.errors import AccessError, SourceError

ABSENT, ANY = "create", "overwrite"

Replaceable = Literal["create", "overwrite"] | str
"""What an object may take the place of: of nothing, of anything, or of what has a tag."""


class ObjectClient(Protocol):
    """Objects below a folder, named relative to it.

    All methods raise whatever the library does; `outcome` says what that means.

    Attributes
    ----------
    endpoint : str or None
        Where the service is, if that is configured.
    """

    endpoint: str | None

    def get(self, name: str, byte_range: tuple[int, int] | None) -> tuple[bytes, str]:
        """Return an object, or some of its bytes, and its tag."""
        ...

    def look(self, name: str) -> None:
        """Ask whether there is an object, without its bytes."""
        ...

    def put(self, name: str, data: bytes, replaced: Replaceable) -> str | None:
        """Store an object, if it may take the place of what is there: its tag, if that is told."""
        ...

    def list_objects(self) -> dict[str, int]:
        """Return the sizes of all objects by name."""
        ...

    def list_top(self) -> list[str]:
        """Return the names of what is right below the folder; those of folders end with a slash."""
        ...

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, by few requests where the store can do that."""
        ...

    def outcome(self, error: Exception, name: str) -> Exception:
        """Return what an error means, with no credentials in its text.

        Returns
        -------
        FileNotFoundError
            There is no such object.
        ConditionError
            The condition does not hold.
        RefusedError
            It is not allowed.
        UnreachableError
            Whether it was done is not known.
        Exception
            The error itself, if it is neither of the library nor of the service.
        """
        ...


class ConditionError(UnreachableError):
    """The condition of a request does not hold, if it had one: else nobody knows what is meant."""


def tag_of(replaced: Replaceable, file: str) -> str:
    """Return the entity tag of what an object may take the place of.

    Raises
    ------
    AccessError
        The service has told none.
    """
    tag: str | None = json.loads(replaced).get("e_tag")
    if tag is None:
        raise AccessError("the service does not say which state of an object it has", file=file)
    return tag


def refused(problem: str, file: str) -> RefusedError:
    """Return that something is not allowed, with the error for users as its cause."""
    error = RefusedError(problem)
    error.__cause__ = AccessError(problem, file=file)
    return error


def unreachable(problem: str, file: str) -> UnreachableError:
    """Return that it is not known what became of a request, with the error for users."""
    error = UnreachableError(problem)
    error.__cause__ = SourceError(problem, file=file)
    return error
