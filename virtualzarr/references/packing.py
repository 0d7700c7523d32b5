"""Notes on packed arrays whose attributes have data types that JSON does not keep."""

from __future__ import annotations

from typing import Any

import numpy as np

from virtualzarr.array import Array
from virtualzarr.combine.cf_packing import CFPacking
from virtualzarr.metadata import TypedFloat, TypedInt

FACTORS = ("scale_factor", "add_offset")


def packing_note(array: Array) -> str | None:
    """Return that readers of documents unpack other numbers than those of the file, or None.

    xarray calculates with the data types of the factors; a number of JSON has none, so that it is
    a float64, or one of whatever data type the other operand has.
    """
    typed = {
        name: value.dtype.name
        for name in FACTORS
        if isinstance(value := array.attrs.get(name), TypedFloat | TypedInt)
    }
    if not typed or array.dtype.kind not in "iuf":
        return None
    plain = array.replace(array.metadata.with_attributes(_without_types(array)))
    before, after = _calculation(array), _calculation(plain)
    if before == after:
        return None
    names = ", ".join(f"{name} is {dtype}" for name, dtype in typed.items())
    return (
        f"{names}, which JSON does not keep: xarray unpacks {after[0]} calculated in {after[1]}, "
        f"from the file {before[0]} calculated in {before[1]}, so that digits may differ; the "
        "native form keeps them"
    )


def _without_types(array: Array) -> dict[str, Any]:
    plain = {
        name: value.scalar.item()
        for name, value in array.attrs.items()
        if isinstance(value, TypedFloat | TypedInt)
    }
    return {**array.attrs, **plain}


def _calculation(array: Array) -> tuple[str, str]:
    """Return the data types of the numbers that are unpacked, and in which they are calculated."""
    packing = CFPacking.from_array(array)
    typed = [
        value.dtype
        for name in FACTORS
        if isinstance(value := array.attrs.get(name), TypedFloat | TypedInt)
    ]
    result = packing.calculated
    return result.name, (np.result_type(result, *typed) if result.kind == "f" else result).name
