"""A web server that is far away: each answer comes after a while, and requests and bytes count.

Some requests may fail, which depends on the file, the range and how often that was asked for.

The program is a process of its own, without a framework: its rate is not to be what is measured.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

_CONNECTIONS = 256  # 64, each of which waits 20 ms for an answer, could get no more than 3,200/s
_LARGE = 1 << 20
_FAULTS = "503 Service Unavailable", "429 Too Many Requests", "reset", "cut"


@dataclass(frozen=True)
class Far:
    """A server that runs.

    Attributes
    ----------
    port : int
    """

    port: int

    @property
    def url(self) -> str:
        """Where its folder is."""
        return f"http://127.0.0.1:{self.port}"

    def take_counts(self) -> tuple[int, int]:
        """Return how many requests came since the last call, and bytes of bodies that went."""
        with urllib.request.urlopen(f"{self.url}/__counts__") as response:
            requests, nbytes = json.load(response)
        return requests, nbytes


@contextmanager
def run_server(folder: str | Path, latency: float, rate: float = 0.0) -> Iterator[Far]:
    """Serve what is in a folder now, from memory, each answer so many seconds later.

    Parameters
    ----------
    rate : float
        Which part of the requests fails: by 503, 429, a reset, or the end of the connection within
        the body.
    """
    command = [sys.executable, "-m", "benchmarks._far", str(folder), str(latency), str(rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Far(int(process.stdout.readline()))
        finally:
            process.terminate()


def measure_bare(far: Far, paths: Sequence[str]) -> float:
    """Return the seconds that a bare client takes to get files over many connections."""
    started = time.perf_counter()
    asyncio.run(_get_all(far.port, paths))
    return time.perf_counter() - started


async def _get_all(port: int, paths: Sequence[str]) -> None:
    waiting = iter(paths)

    async def work() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        for path in waiting:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r")[0]))
        writer.close()

    await asyncio.gather(*(work() for _ in range(_CONNECTIONS)))


class _Server(asyncio.Protocol):
    """One connection: requests are answered in their order."""

    files: dict[str, bytes]
    latency = rate = 0.0
    requests = nbytes = 0
    attempts: ClassVar[Counter[str]] = Counter()
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        while b"\r\n\r\n" in self.data:
            head, self.data = self.data.split(b"\r\n\r\n", 1)
            loop = asyncio.get_running_loop()
            loop.call_later(self.latency, self._answer, head.decode("latin-1"))

    def _answer(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        method, path, _ = first.split(" ", 2)
        if path == "/__counts__":
            body = json.dumps([_Server.requests, _Server.nbytes]).encode()
            _Server.requests = _Server.nbytes = 0
            self._send("200 OK", body, [], method)
            return
        _Server.requests += 1
        headers = {name.lower(): value for name, _, value in (x.partition(": ") for x in lines)}
        fault = self._find_fault(f"{method} {path} {headers.get('range')}")
        if fault == "reset":
            self.transport.abort()
            return
        if fault in ("503 Service Unavailable", "429 Too Many Requests"):
            self._send(fault, b"busy", [], method)
            return
        content = self.files.get(path.partition("?")[0])
        if content is None:
            self._send("404 Not Found", b"", [], method)
            return
        size, more = len(content), ['ETag: "a"', "Accept-Ranges: bytes"]
        more.append("Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT")
        if "range" not in headers:
            self._send("200 OK", content, more, method, is_cut=fault == "cut")
            return
        low, _, high = headers["range"].removeprefix("bytes=").partition("-")
        start = int(low) if low else max(size - int(high), 0)
        stop = min(int(high) + 1, size) if low and high else size
        if start >= size:
            self._send("416 Range Not Satisfiable", b"", [], method)
            return
        more.append(f"Content-Range: bytes {start}-{stop - 1}/{size}")
        body = content[start:stop]
        self._send("206 Partial Content", body, more, method, is_cut=fault == "cut")

    def _find_fault(self, request: str) -> str:
        """Return what goes wrong with a request; empty if nothing does."""
        if not self.rate:
            return ""
        self.attempts[request] += 1
        digest = hashlib.sha256(f"{request} {self.attempts[request]}".encode()).digest()
        number = int.from_bytes(digest[:4], "big")
        return _FAULTS[number % len(_FAULTS)] if number < self.rate * 2**32 else ""

    def _send(
        self, status: str, body: bytes, headers: list[str], method: str, is_cut: bool = False
    ) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
        body = b"" if method == "HEAD" else body
        _Server.nbytes += len(body)
        body = body[: len(body) // 2] if is_cut else body
        start = "\r\n".join([*lines, "", ""]).encode()
        if len(body) > _LARGE:  # to copy it would take as long as the client has for it
            self.transport.write(start)
            self.transport.write(body)
        else:
            self.transport.write(start + body)
        if is_cut:
            self.transport.close()


async def _serve(folder: str, latency: float, rate: float) -> None:
    paths = (path for path in Path(folder).rglob("*") if path.is_file())
    _Server.files = {f"/{path.relative_to(folder)}": path.read_bytes() for path in paths}
    _Server.latency, _Server.rate = latency, rate
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Server, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
