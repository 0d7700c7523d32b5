"""A store that stops working after some changes, as if the process had died."""

from __future__ import annotations

import threading
from functools import partial


class Broken(Exception):
    """The process died."""


class Failing:
    """Lets so many changes through, and no more."""

    def __init__(self, store, allowed):
        self.store, self.left = store, allowed
        self.lock = threading.Lock()

    def __getattr__(self, name):
        if name in ("store", "left"):
            raise AttributeError(name)
        found = getattr(self.store, name)
        return partial(self._rename, found) if name == "rename" else found

    def _rename(self, rename, source, target):
        self._count()
        return rename(source, target)

    def _count(self):
        with self.lock:
            if self.left <= 0:
                raise Broken
            self.left -= 1

    def set(self, key, data):
        self._count()
        self.store.set(key, data)

    def delete(self, key):
        self._count()
        self.store.delete(key)

    def delete_dir(self, prefix):
        for key, _ in [*self.store.list(prefix)]:  # one by one, as stores do
            self.delete(key)
        self.store.delete_dir(prefix)

    def update(self, key, change):
        def counted(old):
            new = change(old)
            if new is not old:
                self._count()
            return new

        self.store.update(key, counted)
