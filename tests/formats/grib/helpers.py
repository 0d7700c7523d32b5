"""Messages that ecCodes writes, and files of them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

eccodes = pytest.importorskip("eccodes")

from tests.fidelity.grib import check  # noqa: E402

SAMPLES = {1: "regular_ll_pl_grib1", 2: "regular_ll_pl_grib2"}


def message(edition: int = 2, values: Any = None, sample: str = "", **keys: Any) -> bytes:
    """Return a message; by default with a value for each of 16 x 31 points."""
    handle = eccodes.codes_new_from_samples(sample or SAMPLES[edition], eccodes.CODES_PRODUCT_GRIB)
    packing = keys.pop("packingType", None)
    for key, value in ({"shortName": "t"} | keys).items():
        eccodes.codes_set(handle, key, value)
    if values is None:
        values = np.arange(eccodes.codes_get_size(handle, "values"), dtype=float)
    values = np.asarray(values, float).reshape(-1)
    if np.isnan(values).any():
        eccodes.codes_set(handle, "missingValue", 1e6)
        eccodes.codes_set(handle, "bitmapPresent", 1)
        values = np.where(np.isnan(values), 1e6, values)
    eccodes.codes_set_values(handle, values)
    if packing:
        eccodes.codes_set(handle, "packingType", packing)
        assert eccodes.codes_get(handle, "packingType") == packing
    found = eccodes.codes_get_message(handle)
    eccodes.codes_release(handle)
    return found


def small(value: float, /, **keys: Any) -> bytes:
    """Return a message of a few points that all have one value."""
    return message(values=np.full(6, value), **{"Ni": 3, "Nj": 2, **keys})


def outcomes(path: Any) -> list[Any]:
    """Compare every field of a file with ecCodes, and return what is not equal."""
    with warnings.catch_warnings():
        rows = list(check(path))
    assert rows
    return [row for row in rows if row.outcome != "equal"]
