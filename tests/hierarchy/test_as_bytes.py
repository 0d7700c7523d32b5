"""The bytes of elements: `open_as_void`, as TensorStore has it."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import tensorstore as ts

import virtualzarr as vz
from virtualzarr.errors import NodeNotFoundError, UnsupportedError

RECORD = [("a", "<i2"), ("b", ">f4"), ("c", "S3")]
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
DELTA = {"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}}
ARRAYS = {
    "v2": {"dtype": "<i4", "zarr_format": 2, "fill_value": 258},
    "v2-big": {"dtype": ">f8", "zarr_format": 2, "fill_value": 1.5},
    "v2-order-F": {"dtype": "<u2", "zarr_format": 2, "order": "F"},
    "v2-record": {"dtype": RECORD, "zarr_format": 2},
    "v2-bool": {"dtype": "?", "zarr_format": 2},
    "v3": {"dtype": "i4", "fill_value": -2},
    "v3-big": {"dtype": "f4", "fill_value": 0.1, "serializer": BIG},
    "v3-order-F": {"dtype": "u2", "order": "F"},
    "v3-record": {"dtype": [("a", "i2"), ("b", "f4")], "serializer": BIG},
    "v3-shards": {"dtype": "f2", "shards": (4, 6), "fill_value": 3},
}


def _tensorstore(path, zarr_format):
    return ts.open(
        {
            "driver": "zarr" if zarr_format == 2 else "zarr3",
            "kvstore": {"driver": "file", "path": f"{path}/"},
            "open_as_void": True,
        }
    ).result()


def _bytes(store):
    """Read bytes, which TensorStore gives numpy as elements of length 0."""
    data = store.read().result()
    memory = (ctypes.c_uint8 * int(np.prod(data.shape))).from_address(data.ctypes.data)
    assert data.flags.c_contiguous or data.strides[-1] == 1
    return np.ctypeslib.as_array(memory).reshape(data.shape).copy()


@pytest.mark.parametrize("name", ARRAYS)
def test_tensorstore_reads_and_writes_the_same(tmp_path, name):
    params = ARRAYS[name]
    path, zarr_format = tmp_path / "a", params.get("zarr_format", 3)
    array = vz.create_array(path, shape=(5, 7), chunks=(2, 3), **params)
    view = vz.open(path, mode="r+", open_as_void=True)
    assert (view.shape, view.dtype) == ((5, 7, array.dtype.itemsize), np.uint8)
    theirs = _tensorstore(path, zarr_format)
    np.testing.assert_array_equal(view[...], _bytes(theirs))  # fill values

    most = 2 if name == "v2-bool" else 120
    ours = np.random.default_rng(0).integers(0, most, (3, 4, view.shape[2]), dtype="u1")
    view[1:4, 2:6] = ours
    np.testing.assert_array_equal(_bytes(_tensorstore(path, zarr_format)), view[...])
    np.testing.assert_array_equal(view[1:4, 2:6], ours)

    theirs[2:5, 0:3, 0].write(ts.array([[b"\x01"] * 3] * 3, dtype=ts.byte)).result()
    again = vz.open(path, open_as_void=True)
    assert (again[2:5, 0:3, 0] == 1).all()
    np.testing.assert_array_equal(again[...], _bytes(_tensorstore(path, zarr_format)))


def test_are_what_is_stored():
    store = {}
    values = np.arange(6, dtype=">i2").reshape(2, 3)
    vz.create_array(store, data=values, zarr_format=2, compressors=None, chunks=(2, 3))
    view = vz.open(store, mode="r+", open_as_void=True)
    assert view[...].tobytes() == store["0.0"] == values.tobytes()
    view[1, 2] = [1, 2]
    view[0, :, 1] = 9
    assert vz.open(store)[...].tolist() == [[9, 9, 9], [3, 4, 258]]
    assert view.oindex[[1], [2]].tolist() == [[[1, 2]]]


def test_follow_another_shape():
    store = {}
    array = vz.create_array(store, shape=(2,), dtype="i2", fill_value=1)
    view = vz.open(store, mode="r+", open_as_void=True, recheck_cached_metadata=True)
    array.resize(4)
    view[3] = [7, 0]
    assert view[...].tolist() == [[1, 0], [1, 0], [1, 0], [7, 0]]
    vz.create_array(store, shape=(2,), dtype="i4", overwrite=True)
    with pytest.raises(UnsupportedError, match="another size"):
        view[0]


def test_the_document_stays():
    store = {}
    vz.create_array(store, shape=(2,), dtype="f4", attributes={"x": 1})
    before = store["zarr.json"]
    vz.open(store, mode="r+", open_as_void=True)[...] = 1
    assert store["zarr.json"] == before
    with pytest.raises(vz.errors.AccessError):
        vz.open(store, open_as_void=True)[...] = 1


def test_new_arrays():
    view = vz.open({}, mode="w", shape=(2,), dtype="i2", open_as_void=True)
    assert view.shape == (2, 2)


def test_caches_are_not_mixed():
    store, cache = {}, vz.ChunkCache(1 << 20)
    vz.create_array(store, data=np.array([258, 1], "i2"), chunks=2)
    for _ in range(2):
        assert vz.open(store, cache=cache)[...].tolist() == [258, 1]
        assert vz.open(store, cache=cache, open_as_void=True)[...].tolist() == [[2, 1], [1, 0]]


def test_of_other_formats(tmp_path):
    np.save(tmp_path / "a.npy", np.array([258, 1], ">i2"))
    assert vz.open(tmp_path / "a.npy", "data", open_as_void=True)[...].tolist() == [[1, 2], [0, 1]]


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"dtype": str}, "vlen-utf8"),
        ({"dtype": "i4", "filters": DELTA}, "delta"),
        ({"dtype": "f4", "serializer": "numcodecs.pcodec"}, "pcodec"),
        ({"dtype": "?", "serializer": "packbits"}, "packbits"),
    ],
)
def test_codecs_of_the_data_type_are_refused(params, match):
    store = {}
    if params.get("filters"):
        params = params | {
            "filters": [{"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}}]
        }
    vz.create_array(store, name="x", shape=(2,), **params)
    with pytest.raises(UnsupportedError, match=match) as caught:
        vz.open(store, "x", open_as_void=True)
    assert caught.value.variable == "x"


def test_groups_have_none():
    store = {}
    vz.create_group(store)
    with pytest.raises(NodeNotFoundError, match="no elements"):
        vz.open(store, open_as_void=True)
