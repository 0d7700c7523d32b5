"""Moments: coordinates of times as dates, and dates that names of files say."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction

from virtualzarr.archive.axis import Number
from virtualzarr.combine.cf_time import DAY_NANOSECONDS, day_number, is_datetime_calendar

_UNIX_DAY = day_number(1970, 1, 1, "proleptic_gregorian") or 0
_YEAR = "(?P<y>(?:18|19|20)[0-9]{2})"
_MONTH = "(?P<m>0[1-9]|1[0-2])"
_DAY = "(?P<d>0[1-9]|[12][0-9]|3[01])"
_TIME = "(?P<H>[01][0-9]|2[0-3])(?:[-_.:]?(?P<M>[0-5][0-9])(?:[-_.:]?(?P<S>[0-5][0-9]))?)?"
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# From the most exact to the least: the first that fits counts.
_PATTERNS = [
    re.compile(f"(?<![0-9]){pattern}")
    for pattern in (
        rf"{_YEAR}(?P<sep>[-_.]?){_MONTH}(?P=sep){_DAY}[-_.T]?{_TIME}(?:[0-9]{{1,3}}|Z)?(?![0-9])",
        rf"{_YEAR}(?P<j>[0-3][0-9]{{2}}){_TIME}[0-9]{{0,3}}(?![0-9])",
        rf"{_YEAR}(?P<sep>[-_.]?){_MONTH}(?P=sep){_DAY}(?![0-9])",
        rf"{_YEAR}(?P<j>[0-3][0-9]{{2}})(?![0-9])",
        rf"{_YEAR}[-_.]?{_MONTH}(?![0-9])",
        rf"{_DAY}(?P<sep>[-_.]){_MONTH}(?P=sep){_YEAR}(?![0-9])",
    )
]


def as_date(moment: Number | None) -> datetime | None:
    """Return a time in nanoseconds of a calendar of dates as a date; None if it is none.

    Examples
    --------
    >>> as_date(719468 * 86_400 * 10**9)
    datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)
    """
    if moment is None:
        return None
    microseconds = (moment - _UNIX_DAY * DAY_NANOSECONDS) / Fraction(1000)
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=round(microseconds))
    except OverflowError:
        return None  # Before the year 1, or after 9999.


def format_position(position: Number | None, calendar: str | None) -> str:
    """Return a coordinate as text: a date where it is one.

    Examples
    --------
    >>> format_position(719468 * 86_400 * 10**9, "standard"), format_position(5, None)
    ('1970-01-01T00:00:00', '5')
    """
    date = as_date(position) if is_datetime_calendar(str(calendar)) else None
    if date is not None:
        return date.isoformat(timespec="seconds").removesuffix("+00:00")
    if calendar is not None and position is not None:
        return f"day {float(position) / DAY_NANOSECONDS:.2f} ({calendar})"
    return (
        "" if position is None else str(position if isinstance(position, int) else float(position))
    )


def find_period(name: str, calendar: str) -> tuple[int, int, int] | None:
    """Return the pattern, the beginning and the end of the period that a file's name says.

    Examples
    --------
    >>> find_period("air_19700102.nc", "standard")[1:]
    (62162121600000000000, 62162208000000000000)
    """
    base = os.path.basename(name)
    for number, pattern in enumerate(_PATTERNS):
        match = pattern.search(base)
        if match is None:
            continue
        period = _read_period(match, calendar)
        if period is not None:
            return (number, *period)
    return None


def _read_period(match: re.Match[str], calendar: str) -> tuple[int, int] | None:
    fields = {name: int(value) for name, value in match.groupdict().items()
            if value is not None and value.isdigit()}  # fmt: skip
    year, month = fields["y"], fields.get("m", 1)
    day = day_number(year, month, fields.get("d", 1), calendar)
    if day is None:
        return None
    if "j" in fields:
        day += fields["j"] - 1
        if fields["j"] < 1 or fields["j"] > 366:
            return None
    low = day * DAY_NANOSECONDS
    low += (fields.get("H", 0) * 3600 + fields.get("M", 0) * 60 + fields.get("S", 0)) * 10**9
    for name, seconds in (("S", 1), ("M", 60), ("H", 3600), ("d", 86_400), ("j", 86_400)):
        if name in fields:
            return low, low + seconds * 10**9
    following = day_number(year + month // 12, month % 12 + 1, 1, calendar)
    return None if following is None else (low, following * DAY_NANOSECONDS)
