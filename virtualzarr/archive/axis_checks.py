"""Checks of a coordinate: what is odd within files, between them, and against their names."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any

from virtualzarr.archive.anomalies import Anomaly, Kind
from virtualzarr.archive.axis import AxisFacts, Number
from virtualzarr.archive.gaps import find_gaps
from virtualzarr.archive.moments import find_period, format_position, list_year_last
from virtualzarr.archive.order import Axes
from virtualzarr.combine.cf_time import is_datetime_calendar
from virtualzarr.ingest.find_files import natural_key


def check_axis(names: Sequence[str], axes: Axes, path: str) -> list[Anomaly]:
    """Return what is odd of a coordinate, within files and between them.

    Parameters
    ----------
    names, axes : sequence
        Files in the order of their coordinates.
    path : str
        Of the coordinate.
    """
    anomalies: list[Anomaly] = []
    for name, axis in zip(names, axes, strict=True):
        if axis is None:
            anomalies.append(Anomaly("no coordinate", (name,), path))
        elif not axis.n or axis.missing or axis.repeated or not axis.order:
            anomalies += _check_inside(name, axis, path)
    anomalies += _find_reversed(names, axes, path)
    placed = [(name, axis) for name, axis in zip(names, axes, strict=True)
              if axis is not None and axis.is_placed]  # fmt: skip
    again = _find_same(placed)
    anomalies += [Anomaly("replaced", tuple(some), path, "other content of the same coordinates")
                  for some in again]  # fmt: skip
    copies = {name for some in again for name in some[1:]}
    single = [(name, axis) for name, axis in placed if name not in copies]
    return anomalies + _find_overlaps(single, path) + find_gaps(single, path)


def _check_inside(name: str, axis: AxisFacts, path: str) -> list[Anomaly]:
    odd: list[tuple[Kind, str]] = []
    if not axis.n:
        odd.append(("no rows", ""))
    if axis.missing:
        odd.append(("missing value", f"{axis.missing} of {axis.n} values"))
    if axis.repeated:
        odd.append(("value repeated", f"{axis.repeated} of {axis.n} values"))
    if not axis.order:
        odd.append(("not monotonic", ""))
    return [Anomaly(kind, (name,), path, detail) for kind, detail in odd]


def _find_reversed(names: Sequence[str], axes: Axes, path: str) -> list[Anomaly]:
    """Return files whose coordinate falls where that of most rises, or the other way round."""
    # Of one value, or of equal ones, nobody knows.
    orders = {
        name: axis.order
        for name, axis in zip(names, axes, strict=True)
        if axis is not None and axis.order and axis.n - axis.missing - axis.repeated > 1
    }
    counts = Counter(orders.values())
    if len(counts) < 2:
        return []
    common = counts.most_common(1)[0][0]
    odd = tuple(name for name, order in orders.items() if order != common)
    words = "falls, but rises in most" if common > 0 else "rises, but falls in most"
    return [Anomaly("reversed", odd, path, words)]


def _find_same(placed: Sequence[tuple[str, AxisFacts]]) -> list[list[str]]:
    """Return files of the same coordinates: those whose content is the same were left out."""
    same: dict[tuple[Any, ...], list[str]] = {}
    for name, axis in placed:
        same.setdefault((axis.low, axis.high, axis.n, axis.digest), []).append(name)
    return [names for names in same.values() if len(names) > 1]


def _find_overlaps(placed: Sequence[tuple[str, AxisFacts]], path: str) -> list[Anomaly]:
    anomalies = []
    furthest: tuple[str, AxisFacts] | None = None
    for name, axis in placed:
        if furthest is not None:
            before, last = furthest
            assert last.high is not None
            assert axis.low is not None
            assert axis.high is not None
            if last.calendar == axis.calendar and axis.low <= last.high:
                span = (format_position(axis.low, axis.calendar),
                        format_position(min(last.high, axis.high), axis.calendar))  # fmt: skip
                anomalies.append(Anomaly("overlap", (before, name), path, span=span))
            if axis.high <= last.high:
                continue
        furthest = name, axis
    return anomalies


def check_names(names: Sequence[str], axes: Axes, path: str) -> list[Anomaly]:
    """Return files whose names come in another order, or say another date, than their coordinates.

    Of paths, names without folders and dates in names those count that are more in order. Nothing
    is claimed where fewer than four of five are: such names say nothing of it. Nor where dates in
    fewer than four of five names are those of coordinates.

    Examples
    --------
    >>> files = [f"a{k}" for k in range(9)]
    >>> moved = files[:3] + files[4:] + files[3:4]
    >>> [each.files for each in check_names(moved, [None] * 9, "time")]
    [('a3',)]
    """
    contradicted = _find_contradictions(names, axes)
    anomalies = [Anomaly("name contradicts coordinate", (name,), path, f"it is of {date}")
                 for name, date in contradicted.items()]  # fmt: skip
    if not all(re.search("[0-9]", os.path.basename(name)) for name in names):
        return anomalies
    inside: set[int] = set()
    for shorten in (str, os.path.basename):
        keys = [natural_key(shorten(name)) for name in names]
        inside = max(inside, _find_longest_rise(keys), key=len)
        if len(inside) == len(names):
            return anomalies
    dates = _list_dates(names, axes)
    if dates is not None:
        inside = max(inside, _find_longest_rise(dates), key=len)
    for some in list_year_last(names) if len(inside) < len(names) else ():
        read = [(*date[:3], natural_key(date[3])) for date in some]
        inside = max(inside, _find_longest_rise(read), key=len)
    if len(inside) * 5 < len(names) * 4:
        return anomalies
    odd = [name for k, name in enumerate(names) if k not in inside and name not in contradicted]
    return anomalies + [Anomaly("order unlike names", (name,), path) for name in odd]


def _find_contradictions(names: Sequence[str], axes: Axes) -> dict[str, str]:
    """Return files whose names say a date that is not that of their coordinates, and that one."""
    claims: list[tuple[int, bool, str, Number | None, str]] = []
    for name, axis in zip(names, axes, strict=True):
        if axis is None or axis.low is None or axis.high is None:
            continue
        calendar = str(axis.calendar)
        period = find_period(name, calendar) if is_datetime_calendar(calendar) else None
        if period is not None:
            number, low, high = period
            agrees = axis.low < high and low <= axis.high
            claims.append((number, agrees, name, axis.low, calendar))
    if not claims:
        return {}
    common = Counter(number for number, *_ in claims).most_common(1)[0][0]
    some = [each for each in claims if each[0] == common]
    agreeing = sum(agrees for _, agrees, *_ in some)
    if agreeing * 5 < len(names) * 4:
        return {}
    return {name: format_position(low, calendar)
            for _, agrees, name, low, calendar in some if not agrees}  # fmt: skip


def _list_dates(names: Sequence[str], axes: Axes) -> list[int] | None:
    """Return the moments at which the periods begin that names say, if all say one alike."""
    calendars = {str(axis.calendar) for axis in axes if axis is not None}
    if len(calendars) != 1 or not is_datetime_calendar(calendar := calendars.pop()):
        return None
    periods = [find_period(name, calendar) for name in names]
    some = [period for period in periods if period is not None]
    if len(some) < len(names) or len({number for number, *_ in some}) != 1:
        return None
    return [low for _, low, _ in some]


def _find_longest_rise(numbers: Sequence[Any]) -> set[int]:
    """Return the indices of a longest part of a sequence that rises."""
    ends: list[Any] = []
    indices: list[int] = []
    previous: list[int] = []
    for k, number in enumerate(numbers):
        # Mostly it rises, and nothing has to be looked for.
        length = len(ends) if not ends or number >= ends[-1] else bisect_right(ends, number)
        previous.append(indices[length - 1] if length else -1)
        if length == len(ends):
            ends.append(number)
            indices.append(k)
        else:
            ends[length], indices[length] = number, k
    rise = set()
    k = indices[-1] if indices else -1
    while k >= 0:
        rise.add(k)
        k = previous[k]
    return rise
