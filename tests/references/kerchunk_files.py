"""References as kerchunk makes them."""

from __future__ import annotations

import gc
from contextlib import contextmanager

import pytest


@contextmanager
def no_garbage_collection():
    """Collect no garbage, in any thread, while kerchunk or its likes read HDF5 files.

    kerchunk waits for zarr-python's thread while it holds h5py's lock. If that thread happens to
    collect garbage of h5py's, it waits for the lock, and neither ever goes on.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def hdf5_references(path, **options):
    """Return kerchunk's references of an HDF5 file; skip where it is not installed."""
    hdf = pytest.importorskip("kerchunk.hdf")
    with no_garbage_collection():
        return hdf.SingleHdf5ToZarr(str(path), **options).translate()
