"""Samples that are compared: boxes of each array, and the hashes of what we read there."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import numpy as np

from virtualzarr.array import Array
from virtualzarr.verification.probe import digest

Box = tuple[tuple[int, int], ...]

ALL_BYTES = 1 << 26
"""Arrays of at most so many bytes are compared as a whole."""

_RANDOM_CELLS = 5


@dataclass(frozen=True)
class Sample:
    """What is compared of one array."""

    path: str
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    hashes: tuple[tuple[str, bool], ...] = field(repr=False)


def take_sample(path: str, array: Array, *, full: bool, seed: int = 0) -> Sample:
    """Read what is compared of an array."""
    boxes = tuple(list_boxes(array, full=full, seed=seed))
    hashes = tuple(
        digest(np.asarray(array[tuple(slice(a, b) for a, b in box)])) for box in boxes
    )  # fmt: skip
    return Sample(path, array.shape, boxes, hashes)


def list_boxes(array: Array, *, full: bool, seed: int = 0) -> list[Box]:
    """Return all of a small array as one box; of others the first, last, middle and random cells.

    With `full`, a large array is cut along its first axis into boxes of at most 64 MiB, or of one
    index.
    """
    shape = array.shape
    size = 32 if array.dtype.hasobject else array.dtype.itemsize
    if not array.size:
        return []
    if array.size * size <= ALL_BYTES:
        return [tuple((0, n) for n in shape)]
    if full:
        others = tuple((0, n) for n in shape[1:])
        step = max(1, ALL_BYTES // (math.prod(shape[1:]) * size))
        return [((i, min(i + step, shape[0])), *others) for i in range(0, shape[0], step)]
    cells = array.grid.grid_shape
    count = math.prod(cells)
    drawn = random.Random(seed).choices(range(count), k=_RANDOM_CELLS)
    numbers = sorted({0, count // 2, count - 1, *drawn})
    boxes = []
    for number in numbers:
        cell = tuple(int(i) for i in np.unravel_index(number, cells))
        origin, extent = array.grid.cell_origin(cell), array.grid.cell_extent(cell)
        boxes.append(tuple((o, o + n) for o, n in zip(origin, extent, strict=True)))
    return boxes
