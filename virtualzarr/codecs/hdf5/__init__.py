"""Filters and types of HDF5."""
