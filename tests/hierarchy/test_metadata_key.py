"""Metadata documents under another name: `metadata_key`, as TensorStore has it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorstore as ts

import virtualzarr as vz
from virtualzarr.errors import MetadataError, NodeExistsError, NodeNotFoundError, UnsupportedError

KEY = "metadata.json"


def _spec(path, zarr_format, **more):
    return {
        "driver": "zarr" if zarr_format == 2 else "zarr3",
        "kvstore": {"driver": "file", "path": f"{path}/"},
        **more,
    }


def test_tensorstore_reads_and_resizes(tmp_path):
    path = tmp_path / "a"
    data = np.arange(12, dtype="i4").reshape(3, 4)
    array = vz.create_array(path, data=data, chunks=2, zarr_format=2, metadata_key=KEY)
    assert (path / KEY).exists()
    assert not (path / ".zarray").exists()
    theirs = ts.open(_spec(path, 2, metadata_key=KEY)).result()
    np.testing.assert_array_equal(theirs.read().result(), data)

    theirs.resize(exclusive_max=[5, 4]).result()
    array.refresh()
    assert array.shape == (5, 4)
    array.append(np.ones((1, 4)))
    assert ts.open(_spec(path, 2, metadata_key=KEY)).result().shape == (6, 4)


def test_v3_is_what_tensorstore_reads_under_the_usual_name(tmp_path):
    path = tmp_path / "a"
    data = np.arange(12, dtype="i4").reshape(3, 4)
    vz.create_array(path, data=data, chunks=2, metadata_key=KEY)
    assert not (path / "zarr.json").exists()
    (path / KEY).rename(path / "zarr.json")  # TensorStore's driver of v3 knows this one only
    np.testing.assert_array_equal(ts.open(_spec(path, 3)).result().read().result(), data)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("given", [False, True])
def test_reads_tensorstore(tmp_path, zarr_format, given):
    path = tmp_path / "a"
    spec = _spec(path, zarr_format, **({"metadata_key": KEY} if zarr_format == 2 else {}))
    theirs = ts.open(spec, create=True, dtype=ts.int16, shape=[3, 4]).result()
    theirs[:2].write(np.ones((2, 4), "i2")).result()
    if zarr_format == 3:
        (path / "zarr.json").rename(path / KEY)
    params = {"zarr_format": zarr_format} if given else {}
    for array in (
        vz.open_array(path, metadata_key=KEY, **params),
        vz.open(path, metadata_key=KEY, **params),
        vz.open(tmp_path, "a", mode="r+", metadata_key=KEY, **params),
    ):
        assert array.metadata.zarr_format == zarr_format
        assert array[...].tolist() == [[1] * 4, [1] * 4, [0] * 4]
    array[2] = 5
    assert theirs[2].read().result().tolist() == [5] * 4
    view = vz.open(path, metadata_key=KEY, open_as_void=True)
    assert view[2, 0].tolist() == [5, 0]


def test_is_found_by_its_name_alone():
    store = {}
    vz.create_array(store, name="g/a", shape=2, dtype="i4", metadata_key=KEY)
    assert sorted(store) == ["g/a/metadata.json", "g/zarr.json", "zarr.json"]
    with pytest.raises(NodeNotFoundError):
        vz.open_array(store, "g/a", mode="r")
    with pytest.raises(NodeNotFoundError):
        vz.open_array(store, "g/a", mode="r", metadata_key="other.json")
    assert list(vz.open_group(store)["g"]) == []
    assert vz.open_array(store, "g/a", shape=2, metadata_key=KEY).shape == (2,)
    vz.create_array(store, name="g/a", shape=3, dtype="i4", metadata_key=KEY, overwrite=True)
    assert vz.open_array(store, "g/a", mode="r", metadata_key=KEY).shape == (3,)
    with pytest.raises(NodeExistsError):
        vz.create_array(store, name="g/a", shape=3, dtype="i4", metadata_key=KEY)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_consolidated_metadata_do_not_name_it(zarr_format):
    store = {}
    group = vz.create_group(store, zarr_format=zarr_format)
    group.create_array("b", shape=2, dtype="i4")
    group.consolidate_metadata()
    before = dict(store)
    array = vz.create_array(
        store, name="a", shape=2, dtype="i4", zarr_format=zarr_format, metadata_key=KEY
    )
    array.resize(4)
    array.attrs["x"] = 1
    assert {key: store[key] for key in before} == before
    assert list(vz.open(store)) == ["b"]
    again = vz.open_array(store, "a", metadata_key=KEY)
    assert (again.shape, again.attrs["x"]) == ((4,), 1)


@pytest.mark.parametrize("mode", ["a", "w-"])
def test_no_second_array_over_the_same_chunks(mode):
    store = {}
    vz.create_array(store, name="a", data=np.arange(3))
    with pytest.raises(NodeExistsError, match="usual name"):
        vz.open_array(store, "a", mode=mode, shape=3, dtype="i8", metadata_key=KEY)
    vz.open_array(store, "a", mode="w", shape=3, dtype="i8", metadata_key=KEY)
    assert "a/zarr.json" not in store
    assert not vz.open_array(store, "a", metadata_key=KEY)[...].any()


def test_the_usual_name():
    store = {}
    vz.create_array(store, shape=2, dtype="i4", metadata_key="zarr.json")
    assert vz.open(store, metadata_key="zarr.json").shape == (2,)
    assert vz.open(store).shape == (2,)


@pytest.mark.parametrize(
    "key", ["", ".", "..", "a/b", ".zattrs", ".zgroup", ".zarray", "c", "0.1", "c.0"]
)
def test_names_that_are_taken(key):
    with pytest.raises(MetadataError, match="metadata_key"):
        vz.create_array({}, shape=2, dtype="i4", metadata_key=key)


def test_broken_documents():
    with pytest.raises(MetadataError):
        vz.open_array({KEY: b"{"}, metadata_key=KEY)
    with pytest.raises(MetadataError):
        vz.open_array({KEY: json.dumps([1]).encode()}, mode="r", metadata_key=KEY)


def test_files_of_other_formats_have_none(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    with pytest.raises(UnsupportedError, match="metadata_key"):
        vz.open(tmp_path / "a.npy", format="npy", metadata_key=KEY)


@pytest.mark.parametrize("option", [{"version": 1}, {"at": "2024-01-01"}, {"tag": "v1"}])
def test_versions_are_refused(option):
    vz.create_array(store := {}, shape=2, dtype="i4", metadata_key=KEY)
    with pytest.raises(UnsupportedError, match="version, at and tag are of datasets"):
        vz.open(store, metadata_key=KEY, **option)
