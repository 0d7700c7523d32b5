"""Connections of aiohttp that go wrong unseen: what is waited for never comes, or nobody asked.

aiohttp stops its clock where it cannot read an answer on, and where it has only got an interim one;
then requests wait for as long as they may take in all, if there is an end to that. It also keeps
connections for further requests over which something came while there was none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

_LOOK_SECONDS = 0.25
"""Seconds between looks at whether more of an answer came."""

_BODILESS = ("GET", "HEAD")
"""Requests of others may take any time to be sent, in which no answer is late."""


class BodyWatch:
    """Within a ``with`` statement, nobody waits for the rest of a body that will never come.

    The wait ends by an exception of aiohttp, as where a connection breaks or a server falls silent.
    The silence that is allowed is that of the request (`sock_read`).

    Parameters
    ----------
    response : aiohttp.ClientResponse
    """

    # No generator: each request of thousands has one.
    __slots__ = ("_came", "_content", "_looks", "_moved", "_protocol", "_response")

    def __init__(self, response: Any) -> None:
        self._response = response
        self._protocol: Any = None

    def __enter__(self) -> None:
        # Answers of which all has come, as of most small ones, have given it back.
        connection = self._response.connection
        if connection is None:
            return
        self._protocol, self._content = connection.protocol, self._response.content
        self._came, self._moved = -1, 0.0
        loop = asyncio.get_running_loop()
        self._looks = _bodies.get(loop) or _bodies.setdefault(loop, _Looks(BodyWatch.look))
        self._looks.add(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._protocol is None:
            return
        self._looks.discard(self)
        # So says aiohttp who begins to wait after the connection broke.
        if isinstance(error, RuntimeError) and self._is_lost:
            raise self._lost_error() from error

    def look(self) -> bool:
        """End the wait if nothing more comes; tell whether to look again."""
        content, now = self._content, asyncio.get_running_loop().time()
        if content.is_eof() or content.exception() is not None:
            return False
        silence = getattr(self._protocol, "_read_timeout", None)  # public in few versions
        if self._is_lost:
            content.set_exception(self._lost_error())
        elif content.total_bytes > self._came:
            self._came, self._moved = content.total_bytes, now
        elif silence and now - self._moved > silence:
            content.set_exception(_silence_error())
        return True

    @property
    def _is_lost(self) -> bool:
        """Whether a connection is closed, or about to be as what came over it cannot be read."""
        return not self._protocol.connected or self._protocol.exception() is not None

    def _lost_error(self) -> Exception:
        from aiohttp import ClientPayloadError

        error = ClientPayloadError("the rest of the answer is damaged, or did not come")
        error.__cause__ = self._protocol.exception()
        return error


def _silence_error() -> Exception:
    from aiohttp import ServerTimeoutError

    return ServerTimeoutError("Timeout on reading data from socket")  # as aiohttp itself


def watch_connections(session: Any) -> None:
    """Have a session use no connection over which something came that nobody had asked for.

    It would be taken for the answer to the next request. There is no option for it.

    Parameters
    ----------
    session : aiohttp.ClientSession
        Also one of somebody else, whose other requests just get another connection.
    """
    connector = getattr(session, "connector", None)
    if connector is not None and not isinstance(connector.connect, _Connect):
        connector.connect = _Connect(connector.connect)


class _Connect:
    """Takes connections from those of a connector, in the place of its method of that name."""

    def __init__(self, connect: Any) -> None:
        self._connect = connect
        self._asked = _Looks(_look_at_clock)

    async def __call__(self, request: Any, traces: Any, timeout: Any) -> Any:
        connection = await self._connect(request, traces, timeout)
        # It would not have been kept, had that come before the answer ended.
        while (protocol := connection.protocol).should_close:
            connection.close()
            if getattr(protocol, "_parser", None) is None:  # it is new, as all others may be
                raise _early_error()
            connection = await self._connect(request, traces, timeout)
        if request.method in _BODILESS:
            self._asked.add(protocol)
        else:
            self._asked.discard(protocol)
        return connection


def _early_error() -> Exception:
    from aiohttp import ServerDisconnectedError

    return ServerDisconnectedError("the server answered before it was asked")


class _Looks:
    """What is looked at again and again, by one timer: one for each request would take longer.

    Parameters
    ----------
    look : callable
        Tells whether to look at it again.
    """

    def __init__(self, look: Callable[[Any], bool]) -> None:
        self._look, self._watched = look, set[Any]()
        self._is_waiting = False

    def add(self, each: Any) -> None:
        self._watched.add(each)
        if not self._is_waiting:
            self._wait()

    def discard(self, each: Any) -> None:
        self._watched.discard(each)

    def _wait(self) -> None:
        self._is_waiting = True
        asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look_at_all)

    def _look_at_all(self) -> None:
        self._is_waiting = False
        self._watched = {each for each in self._watched if self._look(each)}
        if self._watched:
            self._wait()


def _look_at_clock(protocol: Any) -> bool:
    """Start the clock of a connection again if the head of an answer is awaited without it."""
    if getattr(protocol, "_waiter", None) is None:
        return False
    if getattr(protocol, "_read_timeout_handle", protocol) is None:
        protocol.start_timeout()
    return True


_bodies: WeakKeyDictionary[asyncio.AbstractEventLoop, _Looks] = WeakKeyDictionary()
