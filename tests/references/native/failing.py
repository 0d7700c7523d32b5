"""A store that stops working after some changes, as if the process had died."""

from __future__ import annotations

import threading


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
        return getattr(self.store, name)

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
        self._count()
        self.store.delete_dir(prefix)

    def update(self, key, change):
        def counted(old):
            new = change(old)
            if new is not old:
                self._count()
            return new

        self.store.update(key, counted)
