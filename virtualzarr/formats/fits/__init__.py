"""FITS images, tables and random groups of all HDUs; only headers are scanned."""

from virtualzarr.formats.fits.scan import scan

__all__ = ["scan"]
