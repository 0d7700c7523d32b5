"""Requests and responses of ASGI, as far as serving needs them."""

from __future__ import annotations

import gzip
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_PART = 255
"""Bytes of a part of a path."""

_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")
_HOSTILE = re.compile(r"[\x00-\x1f/\\\x7f]")
_GZIP_MIN = 1024


class BadRequestError(Exception):
    """A request that is not answered, and why."""


@dataclass(frozen=True)
class Request:
    """A request without its body.

    Attributes
    ----------
    method : str
    parts : list of str
        Of the path, each decoded; the last is empty if it ends with a slash.
    headers : dict of bytes
        By names in lower case; of several of one name, all with commas between.
    query : bytes
    client : str
    """

    method: str
    parts: list[str]
    headers: dict[bytes, bytes]
    query: bytes = b""
    client: str = "-"

    @classmethod
    def parse(cls, scope: Scope) -> Request:
        """Return the request of a scope.

        Raises
        ------
        BadRequestError
            The path has parts that no key has, or there is a body.
        """
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            headers[name] = headers[name] + b", " + value if name in headers else value
        length = headers.get(b"content-length", b"0")
        if length.strip(b"0") or b"transfer-encoding" in headers:
            raise BadRequestError("requests have no body")
        client = scope.get("client")
        return cls(
            scope["method"], split_path(_raw_path(scope)), headers,
            scope.get("query_string", b""), client[0] if client else "-",
        )  # fmt: skip

    def header(self, name: bytes) -> str:
        """Return a header as text, empty if it is not there."""
        return self.headers.get(name, b"").decode("latin-1")


def _raw_path(scope: Scope) -> bytes:
    """Return the path as it was sent, below where the application is mounted."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    root = scope.get("root_path", "").encode()
    if root and raw.startswith(root):
        raw = raw[len(root) :]
    return raw.partition(b"?")[0]


def split_path(raw: bytes) -> list[str]:
    """Return the parts of a path, each decoded once.

    Raises
    ------
    BadRequestError
        A part is not the name of anything.

    Examples
    --------
    >>> split_path(b"/a%20b/v3/zarr.json"), split_path(b"/"), split_path(b"/a/")
    (['a b', 'v3', 'zarr.json'], [''], ['a', ''])
    """
    if not raw.startswith(b"/"):
        raise BadRequestError("the path does not begin with a slash")
    encoded = raw[1:].split(b"/")
    # Only the end may be empty, which names a page.
    return [_decode_part(part) if part else "" for part in _without_empty(encoded)]


def _without_empty(parts: list[bytes]) -> list[bytes]:
    if not all(parts[:-1]):
        raise BadRequestError("a part of the path is empty")
    return parts


def _decode_part(part: bytes) -> str:
    decoded = unquote_to_bytes(part) if b"%" in part else part
    if len(decoded) > MAX_PART:
        raise BadRequestError("a part of the path is too long")
    try:
        text = decoded.decode()
    except UnicodeDecodeError:
        raise BadRequestError("the path is not UTF-8") from None
    if text in (".", "..") or _HOSTILE.search(text):
        raise BadRequestError("a part of the path is not a name")
    return text


@dataclass
class Response:
    """A response with all of its bytes.

    Attributes
    ----------
    kind : str
        What it is, for log and metrics.
    """

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    kind: str = "other"


def text_response(status: int, text: str, **headers: str) -> Response:
    """Return a short text, such as that of an error."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    fixed = {"content-type": "text/plain; charset=utf-8", "cache-control": "no-store"}
    return Response(status, f"{text}\n".encode(), fixed | named)


def is_fresh(request: Request, tag: str) -> bool:
    """Tell whether the client has what a tag names: RFC 9110, 13.1.2."""
    return _is_listed(request.header(b"if-none-match"), tag, weakly=True)


def is_refused(request: Request, tag: str) -> bool:
    """Tell whether the client wants nothing but another version: RFC 9110, 13.1.1."""
    tags = request.header(b"if-match")
    return bool(tags) and not _is_listed(tags, tag, weakly=False)


