"""Batches of work for executors whose processes may die: each is done once, or is an error."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    InvalidStateError,
    ProcessPoolExecutor,
    wait,
)
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from virtualzarr.errors import ExecutorError

T = TypeVar("T")
R = TypeVar("R")

_AHEAD = 2
"""Batches at once for each thread of workers: one is done, and one waits."""

_CLUSTER = 8
"""Workers that a cluster of Dask may get, at least: some begin with none."""

_SUSPECT = 3
"""A batch during which processes of a pool died so often is looked at: all that a pool works on is
lost with each. Dask has sent a batch to several workers before it says that they died."""

_HOPELESS = 10
"""A batch during which workers died so often, though none of its files did it, is given up."""

REPEAT = (
    "repeat the call with another one: what was staged is not scanned again, as long as the files "
    "are the same"
)


class BatchRunner(Generic[T, R]):
    """Runs batches on an executor, few of them at a time.

    Parameters
    ----------
    parallel : concurrent.futures.Executor or dask.distributed.Client
    work : callable
        What is done with a batch; run in a worker.
    examine : callable
        Finds what in a batch ends processes, run in a worker that it does not end; what it returns
        is given to `relieve`.
    relieve : callable
        Returns a batch without that, or raises an error that names it.
    describe : callable
        Says which batch it is.
    """

    def __init__(
        self,
        parallel: Any,
        work: Callable[[T], R],
        examine: Callable[[T], Sequence[str]],
        relieve: Callable[[T, Sequence[str]], T],
        describe: Callable[[T], str],
    ) -> None:
        self._work, self._examine = work, examine
        self._relieve, self._describe = relieve, describe
        self._own_pool: ProcessPoolExecutor | None = None
        if hasattr(parallel, "get_executor"):
            if parallel.scheduler is None:
                raise ExecutorError("the Dask client is closed; give another one")
            self._workers, self._suspect = max(sum(parallel.nthreads().values()), _CLUSTER), 1
            self._executor: Executor = _DaskExecutor(parallel)
        else:
            self._workers = getattr(parallel, "_max_workers", None) or 1
            self._executor, self._suspect = parallel, _SUSPECT

    def run(self, batches: Sequence[T]) -> Generator[tuple[int, R]]:
        """Yield the number of each batch and what came of it, as they are done.

        Raises
        ------
        ExecutorError
            Processes die or were stopped, and no single part of a batch is the cause.
        """
        waiting = deque(enumerate(batches))
        running: dict[Future[R], tuple[int, T]] = {}
        deaths: Counter[int] = Counter()
        try:
            while waiting or running:
                while waiting and len(running) < _AHEAD * self._workers:
                    number, batch = waiting.popleft()
                    running[self._submit(self._work, batch)] = number, batch
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                died = []
                for future in done:
                    number, batch = running.pop(future)
                    try:
                        result = future.result()
                    except BaseException as error:
                        if not _is_death(error):
                            raise self._explain(error)  # noqa: B904
                        died.append((number, batch))
                        continue
                    yield number, result
                for number, batch in died:
                    deaths[number] += 1
                    waiting.append((number, self._recover(batch, deaths[number])))
        finally:
            for future in running:
                future.cancel()
            if self._own_pool is not None:
                self._own_pool.shutdown(wait=True, cancel_futures=True)

    def _submit(self, work: Callable[[T], Any], batch: T) -> Future[Any]:
        try:
            return self._executor.submit(work, batch)
        except BrokenExecutor:
            self._renew()
            return self._executor.submit(work, batch)
        except Exception as error:
            raise self._explain(error) from error

    def _renew(self) -> None:
        """Use a new pool of processes in place of one that is broken, and stays so."""
        executor: Any = self._executor
        if not isinstance(executor, ProcessPoolExecutor):
            raise ExecutorError(f"the executor is broken, as a process of it died; {REPEAT}")
        names = ("_max_workers", "_mp_context", "_initializer", "_initargs")
        workers, context, initializer, arguments = (getattr(executor, name) for name in names)
        if self._own_pool is not None:
            self._own_pool.shutdown(wait=False)
        self._own_pool = ProcessPoolExecutor(workers, context, initializer, arguments)
        self._executor = self._own_pool

    def _recover(self, batch: T, count: int) -> T:
        """Return what of a batch is done again after workers died during it `count` times."""
        if count >= _HOPELESS:
            raise ExecutorError(
                f"{count} times processes died that worked on {self._describe(batch)}, though none "
                "of these files ends a process alone: is there enough memory for workers?"
            )
        if count != self._suspect:
            return batch
        try:
            deadly = self._submit(self._examine, batch).result()
        except BaseException as error:
            if not _is_death(error):
                raise self._explain(error) from error
            return batch
        return self._relieve(batch, deadly) if deadly else batch

    def _explain(self, error: BaseException) -> BaseException:
        """Return the error of an executor that was stopped as one that says what to do."""
        is_stopped = (
            isinstance(error, CancelledError | asyncio.CancelledError)
            or type(error).__module__.partition(".")[0] == "distributed"
            or (isinstance(error, RuntimeError) and "shutdown" in str(error))
        )
        if not is_stopped:
            return error
        return ExecutorError(f"the executor, or its scheduler, was stopped ({error}); {REPEAT}")


class _DaskExecutor(Executor):
    """Batches by a Dask client, which is never imported for that.

    Its own executor never ends a future whose result was lost with a worker, if the task is killed
    when it is done again.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        """Send a task, also one that was sent before and has died."""
        remote = self._client.submit(fn, *args, pure=False, **kwargs)
        future: Future[R] = Future()
        future.add_done_callback(lambda done: remote.cancel() if done.cancelled() else None)
        remote.add_done_callback(partial(_settle, future))
        return future


def _settle(future: Future[Any], remote: Any) -> None:
    """End a future as that of Dask has ended."""
    # Cancelled meanwhile, perhaps.
    with suppress(InvalidStateError):
        try:
            result = remote.result()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)


def _is_death(error: BaseException) -> bool:
    """Tell whether an error says that a process died, whatever it was doing."""
    distributed = sys.modules.get("distributed")
    return isinstance(error, BrokenExecutor) or (
        distributed is not None and isinstance(error, distributed.scheduler.KilledWorker)
    )
