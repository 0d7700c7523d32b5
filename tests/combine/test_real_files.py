"""Arrays of real files joined to themselves: their own edges end up in the middle."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import virtualzarr as vz
from tests.realdata import real_files
from virtualzarr.combine.values import same_values
from virtualzarr.errors import VirtualZarrError
from virtualzarr.formats import scan


def small_arrays(folder):
    """Yield what can be read of files of at most 100 kB."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.stat().st_size > 100_000:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                group = scan(path, on_error="warn")
        except VirtualZarrError:
            continue  # deliberately broken ones are the scanners' concern
        for name, array in group.members(None):
            if isinstance(array, vz.Array) and array.nbytes <= 100_000 and array.nchunks <= 200:
                yield path, name, array


def twice(values, axis, dtype, *, new):
    """Return two copies along an axis; numpy's own functions change structures with padding."""
    both = np.empty((2, *values.shape), dtype)
    both[:] = values
    both = np.moveaxis(both, 0, axis)
    shape = list(values.shape)
    if not new:
        shape[axis] *= 2
        return both.reshape(shape)
    return both


@pytest.mark.parametrize("kind", ["hdf5", "tiff"])
def test_joined_to_themselves(kind):
    count = 0
    for path, name, array in small_arrays(Path(real_files(kind))):
        try:
            values = np.asarray(array[...], array.dtype)
        except VirtualZarrError:
            continue
        where = f"{path} {name} {array.metadata.pipeline}"
        for axis in range(array.ndim):
            joined = vz.concat([array, array], axis)[...]
            assert same_values(joined, twice(values, axis, array.dtype, new=False)), where
            count += 1
        stacked = vz.stack([array, array], axis=array.ndim)
        assert same_values(stacked[...], twice(values, array.ndim, array.dtype, new=True)), where
    assert count > 100
