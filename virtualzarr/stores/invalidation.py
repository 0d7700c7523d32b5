"""What this process writes, told to whoever keeps something of what was there before."""

from __future__ import annotations

import os
import threading
from itertools import count
from typing import Protocol
from weakref import ref

STRIPES = 1024
"""So many notes there are of when files were last written; each is shared by several."""


class Keeper(Protocol):
    """Keeps something of files, and must not after they were written."""

    def forget(self, uri: str) -> None:
        """Drop what is kept of a file."""
        ...

    def forget_below(self, uri: str) -> None:
        """Drop what is kept of all files in a folder."""
        ...

    def forked(self) -> None:
        """Begin anew in a forked process: other threads may have been changing anything."""
        ...


_keepers: tuple[ref[Keeper], ...] = ()
_adding = threading.Lock()
_moments = count(1)
_written = [0] * STRIPES


def add(keeper: Keeper) -> None:
    """Tell a keeper of all changes from now on, as long as it lives."""
    global _keepers
    with _adding:
        _keepers = (*(other for other in _keepers if other() is not None), ref(keeper))


def moment() -> int:
    """Return a number for now: larger than those of all writes that have ended.

    Examples
    --------
    >>> before = moment()
    >>> changed("/data/a/c/0")
    >>> unchanged("/data/a/c/0", before), unchanged("/data/a/c/0", moment())
    (False, True)
    """
    return next(_moments)


def unchanged(uri: str, since: int) -> bool:
    """Tell whether this process has not written a file since a moment, as far as is known."""
    return _written[hash(uri) % STRIPES] <= since


def changed(uri: str) -> None:
    """Tell all keepers that a file was written or deleted."""
    # Noted first: who has read the file before, and keeps it after they forgot it, must see this.
    _written[hash(uri) % STRIPES] = next(_moments)
    for found in _keepers:
        if (keeper := found()) is not None:
            keeper.forget(uri)


def changed_below(uri: str) -> None:
    """Tell all keepers that everything in a folder was deleted."""
    _written[:] = [next(_moments)] * STRIPES
    for found in _keepers:
        if (keeper := found()) is not None:
            keeper.forget_below(uri)


def _forked() -> None:
    global _adding
    _adding = threading.Lock()
    for found in _keepers:
        if (keeper := found()) is not None:
            keeper.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
