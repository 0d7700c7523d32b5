"""Long scans: the rest of many local files is scanned by processes of our own, once that pays."""

from __future__ import annotations

import logging
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
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

    Each 64 files tell how long the rest would take. If a process dies, or none can be started, the
    rest is scanned here.

    Parameters
    ----------
    scan_here : callable
        Scans files in this process.
    scan_elsewhere : callable
        Scans files by an executor.
    """
    ndone = yield from _scan_while_short(files, scan_here)
    rest = files[ndone:]
    if not rest:
        return
    _log.info("%d files are left for %d processes", len(rest), config.processes)
    ndone = 0
    try:
        with Processes(config.processes) as workers:
            for one in scan_elsewhere(rest, workers):
                yield one
                ndone += 1
        return
    except ExecutorError as error:
        # Nobody has asked for processes: what they cannot do is done as without them.
        _log.warning("%d files are scanned without processes: %s", len(rest) - ndone, error)
    yield from scan_here(rest[ndone:])


def _scan_while_short(
    files: Sequence[str], scan_here: Callable[[Sequence[str]], Generator[T]]
) -> Generator[T, None, int]:
    """Scan files here until processes would pay for the rest; return how many were scanned."""
    may_leave = can_start_processes()
    with closing(scan_here(files)) as scans:
        for start in range(0, len(files), _MEASURED):
            spent = 0.0
            started = time.perf_counter()
            for one in islice(scans, _MEASURED):
                spent += time.perf_counter() - started
                yield one  # what others do meanwhile does not count
                started = time.perf_counter()
            stop = min(start + _MEASURED, len(files))
            nleft = len(files) - stop
            if may_leave and spent / _MEASURED * nleft > config.tuning.long_scan_seconds:
                return stop
    return len(files)


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
