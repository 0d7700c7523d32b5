"""Strands: files of several satellites, tiles or products that take turns in one archive."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import groupby, pairwise

from virtualzarr.archive.axis import AxisFacts, round_step
from virtualzarr.archive.moments import format_position
from virtualzarr.combine.cf_time import is_datetime_calendar

_MOST = 64
"""Strands: a field with more values is a number or a date."""

_LEAST = 3
_PURE = 99
_TURNS = 4
"""Files take turns if no more than so many of one kind follow each other, on average."""

_FEWEST_STEPS = 4
_LOOKED_AT = 200

_TOKEN = re.compile("[0-9]+|[A-Za-z]+")


def find_strands(
    names: Sequence[str], codes: Sequence[Hashable], axes: Sequence[AxisFacts | None]
) -> list[str]:
    """Return for each file which strand it is of; all are of one, which is "", if none take turns.

    Files are split by the field of their names with the fewest values that explains why they take
    turns: 99 of 100 files of one value are alike, or do not overlap. Of files that neither differ
    nor overlap, it is the one that is no part of a date and without which steps are not even.

    Parameters
    ----------
    names, codes, axes : sequence
        Of files in order: ``codes`` are equal for those that are alike.

    Examples
    --------
    >>> names = [f"G{16 + k % 2}_{k}.nc" for k in range(12)]
    >>> find_strands(names, [k % 2 for k in range(12)], [None] * 12)[:3]
    ['16', '17', '16']
    """
    one = [""] * len(names)
    are_different, are_overlapping = _take_turns(codes), _overlap_often(axes)
    if not are_different and not are_overlapping:
        return one if _is_even(axes) else _split_evenly(names, axes) or one
    for values in _list_fields(names):
        if are_different and not _explains(values, codes):
            continue
        if are_overlapping and not _separates(values, axes):
            continue
        return values
    return one


def _split_evenly(names: Sequence[str], axes: Sequence[AxisFacts | None]) -> list[str] | None:
    """Return the values of the field for each of which files begin in even steps."""
    for values in _list_fields(names):
        each = [[axis for one, axis in zip(values, axes, strict=True) if one == value]
                for value in set(values)]  # fmt: skip
        if all(map(_is_even, each)) and not _is_of_dates(values, axes):
            return values
    return None


def _is_even(axes: Sequence[AxisFacts | None]) -> bool:
    """Tell whether four of five files begin as long after the one before, of at least five."""
    lows = [(axis.low, axis.calendar) for axis in axes if axis is not None and axis.low is not None]
    steps = Counter(
        round_step(low, high, is_time=calendar is not None)
        for (low, calendar), (high, _) in pairwise(lows)
    )
    step, count = steps.most_common(1)[0] if len(lows) == len(axes) and steps else (None, 0)
    return bool(step) and count >= _FEWEST_STEPS and 5 * count >= 4 * steps.total()


def _is_of_dates(values: Sequence[str], axes: Sequence[AxisFacts | None]) -> bool:
    """Tell whether most of some values are a part of the date of their files: an hour, a day."""
    # Of other calendars, dates are not known as such.
    if any(axis and axis.calendar and not is_datetime_calendar(axis.calendar) for axis in axes[:1]):
        return True
    every = 1 + len(values) // _LOOKED_AT
    fits = []
    for value, axis in zip(values[::every], axes[::every], strict=True):
        ends = () if axis is None else (axis.low, axis.high)
        dates = " ".join(format_position(end, axis.calendar) for end in ends if axis is not None)
        fits.append(value.isdigit() and int(value) in map(int, re.findall("[0-9]+", dates)))
    return sum(fits) * 2 > len(fits)


def _take_turns(codes: Sequence[Hashable]) -> bool:
    runs = sum(1 for _ in groupby(codes))
    return len(set(codes)) > 1 and runs * _TURNS >= len(codes) and len(codes) >= 2 * _LEAST


def _overlap_often(axes: Sequence[AxisFacts | None]) -> bool:
    return len(axes) >= 2 * _LEAST and _count_overlaps(axes) * 3 >= len(axes)


def _count_overlaps(axes: Sequence[AxisFacts | None]) -> int:
    high, count = None, 0
    for axis in axes:
        if axis is None or axis.low is None or axis.high is None:
            continue
        count += high is not None and axis.low <= high
        high = axis.high if high is None else max(high, axis.high)
    return count


def _list_fields(names: Sequence[str]) -> list[list[str]]:
    """Return the values of each field that all names have, those with the fewest first."""
    tokens = [_TOKEN.findall(os.path.basename(name)) for name in names]
    folders = [_TOKEN.findall(os.path.dirname(name)) for name in names]
    fields = []
    for parts in (tokens, folders):
        if len({len(part) for part in parts}) != 1:
            continue
        for values in zip(*parts, strict=True):
            counts = Counter(values)
            if 1 < len(counts) <= _MOST and min(counts.values()) >= _LEAST:
                fields.append(list(values))
    return sorted(fields, key=lambda values: len(set(values)))


def _explains(values: Sequence[str], codes: Sequence[Hashable]) -> bool:
    """Tell whether the files of each value are alike, or take no turns any more."""
    for value in set(values):
        some = [code for one, code in zip(values, codes, strict=True) if one == value]
        most = Counter(some).most_common(1)[0][1]
        if most * 100 < _PURE * len(some) and _take_turns(some):
            return False
    return True


def _separates(values: Sequence[str], axes: Sequence[AxisFacts | None]) -> bool:
    """Tell whether files of one value do not overlap."""
    overlaps = sum(
        _count_overlaps([axis for one, axis in zip(values, axes, strict=True) if one == value])
        for value in set(values)
    )
    return overlaps * 100 <= (100 - _PURE) * len(axes)
