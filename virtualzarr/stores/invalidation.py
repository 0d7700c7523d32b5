"""Cache invalidation: writes of this process, announced to the caches of what they replace."""

from __future__ import annotations

from itertools import count
from typing import Protocol
from weakref import ref

from virtualzarr.stores.forks import ForkSafeLock

STRIPES = 1024
"""Slots for the tick of the last write; each is shared by all files whose names hash to it."""


class CacheListener(Protocol):
    """A cache of files, which must drop its entries after they were written."""

    def invalidate(self, uri: str) -> None:
        """Drop the entries of a file."""
        ...

    def invalidate_below(self, uri: str) -> None:
        """Drop the entries of all files in a folder."""
        ...


# A tuple that is replaced, never changed: `notify_change` goes over it without a lock.
_listeners: tuple[ref[CacheListener], ...] = ()
_subscribing = ForkSafeLock()
_ticks = count(1)
_last_write = [0] * STRIPES


def subscribe(listener: CacheListener) -> None:
    """Notify a cache of all writes from now on, as long as it lives."""
    global _listeners
    with _subscribing:
        _listeners = (*(other for other in _listeners if other() is not None), ref(listener))


def next_tick() -> int:
    """Return a number larger than those of all writes that have ended.

    Examples
    --------
    >>> before = next_tick()
    >>> notify_change("/data/a/c/0")
    >>> is_unchanged("/data/a/c/0", before), is_unchanged("/data/a/c/0", next_tick())
    (False, True)
    """
    return next(_ticks)


def is_unchanged(uri: str, since: int) -> bool:
    """Tell whether this process has written no file of a file's slot since a tick."""
    # Files that share a slot cost a needless read now and then, never a stale value.
    return _last_write[hash(uri) % STRIPES] <= since


def notify_change(uri: str) -> None:
    """Tell all caches that a file was written or deleted."""
    # The tick comes first: a thread that read the file before, and caches it after the listeners
    # dropped it, must see in `is_unchanged` that its bytes are stale.
    _last_write[hash(uri) % STRIPES] = next(_ticks)
    for reference in _listeners:
        if (listener := reference()) is not None:
            listener.invalidate(uri)


def notify_change_below(uri: str) -> None:
    """Tell all caches that everything in a folder was deleted."""
    # Which slots its files have is not known without listing them: all count as written.
    _last_write[:] = [next(_ticks)] * STRIPES
    for reference in _listeners:
        if (listener := reference()) is not None:
            listener.invalidate_below(uri)
