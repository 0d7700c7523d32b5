"""ASGI application that serves datasets as Zarr, read-only."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from virtualzarr.choices import check_choice
from virtualzarr.errors import VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.keywords import strict_keywords
from virtualzarr.serve.access import Access
from virtualzarr.serve.catalogue import Entry, Follow, Snapshot, make_catalogue, name_targets
from virtualzarr.serve.codecs import FACES
from virtualzarr.serve.delivery import Delivery
from virtualzarr.serve.disk_cache import DiskCache
from virtualzarr.serve.messages import (
    BadRequestError,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    document_response,
    is_fresh,
    is_refused,
    ranged_response,
    select_range,
    text_response,
    unsatisfiable,
)
from virtualzarr.serve.page.pages import Pages, url_of
from virtualzarr.serve.served_array import Piece, ServedArray

_access_log = logging.getLogger("virtualzarr.serve.access")
_log = logging.getLogger(__name__)

MEMORY = 96 << 20
CACHE_SIZE = 10 << 30
POLL = 10.0

_SLICE = 256 << 10
"""Bytes that are handed to the connection at once: what it holds is not counted."""

_NUMBER_LENGTH = 19


@strict_keywords()
def create_app(
    targets: Any,
    *,
    tokens: Collection[str] = (),
    public: bool = False,
    origins: Collection[str] = (),
    follow: Follow = "append",
    poll: float = POLL,
    max_age: int = 0,
    memory: int = MEMORY,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int = CACHE_SIZE,
    show_sources: bool = False,
    page: bool = True,
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
    version: int | None = None,
    at: str | None = None,
    tag: str | None = None,
) -> Application:
    """Return an ASGI application that serves datasets as Zarr over HTTP.

    Parameters
    ----------
    targets : path, URL, Group, Array, list of these, or mapping of names to them
        What to serve: whatever `virtualzarr.open` opens. A list of texts may have ``name=target``.
        One that stands alone has no name in its URLs.
    tokens : collection of str
        One of which each request needs, if there are any.
    public : bool
        Whether everybody may ask without one. If neither, only requests to and from loopback are
        answered.
    origins : collection of str
        Web pages that may read answers, besides the usual.
    follow : {"append", "all", "none"}
        Which commits URLs without a version follow, of datasets with versions.
    poll : float
        Seconds between looks for new versions; 0 for none.
    max_age : int
        Seconds for which clients need not ask again, of URLs without a version.
    memory : int
        Bytes for chunks on their way: requests wait for them.
    cache : path, optional
        A folder for encoded chunks.
    cache_size : int
        Bytes in it.
    show_sources : bool
        Whether the page names files and URLs of sources.
    page : bool
        Whether there is a page for people.
    format, storage_options, allowed, version, at, tag
        As for `virtualzarr.open`, for all targets.

    Returns
    -------
    Application

    Raises
    ------
    VirtualZarrError
        A target cannot be opened.
    MissingDependencyError
        The extra ``serve`` is not installed.

    Notes
    -----
    See ``specs/serving.md`` for what is answered.

    Examples
    --------
    >>> from virtualzarr import Group
    >>> app = create_app({"empty": Group({"title": "empty"})})
    >>> sorted(app.entries["empty"].snapshot.faces["v2"].documents)
    ['.zattrs', '.zgroup', '.zmetadata']
    """
    check_choice("follow", follow, Follow)
    options = {
        "format": format, "storage_options": storage_options, "allowed": allowed,
        "version": version, "at": at, "tag": tag,
    }  # fmt: skip
    stored = None if cache is None else DiskCache(cache, cache_size)
    return Application(
        make_catalogue(_as_mapping(targets), options, follow),
        Access(tokens, public, origins),
        Delivery(memory, stored),
        poll=poll, max_age=max_age, show_sources=show_sources, page=page,
    )  # fmt: skip


def _as_mapping(targets: Any) -> dict[str, Any]:
    # Groups are mappings, too.
    if isinstance(targets, Mapping) and not isinstance(targets, Group):
        return dict(targets)
    if isinstance(targets, list | tuple):
        if all(isinstance(target, str) for target in targets):
            return name_targets(targets)
        raise TypeError("several targets that are not texts need names: give a mapping")
    return {"": targets}


class Application:
    """An ASGI application; see `create_app`.

    Attributes
    ----------
    entries : dict of Entry by name
    """

    def __init__(
        self,
        entries: dict[str, Entry],
        access: Access,
        delivery: Delivery,
        *,
        poll: float,
        max_age: int,
        show_sources: bool,
        page: bool,
    ) -> None:
        self.entries, self.access, self.delivery = entries, access, delivery
        self.poll, self.max_age = poll, max_age
        self.show_sources = show_sources
        self.pages = Pages(entries, delivery, show_sources) if page else None
        self._polling: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        elif scope["type"] == "http":
            self._start_polling()
            await _Exchange(self, scope, receive, send).run()
        else:
            # Of a websocket, which is refused.
            await send({"type": "websocket.close", "code": 1003})

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                if self._polling is not None:
                    self._polling.cancel()
                self.delivery.close()
                return

    def _start_polling(self) -> None:
        # With the first request: mounted applications are told of no start.
        if self._polling is None and self.poll > 0 and any(map(_grows, self.entries.values())):
            self._polling = asyncio.get_running_loop().create_task(self._keep_polling())

    async def _keep_polling(self) -> None:
        while True:
            await asyncio.sleep(self.poll)
            for entry in self.entries.values():
                try:
                    await self.delivery.read(entry.refresh)
                # Whatever it is, what is served stays as it is, and the next look may succeed.
                except Exception as error:
                    _log.warning("%s: no look for new versions: %s", entry.name or "/", error)

    def locate(self, parts: list[str]) -> tuple[Entry, list[str]] | None:
        """Return the dataset that a path names, and the rest of the path."""
        if "" in self.entries:
            return self.entries[""], parts
        entry = self.entries.get(parts[0])
        return None if entry is None or len(parts) < 2 else (entry, parts[1:])


class _Exchange:
    """One request and its answer."""

    def __init__(self, app: Application, scope: Scope, receive: Receive, send: Send) -> None:
        self.app, self.scope, self.receive, self.send = app, scope, receive, send
        self.started = time.perf_counter()
        self.dataset = self.face = ""
        self.kind, self.status, self.sent, self.begun = "other", 500, 0, False
        self.request = Request(scope["method"], [], {})
        self.cors: dict[str, str] = {}
        self.gone: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Answer the request."""
        try:
            response = await self._respond()
            if response is not None:
                await self._send(response)
        except VirtualZarrError as error:
            # The full text has paths and URLs, which are for the log alone.
            _log.warning("%s: %s", self._path, error)
            if self.begun:
                raise
            await self._send(self._failure(error))
        finally:
            if self.gone is not None:
                self.gone.cancel()
            self._log()

    @property
    def _path(self) -> str:
        raw = self.scope.get("raw_path") or self.scope["path"].encode()
        return bytes(raw[:1000]).decode("ascii", "backslashreplace").partition("?")[0]

    def _log(self) -> None:
        seconds = time.perf_counter() - self.started
        self.app.delivery.metrics.count(
            self.dataset, self.face, self.kind, self.status, self.sent, seconds
        )
        _access_log.info(
            "%s %s %r %d %d %.1fms %s", self.request.client, self.scope["method"], self._path,
            self.status, self.sent, seconds * 1000, self.kind,
        )  # fmt: skip

    async def _respond(self) -> Response | None:
        """Return the answer; None if it was sent in pieces."""
        try:
            request = self.request = Request.parse(self.scope)
        except BadRequestError as error:
            return text_response(400, str(error), connection="close")
        access = self.app.access
        if request.method == "OPTIONS":
            return access.preflight(request)
        if request.parts == ["healthz"]:
            return text_response(200, "ok")
        refused = access.check(request)
        self.cors = access.cors_headers(request)
        if refused is not None:
            return refused
        if request.method not in ("GET", "HEAD"):
            return text_response(405, "read-only", allow="GET, HEAD, OPTIONS")
        if request.parts == ["metrics"]:
            headers = {"content-type": "text/plain; version=0.0.4", "cache-control": "no-store"}
            return Response(200, self.app.delivery.metrics.render(), headers, "metrics")
        return await self._respond_below()

    async def _respond_below(self) -> Response | None:
        found = self.app.locate(self.request.parts)
        if found is None:
            return await self._respond_page(None, self.request.parts)
        entry, parts = found
        self.dataset = entry.name
        if not parts[0].startswith("@"):
            if parts[0] in FACES:
                return await self._respond_key(entry.snapshot, parts, pinned=False)
            return await self._respond_page(entry, parts)
        number = parts[0][1:]
        if len(parts) < 2 or not _is_number(number):
            return text_response(404, "there is nothing of that name")
        snapshot = await self.app.delivery.read(entry.at_version, int(number))
        if snapshot is None:
            # Never 404 for chunks: they would be taken for missing ones.
            is_key = parts[-1] not in (".zgroup", ".zarray", ".zattrs", ".zmetadata", "zarr.json")
            return text_response(502 if is_key else 404, "there is no such version")
        return await self._respond_key(snapshot, parts[1:], pinned=True)

    async def _respond_page(self, entry: Entry | None, parts: list[str]) -> Response:
        if self.app.pages is None:
            return text_response(404, "there is nothing of that name")
        url = url_of(self.request, self.scope.get("scheme", ""), self.scope.get("root_path", ""))
        return await self.app.pages.respond(entry, parts, self.request, url)

    async def _respond_key(
        self, snapshot: Snapshot, parts: list[str], pinned: bool
    ) -> Response | None:
        face = snapshot.faces.get(parts[0])
        if face is None:
            return text_response(404, f"there is no such face: {snapshot.skipped.get(parts[0])}")
        self.face = parts[0]
        found = face.find(parts[1:])
        headers = {"cache-control": "no-cache"}
        if self.app.max_age:
            headers["cache-control"] = f"max-age={self.app.max_age}"
        if isinstance(found, bytes):
            self.kind = "document"
            tag = f'"{hashlib.blake2b(found, digest_size=16).hexdigest()}"'
            headers["content-type"] = "application/json"
            return document_response(self.request, found, tag, headers)
        # Only what is certainly not there is a 404: clients take that for fill values. All failures
        # raise, and become a 502.
        self.kind = "missing"
        missing = text_response(404, "there is no such key")
        missing.headers["cache-control"] = headers["cache-control"]
        if found is None:
            return missing
        array, cell = found
        piece = await self.app.delivery.find(array, cell)
        if piece is None:
            return missing
        if pinned:
            headers["cache-control"] = "max-age=31536000, immutable"
        headers["content-type"] = "application/octet-stream"
        return await self._respond_chunk(array, cell, piece, headers)

    async def _respond_chunk(
        self, array: ServedArray, cell: tuple[int, ...], piece: Piece, headers: dict[str, str]
    ) -> Response | None:
        self.kind, request = piece.kind, self.request
        if piece.tag is not None:
            conditional = self._conditional(piece.tag, headers)
            if conditional is not None:
                return conditional
            if piece.nbytes is not None:
                return await self._send_stream(piece, piece.tag, piece.nbytes, headers)
        key = f"{id(array)}/{cell}"
        async with self.app.delivery.encoded(key, piece) as (data, tag):
            response = self._conditional(tag, headers)
            if response is None:
                response = ranged_response(request, data, tag, headers, piece.kind)
            await self._send(response)
        return None

    def _conditional(self, tag: str, headers: dict[str, str]) -> Response | None:
        if is_fresh(self.request, tag):
            return Response(304, headers=headers | {"etag": tag}, kind=self.kind)
        if is_refused(self.request, tag):
            return text_response(412, "the chunk is another one")
        return None

    async def _send_stream(
        self, piece: Piece, tag: str, nbytes: int, headers: dict[str, str]
    ) -> Response | None:
        """Send a chunk that passes through, as it is read."""
        headers = headers | {"etag": tag, "accept-ranges": "bytes"}
        try:
            span = select_range(self.request, tag, nbytes)
        except IndexError:
            return unsatisfiable(nbytes)
        status, (start, stop) = (200, (0, nbytes)) if span is None else (206, span)
        if span is not None:
            headers["content-range"] = f"bytes {start}-{stop - 1}/{nbytes}"
        if self.request.method == "HEAD" or start == stop:
            await self._start(status, headers, stop - start)
            await self.send({"type": "http.response.body"})
            return None
        async with contextlib.aclosing(self.app.delivery.stream(piece, start, stop)) as pieces:
            at = start
            async for data in pieces:
                if at == start:
                    # Only now: what cannot be read at all is a failure with a status.
                    await self._start(status, headers, stop - start)
                await self._send_body(data, last=at + len(data) == stop)
                at += len(data)
                if self._is_gone():
                    break
        return None

    def _is_gone(self) -> bool:
        """Whether the client has closed the connection."""
        if self.gone is None:
            self.gone = asyncio.get_running_loop().create_task(self._wait_for_end())
        return self.gone.done()

    async def _wait_for_end(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def _failure(self, error: VirtualZarrError) -> Response:
        """Return the answer to a chunk that cannot be read."""
        what = "picture" if self.kind == "page" else "chunk"
        text = f"{type(error).__name__}: the {what} cannot be read"
        return text_response(502, f"{text}: {error}" if self.app.show_sources else text)

    async def _start(self, status: int, headers: Mapping[str, str], nbytes: int | None) -> None:
        self.status, self.begun = status, True
        fixed = dict(headers)
        for name, value in self.cors.items():
            fixed[name] = f"{fixed[name]}, {value}" if name in fixed else value
        fixed["x-content-type-options"] = "nosniff"
        if nbytes is not None:
            fixed["content-length"] = str(nbytes)
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in fixed.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": encoded})

    async def _send_body(self, data: bytes, *, last: bool) -> None:
        view = memoryview(data)
        for start in range(0, max(len(view), 1), _SLICE):
            part = bytes(view[start : start + _SLICE])
            more = not last or start + _SLICE < len(view)
            await self.send({"type": "http.response.body", "body": part, "more_body": more})
            self.sent += len(part)

    async def _send(self, response: Response) -> None:
        if response.kind != "other":
            self.kind = response.kind
        has_length = response.status not in (204, 304)
        nbytes = len(response.body) if has_length else None
        await self._start(response.status, response.headers, nbytes)
        body = b"" if self.request.method == "HEAD" or not has_length else response.body
        await self._send_body(body, last=True)


def _grows(entry: Entry) -> bool:
    return entry.has_versions and entry.follow != "none"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _NUMBER_LENGTH
