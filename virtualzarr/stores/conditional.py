"""Conditional writes: a value is replaced only if it is still what was read."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from virtualzarr.errors import SourceChangedError
from virtualzarr.stores.retry import back_off_seconds

if TYPE_CHECKING:
    from virtualzarr.stores.files import Buffer
    from virtualzarr.stores.store import Change

UNKNOWN_CODES = frozenset(["InvalidArgument", "InvalidRequest", "NotImplemented"])
"""Codes of errors by which services of S3 of other makers refuse headers that they do not know."""

_MOST_CONFLICTS, _MOST_ALIKE, _MOST_UNSEEN, _LONGEST = 100, 3, 12, 5

WRITE_NAME = "virtualzarrwriter"
"""The name in the metadata of an object under which its writer is.

Azure takes no hyphens in such names, and proxies drop headers with underscores.
"""


class Replaced(NamedTuple):
    """What a write may take the place of.

    Attributes
    ----------
    tag : str, optional
        The entity tag of the value; None if there must be none.
    writer : str
        Names this write. It is stored with the value: the answer to a request may be lost, and be
        sent again, when the value is no longer what was to be replaced.
    """

    tag: str | None
    writer: str

    @property
    def metadata(self) -> dict[str, str]:
        """What is stored with the value."""
        return {WRITE_NAME: self.writer}

    def is_own(self, metadata: Mapping[str, object]) -> bool:
        """Tell whether a value is of this write, by what is stored with it."""
        return any(
            name.lower() == WRITE_NAME and value == self.writer for name, value in metadata.items()
        )


class ConflictError(SourceChangedError):
    """Somebody else has written a value since it was read: nothing was written."""


def replace_value(
    read: Callable[[], tuple[bytes | None, str | None]],
    write: Callable[[Buffer | None, Replaced | None], None],
    change: Change,
) -> None:
    """Replace a value by what `change` makes of it, again where somebody else was quicker.

    Parameters
    ----------
    read : callable
        Returns the value and its entity tag, where there is one and it is told.
    write : callable
        Is given the new value, or None to delete it, and what it may replace: None for anything.
    change : callable

    Raises
    ------
    ConflictError
        Others write it faster than that; or the service says that there is a value, and shows none.
    """
    before: bytes | None = b""
    alike = 0
    for conflicts in count():
        old, tag = read()
        new = change(old)
        if new is old:
            return
        alike = alike + 1 if conflicts and old == before else 0
        before = old
        try:
            is_vain = _is_vain(old, tag, alike)
            write(new, None if is_vain else Replaced(tag, secrets.token_hex(8)))
            return
        except ConflictError:
            if conflicts == _MOST_CONFLICTS or (old is None and alike == _MOST_UNSEEN):
                raise
        time.sleep(back_off_seconds(min(conflicts, _LONGEST)))


def _is_vain(old: bytes | None, tag: str | None, alike: int) -> bool:
    """Tell whether no condition can be set: versions are not told, or cannot be asked for.

    A service that says again and again that a value has changed, and shows the same, has other
    tags than those that it tells.
    """
    is_told = tag is not None and not tag.startswith("W/")
    return old is not None and (not is_told or alike == _MOST_ALIKE)
