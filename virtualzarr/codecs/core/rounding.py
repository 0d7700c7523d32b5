"""Casts between dtypes of numbers: rounded as configured, never out of range."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from virtualzarr.codecs.core.base import Block
from virtualzarr.codecs.core.numbers import (
    NumberFormat,
    is_narrow,
    limits,
    number_format,
    plain_integers,
)
from virtualzarr.errors import CodecError

ROUNDINGS = ("nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away")
OUT_OF_RANGE = ("clamp", "wrap")


class FloatFormat(NamedTuple):
    """What rounding needs to know of a float format."""

    precision: int  # bits of the significand, with the leading one
    quantum: int  # exponent of the least bit of the smallest numbers
    greatest: float
    lowest: float  # minus the greatest, or the smallest positive number


@lru_cache(maxsize=64)
def float_format(dtype: np.dtype[Any]) -> FloatFormat:
    """Return the parameters of a float dtype."""
    info: Any
    if is_narrow(dtype):
        import ml_dtypes

        info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    else:
        info = np.finfo(dtype)
    smallest, greatest = float(info.smallest_subnormal), float(info.max)
    lowest = smallest if dtype.name == "float8_e8m0fnu" else -greatest
    return FloatFormat(int(info.nmant) + 1, int(np.frexp(smallest)[1]) - 1, greatest, lowest)


def cast(
    values: Block, dtype: np.dtype[Any], rounding: str = "nearest-even", beyond: str | None = None
) -> Block:
    """Return integers or floats as `dtype`.

    Source: zarr-extensions, codecs/cast_value. Values are rounded first, as if there were no
    bounds; what is out of range then is an error unless `beyond` says what to do.

    Parameters
    ----------
    values : array of integers or floats
    dtype : dtype
        Integers or floats, those of ml_dtypes included; native.
    rounding : str
        One of `ROUNDINGS`.
    beyond : {"clamp", "wrap"}, optional
        What becomes of values out of range. NaN and infinities are never in the range of a dtype
        that lacks them.

    Raises
    ------
    CodecError
        A value is out of range.

    Examples
    --------
    >>> cast(np.array([0.5, 1.5, 300.0]), np.dtype("u1"), "nearest-even", "clamp")
    array([  0,   2, 255], dtype=uint8)
    """
    target = number_format(dtype)
    source = number_format(values.dtype)
    assert target is not None
    assert source is not None
    if values.dtype == dtype:
        return values
    if values.dtype.kind == dtype.kind == "f" and values.dtype.itemsize <= dtype.itemsize:
        with np.errstate(invalid="ignore"):  # every value is exact, and NaN keeps its bits
            return values.astype(dtype)
    if source.kind in "iu":
        values = plain_integers(values)
        if target.kind in "iu":
            return _integers(values, dtype, target, beyond)
        return _floats(*_as_floats(values, source), dtype, target, rounding, beyond)
    with np.errstate(invalid="ignore"):  # a signalling NaN stays a NaN
        # float64 holds every float of fewer bits exactly, so that all are rounded but once.
        wide = values.astype("f8")
    if target.kind in "iu":
        return _to_integers(wide, dtype, target, rounding, beyond)
    return _floats(wide, None, dtype, target, rounding, beyond)


# ------------------------------------------------------------------------------- to integers


def _integers(
    values: Block, dtype: np.dtype[Any], target: NumberFormat, beyond: str | None
) -> Block:
    low, high = limits(target)
    if beyond != "wrap":
        under, over = values < low, values > high
        _check_range(under | over, values, dtype, beyond)
        # Two's complement words of 64 bits: comparing happens in the source's own dtype, which no
        # bound overflows.
        words = np.where(under, _word(low), np.where(over, _word(high), values.astype("u8")))
        return _from_words(words, dtype, target)
    return _from_words(values.astype("u8"), dtype, target)


def _to_integers(
    values: Block, dtype: np.dtype[Any], target: NumberFormat, rounding: str, beyond: str | None
) -> Block:
    not_finite = ~np.isfinite(values)
    _check_range(not_finite, values, dtype, None)
    values = _round(values, None, rounding)
    low, high = limits(target)
    # The bounds as floats are exact: 2^n, one more than the greatest integer.
    under, over = values < float(low), values >= float(high + 1)
    if beyond == "wrap":
        return _from_words(_modulo(values), dtype, target)
    _check_range(under | over, values, dtype, beyond)
    words = _modulo(np.where(under | over, 0.0, values))
    words = np.where(under, _word(low), np.where(over, _word(high), words))
    return _from_words(words, dtype, target)


def _word(value: int) -> np.uint64:
    return np.uint64(value % 2**64)


def _modulo(values: Block) -> Block:
    """Return integral floats modulo 2^64."""
    # `fmod` is exact, while casting a float of more than 2^63 to an integer is undefined in C.
    words = np.abs(np.fmod(values, 2.0**64)).astype("u8")
    return np.where(values < 0, ~words + np.uint64(1), words)


def _from_words(words: Block, dtype: np.dtype[Any], target: NumberFormat) -> Block:
    """Return the low bits of 64-bit words as integers of `dtype`."""
    mask = np.uint64((1 << target.bits) - 1)
    return (words & mask).astype(f"u{dtype.itemsize}").view(dtype)


# --------------------------------------------------------------------------------- to floats


def _as_floats(values: Block, source: NumberFormat) -> tuple[Block, Block | None]:
    """Return integers as float64, and what is missing to their exact values."""
    floats = values.astype("f8")
    if source.bits <= 32:
        return floats, None
    # The upper half as a float is exact, and so is its distance from the nearest float.
    upper = (values >> np.array(32, values.dtype)).astype("f8") * 2.0**32
    lower = (values & np.array(0xFFFFFFFF, values.dtype)).astype("f8")
    return floats, (upper - floats) + lower


def _floats(
    values: Block,
    residue: Block | None,
    dtype: np.dtype[Any],
    target: NumberFormat,
    rounding: str,
    beyond: str | None,
) -> Block:
    form = float_format(dtype)
    nan, infinite = np.isnan(values), np.isinf(values)
    _check_range(nan, values, dtype, None if target.nan is None else "keep")
    _check_range(infinite, values, dtype, "keep" if target.infinity else None)
    finite = np.where(nan | infinite, 1.0, values)
    mantissa, exponent = np.frexp(finite)
    if residue is not None:  # just below a power of two, the steps are half as large
        exponent = exponent - ((np.abs(mantissa) == 0.5) & (mantissa * residue < 0))
    # Subnormal numbers have fewer digits: no step is smaller than the least number.
    exponent = np.maximum(exponent - form.precision, form.quantum)
    # Scaled so that one unit is one step of the target: rounding is then to integers, exact for any
    # step.
    scaled = np.ldexp(finite, -exponent)
    if residue is not None:
        residue = np.ldexp(residue, -exponent)
    with np.errstate(over="ignore"):
        result = np.ldexp(_round(scaled, residue, rounding), exponent)
    under, over = result < form.lowest, result > form.greatest
    _check_range(under | over, values, dtype, beyond)
    edge = np.inf if target.infinity else form.greatest
    lowest = -edge if form.lowest < 0 else form.lowest
    result = np.where(under, lowest, np.where(over, edge, result))
    result = np.where(infinite, values, result).astype(dtype)
    # The NaN of the data type's specification, as numpy's cast would keep part of the payload.
    if nan.any():
        bits = np.array(target.nan, f"u{dtype.itemsize}").view(dtype)
        result = np.where(nan, bits, result)
    return result


def _round(values: Block, residue: Block | None, rounding: str) -> Block:
    """Return `values`, to which `residue` is to be added, rounded to integers."""
    if residue is not None:
        return _round_sum(values, residue, rounding)
    if rounding == "nearest-even":
        return np.rint(values)
    if rounding == "towards-zero":
        return np.trunc(values)
    if rounding == "towards-positive":
        return np.ceil(values)
    if rounding == "towards-negative":
        return np.floor(values)
    truncated = np.trunc(values)
    return truncated + np.copysign(np.abs(values - truncated) >= 0.5, values)


def _round_sum(values: Block, residue: Block, rounding: str) -> Block:
    """Round the exact sum of two floats, the second at most half a unit in the first's last."""
    floor = np.floor(values)
    is_integer = floor == values
    # The greatest integer that is not above the sum; the residue alone can push it below `values`.
    low = floor - (is_integer & (residue < 0))
    inexact = ~(is_integer & (residue == 0))
    if rounding == "towards-negative":
        return low
    if rounding == "towards-positive":
        return low + inexact
    if rounding == "towards-zero":
        return low + (inexact & (low < 0))
    # Only the sign matters: above, on, or below the middle between two steps.
    side = (values - low - 0.5) + residue
    up = np.fmod(low, 2.0) != 0 if rounding == "nearest-even" else low >= 0
    return low + ((side > 0) | ((side == 0) & up))


def _check_range(wrong: Block, values: Block, dtype: np.dtype[Any], beyond: str | None) -> None:
    if beyond is None and wrong.any():
        culprit = values[wrong].reshape(-1)[0]
        raise CodecError(f"{culprit} is not in the range of {dtype.name}")
