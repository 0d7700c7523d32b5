"""Thread pools that read, decode and encode."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from operator import itemgetter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from virtualzarr.config import config

Task = Callable[[], None]
T = TypeVar("T")

IO_BOUND_RATIO = 3
"""A task whose wall time is more than so many times its processor time waits for I/O."""

_pools: dict[bool, ThreadPoolExecutor] = {}


def get_pool(remote: bool) -> ThreadPoolExecutor:
    """Return the threads for remote requests, or those for local files and decoding."""
    size = config.requests if remote else config.threads
    pool = _pools.get(remote)
    # Pools live as long as the process: starting threads takes longer than a small read.
    if pool is None or pool._max_workers != size:
        pool = _pools[remote] = ThreadPoolExecutor(size, thread_name_prefix="virtualzarr")
    return pool


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


def submit(work: Callable[[], T]) -> Callable[[], T]:
    """Start work in another thread, if one is idle, and return a function that awaits its result.

    Like `run_shared`, it may be called by a task: what has not been begun is done when its result
    is waited for.
    """
    if config.threads == 1:
        return work
    try:
        helper = get_pool(remote=False).submit(work)
    except RuntimeError:
        return work
    # A task of a full pool that waited for another one's start would be a deadlock.
    return lambda: work() if helper.cancel() else helper.result()


def run_shared(tasks: list[Task], remote: bool = False) -> None:
    """Run tasks in this thread, with the help of others that are idle.

    It may be called by a task, and while a lock is held: it waits for nothing but tasks that have
    been begun. Of several that fail, the error of the first is raised.
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
        pending.clear()
        wait([helper for helper in helpers if not helper.cancel()])
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
