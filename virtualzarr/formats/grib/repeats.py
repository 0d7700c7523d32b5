"""Duplicate GRIB messages, equal byte for byte, of which one is used."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from virtualzarr.formats.grib.index import Ints, Steps
from virtualzarr.formats.grib.products import Products
from virtualzarr.formats.grib.references import Places
from virtualzarr.formats.paging import Gather

_MOST = 1 << 28
"""Most bytes that are compared; beyond, duplicates are reported as ambiguous fields."""


def find_repeats(products: Products, places: Places, grid: Ints) -> Steps:
    """Parse: return whether each field repeats an earlier one byte for byte.

    Only fields of equal kind, time, step, member, grid and length are read and compared.
    """
    length = places.end - places.begin
    # Metadata are compared first as they are in memory: in nearly all files no two fields are
    # alike, and no values are read at all.
    table = np.stack(
        [products.kind, products.time, products.step, products.member, grid, length, places.before],
        axis=1,
    )
    _, first, back = np.unique(table, axis=0, return_index=True, return_inverse=True)
    twin = first[back.reshape(-1)]
    again = np.flatnonzero((twin != np.arange(len(twin))) & (products.kind >= 0))
    repeated: NDArray[np.bool_] = np.zeros(len(twin), bool)
    if 2 * int(length[again].sum()) > _MOST:
        return repeated
    for number in again.tolist():
        starts = np.array([places.begin[twin[number]], places.begin[number]])
        rows = yield Gather(starts, int(length[number]))
        repeated[number] = (rows[0] == rows[1]).all()
    return repeated
