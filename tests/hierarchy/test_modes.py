"""The modes in which arrays and groups are opened."""

from __future__ import annotations

import json

import pytest

import virtualzarr as vz
from virtualzarr.errors import (
    AccessError,
    NodeExistsError,
    NodeNotFoundError,
    UnsupportedError,
)


def test_reading(store):
    for array in (vz.open(store), vz.open_array(store, mode="r")):
        assert array[1, 1] == 7
        with pytest.raises(AccessError):
            array[0, 0] = 5
        with pytest.raises(AccessError):
            array.attrs["units"] = "m"
        with pytest.raises(AccessError):
            array.resize((5, 6))
    assert vz.open(store)[0, 0] == 0


@pytest.mark.parametrize("mode", ["r+", "a"])
def test_writing(store, mode):
    for i, array in enumerate((vz.open(store, mode=mode), vz.open_array(store, mode=mode)), 1):
        array[0, 0] = i
        assert vz.open(store)[0, 0] == i


@pytest.mark.parametrize("opened", [vz.open, vz.open_array])
def test_nothing_there(opened):
    for mode in ("r", "r+"):
        with pytest.raises(NodeNotFoundError):
            opened({}, "x", mode=mode, shape=3, dtype="i1")
    for mode in ("a", "w", "w-"):
        made = {}
        assert opened(made, "x", mode=mode, shape=3, dtype="i1").shape == (3,)
        assert set(made) == {"zarr.json", "x/zarr.json"}


@pytest.mark.parametrize("opened", [vz.open, vz.open_array])
def test_anew(store, opened):
    with pytest.raises(NodeExistsError):
        opened(store, mode="w-", shape=3, dtype="i1")
    assert opened(store, mode="w", shape=3, dtype="i1")[:].tolist() == [0, 0, 0]
    assert list(store) == ["zarr.json"]


def test_groups():
    made = {}
    assert isinstance(vz.open(made, mode="a"), vz.Group)
    group = vz.open_group(made, "a/b", mode="w-", attributes={"x": 1})
    assert group.attrs == {"x": 1}
    assert vz.open_group(made, "a/b").attrs == {"x": 1}
    with pytest.raises(NodeNotFoundError, match="but a group"):
        vz.open_array(made, "a")
    with pytest.raises(NodeNotFoundError, match="but a group"):
        vz.open(made, "a", shape=3)
    with pytest.raises(NodeNotFoundError):
        vz.open_group(made, "c", mode="r")
    vz.create_array(made, name="array", shape=1, dtype="i1")
    with pytest.raises(NodeNotFoundError, match="but an array"):
        vz.open_group(made, "array")


def test_formats_beside_each_other(store):
    other = {}
    vz.create_array(other, shape=9, dtype="i1", zarr_format=2)
    both = store | other
    assert vz.open(both).shape == (4, 6)
    assert vz.open(both, zarr_format=2).shape == (9,)
    assert vz.open_array(both, mode="r", zarr_format=3).shape == (4, 6)
    with pytest.raises(NodeNotFoundError, match="Zarr v2"):
        vz.open(store, zarr_format=2)


def test_bad_mode(store):
    with pytest.raises(ValueError, match="mode"):
        vz.open(store, mode="x")


def test_files_of_others(tmp_path):
    refs = {"version": 1, "refs": {".zgroup": '{"zarr_format": 2}'}}
    (tmp_path / "refs.json").write_text(json.dumps(refs))
    for mode in ("r+", "a", "w"):
        with pytest.raises(UnsupportedError, match="only be read"):
            vz.open(tmp_path / "refs.json", mode=mode)


def test_local(tmp_path):
    path = tmp_path / "new.zarr"
    vz.open(path, mode="w", shape=(3, 3), dtype="i2", chunks=(2, 2))[...] = 7
    assert vz.open(path)[2, 2] == 7
    assert sorted(p.name for p in path.rglob("*") if p.is_file()) == [
        *("0", "0", "1", "1"),
        "zarr.json",
    ]


def test_missing_chunks(store):
    del store["c/0/0"]
    assert vz.open_array(store)[0, 0] == -1
    with pytest.raises(KeyError):
        vz.open_array(store, fill_missing=False)[0, 0]


def test_chunks_of_fill():
    for write_empty_chunks in (False, True):
        made = {}
        array = vz.create_array(made, shape=4, dtype="i1", write_empty_chunks=write_empty_chunks)
        array[:] = 0
        assert ("c/0" in made) is write_empty_chunks
