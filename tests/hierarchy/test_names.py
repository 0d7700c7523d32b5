"""Keys of chunks, dimension names and attributes of new arrays."""

from __future__ import annotations

import numpy as np

import virtualzarr as vz
from tests.hierarchy.helpers import document


def test_key_encodings():
    for given_, key in (
        ({}, "c/0/0"),
        ({"dimension_separator": "."}, "c.0.0"),
        ({"chunk_key_encoding": "v2"}, "0.0"),
        ({"chunk_key_encoding": {"name": "v2", "separator": "/"}}, "0/0"),
        ({"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "/"}}}, "0/0"),
        ({"zarr_format": 2}, "0.0"),
        ({"zarr_format": 2, "dimension_separator": "/"}, "0/0"),
    ):
        store = {}
        vz.create_array(store, data=np.ones((2, 2)), **given_)
        assert key in store


def test_dimension_names():
    store = {}
    array = vz.create_array(store, shape=(2, 3), dtype="i1", dimension_names=["x", None])
    assert array.dims == ("x", None)
    v2 = {}
    vz.create_array(v2, shape=(2, 3), dtype="i1", dimension_names=["x", "y"], zarr_format=2)
    assert document(v2, ".zattrs") == {"_ARRAY_DIMENSIONS": ["x", "y"]}
    assert vz.open(v2).dims == ("x", "y")


def test_attributes_of_numpy():
    attributes = {"scale": np.float32(0.5), "range": np.arange(2), "deep": {"n": [np.int8(1)]}}
    array = vz.create_array({}, shape=1, dtype="i1", attributes=attributes)
    assert array.attrs == {"scale": 0.5, "range": [0, 1], "deep": {"n": [1]}}
