"""Memory of large bodies, which is used again for a few seconds once nothing refers to it.

The system clears what it gives: a tenth of the time that it takes to receive a body, and that while
nothing else is done for it.
"""

from __future__ import annotations

import asyncio
import time
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from virtualzarr.stores.forks import reset_in_forks

_MOST_BYTES = 128 << 20
"""That are kept for later bodies at any time."""

_UNIT = 64 << 10
"""Bodies that differ by little fit into the memory of each other."""


class _Lent(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """Memory that somebody uses, in as many views as they like."""


class BodyMemory:
    """Memory that is lent to whoever receives bodies, in an event loop.

    Parameters
    ----------
    seconds : float
        For how long it is kept where no more bodies come.
    """

    def __init__(self, seconds: float = 5.0) -> None:
        self._seconds = seconds
        # Without a lock: what is lent may end in a collection of garbage at any moment, also of the
        # thread that has it. What a list does by one method, threads do one after the other.
        self._free: list[NDArray[np.uint8]] = []
        self._asked_at = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None  # which drops what nobody uses
        reset_in_forks(self)

    def reset_after_fork(self) -> None:
        """Begin anew: the loop that would drop it runs in the other process."""
        self._free, self._loop = [], None

    def take(self, nbytes: int) -> memoryview:
        """Return memory, with anything in it, that nobody else uses as long as there is a view."""
        whole = self._find(nbytes)
        if whole is None:
            whole = np.empty(-(-nbytes // _UNIT) * _UNIT, np.uint8)
        lent = whole[:nbytes].view(_Lent)
        finalize(lent, self._give_back, whole).atexit = False
        self._asked_at = time.monotonic()
        if self._loop is not (loop := asyncio.get_running_loop()):  # another one after a fork
            self._loop = loop
            loop.call_later(self._seconds, self._drop_unused, loop)
        return lent.data

    def _find(self, nbytes: int) -> NDArray[np.uint8] | None:
        """Return memory that is free and large enough, but not much larger."""
        for _ in range(len(self._free)):
            try:
                whole = self._free.pop(0)
            except IndexError:  # another thread has it
                return None
            if nbytes <= len(whole) <= nbytes + max(nbytes // 4, _UNIT):
                return whole
            self._free.append(whole)
        return None

    def _give_back(self, whole: NDArray[np.uint8]) -> None:
        if sum(map(len, [*self._free])) + len(whole) <= _MOST_BYTES:
            self._free.append(whole)
        if self._loop is None:  # nobody is there who would drop it
            self._free.clear()

    def _drop_unused(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give all back to the system, unless bodies still come."""
        if time.monotonic() - self._asked_at < self._seconds:
            loop.call_later(self._seconds, self._drop_unused, loop)
        else:
            self._loop = None
            self._free.clear()


body_memory = BodyMemory()
"""For all bodies of this process."""
