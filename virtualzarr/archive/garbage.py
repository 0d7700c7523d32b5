"""Garbage collection put off while millions of objects are made that are none of it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Collections:
    """The collections of this process: how many put them off, and whether they were on before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nested = 0
        self._were_on = False

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Have no collection until the end of the block, and of all that run beside it.

        Each would look at the facts of all files. They took a third of the time of a survey.
        """
        with self._lock:
            if not self._nested:
                self._were_on = gc.isenabled()
                gc.disable()
            self._nested += 1
        try:
            yield
        finally:
            with self._lock:
                self._nested -= 1
                if not self._nested and self._were_on:
                    gc.enable()


collections = _Collections()
