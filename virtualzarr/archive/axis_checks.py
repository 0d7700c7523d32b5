"""Order of files by their coordinates, and what is odd along the axis."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Any

from virtualzarr.archive.anomalies import Anomaly, Kind
from virtualzarr.archive.axis import count_months, find_step, round_step
from virtualzarr.archive.facts import FileFacts
from virtualzarr.combine.cf_time import DAY_NANOSECONDS, day_number, is_datetime_calendar
from virtualzarr.ingest.scan_files import natural_key

Axes = Sequence[Mapping[str, Any] | None]
"""What `axis_facts` says of each file; None where a file has no such coordinate."""


def choose_dim(facts: Sequence[FileFacts]) -> str | None:
    """Return the dimension whose coordinates differ between files; times before others.

    Examples
    --------
    >>> choose_dim([]) is None
    True
    """
    digests: dict[str, set[str]] = {}
    times: set[str] = set()
    for one in facts:
        for path, axis in one.axes.items():
            digests.setdefault(path, set()).add(axis["digest"])
            if axis.get("calendar") is not None:
                times.add(path)
    differing = [path for path, some in digests.items() if len(some) > 1 or len(facts) == 1]
    # An axis before a number alone, and the one with the most different values.
    dims = {path for one in facts for path in one.properties
            if one.properties[path].get("dimensions")}  # fmt: skip
    differing.sort(
        key=lambda path: (path not in times, path not in dims, -len(digests[path]), path)
    )
    return differing[0].rpartition("/")[2] if differing else None


def axis_of(facts: FileFacts, dim: str | None) -> tuple[str, Mapping[str, Any] | None]:
    """Return path and facts of the coordinate of a dimension: the first at the least depth."""
    paths = [path for path in facts.axes if path.rpartition("/")[2] == dim]
    if not paths:
        return "", None
    path = min(paths, key=lambda each: (each.count("/"), each))
    return path, facts.axes[path]


def sort_files(axes: Axes) -> list[int]:
    """Return the numbers of files in the order of coordinates.

    Files that have none, or in another calendar than most, come after the one before them by name.
    """
    calendars = Counter(axis["calendar"] for axis in axes if axis is not None and "low" in axis)
    if not calendars:
        return list(range(len(axes)))
    calendar = calendars.most_common(1)[0][0]
    keys: list[tuple[Fraction, Fraction]] = []
    before = None
    placed: list[tuple[tuple[Fraction, Fraction] | None, int, int]] = []
    for number, axis in enumerate(axes):
        is_placed = axis is not None and "low" in axis and axis["calendar"] == calendar
        if axis is not None and is_placed:
            before = Fraction(axis["low"]), Fraction(axis["high"])
            keys.append(before)
        placed.append((before, 0 if is_placed else 1, number))
    first = min(keys)
    placed.sort(key=lambda entry: (entry[0] or first, entry[1] if entry[0] else -1, entry[2]))
    return [number for _, _, number in placed]


def check_axis(names: Sequence[str], axes: Axes, path: str) -> list[Anomaly]:
    """Return what is odd of a coordinate, within files and between them.

    Parameters
    ----------
    names, axes : sequence
        Files in the order of their coordinates.
    path : str
        Of the coordinate.
    """
    anomalies = []
    for name, axis in zip(names, axes, strict=True):
        if axis is None:
            anomalies.append(Anomaly("no coordinate", (name,), path))
            continue
        odd: list[tuple[Kind, str]] = []
        if not axis["n"]:
            odd.append(("no rows", ""))
        if axis["missing"]:
            odd.append(("missing value", f"{axis['missing']} of {axis['n']} values"))
        if axis["repeated"]:
            odd.append(("value repeated", f"{axis['repeated']} of {axis['n']} values"))
        if not axis["order"]:
            odd.append(("not monotonic", ""))
        anomalies += [Anomaly(kind, (name,), path, detail) for kind, detail in odd]
    chosen = [(name, axis) for name, axis in zip(names, axes, strict=True)
              if axis is not None and "low" in axis]  # fmt: skip
    return anomalies + _check_neighbours(chosen, path)


def _check_neighbours(chosen: Sequence[tuple[str, Mapping[str, Any]]], path: str) -> list[Anomaly]:
    """Return coordinates that are twice there, overlaps, and steps that are missing."""
    anomalies: list[Anomaly] = []
    same: dict[tuple[Any, ...], list[str]] = {}
    for name, axis in chosen:
        same.setdefault((axis["low"], axis["high"], axis["n"], axis["digest"]), []).append(name)
    copies = {name for names in same.values() for name in names[1:]}
    anomalies += [Anomaly("same coordinates twice", tuple(names), path)
                  for names in same.values() if len(names) > 1]  # fmt: skip
    single = [(name, axis) for name, axis in chosen if name not in copies]
    steps = _count_all_steps(single)
    furthest = 0
    for k in range(1, len(single)):
        (before, a), (name, b) = single[furthest], single[k]
        if a["calendar"] == b["calendar"] and Fraction(b["low"]) <= Fraction(a["high"]):
            anomalies.append(Anomaly("overlap", (before, name), path))
        if Fraction(b["high"]) > Fraction(a["high"]):
            furthest = k
    step = find_step(steps)
    if step is not None:
        return anomalies + _find_gaps(single, path, step)
    return anomalies + _find_month_gaps(single, path)


def _count_all_steps(single: Sequence[tuple[str, Mapping[str, Any]]]) -> Counter[int]:
    """Return how many differences there are of each length, within files and between them."""
    steps: Counter[int] = Counter()
    for _, axis in single:
        for step, count in axis["steps"] or ():
            steps[step] += count
    for (_, a), (_, b) in pairwise(single):
        step = _step_between(a, b)
        if step:
            steps[step] += 1
    return steps


def _step_between(a: Mapping[str, Any], b: Mapping[str, Any]) -> int | None:
    """Return how far a file begins after another ends; None if that cannot be said, or overlaps."""
    if a["calendar"] != b["calendar"] or a["steps"] is None or b["steps"] is None:
        return None
    step = round_step(Fraction(a["high"]), Fraction(b["low"]), is_time=a["calendar"] is not None)
    return step if step is not None and step > 0 else None


def _find_gaps(
    single: Sequence[tuple[str, Mapping[str, Any]]], path: str, step: int
) -> list[Anomaly]:
    """Return steps that are missing: whole ones only, as others are a change of the step."""
    gaps = []
    for name, axis in single:
        for length, count in axis["steps"] or ():
            if length > step and length % step == 0:
                number = (length // step - 1) * count
                gaps.append(Anomaly("step missing", (name,), path, f"{number:,} within the file"))
    for (before, a), (name, b) in pairwise(single):
        length = _step_between(a, b)
        if length and length > step and length % step == 0:
            number = length // step - 1
            gaps.append(Anomaly("step missing", (before, name), path, f"{number:,} between files"))
    return gaps


def _find_month_gaps(single: Sequence[tuple[str, Mapping[str, Any]]], path: str) -> list[Anomaly]:
    """Return months that are missing, where all files are of one moment of a month each."""
    if not single or any(axis["n"] != 1 or not is_datetime_calendar(str(axis["calendar"]))
                         for _, axis in single):  # fmt: skip
        return []
    dates = [_as_date(Fraction(axis["low"])) for _, axis in single]
    months = None if None in dates else count_months(dates)
    if months is None:
        return []
    lengths = [b - a for a, b in pairwise(months)]
    step = find_step(Counter(lengths))
    gaps = []
    for k, length in enumerate(lengths):
        if step and length > step and length % step == 0:
            files = single[k][0], single[k + 1][0]
            gaps.append(
                Anomaly("step missing", files, path, f"{length // step - 1:,} between files")
            )
    return gaps


_UNIX_DAY = day_number(1970, 1, 1, "proleptic_gregorian") or 0


def _as_date(moment: Fraction) -> datetime | None:
    microseconds = (moment - _UNIX_DAY * DAY_NANOSECONDS) / 1000
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=round(microseconds))
    except OverflowError:
        return None  # Before the year 1, or after 9999.


def check_names(ordered: Sequence[str], path: str) -> list[Anomaly]:
    """Return files whose names come in another order than their coordinates.

    Of paths and names without folders those count that are more in order. Nothing is claimed where
    fewer than four of five are: such names say nothing of it.

    Examples
    --------
    >>> files = [f"a{k}" for k in range(9)]
    >>> [each.files for each in check_names(files[:3] + files[4:] + files[3:4], "time")]
    [('a3',)]
    """
    if not all(re.search("[0-9]", os.path.basename(name)) for name in ordered):
        return []
    inside: set[int] = set()
    for shorten in (str, os.path.basename):
        keys = [natural_key(shorten(name)) for name in ordered]
        inside = max(inside, _longest_rise(keys), key=len)
    if len(inside) * 5 < len(ordered) * 4:
        return []
    odd = [name for k, name in enumerate(ordered) if k not in inside]
    return [Anomaly("order unlike names", (name,), path) for name in odd]


def _longest_rise(numbers: Sequence[Any]) -> set[int]:
    """Return the indices of a longest part of a sequence that rises."""
    ends: list[Any] = []
    indices: list[int] = []
    previous: list[int] = []
    for k, number in enumerate(numbers):
        place = bisect_right(ends, number)
        previous.append(indices[place - 1] if place else -1)
        if place == len(ends):
            ends.append(number)
            indices.append(k)
        else:
            ends[place], indices[place] = number, k
    rise = set()
    k = indices[-1] if indices else -1
    while k >= 0:
        rise.add(k)
        k = previous[k]
    return rise
