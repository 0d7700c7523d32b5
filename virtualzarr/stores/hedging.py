"""Hedged requests: a second one is sent where the first takes far longer than those before it.

Of many requests to an object store a few take a hundred times as long as the others, and whoever
reads many chunks waits for the slowest. The same request, sent again, nearly always does not. Only
the time until an answer begins counts, which does not depend on how much is requested.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from virtualzarr.config import config
from virtualzarr.stores.request_window import RequestWindow

T = TypeVar("T")

_SHARE = 0.05
"""Second requests at most, as a part of those that were answered."""

_BURST = 5.0
"""Second requests at once at most: more that are late are a server that is busy."""

_FACTOR, _PERCENTILE = 2.0, 0.95
"""A request is late after so many times the seconds within which this part is answered."""

_LAST, _LEAST, _STEP = 512, 100, 32
"""Answers that are looked at, how many there must be, and after how many it is counted again."""


class Hedge:
    """When a request to one host is late, and whether a second one may be sent.

    Examples
    --------
    >>> hedge = Hedge()
    >>> for _ in range(128):
    ...     hedge.note_answer(0.02)
    >>> hedge.delay
    0.04
    """

    def __init__(self) -> None:
        self._seconds = deque[float](maxlen=_LAST)
        self._answered, self._allowance = 0, 0.0
        self._delay: float | None = None

    @property
    def delay(self) -> float | None:
        """Seconds after which a request is late; None if that is not known, or none may be sent."""
        return self._delay if self._allowance >= 1 else None

    def note_answer(self, seconds: float) -> None:
        """Count an answer that took so many seconds."""
        self._seconds.append(seconds)
        self._answered += 1
        self._allowance = min(self._allowance + _SHARE, _BURST)
        if self._answered >= _LEAST and self._answered % _STEP == 0:
            ordered = sorted(self._seconds)
            self._delay = _FACTOR * ordered[int(_PERCENTILE * len(ordered))]

    def note_busy(self) -> None:
        """Send no second requests to a host that has too many, until it has answered others."""
        self._allowance = 0.0

    def take(self) -> bool:
        """Take the right to send one, and tell whether there was any left."""
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True


_hedges: WeakKeyDictionary[Any, dict[Hashable, Hedge]] = WeakKeyDictionary()


def hedge_of(client: Any, host: Hashable = None) -> Hedge:
    """Return the hedge for a host that a client, in its event loop, sends requests to."""
    hedges = _hedges.setdefault(client, {})
    return hedges.get(host) or hedges.setdefault(host, Hedge())


async def send_hedged(
    hedge: Hedge,
    send: Callable[[], Awaitable[T]],
    discard: Callable[[T], object],
    window: RequestWindow,
) -> T:
    """Return the first of at most two answers to a request.

    Parameters
    ----------
    hedge : Hedge
    send : callable
        Sends the request, which may be sent twice: it changes nothing.
    discard : callable
        Gives up an answer that nobody needs.
    window : RequestWindow
        In which the first request has a slot already; the second one waits for another.
    """
    if not config.hedge_requests:
        return await send()
    begun, delay = time.perf_counter(), hedge.delay
    answer = await (send() if delay is None else _Race(hedge, send, discard, window).run(delay))
    hedge.note_answer(time.perf_counter() - begun)
    return answer


class _Race:
    """A request, and maybe a second one after a while: only a late one costs a task."""

    def __init__(
        self,
        hedge: Hedge,
        send: Callable[[], Awaitable[Any]],
        discard: Callable[[Any], object],
        window: RequestWindow,
    ) -> None:
        self._hedge, self._send, self._discard, self._window = hedge, send, discard, window
        self._second: asyncio.Task[Any] | None = None
        self._is_over = self._is_won = False

    async def run(self, delay: float) -> Any:
        """Return the first answer; raise an error of the first request, and none of the second."""
        self._first = asyncio.current_task()
        timer = asyncio.get_running_loop().call_later(delay, self._send_again)
        try:
            answer = await self._send()
        except BaseException:
            # Cancelled by the second answer, and by nobody else.
            if self._second is None or not self._is_won:
                raise
            if self._uncancel() > 0:
                self._discard(self._second.result())
                raise
            return self._second.result()
        finally:
            self._is_over = True
            timer.cancel()
            if self._second is not None and not self._is_won:
                self._second.cancel()
        if self._second is not None and self._is_won:  # both came at the same moment
            self._uncancel()
            self._discard(self._second.result())
        return answer

    def _send_again(self) -> None:
        if self._hedge.take():
            self._second = asyncio.get_running_loop().create_task(self._run_second())
            self._second.add_done_callback(self._end)

    async def _run_second(self) -> Any:
        # Until its answer begins: what follows is read in the slot of the first.
        async with self._window.slot():
            return await self._send()

    def _end(self, second: asyncio.Task[Any]) -> None:
        if second.cancelled() or second.exception() is not None:
            return
        if self._is_over:
            self._discard(second.result())
            return
        assert self._first is not None
        self._is_won = True
        self._first.cancel()

    def _uncancel(self) -> int:
        assert self._first is not None
        return self._first.uncancel()
