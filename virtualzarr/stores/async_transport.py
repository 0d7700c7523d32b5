"""Transports over asynchronous file systems: retries, and ranges requested side by side."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from virtualzarr.stores.files_in_memory import Buffer
from virtualzarr.stores.fingerprints import Fingerprint
from virtualzarr.stores.listing import Listings
from virtualzarr.stores.request_loop import LoopTask
from virtualzarr.stores.retry import TransientError, gather_ranges, retry


class AsyncTransport(Listings):
    """Files of an asynchronous file system of fsspec, whose responses tell the file's version."""

    must_ask_versions = False

    def fetch(
        self, path: str, start: int, stop: int | None, limit: int | None = None
    ) -> tuple[bytes, Fingerprint]:
        """Return bytes of a file, and what the response says of it; see `Transport`."""
        result: tuple[bytes, Fingerprint] = self._run(self.fetch_in_loop, path, start, stop, limit)
        return result

    def fetch_once(self, path: str, start: int, stop: int | None) -> tuple[bytes, Fingerprint]:
        """Do what `fetch` does, and raise `TransientError` where that would ask again."""
        result: tuple[bytes, Fingerprint] = self._run(self._attempt, path, start, stop, None)
        return result

    def fetch_many(
        self, path: str, ranges: Sequence[tuple[int, int]]
    ) -> list[tuple[bytes, Fingerprint]]:
        """Return several ranges of a file, requested side by side."""

        def fetch(start: int, stop: int) -> Awaitable[tuple[bytes, Fingerprint]]:
            return self.fetch_in_loop(path, start, stop, None)

        result: list[tuple[bytes, Fingerprint]] = self._run(gather_ranges, fetch, ranges)
        return result

    def fingerprint(self, path: str) -> Fingerprint:
        """Return a file's fingerprint as it is now."""
        result: Fingerprint = self._run(self.fingerprint_in_loop, path)
        return result

    def _run(self, function: Callable[..., Coroutine[Any, Any, Any]], *values: Any) -> Any:
        # A thread of its own runs the event loop; sessions belong to that.
        return LoopTask(self._fs.loop, function(*values)).result()

    async def fetch_in_loop(
        self, path: str, start: int, stop: int | None, limit: int | None
    ) -> tuple[bytes, Fingerprint]:
        """Do what `fetch` does in the event loop of the file system."""
        return await retry(lambda: self._attempt(path, start, stop, limit))

    async def fetch_body_in_loop(
        self, path: str, start: int, stop: int | None, limit: int | None
    ) -> tuple[Buffer, Fingerprint]:
        """Do what `fetch_in_loop` does, where any buffer will do."""
        return await self.fetch_in_loop(path, start, stop, limit)

    def as_transient(self, error: Exception) -> TransientError | None:
        """Return what another attempt may put right; of requests for bytes, these were made."""
        return None

    def is_refusal(self, error: Exception) -> bool:
        """Tell whether other credentials may be accepted, of which the transport has none."""
        return False

    @abstractmethod
    async def _attempt(
        self, path: str, start: int, stop: int | None, limit: int | None
    ) -> tuple[bytes, Fingerprint]:
        """Request bytes once; raise `TransientError` if another attempt may get them."""

    @abstractmethod
    async def fingerprint_in_loop(self, path: str) -> Fingerprint:
        """Request what tells the version of a file."""


def range_header(start: int, stop: int | None) -> dict[str, str]:
    """Return the header that asks for bytes ``start:stop``; none for a whole file.

    Examples
    --------
    >>> range_header(0, 10), range_header(-5, None), range_header(0, None)
    ({'Range': 'bytes=0-9'}, {'Range': 'bytes=-5'}, {})
    """
    if not start and stop is None:
        return {}
    # The last byte of a range is part of it (RFC 9110, 14.1.2); a suffix has no second number.
    last = "" if stop is None else stop - 1
    return {"Range": f"bytes={start}" if start < 0 else f"bytes={start}-{last}"}
