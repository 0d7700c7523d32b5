"""Reference files of others: kerchunk's JSON, versions 0 and 1."""

from virtualzarr.formats.kerchunk.scan import scan

__all__ = ["scan"]
