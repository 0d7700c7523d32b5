"""Retries of requests: back-off with full jitter, Retry-After as a floor; bounded concurrency."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

from virtualzarr.config import config

TRANSIENT_STATUSES = frozenset([408, 425, 429, 500, 502, 503, 504])
"""Statuses of responses that another attempt may not get."""

BUSY_STATUSES = frozenset([429, 503])
"""Those of servers that are asked too much."""

T = TypeVar("T")
_log = logging.getLogger(__name__)

_LONG = 10.0
"""Errors say of requests that took so many seconds how long that was."""


class TransientError(Exception):
    """A request failed in a way that may not happen again.

    Parameters
    ----------
    error : Exception
        What to raise if it does.
    retry_after : float
        Seconds that the server asks to wait.
    is_broken : bool
        Whether the connection broke, which says nothing of how busy the server is.
    status : int or str, optional
        What the server answered, for the log; its words may be credentials that it repeats.

    Attributes
    ----------
    answered : int
        Requests that a host has answered which refuses those beyond a limit; 0 of any other.
    """

    def __init__(
        self,
        error: Exception,
        retry_after: float = 0.0,
        *,
        is_broken: bool = False,
        status: int | str | None = None,
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after = retry_after
        self.is_broken = is_broken
        self.status = status
        self.answered = 0


class RetryBudget:
    """What is left of the attempts for one request: `config.retries`, and a time for all of them.

    Nobody waits where a connection broke for the first time: servers close those that they took
    for idle. A server that asks to wait longer than `config.max_retry_seconds` is not asked again.
    Attempts do not count that a host refused for its limit, as long as it answers others meanwhile.
    """

    def __init__(self) -> None:
        self._attempts = self._retries = self._waits = 0
        self._answered: int | None = None
        self._begin = time.monotonic()
        self._end: float | None = None

    def seconds_to_wait(self, failed: TransientError) -> float:
        """Return how long to wait before the next attempt; raise the error if there is none."""
        now = time.monotonic()
        if self._end is None:  # a request may have waited for its turn for long
            self._end = now + config.total_retry_seconds
        # A host with a limit breaks what is beyond it: there it does say how busy that is.
        is_alone = failed.is_broken and not failed.answered
        is_first_break = is_alone and self._waits == self._attempts
        seconds = 0.0 if is_first_break else back_off_seconds(self._waits, failed.retry_after)
        is_turned_away = self._answered is not None and failed.answered > self._answered
        if (
            (self._retries >= config.retries and not (is_turned_away and config.retries))
            # A server that wants minutes of rest would only be asked again by a hanging read.
            or failed.retry_after > config.max_retry_seconds
            or now + seconds > self._end
        ):
            if hasattr(failed.error, "message"):
                failed.error.message += self._explain(failed, now)
            raise failed.error from failed.error.__cause__
        reason = failed.status or type(failed.error.__cause__ or failed.error).__name__
        _log.info(
            "asked again in %.1f s: %s %s", seconds, reason, getattr(failed.error, "file", "")
        )
        self._attempts += 1
        self._waits += not is_first_break
        self._retries += not is_turned_away
        self._answered = failed.answered
        return seconds

    def _explain(self, failed: TransientError, now: float) -> str:
        """Return why it is not asked again, for the error, where that is no matter of course."""
        if failed.retry_after > config.max_retry_seconds:
            return (
                f"; it asks for a rest of {failed.retry_after:g} s, and "
                "virtualzarr.config.max_retry_seconds allows less"
            )
        if now - self._begin < _LONG:
            return ""
        times = "once" if not self._attempts else f"{self._attempts + 1} times"
        return (
            f"; it was asked {times} in {now - self._begin:.0f} s: see stall_seconds, retries and "
            "total_retry_seconds of virtualzarr.config"
        )


async def retry(attempt: Callable[[], Awaitable[T]]) -> T:
    """Return what an attempt gives; after a `TransientError`, try again within a `RetryBudget`."""
    budget = RetryBudget()
    while True:
        try:
            return await attempt()
        except TransientError as error:
            failed = error
        # Not in the handler: the error that is raised may be what the transient one comes from.
        await asyncio.sleep(budget.seconds_to_wait(failed))


def retry_blocking(attempt: Callable[[], T]) -> T:
    """Do what `retry` does with an attempt that blocks its thread."""
    budget = RetryBudget()
    while True:
        try:
            return attempt()
        except TransientError as error:
            failed = error
        time.sleep(budget.seconds_to_wait(failed))


async def gather_ranges(
    fetch: Callable[[int, int], Awaitable[T]], ranges: Sequence[tuple[int, int]]
) -> list[T]:
    """Return the result for each range, with `config.requests` requests under way at most."""
    slots = asyncio.Semaphore(config.requests)

    async def fetch_one(start: int, stop: int) -> T:
        async with slots:
            return await fetch(start, stop)

    tasks = [asyncio.create_task(fetch_one(*span)) for span in ranges]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:  # nobody waits for the others after an error
            task.cancel()


def back_off_seconds(number: int, retry_after: float = 0.0) -> float:
    """Return the seconds to wait after attempt `number`, counted from 0.

    Clients that failed together must not come back together, so the time is random up to a bound
    that doubles.

    Examples
    --------
    >>> back_off_seconds(3, retry_after=2.0) >= 2.0
    True
    """
    return retry_after + random.uniform(
        0, min(config.retry_seconds * 2**number, config.max_retry_seconds)
    )


def parse_retry_after(header: str | None) -> float:
    """Return the seconds that a header Retry-After says: a number, or a date.

    Examples
    --------
    >>> parse_retry_after("7"), parse_retry_after(None)
    (7.0, 0.0)
    """
    if header is None:
        return 0.0
    if header.strip().isdecimal():
        return float(header)
    try:
        date = parsedate_to_datetime(header)
    except (ValueError, OverflowError):
        return 0.0
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())
