"""Values of arrays for people: as numbers that can be drawn, and as text where they cannot."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.metadata.portable import as_exact_mask, get_mask
from virtualzarr.serve.page.describe import value_text
from virtualzarr.serve.page.sampling import NoPictureError, chunk_bytes, is_partly_read

_SHOWN = 8
"""Of values that are no numbers, so many are listed."""

_MOST = 4 << 20
"""Decoded bytes of a chunk that is read for them, at most."""


def is_drawable(array: Array) -> bool:
    """Tell whether an array has elements, and they are numbers, times or truth values."""
    dtype = array.dtype
    # Small floats of ml_dtypes are void to numpy, but of a type of their own.
    is_number = dtype.kind in "biufcmM" or (dtype.kind == "V" and dtype.type is not np.void)
    return bool(is_number and array.size and array.ndim)


def as_numbers(array: Array, values: Any) -> NDArray[np.float64]:
    """Return values as the attributes say what they mean, and NaN where they are missing.

    Of complex numbers, their absolute values.
    """
    raw = np.asarray(values)
    if raw.dtype.kind in "mM":
        return np.where(np.isnat(raw), np.nan, raw.astype("i8").astype("f8"))
    attributes = array.metadata.attributes
    missing = np.zeros(raw.shape, bool)
    for mask in [get_mask(array.metadata), *_as_list(attributes.get("missing_value"))]:
        exact = as_exact_mask(mask, array.dtype, attributes.get("_Unsigned"))
        if exact is not None:
            missing |= raw == exact
    scale, offset = (_number(attributes.get(name)) for name in ("scale_factor", "add_offset"))
    numbers = _as_float(raw, attributes.get("_Unsigned"))
    numbers = numbers * (1.0 if scale is None else scale) + (offset or 0.0)
    return np.where(missing | ~np.isfinite(numbers), np.nan, numbers)


def _as_float(raw: NDArray[Any], unsigned: Any) -> NDArray[np.float64]:
    if raw.dtype.kind == "c":
        return np.abs(raw).astype("f8")
    # netCDF's convention for integers that are stored with the other sign.
    if raw.dtype.kind in "iu" and str(unsigned).lower() in ("true", "false"):
        kind = "u" if str(unsigned).lower() == "true" else "i"
        raw = raw.astype(raw.dtype.newbyteorder("=")).view(f"{kind}{raw.dtype.itemsize}")
    return raw.astype("f8")


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def _number(value: Any) -> float | None:
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def sample_text(array: Array) -> str:
    """Return some values as text, or why there are none.

    Raises
    ------
    NoPictureError
        Too much would have to be read.

    Examples
    --------
    >>> import virtualzarr as vz
    >>> a = vz.create_array({}, shape=(3,), dtype="S2")
    >>> a[...] = [b"a", b"b", b"c"]
    >>> sample_text(a)
    'a, b, c'
    """
    if not array.size:
        return "The array has no elements."
    if chunk_bytes(array) > _MOST and not is_partly_read(array):
        raise NoPictureError("the chunks are too large to show values of them")
    attributes = array.metadata.attributes
    if not array.ndim:
        return value_text(array[()], attributes)
    first = array[(*(0 for _ in array.shape[:-1]), slice(_SHOWN))]
    texts = [value_text(value, attributes) for value in first]
    return ", ".join(texts) + (", …" if array.size > len(texts) else "")


def limit_text(array: Array, value: float | None) -> str:
    """Return the value of a colour, or an end of a line, for people."""
    if value is None:
        return ""
    if array.dtype.kind in "mM":
        unit, count = np.datetime_data(array.dtype)
        code = f"{array.dtype.kind}8[{count}{unit}]" if unit != "generic" else "m8"
        return str(np.int64(int(value)).view(code)).replace("T", " ")
    text = value_text(value, array.metadata.attributes)
    # Anything else than the number is a date.
    return f"{value:.5g}" if text == value_text(value, {}) else text
