"""Zarr v2 and v3 metadata documents and the one model both are read into."""
