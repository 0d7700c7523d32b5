"""Slow start: few requests are under way at a host at first, more as its answers come, and fewer
where it is too busy for as many."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from virtualzarr.config import config
from virtualzarr.stores.retry import TransientError

FIRST_REQUESTS = 3
"""How many requests a host gets before it has answered any.

Small servers, such as that of Python's standard library, have a queue for 5 connections that they
have not accepted yet. An operating system drops those that come beyond it, and a client tries again
after a second, then two, then four: more requests at once would take longer than one by one.
"""

_ROUNDS = 8
"""Rounds of answers until a host that was asked too much once is asked for an eighth more."""

_FEW, _MANY = 8, 32
"""Answers that tell whether a host is asked too much: of one that was once, and of any other."""

_LEAST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0
"""Seconds between requests to a host that refuses them one by one."""

_PATIENCE = 5.0
"""Seconds after the last answer of such a host until it is taken for one that gives none."""


class RequestWindow:
    """How many requests may be under way at one host, all files together.

    Each answer over a connection that stays open makes room for one more request: twice as many in
    each round trip. `config.requests` bounds them at any time. A host that closes connections gets
    no more than at first, as each of its requests is a new connection. One that refuses more than a
    quarter gets half as many, then slowly more; at one request, pauses between them that double;
    and none for the time that it asks to be left alone for. Single failures, which any host has,
    change nothing.

    Parameters
    ----------
    first : int
        Requests that may be under way before it has answered any.

    Attributes
    ----------
    is_limited : bool
        Whether the host has refused so many requests that it must have a limit.
    is_breaking : bool
        Whether it has closed connections instead of an answer.
    answered : int
        Requests that it did not refuse.

    Examples
    --------
    >>> window = RequestWindow()
    >>> for _ in range(10):
    ...     window.note_answer(keeps_open=True)
    >>> window.size
    13
    """

    def __init__(self, first: int = FIRST_REQUESTS) -> None:
        self._size = first
        self.is_limited = False
        self.answered, self.is_breaking = 0, False
        self._answers = self._refusals = 0  # since its size was looked at
        self._known_size = 0  # up to which nothing was refused
        self._running = 0
        self._pause = self._resume = self._answered_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def size(self) -> int:
        """Requests that may be under way."""
        return min(self._size, config.requests)

    @property
    def has_room(self) -> bool:
        """Whether one more request may be sent, beside those that are under way."""
        # Asked for each of thousands of requests: not by `size`.
        return self._running < self._size and self._running < config.requests

    def slot(self) -> _Slot:
        """Wait until one more request may be sent, and count it until the end of the block."""
        return _Slot(self)

    def _enter(self) -> asyncio.Future[None] | None:
        """Count one more request at once, or return a turn to wait for."""
        loop = asyncio.get_running_loop()
        if not self._waiting and self.has_room and self._resume <= (now := loop.time()):
            self._running += 1
            self._resume = now + self._pause
            return None
        turn = loop.create_future()
        self._waiting.append(turn)
        self._grant()
        return turn

    def _leave(self, turn: asyncio.Future[None] | None) -> None:
        if turn is not None and (turn.cancel() or turn.cancelled()):  # whoever waited has given up
            return
        self._running -= 1
        self._grant()

    def note_answer(
        self, *, keeps_open: bool, is_busy: bool = False, retry_after: float = 0.0
    ) -> None:
        """Widen the window after an answer, or narrow it after many that the host was too busy."""
        now = time.monotonic()
        self._answers += 1
        self._refusals += is_busy
        if not is_busy:
            self.answered, self._answered_at = self.answered + 1, now
        few, rounds = (_FEW, _ROUNDS) if self.is_limited else (_MANY, 1)
        is_refused = 4 * self._refusals > self._answers >= max(self.size, few)
        is_round = self._answers >= max(self.size * rounds, few)
        if is_busy and now > self._answered_at + _PATIENCE:
            self._forget_limit()  # it answers nobody: whoever waits shall have the error soon
        elif is_refused:
            self._narrow()
        elif not keeps_open:
            self._size = min(self.size, FIRST_REQUESTS)
        elif not self.is_limited or (self.size < self._known_size and not self._pause):
            self._size = self.size + (not is_busy)
        elif is_round and 8 * self._refusals <= self._answers:
            self._widen()
        if self.is_limited and 4 * self._refusals > self._answers:
            self._leave_alone(retry_after)
        if is_refused or is_round:
            self._answers = self._refusals = 0
        self._grant()

    @contextmanager
    def note_failures(self, *, is_busy: bool | None = None) -> Iterator[None]:
        """Note in errors whether the host answers others, while it refuses those beyond a limit.

        Parameters
        ----------
        is_busy : bool, optional
            Whether an answer said so; None before there is one. A connection that the host closes
            then counts as such an answer; silence does not: to ask one by one would take longer.
        """
        try:
            yield
        except TransientError as error:
            if is_busy is None and not isinstance(error.__cause__, TimeoutError):
                is_busy = True
                self.note_answer(keeps_open=True, is_busy=True)
                self.is_breaking = True
            error.answered = self.answered if is_busy and self.is_limited else 0
            raise

    def _narrow(self) -> None:
        # One that answers nobody, for a time, will take as many as before once it does.
        if not self.is_limited or (self.size > 1 and self._refusals < self._answers):
            self._known_size = self.size // 2
        if self.size == 1:
            self._pause = min(max(2 * self._pause, _LEAST_PAUSE), _LONGEST_PAUSE)
        self._size, self.is_limited = max(self.size // 2, 1), True

    def _forget_limit(self) -> None:
        if self.is_limited:
            self._size, self.is_limited = max(self._known_size, FIRST_REQUESTS), False
            self._pause = self._resume = 0.0

    def _widen(self) -> None:
        if self._pause:
            self._pause = 0.0 if self._pause <= _LEAST_PAUSE else self._pause / 2
        elif self.size < config.requests:
            self._size = self.size + max(1, self.size // _ROUNDS)
        else:
            self.is_limited = False

    def _leave_alone(self, seconds: float) -> None:
        if 0 < seconds <= config.max_retry_seconds:  # none is sent again after a longer time
            now = asyncio.get_running_loop().time()
            self._resume = max(self._resume, now + seconds)

    def _grant(self) -> None:
        """Let those in that have waited longest, as far as there is room, after a pause."""
        while self._waiting and self.has_room:
            loop = asyncio.get_running_loop()
            if self._resume > loop.time():
                self._grant_later(loop)
                return
            turn = self._waiting.popleft()
            if not turn.cancelled():
                self._running += 1
                turn.set_result(None)
                self._resume = loop.time() + self._pause

    def _grant_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._resume, self._grant)


class _Slot:
    """One request that is under way, within an ``async with`` statement."""

    # No semaphore of asyncio: the number of its slots cannot be lowered. No generator: each request
    # of thousands has one.
    __slots__ = ("_turn", "_window")

    def __init__(self, window: RequestWindow) -> None:
        self._window = window

    async def __aenter__(self) -> None:
        self._turn = self._window._enter()
        if self._turn is None:
            return
        try:
            await self._turn
        except BaseException:
            self._window._leave(self._turn)
            raise

    async def __aexit__(self, *error: object) -> None:
        self._window._leave(self._turn)


_windows: WeakKeyDictionary[Any, dict[Hashable, RequestWindow]] = WeakKeyDictionary()


def window_of(client: Any, host: Hashable = None, first: int = FIRST_REQUESTS) -> RequestWindow:
    """Return the window for a host that a client, in its event loop, sends requests to."""
    windows = _windows.setdefault(client, {})
    return windows.get(host) or windows.setdefault(host, RequestWindow(first))
