"""Regular cells of the faces: their lengths, and which stored chunks they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from grids import Axis

MAX_ENCODED_CELL = 8 << 20
"""Decoded bytes of a cell that is encoded, and of a part of an uncompressed block, at most."""

MAX_SINGLE_CELL = 1 << 20
"""Arrays with one axis that have at most so many bytes are one cell."""

MIN_GROWING_CELL = 4096
"""Elements of such a cell, at least, along an axis that grows."""

_FIRST_CELLS = 64


def common_length(axis: Axis, growing: bool) -> int:
    """Return the chunk length that most elements of an axis are in.

    Along an axis that grows, only the first cells count: what comes later must not change it.

    Examples
    --------
    >>> common_length(Axis(24 + 48, [8, 12], [3, 4]), growing=False)
    12
    >>> common_length(Axis.bare(10, 4), growing=False)
    4
    """
    if axis.uniform is not None:
        return axis.uniform
    edges, counts = axis.runs()
    if growing:
        counts = np.clip(_FIRST_CELLS - (np.cumsum(counts) - counts), 0, counts)
    lengths, index = np.unique(edges, return_inverse=True)
    elements = np.bincount(index.reshape(-1), weights=edges * counts)
    # Of several, the longest: the last, as lengths are sorted.
    return int(lengths[len(elements) - 1 - int(np.argmax(elements[::-1]))]) if len(lengths) else 1


def shorten_lengths(lengths: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Halve cells, the slowest axis first, until they are small enough to be encoded.

    Examples
    --------
    >>> shorten_lengths((3, 4096, 4096), 4)
    (1, 512, 4096)
    """
    shorter = list(lengths)
    for axis in range(len(shorter)):
        while math.prod(shorter) * itemsize > MAX_ENCODED_CELL and shorter[axis] > 1:
            shorter[axis] = -(-shorter[axis] // 2)
    return tuple(shorter)


def split_lengths(axes: Sequence[Axis], lengths: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return lengths of cells that are contiguous in uncompressed blocks, and not too large.

    Examples
    --------
    >>> split_lengths([Axis.bare(1000, 1000), Axis.bare(4096, 4096)], (1000, 4096), 4)
    (512, 4096)
    """
    shorter = list(lengths)
    for i, axis in enumerate(axes):
        stride = math.prod(shorter[i + 1 :]) * itemsize
        if shorter[i] * stride <= MAX_ENCODED_CELL:
            break
        most = max(1, MAX_ENCODED_CELL // max(stride, 1))
        # Where there are several blocks, cells must not lie across two of them.
        shorter[i] = most if axis.ncells <= 1 else _largest_divisor(shorter[i], most)
        if shorter[i] > 1:
            break
    return tuple(shorter)


def _largest_divisor(number: int, most: int) -> int:
    return next(n for n in range(min(most, number), 0, -1) if number % n == 0)


def single_cell_length(extent: int, growing: bool) -> int:
    """Return the length of the one cell of a short array."""
    if not growing:
        return max(extent, 1)
    return max(MIN_GROWING_CELL, 1 << (max(extent, 1) - 1).bit_length())


def find_same_cell(axes: Sequence[Axis], lengths: Sequence[int], cell: Sequence[int]) -> (
    tuple[int, ...] | None
):  # fmt: skip
    """Return the stored cell that begins where a regular one does and has its declared shape."""
    cells = []
    for axis, length, k in zip(axes, lengths, cell, strict=True):
        start = k * length
        stored = axis.cell_of(start)
        if axis.start(stored) != start or axis.edge(stored) != length:
            return None
        cells.append(int(stored))
    return tuple(cells)


def find_overlapped(
    axes: Sequence[Axis], lengths: Sequence[int], cell: Sequence[int]
) -> list[tuple[int, int]]:
    """Return for each axis the stored cells that a regular one overlaps: first, and after last."""
    spans = []
    for axis, length, k in zip(axes, lengths, cell, strict=True):
        stop = min((k + 1) * length, axis.extent)
        spans.append((int(axis.cell_of(k * length)), int(axis.cell_of(stop - 1)) + 1))
    return spans
