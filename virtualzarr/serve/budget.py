"""Memory budget: requests wait until the bytes they need are free."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Budget:
    """A semaphore of bytes, first come, first served.

    Parameters
    ----------
    limit : int
        What needs more than all of it runs when nothing else does.

    Attributes
    ----------
    used : int
        Bytes that are taken.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"the memory must be at least 1 byte, not {limit}")
        self.limit, self.used = limit, 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    @asynccontextmanager
    async def take(self, nbytes: int) -> AsyncIterator[None]:
        """Wait for so many bytes, and hold them within a with statement."""
        nbytes = min(nbytes, self.limit)
        if self._waiting or self.used + nbytes > self.limit:
            turn = asyncio.get_running_loop().create_future()
            entry = (nbytes, turn)
            self._waiting.append(entry)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._give(nbytes)  # its turn had come already
                else:
                    if entry in self._waiting:
                        self._waiting.remove(entry)
                    self._wake()
                raise
        else:
            self.used += nbytes
        try:
            yield
        finally:
            self._give(nbytes)

    @asynccontextmanager
    async def hold(self, nbytes: int) -> AsyncIterator[None]:
        """Count bytes that are in memory already, without waiting: others wait for them."""
        self.used += nbytes
        try:
            yield
        finally:
            self._give(nbytes)

    def _give(self, nbytes: int) -> None:
        self.used -= nbytes
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self.used + self._waiting[0][0] <= self.limit:
            nbytes, turn = self._waiting.popleft()
            if not turn.done():
                self.used += nbytes
                turn.set_result(None)
