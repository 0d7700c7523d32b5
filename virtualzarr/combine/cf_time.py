"""CF time units: calendars, dates, and exact conversion of one unit to another."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

DAY_NANOSECONDS = 86_400 * 10**9
"""Nanoseconds of a day, which is the length of time everything here is counted in."""

_UNITS = {
    "days": (DAY_NANOSECONDS, "day d"),
    "hours": (DAY_NANOSECONDS // 24, "hour hr hrs h"),
    "minutes": (DAY_NANOSECONDS // 1440, "minute min mins"),
    "seconds": (10**9, "second sec secs s"),
    "milliseconds": (10**6, "millisecond millisec millisecs msec msecs ms"),
    "microseconds": (10**3, "microsecond microsec microsecs"),
    "nanoseconds": (1, "nanosecond nanosec nanosecs ns"),
}
_NAMES = {word: name for name, (_, words) in _UNITS.items() for word in (name, *words.split())}
UNIT_NANOSECONDS = {name: length for name, (length, _) in _UNITS.items()}
"""Nanoseconds of each unit, the longest first. Months and years have no fixed length."""

_CALENDARS = {"gregorian": "standard", "365_day": "noleap", "366_day": "all_leap"}
_SUPPORTED_CALENDARS = (
    "standard",
    "proleptic_gregorian",
    "julian",
    "noleap",
    "all_leap",
    "360_day",
)
_DATE = re.compile(
    r"(?P<date>[+-]?\d+-\d{1,2}-\d{1,2})"
    r"(?:[T ]\s*(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2}(?:\.\d*)?))?)?)?"
    r"\s*(?P<zone>Z|UTC|GMT|[+-]\d{1,2}(?::?\d{2})?)?"
)
_MONTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@dataclass(frozen=True)
class TimeUnit:
    """Times as numbers of a unit since a date.

    Attributes
    ----------
    name : str
        The unit, as in `UNIT_NANOSECONDS`.
    since : str
        The date as it was written.
    calendar : str
    """

    name: str
    since: str
    calendar: str

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> TimeUnit | None:
        """Return what attributes say, or None if they are of no time, or of one not known here.

        Source: CF conventions 1.11, section 4.4.

        Examples
        --------
        >>> TimeUnit.from_attributes({"units": "hours since 2000-01-01 06:00"})
        TimeUnit(name='hours', since='2000-01-01 06:00', calendar='standard')
        """
        units, calendar = attributes.get("units"), attributes.get("calendar", "standard")
        if not isinstance(units, str) or not isinstance(calendar, str):
            return None
        return cls._parse(units, calendar)

    @classmethod
    @lru_cache(maxsize=256)  # files of one series say the same, and their dates are parsed once
    def _parse(cls, units: str, calendar: str) -> TimeUnit | None:
        word, since, date = units.strip().partition(" since ")
        name, calendar = _NAMES.get(word.strip().lower()), calendar.strip().lower()
        # CF has two names for each of these calendars (1.11, section 4.4.1).
        calendar = _CALENDARS.get(calendar, calendar)
        if not since or name is None or calendar not in _SUPPORTED_CALENDARS:
            return None
        unit = cls(name, date.strip(), calendar)
        return None if _DATE.fullmatch(unit.since) is None or unit._day is None else unit

    @property
    def length(self) -> int:
        """Nanoseconds of the unit."""
        return UNIT_NANOSECONDS[self.name]

    @cached_property
    def _day(self) -> int | None:
        """Number of the date's day in its calendar; None for a day that does not exist."""
        match = _DATE.fullmatch(self.since)
        assert match is not None
        # A leading sign belongs to the year (CF allows years before 1), a later minus separates.
        sign = -1 if match["date"].startswith("-") else 1
        year, month, day = map(int, match["date"].lstrip("+-").split("-"))
        return day_number(sign * year, month, day, self.calendar)

    @cached_property
    def epoch(self) -> int | None:
        """Nanoseconds from the calendar's own beginning to the date; None if that is no integer."""
        match, day = _DATE.fullmatch(self.since), self._day
        assert match is not None
        assert day is not None
        seconds = Fraction(match["second"] or "0")
        seconds += 3600 * int(match["hour"] or 0) + 60 * int(match["minute"] or 0)
        # Fractions, not floats: 0.1 s since a date has no exact float, and integers of nanoseconds
        # are compared with others.
        total = day * DAY_NANOSECONDS + (seconds - _parse_zone(match["zone"])) * 10**9
        return int(total) if total.denominator == 1 else None

    def same_as(self, other: TimeUnit) -> bool:
        """Whether equal numbers of both are equal times."""
        value, expected = ((unit.name, unit.epoch, unit.calendar) for unit in (self, other))
        return value == expected

    def __str__(self) -> str:
        return f"{self.name} since {self.since}, calendar {self.calendar}"


