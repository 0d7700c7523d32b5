"""Reference files of fsspec and kerchunk, JSON and Parquet: readers and writers."""
