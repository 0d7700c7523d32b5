"""Values of a coordinate along its axis: extent, order and steps, exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.combine.cf_time import TimeUnit
from virtualzarr.combine.value_checks import view_unsigned

MIN_STEPS = 20
"""No step is claimed of fewer differences than these."""

MIN_SHARE = Fraction(4, 5)
"""Nor one that fewer of the differences are."""

_MAX_DIFFERENT_STEPS = 64
# Times that are floats are rounded to this many nanoseconds in steps, and only there.
_ROUNDED = 10**6
_EXACT_FLOAT = 2**52


def axis_facts(values: NDArray[Any], array: Array) -> dict[str, Any]:
    """Return extent, order and steps of a coordinate, as JSON.

    Returns
    -------
    dict
        ``n`` values, ``missing`` and ``repeated`` among them, ``order`` (1, -1, or 0 if it is
        neither), ``digest``; if they can be held against those of other files also ``low`` and
        ``high``, fractions as text, in nanoseconds of the calendar for times; ``steps``, pairs of
        a difference and how often there is it, or None if there are too many.
    """
    values = view_unsigned(values, array).reshape(-1)
    valid = values[~find_missing(values, array)]
    facts: dict[str, Any] = {
        "n": len(values),
        "missing": len(values) - len(valid),
        "repeated": len(valid) - len(np.unique(valid)),
        "order": _find_order(valid),
        "digest": blake2b(np.ascontiguousarray(values).tobytes(), digest_size=16).hexdigest(),
    }
    attributes = array.metadata.attributes
    unit = TimeUnit.from_attributes(attributes)
    packed = "scale_factor" in attributes or "add_offset" in attributes
    countable = values.dtype.kind in "iu" or (values.dtype.kind == "f" and np.isfinite(valid).all())
    if not len(valid) or packed or not countable or (unit is not None and unit.epoch is None):
        return facts
    ends = [_position(value, unit) for value in (valid.min().item(), valid.max().item())]
    facts |= {"low": str(ends[0]), "high": str(ends[1]), "steps": _count_steps(valid, unit)}
    facts["calendar"] = None if unit is None else unit.calendar
    return facts


def find_missing(values: NDArray[Any], array: Array) -> NDArray[np.bool_]:
    """Return which values are missing: NaN, or what the attributes say."""
    missing = np.zeros(values.shape, bool)
    if values.dtype.kind == "f":
        missing |= np.isnan(values)
    if values.dtype.kind in "iuf":
        for name in ("_FillValue", "missing_value"):
            mask = array.metadata.attributes.get(name)
            if isinstance(mask, int | float):
                missing |= values == mask
    return missing


def _find_order(values: NDArray[Any]) -> int:
    before, after = values[:-1], values[1:]
    if (after >= before).all():
        return 1
    return -1 if (after <= before).all() else 0


def _position(value: float, unit: TimeUnit | None) -> Fraction:
    if unit is None:
        return Fraction(value)
    assert unit.epoch is not None
    return Fraction(value) * unit.length + unit.epoch


def _count_steps(values: NDArray[Any], unit: TimeUnit | None) -> list[list[int]] | None:
    """Return differences of neighbours that are not zero, and how many there are of each."""
    length = 1 if unit is None else unit.length
    if values.dtype.kind == "f":
        scaled = values.astype(np.float64) * (length / _ROUNDED)
        if unit is None or np.abs(scaled).max() > _EXACT_FLOAT:
            return None
        numbers, length = np.rint(scaled).astype(np.int64), _ROUNDED
    elif np.abs(values.astype(np.float64)).max() > _EXACT_FLOAT:
        return None
    else:
        numbers = values.astype(np.int64)
    steps, counts = np.unique(np.abs(np.diff(numbers)), return_counts=True)
    if len(steps) > _MAX_DIFFERENT_STEPS:
        return None
    pairs = zip(steps.tolist(), counts.tolist(), strict=True)
    return [[step * length, count] for step, count in pairs if step]


def round_step(low: Fraction, high: Fraction, *, is_time: bool) -> int | None:
    """Return a difference as steps have it, None if it is no integer.

    Examples
    --------
    >>> round_step(Fraction(1), Fraction(4), is_time=False)
    3
    """
    difference = high - low
    if difference.denominator == 1:
        return int(difference)
    # Only times that are floats are no integers.
    return round(difference / _ROUNDED) * _ROUNDED if is_time else None


def find_step(counts: Counter[int]) -> int | None:
    """Return the step of most differences, None if no step can be claimed.

    Examples
    --------
    >>> find_step(Counter({3600: 30, 7200: 1})), find_step(Counter({31: 7, 30: 4, 28: 1}))
    (3600, None)
    """
    total = counts.total()
    if total < MIN_STEPS:
        return None
    step, count = counts.most_common(1)[0]
    return step if count >= MIN_SHARE * total else None


def count_months(dates: Iterable[Any]) -> list[int] | None:
    """Return numbers of months, None if times are not all at the same moment of one.

    Examples
    --------
    >>> from datetime import datetime
    >>> count_months([datetime(2000, 12, 1), datetime(2001, 2, 1)])
    [24011, 24013]
    """
    dates = list(dates)
    if len({(date.day, date.time()) for date in dates}) != 1:
        return None
    return [12 * date.year + date.month - 1 for date in dates]
