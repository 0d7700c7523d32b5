"""One request to the application, and its answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from virtualzarr.errors import VirtualZarrError
from virtualzarr.serve.answers import Answer
from virtualzarr.serve.catalogue import Entry, Snapshot
from virtualzarr.serve.codecs import FACES
from virtualzarr.serve.memory_files import MemoryFile
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
    wants_compressed,
)
from virtualzarr.serve.page.pages import url_of
from virtualzarr.serve.served_array import Piece, ServedArray

if TYPE_CHECKING:
    from virtualzarr.serve.app import Application

ABORT = "virtualzarr.abort"
"""The extension of ASGI scopes by which our server resets a connection: a function."""

REMEMBER = "virtualzarr.remember"
"""The extension by which our server is told an `Answer` that the same request may get again."""

_access_log = logging.getLogger("virtualzarr.serve.access")
_log = logging.getLogger(__name__)

_SLICE = 256 << 10
"""Bytes that are handed to the connection at once: what it holds is not counted."""

SLOW_SECONDS = 10.0
"""In which a client takes `_SLICE` bytes at least, while others wait for the memory it holds."""

_TAKES_ANY = "GDAL"
"""How clients name themselves that take any status for a chunk that is missing.

They tell failures by chunks that do not decode; after another status they even put its text before
the chunk, if they ask again (GDAL 3.12).
"""

_NUMBER_LENGTH = 19


class SlowClientError(Exception):
    """A client takes its answer so slowly that others would wait for it."""


class Exchange:
    """One request and its answer."""

    def __init__(self, app: Application, scope: Scope, receive: Receive, send: Send) -> None:
        self.app, self.scope, self.receive, self.send = app, scope, receive, send
        self.started = time.perf_counter()
        self.entry: Entry | None = None
        self.version: int | None = None
        self.face = ""
        self.headers: list[tuple[bytes, bytes]] = []
        self.kind, self.status, self.sent, self.begun = "other", 500, 0, False
        self.request = Request(scope["method"], [], {})
        self.cors: dict[str, str] = {}
        self.array: ServedArray | None = None
        self.gone: asyncio.Task[None] | None = None
        self.blocked_since: float | None = None

    async def run(self) -> None:
        """Answer the request."""
        try:
            response = await self._respond()
            if response is not None:
                await self._send(response)
        except VirtualZarrError as error:
            # The full text has paths and URLs, which are for the log alone.
            _log.warning("%s: %s", self._path, error)
            if not self.begun:
                await self._send(self._failure(error))
                self.status = 502  # for log and metrics, whatever the client is told
            elif not await self._break_off():
                raise
        except SlowClientError as error:
            _log.warning("%s: too slow for those who wait: %s", self._path, error)
            if not await self._break_off():
                raise
        finally:
            if self.gone is not None:
                self.gone.cancel()
            self._log()

    async def _break_off(self) -> bool:
        """Reset the connection, if the server lets us, so that nobody takes a part for all."""
        abort = (self.scope.get("extensions") or {}).get(ABORT)
        if abort is None:
            return False
        abort()
        # The server must have noticed when this returns, or it takes it for a mistake.
        await self._wait_for_end()
        return True

    @property
    def _path(self) -> str:
        raw = self.scope.get("raw_path") or self.scope["path"].encode()
        return bytes(raw[:1000]).decode("ascii", "backslashreplace").partition("?")[0]

    def _log(self) -> None:
        seconds = time.perf_counter() - self.started
        dataset = "" if self.entry is None else self.entry.name
        self.app.delivery.metrics.count(
            dataset, self.face, self.kind, self.status, self.sent, seconds
        )
        log_answer(
            self.request.client, self.scope["method"], self._path, self.status, self.sent, seconds,
            self.kind,
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
        if request.parts == ["healthz"] and request.method in ("GET", "HEAD"):
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
        match = self.app.locate(self.request.parts)
        if match is None:
            return await self._respond_page(None, self.request.parts)
        entry, parts = match
        self.entry = entry
        if not parts[0].startswith("@"):
            if parts[0] in FACES:
                return await self._respond_key(entry.snapshot, parts, pinned=False)
            return await self._respond_page(entry, parts)
        number = parts[0][1:]
        if len(parts) < 2 or not _is_number(number):
            return text_response(404, "there is nothing of that name")
        self.version = int(number)
        snapshot = await self.app.delivery.read(entry.at_version, self.version)
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
        resource = face.find(parts[1:])
        headers = {"cache-control": "no-cache"}
        if self.app.max_age:
            headers["cache-control"] = f"max-age={self.app.max_age}"
        if isinstance(resource, bytes):
            self.kind = "document"
            headers["content-type"] = "application/json"
            tag, packed = face.tag_document("/".join(parts[1:])), None
            if wants_compressed(self.request, resource):
                packed = await self.app.delivery.compress(tag, resource)
            return document_response(self.request, resource, tag, headers, packed=packed)
        # Only what is certainly not there is a 404: clients take that for fill values. All failures
        # raise, and become a 502.
        self.kind = "missing"
        missing = text_response(404, "there is no such key")
        missing.headers["cache-control"] = headers["cache-control"]
        if resource is None:
            return missing
        array, cell = resource
        self.array = array
        piece = await self.app.delivery.find(array, cell)
        if piece is None:
            return missing
        if pinned:
            headers["cache-control"] = "max-age=31536000, immutable"
        headers["content-type"] = "application/octet-stream"
        with self._watch_speed():
            response = await self._respond_chunk(array, cell, piece, headers)
            if response is not None:
                await self._send(response)
            self._remember(snapshot, piece)
            return None

    def _remember(self, snapshot: Snapshot, piece: Piece) -> None:
        """Tell our server the answer, if it was the whole chunk, or none of it."""
        remember = (self.scope.get("extensions") or {}).get(REMEMBER)
        if remember is None or self.status not in (200, 304) or piece.tag is None:
            return
        assert self.entry is not None
        head = b"".join(b"%b: %b\r\n" % header for header in self.headers) + b"\r\n"
        remember(Answer(
            self.entry, self.version, weakref.ref(snapshot), piece if self.status == 200 else None,
            self.status, head, self.face, self.kind, self._path,
        ))  # fmt: skip

    @contextlib.contextmanager
    def _watch_speed(self) -> Iterator[None]:
        """End the answer, within a with statement, if it is taken slowly while others wait."""
        loop, task, slow = asyncio.get_running_loop(), asyncio.current_task(), False
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal timer, slow
            since = self.blocked_since
            blocked = since is not None and time.perf_counter() - since >= SLOW_SECONDS
            if blocked and self.app.delivery.budget.waiting:
                slow = True
                assert task is not None
                task.cancel()
            else:
                timer = loop.call_later(SLOW_SECONDS / 4, look)

        timer = loop.call_later(SLOW_SECONDS, look)
        try:
            yield
        except asyncio.CancelledError:
            if not slow:
                raise
            raise SlowClientError(f"{self.sent} bytes were taken") from None
        finally:
            timer.cancel()

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
        # RFC 9110, 13.2.2: in this order.
        if is_refused(self.request, tag):
            return text_response(412, "the chunk is another one")
        if is_fresh(self.request, tag):
            return Response(304, headers=headers | {"etag": tag}, kind=self.kind)
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
        await self._pass_on(piece, start, stop, status, headers)
        return None

    async def _pass_on(
        self, piece: Piece, start: int, stop: int, status: int, headers: Mapping[str, str]
    ) -> None:
        """Send bytes of a chunk that passes through, and the head before them if none was sent."""
        async with contextlib.aclosing(self.app.delivery.stream(piece, start, stop)) as pieces:
            at = start
            async for data in pieces:
                if not self.begun:
                    # Only now: what cannot be read at all is a failure with a status.
                    await self._start(status, headers, stop - start)
                await self._send_body(data, last=at + len(data) == stop)
                at += len(data)
                if at < stop and self._is_gone():
                    break

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
        if self.array is not None and self.request.header(b"user-agent").startswith(_TAKES_ANY):
            return Response(200, self.array.undecodable, {"cache-control": "no-store"})
        noun = "picture" if self.kind == "page" else "chunk"
        text = f"{type(error).__name__}: the {noun} cannot be read"
        return text_response(502, f"{text}: {error}" if self.app.show_sources else text)

    async def _start(self, status: int, headers: Mapping[str, str], nbytes: int | None) -> None:
        self.status, self.begun = status, True
        fixed = dict(headers)
        for name, value in self.cors.items():
            fixed[name] = f"{fixed[name]}, {value}" if name in fixed else value
        fixed["x-content-type-options"] = "nosniff"
        if nbytes is not None:
            fixed["content-length"] = str(nbytes)
        self.headers = [(name.encode(), value.encode("latin-1")) for name, value in fixed.items()]
        start = {"type": "http.response.start", "status": status, "headers": self.headers}
        await self.send(start)

    async def _send_body(self, data: bytes | memoryview, *, last: bool) -> None:
        view = memoryview(data)
        # Our server takes parts as they are; ASGI has bytes for them.
        is_ours = ABORT in (self.scope.get("extensions") or {})
        for start in range(0, max(len(view), 1), _SLICE):
            part: bytes | memoryview = view[start : start + _SLICE]
            if not is_ours:
                part = data if len(view) <= _SLICE else bytes(part)
            has_more = not last or start + _SLICE < len(view)
            self.blocked_since = time.perf_counter()
            await self.send({"type": "http.response.body", "body": part, "more_body": has_more})
            self.blocked_since = None
            self.sent += len(part)

    async def _send(self, response: Response) -> None:
        if response.kind != "other":
            self.kind = response.kind
        has_length = response.status not in (204, 304)
        nbytes = len(response.body) if has_length else None
        await self._start(response.status, response.headers, nbytes)
        body = b"" if self.request.method == "HEAD" or not has_length else response.body
        await self._send_body(body, last=True)


class Resumed(Exchange):
    """The rest of an answer whose beginning our server has sent, and the connection has taken.

    Parameters
    ----------
    answer : Answer
    data : MemoryFile or bytes
        The chunk. One that passes through and is in no file of ours is read again from where it
        broke off.
    at : int
        Bytes of the chunk that were sent.
    """

    def __init__(
        self, app: Application, scope: Scope, receive: Receive, send: Send, answer: Answer,
        data: MemoryFile | bytes, at: int,
    ) -> None:  # fmt: skip
        super().__init__(app, scope, receive, send)
        self.entry, self.face, self.kind = answer.entry, answer.face, answer.kind
        self.status, self.begun, self.sent = answer.status, True, at
        self.piece, self.data = answer.piece, data

    async def _respond(self) -> Response | None:
        self.request = Request.parse(self.scope)
        assert self.piece is not None
        with self._watch_speed():
            if isinstance(self.data, MemoryFile):
                await self._send_file(self.data)
            elif self.piece.nbytes is not None:
                await self._pass_on(self.piece, self.sent, self.piece.nbytes, self.status, {})
            else:
                async with self.app.delivery.budget.hold(len(self.data)):
                    await self._send_body(memoryview(self.data)[self.sent :], last=True)
        return None

    async def _send_file(self, file: MemoryFile) -> None:
        async with self.app.delivery.budget.hold(file.nbytes):
            for start in range(self.sent, file.nbytes, _SLICE):
                stop = min(start + _SLICE, file.nbytes)
                await self._send_body(file.read(start, stop), last=stop == file.nbytes)


def log_answer(
    client: str, method: str, path: str, status: int, nbytes: int, seconds: float, kind: str
) -> None:
    """Write the line of a request into the log."""
    _access_log.info(
        "%s %s %r %d %d %.1fms %s", client, method, path, status, nbytes, seconds * 1000, kind
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _NUMBER_LENGTH
