"""What each field is: its kind, which ecCodes is asked for once, and its time, step and member.

Fields of one kind differ in nothing but the reference time and, where it is known where they
lie, the forecast time and the member of an ensemble.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs.grib import message as messages
from virtualzarr.errors import SourceError, VirtualZarrError
from virtualzarr.formats.grib.index import Fields, Ints, Note, Steps
from virtualzarr.formats.grib.keys import Kind, ask
from virtualzarr.formats.paging import Gather

_MOST = 1 << 30
"""Bytes of sections that describe products, of all fields."""

_UNITS = np.zeros(256, np.int64)
_UNITS[[0, 1, 2, 10, 11, 12, 13]] = 60, 3600, 86400, 10800, 21600, 43200, 1
"""Seconds of a unit of time of edition 2 (code table 4.4); 0 for those of no fixed length."""

# Where things lie in section 1 and 4 of edition 2, from 0.
_DATE2 = slice(12, 19)
_UNIT, _FORECAST = 17, slice(18, 22)
_MEMBER = {1: 35, 11: 35}
_INTERVAL = {8: 34, 9: 47, 10: 35, 11: 37, 12: 36}
"""Where the end of the interval lies, by template; it is followed by the number of intervals."""
_INSTANT = (0, 1, 2, 5, 6)

_CENTURY, _DATE1 = 24, slice(12, 17)
"""Where the date lies in section 1 of edition 1."""

_UNIT1, _INDICATOR1 = 17, 20
_FORECAST1 = {0: (18,), 10: (18, 19)}
"""Where the forecast time lies in it, by the time range indicator; its units are those of edition 2
but for 13 and above."""


@dataclass(frozen=True)
class Products:
    """What fields are, as columns.

    Attributes
    ----------
    kinds : list of Kind
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
            _note_all(fields, numbers, note, SourceError("its section 1 or 4 is cut off"))
            continue
        _Reader(fields, numbers, part, note).read_into(products)
    return products


class _Rows(NamedTuple):
    """Sections of fields as rows of bytes, the discipline first, and where each section begins."""

    edition: int
    rows: NDArray[np.uint8]
    first: int
    local: int
    product: int

    @property
    def too_short(self) -> bool:
        least = 28 if self.edition == 1 else 21
        product = self.rows.shape[1] - self.product
        return self.local - self.first < least or (self.edition == 2 and product < 11)

    def message(self, row: int) -> bytes:
        """Return a message with the sections of a field, and no values."""
        raw = self.rows[row].tobytes()
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
        """Add what the fields are to the columns of all."""
        masked, forecast, members = self._mask_varying_bytes()
        time, sound = self._times()
        where = self.fields.start[self.numbers]
        for message_start in where[~sound].tolist():
            self.note(
                f"message at byte {message_start}", SourceError("its reference time is impossible")
            )
        kind_keys = np.ascontiguousarray(masked).view(np.dtype((np.void, masked.shape[1])))[:, 0]
        _, firsts, kind_of = np.unique(kind_keys, return_index=True, return_inverse=True)
        for number, row in enumerate(firsts.tolist()):
            rows = np.flatnonzero((kind_of.reshape(-1) == number) & sound)
            if not len(rows):
                continue
            row = int(rows[0])
            fields = self.numbers[rows]
            try:
                kind = ask(self.part.message(row), self._code(row))
            except VirtualZarrError as error:
                _note_all(self.fields, fields, self.note, error)
                continue
            products.kind[fields] = len(products.kinds)
            products.kinds.append(kind)
            products.time[fields] = time[rows]
            products.step[fields] = kind.step + (forecast[rows] - forecast[row])
            products.member[fields] = np.where(members[rows] >= 0, members[rows], kind.member)

    def _code(self, row: int) -> tuple[int, ...]:
        """Return the numbers of a parameter in its tables."""
        raw, product = self.rows[row], self.part.product
        if self.part.edition == 1:
            return int(raw[self.part.first + 3]), int(raw[self.part.first + 8])
        return int(raw[0]), int(raw[product + 9]), int(raw[product + 10])

    def _times(self) -> tuple[Ints, NDArray[np.bool_]]:
        """Return reference times, and whether they are possible."""
        at = self.part.first
        raw = self.rows.astype(np.int64)
        if self.part.edition == 1:
            year, *smaller_units = raw[:, at:][:, _DATE1].T
            year = (raw[:, at + _CENTURY] - 1) * 100 + year
            smaller_units.append(np.zeros_like(year))
        else:
            high, low, *smaller_units = raw[:, at:][:, _DATE2].T
            year = high * 256 + low
        return _seconds(year, *smaller_units)

    def _mask_varying_bytes(self) -> tuple[NDArray[np.uint8], Ints, Ints]:
        """Return what makes the kind of fields; their forecast times in seconds, and members.

        Those two are 0 and -1 where they are left in the kind.
        """
        masked = self.rows.copy()
        forecast = np.zeros(len(masked), np.int64)
        members = np.full(len(masked), -1)
        first, product = self.part.first, self.part.product
        if self.part.edition == 1:
            masked[:, first:][:, _DATE1] = 0
            masked[:, first + _CENTURY] = 0
            head = self.rows[:, first:].astype(np.int64)
            for indicator, positions in _FORECAST1.items():
                units = np.where(head[:, _UNIT1] == 13, 0, _UNITS[head[:, _UNIT1]])
                rows = np.flatnonzero((head[:, _INDICATOR1] == indicator) & (units > 0))
                for position in positions:
                    forecast[rows] = forecast[rows] * 256 + head[rows, position] * units[rows]
                    masked[rows, first + position] = 0
            return masked, forecast, members
        masked[:, first:][:, _DATE2] = 0
        body = self.rows[:, product:].astype(np.int64)
        templates = body[:, 7] * 256 + body[:, 8]
        for template in np.unique(templates).tolist():
            rows = np.flatnonzero(templates == template)
            if not _is_known(template, body.shape[1]):
                continue
            plain = _UNITS[body[rows, _UNIT]] > 0
            if template in _INTERVAL:
                plain &= body[rows, _INTERVAL[template] + 7] == 1
            rows = rows[plain]
            forecast[rows] = _decode_signed(body[rows, _FORECAST]) * _UNITS[body[rows, _UNIT]]
            spans = [_FORECAST]
            if template in _INTERVAL:
                spans.append(slice(_INTERVAL[template], _INTERVAL[template] + 7))
            if template in _MEMBER:
                members[rows] = body[rows, _MEMBER[template]]
                spans.append(slice(_MEMBER[template], _MEMBER[template] + 1))
            for span in spans:
                masked[rows, product + span.start : product + span.stop] = 0
        return masked, forecast, members


def _is_known(template: int, length: int) -> bool:
    """Whether it is known where things lie in section 4, and it is long enough."""
    if template in _INTERVAL:
        return length >= _INTERVAL[template] + 8
    return template in _INSTANT and length >= _MEMBER.get(template, 33) + 1


def _decode_signed(raw: Ints) -> Ints:
    """Return rows of four bytes as numbers whose first bit is the sign."""
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
    months = ((year - 1970) * 12 + np.where(sound, month, 1) - 1).astype("datetime64[M]")
    start = months.astype("datetime64[D]").astype(np.int64)
    after = (months + 1).astype("datetime64[D]").astype(np.int64)
    sound &= start + day <= after
    return (start + day - 1) * 86400 + hour * 3600 + minute * 60 + second, sound


def _note_all(fields: Fields, numbers: Ints, note: Note, error: VirtualZarrError) -> None:
    for start in fields.start[numbers].tolist():
        note(f"message at byte {start}", type(error)(error.message))