def _is_listed(header: str, tag: str, weakly: bool) -> bool:
    listed = [each.strip() for each in header.split(",")]
    if weakly:
        listed = [each.removeprefix("W/") for each in listed]
    return header.strip() == "*" or tag in listed


def select_range(request: Request, tag: str, nbytes: int) -> tuple[int, int] | None:
    """Return the one range that is asked for, as start and stop; None for all.

    Raises
    ------
    IndexError
        It lies behind the end.

    Examples
    --------
    >>> ask = lambda text: select_range(Request("GET", [], {b"range": text}), "", 10)
    >>> ask(b"bytes=2-3"), ask(b"bytes=8-"), ask(b"bytes=-4"), ask(b"bytes=0-1,4-5")
    ((2, 4), (8, 10), (6, 10), None)
    """
    validator = request.header(b"if-range")
    match = _RANGE.fullmatch(request.header(b"range").strip())
    if match is None or (validator and validator.strip() != tag):
        return None
    first, last = match.groups()
    if not first:
        if not last:
            return None
        if not int(last) or not nbytes:
            raise IndexError("the range is empty")
        return max(nbytes - int(last), 0), nbytes
    start = int(first)
    if last and int(last) < start:
        return None
    if start >= nbytes:
        raise IndexError("the range begins behind the end")
    return start, min(int(last) + 1, nbytes) if last else nbytes


def accepts_gzip(request: Request) -> bool:
    """Tell whether a client takes gzip."""
    for each in request.header(b"accept-encoding").lower().split(","):
        name, _, weight = each.strip().partition(";")
        if name.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def wants_compressed(request: Request, body: bytes) -> bool:
    """Tell whether a document is sent as `compress` gives it."""
    is_whole = b"range" not in request.headers
    return is_whole and len(body) >= _GZIP_MIN and accepts_gzip(request)


def compress(body: bytes) -> bytes:
    """Return a document in the content coding gzip, the same each time."""
    return gzip.compress(body, 6, mtime=0)


def document_response(
    request: Request,
    body: bytes,
    tag: str,
    headers: dict[str, str],
    kind: str = "document",
    packed: bytes | None = None,
) -> Response:
    """Return a document, compressed where the client takes it, or the part that is asked for.

    Parameters
    ----------
    packed : bytes, optional
        What `compress` gives, where it is known.
    """
    headers = headers | {"vary": "Accept-Encoding", "accept-ranges": "bytes"}
    compressed = f'{tag[:-1]}-gzip"'
    if is_refused(request, tag) and is_refused(request, compressed):
        return text_response(412, "the document is another one")
    if request.header(b"if-none-match") and (
        is_fresh(request, tag) or is_fresh(request, compressed)
    ):
        fresh = tag if is_fresh(request, tag) else compressed
        return Response(304, headers=headers | {"etag": fresh}, kind=kind)
    if wants_compressed(request, body):
        return Response(
            200,
            packed or compress(body),
            headers | {"etag": compressed, "content-encoding": "gzip"},
            kind,
        )
    return ranged_response(request, body, tag, headers, kind)


def ranged_response(
    request: Request, body: bytes, tag: str, headers: dict[str, str], kind: str
) -> Response:
    """Return bytes that are in memory, or the part of them that is asked for."""
    headers = headers | {"etag": tag, "accept-ranges": "bytes"}
    try:
        span = select_range(request, tag, len(body))
    except IndexError:
        return unsatisfiable(len(body))
    if span is None:
        return Response(200, body, headers, kind)
    start, stop = span
    headers["content-range"] = f"bytes {start}-{stop - 1}/{len(body)}"
    return Response(206, body[start:stop], headers, kind)


def unsatisfiable(nbytes: int) -> Response:
    """Return the answer to a range that lies behind the end."""
    return text_response(416, "the range begins behind the end", content_range=f"bytes */{nbytes}")
