"""GRIB editions 1 and 2: section headers are scanned, ecCodes decodes values on read."""

from virtualzarr.formats.grib.scan import scan

__all__ = ["scan"]
