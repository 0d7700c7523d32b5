"""Scratch memory: one reusable buffer for each thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


class ScratchBuffer(threading.local):
    """Memory that a thread uses again and again: fresh pages cost more than filling them.

    Parameters
    ----------
    limit : int
        Larger requests get memory of their own, which is not kept.
    allocate : callable
        Takes shape and dtype, and makes that memory.

    Examples
    --------
    >>> buffer = ScratchBuffer(1000)
    >>> np.shares_memory(buffer.take(8), buffer.take(16))
    True
    """

    def __init__(self, limit: int, allocate: Callable[..., NDArray[Any]] = np.empty) -> None:
        self.limit, self.allocate = limit, allocate
        self.memory = np.empty(0, np.uint8)
        self.owner: object = None
        self.views: Any = None

    def take(self, nbytes: int) -> NDArray[Any]:
        """Return bytes of this thread's memory, valid until it takes some again."""
        if nbytes > self.limit:
            return self.allocate((nbytes,), np.uint8)
        if self.memory.size < nbytes:
            self.memory = np.empty(max(nbytes, min(self.limit, 1 << 20)), np.uint8)
            # Views of the old memory would write where nobody reads.
            self.owner = self.views = None
        return self.memory[:nbytes]

    def take_views(self, owner: object, nbytes: int, make: Callable[..., Any]) -> Any:
        """Return ``make(take(nbytes))``, made once for as long as the same `owner` asks."""
        # Making dozens of views takes longer than filling them, for small blocks.
        if self.owner is owner:
            return self.views
        views = make(self.take(nbytes))
        if nbytes <= self.limit:
            self.owner, self.views = owner, views
        return views
