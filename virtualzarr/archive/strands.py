"""Strands: files of several satellites, tiles or products that take turns in one archive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import combinations, groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from virtualzarr.archive.axis import AxisFacts, round_step
from virtualzarr.archive.date_parts import DateParts
from virtualzarr.archive.name_fields import RARE, NameField, list_fields, name_values
from virtualzarr.combine.cf_time import is_datetime_calendar

Integers = NDArray[np.int64]

_LEAST = 3
_PURE = 99
_TURNS = 4
"""Files take turns if no more than so many of one kind follow each other, on average."""

_FEWEST_STEPS = 4
_MOST_COMBINED = 8
"""Fields of names that are combined: those with the fewest values."""

_MOST_STRANDS = 4096


def find_strands(
    names: Sequence[str], codes: Sequence[Hashable], axes: Sequence[AxisFacts | None]
) -> list[str]:
    """Return for each file which strand it is of; all are of one, which is "", if none take turns.

    Files are split by the field of their names with the fewest values that explains why they take
    turns: 99 of 100 files of one value are alike, or do not overlap. Of files that neither differ
    nor overlap, it is the one that is no part of a date and without which steps are not even.
    Where no field does, it is a combination of two, or of three.

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
    if not are_different and not are_overlapping and _is_even(axes):
        return one
    files = _Files(codes, axes)
    calendars = {axis.calendar for axis in axes[:1] if axis is not None}
    # Of other calendars, dates are not known as such: what is even could be their parts.
    is_known = all(calendar is None or is_datetime_calendar(calendar) for calendar in calendars)
    is_odd = are_different or are_overlapping
    dated: list[NameField] = []
    for fields, values in _list_splits(names, DateParts(axes), dated):
        if is_odd:
            is_it = not are_different or files.are_alike(values)
            is_it = is_it and (not are_overlapping or files.are_apart(values))
        else:
            is_it = is_known and files.are_even(values)
        if is_it:
            return name_values(fields, names)
    # Hours of which the files are others, if each has enough of them to tell.
    for field in dated if are_different and not are_overlapping else ():
        if np.bincount(field.numbers).min() >= 2 * _LEAST and files.are_alike(field.numbers):
            return name_values((field,), names)
    return one


def _list_splits(
    names: Sequence[str], dates: DateParts, dated: list[NameField]
) -> Iterator[tuple[tuple[NameField, ...], Integers]]:
    """Yield fields of names, and the number of the value of each file; the simplest first.

    Parts of dates are not among them, but noted: days of a few files each, and combinations, would
    be fine enough to explain everything.
    """
    for kind in ("tokens", "words"):
        fields = list_fields(names, kind, _LEAST)
        are_dates = [dates.has(field) for field in fields]
        dated += [field for field, is_date in zip(fields, are_dates, strict=True) if is_date]
        fields = [field for field, is_date in zip(fields, are_dates, strict=True) if not is_date]
        for field in fields:
            yield (field,), field.numbers
        if len(fields) < 2:
            continue
        fields = fields[:_MOST_COMBINED]
        fields.sort(key=lambda field: field.place)
        for size in (2, 3):
            yield from sorted(_combine(fields, size), key=lambda split: int(split[1].max()))


def _combine(
    fields: Sequence[NameField], size: int
) -> Iterator[tuple[tuple[NameField, ...], Integers]]:
    for some in combinations(fields, size):
        numbers = some[0].numbers
        for field in some[1:]:
            numbers = numbers * field.count + field.numbers
        unique, numbers, counts = np.unique(numbers, return_inverse=True, return_counts=True)
        # One that is no finer than one of its fields says what that says.
        finest = max(field.count for field in some)
        if finest < len(unique) <= _MOST_STRANDS and counts.min() >= _LEAST:
            yield some, numbers.astype(np.int64)


class _Files:
    """What is known of files in order, as numbers."""

    def __init__(self, codes: Sequence[Hashable], axes: Sequence[AxisFacts | None]) -> None:
        numbers: dict[Hashable, int] = {}
        self.codes = np.array([numbers.setdefault(code, len(numbers)) for code in codes], np.int64)
        self.axes = axes
        placed = [axis is not None and axis.low is not None for axis in axes]
        self.placed = np.flatnonzero(placed)
        some = [axis for axis in axes if axis is not None and axis.low is not None]
        # Ends are integers of any size, or fractions: their ranks are compared instead.
        ends = sorted({end for axis in some for end in (axis.low, axis.high) if end is not None})
        rank = {end: number for number, end in enumerate(ends)}
        self.low = np.array([rank[axis.low] for axis in some if axis.low is not None], np.int64)
        self.high = np.array([rank[axis.high] for axis in some if axis.high is not None], np.int64)
        self.nends = len(ends) + 1

    def are_alike(self, values: Integers) -> bool:
        """Tell whether the files of each value are alike, or take no turns any more."""
        order = np.argsort(values, kind="stable")
        value, code = values[order], self.codes[order]
        totals = np.bincount(values)
        pairs, counts = np.unique(value * (self.codes.max() + 1) + code, return_counts=True)
        owners = pairs // (self.codes.max() + 1)
        most = np.zeros_like(totals)
        np.maximum.at(most, owners, counts)
        begins = np.append(True, (value[1:] != value[:-1]) | (code[1:] != code[:-1]))
        runs = np.bincount(value[begins], minlength=len(totals))
        take_turns = (np.bincount(owners) > 1) & _turn(runs, totals)
        return not bool((take_turns & (most * 100 < _PURE * totals)).any())

    def are_apart(self, values: Integers) -> bool:
        """Tell whether files of one value do not overlap."""
        some = values[self.placed]
        order = np.argsort(some, kind="stable")
        # Each value has ends of its own, beyond all of the one before.
        low, high = ((ends + some * self.nends)[order] for ends in (self.low, self.high))
        overlaps = int((low[1:] <= np.maximum.accumulate(high)[:-1]).sum())
        return overlaps * 100 <= (100 - _PURE) * len(values)

    def are_even(self, values: Integers) -> bool:
        """Tell whether the files of each value begin in even steps, but for a few of new ones."""
        order = np.argsort(values, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(values[order])) + 1)
        groups_to_judge = [group for group in groups if len(group) > _FEWEST_STEPS]
        nknown = sum(map(len, groups_to_judge))
        if len(groups_to_judge) < 2 or (len(values) - nknown) * RARE > len(values):
            return False
        return all(_is_even([self.axes[k] for k in group]) for group in groups_to_judge)


def _is_even(axes: Sequence[AxisFacts | None]) -> bool:
    """Tell whether four of five files begin as long after the one before, of at least five."""
    lows = [(axis.low, axis.calendar) for axis in axes if axis is not None and axis.low is not None]
    steps = Counter(
        round_step(low, high, is_time=calendar is not None)
        for (low, calendar), (high, _) in pairwise(lows)
    )
    step, count = steps.most_common(1)[0] if len(lows) == len(axes) and steps else (None, 0)
    return bool(step) and count >= _FEWEST_STEPS and 5 * count >= 4 * steps.total()


def _turn(runs: Integers, totals: Integers) -> NDArray[np.bool_]:
    return (runs * _TURNS >= totals) & (totals >= 2 * _LEAST)


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
