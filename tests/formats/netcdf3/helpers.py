"""Writing netCDF3 files, by two libraries, and by hand."""

from __future__ import annotations

import struct

import numpy as np

from tests.fidelity.netcdf3 import check
from virtualzarr.formats.netcdf3 import scan

CLASSIC = "bhifd"
"""Types of numbers in all versions, as numpy calls them; CDF-5 has more."""


def check_file(path):
    """Compare all of a file with netCDF4; return the group."""
    rows = list(check(path))
    assert [row for row in rows if row.outcome != "equal"] == []
    return scan(path)


def write_netcdf4(path, format, dims, variables):
    """Write variables, given as names of dimensions and values."""
    import netCDF4

    with netCDF4.Dataset(path, "w", format=format) as file:
        file.setncattr("title", "made for a test")
        for name, length in dims.items():
            file.createDimension(name, length)
        for name, (axes, values) in variables.items():
            made = file.createVariable(name, values.dtype, axes)
            made.setncattr("units", "K")
            if values.dtype.kind != "S":
                made.setncattr("valid_range", np.arange(2, dtype=values.dtype))
            made[tuple(slice(n) for n in values.shape)] = values


def values_of(dtype, shape, seed=0):
    """Make values of all bits."""
    raw = np.random.default_rng(seed).integers(32, 127, (*shape, np.dtype(dtype).itemsize), "u1")
    return raw.view(dtype).reshape(shape)


def header(nrecords, row, nvars, size):
    """Return a CDF-2 header: `nvars` int variables of records of `row` numbers each."""

    def name(text):
        return struct.pack(">i", len(text)) + text.encode() + bytes(-len(text) % 4)

    dims = name("time") + struct.pack(">i", 0) + name("x") + struct.pack(">i", row)
    begin = 1 << 20
    variables = b"".join(
        name(f"v{i}") + struct.pack(">iiiiiiiq", 2, 0, 1, 0, 0, 4, 4 * row, begin + 4 * row * i)
        for i in range(nvars)
    )
    out = b"CDF\2" + struct.pack(">iii", nrecords, 10, 2) + dims + struct.pack(">ii", 0, 0)
    return out + struct.pack(">ii", 11, nvars) + variables, begin + size