def _parse_zone(text: str | None) -> int:
    """Return seconds east of Greenwich."""
    if text is None or text[0] not in "+-":
        return 0
    digits = text[1:].replace(":", "")
    hours, minutes = (digits[:-2], digits[-2:]) if len(digits) > 2 else (digits, "0")
    return (-1 if text[0] == "-" else 1) * (3600 * int(hours) + 60 * int(minutes))


def day_number(year: int, month: int, day: int, calendar: str) -> int | None:
    """Return the number of a day, counted so that 1582-10-15 is one for both Gregorian calendars.

    None for a day that does not exist; before the year 1 that depends on whom one asks.

    Examples
    --------
    >>> [day_number(1582, 10, day, "standard") for day in (4, 5, 15)]
    [578040, None, 578041]
    >>> day_number(2000, 2, 30, "360_day"), day_number(2000, 2, 30, "noleap")
    (720059, None)
    """
    if not 1 <= month <= 12 or not 1 <= day <= _days_in_month(year, month, calendar):
        return None
    # Whether there is a year 0 differs between cftime, UDUNITS and CF: no answer would be exact.
    if year < 1 and calendar in ("standard", "julian"):
        return None
    if calendar == "360_day":
        return 360 * year + 30 * (month - 1) + day - 1
    if calendar in ("noleap", "all_leap"):
        before = sum(_days_in_month(year, m, calendar) for m in range(1, month))
        return (365 if calendar == "noleap" else 366) * year + before + day - 1
    julian = calendar == "julian"
    if calendar == "standard":
        # The day after 1582-10-04 was 1582-10-15: the Gregorian reform left these days out.
        if (1582, 10, 4) < (year, month, day) < (1582, 10, 15):
            return None
        julian = (year, month, day) < (1582, 10, 15)
    # Years begin in March here: the leap day comes last.
    shifted = year - (month <= 2)
    days = 365 * shifted + shifted // 4 + (153 * ((month - 3) % 12) + 2) // 5 + day - 1
    # The two counts meet at the reform: on 1582-10-15 the Julian calendar was 10 days behind, 12
    # leap days less the 2 of this offset.
    return days - 2 if julian else days - shifted // 100 + shifted // 400


def _days_in_month(year: int, month: int, calendar: str) -> int:
    """Return how many days a month has."""
    if calendar == "360_day":
        return 30
    if month != 2 or calendar == "noleap":
        return _MONTHS[month - 1]
    julian = calendar == "julian" or (calendar == "standard" and year <= 1582)
    leap = year % 4 == 0 and (julian or year % 100 != 0 or year % 400 == 0)
    return 29 if leap or calendar == "all_leap" else 28


def common_unit(
    units: Sequence[TimeUnit], *, finest: bool, steps: Collection[int] = ()
) -> TimeUnit | str:
    """Return a unit in which times of all these units are integers, or why there is none.

    Parameters
    ----------
    units : sequence of TimeUnit
    finest : bool
        Whether that must be nanoseconds since 1970, as for numbers that are no integers.
    steps : collection of int
        Nanoseconds that must be integers, too.
    """
    # Two calendars can be one only where their days are: from the reform on. The codec that
    # converts checks each number for that (`least`).
    calendars = dict.fromkeys(unit.calendar for unit in units)
    if len(calendars) > 1 and set(calendars) != {"standard", "proleptic_gregorian"}:
        return f"the calendars {' and '.join(calendars)} have different days"
    calendar = next(iter(calendars)) if len(calendars) == 1 else "standard"
    epochs = [unit.epoch for unit in units if unit.epoch is not None]
    if len(epochs) < len(units):
        return "the dates have fractions of nanoseconds"
    if finest:
        if not is_datetime_calendar(calendar):
            return f"times of the calendar {calendar} are not integers, and would be rounded"
        return TimeUnit("nanoseconds", "1970-01-01", calendar)
    steps_in_all = [
        *steps,
        *(unit.length for unit in units),
        *(epoch - epochs[0] for epoch in epochs),
    ]
    name = next(
        n
        for n, length in UNIT_NANOSECONDS.items()
        if not any(step % length for step in steps_in_all)
    )
    is_coarser = any(unit.length > 1 for unit in units)
    if name == "nanoseconds" and is_coarser and not is_datetime_calendar(calendar):
        # Readers of these calendars, cftime among them, count no finer than microseconds.
        return f"they have parts of microseconds, which dates of the calendar {calendar} have not"
    return TimeUnit(name, units[0].since, calendar)


