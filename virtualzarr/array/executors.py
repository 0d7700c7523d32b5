"""Executors: the parts of one job in other processes, a few at a time, their results in order."""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Future, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from virtualzarr.array.processes import Processes
from virtualzarr.config import config, settings_for_workers
from virtualzarr.errors import ExecutorError, error_context, warn_caller
from virtualzarr.stores.request_loop import SharedWork

T = TypeVar("T")
R = TypeVar("R")

_EACH = 2
"""Parts that are under way for each worker: one is done, and the next is there already."""

_METHODS = "submit", "map", "get_executor"
"""What has one of these is an executor, or a client of dask."""

Caught = list[tuple[str, type[Warning]]]


def map_in_order(
    function: Callable[[T], R],
    items: Iterable[T],
    parallel: Any,
    name: Callable[[T], str] = str,
) -> Generator[R, None, None]:
    """Yield what a function returns for each item, computed by the workers of an executor.

    Few items are taken from the iterable before their results are asked for, so that what they
    need in memory is bounded. When it ends, by an error, too, none of the workers is at work still.

    Parameters
    ----------
    function : callable
        Of a module, as workers import it. The settings of this process hold in all of them.
    items : iterable
        Sent to the workers.
    parallel : int, concurrent.futures.Executor or dask.distributed.Client or None
        A number is that of worker processes of our own. None computes here, one after the other.
    name : callable
        Returns the variable that an item is of, for errors.

    Raises
    ------
    ExecutorError
        A worker has died.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor() as threads:
    ...     list(map_in_order(abs, [-1, 2], threads))
    [1, 2]
    """
    with open_executor(parallel) as opened:
        if opened is None:
            yield from map(function, items)
        else:
            yield from _map_ahead(function, items, opened, name)


@contextmanager
def open_executor(parallel: Any) -> Iterator[Any]:
    """Give what `parallel` means: None, or an executor or a client of dask.

    A number is that of worker processes of our own, which end with the block.
    """
    if isinstance(parallel, int) and not isinstance(parallel, bool):
        if parallel < 1:
            raise ValueError(f"parallel: there are no {parallel} worker processes")
        with Processes(parallel) as processes:
            yield processes
    elif parallel is None or any(hasattr(parallel, name) for name in _METHODS):
        yield parallel
    else:
        raise TypeError(f"parallel is a number, an executor or a client of dask, not {parallel!r}")


def as_executor(parallel: Any) -> Any:
    """Return what takes work: an executor, the one that a client of dask offers, or None."""
    # Dask is never imported for that. What is done again is no result that is known already.
    offers = hasattr(parallel, "get_executor")
    return parallel.get_executor(pure=False) if offers else parallel


def _map_ahead(
    function: Callable[[T], R], items: Iterable[T], parallel: Any, name: Callable[[T], str]
) -> Iterator[R]:
    executor = as_executor(parallel)
    settings = settings_for_workers()
    shared_work = SharedWork()
    work = partial(shared_work.do, _call, function, os.getpid(), settings)
    limit = _EACH * count_workers(parallel)
    pending: deque[tuple[str, Future[tuple[R, Caught]]]] = deque()
    try:
        with shared_work:
            for item in items:
                if len(pending) >= limit:
                    yield _await(*pending.popleft())
                variable = name(item)
                with name_deaths(variable):
                    pending.append((variable, executor.submit(work, item)))
            while pending:
                yield _await(*pending.popleft())
    except BaseException as error:
        if isinstance(executor, Processes) and not isinstance(error, Exception):
            executor.kill()
        raise
    finally:
        # Nothing may go on writing afterwards.
        wait([future for _, future in pending if not future.cancel()])


def count_workers(parallel: Any) -> int:
    """Return how many parts an executor, or a client of dask, works on at a time."""
    if hasattr(parallel, "nthreads"):
        return max(1, sum(parallel.nthreads().values()))
    return int(getattr(parallel, "_max_workers", None) or os.cpu_count() or 1)


def _call(
    function: Callable[[T], R], home: int, settings: dict[str, Any], item: T
) -> tuple[R, Caught]:
    """Call a function in whatever process this is; return what `home`, the first, is to warn of."""
    if os.getpid() == home:
        return function(item), []
    # A worker starts with default settings: limits that the user raised have to hold there, too.
    vars(config).update(settings)
    # Only one thread of a process can listen to its warnings.
    if threading.current_thread() is not threading.main_thread():
        return function(item), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(item)
    return result, [(str(each.message), each.category) for each in caught]


def _await(variable: str, future: Future[tuple[R, Caught]]) -> R:
    with name_deaths(variable):
        result, caught = future.result()
    for message, category in caught:
        warn_caller(message, category)
    return result


@contextmanager
def name_deaths(variable: str = "") -> Iterator[None]:
    """Raise an error of this package where a worker has died."""
    try:
        with error_context(variable=variable):
            yield
    except (BrokenExecutor, CancelledError) as error:
        problem = f"a worker has died, or was stopped ({type(error).__name__}: {error})"
        raise ExecutorError(problem, variable=variable) from error
    except Exception as error:
        # Of dask, which is not imported for that.
        if type(error).__name__ != "KilledWorker":
            raise
        raise ExecutorError(f"workers have died: {error}", variable=variable) from error
