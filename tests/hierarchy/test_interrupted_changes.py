"""Changes to consolidated hierarchies that are cut short, and are done again."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.references.native.failing import Broken, Failing
from virtualzarr.errors import SourceError, WriteError
from virtualzarr.stores import MemoryStore

VALUES = np.arange(24).reshape(6, 4)


def make(zarr_format):
    store = {}
    group = vz.create_group(store, zarr_format=zarr_format)
    group.create_array("a", data=VALUES, chunks=(2, 4))
    group.create_array("in/b", data=VALUES, chunks=(2, 4))
    group.consolidate_metadata()
    return store


def resize(group):
    group["a"].resize((10, 4))


def write_beyond(group):
    array = group["a"]
    if array.shape[0] < 10:
        array.resize((10, 4))
    array[8:] = 5


def write_to_new(group):
    if "new" not in group:
        group.create_array("new", shape=(4,), dtype="i4", chunks=(2,))
    group["new"][...] = 7


def write_below(group):
    array = group["in"]["b"]
    if array.shape[0] < 10:
        array.resize((10, 4))
    array[8:] = 5


def delete(group):
    if "a" in group:
        del group["a"]


def set_attributes(group):
    group["a"].attrs["units"] = "m"


def read(store):
    """Return all that somebody reads who trusts consolidated metadata."""
    group = vz.open(store, mode="r", use_consolidated=True)
    arrays = {name: group[name] for name in ("a", "new", "in/b") if name in group}
    return {name: (each[...].tolist(), dict(each.attrs)) for name, each in arrays.items()}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    "change", [resize, write_beyond, write_to_new, write_below, delete, set_attributes]
)
def test_what_was_cut_short_is_there_when_it_is_done_again(change, zarr_format):
    expected = make(zarr_format)
    change(vz.open(expected, mode="r+"))
    for allowed in count():
        store = make(zarr_format)
        try:
            change(vz.open(Failing(MemoryStore(store), allowed), mode="r+"))
            break
        except Broken:
            pass
        # Deleted arrays are gone, or all of them is there still.
        assert read(store).get("a", read(make(zarr_format))["a"])[0][:6] == VALUES.tolist()
        change(vz.open(store, mode="r+"))
        assert read(store) == read(expected)
    assert allowed > 1
    assert read(store) == read(expected)


def test_first_writes_over_references_are_seen_after_one_was_cut_short(tmp_path):
    source = make(3)
    vz.copy(vz.open(source), tmp_path / "source.zarr")
    virtual = vz.virtualize(tmp_path / "source.zarr")

    def write(target, value):
        vz.open(target, mode="r+")["a"][0] = value

    for allowed in count():
        path = tmp_path / f"{allowed}.zarr"
        virtual.publish(path)
        try:
            write(Failing(vz.stores.LocalStore(path), allowed), 500)
            break
        except Broken:
            write(path, 777)
            assert vz.open(path)["a"][0].tolist() == [777] * 4
    assert allowed > 1


def test_copies_that_were_cut_short_while_they_delete_are_begun_anew():
    first, second = vz.open(make(3)), vz.open(make(3), mode="r+")
    second["a"][...] = -VALUES
    for allowed in count():
        store = {}
        vz.copy(first, store)
        try:
            vz.copy(second, Failing(MemoryStore(store), allowed), overwrite=True)
            break
        except Broken:
            vz.copy(second, store, overwrite=True)
            assert vz.open(store)["a"][...].tolist() == (-VALUES).tolist()
    assert allowed > 10


def test_a_copy_whose_note_stays_says_that_it_is_complete():
    class Keeping(MemoryStore):
        def delete(self, key):
            if "virtualzarr-copy" in key:
                raise SourceError("no rights to delete")
            super().delete(key)

    store = {}
    with pytest.raises(WriteError, match=r"the copy is complete, but .* no rights"):
        vz.copy(vz.open(make(3)), Keeping(store))
    assert vz.open(store)["a"][...].tolist() == VALUES.tolist()


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_python_finds_all_members_beside_new_ones(tmp_path, zarr_format):
    group = vz.create_group(tmp_path / "a", zarr_format=zarr_format)
    for path in ("g/a", "g/b", "k/a", "k/b"):
        group.create_array(path, data=np.arange(3))
    group.consolidate_metadata()
    vz.open(tmp_path / "a", mode="r+").create_array("g/new", data=np.arange(3))
    found = zarr.open_group(tmp_path / "a", mode="r")
    assert sorted(found["g"].array_keys()) == ["a", "b", "new"]
    assert found["g/a"][...].tolist() == [0, 1, 2]


def test_attributes_of_a_group_that_was_half_made_hide_no_others():
    store = make(2)
    store["new/.zgroup"] = b'{"zarr_format": 2}'  # of which consolidated metadata know nothing
    vz.open(store, "new", mode="r+").attrs["t"] = 3
    assert read(store) == read(make(2))