def is_datetime_calendar(calendar: str) -> bool:
    """Tell whether a calendar is that of datetimes, which xarray counts in nanoseconds."""
    return calendar in ("standard", "proleptic_gregorian")


def exact_steps(values: NDArray[Any], unit: TimeUnit) -> set[int] | None:
    """Return times in nanoseconds since their unit's date; None if any is no integer.

    Examples
    --------
    >>> sorted(exact_steps(np.array([0.5, 1]), TimeUnit("microseconds", "2000-01-01", "noleap")))
    [500, 1000]
    """
    if not np.isfinite(values).all():
        return None
    steps = {Fraction(value) * unit.length for value in np.unique(values).tolist()}
    return None if any(s.denominator != 1 for s in steps) else {int(step) for step in steps}


def exact_times(values: NDArray[Any], unit: TimeUnit, target: TimeUnit) -> list[Fraction] | None:
    """Return times as numbers of another unit, exactly; None where calendars have other days.

    Parameters
    ----------
    values : array
        Finite numbers of `unit`.

    Examples
    --------
    >>> hours, days = (TimeUnit(name, "2000-01-01", "noleap") for name in ("hours", "days"))
    >>> exact_times(np.array([12, 36]), hours, days)
    [Fraction(1, 2), Fraction(3, 2)]
    """
    alike = unit.calendar == target.calendar
    if not (alike or {unit.calendar, target.calendar} == {"standard", "proleptic_gregorian"}):
        return None
    if unit.epoch is None or target.epoch is None:
        return None
    moments = [Fraction(value) * unit.length + unit.epoch for value in values.tolist()]
    # Before the reform, equal dates of the two calendars are different days.
    if not alike and any(moment < _GREGORIAN_REFORM * DAY_NANOSECONDS for moment in moments):
        return None
    return [(moment - target.epoch) / target.length for moment in moments]


def conversion(unit: TimeUnit, target: TimeUnit) -> dict[str, int]:
    """Return `factor` and `shift` by which numbers of a unit become those of another.

    Where the calendars differ, also `least`: before that number they have different days.
    """
    assert unit.epoch is not None
    assert target.epoch is not None
    shift = (unit.epoch - target.epoch) // target.length
    coefficients = {"factor": unit.length // target.length, "shift": shift}
    if unit.calendar != target.calendar:
        coefficients["least"] = -(
            (target.epoch - _GREGORIAN_REFORM * DAY_NANOSECONDS) // target.length
        )
    return coefficients


_GREGORIAN_REFORM = day_number(1582, 10, 15, "standard") or 0


def as_datetimes(values: NDArray[Any], attributes: Mapping[str, Any]) -> list[datetime] | None:
    """Return times as dates in UTC, to the microsecond; None where attributes say no such dates.

    Parameters
    ----------
    values : array
        Finite numbers, as they are stored.

    Examples
    --------
    >>> as_datetimes(np.array([36.5]), {"units": "hours since 2000-01-01 06:00 +06:00"})
    [datetime.datetime(2000, 1, 2, 12, 30, tzinfo=datetime.timezone.utc)]
    """
    unit = TimeUnit.from_attributes(attributes)
    if unit is None or not is_datetime_calendar(unit.calendar):
        return None
    moments = exact_times(values, unit, _UNIX)
    if moments is None:
        return None
    try:
        return [_UNIX_EPOCH + timedelta(microseconds=round(moment)) for moment in moments]
    except OverflowError:
        return None  # Before the year 1, or after 9999.


_UNIX = TimeUnit("microseconds", "1970-01-01", "proleptic_gregorian")
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
