"""Tasks shared between threads: all are run, errors surface, and nobody waits for ever."""

from __future__ import annotations

import _thread
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

import virtualzarr
from virtualzarr.stores import thread_pools
from virtualzarr.stores.thread_pools import run_each, run_shared, run_tasks, submit


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
        begun = [threading.Semaphore(0) for _ in range(4)]
        results = [submit(lambda one=one: one.release() or (lock.acquire(), lock.release()))
                   for one in begun]  # fmt: skip
        assert all(one.acquire(timeout=10) for one in begun[:2])
        run_shared([partial(done.append, i) for i in range(10)])
    assert len(done) == 10
    assert [find_result() for find_result in results] == [(True, None)] * 4


@pytest.mark.parametrize("may_leave", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_interrupts_wait_for_tasks_unless_these_may_be_left(monkeypatch, may_leave, error):
    """As requests that nobody may answer for a long time, and that write to nothing of others."""
    monkeypatch.setattr(virtualzarr.config, "requests", 4)
    begun, ended, go = threading.Event(), threading.Event(), threading.Event()

    def linger():
        begun.set()
        go.wait(20)
        ended.set()

    def fail():
        if threading.current_thread() is not main:
            return linger()
        begun.wait(20)
        threading.Timer(0.2, go.set).start()
        raise error

    main = threading.current_thread()
    with pytest.raises(error):
        run_shared([fail, fail], remote=True, may_leave=may_leave)
    assert ended.is_set() is not (may_leave and error is KeyboardInterrupt)
    assert ended.wait(20)


def test_results_and_errors_of_work_that_was_submitted(monkeypatch):
    monkeypatch.setattr(virtualzarr.config, "threads", 3)
    results = [submit(partial(divmod, 7, n)) for n in (1, 2, 0) * 30]
    for n, find_result in zip((1, 2, 0) * 30, results, strict=True):
        if n:
            assert find_result() == divmod(7, n)
        else:
            with pytest.raises(ZeroDivisionError):
                find_result()


def test_threads_end_that_are_too_many(monkeypatch):
    counts = []
    for size in (21, 2):
        monkeypatch.setattr(virtualzarr.config, "threads", size)
        both = threading.Barrier(size, timeout=20)
        run_shared([both.wait] * size)
        counts.append(_thread._count())
    end = time.monotonic() + 10
    while _thread._count() > counts[0] - 19 and time.monotonic() < end:
        time.sleep(0.01)
    assert _thread._count() <= counts[0] - 19


def test_threads_stay_few_where_settings_change_meanwhile():
    """Each user has another setting, and each change of it other threads."""
    before, end, interval = _thread._count(), time.monotonic() + 3, sys.getswitchinterval()

    def use(number):
        while time.monotonic() < end:
            with virtualzarr.config.set(threads=2 + number % 3):
                run_shared([partial(divmod, 7, 2)] * 8)

    users = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    sys.setswitchinterval(1e-6)
    try:
        for user in users:
            user.start()
        for user in users:
            user.join()
    finally:
        sys.setswitchinterval(interval)
    end = time.monotonic() + 10
    while _thread._count() > before + 8 and time.monotonic() < end:
        time.sleep(0.01)
    assert _thread._count() <= before + 8


def test_threads_that_cannot_be_started(monkeypatch):
    """All is done by the one who asks, and by threads again once they can be."""

    def refuse(work, args):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(virtualzarr.config, "threads", 3)
    with monkeypatch.context() as patch:
        patch.setattr(thread_pools, "_pools", {})
        patch.setattr(thread_pools, "start_new_thread", refuse)
        done = []
        run_shared([partial(done.append, i) for i in range(10)])
        assert done == [*range(10)]
        assert submit(lambda: 7)() == 7
        patch.setattr(thread_pools, "start_new_thread", _thread.start_new_thread)
        both = threading.Barrier(2, timeout=20)
        run_shared([both.wait, both.wait])


def test_reads_at_the_end_of_the_interpreter():
    code = """
import virtualzarr
from virtualzarr.stores.thread_pools import run_shared
virtualzarr.config.threads = 4

class Late:
    def __del__(self, run_shared=run_shared, print=print):
        done = []
        run_shared([lambda: done.append(1)] * 20)
        print(len(done))

late = Late()
import sys
sys.modules["late"] = late
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "20\n", done.stderr


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


@pytest.mark.parametrize("remote", [True, False])
def test_each_result_is_at_its_place(remote):
    def slow_square(number):
        time.sleep(0.01 if number % 3 else 0)
        return number * number

    assert run_each(slow_square, range(20), remote) == [n * n for n in range(20)]
    assert run_each(slow_square, [], remote) == []
    with pytest.raises(ZeroDivisionError):
        run_each(lambda number: 1 // number, [3, 0, 2], remote)
