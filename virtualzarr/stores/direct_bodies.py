"""Large bodies, received where they stay: aiohttp copies each byte twice on its way there.

While such a body comes, its connection has a protocol of ours, by which the system, or TLS, writes
into the memory of the body. aiohttp is told of as many bytes, all of them zero: it counts them, it
keeps its clock, and it says what goes wrong and when the answer has ended.
"""

from __future__ import annotations

import asyncio
from typing import Any

_LEAST_BYTES = 256 << 10
"""What is left of smaller bodies comes at once."""

_ZEROS = bytes(120 << 10)
"""What aiohttp is told of: as much as it takes without a pause."""


async def receive_body(response: Any, view: memoryview) -> int:
    """Write a body into memory, and return how many bytes it has.

    Parameters
    ----------
    response : aiohttp.ClientResponse
        With a body that is announced to be as long as the memory, and not compressed.
    view : memoryview
        One byte longer than the body.

    Raises
    ------
    aiohttp.ClientError
        As where the body is read otherwise.
    """
    content = response.content
    first = content.read_nowait()
    end = len(first)
    view[:end] = first
    receiver = _take_over(response, view, end)
    try:
        async for piece in content.iter_any():
            if receiver is not None:
                raise _lost_error("bytes came in two ways")
            begin, end = end, end + len(piece)
            view[begin:end] = piece
    finally:
        if receiver is not None:
            receiver.stop()
        del view  # which the traceback of an error would keep until garbage is collected
    return end if receiver is None else receiver.end


def _take_over(response: Any, view: memoryview, end: int) -> _Receiver | None:
    """Have the rest of a body come into memory; None where aiohttp has to receive it."""
    connection, content = getattr(response, "connection", None), response.content
    if (
        connection is None or len(view) - 1 - end < _LEAST_BYTES
    ):  # of what has come, it is given back
        return None
    transport, protocol = connection.transport, connection.protocol
    get_protocol = getattr(transport, "get_protocol", None)
    if get_protocol is None or get_protocol() is not protocol or transport.is_closing():
        return None
    if content.is_eof() or content.total_bytes != end:
        return None
    return _Receiver(protocol, transport, content, view, end)


class _Receiver(asyncio.BufferedProtocol):
    """Receives the rest of a body in the place of the protocol of aiohttp.

    Attributes
    ----------
    end : int
        How many bytes of the body there are.
    """

    def __init__(
        self, protocol: Any, transport: Any, content: Any, view: memoryview, end: int
    ) -> None:
        self._protocol, self._transport, self._content = protocol, transport, content
        self._view, self._length, self.end = view, len(view) - 1, end
        self._untold, self._is_at_work = 0, True
        transport.set_protocol(self)

    def stop(self) -> None:
        """Give the connection back to aiohttp, which closes it if the body is not whole."""
        if self._is_at_work and not self._transport.is_closing():
            self._transport.set_protocol(self._protocol)
        self._is_at_work = False
        self._view = memoryview(bytearray(1))  # others may use that of the body

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory that is left, and a byte more, by which it shows if more comes."""
        return self._view[self.end :] if self._is_at_work else self._view

    def buffer_updated(self, nbytes: int) -> None:
        """Take note of bytes that came."""
        if not self._is_at_work:  # of a connection that is about to close
            return
        self._untold += nbytes
        self.end += nbytes
        if self.end < self._length:
            self._tell()
        elif self.end == self._length:
            # Not at once: the next request goes out over this connection as soon as aiohttp knows
            # that the body has ended, and what is here already would be taken for its answer.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._finish)
        else:
            self.end, self._untold = self._length, self._untold - 1
            self._protocol.force_close()
            self._finish()

    def _finish(self) -> None:
        if self._is_at_work:
            self.stop()
            self._tell()

    def _tell(self) -> None:
        """Tell aiohttp how much came."""
        nbytes, self._untold = self._untold, 0
        for start in range(0, nbytes, len(_ZEROS)):
            if self._content.exception() is not None:  # whoever waits has it
                return
            self._protocol.data_received(_ZEROS[: nbytes - start])
            self._content.read_nowait()
        if self._content.total_bytes != self.end and self._content.exception() is None:
            self._content.set_exception(_lost_error("bytes were not counted"))

    def eof_received(self) -> bool | None:
        """Leave it to aiohttp, as all of these, once that knows what came."""
        self._finish()
        result: bool | None = self._protocol.eof_received()
        return result

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


def _lost_error(text: str) -> Exception:
    from aiohttp import ClientPayloadError

    return ClientPayloadError(text)
