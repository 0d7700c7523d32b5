"""Slow start: few requests are under way at a host at first, more as its answers come, and fewer
where it is too busy for as many."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from virtualzarr.config import config

FIRST_REQUESTS = 3
"""How many requests a host gets before it has answered any.

Small servers, such as that of Python's standard library, have a queue for 5 connections that they
have not accepted yet. An operating system drops those that come beyond it, and a client tries again
after a second, then two, then four: more requests at once would take longer than one by one.
"""


class RequestWindow:
    """How many requests may be under way at one host, all files together.

    Each answer over a connection that stays open makes room for one more request, up to
    `config.requests`: twice as many in each round trip. A host that closes connections gets no more
    than at first, as each of its requests is a new connection. One that refuses more than a quarter
    of as many as there is room for gets half as many, and then one more for each that many: single
    failures, which any host has, change nothing.

    Examples
    --------
    >>> window = RequestWindow()
    >>> for _ in range(10):
    ...     window.note_answer(keeps_open=True)
    >>> window.size
    13
    """

    def __init__(self) -> None:
        self.size = FIRST_REQUESTS
        self._is_steady = False  # whether it was too wide once
        self._answers = self._refusals = 0  # since its size was looked at
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait until one more request may be sent, and count it until the end of the block."""
        # No semaphore of asyncio: the number of its slots cannot be lowered.
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._grant()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._running -= 1
                self._grant()

    def note_answer(self, *, keeps_open: bool, is_busy: bool = False) -> None:
        """Widen the window after an answer, or narrow it after many that the host was too busy."""
        self._answers += 1
        self._refusals += is_busy
        is_round = self._answers >= self.size
        if not keeps_open:
            self.size = FIRST_REQUESTS
        elif is_round and 4 * self._refusals > self._answers:
            self.size, self._is_steady = max(self.size // 2, FIRST_REQUESTS), True
        elif self.size < config.requests and (is_round if self._is_steady else not is_busy):
            self.size += 1
            self._grant()
        if is_round:
            self._answers = self._refusals = 0

    def _grant(self) -> None:
        """Let those in that have waited longest, as far as there is room."""
        while self._waiting and self._running < self.size:
            turn = self._waiting.popleft()
            if not turn.cancelled():
                self._running += 1
                turn.set_result(None)


_windows: WeakKeyDictionary[Any, dict[tuple[str, str, int | None], RequestWindow]] = (
    WeakKeyDictionary()
)


def window_of(session: Any, origin: tuple[str, str, int | None]) -> RequestWindow:
    """Return the window for a host, given as scheme, name and port, in a session's event loop."""
    windows = _windows.setdefault(session, {})
    return windows.setdefault(origin, RequestWindow())
