"""Bridges to xarray and dask."""
