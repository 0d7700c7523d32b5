"""Processes that are forked while another thread holds a lock: nothing waits for that thread."""

from __future__ import annotations

import os
import threading
import time
import warnings

import pytest

from virtualzarr.codecs.fits import hcompress
from virtualzarr.codecs.hdf5 import library_file
from virtualzarr.codecs.tiff import segment
from virtualzarr.references.native import columns
from virtualzarr.stores import invalidation, pins
from virtualzarr.stores.forks import ForkSafeLock
from virtualzarr.stores.lru_cache import LRUCache

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork"),
    pytest.mark.filterwarnings("ignore:This process"),
]


def ends_in_child(work, seconds=20.0):
    """Tell whether a forked process does some work and ends; it is killed if it does not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os._exit(0 if work() is not False else 2)
        finally:
            os._exit(1)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


class Held:
    """A lock that another thread holds within a with statement."""

    def __init__(self, lock):
        self.lock, self.taken, self.done = lock, threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._hold)

    def _hold(self):
        with self.lock:
            self.taken.set()
            self.done.wait()

    def __enter__(self):
        self.thread.start()
        self.taken.wait()

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()


def enter(lock):
    with lock:
        return True


LOCKS = {
    "files": pins._pinning,
    "invalidation": invalidation._subscribing,
    "hcompress": hcompress._lock,
    "segment": segment._lock,
    "library_file": library_file._lock,
}


@pytest.mark.parametrize("name", LOCKS)
def test_locks_are_free(name):
    with Held(LOCKS[name]):
        assert ends_in_child(lambda: enter(LOCKS[name]), 5)
    assert enter(LOCKS[name])


CACHES = {
    "one": LRUCache(3),
    "columns": columns.recent,
}


@pytest.mark.parametrize("name", CACHES)
def test_caches_are_free_and_empty(name):
    cache = CACHES[name]
    cache.clear()
    cache.put("key", "value")

    def use():
        cache.put("other", "value")
        return cache.get("key") is None and cache.get("other") == "value" and len(cache) == 1

    with Held(cache._lock):
        assert ends_in_child(use, 5)
    assert cache.get("key") == "value"
    cache.clear()


def test_a_lock_excludes_threads_and_may_be_taken_twice():
    lock, order = ForkSafeLock(), []

    def wait():
        with lock:
            order.append("second")

    with lock, lock:
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_what_is_gone_is_forgotten():
    lock = ForkSafeLock()
    from virtualzarr.stores import forks

    count = len(forks._resettables)
    del lock
    assert len(forks._resettables) == count - 1
