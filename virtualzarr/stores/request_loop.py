"""Event loop of this package, in a thread of its own, in which all asynchronous requests run.

fsspec has one, too, in which other code may run that reads by this package, such as a file system
over references: who waited there for requests of the same loop would wait for ever.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache
from queue import SimpleQueue
from typing import Any, Generic, Self, TypeVar
from uuid import uuid4
from weakref import WeakSet

from virtualzarr.stores.forks import ForkSafeLock, reset_in_forks

T = TypeVar("T")

_PROTOCOLS = frozenset(
    ["http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"]
)  # fmt: skip
"""Protocols whose file systems of fsspec take an event loop."""


class _RequestLoop:
    """The loop, started when it is first asked for, and anew in a forked process."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        reset_in_forks(self)
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget the loop: its thread was not forked."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        """Return the loop, running."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                run = self._loop.run_forever
                threading.Thread(target=run, name="virtualzarr-requests", daemon=True).start()
            return self._loop


_request_loop = _RequestLoop()


class SharedWork:
    """What several threads or processes do for one caller, within whose with statement it is.

    An interrupt of that ends all requests of its threads: servers that do not answer are not waited
    for. A process that is interrupted itself does nothing more of it.

    Parameters
    ----------
    name : str, optional
        What tells it from others in other processes.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name or uuid4().hex
        self._tasks: WeakSet[LoopTask[Any]] = WeakSet()
        self._lock = threading.Lock()
        self._is_given_up = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _find_shared_work, (self.name,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None and not issubclass(kind, Exception):
            self.give_up()

    def do(self, function: Callable[..., T], *args: Any) -> T:
        """Do a part of it in this thread: call a function."""
        token = _shared_work.set(self)
        try:
            with self:
                return function(*args)
        finally:
            _shared_work.reset(token)

    def add(self, task: LoopTask[Any]) -> None:
        """Note a request, or raise `asyncio.CancelledError`."""
        with self._lock:
            if self._is_given_up:
                raise asyncio.CancelledError
            self._tasks.add(task)

    def give_up(self) -> None:
        """End all requests, also those that are yet to be made."""
        with self._lock:
            self._is_given_up = True
            tasks = [*self._tasks]
        for task in tasks:
            task.cancel()


@lru_cache(maxsize=16)
def _find_shared_work(name: str) -> SharedWork:
    return SharedWork(name)


_shared_work: ContextVar[SharedWork | None] = ContextVar("shared_work", default=None)


class LoopTask(Generic[T]):
    """Work of an event loop in another thread, for whose result this one waits.

    Not `run_coroutine_threadsafe`: an interrupt of who waits for a `Future` may leave its lock
    locked, for which the loop would wait, and with it all other requests. A `SimpleQueue` is not
    written in Python.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
    work : coroutine

    Raises
    ------
    RuntimeError
        The loop is closed, or it is this thread that runs it, and would wait for itself.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._task: asyncio.Task[T] | None = None
        self._done: SimpleQueue[asyncio.Task[T]] = SimpleQueue()
        shared_work = _shared_work.get()
        try:
            if shared_work is not None:
                shared_work.add(self)
            if asyncio._get_running_loop() is loop:
                raise RuntimeError("this thread runs the event loop that it would wait for")
            loop.call_soon_threadsafe(self._start, work)
        except (RuntimeError, asyncio.CancelledError):
            work.close()
            raise

    def _start(self, work: Coroutine[Any, Any, T]) -> None:
        self._task = self._loop.create_task(work)
        self._task.add_done_callback(self._done.put)

    def result(self) -> T:
        """Wait for the result, or raise the error; an interrupt gives the work up."""
        try:
            task = self._done.get()
        except BaseException:
            self.cancel()
            raise
        self._done.put(task)  # for who asks again
        return task.result()

    def cancel(self) -> None:
        """Give the work up, if it is not done."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


def with_request_loop(uri: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of fsspec by which the file system of a URL makes its requests in our loop."""
    if "::" in uri or uri.partition("://")[0] not in _PROTOCOLS:
        return dict(options)
    return {**options, "loop": _request_loop.get()}
