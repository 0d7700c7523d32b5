"""Values of a coordinate along its axis: extent, order and steps, exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.combine.cf_packing import get_unsigned_view
from virtualzarr.combine.cf_time import TimeUnit

Number = int | Fraction

MIN_STEPS = 20
"""No step is claimed of fewer differences than these."""

MIN_SHARE = Fraction(4, 5)
"""Nor one that fewer of the differences are."""

_MAX_DIFFERENT_STEPS = 64
_FEW_ODD = 20
# Times that are floats are rounded to this many nanoseconds in steps, and only there.
_ROUNDED = 10**6
_EXACT_FLOAT = 2**52
# Of the netCDF library (`netcdf.h`, NC_FILL_*), by data type; a byte has none that is masked.
_NETCDF_FILLS: dict[str, Number | float] = {
    "i2": -32767, "u2": 65535, "i4": -2147483647, "u4": 4294967295,
    "i8": -9223372036854775806, "u8": 18446744073709551614,
    "f4": 9.969209968386869e36, "f8": 9.969209968386869e36,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class AxisFacts:
    """Extent, order and steps of a coordinate in one file.

    Parameters
    ----------
    n, missing, repeated : int
        Values, and how many of them are missing, and were there before.
    order : int
        1, -1, or 0 if it is neither.
    digest, reversed : str
        Of the values as they are stored, and of those from the last to the first.
    low, high : int or Fraction or None
        For times in nanoseconds of the calendar; None if they cannot be held against those of
        other files.
    steps : tuple of (int, int), optional
        Differences of neighbours and how often there is each; None if there are too many, or it
        cannot be said.
    calendar : str, optional
        Of times.
    """

    n: int
    missing: int
    repeated: int
    order: int
    digest: str
    reversed: str
    low: Number | None = None
    high: Number | None = None
    steps: tuple[tuple[int, int], ...] | None = None
    calendar: str | None = None

    @classmethod
    def of(cls, values: NDArray[Any], attributes: Mapping[str, Any]) -> AxisFacts:
        """Return the facts of a coordinate whose stored values were read."""
        digest, reverse = _digest(values), _digest(values[::-1] if values.ndim else values)
        view = get_unsigned_view(attributes, values.dtype)
        values = (values if view is None else values.view(view)).reshape(-1)
        missing = find_missing(values, attributes)
        valid = values[~missing] if missing.any() else values
        nsame, order = _find_order(valid)
        first = (len(values), len(values) - len(valid), nsame, order, digest, reverse)
        unit = TimeUnit.from_attributes(attributes)
        packed = "scale_factor" in attributes or "add_offset" in attributes
        countable = values.dtype.kind in "iu" or (
            values.dtype.kind == "f" and bool(np.isfinite(valid).all())
        )
        if not len(valid) or packed or not countable or (unit is not None and unit.epoch is None):
            return cls(*first)
        low, high = (_position(value, unit) for value in (valid.min().item(), valid.max().item()))
        calendar = None if unit is None else unit.calendar
        return cls(*first, low, high, _count_steps(valid, unit), calendar)

    @property
    def is_placed(self) -> bool:
        """Whether it can be held against the coordinates of other files."""
        return self.low is not None

    def to_json(self) -> list[Any]:
        """Return the facts as JSON."""
        ends = [str(end) if isinstance(end, Fraction) else end for end in (self.low, self.high)]
        first = [self.n, self.missing, self.repeated, self.order, self.digest, self.reversed]
        return [*first, *ends, self.steps, self.calendar]

    @classmethod
    def from_json(cls, document: Any) -> AxisFacts:
        """Return facts as `to_json` gave them."""
        n, missing, repeated, order, digest, reverse, low, high, steps, calendar = document
        low, high = (Fraction(end) if isinstance(end, str) else end for end in (low, high))
        pairs = None if steps is None else tuple((step, count) for step, count in steps)
        return cls(n, missing, repeated, order, digest, reverse, low, high, pairs, calendar)


def _digest(values: NDArray[Any]) -> str:
    return blake2b(np.ascontiguousarray(values).tobytes(), digest_size=16).hexdigest()


def find_missing(values: NDArray[Any], attributes: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Return which values are missing: NaN, what the attributes say, or times never written."""
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, bool)
    if values.dtype.kind in "iuf":
        for name in ("_FillValue", "missing_value"):
            mask = attributes.get(name)
            if isinstance(mask, int | float):
                missing |= values == mask
    fill = _NETCDF_FILLS.get(values.dtype.str[1:])
    # Where files say nothing else, cells of netCDF that were never written have its own fill value.
    is_time = fill is not None and TimeUnit.from_attributes(attributes) is not None
    if is_time and "_FillValue" not in attributes:
        missing |= values == values.dtype.type(fill)
    return missing


def _find_order(values: NDArray[Any]) -> tuple[int, int]:
    """Return how many values were there before, and the order."""
    if len(values) < 2:
        return 0, 1
    before, after = values[:-1], values[1:]
    if bool((after > before).all()):
        return 0, 1
    if bool((after < before).all()):
        return 0, -1
    nsame = len(values) - len(np.unique(values))
    if bool((after >= before).all()):
        return nsame, 1
    return nsame, -1 if bool((after <= before).all()) else 0


def _position(value: float, unit: TimeUnit | None) -> Number:
    if unit is None:
        return value if isinstance(value, int) else _simplify(Fraction(value))
    assert unit.epoch is not None
    if isinstance(value, int) or value.is_integer():
        return int(value) * unit.length + unit.epoch
    return _simplify(Fraction(value) * unit.length + unit.epoch)


def _simplify(number: Fraction) -> Number:
    return number.numerator if number.denominator == 1 else number


def _count_steps(values: NDArray[Any], unit: TimeUnit | None) -> tuple[tuple[int, int], ...] | None:
    """Return differences of neighbours that are not zero, and how many there are of each."""
    if len(values) < 2:
        return () if unit is not None or values.dtype.kind in "iu" else None
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
    differences = np.abs(np.diff(numbers))
    first = int(differences[0])
    if bool((differences == first).all()):
        return ((first * length, len(differences)),) if first else ()
    steps, counts = np.unique(differences, return_counts=True)
    if len(steps) > _MAX_DIFFERENT_STEPS:
        return None
    pairs = zip(steps.tolist(), counts.tolist(), strict=True)
    return tuple((step * length, count) for step, count in pairs if step)


def round_step(low: Number, high: Number, *, is_time: bool) -> int | None:
    """Return a difference as steps have it, None if it is no integer.

    Examples
    --------
    >>> round_step(1, 4, is_time=False)
    3
    """
    difference = high - low
    if isinstance(difference, int) or difference.denominator == 1:
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


def count_months(dates: Iterable[Any]) -> tuple[list[int], list[int]] | None:
    """Return numbers of months, and which times are at another moment of theirs than the others.

    None if more than one in twenty is: the middles of February, for example, are no mistakes.

    Examples
    --------
    >>> from datetime import datetime
    >>> count_months([datetime(2000, 12, 1), datetime(2001, 2, 1)])
    ([24011, 24013], [])
    """
    dates = list(dates)
    moments = [(date.day, date.time()) for date in dates]
    common, count = Counter(moments).most_common(1)[0]
    if (len(dates) - count) * _FEW_ODD > len(dates):
        return None
    odd = [k for k, moment in enumerate(moments) if moment != common]
    return [12 * date.year + date.month - 1 for date in dates], odd
