"""Locks and caches that begin anew in a forked process, where nobody else would release them."""

from __future__ import annotations

import os
import threading
from collections.abc import Coroutine
from typing import Any, Protocol
from weakref import WeakSet

from virtualzarr.errors import UnsupportedError


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


_used_in: dict[str, int] = {}


def check_not_forked(library: str, *work: Coroutine[Any, Any, Any]) -> None:
    """Refuse a library that waits for ever in a process that was forked after we have used it.

    Its threads are not there any more, which it does not notice.

    Parameters
    ----------
    work : coroutine
        What is closed if it is not to be waited for.

    Raises
    ------
    UnsupportedError
        It was used before the fork.
    """
    if _used_in.setdefault(library, os.getpid()) != os.getpid():
        for each in work:
            each.close()
        raise UnsupportedError(
            f"{library} was used before this process was forked, and would wait for ever: start "
            'processes by the method "spawn" or "forkserver" of multiprocessing'
        )
