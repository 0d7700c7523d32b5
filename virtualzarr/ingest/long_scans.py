"""Long scans: the rest of many local files is scanned by processes of our own, once that pays."""

from __future__ import annotations

import logging
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from importlib import import_module
from itertools import islice
from typing import Any, TypeVar

from virtualzarr.array.processes import Processes
from virtualzarr.codecs.core.registry import has_registered_codecs
from virtualzarr.config import config
from virtualzarr.errors import ExecutorError
from virtualzarr.formats.registry import BUILT_IN, FORMATS

_log = logging.getLogger(__name__)

T = TypeVar("T")

# So many files tell how long the others will take: the first ones, of which templates are made,
# take longer than those that follow.
_MEASURED = 64


def scan_long(
    files: Sequence[str],
    scan_here: Callable[[Sequence[str]], Generator[T]],
    scan_elsewhere: Callable[[Sequence[str], Any], Iterator[T]],
) -> Generator[T]:
    """Yield what came of each file in order, scanned here, or by processes where that takes long.

    Each 64 files tell how long the rest would take. While processes begin, this one goes on. If one
    dies, or none can be started, the rest is scanned here.

    Parameters
    ----------
    scan_here : callable
        Scans files in this process.
    scan_elsewhere : callable
        Scans files by an executor.
    """
    with ExitStack() as stack:
        starting = _Starting(stack)
        remaining = yield from _scan_while_none_is_ready(files, scan_here, starting)
        ndone = 0
        if remaining:
            _log.info("%d files are left for %d processes", len(remaining), config.processes)
            try:
                for one in scan_elsewhere(remaining, starting.workers):
                    yield one
                    ndone += 1
            except ExecutorError as error:
                starting.give_up(f"the last {len(remaining) - ndone} files: {error}")
            else:
                return
    if remaining:
        yield from scan_here(remaining[ndone:])


def _scan_while_none_is_ready(
    files: Sequence[str], scan_here: Callable[[Sequence[str]], Generator[T]], starting: _Starting
) -> Generator[T, None, Sequence[str]]:
    """Scan files here until processes have begun, if the rest takes long; return that rest."""
    remaining = files
    with closing(scan_here(files)) as scans:
        while remaining:
            some, remaining, spent = remaining[:_MEASURED], remaining[_MEASURED:], 0.0
            started = time.perf_counter()
            for one in islice(scans, len(some)):
                spent += time.perf_counter() - started
                yield one  # what others do meanwhile does not count
                started = time.perf_counter()
            if spent / len(some) * len(remaining) > config.tuning.long_scan_seconds:
                starting.begin()
            if starting.are_ready():
                break
    return remaining


class _Starting:
    """Processes that begin, which takes a second or so, while this one goes on.

    Parameters
    ----------
    stack : ExitStack
        Ends them.

    Attributes
    ----------
    workers : Processes or None
        Once they were begun.
    """

    def __init__(self, stack: ExitStack) -> None:
        self.workers: Processes | None = None
        self._stack = stack
        self._may_begin = can_start_processes()
        self._begun: list[Future[None]] = []

    def begin(self) -> None:
        """Start the processes, if they are not, and may be."""
        if self._may_begin:
            self._may_begin = False
            self.workers = self._stack.enter_context(Processes(config.processes))
            self._begun = [self.workers.submit(_prepare) for _ in range(config.processes)]

    def are_ready(self) -> bool:
        """Whether all have begun."""
        if self.workers is None or not all(future.done() for future in self._begun):
            return False
        errors = [future.exception() for future in self._begun]
        for error in filter(None, errors):
            self.give_up(str(error))
            return False
        return True

    def give_up(self, why: str) -> None:
        """Say that files are scanned here: nobody has asked for processes."""
        _log.warning("files are scanned without processes: %s", why)
        self.workers = None


def _prepare() -> None:
    """Import what scans need, in a process that begins."""
    import_module("virtualzarr.ingest.scan_files")


def can_start_processes() -> bool:
    """Tell whether processes of our own would be no surprise, and know all that this one knows."""
    return (
        config.processes > 1
        and bool(sys.executable)
        # Workers of others are as many as they are meant to be, and threads may be such workers.
        and multiprocessing.parent_process() is None
        and threading.current_thread() is threading.main_thread()
        # What a script has registered is known nowhere else.
        and FORMATS.keys() == BUILT_IN
        and not has_registered_codecs()
    )
