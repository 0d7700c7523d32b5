"""LRU cache: values by key, bounded by their number or by their bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

from virtualzarr.stores.forks import reset_in_forks

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """Values of which the least recently used are evicted when they exceed a limit.

    It may be used by several threads, and begins empty in a forked process.

    Parameters
    ----------
    limit : int
        What the sizes of all values add up to at most: their number if each has the default size
        of 1, or else bytes.

    Attributes
    ----------
    size : int
        The sum of the sizes now.
    hits, misses : int
        How often a key was looked up that was there, or was not.

    Examples
    --------
    >>> cache = LRUCache(2)
    >>> for key in "aba":
    ...     cache.put(key, key.upper())
    >>> cache.get("a"), cache.put("c", "C"), cache.get("b"), len(cache)
    ('A', None, None, 2)
    """

    def __init__(self, limit: int) -> None:
        if limit < 0:
            raise ValueError(f"a cache keeps 0 bytes or more, not {limit}")
        self._limit = limit
        self.reset_after_fork()
        reset_in_forks(self)

    def reset_after_fork(self) -> None:
        """Begin empty: another thread may have held the lock when the process was forked."""
        self._lock = threading.Lock()
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.size = self.hits = self.misses = 0

    @property
    def limit(self) -> int:
        """The most that is kept; when it is lowered, what exceeds it is evicted."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._lock:
            self._limit = limit
            self._evict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K, default: Any = None) -> Any:
        """Return a value, which then counts as used last."""
        with self._lock:
            return self._get(key, default)

    def put(self, key: K, value: V, size: int = 1) -> None:
        """Add a value, unless its key is there or it exceeds the limit by itself."""
        with self._lock:
            if size <= self._limit and key not in self._entries:
                self._put(key, value, size)

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._entries.clear()
            self.size = 0

    # What subclasses build on, with the lock held: it is not reentrant, which would cost more than
    # the look-up itself.

    def _get(self, key: K, default: Any = None) -> Any:
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
            return default
        self.hits += 1
        self._entries.move_to_end(key)
        return entry[0]

    def _put(self, key: K, value: V, size: int) -> None:
        self._entries[key] = value, size
        self.size += size
        self._evict()

    def _drop(self, key: K) -> None:
        self.size -= self._entries.pop(key)[1]

    def _evict(self) -> None:
        while self.size > self._limit:
            key, (_, size) = self._entries.popitem(last=False)
            self.size -= size
            self._on_evict(key)

    def _on_evict(self, key: K) -> None:
        """Do what a subclass has to when an entry was evicted."""
