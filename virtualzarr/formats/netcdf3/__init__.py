"""NetCDF classic files: CDF-1, CDF-2 (64-bit offset) and CDF-5 (64-bit data)."""

from virtualzarr.formats.netcdf3.scan import scan

__all__ = ["scan"]
