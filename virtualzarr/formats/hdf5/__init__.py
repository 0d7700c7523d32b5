"""HDF5 and netCDF4 files: their chunk indexes as references."""

from virtualzarr.formats.hdf5.scanner import scan

__all__ = ["scan"]
