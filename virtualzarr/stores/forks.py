"""Locks and caches that begin anew in a forked process, where nobody else would release them."""

from __future__ import annotations

import os
import threading
from typing import Any, Protocol
from weakref import WeakSet


class Resettable(Protocol):
    """What must not stay in a forked process as another thread of the parent left it."""

    def reset_after_fork(self) -> None:
        """Begin anew; no other thread runs yet."""
        ...


_resettables: WeakSet[Any] = WeakSet()


def reset_in_forks(resettable: Resettable) -> None:
    """Call `reset_after_fork` of an object in each process that is forked, as long as it lives."""
    _resettables.add(resettable)


def _reset_all() -> None:
    for resettable in list(_resettables):
        resettable.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)


# Not a class that holds a lock: an interrupt between the lock and the end of a method of Python
# would leave it locked for ever.
_RLock: Any = type(threading.RLock())


class ForkSafeLock(_RLock):  # type: ignore[misc]
    """Reentrant lock of threads that is free in a forked process, whoever held it in the parent.

    Examples
    --------
    >>> with ForkSafeLock():
    ...     print("alone")
    alone
    """

    def __init__(self) -> None:
        reset_in_forks(self)

    def reset_after_fork(self) -> None:
        """Be free: threads of the parent are not here to release it."""
        self._at_fork_reinit()
