"""Parts of dates in names: fields that are the year, the month, the day or the hour of files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta

import numpy as np

from virtualzarr.archive.axis import AxisFacts
from virtualzarr.archive.moments import MONTHS, as_date
from virtualzarr.archive.name_fields import NameField
from virtualzarr.combine.cf_time import is_datetime_calendar

_LOOKED_AT = 200
_ROUNDED = timedelta(minutes=30)
"""Names may say the nearest hour."""

_LETTERS = {
    "%m": "m mo mon month",
    "%d": "d dd day",
    "%H": "t h hh hr hour z utc",
    "%M": "mm min minute",
    "%S": "s ss sec",
    "%j": "d doy day j",
    "%y": "y yr yy year",
    "%H%M": "t h z utc",
}
"""Parts of a few digits, and what may stand before them: of `m1` and `r1`, 1 is no day."""

_FORMATS = (
    *_LETTERS, "%Y", "%m%d", "%d%m", "%Y%m", "%y%m", "%H%M%S", "%Y%j", "%y%j", "%Y%m%d", "%d%m%Y",
    "%m%d%Y", "%y%m%d", "%d%m%y", "%Y%m%d%H", "%Y%m%d%H%M", "%Y%j%H%M",
)  # fmt: skip
_VALUE = re.compile(r"(?:[A-Za-z]*[0-9]+)+(?:z|h|hr|utc)?", re.IGNORECASE)

Part = tuple[str, str]
"""Which of the dates of a file, and which part of it."""


class DateParts:
    """The parts of the dates of some files, for a look at which fields of names say them.

    Parameters
    ----------
    axes : sequence of AxisFacts
        Of all files.
    """

    def __init__(self, axes: Sequence[AxisFacts | None]) -> None:
        # At random, as files that take turns come in even steps, too.
        self.some = np.random.default_rng(0).permutation(len(axes))[:_LOOKED_AT].tolist()
        self.parts = [_list_parts(axes[k]) for k in self.some]

    def has(self, field: NameField) -> bool:
        """Tell whether a field is one part of the date of nearly each file: all hours, or all days.

        That some numbers of it are somewhere in dates is no sign: members 1 and 2 are in January
        and February. Four of five files, and most of four of five values, have to agree in all
        numbers, each with one and the same part.
        """
        values = [_read_value(value, label)
                  for value, label in zip(field.values, field.labels, strict=True)]  # fmt: skip
        size = max(map(len, values))
        numbers = [int(field.numbers[k]) for k in self.some]
        return size > 0 and all(
            self._agrees([value[start : start + 1] for value in values], numbers)
            for start in range(size)
        )

    def _agrees(self, values: Sequence[Sequence[tuple[str, int]]], numbers: Sequence[int]) -> bool:
        """Tell whether there is a part that numbers agree with."""
        totals = Counter(numbers)
        fits: dict[Part, Counter[int]] = {}
        for number, parts in zip(numbers, self.parts, strict=True):
            for letters, value in values[number]:
                for part, own in parts.items():
                    if own == value and _fits(part[1], letters):
                        fits.setdefault(part, Counter())[number] += 1
        return any(
            5 * candidate.total() >= 4 * len(numbers)
            and 5 * sum(2 * candidate[k] > total for k, total in totals.items()) >= 4 * len(totals)
            for candidate in fits.values()
        )


def _list_parts(axis: AxisFacts | None) -> Mapping[Part, int]:
    """Return the numbers that a name could have of the coordinates of a file."""
    parts: dict[Part, int] = {}
    if axis is None:
        return parts
    for end, position in (("low", axis.low), ("high", axis.high)):
        if axis.calendar is None:
            if position is not None and position == int(position):
                parts[end, ""] = int(position)
            continue
        date = as_date(position) if is_datetime_calendar(axis.calendar) else None
        if date is None:
            continue
        parts |= {(end, form): int(date.strftime(form)) for form in _FORMATS}
        if end == "low":
            hour = date + _ROUNDED
            parts |= {("nearest", form): int(hour.strftime(form)) for form in _FORMATS}
    return parts


def _read_value(value: str, label: str) -> list[tuple[str, int]]:
    """Return the numbers of a value, with the letters before each; none if it is no part of a date.

    Examples
    --------
    >>> _read_value("06", "T06"), _read_value("Feb", "Feb"), _read_value("terra", "terra")
    ([('T', 6)], [('', 2)], [])
    """
    if value.lower()[:3] in MONTHS and value.isalpha():
        return [("", MONTHS.index(value.lower()[:3]) + 1)]
    text = value if "." in label else label
    if _VALUE.fullmatch(text) is None:
        return []
    return [(letters, int(digits)) for letters, digits in re.findall("([A-Za-z]*)([0-9]+)", text)]


def _fits(form: str, letters: str) -> bool:
    return not letters or form not in _LETTERS or letters.lower() in _LETTERS[form].split()
