"""GRIB editions 1 and 2. Heads of messages are read; ecCodes decodes values when they are read."""

from virtualzarr.formats.grib.scan import scan

__all__ = ["scan"]
