"""Other libraries: xarray, dask, zarr-python and numcodecs."""
