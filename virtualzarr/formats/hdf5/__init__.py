"""HDF5 and netCDF4 files: their own index as references to chunks."""

from virtualzarr.formats.hdf5.scanner import scan

__all__ = ["scan"]
