"""Scratch memory: one reusable buffer per thread, for bytes that live no longer than a call."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualzarr.errors import CodecError

MAX_REUSED = 1 << 24  # a larger buffer is not kept


class _Local(threading.local):
    buffer: npt.NDArray[Any] = np.empty(0, "u1")
    owner: object = None
    views: Any = None


_LOCAL = _Local()


def scratch(size: int) -> npt.NDArray[Any]:
    """Return `size` bytes of this thread's buffer, valid until its next use.

    Raises
    ------
    CodecError
        If there is no memory for so many.

    Examples
    --------
    >>> scratch(8).shape
    (8,)
    """
    if size > MAX_REUSED:
        return allocate((size,), "u1")
    # Fresh pages of a new array cost more than decoding into them.
    if _LOCAL.buffer.size < size:
        _LOCAL.buffer = np.empty(max(size, 1 << 16), "u1")
        # Views of the old buffer would write into memory that nobody reads.
        _LOCAL.owner = _LOCAL.views = None
    return _LOCAL.buffer[:size]


def allocate(shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a new block whose elements are anything.

    Raises
    ------
    CodecError
        If there is no memory for it: metadata may ask for any size.
    """
    try:
        return np.empty(tuple(shape), dtype)
    except (MemoryError, ValueError) as error:  # ValueError: more than can be addressed
        size = math.prod(shape) * np.dtype(dtype).itemsize
        raise CodecError(f"there is no memory for a block of {size} bytes") from error


def scratch_views(owner: object, size: int, make: Any) -> Any:
    """Return ``make(scratch(size))``, kept for as long as the same `owner` asks."""
    # Making dozens of views takes longer than filling them, for small blocks.
    if _LOCAL.owner is owner:
        return _LOCAL.views
    buffer = scratch(size)
    views = make(buffer)
    if size <= MAX_REUSED:
        _LOCAL.owner, _LOCAL.views = owner, views
    return views
