"""What new arrays are like when little is said of them."""

from __future__ import annotations

import numpy as np
import pytest

import virtualzarr as vz
from tests.hierarchy.helpers import BYTES, ZSTD, document


def test_v3():
    store = {}
    array = vz.create_array(store, shape=(10, 20), dtype="f4")
    assert document(store) == {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [10, 20],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [10, 20]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0,
        "codecs": [BYTES, ZSTD],
        "attributes": {},
        "storage_transformers": [],
    }
    assert array[3, 4] == 0


def test_v2():
    store = {}
    vz.create_array(store, shape=(10, 20), dtype=">f4", zarr_format=2)
    assert document(store, ".zarray") == {
        "zarr_format": 2,
        "shape": [10, 20],
        "chunks": [10, 20],
        "dtype": ">f4",
        "fill_value": 0.0,
        "order": "C",
        "filters": None,
        "compressor": {"id": "zstd", "level": 0},
        "dimension_separator": ".",
    }


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    "dtype",
    ["?", "u1", ">i2", "c16", "S3", "U4", "M8[10us]", str, [("a", "<i2"), ("b", ">f8")]],
)
def test_data_types(dtype, zarr_format):
    store = {}
    array = vz.create_array(store, shape=(3,), dtype=dtype, zarr_format=zarr_format)
    zero = np.zeros(3, np.dtype(dtype) if dtype is not str else object)
    expected = [""] * 3 if dtype is str else zero.tolist()
    if zero.dtype.kind == "M":
        expected = [None] * 3  # as numpy lists what is not a time
    assert vz.open_array(store)[:].tolist() == array[:].tolist() == expected


@pytest.mark.parametrize("data", [np.arange(6.0).reshape(2, 3), [["a", "bc"]], 5])
def test_data(data):
    store = {}
    array = vz.create_array(store, data=data)
    np.testing.assert_array_equal(array[...], data)
    assert vz.open(store).dtype == np.asarray(data).dtype


def test_fill_of_data():
    array = vz.create_array({}, data=np.arange(4), dtype="f8", fill_value=np.nan)
    assert array.dtype == "f8"
    assert np.isnan(array.fill_value)
    assert array[:].tolist() == [0, 1, 2, 3]


def test_null_fill():
    store = {}
    vz.create_array(store, shape=2, dtype="i4", fill_value=None, zarr_format=2)
    assert document(store, ".zarray")["fill_value"] is None
    v3 = vz.create_array({}, shape=2, dtype="i4", fill_value=None)
    assert v3.fill_value == 0
