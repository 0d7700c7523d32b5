"""Product definitions of GRIB fields: kind, reference time, forecast step and ensemble member.

ecCodes is asked once for each kind, and once a process for a kind that is in many files. Fields of
one kind differ only in the reference time and, where their octets are at a known position, in the
forecast time and the member of an ensemble: ecCodes gets these with fixed values, so that its
answer never depends on which field was the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs.grib import message as messages
from virtualzarr.errors import SourceError, VirtualZarrError
from virtualzarr.formats.grib.index import Fields, Ints, Note, Steps, note_all, unique_rows
from virtualzarr.formats.grib.parameters import Kind, read_kind, read_step
from virtualzarr.formats.paging import Gather

_MOST = 1 << 30
"""Most bytes of product sections of all fields together."""

_UNITS = np.zeros(256, np.int64)
_UNITS[[0, 1, 2, 10, 11, 12, 13]] = 60, 3600, 86400, 10800, 21600, 43200, 1
"""Seconds of a unit of time of edition 2 (code table 4.4); 0 for those of no fixed length."""

# Offsets from 0 (the tables of the Manual on Codes count octets from 1). Section 1 of edition 2 has
# the reference time in octets 13-19; section 4 has the unit of time in octet 18 and the forecast
# time in octets 19-22 for all templates that are listed here.
_DATE2 = slice(12, 19)
_UNIT, _FORECAST = 17, slice(18, 22)
_MEMBER = {1: 35, 11: 35}
_INTERVAL = {8: 34, 9: 47, 10: 35, 11: 37, 12: 36}
"""Offset of the end of the time interval by template; the number of intervals follows it."""
_INSTANT = (0, 1, 2, 5, 6)

_CENTURY, _DATE1 = 24, slice(12, 17)
"""Offsets of century and date in section 1 of edition 1 (octets 25 and 13-17)."""

_FIXED2 = np.frombuffer(messages.FIXED_DATE, np.uint8)
_FIXED1, _FIXED_CENTURY = np.array([100, 1, 1, 0, 0], np.uint8), 20

_UNIT1, _INDICATOR1 = 17, 20
_FORECAST1 = {0: (18,), 10: (18, 19)}
"""Offsets of the forecast time by the time range indicator (code table 5): P1 in octet 19 alone, or
in two octets. Units (code table 4) are those of edition 2 but for 13 and above."""


@dataclass(frozen=True)
class Products:
    """Product metadata of fields, as columns.

    Attributes
    ----------
    kind : int64 array
        Number of each field's kind; -1 for fields that were noted as unusable.
    time, step : int64 array
        Reference time in seconds since 1970, and seconds from then to the end of the field's time.
    member : int64 array
        Of the ensemble; -1 where there is none.
    """

    kinds: list[Kind]
    kind: Ints
    time: Ints
    step: Ints
    member: Ints


def read_products(fields: Fields, note: Note) -> Steps:
    """Parse: return the `Products` of fields."""
    n = len(fields)
    none, zero = np.full(n, -1), np.zeros(n, np.int64)
    products = Products([], none, zero, zero.copy(), none.copy())
    lengths = (fields.end - fields.begin)[:, [1, 2, 4]]
    lengths[fields.edition == 1, 1:] = 0
    # Fields whose sections have the same lengths become rows of one matrix of bytes, on which all
    # below works by column: a file has few such shapes, and may have 100,000 fields.
    shapes, which = np.unique(
        np.column_stack([fields.edition, lengths]), axis=0, return_inverse=True
    )
    if int(lengths.sum()) > _MOST:
        raise SourceError(f"{int(lengths.sum())} bytes describe what is in the file")
    for row, (edition, first, local, product) in enumerate(shapes.tolist()):
        numbers = np.flatnonzero(which.reshape(-1) == row)
        parts = [fields.discipline[numbers, None].astype(np.uint8)]
        for section, length in ((1, first), (2, local), (4, product)):
            if length:
                parts.append((yield Gather(fields.begin[numbers, section], length)))
        rows = np.concatenate(parts, axis=1)
        part = _Rows(edition, rows, 1, 1 + first, 1 + first + local)
        if part.too_short:
            error = SourceError("its section 1 or 4 is cut off")
            note_all(fields.start[numbers], note, error)
            continue
        _Reader(fields, numbers, part, note).read_into(products)
    return products


class _Rows(NamedTuple):
    """Sections of fields as rows of bytes after the discipline, and offsets of the sections."""

    edition: int
    rows: NDArray[np.uint8]
    first: int
    local: int
    product: int

    @property
    def too_short(self) -> bool:
        # Section 1 has at least 28 octets in edition 1 and 21 in edition 2; octets 10 and 11 of
        # section 4 are the category and number of the parameter.
        least = 28 if self.edition == 1 else 21
        product = self.rows.shape[1] - self.product
        return self.local - self.first < least or (self.edition == 2 and product < 11)

    def message(self, row: NDArray[np.uint8]) -> bytes:
        """Return a message with the sections in a row, and no values."""
        raw = row.tobytes()
        if self.edition == 1:
            return messages.without_values1(raw[self.first :], None)
        sections = {1: raw[self.first : self.local], 4: raw[self.product :]}
        if self.product > self.local:
            sections[2] = raw[self.local : self.product]
        return messages.without_values(raw[0], sections)


class _Reader:
    """Reads fields whose sections have the same lengths."""

    def __init__(self, fields: Fields, numbers: Ints, part: _Rows, note: Note) -> None:
        self.fields, self.numbers, self.part, self.note = fields, numbers, part, note
        self.rows = part.rows

    def read_into(self, products: Products) -> None:
        """Fill in the columns of the fields."""
        fixed, forecast, members = self._fix_varying_bytes()
        time, sound = self._times()
        starts = self.fields.start[self.numbers]
        note_all(starts[~sound], self.note, SourceError("its reference time is impossible"))
        # Equal bytes, but for those that only place a field along an axis, are one kind: ecCodes,
        # far slower than all of this together, is asked for one message of each.
        _, firsts, kind_of = unique_rows(fixed)
        for number in range(len(firsts)):
            rows = np.flatnonzero((kind_of == number) & sound)
            if not len(rows):
                continue
            row = int(rows[0])
            try:
                kind = read_kind(self.part.message(fixed[row]), self._code(row))
            except VirtualZarrError as error:
                note_all(self.fields.start[self.numbers[rows]], self.note, error)
                continue
            if kind.step is None:
                rows, step = self._read_steps(rows)
            else:
                step = kind.step + forecast[rows]
            fields = self.numbers[rows]
            products.kind[fields] = len(products.kinds)
            # Keys that tell duplicates apart are read of a field as it is in this file.
            products.kinds.append(replace(kind, message=self.part.message(self.rows[row])))
            products.time[fields] = time[rows]
            products.step[fields] = step
            products.member[fields] = np.where(members[rows] >= 0, members[rows], kind.member)

    def _read_steps(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the rows whose steps follow from their dates, and these steps; note the others."""
        _, firsts, number = unique_rows(self.rows[rows])
        steps: list[int | None] = []
        for index, first in enumerate(firsts.tolist()):
            try:
                steps.append(read_step(self.part.message(self.rows[rows[first]])))
            except VirtualZarrError as error:
                steps.append(None)
                alike = self.numbers[rows[number == index]]
                note_all(self.fields.start[alike], self.note, error)
        has_step = np.array([step is not None for step in steps])[number]
        return rows[has_step], np.array([step or 0 for step in steps], np.int64)[number[has_step]]

    def _code(self, row: int) -> tuple[int, ...]:
        """Return a parameter's numbers: table and indicator, or discipline, category and number."""
        raw, product = self.rows[row], self.part.product
        if self.part.edition == 1:
            return int(raw[self.part.first + 3]), int(raw[self.part.first + 8])
        return int(raw[0]), int(raw[product + 9]), int(raw[product + 10])

    def _times(self) -> tuple[Ints, NDArray[np.bool_]]:
        """Return reference times in seconds since 1970, and whether they are valid dates."""
        at = self.part.first
        raw = self.rows.astype(np.int64)
        if self.part.edition == 1:
            year, *smaller_units = raw[:, at:][:, _DATE1].T
            # The year of the century runs from 1 to 100: 2000 is year 100 of century 20.
            year = (raw[:, at + _CENTURY] - 1) * 100 + year
            smaller_units.append(np.zeros_like(year))
        else:
            high, low, *smaller_units = raw[:, at:][:, _DATE2].T
            year = high * 256 + low
        return _seconds(year, *smaller_units)

    def _fix_varying_bytes(self) -> tuple[NDArray[np.uint8], Ints, Ints]:
        """Return sections with fixed values in varying bytes, forecast times in seconds, members.

        Forecast times are 0 and members -1 where their bytes are as they are.
        """
        fixed = self.rows.copy()
        forecast = np.zeros(len(fixed), np.int64)
        members = np.full(len(fixed), -1)
        first, product = self.part.first, self.part.product
        if self.part.edition == 1:
            fixed[:, first:][:, _DATE1] = _FIXED1
            fixed[:, first + _CENTURY] = _FIXED_CENTURY
            head = self.rows[:, first:].astype(np.int64)
            for indicator, positions in _FORECAST1.items():
                # 13 is a second in edition 2, but a quarter of an hour in edition 1 (code table 4).
                units = np.where(head[:, _UNIT1] == 13, 0, _UNITS[head[:, _UNIT1]])
                rows = np.flatnonzero((head[:, _INDICATOR1] == indicator) & (units > 0))
                for position in positions:
                    # Horner over octets that are already in seconds: of indicator 10, the first is
                    # times 256.
                    forecast[rows] = forecast[rows] * 256 + head[rows, position] * units[rows]
                    fixed[rows, first + position] = 0
            return fixed, forecast, members
        fixed[:, first:][:, _DATE2] = _FIXED2
        body = self.rows[:, product:].astype(np.int64)
        templates = body[:, 7] * 256 + body[:, 8]
        for template in np.unique(templates).tolist():
            rows = np.flatnonzero(templates == template)
            # Of any other template nothing more is fixed, so that each forecast time is a kind of
            # its own, which ecCodes is asked for: slower, but never a guess.
            if not _is_known(template, body.shape[1]):
                continue
            plain = _UNITS[body[rows, _UNIT]] > 0
            if template in _INTERVAL:
                # With several time ranges the end of the interval does not follow from the forecast
                # time.
                plain &= body[rows, _INTERVAL[template] + 7] == 1
            rows = rows[plain]
            forecast[rows] = _decode_signed(body[rows, _FORECAST]) * _UNITS[body[rows, _UNIT]]
            fixed[rows, product + _FORECAST.start : product + _FORECAST.stop] = 0
            # An interval's end moves with the reference and forecast time. If lengths of intervals
            # differ, octets behind it (the length of the time range) differ too, and so do kinds.
            if template in _INTERVAL:
                end = product + _INTERVAL[template]
                fixed[rows, end : end + 7] = _FIXED2
            if template in _MEMBER:
                members[rows] = body[rows, _MEMBER[template]]
                fixed[rows, product + _MEMBER[template]] = 0
        return fixed, forecast, members


