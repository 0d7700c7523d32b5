"""One module per foreign format; each scans a file's own index into a group of virtual arrays."""

from virtualzarr.formats.detect import FORMATS, detect, scan

__all__ = ["FORMATS", "detect", "scan"]
