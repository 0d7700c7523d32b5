"""HTTP transport: the status, range, length and version of every response are checked."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from html.parser import HTMLParser
from typing import Any, TypeVar
from urllib.parse import urldefrag, urljoin

from virtualzarr.config import config
from virtualzarr.errors import AccessError, SourceError, SourceNotFoundError
from virtualzarr.stores.access import name_login
from virtualzarr.stores.async_transport import AsyncTransport, range_header
from virtualzarr.stores.credential_providers import (
    Credential,
    Provider,
    get_credential,
    is_looking_up,
    renew_credential,
)
from virtualzarr.stores.credentials import Keyring, advise_login, split_url
from virtualzarr.stores.fingerprints import (
    Fingerprint,
    as_source_error,
    check_length,
    truncated_error,
)
from virtualzarr.stores.hedging import Hedge, hedge_of, send_hedged
from virtualzarr.stores.listing import Entry, walk_entries
from virtualzarr.stores.location import Location, without_credentials
from virtualzarr.stores.refusals import Refusals
from virtualzarr.stores.request_window import RequestWindow, window_of
from virtualzarr.stores.retry import (
    BUSY_STATUSES,
    TRANSIENT_STATUSES,
    TransientError,
    parse_retry_after,
    retry,
)
from virtualzarr.stores.uris import expand_address, is_below, origin_of, without_query
from virtualzarr.stores.web_sessions import SessionMaker

T = TypeVar("T")

MISSING_STATUSES = (404, 410)
"""All other failures say nothing of whether a file is there."""

MAX_REDIRECTS = 10
_REDIRECT_STATUSES = (301, 302, 303, 307, 308)
_REFUSALS = (401, 403)
_WITHHELD = (
    "; what else is in storage_options was not sent: that of a remote reference file goes to its "
    "own host only, that of a local one to hosts that allowed= names"
)
_MAX_LISTING_BYTES = 256 * 1024 * 1024

_SPAN = re.compile(r"bytes (?:(-?\d{1,19})-(\d{1,19})|\*)/(\d{1,19}|\*)$")


class HttpTransport(AsyncTransport):
    """Files on servers, through the session that fsspec's file system keeps.

    Parameters
    ----------
    fs : fsspec.implementations.http.HTTPFileSystem
    location : Location
        Its scheme and host get its options; others, to which a redirect leads, do not.
    keyring : Keyring, optional
        Each hop gets the credentials of its own prefix.
    """

    knows_lengths = True

    def __init__(self, fs: Any, location: Location, keyring: Keyring | None = None) -> None:
        super().__init__(fs)
        self._origin = origin_of(location.uri)
        self._options = location.storage_options or {}
        self._prefixes = location.redirects
        self._is_withheld = location.withheld
        self._keyring = keyring
        prefixes = () if keyring is None else keyring.prefixes
        self._redirected_session = SessionMaker(name_login(fs._fs_token), prefixes)

    def entries(self, url: str) -> list[Entry]:
        """Return the files and folders that a page links to and that lie directly below it."""
        folder = url if url.endswith("/") else f"{url}/"
        data, _ = self.fetch(url, 0, None, _MAX_LISTING_BYTES)
        page = _LinkParser()
        page.feed(data.decode("utf-8", "replace"))
        links = {urldefrag(urljoin(folder, link))[0] for link in page.links}
        # Links with a query sort the listing of Apache; those above the folder lead elsewhere.
        below = (link for link in links if link.startswith(folder) and "?" not in link)
        children = sorted(link for link in below if _is_child(link[len(folder) :]))
        return [Entry(link.rstrip("/"), None, link.endswith("/")) for link in children]

    def walk(self, url: str) -> list[Entry]:
        """Return all files below a page of links."""
        return walk_entries(self.entries, url)

    async def fingerprint_in_loop(self, url: str) -> Fingerprint:
        """Request what tells the version of a file.

        HEAD alone is believed only if it tells a size: some servers do not know it, or it is not
        what a signed URL is for. Whether a file is missing is said by GET.
        """

        async def read_head(response: Any) -> Fingerprint | None:
            if response.status in TRANSIENT_STATUSES:
                raise _transient_error(response, url)
            if response.status != 200:
                return None
            return Fingerprint.from_headers(response.headers, _content_length(response))

        async def read_first_byte(response: Any) -> Fingerprint:
            if response.status == 416:  # an empty file has no first byte
                size = _parse_content_range(response, url)[2]
                return Fingerprint.from_headers(response.headers, size)
            _check_status(response, url)
            is_part = response.status == 206
            size = _parse_content_range(response, url)[2] if is_part else _content_length(response)
            return Fingerprint.from_headers(response.headers, size)

        fingerprint = await retry(lambda: self._request("HEAD", url, {}, read_head))
        if fingerprint is not None and fingerprint.size:
            return fingerprint
        # One byte: servers that ignore ranges send all of it, of which only the headers are read.
        headers = {"Range": "bytes=0-0"}
        return await retry(lambda: self._request("GET", url, headers, read_first_byte))

    async def _attempt(
        self, url: str, start: int, stop: int | None, limit: int | None
    ) -> tuple[bytes, Fingerprint]:
        headers = range_header(start, stop)

        async def read(response: Any) -> tuple[bytes, Fingerprint]:
            if response.status == 416:
                size = _parse_content_range(response, url)[2]
                if start < 0 and size == 0:
                    return b"", Fingerprint.from_headers(response.headers, 0)
                raise truncated_error(url, start, start if stop is None else stop, size or 0)
            _check_status(response, url)
            size, begin, end = _content_length(response), 0, None
            if response.status == 206:
                begin, end, size = _parse_content_range(response, url)
            length = size if end is None else end - begin
            if headers or end is not None:
                _check_range(url, response, (start, stop), (begin, end, size))
            # The length is checked before the body is read: a server may announce any.
            if length is not None:
                check_length(url, length, limit)
            data = await _read_body(response, url, length, limit)
            if end is None and "Content-Encoding" not in response.headers:
                size = len(data)
            if headers and response.status != 206:
                data = data[start:]  # all of it came, where the last bytes were requested
            return data, Fingerprint.from_headers(response.headers, size)

        return await self._request("GET", url, headers, read)

    async def _request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        read: Callable[[Any], Awaitable[T]],
    ) -> T:
        """Send a GET or HEAD, follow redirects, and return what is read of the response.

        Credentials go to the scheme and host they were given for, and nowhere else.

        Parameters
        ----------
        read : callable
            Is given the response, whatever its status.
        """
        from yarl import URL

        fs, target = self._fs, self._fs.encode_url(url)
        # aiohttp would follow redirects with all headers but those it knows to be secret, and past
        # `allowed`: each hop is checked here instead.
        hops, refusals = 0, defaultdict[Provider | None, Refusals](Refusals)
        # The library resolves `.` and `..` before it asks, which is more than the prefix says.
        is_plain = self._keyring is not None and split_url(url) is not None
        while hops <= MAX_REDIRECTS:
            provider = None
            if self._keyring is not None and (hops or is_plain):
                provider = self._keyring.find(str(target))
            if provider is not None:
                await get_credential(provider)  # it is looked up before it takes a slot
            session = await fs.set_session()
            origin = target.scheme, target.raw_host, target.port
            window, hedge = window_of(session, origin), hedge_of(session, origin)
            send = partial(_send_with, fs, session, method, target, headers)
            # Those of a login function do not wait for requests that wait for what it returns.
            async with nullcontext() if is_looking_up() else window.slot():
                if provider is None:
                    response = await _send(partial(send, None), hedge, window, url)
                else:
                    response = await _send_until_accepted(
                        send, provider, refusals[provider], hedge, window, url
                    )
                try:
                    redirect = response.headers.get("Location")
                    if response.status not in _REDIRECT_STATUSES or redirect is None:
                        return await _read_answer(response, read, window, url)
                except StatusError as error:
                    if error.status not in _REFUSALS:
                        raise
                    advice = advise_login(
                        provider, str(target.origin()), is_renewed=refusals[provider].count > 1
                    )
                    raise self._refused(error, target if hops else None, advice) from None
                finally:
                    response.release()
            try:
                target = response.url.join(URL(redirect))
            except ValueError as error:
                redacted = _quote(without_query(redirect))
                raise SourceError(f"a redirect leads to {redacted}", file=url) from error
            fs = self._file_system_for(expand_address(str(target)), url)
            hops += 1
        raise SourceError(f"more than {MAX_REDIRECTS} redirects", file=url)

    def _refused(self, error: StatusError, target: Any, advice: str) -> StatusError:
        """Return the error of a refusal with what to do about it, and who it was after a redirect.

        Parameters
        ----------
        target : yarl.URL, optional
            Where a redirect has led. Of this only the host is shown.
        """
        text = error.message
        if target is not None:
            who = f"{target.origin()}, to which a redirect leads,"
            text = text.replace("the server", who, 1)
        text += f": {advice}{_WITHHELD if self._is_withheld else ''}"
        refused = StatusError(text, file=error.file)
        refused.status = error.status
        return refused

    def _file_system_for(self, target: str, url: str) -> Any:
        """Return what may ask the URL to which a redirect leads."""
        origin = origin_of(target)
        if origin[0] not in ("http", "https"):
            redacted = without_query(target)
            raise AccessError(f"a redirect leads to {redacted}, which is not HTTP", file=url)
        if self._prefixes is not None and not any(is_below(target, p) for p in self._prefixes):
            redacted = without_query(target)
            raise AccessError(f"a redirect leads outside what was allowed, to {redacted}", file=url)
        if origin == self._origin:
            return self._fs
        from fsspec.implementations.http import HTTPFileSystem

        # Shared by requests of one file system, which is that of one login, and by no others.
        options = {**without_credentials(self._options), "get_client": self._redirected_session}
        return HTTPFileSystem(**options, loop=self._fs.loop)


async def _send_until_accepted(
    send: Callable[[Credential | None], Awaitable[Any]],
    provider: Provider,
    refusals: Refusals,
    hedge: Hedge,
    window: RequestWindow,
    url: str,
) -> Any:
    """Return the response to a request with the credentials that its provider has by then.

    It is sent again at once where there are others than were refused: in its turn, or it would find
    these used up, too.
    """
    while True:
        credential, is_accepted = await get_credential(provider), False
        number = credential.uses.begin()
        try:
            response = await _send(partial(send, credential), hedge, window, url)
            is_accepted = response.status < 400  # a redirect is no refusal
        finally:
            credential.uses.end(number, is_accepted=is_accepted)
        if response.status not in _REFUSALS:
            return response
        response.release()  # of which nothing but the head is read
        is_last = not refusals.note(credential.uses)
        if is_last or not await renew_credential(provider, credential):
            return response


def _send_with(
    fs: Any,
    session: Any,
    method: str,
    target: Any,
    headers: Mapping[str, str],
    credential: Credential | None,
) -> Awaitable[Any]:
    """Return what sends a request once, with the options of a file system and a credential."""
    options = dict(fs.kwargs)
    # The bytes of references are those stored: a compressed answer has other offsets.
    common = {**(options.pop("headers", None) or {}), "Accept-Encoding": "identity"}
    if credential is not None:
        common |= credential.headers
    for name in ("allow_redirects", "max_redirects", "raise_for_status"):
        options.pop(name, None)
    options.setdefault("timeout", _timeout_of(session))
    sent: Awaitable[Any] = session.request(
        method, _sign(target, credential), headers={**common, **headers},
        allow_redirects=False, raise_for_status=False, **options,
    )  # fmt: skip
    return sent


async def _send(
    send: Callable[[], Awaitable[Any]], hedge: Hedge, window: RequestWindow, url: str
) -> Any:
    """Return the response to a request, of which its host's window has taken note."""
    try:
        response = await send_hedged(hedge, send, lambda answer: answer.close(), window)
    except Exception:  # entered only now: each of thousands of requests would pay for it
        with window.note_failures(), _translate_errors(url):
            raise
    is_busy = response.status in BUSY_STATUSES
    if is_busy:
        hedge.note_busy()
    window.note_answer(
        keeps_open=_keeps_open(response), is_busy=is_busy,
        retry_after=_seconds_to_rest(response) if is_busy else 0.0,
    )  # fmt: skip
    return response


