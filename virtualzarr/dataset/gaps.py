"""Gaps between the coordinates of rows: found by the step that is expected, and filled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.choices import Gaps
from virtualzarr.dataset.commit import Change
from virtualzarr.dataset.head import Head
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.placing import Coordinates, locate, read_stored
from virtualzarr.dataset.snapshot import Record
from virtualzarr.dataset.verbs import NothingToDoError, Rows, add_rows
from virtualzarr.errors import MismatchError

_MOST = 10_000_000
"""Rows that a gap may be filled with: more are a wrong date."""


def close_gaps(
    dimension: str,
    low: Any,
    high: Any,
    step: int | float,
    policy: Gaps,
    coordinates: Coordinates,
    build_rows: Callable[[NDArray[Any]], Rows],
    about: Mapping[str, Any],
) -> Change:
    """Rows without references come where there is a gap beside rows, or it is an error.

    Parameters
    ----------
    low, high : number
        The first and last coordinate of the rows that were added.
    policy : {"raise", "fill"}
    build_rows : callable
        Makes rows of coordinates.

    Raises
    ------
    MismatchError
        By the change: there is a gap, or it is no multiple of the step.
    """

    def change(head: Head) -> Protocol[Record]:
        state = head.snapshot
        start, stop = yield from locate(state, dimension, coordinates, low, high)
        start, stop = max(start - 1, 0), min(stop + 1, len(state.rows_of(dimension)))
        stored = yield from read_stored(state, dimension, coordinates, start, stop)
        values = find_missing(stored, step, dimension, policy)
        if not len(values):
            raise NothingToDoError("there is no gap")
        return (yield from add_rows(build_rows(values), coordinates, about)(head))

    return change


def find_missing(
    stored: NDArray[Any], step: int | float, dimension: str, policy: Gaps
) -> NDArray[Any]:
    """Return the coordinates that are missing between others.

    Raises
    ------
    MismatchError
        There are some, and that is an error; or they are not evenly spaced, or too many.

    Examples
    --------
    >>> find_missing(np.array([1, 2, 5]), 1, "time", "fill")
    array([3, 4])
    """
    distance = np.diff(stored)
    if stored.dtype.kind == "i":
        # They increase: what exceeds the largest signed number is there as an unsigned one.
        distance = distance.view(f"u{stored.dtype.itemsize}")
    wide = np.flatnonzero(distance > step)
    if not len(wide):
        return stored[:0]
    before, after = stored[wide[0]], stored[wide[0] + 1]
    if policy == "raise":
        raise MismatchError(
            f"there is a gap from {before} to {after} along {dimension!r}, where a step is {step}; "
            'gaps="fill" fills it'
        )
    counts = distance[wide] // step
    if counts.sum() > _MOST:
        raise MismatchError(
            f"{int(counts.sum())} rows are missing between {before} and {after} along "
            f"{dimension!r}: too many to be filled"
        )
    parts = []
    for at, count in zip(wide.tolist(), counts.astype(int).tolist(), strict=True):
        # Multiples of the step, and no sums: those of floats would drift.
        values = stored[at] + np.arange(1, count + 1).astype(stored.dtype) * step
        values = values.astype(stored.dtype)
        if values[-1] != stored[at + 1]:
            raise MismatchError(
                f"the gap from {stored[at]} to {stored[at + 1]} along {dimension!r} is no multiple "
                f"of the step, {step}"
            )
        parts.append(values[:-1])
    return np.concatenate(parts)
