"""References as kerchunk makes them."""

from __future__ import annotations

import gc

import pytest


def hdf5_references(path, **options):
    """Return kerchunk's references of an HDF5 file; skip where it is not installed.

    kerchunk waits for zarr-python's thread while it holds h5py's lock. If that thread happens to
    collect garbage of h5py's, it waits for the lock, and neither ever goes on.
    """
    hdf = pytest.importorskip("kerchunk.hdf")
    gc.collect()
    gc.disable()
    try:
        return hdf.SingleHdf5ToZarr(str(path), **options).translate()
    finally:
        gc.enable()