async def _read_answer(
    response: Any, read: Callable[[Any], Awaitable[T]], window: RequestWindow, url: str
) -> T:
    """Return what is read of a response; the window takes note of failures."""
    try:
        return await read(response)
    except Exception:
        is_busy = response.status in BUSY_STATUSES
        with window.note_failures(is_busy=is_busy), _translate_errors(url):
            raise


def _timeout_of(session: Any) -> Any:
    """Return how long requests of a session may take, unless who made it said so."""
    return _bound_silence(session.timeout, config.stall_seconds)


@lru_cache(maxsize=8)
def _bound_silence(given: Any, seconds: float) -> Any:
    """Return a timeout that gives up a server that sends nothing more, if it is aiohttp's own.

    That one would keep a read waiting for minutes, and leave no time to ask again.
    """
    from aiohttp import ClientTimeout
    from aiohttp.client import DEFAULT_TIMEOUT

    if given != DEFAULT_TIMEOUT:
        return given
    return ClientTimeout(given.total, sock_connect=given.sock_connect, sock_read=seconds)


def _sign(target: Any, credential: Credential | None) -> Any:
    """Return a URL with the signature of a credential."""
    from yarl import URL

    if credential is None or not credential.query:
        return target
    text = str(target)
    return URL(f"{text}{'&' if '?' in text else '?'}{credential.query}", encoded=True)


