"""FITS: images and binary tables, in the primary array and in extensions. Only headers are read."""

from virtualzarr.formats.fits.scan import scan

__all__ = ["scan"]
