"""Chained offsets: each chunk begins where the one before ends, but for what is stored.

Chunks that were compressed and written one after the other have lengths as random as their data,
but begin where their neighbours end, so that only lengths take bytes. Source:
``specs/manifest-storage.md``, *Chained offsets*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


def to_links(offset: NDArray[Any], length: NDArray[Any], chunks: Sequence[int]) -> Int64:
    """Return how far from the end of the chunk before each chunk begins.

    Parameters
    ----------
    offset, length : int arrays of the same shape
    chunks : sequence of int
        The chunk shape in which the column will be stored: whole rows, as `chunk_shape` has them.
        The first cell of each has its offset.

    Examples
    --------
    >>> to_links(np.array([100, 110, 150, 7]), np.array([10, 30, 5, 1]), (3,))
    array([100,   0,  10,   7])
    """
    offsets = np.ascontiguousarray(offset, np.int64).reshape(-1)
    links = offsets.copy()
    links[1:] -= offsets[:-1]
    links[1:] -= np.ascontiguousarray(length, np.int64).reshape(-1)[:-1]
    # Behind the last axis that is cut, rows are whole, and before it, chunks have one cell: so
    # chunks are stretches of the cells in C order, and begin anew with each row before that axis.
    cut = max((i for i, n in enumerate(offset.shape) if chunks[i] < n), default=0)
    inner = math.prod(offset.shape[cut + 1 :])
    shape = -1, math.prod(offset.shape[cut : cut + 1]) * inner
    step = math.prod(chunks[cut : cut + 1]) * inner
    links.reshape(shape)[:, ::step] = offsets.reshape(shape)[:, ::step]
    return links.reshape(offset.shape)


def from_links(links: NDArray[Any], length: NDArray[Any]) -> Int64:
    """Return the offsets of one chunk of a column; sums are of 64 bits and wrap around.

    Examples
    --------
    >>> from_links(np.array([100, 0, 10]), np.array([10, 30, 5]))
    array([100, 110, 150])
    """
    steps = links.astype(np.int64).reshape(-1)
    steps[1:] += length.reshape(-1)[:-1]
    return np.cumsum(steps, out=steps).reshape(links.shape)
