"""Reference files of others: kerchunk's JSON, versions 0 and 1, and Parquet."""

from virtualzarr.formats.kerchunk.scan import scan

__all__ = ["scan"]
