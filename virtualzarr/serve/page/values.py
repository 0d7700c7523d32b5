"""Values of arrays for people: as numbers that can be drawn, and as text where they cannot."""

from __future__ import annotations

import numpy as np

from virtualzarr.array import Array
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
