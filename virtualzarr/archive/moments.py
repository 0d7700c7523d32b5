"""Moments: coordinates of times as dates, and dates that names of files say."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
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

_NUMBER_OF_DAY, _NUMBER_OF_MONTH = "(?P<d>[0-3]?[0-9])", "(?P<m>[01]?[0-9])"
_NAME_OF_MONTH = f"(?P<b>{'|'.join(MONTHS)})[a-z]*"
_ANY_YEAR = "(?P<y>(?:18|19|20)[0-9]{2}|[0-9]{2})(?![0-9])"
_SEPARATOR = "(?P<sep>[-_. ])"
_DIGITS_OF_DAY, _DIGITS_OF_MONTH = "(?P<d>[0-3][0-9])", "(?P<m>[01][0-9])"
# Names in which the year comes last: as text, they are in another order than their dates.
_YEAR_LAST = [
    re.compile(f"(?<![0-9]){pattern}", re.IGNORECASE)
    for pattern in (
        f"{_NUMBER_OF_DAY}[-_. ]?{_NAME_OF_MONTH}[-_. ]?{_ANY_YEAR}",
        f"{_NAME_OF_MONTH}[-_. ]?(?:{_NUMBER_OF_DAY}[-_., ]+)?{_ANY_YEAR}",
        f"{_NUMBER_OF_DAY}{_SEPARATOR}{_NUMBER_OF_MONTH}(?P=sep){_ANY_YEAR}",
        f"{_NUMBER_OF_MONTH}{_SEPARATOR}{_NUMBER_OF_DAY}(?P=sep){_ANY_YEAR}",
        f"{_DIGITS_OF_DAY}{_DIGITS_OF_MONTH}{_ANY_YEAR}",
        f"{_DIGITS_OF_MONTH}{_DIGITS_OF_DAY}{_ANY_YEAR}",
    )
]
_CENTURY_FROM = 69
"""Two digits of a year from this one on are of 1900, as in POSIX."""


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


def list_year_last(names: Sequence[str]) -> Iterator[list[tuple[int, int, int, str]]]:
    """Yield for each way to read dates with the year last what all names say; the rest follows.

    Which of two numbers is the day is not known: whoever asks takes the way that fits.

    Examples
    --------
    >>> [*list_year_last(["a_31Jan2001.nc", "a_01Feb2001.nc"])]
    [[(2001, 1, 31, '.nc'), (2001, 2, 1, '.nc')]]
    """
    texts = [os.path.basename(name) for name in names]
    for pattern in _YEAR_LAST:
        dates = []
        for text in texts:
            match = pattern.search(text)
            if match is None:
                break
            dates.append(_read_year_last(match, text))
        # One date of all says nothing of their order.
        if len(dates) == len(texts) and len({date[:3] for date in dates}) > 1:
            yield dates


def _read_year_last(match: re.Match[str], text: str) -> tuple[int, int, int, str]:
    fields = match.groupdict()
    year = int(fields["y"])
    if year < 100:
        year += 1900 if year >= _CENTURY_FROM else 2000
    name = fields.get("b")
    month = int(fields["m"]) if name is None else MONTHS.index(name.lower()) + 1
    return year, month, int(fields["d"] or 1), text[match.end() :]
