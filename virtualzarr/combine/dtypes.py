"""Common data type of inputs that have several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from virtualzarr.array import Array
from virtualzarr.metadata.dtypes import vlen_kind
from virtualzarr.metadata.portable import get_mask


def common_dtype(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any] | None:
    """Return the data type that holds every value of some others, None if there is none.

    Numbers are promoted as numpy does, unless some could not be told apart any more; texts and
    bytes to the longest; times to the finest unit.

    Examples
    --------
    >>> [common_dtype([np.dtype(name), np.dtype("f4")]) for name in ("i4", "i8")]
    [dtype('float64'), None]
    """
    common: np.dtype[Any] | None = dtypes[0]
    for dtype in dtypes[1:]:
        if common is not None and common is not dtype:
            common = _promote(common, dtype)
    return common


def _promote(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any] | None:
    if a == b:
        return a if vlen_kind(a) == vlen_kind(b) else None
    kinds = {a.kind, b.kind}
    # Promotion of numbers to text, or of Booleans to numbers, would change what values mean.
    if not (kinds <= set("iufc") or (len(kinds) == 1 and kinds < set("SUMm"))):
        return None
    try:
        common = np.promote_types(a, b)
    except TypeError:  # months are of no fixed length
        return None
    return common if _can_hold(common, a) and _can_hold(common, b) else None


def _can_hold(wide: np.dtype[Any], narrow: np.dtype[Any]) -> bool:
    """Whether a data type has every number that another has."""
    if narrow.kind not in "iu" or wide.kind not in "fc":
        return True
    bits = 8 * narrow.itemsize - (narrow.kind == "i")
    return bits <= np.finfo(wide).nmant + 1


def iter_inexact_masks(array: Array, dtype: np.dtype[Any]) -> Iterator[tuple[str, Any]]:
    """Yield attributes whose number, the mark of missing values, means none after a cast.

    1e20 is not a float32: what is marked by the float32 next to it is another number in float64.
    """
    if dtype == array.dtype or array.dtype.kind not in "fc":
        return
    for name, number in iter_masks(array):
        if isinstance(number, int | float | np.number):
            with np.errstate(all="ignore"):
                element = array.dtype.type(number)
            # The array's own elements compare with the rounded mark, elements after the cast with
            # the exact one.
            if element == element and complex(element) != complex(number):
                yield name, number


def iter_masks(array: Array) -> Iterator[tuple[str, Any]]:
    """Yield the numbers that mark missing values, and None where there is none, by attribute."""
    for name in ("_FillValue", "missing_value"):
        value = get_mask(array.metadata) if name == "_FillValue" else array.attrs.get(name)
        for number in value if isinstance(value, list) else [value]:
            yield name, number
