"""Worker processes over pipes: an executor that scripts need no guard for.

Those of `concurrent.futures` import the script that started them, or are forks of a process that
may have threads. These run this module, and know nothing but what they are sent.
"""

from __future__ import annotations

import os
import pickle
import queue
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO, Any, TypeVar

from virtualzarr.errors import ExecutorError
from virtualzarr.worker import skip_prints, take_pipes, wait_readable

R = TypeVar("R")

_START_SECONDS, _LOOKED_SECONDS = 60.0, 0.1
_LENGTH = struct.Struct("<Q")


class ProcessDiedError(ExecutorError, BrokenExecutor):
    """A worker process has died."""


class Processes(Executor):
    """An executor of worker processes, each started when there is work for it.

    A process that dies is an error of the task it was at; the next task gets another.

    Parameters
    ----------
    count : int
        How many.

    Examples
    --------
    >>> with Processes(2) as workers:
    ...     list(workers.map(abs, [-1, 2]))
    [1, 2]
    """

    def __init__(self, count: int) -> None:
        self._max_workers = count
        self._tasks: queue.SimpleQueue[tuple[Future[Any], bytes] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._running: list[subprocess.Popen[bytes]] = []
        self._is_closed = self._is_given_up = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function of a module in one of the processes."""
        if self._is_closed:
            raise RuntimeError("the worker processes have been shut down")
        future: Future[Any] = Future()
        try:
            request = pickle.dumps((fn, args, kwargs), pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # whatever the pickling of some object raises
            raise ExecutorError(f"a worker process cannot be sent what to do: {error}") from error
        self._tasks.put((future, request))
        if len(self._threads) < self._max_workers:
            # Daemons, so that a script that forgets them can end.
            thread = threading.Thread(target=self._serve, name="virtualzarr-worker", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def map(
        self,
        fn: Callable[..., R],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[R]:
        """Yield results in order; tasks are begun as results are asked for, two for each process.

        So what is done and not yet asked for is bounded: it is lost if this process is killed.
        """
        pending: deque[Future[R]] = deque()
        for args in zip(*iterables, strict=False):
            if len(pending) >= 2 * self._max_workers:
                yield pending.popleft().result(timeout)
            pending.append(self.submit(fn, *args))
        while pending:
            yield pending.popleft().result(timeout)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes once they have done what was submitted, or is under way."""
        self._is_closed = True
        self._is_given_up = cancel_futures
        if cancel_futures:
            with suppress(queue.Empty):
                while (task := self._tasks.get_nowait()) is not None:
                    task[0].cancel()
        for _ in self._threads:
            self._tasks.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def kill(self) -> None:
        """End the processes at once, whatever they do: a server may never answer them."""
        self.shutdown(wait=False, cancel_futures=True)
        for process in [*self._running]:
            process.kill()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None and not issubclass(kind, Exception):
            self.kill()
        # Nobody asks for what is left when a block ends early.
        self.shutdown(cancel_futures=True)

    def _serve(self) -> None:
        """Give tasks to one process, until there are no more."""
        process: subprocess.Popen[bytes] | None = None
        while (task := self._tasks.get()) is not None:
            future, request = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if process is None:
                    process = _start()
                    self._running.append(process)
                    deadline = time.monotonic() + _START_SECONDS
                    skip_prints(partial(self._receive_early, process.stdout, deadline))
                if self._is_given_up:
                    raise EOFError("nobody waits for it any more")
                is_good, result = _ask(process, request)
            except (OSError, EOFError) as error:
                future.set_exception(_describe_death(process, error))
                if process is not None:
                    self._running.remove(process)
                process = None
            except BaseException as error:  # of what cannot be unpickled here
                future.set_exception(error)
            else:
                future.set_result(result) if is_good else future.set_exception(result)
        if process is not None:
            process.communicate()

    def _receive_early(self, file: IO[bytes] | None, deadline: float) -> bytes:
        """Return the next byte of a process that begins: what is started may be no Python at all.

        Nobody waits for one that is not needed any more.
        """
        assert file is not None
        is_ready = os.name == "nt"  # where pipes cannot be waited for
        while not is_ready:
            if self._is_given_up or time.monotonic() > deadline:
                raise EOFError("the process does not begin")
            is_ready = wait_readable(file, _LOOKED_SECONDS)
        # Not through the buffer, in which the wait would not see the following bytes.
        data = os.read(file.fileno(), 1)
        if not data:
            raise EOFError("the other side has closed")
        return data


def _start() -> subprocess.Popen[bytes]:
    # The folder of the caller is looked into as here, and not first.
    folders = [folder or os.getcwd() for folder in sys.path]
    with _without_interrupts():
        return subprocess.Popen(
            [sys.executable, "-P", "-m", __spec__.name if __spec__ else __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Threads for linear algebra, of which there is none, take half of numpy's import.
            env={"OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        )


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Let processes that start not be interrupted: a terminal interrupts all, while they import."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ask(process: subprocess.Popen[bytes], request: bytes) -> tuple[bool, Any]:
    """Return whether a task succeeded, and its result or error."""
    assert process.stdin is not None
    assert process.stdout is not None
    _send(process.stdin, request)
    answer: tuple[bool, Any] = pickle.loads(_receive(process.stdout))
    return answer


def _describe_death(process: subprocess.Popen[bytes] | None, error: Exception) -> ExecutorError:
    if process is None:
        return ExecutorError(f"no worker process can be started: {error}")
    process.kill()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # what nobody reads cannot be flushed
            pipe.close()  # type: ignore[union-attr]
    process.wait()
    return ProcessDiedError(f"a worker process has died (it ended with {process.returncode})")


def _send(file: IO[bytes], data: bytes) -> None:
    file.write(_LENGTH.pack(len(data)))
    file.write(data)
    file.flush()


def _receive(file: IO[bytes]) -> bytes:
    return _receive_bytes(file, *_LENGTH.unpack(_receive_bytes(file, _LENGTH.size)))


def _receive_bytes(file: IO[bytes] | None, count: int) -> bytes:
    assert file is not None
    data = file.read(count)
    if len(data) < count:
        raise EOFError("the other side has closed")
    return data


def _call(request: bytes) -> bytes:
    """Do a task, and return what came of it."""
    try:
        function, args, kwargs = pickle.loads(request)
    except Exception as error:  # of what only the script has that started this process
        problem = f"a worker process cannot be given what to do: {error}"
        return pickle.dumps((False, ExecutorError(problem)))
    try:
        answer = True, function(*args, **kwargs)
    except Exception as error:
        answer = False, error
    try:
        return pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        problem = f"a worker process cannot send {answer[1]!r:.200}: {error}"
        return pickle.dumps((False, ExecutorError(problem)))


def _end_with_parent(source: int) -> None:
    """End this process once nobody can ask it for anything: others may write to the same then."""
    poll = select.poll()
    poll.register(source, 0)  # for nothing but the end of the other side
    poll.poll()
    os._exit(1)


def serve() -> None:
    """Do tasks until the other side has closed: the main program of a worker."""
    # Of interrupts, the process that started this one decides what becomes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, BrokenPipeError):  # who started this one may be killed at any moment
        source, sink = take_pipes()
        if hasattr(select, "poll"):
            threading.Thread(target=_end_with_parent, args=(source.fileno(),), daemon=True).start()
        while True:
            _send(sink, _call(_receive(source)))


if __name__ == "__main__":
    serve()
    # Somebody waits for the end of this process, and taking an interpreter down takes a while.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
