"""Coordinates as users give them (numbers, dates, texts) in the units of a stored coordinate."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from fractions import Fraction
from typing import Any

import numpy as np

from virtualzarr.combine.cf_time import TimeUnit, exact_times, is_datetime_calendar
from virtualzarr.errors import UnsupportedError

_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}


def to_coordinate(value: Any, attributes: Mapping[str, Any]) -> int | float | Fraction:
    """Return a coordinate as a stored number, exactly.

    Parameters
    ----------
    value : number, str, date, datetime or numpy.datetime64
        Times without a zone are in UTC.
    attributes : mapping
        Of the stored coordinate.

    Raises
    ------
    UnsupportedError
        It is a time, and the coordinate is none, or is one of another calendar.

    Examples
    --------
    >>> to_coordinate("2000-01-02", {"units": "hours since 2000-01-01"})
    24
    """
    if isinstance(value, np.generic) and value.dtype.kind != "M":
        value = value.item()
    if isinstance(value, bool) or (isinstance(value, float) and math.isnan(value)):
        raise UnsupportedError(f"{value!r} is no coordinate")
    if isinstance(value, int | float):
        return value
    if not isinstance(value, str | date | np.datetime64):
        raise UnsupportedError(f"{value!r} is no coordinate: give a number, or a time")
    unit = TimeUnit.from_attributes(attributes)
    if unit is None or not is_datetime_calendar(unit.calendar):
        raise UnsupportedError(
            f"{value!r} is a time, and the coordinate is none of a usual calendar: give a number"
        )
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = (value - value.utcoffset()).replace(tzinfo=None)  # type: ignore[operator]
    nanoseconds = np.datetime64(value).astype("M8[ns]").astype(np.int64)
    since_1970 = TimeUnit("nanoseconds", "1970-01-01", unit.calendar)
    numbers = exact_times(np.array([nanoseconds]), since_1970, unit)
    if numbers is None:
        raise UnsupportedError(f"{value} has no exact number in {unit}")
    return int(numbers[0]) if numbers[0].denominator == 1 else numbers[0]


def to_bound(value: Any, attributes: Mapping[str, Any], dtype: np.dtype[Any], side: str) -> Any:
    """Return the least (side "low") or greatest (side "high") stored number within a bound.

    Of floats, it is the nearest one. It has the data type of what is stored, as NumPy compares
    numbers of Python in several ways: only integers that the type does not have are Python's.

    Examples
    --------
    >>> to_bound(1.5, {}, np.dtype("u8"), "low"), to_bound(0.1, {}, np.dtype("f4"), "low")
    (np.uint64(2), np.float32(0.1))
    """
    number = to_coordinate(value, attributes)
    if dtype.kind not in "iu":
        with np.errstate(over="ignore"):
            return dtype.type(float(number)) if dtype.kind == "f" else float(number)
    limits = np.iinfo(dtype)
    if isinstance(number, float) and math.isinf(number):
        return dtype.type(limits.max if number > 0 else limits.min)
    rounded = math.ceil(number) if side == "low" else math.floor(number)
    return dtype.type(rounded) if limits.min <= rounded <= limits.max else rounded


def as_number(text: str) -> int | float | None:
    """Return the number that a text is; None if it is none."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def to_period(text: str) -> timedelta:
    """Return the time span that a text is, exactly.

    Raises
    ------
    UnsupportedError
        It is none, or none in whole microseconds.

    Examples
    --------
    >>> to_period("90s"), to_period("1.5h")
    (datetime.timedelta(seconds=90), datetime.timedelta(seconds=5400))
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([a-z]+)", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        names = ", ".join(f"5{unit}" for unit in _UNITS)
        raise UnsupportedError(f"{text!r} is no time span, such as {names}")
    microseconds = Fraction(match[1]) * _UNITS[match[2]] * 10**6
    if microseconds.denominator != 1 or microseconds > timedelta.max // timedelta(microseconds=1):
        raise UnsupportedError(f"{text!r} is no time span in whole microseconds")
    return timedelta(microseconds=int(microseconds))


def to_time_span(value: timedelta | str) -> timedelta:
    """Return a time span, which may be a text such as "30d".

    Raises
    ------
    TypeError
    UnsupportedError
        It is a text of no time span.
    """
    if isinstance(value, str):
        return to_period(value)
    if not isinstance(value, timedelta):
        raise TypeError(f'a time span is a timedelta or a text such as "30d", not {value!r}')
    return value


def to_step(value: Any, attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> int | float:
    """Return a distance of coordinates as a stored number, exactly.

    Parameters
    ----------
    value : number, timedelta, numpy.timedelta64 or str
        Texts are those of the command line, such as "6" or "1h".
    attributes : mapping
        Of the stored coordinate.
    dtype : numpy.dtype
        Of the stored coordinate.

    Raises
    ------
    UnsupportedError
        It is none in the unit of the coordinate, or not positive.

    Examples
    --------
    >>> to_step(timedelta(days=1), {"units": "hours since 2000-01-01"}, np.dtype("i8"))
    24
    >>> to_step("1h", {"units": "minutes since 2000-01-01"}, np.dtype("i8"))
    60
    """
    if isinstance(value, str):
        plain = as_number(value)
        return to_step(to_period(value) if plain is None else plain, attributes, dtype)
    number: Any = value
    if isinstance(value, np.timedelta64):
        value = timedelta(microseconds=int(value.astype("m8[us]").astype(np.int64)))
    if isinstance(value, timedelta):
        unit = TimeUnit.from_attributes(attributes)
        if unit is None:
            raise UnsupportedError("the step is a time, and the coordinate has no unit of time")
        microseconds = (value.days * 86_400 + value.seconds) * 10**6 + value.microseconds
        number = Fraction(microseconds * 1000, unit.length)
    elif isinstance(value, np.generic):
        number = value.item()
    if (
        isinstance(number, bool)
        or not isinstance(number, int | float | Fraction)
        or not 0 < number < math.inf
    ):
        raise UnsupportedError(f"step is a positive number, or a time span, not {value!r}")
    if dtype.kind in "iu" and Fraction(number).denominator != 1:
        raise UnsupportedError(f"step is {number}, and coordinates are whole numbers")
    return int(number) if Fraction(number).denominator == 1 else float(number)
