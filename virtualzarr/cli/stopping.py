"""Signals that stop a watch, from the first line of the program on.

Nothing but the standard library is imported here: what a watch needs takes a while to import, and
a signal that comes meanwhile must not end the program as if it had failed.
"""

from __future__ import annotations

import selectors
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

_LONGEST_WAIT = 86_400.0
"""Seconds: systems take no number of milliseconds beyond 24 days."""


class AbandonedError(BaseException):
    """A second signal came: whatever is under way is left as it is."""


class Stop:
    """Whether the program was told to stop, and what wakes it while it waits.

    Attributes
    ----------
    signal : int
        The one that came; 0 if none did.
    """

    def __init__(self) -> None:
        self.signal = 0
        # Sockets, as handlers of signals cannot take locks, and a pipe has no timeout on Windows.
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)

    def __bool__(self) -> bool:
        return bool(self.signal)

    def wake(self) -> None:
        """End the waiting, now or the next one at once."""
        with suppress(OSError):  # woken often enough, or at the end
            self._writer.send(b"w")

    def wait(self, seconds: float) -> None:
        """Wait for some time, a day at most, unless woken."""
        # `select` takes no descriptors from 1,024 on, and other selectors take one of their own.
        with getattr(selectors, "PollSelector", selectors.SelectSelector)() as selector:
            selector.register(self._reader, selectors.EVENT_READ)
            selector.select(min(seconds, _LONGEST_WAIT))
        with suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Remember the first signal; end at once with the second."""
        if self.signal:
            raise AbandonedError
        self.signal = number
        self.wake()

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM within a with statement, in the main thread."""
        numbers = [signal.SIGINT, signal.SIGTERM]
        if threading.current_thread() is not threading.main_thread():
            numbers = []
        before = {number: signal.signal(number, self.handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._reader.close()
            self._writer.close()


_early: Stop | None = None


def find_stop() -> Stop:
    """Return what signals are noted in since the program began, or else a new one."""
    return Stop() if _early is None else _early


@contextmanager
def note_early_signals(arguments: Sequence[str]) -> Iterator[Stop | None]:
    """Note signals from now on, within a with statement, if these are arguments of a watch."""
    global _early
    is_watch = "append" in arguments and any(each.startswith("--watch") for each in arguments)
    if not is_watch:
        yield None
        return
    stop = _early = Stop()
    try:
        with stop.on_signals():
            yield stop
    finally:
        _early = None


def report_abandoned(stop: Stop) -> int:
    """Say that a second signal came before the watch had begun; return the exit code."""
    print("virtualzarr: stopped", file=sys.stderr)
    return 128 + stop.signal
