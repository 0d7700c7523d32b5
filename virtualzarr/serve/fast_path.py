"""Fast path of our server: requests that came before need neither parser nor application."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from virtualzarr.errors import VirtualZarrError
from virtualzarr.serve.answers import MAX_REQUEST, Answer
from virtualzarr.serve.app import Application
from virtualzarr.serve.exchange import REMEMBER, Resumed, log_answer
from virtualzarr.serve.memory_files import MemoryFile
from virtualzarr.serve.messages import Receive, Scope, Send

_STATUS_LINES = {
    status: f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode() for status in (200, 304)
}
_WRITES_AT_ONCE = hasattr(os, "writev")  # not on Windows


class FastPath:
    """What a protocol of uvicorn does before it parses, as a base class beside that.

    A request that comes as one packet, on a connection that has nothing else to do, gets the answer
    that the same bytes got before, if that still holds: as much of it as the system takes at once.
    Any rest is sent as other answers are, slice by slice.
    """

    application: Application
    transport: asyncio.Transport
    app: Any
    client: tuple[str, int] | None
    cycle: Any
    scope: Scope
    server_state: Any
    _messages = 0
    _is_between = True

    def on_message_begin(self) -> None:
        """Note that a request begins."""
        self._messages, self._is_between = self._messages + 1, False
        super().on_message_begin()  # type: ignore[misc]  # of uvicorn, as all below

    def on_message_complete(self) -> None:
        """Note that a request ends."""
        super().on_message_complete()  # type: ignore[misc]
        self._is_between = True

    def receive(self, data: bytes) -> bool:
        """Answer a request that came before; have others parsed, and their answers remembered.

        Returns
        -------
        bool
            Whether it was answered.
        """
        is_idle, before = self._is_idle(), self._messages
        if is_idle and self._answer_again(data):
            return True
        super().data_received(data)  # type: ignore[misc]
        if len(data) <= MAX_REQUEST and is_idle and self._is_one_request(before):
            remember = partial(self.application.answers.remember, data)
            self.scope["extensions"][REMEMBER] = remember
        return False

    def _is_one_request(self, before: int) -> bool:
        """Tell whether one GET has come since, and no more, after which the connection goes on."""
        return (
            self._is_between
            and self._messages == before + 1
            and not self.transport.is_closing()
            and self.cycle.keep_alive
            and self.scope["method"] == "GET"
        )

    def _is_idle(self) -> bool:
        """Tell whether all requests have been answered, and the system took all of it."""
        return (
            self._is_between
            and (self.cycle is None or self.cycle.response_complete)
            and not self.transport.is_closing()
            and not self.transport.get_write_buffer_size()
        )

    def _answer_again(self, request: bytes) -> bool:
        """Send what a request got before, if it would get the same now."""
        started = time.perf_counter()
        answer = self.application.answers.find(request)
        if answer is None or not _WRITES_AT_ONCE:
            return False
        body = self._take(answer)
        if body is None:
            return False
        nbytes = body.nbytes if isinstance(body, MemoryFile) else sum(map(len, body))
        sent = self._write_at_once(self._make_head(answer), body)
        if sent < nbytes:
            self._resume(request, answer, body, sent, nbytes)
            return True
        seconds = time.perf_counter() - started
        self.application.delivery.metrics.count(
            answer.entry.name, answer.face, answer.kind, answer.status, nbytes, seconds
        )
        client = self.client[0] if self.client else "-"
        log_answer(client, "GET", answer.path, answer.status, nbytes, seconds, answer.kind)
        self.on_response_complete()  # type: ignore[attr-defined]
        return True

    def _take(self, answer: Answer) -> MemoryFile | Sequence[bytes] | None:
        """Return the body of an answer, if nothing has to be waited for; else None."""
        piece = answer.piece
        if piece is None:
            return ()
        assert piece.tag is not None
        try:
            return self.application.delivery.take_at_once(piece.tag, piece)
        except VirtualZarrError:
            return None  # for the application to tell

    def _make_head(self, answer: Answer) -> bytes:
        lines = [_STATUS_LINES[answer.status]]
        # Such as the date.
        for name, value in self.server_state.default_headers:
            lines += [name, b": ", value, b"\r\n"]
        return b"".join([*lines, answer.head])

    def _write_at_once(self, head: bytes, body: MemoryFile | Sequence[bytes]) -> int:
        """Write a head, and what the system takes of a body; return how many bytes of that.

        Not by the transport, which copies what the system does not take.
        """
        descriptor = self.transport.get_extra_info("socket").fileno()
        try:
            if isinstance(body, MemoryFile):
                sent = os.write(descriptor, head)
            else:
                sent = os.writev(descriptor, [head, *body])
        except OSError:
            sent = 0  # It takes nothing now, or is gone, which the transport finds out.
        if sent < len(head):
            self.transport.write(head[sent:])
            return 0
        return body.send_to(descriptor) if isinstance(body, MemoryFile) else sent - len(head)

    def _resume(
        self,
        request: bytes,
        answer: Answer,
        body: MemoryFile | Sequence[bytes],
        sent: int,
        nbytes: int,
    ) -> None:
        """Have the rest of an answer sent in place of one by the application."""
        data = body if isinstance(body, MemoryFile) else body[-1]

        async def run(scope: Scope, receive: Receive, send: Send) -> None:
            await Resumed(self.application, scope, receive, send, answer, data, sent).run()

        app, self.app = self.app, run
        super().data_received(request)  # type: ignore[misc]
        self.app = app
        # The head is on its way already.
        self.cycle.response_started, self.cycle.chunked_encoding = True, False
        self.cycle.expected_content_length = nbytes - sent
