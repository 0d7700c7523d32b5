"""Scalars as JSON, exact to the bit: fill values, and parameters of codecs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from virtualzarr.codecs.core.numbers import (
    NumberFormat,
    component,
    is_narrow,
    limits,
    number_format,
)
from virtualzarr.codecs.core.rounding import cast
from virtualzarr.errors import CodecError, MetadataError, UnsupportedError, short

_INFINITIES = {"Infinity": np.inf, "-Infinity": -np.inf}
_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}")


def number_from_json(value: Any, dtype: np.dtype[Any], zarr_format: int = 3) -> Any:
    """Return a JSON value as a native scalar of a dtype of numbers.

    Source: Zarr v2 and v3 specifications, fill values; zarr-extensions, data-types/*.

    Raises
    ------
    MetadataError
        The value is not one that the dtype permits.

    Examples
    --------
    >>> number_from_json("0x7fc00001", np.dtype("f4")), number_from_json([1, 2], np.dtype("c8"))
    (np.float32(nan), np.complex64(1+2j))
    """
    number = number_format(dtype)
    if number is None:
        raise MetadataError(f"the data type {dtype} has no numbers")
    if number.kind == "b":
        if not isinstance(value, bool):
            raise MetadataError(f"must be true or false, not {short(value)}")
        return np.bool_(value)
    if number.kind in "iu":
        return _integer(value, dtype, number)
    if number.kind == "f":
        return _float(value, dtype, number, zarr_format)
    return _complex(value, dtype, zarr_format)


def _integer(value: Any, dtype: np.dtype[Any], number: NumberFormat) -> Any:
    if isinstance(value, bool) or not isinstance(value, int):
        raise MetadataError(f"must be an integer without fraction or exponent, not {short(value)}")
    low, high = limits(number)
    if not low <= value <= high:
        raise MetadataError(f"{short(value)} is outside the range of {dtype.name}")
    # Through bits: ml_dtypes' small integers have no conversion that checks their range.
    return _from_bits(value % (1 << number.bits), dtype)


def _float(value: Any, dtype: np.dtype[Any], number: NumberFormat, zarr_format: int) -> Any:
    if isinstance(value, str):
        return _from_bits(_float_bits(value, dtype, number, zarr_format), dtype)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MetadataError(f"must be a number or text such as 'NaN', not {short(value)}")
    try:
        if is_narrow(dtype):
            return _narrow_float(float(value), dtype)
        # A number out of range becomes infinite, which is an error below: it is not what was
        # written.
        with np.errstate(over="ignore"):
            result = native(dtype).type(value)
    except OverflowError:
        result = np.float64(np.inf)
    except CodecError as error:
        raise MetadataError(error.message) from error
    if not np.isfinite(result):
        raise MetadataError(f"{short(value)} is outside the range of {dtype.name}")
    return result


def _narrow_float(value: float, dtype: np.dtype[Any]) -> Any:
    if value == 0 and dtype.name == "float8_e8m0fnu":
        # Without a zero; TensorStore calls the smallest number so, its default fill value.
        return _from_bits(0, dtype)
    return cast(np.array([value]), native(dtype))[0]


def _float_bits(text: str, dtype: np.dtype[Any], number: NumberFormat, zarr_format: int) -> int:
    """Return the bits that a special value or a hexadecimal number stands for."""
    if text == "NaN" and number.nan is not None:
        return number.nan
    if text in _INFINITIES and number.infinity:
        return _bits(np.array([_INFINITIES[text]]).astype(native(dtype))[0])
    if zarr_format == 3 and _HEX.fullmatch(text):
        bits = int(text, 16)
        if bits.bit_length() <= number.bits:
            return bits
        raise MetadataError(f"{text!r} has more bits than {dtype.name}")
    if text in ("NaN", *_INFINITIES):
        raise MetadataError(f"{dtype.name} has no {text}")
    raise MetadataError(f"{short(text)} is not a number, 'NaN', 'Infinity' or '-Infinity'")


def _complex(value: Any, dtype: np.dtype[Any], zarr_format: int) -> Any:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise MetadataError(f"must be [real, imaginary], not {short(value)}")
    half = component(native(dtype))
    # Part by part: numpy's `complex` would change the bits of NaN in either of them.
    pair = np.empty(2, half)
    for i, part in enumerate(value):
        try:
            pair[i : i + 1] = np.atleast_1d(number_from_json(part, half, zarr_format))
        except MetadataError as error:
            raise MetadataError(f"[{i}]: {error.message}") from error
    return pair.view(native(dtype))[0]


def number_to_json(value: Any, dtype: np.dtype[Any], zarr_format: int = 3) -> Any:
    """Return a native scalar of a dtype of numbers as JSON.

    Raises
    ------
    UnsupportedError
        v2 has no form for it: a NaN other than the common one.

    Examples
    --------
    >>> number_to_json(np.float32("nan"), np.dtype("f4"))
    'NaN'
    """
    number = number_format(dtype)
    assert number is not None
    if number.kind == "b":
        return bool(value)
    if number.kind in "iu":
        return int(value)
    if number.kind == "c":
        pair = np.atleast_1d(value).view(component(native(dtype)))
        return [number_to_json(part, pair.dtype, zarr_format) for part in pair]
    as_float = float(value)
    if as_float != as_float:
        bits = _bits(value)
        if bits == number.nan:
            return "NaN"
        # Fill values in v3: a NaN other than the common one is its bits, as text.
        text = f"0x{bits:0{2 * value.dtype.itemsize}x}"
        if zarr_format == 2:
            raise UnsupportedError(f"v2 has no form for the NaN with the bits {text}; use 'NaN'")
        return text
    if as_float in (np.inf, -np.inf):
        return "Infinity" if as_float > 0 else "-Infinity"
    return as_float


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a plain dtype in native byte order."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def _bits(value: Any) -> int:
    return int(np.atleast_1d(value).view(f"u{value.dtype.itemsize}")[0])


def _from_bits(bits: int, dtype: np.dtype[Any]) -> Any:
    return np.array([bits], f"u{dtype.itemsize}").view(native(dtype))[0]


def equal_scalars(numbers: Iterable[float], dtype: np.dtype[Any]) -> list[Any]:
    """Return those numbers that a dtype of numbers represents, as scalars of it."""
    scalars = []
    for number in numbers:
        with np.errstate(all="ignore"):
            try:
                scalar = dtype.type(number)
            except (OverflowError, ValueError):  # an integer out of range, or NaN as one
                continue
        if scalar == number:
            scalars.append(scalar)
    return scalars