class _LinkParser(HTMLParser):
    """Collects what the anchors of a page refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links += [value for name, value in attrs if name == "href" and value]


def _is_child(link: str) -> bool:
    name = link.removesuffix("/")
    return bool(name) and "/" not in name and name not in (".", "..")


@contextmanager
def _translate_errors(url: str) -> Iterator[None]:
    """Raise exceptions of aiohttp as errors of this package, transient ones as such."""
    import aiohttp

    try:
        yield
    except aiohttp.ClientConnectorError as error:
        # Nobody answers there: a wrong name or port, which no retry puts right.
        raise as_source_error(error, url) from error
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
        source_error = as_source_error(error, url)
        source_error.__cause__ = error
        raise TransientError(source_error) from error
    except (aiohttp.ClientError, ValueError) as error:
        raise as_source_error(error, url) from error


def _check_status(response: Any, url: str) -> None:
    """Raise what a status means, unless it is that of a file or of a part of it."""
    if response.status in TRANSIENT_STATUSES:
        raise _transient_error(response, url)
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
        """Return the error for an response."""
        text = f"the server answered {response.status} {response.reason or ''}".rstrip()
        error = cls(text, file=url)
        error.status = response.status
        return error


def _transient_error(response: Any, url: str) -> TransientError:
    return TransientError(StatusError.of(response, url), _seconds_to_rest(response))


def _seconds_to_rest(response: Any) -> float:
    return parse_retry_after(response.headers.get("Retry-After"))


def _keeps_open(response: Any) -> bool:
    """Whether the server takes further requests over the connection of an answer."""
    connection = response.headers.get("Connection", "").lower()
    return connection == "keep-alive" if response.version < (1, 1) else connection != "close"


def _content_length(response: Any) -> int | None:
    """Return how many bytes a file has by an response with all of it."""
    if response.headers.get("Content-Encoding", "identity") not in ("identity", ""):
        return None  # the length of what was sent
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() else None


def _parse_content_range(response: Any, url: str) -> tuple[int, int, int | None]:
    """Return which bytes an response has, and of how many."""
    text = response.headers.get("Content-Range", "")
    match = _SPAN.match(text.strip())
    if match is None or (response.status == 206) != (match[1] is not None):
        if response.status == 416:
            return 0, 0, None
        raise SourceError(f"the server's range is wrong: Content-Range is {_quote(text)}", file=url)
    size = None if match[3] == "*" else int(match[3])
    # Some servers count back from the end beyond the beginning of a short file.
    return max(int(match[1] or 0), 0), int(match[2] or -1) + 1, size


def _quote(text: str) -> str:
    """Return what a server sent, for messages, or how long it is: no part of it.

    Half of a secret could not be told from other text.
    """
    return repr(text) if len(text) < 99 else f"a text of {len(text)} characters"


def _check_range(
    url: str,
    response: Any,
    requested: tuple[int, int | None],
    received: tuple[int, int | None, int | None],
) -> None:
    """Refuse an response with other bytes than were asked for, before they are read."""
    (start, stop), (begin, end, size) = requested, received
    # Without a range in the answer it is the whole file: right for a suffix, which is cut from it,
    # and for a range with all of the file in it. Reading a large one to keep a part is refused.
    if end is None:
        if start < 0 or (start == 0 and size is not None and stop is not None and size <= stop):
            return
        raise SourceError(
            "bytes in the middle were asked for and all of them came: "
            "the server does not understand byte ranges",
            file=url,
        )
    if response.headers.get("Content-Encoding", "identity") not in ("identity", ""):
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


async def _read_body(response: Any, url: str, length: int | None, limit: int | None) -> bytes:
    """Return the body, which must have the length that is known, and at most limit bytes."""
    announced = _content_length(response)
    if length is not None and announced not in (None, length):
        raise _length_error(url, length, announced)
    if announced is not None:
        content: bytes = await response.read()  # aiohttp reads no more than was announced
        return content
    data = bytearray()
    # Counted as it comes, so that no server fills the memory.
    async for part in response.content.iter_any():
        data += part
        if length is None:
            check_length(url, len(data), limit)
            config.limits.check("unannounced_bytes", len(data), "bytes of unannounced length")
        elif len(data) > length:
            raise _length_error(url, length, "more")
    if length is not None and len(data) != length:
        raise _length_error(url, length, len(data))
    return bytes(data)


def _length_error(url: str, length: int, came: object) -> TransientError:
    return TransientError(SourceError(f"{length} bytes were announced and {came} came", file=url))
