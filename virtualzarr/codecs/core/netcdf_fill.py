"""Default fill values of netCDF: what its library reads where nothing was written."""

from __future__ import annotations

from typing import Any

import numpy as np

# Source: netcdf.h of the netCDF library, NC_FILL_*.
NETCDF_FILL = {
    "i1": -127, "i2": -32767, "i4": -2147483647, "i8": -9223372036854775806,
    "u1": 255, "u2": 65535, "u4": 4294967295, "u8": 18446744073709551614,
    "f4": 9.969209968386869e36, "f8": 9.969209968386869e36,
}  # fmt: skip
"""By numpy's name of the type."""


def netcdf_fill(dtype: np.dtype[Any]) -> Any:
    """Return the default fill value of a type; zero for those netCDF has none for.

    Examples
    --------
    >>> import numpy as np
    >>> netcdf_fill(np.dtype("i2")), netcdf_fill(np.dtype("S1"))
    (np.int16(-32767), np.bytes_(b''))
    """
    zero = np.zeros((), dtype)[()]
    number = NETCDF_FILL.get(dtype.str[1:])
    return zero if number is None else dtype.type(number)
