"""Conditional writes: a value is replaced only if it is still what was read."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from virtualzarr.errors import SourceChangedError
from virtualzarr.stores.retry import back_off_seconds

if TYPE_CHECKING:
    from virtualzarr.stores.files import Buffer
    from virtualzarr.stores.store import Change

_MOST_CONFLICTS, _LONGEST = 100, 5


class Replaced(NamedTuple):
    """What a write may take the place of.

    Attributes
    ----------
    tag : str, optional
        The entity tag of the value; None if there must be none.
    """

    tag: str | None


class ConflictError(SourceChangedError):
    """Somebody else has written a value since it was read: nothing was written.

    Attributes
    ----------
    may_be_own : bool
        Whether it may have been this very write, sent before without an answer.
    """

    may_be_own = False


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
        Others write it faster than that.
    """
    for conflicts in count():
        old, tag = read()
        new = change(old)
        if new is old:
            return
        is_weak = old is not None and (tag is None or tag.startswith("W/"))
        try:
            write(new, None if is_weak else Replaced(tag))
            return
        except ConflictError as error:
            if error.may_be_own and read()[0] == new:
                return
            if conflicts == _MOST_CONFLICTS:
                raise
        time.sleep(back_off_seconds(min(conflicts, _LONGEST)))
