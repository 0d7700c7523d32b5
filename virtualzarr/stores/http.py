"""Requests over HTTP: the status, range, length and version of every answer are checked."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urldefrag, urljoin

from virtualzarr.errors import AccessError, SourceError, SourceNotFoundError
from virtualzarr.stores.fingerprints import (
    Fingerprint,
    as_source_error,
    check_length,
    truncated_error,
)
from virtualzarr.stores.listing import Entry, walk_entries
from virtualzarr.stores.location import Location, without_credentials
from virtualzarr.stores.retry import (
    TRANSIENT_STATUSES,
    TransientError,
    gather_ranges,
    parse_retry_after,
    retry,
)
from virtualzarr.stores.uris import is_below, origin_of

MISSING_STATUSES = (404, 410)
"""All other failures say nothing of whether a file is there."""

MAX_REDIRECTS = 10
_REDIRECT_STATUSES = (301, 302, 303, 307, 308)
_CREDENTIALS = (
    "; it wants other credentials (storage_options of a remote reference file go to its own host "
    "only, those of a local one to hosts that allowed= names)"
)
_LONGEST_LISTING = 256 * 1024 * 1024

_SPAN = re.compile(r"bytes (?:(-?\d{1,19})-(\d{1,19})|\*)/(\d{1,19}|\*)$")


class HttpTransport:
    """Files on servers, through the session that fsspec's file system keeps.

    Parameters
    ----------
    fs : fsspec.implementations.http.HTTPFileSystem
    location : Location
        Its scheme and host get its options; others, to which a redirect leads, do not.
    """

    def __init__(self, fs: Any, location: Location) -> None:
        self._fs = fs
        self._origin = origin_of(location.uri)
        self._options = location.storage_options or {}
        self._prefixes = location.redirects

    def fetch(
        self, url: str, start: int, stop: int | None, limit: int | None = None
    ) -> tuple[bytes, Fingerprint]:
        """Return bytes of a file, and what the answer says of it; see `Transport`."""
        result: tuple[bytes, Fingerprint] = self._run(self._fetch, url, start, stop, limit)
        return result

    def fetch_many(
        self, url: str, ranges: Sequence[tuple[int, int]]
    ) -> list[tuple[bytes, Fingerprint]]:
        """Return several ranges of a file, requested side by side."""

        def fetch(start: int, stop: int) -> Awaitable[tuple[bytes, Fingerprint]]:
            return self._fetch(url, start, stop, None)

        result: list[tuple[bytes, Fingerprint]] = self._run(gather_ranges, fetch, ranges)
        return result

    def fingerprint(self, url: str) -> Fingerprint:
        """Return a file's fingerprint.

        HEAD alone is believed only if it tells a size: some servers do not know it, or it is not
        what a signed URL is for. Whether a file is missing is said by GET.
        """
        result: Fingerprint = self._run(self._fingerprint, url)
        return result

    def entries(self, url: str) -> list[Entry]:
        """Return the files and folders that a page links to and that lie directly below it."""
        folder = url if url.endswith("/") else f"{url}/"
        data, _ = self.fetch(url, 0, None, _LONGEST_LISTING)
        page = _LinkParser()
        page.feed(data.decode("utf-8", "replace"))
        found = {urldefrag(urljoin(folder, link))[0] for link in page.links}
        below = (link for link in found if link.startswith(folder) and "?" not in link)
        children = sorted(link for link in below if _is_child(link[len(folder) :]))
        return [Entry(link.rstrip("/"), None, link.endswith("/")) for link in children]

    def walk(self, url: str) -> list[Entry]:
        """Return all files below a page of links."""
        return walk_entries(self.entries, url)

    def _run(self, work: Callable[..., Awaitable[Any]], *values: Any) -> Any:
        from fsspec.asyn import sync

        return sync(self._fs.loop, work, *values)

    async def _fingerprint(self, url: str) -> Fingerprint:
        async def ask() -> Fingerprint | None:
            async with self._answer("HEAD", url, {}) as answer:
                if answer.status in TRANSIENT_STATUSES:
                    raise _transient_error(answer, url)
                size = _content_length(answer)
                return (
                    Fingerprint.from_headers(answer.headers, size) if answer.status == 200 else None
                )

        found = await retry(ask)
        if found is not None and found.size:
            return found
        return await retry(lambda: self._fingerprint_by_get(url))

    async def _fingerprint_by_get(self, url: str) -> Fingerprint:
        async with self._answer("GET", url, {"Range": "bytes=0-0"}) as answer:
            if answer.status == 416:
                return Fingerprint.from_headers(
                    answer.headers, _parse_content_range(answer, url)[2]
                )
            _check_status(answer, url)
            size = (
                _parse_content_range(answer, url)[2]
                if answer.status == 206
                else _content_length(answer)
            )
            return Fingerprint.from_headers(answer.headers, size)

    async def _fetch(
        self, url: str, start: int, stop: int | None, limit: int | None
    ) -> tuple[bytes, Fingerprint]:
        return await retry(lambda: self._attempt(url, start, stop, limit))

    async def _attempt(
        self, url: str, start: int, stop: int | None, limit: int | None
    ) -> tuple[bytes, Fingerprint]:
        headers = {}
        if start or stop is not None:
            last = "" if stop is None else stop - 1
            headers["Range"] = f"bytes={start}" if start < 0 else f"bytes={start}-{last}"
        async with self._answer("GET", url, headers) as answer:
            if answer.status == 416:
                size = _parse_content_range(answer, url)[2]
                if start < 0 and size == 0:
                    return b"", Fingerprint.from_headers(answer.headers, 0)
                raise truncated_error(url, start, start if stop is None else stop, size or 0)
            _check_status(answer, url)
            size, begin, end = _content_length(answer), 0, None
            if answer.status == 206:
                begin, end, size = _parse_content_range(answer, url)
            length = size if end is None else end - begin
            if headers or end is not None:
                _check_range(url, answer, (start, stop), (begin, end, size))
            if length is not None:
                check_length(url, length, limit)
            data = await _read(answer, url, length, limit)
            if end is None and not headers and "Content-Encoding" not in answer.headers:
                size = len(data)
            if headers and answer.status != 206:
                data = data[start:]  # all of it, where the last bytes were asked for
            return data, Fingerprint.from_headers(answer.headers, size)

    @asynccontextmanager
    async def _answer(
        self, method: str, url: str, headers: Mapping[str, str]
    ) -> AsyncIterator[Any]:
        """Send a request, follow redirects, and give the answer, whatever its status.

        Credentials go to the scheme and host they were given for, and nowhere else.
        """
        from yarl import URL

        fs, place = self._fs, self._fs.encode_url(url)
        for _ in range(MAX_REDIRECTS + 1):
            options = dict(fs.kwargs)
            sent = {**(options.pop("headers", None) or {}), "Accept-Encoding": "identity"}
            for name in ("allow_redirects", "max_redirects", "raise_for_status"):
                options.pop(name, None)
            with _translate_errors(url):
                session = await fs.set_session()
                answer = await session.request(
                    method, place, headers={**sent, **headers}, allow_redirects=False,
                    raise_for_status=False, **options,
                )  # fmt: skip
            try:
                target = answer.headers.get("Location")
                if answer.status not in _REDIRECT_STATUSES or target is None:
                    with _translate_errors(url):
                        yield answer
                    return
            finally:
                answer.release()
            try:
                place = answer.url.join(URL(target))
            except ValueError as error:
                raise SourceError(f"a redirect leads to {target!r:.99}", file=url) from error
            fs = self._file_system_for(str(place), url)
        raise SourceError(f"more than {MAX_REDIRECTS} redirects", file=url)

    def _file_system_for(self, place: str, url: str) -> Any:
        """Return what may ask a place to which a redirect leads."""
        origin = origin_of(place)
        if origin[0] not in ("http", "https"):
            raise AccessError(f"a redirect leads to {place}, which is not HTTP", file=url)
        if self._prefixes is not None and not any(is_below(place, p) for p in self._prefixes):
            raise AccessError(f"a redirect leads outside what was allowed, to {place}", file=url)
        if origin == self._origin:
            return self._fs
        from fsspec.implementations.http import HTTPFileSystem

        return HTTPFileSystem(**without_credentials(self._options))


class _LinkParser(HTMLParser):
    """Collects what the anchors of a page refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links += [value for name, value in attrs if name == "href" and value]


