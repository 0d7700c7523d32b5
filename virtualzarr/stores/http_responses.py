"""Responses over HTTP: what their statuses mean, and whether they have the bytes asked for."""

from __future__ import annotations

import re
import zlib
from contextlib import suppress
from gzip import GzipFile
from io import BytesIO
from typing import Any

from virtualzarr.config import config
from virtualzarr.errors import SourceError, SourceNotFoundError
from virtualzarr.stores.body_memory import body_memory
from virtualzarr.stores.direct_bodies import receive_body
from virtualzarr.stores.files_in_memory import Buffer
from virtualzarr.stores.fingerprints import check_length
from virtualzarr.stores.retry import TRANSIENT_STATUSES, TransientError, parse_retry_after

MISSING_STATUSES = (404, 410)
"""All other failures say nothing of whether a file is there."""

_SPAN = re.compile(r"bytes (?:(-?\d{1,19})-(\d{1,19})|\*)/(\d{1,19}|\*)$")

PAGE_BYTES = 512
"""So many bytes tell a web page from other files."""

_UNDONE = ("gzip", "deflate")
_PLAIN = frozenset(["", "identity", "aws-chunked", "utf-8", "none"])
"""What servers call answers that are sent as they are, also where it is no name of an encoding."""

_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
_PIECE = _LARGE = 1 << 20

_IS_PAGE = (
    "the server answered with a web page, as it does where a login is missing or has expired, and "
    "not with the file"
)
_PAGE = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html|head|body|script)", re.IGNORECASE
)


def check_status(response: Any, url: str) -> None:
    """Raise what a status means, unless it is that of a file or of a part of it."""
    if response.status in TRANSIENT_STATUSES:
        raise transient_error(response, url)
    if response.status in MISSING_STATUSES:
        raise SourceNotFoundError(f"the server answered {response.status}: no such file", file=url)
    if response.status not in (200, 206):
        raise StatusError.of(response, url)


class StatusError(SourceError):
    """A server answered by a status that is no success.

    Attributes
    ----------
    status : int
    """

    status: int = 0

    @classmethod
    def of(cls, response: Any, url: str) -> StatusError:
        """Return the error for a response."""
        text = f"the server answered {response.status} {response.reason or ''}".rstrip()
        error = cls(text, file=url)
        error.status = response.status
        return error


def transient_error(response: Any, url: str) -> TransientError:
    """Return the error of a response after which a request is worth sending again."""
    error = StatusError.of(response, url)
    return TransientError(error, seconds_to_rest(response), status=response.status)


def seconds_to_rest(response: Any) -> float:
    """Return how many seconds a server asks to be left alone for."""
    return parse_retry_after(response.headers.get("Retry-After"))


def keeps_open(response: Any) -> bool:
    """Whether the server takes further requests over the connection of an answer."""
    connection = response.headers.get("Connection", "").lower()
    return connection == "keep-alive" if response.version < (1, 1) else connection != "close"


def content_length(response: Any) -> int | None:
    """Return how many bytes a file has by a response with all of it."""
    if encoding_of(response):
        return None  # the length of what was sent
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() else None


def encoding_of(response: Any) -> str:
    """Return how a body is compressed, in lower case; nothing if it is as it is.

    Old names of gzip and others begin with ``x-`` (RFC 9110, 8.4.1.3).
    """
    names = response.headers.get("Content-Encoding", "").lower().split(",")
    names = [name.strip().removeprefix("x-") for name in names]
    return ", ".join(name for name in names if name not in _PLAIN)


def parse_content_range(response: Any, url: str) -> tuple[int, int, int | None]:
    """Return which bytes a response has, and of how many."""
    text = response.headers.get("Content-Range", "")
    match = _SPAN.match(text.strip())
    if match is None or (response.status == 206) != (match[1] is not None):
        if response.status == 416:
            return 0, 0, None
        raise SourceError(f"the server's range is wrong: Content-Range is {quote(text)}", file=url)
    size = None if match[3] == "*" else int(match[3])
    # Some servers count back from the end beyond the beginning of a short file.
    return max(int(match[1] or 0), 0), int(match[2] or -1) + 1, size


def quote(text: str) -> str:
    """Return what a server sent, for messages, or how long it is: no part of it.

    Half of a secret could not be told from other text.
    """
    return repr(text) if len(text) < 99 else f"a text of {len(text)} characters"


def check_range(
    url: str,
    response: Any,
    requested: tuple[int, int | None],
    received: tuple[int, int | None, int | None],
) -> None:
    """Refuse a response with other bytes than were asked for, before they are read."""
    (start, stop), (begin, end, size) = requested, received
    # Without a range in the answer it is the whole file: right for a suffix, which is cut from it,
    # and for a range with all of the file in it. Reading a large one to keep a part is refused.
    if end is None:
        if start < 0 or (start == 0 and size is not None and stop is not None and size <= stop):
            return
        if is_html(response):
            raise SourceError(_IS_PAGE, file=url)
        raise SourceError(
            "some bytes were asked for and all of them came: "
            "the server does not understand byte ranges",
            file=url,
        )
    if encoding_of(response):
        raise SourceError("the server compresses what it sends: ranges mean nothing", file=url)
    if start < 0:
        right = size is not None and end == size and begin == max(size + start, 0)
    else:
        right = begin == start and (end == stop or (end == size and (stop is None or end < stop)))
    if not right:
        requested_range = f"{start} to {'the end' if stop is None else stop}"
        raise SourceError(
            f"bytes {requested_range} were asked for and {begin} to {end} of {size} came", file=url
        )


