"""Strands: files of several satellites, tiles or products that take turns in one archive."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import groupby

from virtualzarr.archive.axis import AxisFacts

_MOST = 64
"""Strands: a field with more values is a number or a date."""

_LEAST = 3
_PURE = 99
_TURNS = 4
"""Files take turns if no more than so many of one kind follow each other, on average."""

_TOKEN = re.compile("[0-9]+|[A-Za-z]+")


def find_strands(
    names: Sequence[str], codes: Sequence[Hashable], axes: Sequence[AxisFacts | None]
) -> list[str]:
    """Return for each file which strand it is of; all are of one, which is "", if none take turns.

    Files are split by the field of their names with the fewest values that explains why they take
    turns: 99 of 100 files of one value are alike, or do not overlap.

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
        return one
    for values in _list_fields(names):
        if are_different and not _explains(values, codes):
            continue
        if are_overlapping and not _separates(values, axes):
            continue
        return values
    return one


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
