"""Server process: uvicorn with limits on heads of requests and on slow readers."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from virtualzarr.errors import import_optional
from virtualzarr.serve.app import Application
from virtualzarr.serve.exchange import ABORT
from virtualzarr.serve.fast_path import FastPath

MAX_HEAD = 32 << 10
"""Bytes of the head of a request."""

HEAD_SECONDS = 20.0
"""For a head to arrive: the first from the connection on, others from their first byte on."""

STALL_SECONDS = 60.0
"""For which a client may take nothing of an answer."""

SHUTDOWN_SECONDS = 30


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address.

    Raises
    ------
    OSError
        The address is taken, or not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=2048)


def run_server(app: Application, listening: socket.socket) -> None:
    """Answer requests until the process is told to end.

    Raises
    ------
    MissingDependencyError
        uvicorn is not installed.
    """
    asyncio.run(make_server(app).serve([listening]))


@contextmanager
def run_in_thread(app: Application, port: int = 0) -> Iterator[str]:
    """Answer requests from this machine, within a with statement: for notebooks and tests.

    Parameters
    ----------
    app : Application
    port : int
        By default a free one.

    Yields
    ------
    str
        The URL, without a slash at its end.

    Examples
    --------
    >>> import virtualzarr as vz
    >>> from virtualzarr.serve import create_app
    >>> x = vz.create_array({}, shape=(2,), dtype="i4", fill_value=7)
    >>> with run_in_thread(create_app(x)) as url:
    ...     vz.open(f"{url}/v3")[...]
    array([7, 7], dtype=int32)
    """
    with listen("127.0.0.1", port) as listening:
        server = make_server(app)
        thread = threading.Thread(
            target=lambda: asyncio.run(server.serve([listening])), name="virtualzarr-serve"
        )
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def make_server(app: Application) -> Any:
    """Return the server of uvicorn, which is not running yet."""
    uvicorn = import_optional(
        "uvicorn", "serving needs uvicorn; install virtualzarr with the extra 'serve'"
    )
    configuration = uvicorn.Config(
        app, http=_make_protocol(app), ws="none", lifespan="on",
        access_log=False, log_config=None, server_header=False, proxy_headers=False,
        timeout_keep_alive=75, timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )  # fmt: skip
    return uvicorn.Server(configuration)


def _make_protocol(app: Application) -> Any:
    """Return the protocol of uvicorn with limits; made here, as uvicorn may not be installed."""
    module = import_optional(
        "uvicorn.protocols.http.httptools_impl",
        "serving needs httptools; install virtualzarr with the extra 'serve'",
    )
    base: Any = module.HttpToolsProtocol

    class LimitedProtocol(FastPath, base):  # type: ignore[misc]  # whose types uvicorn has
        """HTTP by httptools, which bounds neither heads nor the time that clients take."""

        application = app
        _head: int | None = None
        _pending = 0
        _timer: asyncio.TimerHandle | None = None
        _stalled: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            # Head and body are two packets: the second must not wait for who acknowledges the
            # first. Sockets that come ready to asyncio are not set so.
            open_socket = transport.get_extra_info("socket")
            open_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Who connects and sends nothing would have the socket for ever.
            self._head = 0
            self._start_timer()

        def _start_timer(self) -> None:
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(HEAD_SECONDS, self._end_waiting)

        def data_received(self, data: bytes) -> None:
            if self._head is None:
                self._head = 0
            if self.receive(data):
                self._end_head()
            if self._head is None or self.transport.is_closing():
                return
            # Most heads come whole; the others have so much time, and so much room.
            self._start_timer()
            # What the parser keeps until a line ends.
            self._pending += len(data)
            if self._pending > 2 * MAX_HEAD:
                self.send_400_response("The head of the request is too long.")

        def _end_waiting(self) -> None:
            if self._head is not None:
                self.transport.close()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.scope["extensions"] = {ABORT: self._cut_off}

        def on_url(self, url: bytes) -> None:
            self._count(url)
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._count(name, value)
            super().on_header(name, value)

        def _count(self, *texts: bytes) -> None:
            self._head = (self._head or 0) + sum(map(len, texts))
            if self._head > MAX_HEAD:
                # Out of the parser, which answers 400.
                raise ValueError("the head of the request is too long")

        def on_headers_complete(self) -> None:
            self._end_head()
            super().on_headers_complete()

        def _end_head(self) -> None:
            self._head, self._pending = None, 0
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def pause_writing(self) -> None:
            super().pause_writing()
            loop = asyncio.get_running_loop()
            self._stalled = loop.call_later(STALL_SECONDS, self._cut_off)

        def _cut_off(self) -> None:
            # A reset: what the system has still to send must not look like an end of its own.
            open_socket = self.transport.get_extra_info("socket")
            open_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()

        def resume_writing(self) -> None:
            self._end_stall()
            super().resume_writing()

        def _end_stall(self) -> None:
            if self._stalled is not None:
                self._stalled.cancel()
                self._stalled = None

        def connection_lost(self, exc: Exception | None) -> None:
            self._end_head()
            self._end_stall()
            super().connection_lost(exc)

    return LimitedProtocol
