"""TIFF: classic and BigTIFF, GeoTIFF, OME, ImageJ and whatever else tifffile groups into series.

Strips and tiles are referred to where they lie. Short last strips are cells of their own length on
a rectilinear grid; strips and tiles that were never written are missing chunks, filled as tifffile
fills them.
"""

from virtualzarr.formats.tiff.scan import scan

__all__ = ["scan"]
