"""Messages that are in a file twice, byte for byte: one of them is enough."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from virtualzarr.formats.grib.index import Ints, Steps
from virtualzarr.formats.grib.products import Products
from virtualzarr.formats.grib.references import Places
from virtualzarr.formats.paging import Gather

_MOST = 1 << 28
"""Bytes that are compared; beyond, fields that seem the same are told to be."""


def find_repeats(products: Products, places: Places, grid: Ints) -> Steps:
    """Parse: return whether each field is one that was there before, in the same bytes.

    Only what is of one kind, time, step, member, grid and length is read, and compared.
    """
    length = places.end - places.begin
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
