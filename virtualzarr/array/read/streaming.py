"""Streamed reads: remote bytes of many tasks requested side by side, decoded as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import TypeAlias

from virtualzarr.array.read.tasks import CoalescedReads
from virtualzarr.config import config
from virtualzarr.stores.streams import AnswerStream, StreamedRead
from virtualzarr.stores.thread_pools import Task, run_shared

_ADDED_AT_ONCE = 64

_Streamed: TypeAlias = tuple[CoalescedReads, StreamedRead]


def run_streamed(tasks: Sequence[Task], preparations: Sequence[Task] = ()) -> list[Task]:
    """Run those of some tasks whose bytes an event loop requests, and return all others.

    Of several that fail, the error of the first is raised.

    Parameters
    ----------
    preparations : sequence of callables
        What makes the tasks faster, done before any of them while no answer has come: unless there
        are so many that requesting them takes all the time.
    """
    loop = next(filter(None, map(_loop_of, tasks)), None)
    if len(tasks) < 2 or loop is None:
        return [*tasks]
    stream, errors = AnswerStream(loop), []
    others: list[Task] = []
    begun: list[_Streamed] = []

    @contextmanager
    def closed_on_error() -> Iterator[None]:
        try:
            yield
        except BaseException:
            stream.close()  # or else others would wait for its answers
            raise

    def work() -> None:
        with closed_on_error():  # as where waiting is interrupted
            for number, outcome in stream:
                task, read = begun[number]
                try:
                    task.finish(partial(read.accept, outcome))
                # Interrupts, too: lost in a helper thread, they would leave gaps unseen.
                except BaseException as error:
                    errors.append((number, error))
                    stream.close()
                    return

    def add_all() -> None:
        # Here, and not in the event loop: connecting to another file system may wait for it.
        with closed_on_error():
            for first in range(0, len(tasks), _ADDED_AT_ONCE):
                added, remaining = _split(tasks[first : first + _ADDED_AT_ONCE], loop)
                others.extend(remaining)
                begun.extend(added)
                stream.add([read for _, read in added], last=False)
            stream.add([], last=True)

    def start() -> None:
        add_all()
        work()

    def prepare() -> None:
        # By one thread: the event loop has requests to send.
        with closed_on_error():
            for preparation in preparations:
                if stream.has_answers:
                    return
                preparation()

    first = start
    if preparations and len(tasks) <= _ADDED_AT_ONCE:  # or else there is enough to do
        add_all()
        prepare()
        first = work
    run_shared([first, *[work] * (min(config.threads, len(tasks)) - 1)])
    if errors:
        raise min(errors, key=itemgetter(0))[1]
    return others


def _split(
    tasks: Sequence[Task], loop: asyncio.AbstractEventLoop
) -> tuple[list[_Streamed], list[Task]]:
    """Return the tasks whose bytes an event loop requests, with their reads, and all others."""
    streamed: list[_Streamed] = []
    others: list[Task] = []
    for task in tasks:
        read = task.as_streamed_read() if isinstance(task, CoalescedReads) else None
        if read is not None and read.file.connection.loop is loop:
            assert isinstance(task, CoalescedReads)
            streamed.append((task, read))
        else:
            others.append(task)
    return streamed, others


def _loop_of(task: Task) -> asyncio.AbstractEventLoop | None:
    read = task.as_streamed_read() if isinstance(task, CoalescedReads) else None
    return None if read is None else read.file.connection.loop
