"""Arrays of real files joined to themselves and to each other: what numpy joins, or an error."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path

import numpy as np
import pytest

import virtualzarr as vz
from tests.combine.makers import plain
from tests.realdata import real_files
from tests.sweeps import some
from virtualzarr.combine.dtypes import common_dtype
from virtualzarr.combine.value_checks import is_equal
from virtualzarr.errors import MismatchError, UnsupportedError, VirtualZarrError
from virtualzarr.ingest.detect import scan


def small_arrays(folder):
    """Yield what can be read of files of at most 100 kB."""
    for path in some(sorted(folder.rglob("*")), 2):
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
            assert is_equal(joined, twice(values, axis, array.dtype, new=False)), where
            count += 1
        stacked = vz.stack([array, array], axis=array.ndim)
        assert is_equal(stacked[...], twice(values, array.ndim, array.dtype, new=True)), where
    assert count > 100


def fitting_pairs(arrays):
    """Yield pairs that differ in length along one axis at most, and that axis."""
    by_rest = {}
    for array in arrays:
        for axis in range(array.ndim):
            rest = (axis, *array.shape[:axis], -1, *array.shape[axis + 1 :])
            by_rest.setdefault(rest, []).append(array)
    for (axis, *_), alike in by_rest.items():
        # Not all with all: each with the next few, which are of other files.
        for step in (1, 3):
            for pair in zip(alike, alike[step:], strict=False):
                yield axis, pair


def test_joined_to_each_other():
    joined = skipped = 0
    arrays = []
    for kind in ("hdf5", "tiff"):
        found = (plain(a) for _, _, a in small_arrays(Path(real_files(kind))) if a.ndim and a.size)
        arrays += itertools.islice(found, 400)
    for axis, pair in fitting_pairs(arrays):
        try:
            values = [np.asarray(array[...], array.dtype) for array in pair]
        except VirtualZarrError:
            continue
        where = [f"{array.manifest.sources} {array.metadata.pipeline}" for array in pair]
        dtype = common_dtype([array.dtype for array in pair])
        try:
            made = vz.concat(list(pair), axis, harmonize="fill")
        except (MismatchError, UnsupportedError):
            assert dtype is None or dtype.hasobject, where
            skipped += 1
            continue
        if dtype.names is None:
            expected = np.concatenate([value.astype(dtype) for value in values], axis)
            assert is_equal(made[...], expected), where
            joined += 1
    assert joined > 100
    assert skipped > 0
