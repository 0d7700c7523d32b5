"""Page cache of a remote file for parsers, which fetches the requests of all parsers in rounds.

Parsers are plain generators. They yield what they need and are sent it:

- ``(address, length)``: that many bytes, fewer where the file ends before;
- ``[(address, length), ...]``: a list of those;
- ``Gather(addresses, length)``: blocks of one length, as rows of an array, zeros past the end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from virtualzarr.config import config
from virtualzarr.errors import SourceError
from virtualzarr.formats.headers import file_size
from virtualzarr.manifest import Source
from virtualzarr.stores.files import RemoteFile

Buffer = bytes | memoryview
Request = tuple[int, int]
Parser = Generator[Any, Any, Any]

PAGE = 16 * 1024
GAP = 64 * 1024
# Most bytes of one request, as lengths come from files that may be damaged.
_MOST = 1 << 30


class Gather(NamedTuple):
    """Request for blocks of one length, as rows of an array of bytes."""

    addresses: NDArray[np.int64]
    length: int


class PageCache:
    """Pages of a remote file: requests of blocked parsers are fetched together, nothing is evicted.

    Parameters
    ----------
    fetch : callable
        Gets a list of ``(start, stop)`` and returns the bytes of each.
    size : int
        Bytes of the file.

    Notes
    -----
    `rounds`, `requests` and `nbytes` count what was fetched.
    """

    def __init__(self, fetch: Callable[[list[Request]], Sequence[bytes]], size: int) -> None:
        self._fetch = fetch
        self._size = size
        self._pages: dict[int, memoryview] = {}
        self._ready: list[tuple[Parser, Any, int | None]] = []
        self.rounds = self.requests = self.nbytes = 0
        self.rebase(0)
        self.load([(0, config.tuning.remote_header_bytes)])

    def rebase(self, base: int) -> None:
        """Set the byte of the file that addresses are relative to."""
        self.base = base
        self.size = max(self._size - base, 0)

    def widen(self, page: int) -> None:
        """Fetch the first page of a file whose metadata lie in pages of this length."""
        if config.tuning.remote_header_bytes < page <= _MOST:
            self.load([(0, page)])

    def spawn(self, parser: Parser) -> None:
        """Run one more parser, in the same rounds as those that are running."""
        self._ready.append((parser, None, None))

    def run(self, parsers: Iterable[Parser]) -> list[Any]:
        """Run parsers in rounds and return their results."""
        # A round trip costs tens of milliseconds: each parser advances until it misses a page, and
        # then the misses of all are one batch. Rounds are as many as the deepest chain of pointers.
        self._ready = [(parser, None, number) for number, parser in enumerate(parsers)]
        results: list[Any] = [None] * len(self._ready)
        while self._ready:
            blocked = []
            while self._ready:
                parser, answer, number = self._ready.pop()
                try:
                    request = self._advance(parser, answer)
                except StopIteration as stop:
                    if number is not None:
                        results[number] = stop.value
                else:
                    blocked.append((parser, request, number))
            self.load([part for _, request, _ in blocked for part in _parts(request)])
            # Popped from the end: reversed, so that parsers advance in their order.
            blocked.reverse()
            self._ready = [(parser, self._get(request), n) for parser, request, n in blocked]
        return results

    def _advance(self, parser: Parser, answer: Any) -> Any:
        """Run a parser up to the first request that needs a fetch, and return that."""
        while True:
            request = parser.send(answer)
            if not all(self.has(*part) for part in _parts(request)):
                return request
            answer = self._get(request)

    def _range(self, address: int, length: int) -> tuple[int, int]:
        start = min(self.base + address, self._size)
        return start, min(start + length, self._size)

    def peek(self, address: int, length: int) -> memoryview | None:
        """Return bytes within one cached page, else None: the fast path of most reads."""
        offset = self.base + address
        view = self._pages.get(offset // PAGE)
        if view is None:
            return None
        start = offset % PAGE
        return view[start : start + length] if start + length <= len(view) else None

    def has(self, address: int, length: int) -> bool:
        """Tell whether all pages of a range are cached."""
        check(address, length)
        start, stop = self._range(address, length)
        return all(page in self._pages for page in range(start // PAGE, -(-stop // PAGE)))

    def _get(self, request: Any) -> Any:
        if type(request) is tuple:
            return self.read(*request)
        blocks = [self.read(*part) for part in _parts(request)]
        return as_rows(blocks, request.length) if type(request) is Gather else blocks

    def read(self, address: int, length: int) -> Buffer:
        """Return cached bytes, fewer where the file ends before."""
        start, stop = self._range(address, length)
        first, last = start // PAGE, -(-stop // PAGE)
        if last - first == 1:
            return self._pages[first][start - first * PAGE : stop - first * PAGE]
        joined = b"".join(self._pages[page] for page in range(first, last))
        return memoryview(joined)[start - first * PAGE : stop - first * PAGE]

    def load(self, requests: Iterable[Request]) -> None:
        """Fetch the pages that are not cached, coalesced over small gaps."""
        missing: set[int] = set()
        for part in requests:
            start, stop = self._range(*part)
            pages = range(start // PAGE, -(-stop // PAGE))
            missing.update(page for page in pages if page not in self._pages)
        if not missing:
            return
        ranges = [
            (start * PAGE, min(stop * PAGE, self._size)) for start, stop in _runs(sorted(missing))
        ]
        self.rounds += 1
        self.requests += len(ranges)
        for (start, stop), data in zip(ranges, self._fetch(ranges), strict=True):
            if len(data) != stop - start:
                raise SourceError(f"{stop - start} bytes were asked for, {len(data)} were sent")
            self.nbytes += len(data)
            view = memoryview(data)
            for offset in range(0, len(data), PAGE):
                self._pages[(start + offset) // PAGE] = view[offset : offset + PAGE]


def pages_of(source: Source) -> PageCache:
    """Return the pages of a file at a URL.

    Raises `SourceError` if the file cannot be read.
    """
    size = file_size(source)
    return PageCache(RemoteFile(source.location, source.fingerprint).read_many, size)


def check(address: int, length: int) -> None:
    """Raise for ranges that only damaged pointers or lengths can lead to."""
    if address < 0 or length < 0 or length > _MOST:
        raise SourceError(f"a structure claims {length} bytes at {address}")


def _parts(request: Any) -> Sequence[Request]:
    if type(request) is tuple:
        return (request,)
    if type(request) is Gather:
        return [(address, request.length) for address in request.addresses.tolist()]
    parts: Sequence[Request] = request
    return parts


def _runs(pages: list[int]) -> list[list[int]]:
    """Coalesce pages into runs [start, stop) over gaps that cost less than another request."""
    runs = [[pages[0], pages[0] + 1]]
    for page in pages[1:]:
        if (page - runs[-1][1]) * PAGE <= GAP:
            runs[-1][1] = page + 1
        else:
            runs.append([page, page + 1])
    return runs


def as_rows(blocks: Sequence[Buffer], length: int) -> NDArray[np.uint8]:
    """Return blocks as rows of an array, filled up with zeros."""
    padded = b"".join(bytes(block).ljust(length, b"\0") for block in blocks)
    return np.frombuffer(padded, np.uint8).reshape(len(blocks), length)
