"""Load on an HTTP server: a process of its own, with raw sockets and one buffer for each."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_BUFFER = 1 << 20


@dataclass(frozen=True)
class Load:
    """What a server has answered, and what that took.

    Attributes
    ----------
    requests : int
    nbytes : int
        Of bodies.
    seconds : float
    cpu : float
        Seconds of processor time that the server used.
    """

    requests: int
    nbytes: int
    seconds: float
    cpu: float


def put_load(
    server: int,
    port: int,
    requests: Sequence[tuple[str, str]],
    *,
    seconds: float | None,
    connections: int = 4,
    core: int | None = None,
) -> Load:
    """Send requests over several connections, again and again, from another process.

    Parameters
    ----------
    server : int
        The process that answers.
    requests : sequence of (path, range)
        Without a header if the range is empty.
    seconds : float, optional
        By default each request is sent once.
    core : int, optional
        On which the client runs.
    """
    about = {"port": port, "requests": list(requests), "seconds": seconds}
    about |= {"connections": connections, "core": core}
    command = [sys.executable, "-m", "benchmarks._load"]
    before = cpu_seconds(server)
    done = subprocess.run(command, input=json.dumps(about), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    told = json.loads(done.stdout)
    return Load(told["requests"], told["nbytes"], told["seconds"], cpu_seconds(server) - before)


def cpu_seconds(process: int) -> float:
    """Return the processor time of a process so far, in seconds."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


class _Connection(threading.Thread):
    """One connection, which asks for one thing after the other."""

    def __init__(self, port: int, heads: itertools.cycle[bytes] | list[bytes], end: float) -> None:
        super().__init__()
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.heads, self.end = heads, end
        self.buffer = memoryview(bytearray(_BUFFER))
        self.requests = self.nbytes = 0
        self.error: str | None = None

    def run(self) -> None:
        for head in self.heads:
            if time.perf_counter() > self.end:
                return
            try:
                self.connection.sendall(head)
                self.nbytes += self._receive()
            except (OSError, ValueError) as error:
                self.error = repr(error)
                return
            self.requests += 1

    def _receive(self) -> int:
        got = self.connection.recv_into(self.buffer)
        while (end := bytes(self.buffer[: min(got, 4096)]).find(b"\r\n\r\n")) < 0:
            count = self.connection.recv_into(self.buffer[got:])
            if not count:
                raise ValueError("the connection ended")
            got += count
        head = bytes(self.buffer[:end]).lower()
        if head[9:12] not in (b"200", b"206"):
            raise ValueError(f"an answer {head[9:12]!r}")
        nbytes = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        rest = nbytes - (got - end - 4)
        while rest:
            count = self.connection.recv_into(self.buffer, min(rest, _BUFFER))
            if not count:
                raise ValueError("the answer is too short")
            rest -= count
        return nbytes


def _heads(requests: list[tuple[str, str]]) -> list[bytes]:
    ranges = [f"Range: {span}\r\n" if span else "" for _, span in requests]
    return [
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{span}\r\n".encode()
        for (path, _), span in zip(requests, ranges, strict=True)
    ]


def main() -> None:
    """Do as standard input says, and print what came."""
    import os

    about = json.load(sys.stdin)
    if about["core"] is not None:
        os.sched_setaffinity(0, {about["core"]})
    heads, n, seconds = _heads(about["requests"]), about["connections"], about["seconds"]
    started = time.perf_counter()
    end = started + (1e9 if seconds is None else seconds)
    threads = []
    for i in range(n):
        # Each begins elsewhere, so that no two ask for the same at the same time.
        at = i * len(heads) // n
        mine = heads[i::n] if seconds is None else itertools.cycle(heads[at:] + heads[:at])
        threads.append(_Connection(about["port"], mine, end))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors := [thread.error for thread in threads if thread.error]:
        sys.exit(f"{len(errors)} of {n} connections failed: {errors[0]}")
    print(json.dumps({
        "requests": sum(thread.requests for thread in threads),
        "nbytes": sum(thread.nbytes for thread in threads),
        "seconds": time.perf_counter() - started,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
