"""Arrays as dask arrays."""

from __future__ import annotations

import numpy as np
import pytest

from grids import RectilinearGrid, RegularGrid
from tests.integrations.helpers import metadata
from virtualzarr.array import Array
from virtualzarr.integrations.dask import to_dask
from virtualzarr.manifest import Manifest, Source, Sources

pytest.importorskip("dask.array")


def uneven():
    data = np.arange(8 * 3, dtype="i4").reshape(8, 3)
    meta = metadata(RectilinearGrid((8, 3), [[1, 5, 2], [3]]), "i4")
    sizes = np.array([[1], [5], [2]]) * 12
    offsets = np.array([[0], [1], [6]]) * 12
    sources = Sources([Source.inline(data.tobytes())])
    return Array.from_manifest(meta, Manifest((3, 1), sources, 0, offsets, sizes), "a"), data


def test_chunks_and_values():
    array, data = uneven()
    lazy = to_dask(array)
    assert lazy.chunks == ((1, 5, 2), (3,))
    assert lazy.dtype == data.dtype
    np.testing.assert_array_equal(lazy.compute(), data)
    np.testing.assert_array_equal(lazy[::-2, [2, 0]].compute(), data[::-2][:, [2, 0]])
    np.testing.assert_array_equal((lazy.T + 1).sum(0).compute(), (data.T + 1).sum(0))


def test_other_chunks_can_be_asked_for():
    array, data = uneven()
    lazy = to_dask(array, chunks=(4, 2), name=False)
    assert lazy.chunks == ((4, 4), (2, 1))
    np.testing.assert_array_equal(lazy.compute(), data)


def test_equal_arrays_have_equal_names():
    assert to_dask(uneven()[0]).name == to_dask(uneven()[0]).name


@pytest.mark.parametrize("shape", [(0,), (0, 3), ()])
def test_empty_and_scalar_arrays(shape):
    meta = metadata(RegularGrid(shape, tuple(max(n, 1) for n in shape)), "f4")
    array = Array.from_manifest(meta, Manifest.missing(meta.grid.grid_shape))
    assert to_dask(array).compute().shape == shape
