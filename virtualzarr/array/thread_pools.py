"""The threads that read, decode and encode."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from operator import itemgetter
from typing import TypeVar

from virtualzarr.config import config

Task = Callable[[], None]
T = TypeVar("T")

IO_BOUND_RATIO = 3
"""A thread that takes so many times as long as it is busy waits for disks or servers."""

_pools: dict[bool, ThreadPoolExecutor] = {}


def get_pool(remote: bool) -> ThreadPoolExecutor:
    """Return the threads for remote requests, or those for local files and decoding."""
    size = config.requests if remote else config.threads
    found = _pools.get(remote)
    if found is None or found._max_workers != size:
        found = _pools[remote] = ThreadPoolExecutor(size, thread_name_prefix="virtualzarr")
    return found


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)


def run_tasks(tasks: list[Task], remote: bool, large: bool, *, io_bound: bool = False) -> None:
    """Run tasks, in threads where that pays; the first error ends them all.

    Parameters
    ----------
    large : bool
        Whether there is enough to do for several threads.
    io_bound : bool
        Whether the tasks are made of system calls and little else. Threads only hinder each other
        in that, and help only once such calls have to wait for something.
    """
    if len(tasks) == 1 or (not remote and (config.threads == 1 or not large)):
        for task in tasks:
            task()
        return
    done = 0
    while io_bound and not remote and done < len(tasks):
        start, busy = time.perf_counter(), time.thread_time()
        tasks[done]()
        done += 1
        if time.perf_counter() - start > IO_BOUND_RATIO * (time.thread_time() - busy):
            break
    run_shared(tasks[done:], remote)


def submit(work: Callable[[], T]) -> Callable[[], T]:
    """Begin something in another thread, if one is idle, and return what waits for its result.

    Like `run_shared`, it may be called by a task: what has not been begun is done when its result
    is waited for.
    """
    if config.threads == 1:
        return work
    try:
        helper = get_pool(remote=False).submit(work)
    except RuntimeError:
        return work
    return lambda: work() if helper.cancel() else helper.result()


def run_shared(tasks: list[Task], remote: bool = False) -> None:
    """Run tasks in this thread, with the help of others that are idle.

    It may be called by a task, and while a lock is held: it waits for nothing but tasks that have
    been begun. Of several that fail, the error of the first is raised.
    """
    left = deque(enumerate(tasks))
    errors: list[tuple[int, BaseException]] = []

    def work() -> None:
        while left:
            try:
                number, task = left.popleft()
            except IndexError:
                return
            try:
                task()
            except BaseException as error:
                left.clear()
                errors.append((number, error))

    helpers = []
    for _ in range(min(config.requests if remote else config.threads, len(tasks)) - 1):
        try:
            helpers.append(get_pool(remote).submit(work))
        except RuntimeError:
            break  # the interpreter is about to exit, or there can be no more threads
    try:
        work()
    finally:
        # Nothing may go on writing to the output afterwards.
        left.clear()
        wait([helper for helper in helpers if not helper.cancel()])
    if errors:
        raise min(errors, key=itemgetter(0))[1]
