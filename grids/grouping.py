"""Index arrays: grouped by key, and turned into slices where they rise evenly."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

import numpy as np

from grids.axis import Int64


def concatenate_ranges(lo: Int64, hi: Int64) -> Int64:
    """Return the integers of several ranges, one range after the other.

    Examples
    --------
    >>> concatenate_ranges(np.array([3, 7, 0]), np.array([5, 7, 2]))
    array([3, 4, 0, 1])
    """
    # One arange over the result, shifted in each range by its start minus what lies before it: no
    # Python loop over ranges, of which there may be millions.
    sizes = np.maximum(hi - lo, 0)
    shift = np.repeat(lo - (np.cumsum(sizes) - sizes), sizes)
    return np.arange(len(shift)) + shift


def group_keys(keys: Int64) -> tuple[Int64, Int64, Int64]:
    """Return a stable order that groups equal keys, the bounds of the groups, and their keys.

    Examples
    --------
    >>> group_keys(np.array([5, 2, 5]))
    (array([1, 0, 2]), array([0, 1, 3]), array([2, 5]))
    """
    if not len(keys):
        return np.empty(0, np.int64), np.zeros(1, np.int64), np.empty(0, np.int64)
    # Most index arrays rise already: one comparison is far cheaper than the sort it saves. The sort
    # is stable so that of an index that comes twice, the later value wins in writes, as in numpy.
    if (keys[1:] >= keys[:-1]).all():
        order = np.arange(len(keys))
    else:
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    return order, np.append(starts, len(keys)), keys[starts]


def rank_rows(columns: list[Int64], sizes: list[int]) -> Int64:
    """Return one key per row that sorts as the rows do, however large the columns' values are.

    Examples
    --------
    >>> rank_rows([np.array([1, 0]), np.array([0, 9])], [2, 10])
    array([10,  9])
    """
    key = columns[0]
    size = sizes[0]
    for column, count in zip(columns[1:], sizes[1:], strict=True):
        # The C-order number of a row may not fit int64, as grids can have more than 2**62 cells.
        # Replaced by their ranks, values are no larger than the rows are many, and sort the same.
        if size * count >= 2**62:
            distinct, key = np.unique(key, return_inverse=True)
            size = len(distinct)
        if size * count >= 2**62:
            distinct, column = np.unique(column, return_inverse=True)
            count = len(distinct)
        key = key * count + column
        size *= count
    return key


def build_selectors(values: Int64, bounds: Int64) -> Callable[[int], slice | Int64]:
    """Return a function from a group's number to its values, as a slice where they rise evenly.

    Examples
    --------
    >>> group = build_selectors(np.array([4, 6, 8, 3, 1]), np.array([0, 3, 5]))
    >>> group(0), group(1)
    (slice(4, 9, 2), array([3, 1]))
    """
    # Slices matter: numpy copies through them several times faster than through index arrays, and
    # partial reads can only plan byte ranges for slices.
    starts, sizes = bounds[:-1], np.diff(bounds)
    if not len(starts):
        return lambda group: slice(0, 0, 1)
    # The first difference in a group is its step; single values get step 1.
    several = sizes > 1
    steps = np.ones(len(starts), np.int64)
    steps[several] = values[starts[several] + 1] - values[starts[several]]
    # A group is even if no later difference deviates. Differences across group borders, which are
    # in the same column, do not count.
    uneven = np.zeros(len(values), bool)
    uneven[1:] = np.diff(values) != np.repeat(steps, sizes)[1:]
    uneven[starts] = False
    even = (np.logical_or.reduceat(uneven, starts) == 0) & (steps > 0)
    # Lists, as indexing an array for a scalar costs ten times what indexing a list does.
    first, last = values[starts].tolist(), values[bounds[1:] - 1].tolist()
    by, evenly, limits = steps.tolist(), even.tolist(), bounds.tolist()

    def selector(group: int) -> slice | Int64:
        if evenly[group]:
            return slice(first[group], last[group] + 1, by[group])
        return values[limits[group] : limits[group + 1]]

    return selector


def mesh(selectors: tuple[Any, ...]) -> tuple[Any, ...]:
    """Make arrays on several axes select along each axis, as slices do.

    Examples
    --------
    >>> [part.tolist() for part in mesh((np.array([0, 2]), slice(1, 3, 1), np.array([4])))]
    [[[[0]], [[2]]], [[1], [2]], [4]]
    """
    # numpy pairs several index arrays point by point. With one, mixing it with slices does already
    # what is meant here, and keeps the slices, which are quicker.
    if sum(map(isinstance, selectors, repeat(np.ndarray))) < 2:
        return selectors
    after = len(selectors)
    indices = []
    for entry in selectors:
        after -= 1
        if isinstance(entry, slice):
            entry = np.arange(entry.start, entry.stop, entry.step)
        indices.append(entry.reshape(-1, *(1,) * after))
    return tuple(indices)