def is_html(response: Any) -> bool:
    """Whether a server says that it sends a web page."""
    return bool(response.headers.get("Content-Type", "").lower().startswith("text/html"))


def check_no_page(response: Any, url: str, data: Buffer) -> None:
    """Refuse a web page, such as one to log in, in the place of a file.

    Parameters
    ----------
    data : bytes-like
        The answer, or the first bytes of it.
    """
    is_wanted = url.partition("?")[0].lower().endswith((".html", ".htm"))
    is_said = is_html(response) or not response.headers.get("Content-Type")
    if is_wanted or not is_said or not _PAGE.match(data[:PAGE_BYTES]):
        return
    raise SourceError(_IS_PAGE, file=url)


async def read_start(response: Any) -> bytes:
    """Return the first bytes of a body, such as tell a web page."""
    data: bytes = await response.content.read(PAGE_BYTES)
    with suppress(zlib.error):  # of what is not compressed
        return zlib.decompressobj(_GZIP_OR_ZLIB).decompress(data, PAGE_BYTES)
    return data


async def read_body(
    response: Any, url: str, length: int | None, limit: int | None, *, as_buffer: bool = False
) -> Buffer:
    """Return the body, which must have the length that is known, and at most limit bytes.

    Parameters
    ----------
    response : aiohttp.ClientResponse
        To a request with ``auto_decompress=False``: aiohttp does not look whether gzip is cut off.
    as_buffer : bool
        Whether a large one may be a view of memory, which is filled sooner.
    """
    announced = content_length(response)
    if length is not None and announced not in (None, length):
        raise _length_error(url, length, announced)
    # Of what was announced, aiohttp reads no more, and raises an error for less.
    if announced is not None and as_buffer and announced >= _LARGE:
        return await _read_into_buffer(response, url, announced)
    if announced is not None:
        content: bytes = await response.read()
        return content
    encoding = encoding_of(response)
    if encoding and encoding not in _UNDONE:
        # Only other libraries could undo it, and say whether it is cut off.
        named = quote(encoding)
        raise SourceError(
            f"the server compresses what it sends ({named}), which it was asked not to", file=url
        )
    # What is compressed is hardly ever larger, and then by little.
    most_sent = limit + limit // 64 + 65536 if encoding and limit is not None else limit
    data = bytearray()
    # Counted as it comes, so that no server fills the memory.
    async for part in response.content.iter_any():
        data += part
        if length is None:
            _check_unannounced(url, len(data), most_sent)
        elif len(data) > length:
            raise _length_error(url, length, "more")
    if length is not None and len(data) != length:
        raise _length_error(url, length, len(data))
    if encoding:
        most = config.limits.unannounced_bytes
        data = _decompress(bytes(data), encoding, most if limit is None else min(limit, most), url)
        _check_unannounced(url, len(data), limit)
    return bytes(data)


async def _read_into_buffer(response: Any, url: str, length: int) -> memoryview:
    """Return a body in memory that may be used again after it.

    To collect all pieces and then join them takes the memory twice, mostly anew from the system.
    """
    data = body_memory.take(length + 1)
    try:
        received = await receive_body(response, data)
    except BaseException:
        del data  # which the traceback would keep, while the next attempt takes more
        raise
    if received != length:
        raise _length_error(url, length, received)
    return data[:length]


def _check_unannounced(url: str, length: int, limit: int | None) -> None:
    check_length(url, length, limit)
    config.limits.check("unannounced_bytes", length, "bytes of unannounced length")


def _decompress(data: bytes, encoding: str, most: int, url: str) -> bytearray:
    """Return what a server has compressed: all of it, or somewhat more than the most it may be."""
    plain = bytearray()
    try:
        if encoding == "gzip":
            # Which may have several members.
            with GzipFile(fileobj=BytesIO(data)) as file:
                while len(plain) <= most and (part := file.read(_PIECE)):
                    plain += part
            is_whole = bool(data)
        else:
            # Some servers leave out the head of it (RFC 9110, 8.4.1.2).
            has_head = bool(data) and data[0] & 0xF == zlib.DEFLATED
            undo = zlib.decompressobj(zlib.MAX_WBITS if has_head else -zlib.MAX_WBITS)
            plain += undo.decompress(data, most + 1)
            is_whole = len(plain) > most or (undo.eof and not undo.unused_data)
    except (EOFError, OSError, zlib.error):
        is_whole = False
    if not is_whole:
        error = SourceError(
            f"the answer, compressed by {encoding}, is cut off or damaged", file=url
        )
        raise TransientError(error, is_broken=True)
    return plain


def _length_error(url: str, length: int, came: object) -> TransientError:
    error = SourceError(f"{length} bytes were announced and {came} came", file=url)
    return TransientError(error, is_broken=True)
