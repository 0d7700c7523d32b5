"""Sampling of arrays for pictures: what is read is counted before, and bounded."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import RegularGrid, SeparableGrid
from virtualzarr.array import Array
from virtualzarr.errors import VirtualZarrError

MAX_CHUNKS, MAX_BYTES = 64, 64 << 20
"""What is read for a picture, at most: chunks, and their decoded bytes."""

SECONDS = 2.0
"""After which no more reading begins, as links and decoders may be slow."""

_THREADS = 8

Indices = NDArray[np.int64]


class NoPictureError(VirtualZarrError):
    """There is no picture of an array; the message names nothing but that."""


@dataclass
class Sample:
    """What was read of an array.

    Attributes
    ----------
    values : array
        Shape (rows, columns), or of one axis.
    unread : bool array
        Where nothing was read.
    chunks, total : int
        That were read, and that there are in the picture.
    failed : int
        Chunks that cannot be read.
    """

    values: NDArray[Any]
    unread: NDArray[np.bool_]
    chunks: int
    total: int
    failed: int = 0


def grid_of(array: Array) -> SeparableGrid | None:
    """Return the grid of what can be read alone: of a sharded array, its sub-chunks."""
    if array.shards is not None and all(isinstance(length, int) for length in array.chunks):
        return RegularGrid(array.shape, array.chunks)
    return array.grid if isinstance(array.grid, SeparableGrid) else None


def chunk_bytes(array: Array) -> int:
    """Return the decoded bytes of the largest chunk."""
    grid = grid_of(array)
    if grid is None:
        return array.nbytes
    lengths = [int(axis.runs()[0].max(initial=1)) for axis in grid.axes]
    return math.prod(lengths) * array.dtype.itemsize


def is_partly_read(array: Array) -> bool:
    """Tell whether parts of chunks are read alone: those that are not compressed."""
    return len(array.metadata.pipeline.codecs) == 1 and not array.dtype.hasobject


def spread(extent: int, count: int) -> Indices:
    """Return evenly chosen indices of an axis, in the middle of what each stands for.

    Examples
    --------
    >>> spread(10, 5).tolist()
    [1, 3, 5, 7, 9]
    """
    step = extent / count
    return np.minimum(((np.arange(count) + 0.5) * step).astype(np.int64), extent - 1)


def thin_rows(array: Array, axes: Sequence[int], ys: Indices) -> Indices:
    """Return fewer different rows where those of uncompressed chunks are long.

    Raises `NoPictureError` if one row alone is too long.
    """
    row = array.dtype.itemsize * math.prod(array.shape[min(axes) + 1 :])
    if chunk_bytes(array) <= MAX_BYTES or row * len(ys) <= MAX_BYTES:
        return ys
    if row > MAX_BYTES:
        raise NoPictureError("the rows are too long for a picture")
    # Each row that is read stands for several pixels, as high as before.
    count = MAX_BYTES // row
    return ys[spread(len(ys), count)][np.arange(len(ys)) * count // len(ys)]


def read_plane(
    array: Array, axes: tuple[int, int], at: dict[int, int], ys: Indices, xs: Indices
) -> Sample:
    """Read pixels, by chunks: all of them if they are few, else some, evenly chosen."""
    boxes, total = choose_boxes(array, axes, ys, xs)
    values = np.zeros((len(ys), len(xs)), array.dtype)
    unread = np.ones(values.shape, bool)

    def read(box: tuple[Indices, Indices]) -> None:
        y, x = box
        chosen = {**at, axes[0]: ys[y], axes[1]: xs[x]}
        # Orthogonal: integers drop their axes, and the two that stay are in the array's order.
        block = np.asarray(array.oindex[tuple(chosen[axis] for axis in range(array.ndim))])
        values[np.ix_(y, x)] = block if axes[0] < axes[1] else block.T
        unread[np.ix_(y, x)] = False

    done, failed = run_bounded(read, boxes)
    # One box may be several chunks: all of them.
    return Sample(values, unread, total if done == len(boxes) > 0 and not unread.any() else done,
                  total, failed)  # fmt: skip


def choose_boxes(
    array: Array, axes: tuple[int, int], ys: Indices, xs: Indices
) -> tuple[list[tuple[Indices, Indices]], int]:
    """Return which pixels are read together, chunk by chunk, and how many chunks there are."""
    grid, everything = grid_of(array), (np.arange(len(ys)), np.arange(len(xs)))
    nbytes = chunk_bytes(array)
    if nbytes > MAX_BYTES and not is_partly_read(array):
        raise NoPictureError("the chunks are too large for a picture")
    if grid is None:
        return [everything], 1
    row_cells, column_cells = (
        grid.axes[axis].cell_of(indices) for axis, indices in zip(axes, (ys, xs), strict=True)
    )
    rows, columns = np.unique(row_cells), np.unique(column_cells)
    total = len(rows) * len(columns)
    most = max(1, min(MAX_CHUNKS, MAX_BYTES // max(nbytes, 1)))
    if total <= min(most, _THREADS):
        return [everything], total
    numbers = spread(total, most) if total > most else np.arange(total)
    # In no order, so that what the time allows is all over the picture.
    numbers = np.random.default_rng(0).permutation(numbers)
    return [
        (
            np.flatnonzero(row_cells == rows[number // len(columns)]),
            np.flatnonzero(column_cells == columns[number % len(columns)]),
        )
        for number in numbers.tolist()
    ], total


def run_bounded(read: Any, parts: Sequence[Any]) -> tuple[int, int]:
    """Read parts side by side until the time is over; return how many were, and how many failed.

    Raises
    ------
    VirtualZarrError
        None of them can be read: the first error.
    """
    deadline, errors = time.monotonic() + SECONDS, []

    def run(part: Any) -> bool:
        # The first one is always read.
        if part is not parts[0] and time.monotonic() > deadline:
            return False
        try:
            read(part)
        except VirtualZarrError as error:
            errors.append(error)
            return False
        return True

    if len(parts) == 1:
        done = int(run(parts[0]))
    else:
        with ThreadPoolExecutor(_THREADS, "virtualzarr-picture") as pool:
            done = sum(pool.map(run, parts))
    if errors and not done:
        raise errors[0]
    return done, len(errors)
