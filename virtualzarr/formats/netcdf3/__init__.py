"""NetCDF3: classic, 64-bit offset and 64-bit data (CDF-1, 2, 5). Only the header is read."""

from virtualzarr.formats.netcdf3.scan import scan

__all__ = ["scan"]
