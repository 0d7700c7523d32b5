"""Reference files of fsspec and kerchunk, JSON and Parquet: readers and writers."""

from virtualzarr.references.kerchunk.scan import scan

__all__ = ["scan"]
