"""The threads that read, decode and encode."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from virtualzarr.config import config

Task = Callable[[], None]

_pools: dict[bool, ThreadPoolExecutor] = {}


def pool(remote: bool) -> ThreadPoolExecutor:
    """Return the threads for remote requests, or those for local files and decoding."""
    size = config.requests if remote else config.threads
    found = _pools.get(remote)
    if found is None or found._max_workers != size:
        found = _pools[remote] = ThreadPoolExecutor(size, thread_name_prefix="virtualzarr")
    return found


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)


def share(tasks: list[Task]) -> None:
    """Run tasks in this thread, with the help of others that are idle.

    Unlike `run`, this may be called by a task, and while a lock is held: it waits for nothing but
    tasks that have been begun.
    """
    left = deque(tasks)

    def work() -> None:
        while left:
            try:
                task = left.popleft()
            except IndexError:
                return
            task()

    helpers = [pool(remote=False).submit(work) for _ in range(min(config.threads, len(tasks)) - 1)]
    try:
        work()
    finally:
        left.clear()
        begun = [helper for helper in helpers if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()


def run(tasks: list[Task], remote: bool, large: bool) -> None:
    """Run tasks, in threads where that pays; the first error ends them all."""
    if len(tasks) == 1 or (not remote and (config.threads == 1 or not large)):
        for task in tasks:
            task()
        return
    futures = [pool(remote).submit(task) for task in tasks]
    done, waiting = wait(futures, return_when=FIRST_EXCEPTION)
    for future in waiting:
        future.cancel()
    # Nothing may write to the output after the error has been raised.
    wait(waiting)
    for future in done:
        future.result()
