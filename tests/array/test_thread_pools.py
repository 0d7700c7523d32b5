"""Tasks shared between threads: all are run, errors surface, and nobody waits for ever."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

import virtualzarr
from virtualzarr.array.thread_pools import get_pool, run_shared, run_tasks


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_all_tasks_are_run_once(monkeypatch, threads):
    monkeypatch.setattr(virtualzarr.config, "threads", threads)
    for count in (0, 1, 3, 200):
        done = []
        run_shared([partial(done.append, i) for i in range(count)])
        assert sorted(done) == list(range(count))


@pytest.mark.parametrize("threads", [1, 4])
def test_an_error_ends_the_rest(monkeypatch, threads):
    monkeypatch.setattr(virtualzarr.config, "threads", threads)
    done = []

    def fail():
        raise KeyError("task")

    with pytest.raises(KeyError):
        run_shared([fail, *[partial(done.append, i) for i in range(5)]] * 100)
    assert len(done) < 500
    before = len(done)
    run_shared([])
    assert len(done) == before  # nothing goes on after the error


def test_sharing_needs_no_thread_of_the_pool(monkeypatch):
    """Tasks may share work while all threads wait for a lock that the sharer holds."""
    monkeypatch.setattr(virtualzarr.config, "threads", 2)
    lock, done = threading.Lock(), []
    with lock:
        waiting = [get_pool(remote=False).submit(lambda: lock.acquire() and lock.release())
                   for _ in range(4)]  # fmt: skip
        run_shared([partial(done.append, i) for i in range(10)])
    assert len(done) == 10
    for future in waiting:
        future.result(timeout=10)


def test_tasks_may_share_work(monkeypatch):
    monkeypatch.setattr(virtualzarr.config, "threads", 2)
    done = []
    inner = [partial(done.append, i) for i in range(10)]
    run_tasks([partial(run_shared, inner) for _ in range(6)], remote=False, large=True)
    assert len(done) == 60


def test_brief_tasks_are_shared_once_they_wait(monkeypatch):
    monkeypatch.setattr(virtualzarr.config, "threads", 2)
    both = threading.Barrier(2, timeout=20)
    done = []
    work = [partial(time.sleep, 0.05), both.wait, both.wait]
    run_tasks([*work, *[partial(done.append, i) for i in range(9)]], False, True, io_bound=True)
    assert sorted(done) == list(range(9))


def test_an_error_ends_brief_tasks(monkeypatch):
    monkeypatch.setattr(virtualzarr.config, "threads", 2)
    done = []
    with pytest.raises(ZeroDivisionError):
        run_tasks([partial(divmod, 1, 0), partial(done.append, 1)], False, True, io_bound=True)
    assert not done
