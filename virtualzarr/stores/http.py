"""HTTP transport: the status, range, length and version of every response are checked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from html.parser import HTMLParser
from typing import Any, TypeVar
from urllib.parse import urldefrag, urljoin

from virtualzarr.config import config
from virtualzarr.errors import AccessError, SourceError
from virtualzarr.stores.access import name_login
from virtualzarr.stores.async_transport import AsyncTransport, range_header
from virtualzarr.stores.credential_lookups import is_looking_up
from virtualzarr.stores.credential_providers import (
    Credential,
    Provider,
    get_credential,
    renew_credential,
)
from virtualzarr.stores.credentials import Keyring, advise_login, split_url
from virtualzarr.stores.files_in_memory import Buffer
from virtualzarr.stores.fingerprints import (
    Fingerprint,
    as_source_error,
    check_length,
    truncated_error,
)
from virtualzarr.stores.foreign_errors import is_nobody_there
from virtualzarr.stores.hedging import Hedge, hedge_of, send_hedged
from virtualzarr.stores.http_responses import (
    StatusError,
    check_no_page,
    check_range,
    check_status,
    content_length,
    encoding_of,
    is_html,
    keeps_open,
    parse_content_range,
    quote,
    read_body,
    read_start,
    seconds_to_rest,
    transient_error,
)
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
from virtualzarr.stores.web_connections import BodyWatch
from virtualzarr.stores.web_sessions import SessionMaker, without_unseen_retries

T = TypeVar("T")

MAX_REDIRECTS = 10
_REDIRECT_STATUSES = (301, 302, 303, 307, 308)
_REFUSALS = (401, 403)
_NOTHING = (404, 410, 416)
_WITHHELD = (
    "; what else is in storage_options was not sent: that of a remote reference file goes to its "
    "own host only, that of a local one to hosts that allowed= names"
)
_MAX_LISTING_BYTES = 256 * 1024 * 1024


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

        async def fetch_page() -> bytes:
            attempt = partial(self._attempt, url, 0, None, _MAX_LISTING_BYTES, is_page=True)
            return (await retry(attempt))[0]

        data = self._run(fetch_page)
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

    @property
    def _has_answered(self) -> bool:
        session = self._fs._session
        return session is not None and window_of(session, self._origin).answered > 0

    def as_transient(self, error: Exception) -> TransientError | None:
        """Return what another attempt may put right of requests that fsspec makes, such as PUT."""
        import aiohttp

        if isinstance(error, aiohttp.ClientResponseError) and error.status in TRANSIENT_STATUSES:
            headers: Any = error.headers or {}
            return TransientError(error, parse_retry_after(headers.get("Retry-After")))
        broken = isinstance(error, aiohttp.ClientConnectionError | TimeoutError)
        is_lasting = is_nobody_there(error, has_answered=self._has_answered)
        return TransientError(error, is_broken=True) if broken and not is_lasting else None

    async def fingerprint_in_loop(self, url: str) -> Fingerprint:
        """Request what tells the version of a file.

        HEAD alone is believed only if it tells a size and a version: some servers do not know it,
        or say more to GET, or it is not what a signed URL is for. Whether a file is missing is
        said by GET.
        """

        async def read_head(response: Any) -> Fingerprint | None:
            if response.status in TRANSIENT_STATUSES:
                raise transient_error(response, url)
            if response.status != 200 or is_html(response):
                return None
            return Fingerprint.from_headers(response.headers, content_length(response))

        async def read_first_byte(response: Any) -> Fingerprint:
            if response.status == 416:  # an empty file has no first byte
                size = parse_content_range(response, url)[2]
                if size:
                    raise SourceError("the server has no first byte of the file", file=url)
                return Fingerprint.from_headers(response.headers, size)
            check_status(response, url)
            is_part = response.status == 206
            if is_html(response) and not is_part:
                check_no_page(response, url, await read_start(response))
            size = parse_content_range(response, url)[2] if is_part else content_length(response)
            return Fingerprint.from_headers(response.headers, size)

        head = await retry(lambda: self._request("HEAD", url, {}, read_head))
        if head is not None and head.size and head.has_version:
            return head
        # One byte: servers that ignore ranges send all of it, of which only the headers are read.
        headers = {"Range": "bytes=0-0"}
        answer = await retry(lambda: self._request("GET", url, headers, read_first_byte))
        if head is None:
            return answer
        # Some tell the size by the one and the version by the other.
        size = head.size or None if answer.size is None else answer.size
        return replace(answer if answer.has_version else head, size=size)

    async def fetch_body_in_loop(
        self, url: str, start: int, stop: int | None, limit: int | None
    ) -> tuple[Buffer, Fingerprint]:
        """Do what `fetch_in_loop` does; large bodies are views of memory."""
        return await retry(lambda: self._attempt_body(url, start, stop, limit, as_buffer=True))

    async def _attempt(
        self, url: str, start: int, stop: int | None, limit: int | None, is_page: bool = False
    ) -> tuple[bytes, Fingerprint]:
        data, fingerprint = await self._attempt_body(url, start, stop, limit, is_page=is_page)
        return bytes(data), fingerprint

    async def _attempt_body(
        self,
        url: str,
        start: int,
        stop: int | None,
        limit: int | None,
        *,
        is_page: bool = False,
        as_buffer: bool = False,
    ) -> tuple[Buffer, Fingerprint]:
        headers = range_header(start, stop)

        async def read(response: Any) -> tuple[Buffer, Fingerprint]:
            if response.status == 416:
                size = parse_content_range(response, url)[2]
                if start < 0 and size == 0:
                    return b"", Fingerprint.from_headers(response.headers, 0)
                raise truncated_error(url, start, start if stop is None else stop, size or 0)
            check_status(response, url)
            size, begin, end = content_length(response), 0, None
            if response.status == 206:
                begin, end, size = parse_content_range(response, url)
            length = size if end is None else end - begin
            if headers or end is not None:
                check_range(url, response, (start, stop), (begin, end, size))
            # The length is checked before the body is read: a server may announce any.
            if length is not None:
                check_length(url, length, limit)
            data = await read_body(response, url, length, limit, as_buffer=as_buffer)
            if not is_page and not begin:
                check_no_page(response, url, data)
            if end is None and not encoding_of(response):
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
            send: Callable[[Credential | None], Awaitable[Any]]
            send = partial(_send_with, fs, session, method, target, headers)
            if window.is_limited and window.is_breaking:
                send = partial(_send_once, session, send)
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
                        provider, str(target.origin()), is_renewed=refusals[provider].count > 1,
                        options=self._options if not hops else None,
                    )  # fmt: skip
                    raise self._refused(error, target if hops else None, advice) from None
                finally:
                    response.release()
            try:
                target = response.url.join(URL(redirect))
            except ValueError as error:
                redacted = quote(without_query(redirect))
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
            # A redirect is no refusal, nor is that there is nothing.
            is_accepted = response.status < 400 or response.status in _NOTHING
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
    for name in ("allow_redirects", "auto_decompress", "max_redirects", "raise_for_status"):
        options.pop(name, None)
    options.setdefault("timeout", _timeout_of(session))
    sent: Awaitable[Any] = session.request(
        method, _sign(target, credential), headers={**common, **headers},
        allow_redirects=False, auto_decompress=False, raise_for_status=False, **options,
    )  # fmt: skip
    return sent


async def _send_once(
    session: Any, send: Callable[[Credential | None], Awaitable[Any]], credential: Credential | None
) -> Any:
    with without_unseen_retries(session):
        return await send(credential)


async def _send(
    send: Callable[[], Awaitable[Any]], hedge: Hedge, window: RequestWindow, url: str
) -> Any:
    """Return the response to a request, of which its host's window has taken note."""
    try:
        response = await send_hedged(hedge, send, lambda answer: answer.close(), window)
    except Exception:  # entered only now: each of thousands of requests would pay for it
        with window.note_failures(), _translate_errors(url, window):
            raise
    is_busy = response.status in BUSY_STATUSES
    if is_busy:
        hedge.note_busy()
    window.note_answer(
        keeps_open=keeps_open(response), is_busy=is_busy,
        retry_after=seconds_to_rest(response) if is_busy else 0.0,
    )  # fmt: skip
    return response


async def _read_answer(
    response: Any, read: Callable[[Any], Awaitable[T]], window: RequestWindow, url: str
) -> T:
    """Return what is read of a response; the window takes note of failures."""
    try:
        with BodyWatch(response):
            return await read(response)
    except Exception:
        is_busy = response.status in BUSY_STATUSES
        with window.note_failures(is_busy=is_busy), _translate_errors(url, window):
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
def _translate_errors(url: str, window: RequestWindow) -> Iterator[None]:
    """Raise exceptions of aiohttp as errors of this package, transient ones as such."""
    import aiohttp

    try:
        yield
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
        source_error = as_source_error(error, url)
        if is_nobody_there(error, has_answered=window.answered > 0):
            raise source_error from error
        source_error.__cause__ = error
        raise TransientError(source_error, is_broken=True) from error
    except (aiohttp.ClientError, ValueError) as error:
        raise as_source_error(error, url) from error
