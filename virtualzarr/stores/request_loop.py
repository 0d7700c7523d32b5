"""Event loop of this package, in a thread of its own, in which all asynchronous requests run.

fsspec has one, too, in which other code may run that reads by this package, such as a file system
over references: who waited there for requests of the same loop would wait for ever.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from virtualzarr.stores.forks import ForkSafeLock, reset_in_forks

_PROTOCOLS = frozenset(
    ["http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"]
)  # fmt: skip
"""Protocols whose file systems of fsspec take an event loop."""


class _RequestLoop:
    """The loop, started when it is first asked for, and anew in a forked process."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        reset_in_forks(self)
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget the loop: its thread was not forked."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        """Return the loop, running."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                run = self._loop.run_forever
                threading.Thread(target=run, name="virtualzarr-requests", daemon=True).start()
            return self._loop


_request_loop = _RequestLoop()


def with_request_loop(uri: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of fsspec by which the file system of a URL makes its requests in our loop."""
    if "::" in uri or uri.partition("://")[0] not in _PROTOCOLS:
        return dict(options)
    return {**options, "loop": _request_loop.get()}
