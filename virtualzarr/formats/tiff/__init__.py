"""TIFF series as virtual arrays: classic and BigTIFF, GeoTIFF, OME, ImageJ and what tifffile reads.

Strips and tiles are referenced in place. Short last strips are chunks of their own length on a
rectilinear grid; strips and tiles that were never written are missing chunks, filled as tifffile
fills them.
"""

from virtualzarr.formats.tiff.scan import scan

__all__ = ["scan"]
