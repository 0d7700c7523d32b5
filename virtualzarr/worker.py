"""Worker processes for libraries that crash on damaged input.

A worker has a memory limit and a time limit for each answer; one that crashes is started again.
"""

from __future__ import annotations

import os
import selectors
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO

from virtualzarr.errors import VirtualZarrError

Read = Callable[[int, int], bytes]
"""Gets the first byte and how many; returns the bytes, fewer where the file ends before."""

_MARK = b"\n\0a worker of virtualzarr\n"
_MAX_PRINTED_BYTES, _START_SECONDS = 1 << 16, 60.0
_HEAD = struct.Struct("<BQ")
_RANGE = struct.Struct("<QQ")
_ANSWER, _ERROR, _READ = range(3)
_MAX_READ_BYTES = 1 << 28


def take_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Return where requests come from and answers go to: whatever else prints does so elsewhere.

    What was printed before, as some installations do at each start, is told from answers by a mark.
    """
    sys.stdout.flush()
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sink.write(_MARK)
    sink.flush()
    return source, sink


def skip_prints(receive: Callable[[], bytes]) -> None:
    """Skip what a process printed before it became a worker.

    Parameters
    ----------
    receive : callable
        Returns the next byte. Raises `EOFError` if there is none.
    """
    last = b""
    for _ in range(_MAX_PRINTED_BYTES):
        last = last[1 - len(_MARK) :] + receive()
        if last == _MARK:
            return
    raise EOFError("the process prints, and does not begin")


def wait_readable(file: int | IO[bytes], seconds: float) -> bool:
    """Wait until there is something to read, or the other side has closed; tell whether there is.

    Not by `select.select`, which takes no descriptors from 1,024 on: processes may have more files.
    """
    with getattr(selectors, "PollSelector", selectors.SelectSelector)() as selector:
        selector.register(file, selectors.EVENT_READ)
        return bool(selector.select(seconds))


class WorkerCrashError(Exception):
    """The process has ended, or did not answer in time; why."""


class WorkerRefusalError(Exception):
    """The library finds something wrong; the message."""


class Worker:
    """A process that answers requests, started when it is first asked.

    Parameters
    ----------
    module : str
        Module whose main program calls `serve`.
    timeout : float
        Seconds that an answer may take.
    """

    def __init__(self, module: str, timeout: float = 60.0) -> None:
        self.module = module
        self.timeout = timeout
        self.process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset_after_fork)

    def ask(self, request: bytes, read: Read | None = None) -> bytes:
        """Return the answer to a request.

        Parameters
        ----------
        request : bytes
        read : callable, optional
            Reads the file that the request is about, if the worker asks for bytes of it.

        Raises
        ------
        WorkerRefusalError
            The library finds something wrong.
        WorkerCrashError
            The process has ended, or takes too long.
        """
        with self._lock:
            try:
                process = self.process or self._start()
                _send(process.stdin, _ANSWER, request)
                return self._answer(process, read)
            except WorkerRefusalError:
                raise
            except (OSError, EOFError) as error:
                self._stop()
                raise WorkerCrashError(str(error)) from error
            except BaseException:
                # Bytes of this answer in the pipe would be taken for the answer to the next.
                self._stop()
                raise

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._stop()

    def _answer(self, process: subprocess.Popen[bytes], read: Read | None) -> bytes:
        deadline = time.monotonic() + self.timeout
        while True:
            kind, length = _HEAD.unpack(self._receive(process, _HEAD.size, deadline))
            body = self._receive(process, length, deadline)
            if kind == _ANSWER:
                return body
            if kind == _ERROR:
                raise WorkerRefusalError(body.decode("utf-8", "replace"))
            start, nbytes = _RANGE.unpack(body)
            if read is None or nbytes > _MAX_READ_BYTES:
                raise EOFError("the process asked for what it may not read")
            _send(process.stdin, _ANSWER, read(start, nbytes))
            deadline = time.monotonic() + self.timeout

    def _receive(self, process: subprocess.Popen[bytes], count: int, deadline: float) -> bytes:
        assert process.stdout is not None
        # Not `stdout.read`: that has no time limit, and a library may loop for ever.
        descriptor, parts = process.stdout.fileno(), []
        while count:
            if not wait_readable(descriptor, max(deadline - time.monotonic(), 0)):
                raise EOFError(f"no answer for {self.timeout:.0f} s")
            data = os.read(descriptor, min(count, 1 << 20))
            if not data:
                raise EOFError("the process has ended")
            parts.append(data)
            count -= len(data)
        return b"".join(parts)

    def _start(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(
            [sys.executable, "-m", self.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Libraries complain there of what is an error here; nobody would read the pipe.
            stderr=subprocess.DEVNULL,
            bufsize=0,
            # Threads for linear algebra, of which there is none, take half of numpy's import.
            env={
                "OPENBLAS_NUM_THREADS": "1",
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
        )
        process, deadline = self.process, time.monotonic() + _START_SECONDS
        skip_prints(lambda: self._receive(process, 1, deadline))
        return process

    def _stop(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _reset_after_fork(self) -> None:
        # The pipes are the parent's, and another thread may have held the lock.
        self.process, self._lock = None, threading.Lock()


def _send(file: IO[bytes] | None, kind: int, body: bytes) -> None:
    assert file is not None
    view = memoryview(_HEAD.pack(kind, len(body)) + body)
    while view:
        view = view[file.write(view) :]
    file.flush()


def serve(answer: Callable[[bytes, Read], bytes], memory: int) -> None:
    """Answer requests until the other side has closed: the main program of a worker.

    Parameters
    ----------
    answer : callable
        Gets a request and what reads the file it is about; returns the answer.
    memory : int
        Bytes that this process may take, where systems have such a limit.
    """
    # Before anything is read: a damaged file may claim more memory than the machine has.
    _limit_memory(memory)
    source, sink = take_pipes()

    def read(start: int, nbytes: int) -> bytes:
        _send(sink, _READ, _RANGE.pack(start, nbytes))
        return _receive_message(source)

    while True:
        try:
            request = _receive_message(source)
        except EOFError:
            return
        try:
            kind, body = _ANSWER, answer(request, read)
        except VirtualZarrError as error:
            kind, body = _ERROR, error.message.encode("utf-8", "replace")
        except MemoryError:
            kind, body = _ERROR, b"it takes too much memory"
        _send(sink, kind, body)


def _receive_message(source: IO[bytes]) -> bytes:
    head = source.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise EOFError
    _, length = _HEAD.unpack(head)
    return source.read(length)


def _limit_memory(limit: int) -> None:
    """Let allocations beyond a limit fail in this process."""
    try:
        import resource
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or hard > limit:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
