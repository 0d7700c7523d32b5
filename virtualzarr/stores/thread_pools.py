"""Thread pools that read, decode and encode."""

from __future__ import annotations

import os
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from itertools import pairwise
from operator import itemgetter
from queue import SimpleQueue
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from virtualzarr.config import config
from virtualzarr.stores.forks import ForkSafeLock

Task = Callable[[], None]
A = TypeVar("A")
T = TypeVar("T")

IO_BOUND_RATIO = 3
"""A task whose wall time is more than so many times its processor time waits for I/O."""


class _Pool:
    """Threads that do what they are given, started as it comes.

    Not a `ThreadPoolExecutor`: an interrupt of the thread that gives it work, or waits for that,
    may leave one of its locks locked, as these are written in Python. A `SimpleQueue` is not.

    Parameters
    ----------
    size : int
        The most threads that it has.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._count = 0
        self._waiting: SimpleQueue[Task | None] = SimpleQueue()

    def give(self, work: Task) -> None:
        """Let a thread do work, which must not raise, once one has nothing else to do."""
        if self._count < self.size:
            # Not `Thread.start`, which waits for the thread: for ever, when the interpreter exits.
            try:
                start_new_thread(self._run, ())
            except RuntimeError:  # there are too many
                if not self._count:
                    return  # whoever gave the work does all that has not begun
            else:
                self._count += 1
        self._waiting.put(work)

    def end(self) -> None:
        """Let the threads end when they have done what they were given."""
        for _ in range(self._count):
            self._waiting.put(None)

    def _run(self) -> None:
        while (work := self._waiting.get()) is not None:
            work()
            del work  # or else what it reads into would stay until there is more


_pools: dict[bool, _Pool] = {}
_giving = ForkSafeLock()


def _give(work: Task, remote: bool) -> None:
    """Give work to the threads for remote requests, or to those for local files and decoding."""
    size = config.requests if remote else config.threads
    with _giving:
        pool = _pools.get(remote)
        # Pools live as long as the process: starting threads takes longer than a small read.
        if pool is None or pool.size != size:
            if pool is not None:
                pool.end()
            pool = _pools[remote] = _Pool(size)
        pool.give(work)


# Threads do not survive a fork: a child would wait forever for those of its parent.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)


def run_tasks(tasks: list[Task], remote: bool, large: bool, *, io_bound: bool = False) -> None:
    """Run tasks, in threads where that pays; the first error ends them all.

    Parameters
    ----------
    large : bool
        Whether there is enough to do for several threads.
    io_bound : bool
        Whether the tasks are system calls and little else. Threads slow each other down in these
        (they take turns for the interpreter), and help only once such calls have to wait.
    """
    if len(tasks) == 1 or (not remote and (config.threads == 1 or not large)):
        for task in tasks:
            task()
        return
    done = 0
    while io_bound and not remote and done < len(tasks):
        # Files in the page cache use up processor time all along; on a disk or a network mount wall
        # time runs ahead, and from then on threads overlap the waiting.
        start, busy = time.perf_counter(), time.thread_time()
        tasks[done]()
        done += 1
        if time.perf_counter() - start > IO_BOUND_RATIO * (time.thread_time() - busy):
            break
    run_shared(tasks[done:], remote)


def run_each(work: Callable[[A], T], items: Sequence[A], remote: bool) -> list[T]:
    """Return what a function makes of each item; requests are sent side by side."""
    results: dict[int, T] = {}

    def run(number: int) -> None:
        results[number] = work(items[number])

    run_tasks([partial(run, number) for number in range(len(items))], remote, large=False)
    return [results[number] for number in range(len(items))]


def submit(work: Callable[[], T]) -> Callable[[], T]:
    """Start work in another thread, if one is idle, and return a function that awaits its result.

    Like `run_shared`, it may be called by a task: what has not been begun is done when its result
    is waited for.
    """
    if config.threads == 1:
        return work
    outcome: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()
    tickets = [None]

    def help_out() -> None:
        if _take(tickets):
            try:
                outcome.put((work(), None))
            except BaseException as error:
                outcome.put((None, error))

    def find_result() -> T:
        # A task of a full pool that waited for another one's start would be a deadlock.
        if _take(tickets):
            return work()
        result, error = outcome.get()
        if error is not None:
            raise error
        return cast(T, result)

    _give(help_out, remote=False)
    return find_result


def _take(tickets: list[None]) -> bool:
    """Take one of the tickets that work is begun with, and tell whether there was one."""
    try:
        tickets.pop()  # atomic, so that no lock is needed
    except IndexError:
        return False
    return True


def run_shared(tasks: list[Task], remote: bool = False, *, may_leave: bool = False) -> None:
    """Run tasks in this thread, with the help of others that are idle.

    It may be called by a task, and while a lock is held: it waits for nothing but tasks that have
    been begun. Of several that fail, the error of the first is raised.

    Parameters
    ----------
    may_leave : bool
        Whether those that have been begun may go on once this thread is interrupted: they write to
        nothing that is anybody else's.
    """
    pending = deque(enumerate(tasks))
    errors: list[tuple[int, BaseException]] = []

    def work() -> None:
        # A deque's `popleft` is atomic, so that no lock is needed to share the tasks out.
        while pending:
            try:
                number, task = pending.popleft()
            except IndexError:
                return
            try:
                task()
            # Interrupts, too: lost in a helper thread, they would leave gaps in the output unseen.
            except BaseException as error:
                pending.clear()
                errors.append((number, error))

    count = min(config.requests if remote else config.threads, len(tasks)) - 1
    tickets, ended = [None] * count, SimpleQueue[None]()

    def help_out() -> None:
        if _take(tickets):
            try:
                work()
            finally:
                ended.put(None)

    for _ in range(count):
        _give(partial(copy_context().run, help_out), remote)  # each enters one of its own
    try:
        work()
    finally:
        # Nothing may go on writing to the output afterwards.
        pending.clear()
        while _take(tickets):
            count -= 1
        is_left = may_leave and any(not isinstance(error, Exception) for _, error in errors)
        for _ in range(0 if is_left else count):
            ended.get()
    if errors:
        raise min(errors, key=itemgetter(0))[1]


def group_by_bytes(bounds: NDArray[np.int64], *, alone: bool) -> list[tuple[int, int]]:
    """Group consecutive reads so that each group decodes to about config.batch_bytes.

    Parameters
    ----------
    bounds : int array
        Bytes that are decoded before each read, and those of all.
    """
    if alone:
        return [(i, i + 1) for i in range(len(bounds) - 1)]
    # A new group wherever the running sum passes a multiple of the batch size: one division for all
    # reads, instead of a loop that adds them up.
    edges = np.flatnonzero(np.diff(bounds[:-1] // config.batch_bytes, prepend=-1))
    return list(pairwise([*edges.tolist(), len(bounds) - 1]))