def _is_child(rest: str) -> bool:
    name = rest.removesuffix("/")
    return bool(name) and "/" not in name and name not in (".", "..")


class _translate_errors:
    """Gives exceptions of aiohttp as errors of this package, transient ones as such."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        import aiohttp

        if isinstance(error, aiohttp.ClientConnectorError):
            raise as_source_error(error, self._url) from error  # nobody answers there
        transient = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError)
        if isinstance(error, transient):
            named = as_source_error(error, self._url)
            named.__cause__ = error
            raise TransientError(named) from error
        if isinstance(error, aiohttp.ClientError | ValueError):
            raise as_source_error(error, self._url) from error


def _check_status(answer: Any, url: str) -> None:
    """Raise what a status means, unless it is that of a file or of a part of it."""
    if answer.status in TRANSIENT_STATUSES:
        raise _transient_error(answer, url)
    if answer.status in MISSING_STATUSES:
        raise SourceNotFoundError(f"the server answered {answer.status}: no such file", file=url)
    if answer.status not in (200, 206):
        raise StatusError.of(answer, url)


class StatusError(SourceError):
    """A server answered by a status that is no success.

    Attributes
    ----------
    status : int
    """

    status: int = 0

    @classmethod
    def of(cls, answer: Any, url: str) -> StatusError:
        """Return the error for an answer."""
        hint = _CREDENTIALS if answer.status in (401, 403) else ""
        text = f"the server answered {answer.status} {answer.reason or ''}".rstrip()
        error = cls(text + hint, file=url)
        error.status = answer.status
        return error


def _transient_error(answer: Any, url: str) -> TransientError:
    error = StatusError.of(answer, url)
    return TransientError(error, parse_retry_after(answer.headers.get("Retry-After")))


def _content_length(answer: Any) -> int | None:
    """Return how many bytes a file has by an answer with all of it."""
    if answer.headers.get("Content-Encoding", "identity") not in ("identity", ""):
        return None  # the length of what was sent
    text = answer.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() else None


def _parse_content_range(answer: Any, url: str) -> tuple[int, int, int | None]:
    """Return which bytes an answer has, and of how many."""
    text = answer.headers.get("Content-Range", "")
    found = _SPAN.match(text.strip())
    if found is None or (answer.status == 206) != (found[1] is not None):
        if answer.status == 416:
            return 0, 0, None
        raise SourceError(f"the server's range is wrong: Content-Range is {text!r:.99}", file=url)
    size = None if found[3] == "*" else int(found[3])
    # Some servers count back from the end beyond the beginning of a short file.
    return max(int(found[1] or 0), 0), int(found[2] or -1) + 1, size


def _check_range(
    url: str,
    answer: Any,
    asked: tuple[int, int | None],
    came: tuple[int, int | None, int | None],
) -> None:
    """Refuse an answer with other bytes than were asked for, before they are read."""
    (start, stop), (begin, end, size) = asked, came
    if end is None:
        if start < 0 or (start == 0 and size is not None and size == stop):
            return
        raise SourceError(
            "bytes in the middle were asked for and all of them came: "
            "the server does not understand byte ranges",
            file=url,
        )
    if answer.headers.get("Content-Encoding", "identity") not in ("identity", ""):
        raise SourceError("the server compresses what it sends: ranges mean nothing", file=url)
    if start < 0:
        right = size is not None and end == size and begin == max(size + start, 0)
    else:
        right = begin == start and (end == stop or (end == size and (stop is None or end < stop)))
    if not right:
        wanted = f"{start} to {'the end' if stop is None else stop}"
        raise SourceError(
            f"bytes {wanted} were asked for and {begin} to {end} of {size} came", file=url
        )


async def _read(answer: Any, url: str, length: int | None, limit: int | None) -> bytes:
    """Return the body, which must have the length that is known, and at limit so many bytes."""
    if length is None and limit is not None:
        data = bytearray()
        async for part in answer.content.iter_any():
            data += part
            check_length(url, len(data), limit)
        return bytes(data)
    whole: bytes = await answer.read()
    if length is not None and len(whole) != length:
        raise TransientError(
            SourceError(f"{length} bytes were announced and {len(whole)} came", file=url)
        )
    return whole
