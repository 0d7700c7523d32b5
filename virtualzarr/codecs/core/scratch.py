"""Scratch memory of codecs, for bytes that live no longer than one call, and new blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualzarr.errors import CodecError
from virtualzarr.stores.scratch import ScratchBuffer

MAX_REUSED = 1 << 24  # a larger buffer is not kept


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


# Not that of files: what was read into theirs is decoded while this one is in use.
_BUFFER = ScratchBuffer(MAX_REUSED, allocate)
scratch, scratch_views = _BUFFER.take, _BUFFER.take_views
