"""Values as numbers: unpacked and masked as their attributes say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.metadata.portable import find_missing


def as_numbers(array: Array, values: Any) -> NDArray[np.float64]:
    """Return values as the attributes say what they mean, and NaN where they are missing.

    Of complex numbers, their absolute values.
    """
    raw = np.asarray(values)
    if raw.dtype.kind in "mM":
        return np.where(np.isnat(raw), np.nan, raw.astype("i8").astype("f8"))
    attributes = array.metadata.attributes
    missing = find_missing(array.metadata, raw)
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


def _number(value: Any) -> float | None:
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None