def _is_known(template: int, length: int) -> bool:
    """Whether the offsets in section 4 are known for a template, and the section is long enough."""
    if template in _INTERVAL:
        return length >= _INTERVAL[template] + 8
    return template in _INSTANT and length >= _MEMBER.get(template, 33) + 1


def _decode_signed(raw: Ints) -> Ints:
    """Decode rows of four bytes as sign-and-magnitude integers, as GRIB 2 stores signed ones."""
    value = raw[:, 0] << 24 | raw[:, 1] << 16 | raw[:, 2] << 8 | raw[:, 3]
    return np.where(value >= 1 << 31, (1 << 31) - value, value)


def _seconds(
    year: Ints, month: Ints, day: Ints, hour: Ints, minute: Ints, second: Ints
) -> tuple[Ints, NDArray[np.bool_]]:
    """Return seconds since 1970 (proleptic Gregorian), and whether there is such a time.

    Examples
    --------
    >>> one = np.array([2000, 1, 1, 12, 0, 0]), np.array([2001, 2, 29, 0, 0, 0])
    >>> [array.tolist() for array in _seconds(*np.array(one).T)]
    [[946728000, 983404800], [True, False]]
    """
    sound = (month >= 1) & (month <= 12) & (day >= 1) & (hour < 24) & (minute < 60) & (second < 60)
    # datetime64 counts months exactly, and days of the proleptic Gregorian calendar from them; the
    # day of the month is compared with the next month's start, as days beyond would roll over
    # silently.
    months = ((year - 1970) * 12 + np.where(sound, month, 1) - 1).astype("datetime64[M]")
    start = months.astype("datetime64[D]").astype(np.int64)
    after = (months + 1).astype("datetime64[D]").astype(np.int64)
    sound &= start + day <= after
    return (start + day - 1) * 86400 + hour * 3600 + minute * 60 + second, sound
