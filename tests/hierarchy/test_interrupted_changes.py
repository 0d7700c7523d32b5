"""Changes to consolidated hierarchies that are cut short, and are done again."""

from __future__ import annotations

import contextlib
import os
from itertools import count

import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.references.native.failing import Broken, Failing
from virtualzarr.errors import (
    NodeExistsError,
    NodeNotFoundError,
    SourceError,
    VirtualZarrError,
    WriteError,
)
from virtualzarr.integrations.zarr_python import ZarrStore
from virtualzarr.nodes import write_nodes
from virtualzarr.stores import LocalStore, MemoryStore

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


def write_to_new_in_new_group(group):
    if "new/deep/c" not in group:
        group.create_array("new/deep/c", shape=(4,), dtype="i4", chunks=(2,))
    group["new/deep/c"][...] = 7


def set_attributes_of_new_group(group):
    group.require_group("new").attrs["t"] = 3


def require(group):
    group.require_group("new").require_array("c", shape=(4,), dtype="i4", chunks=(2,))


def make_again(group):
    for path in ("new", "new/c"):
        with contextlib.suppress(NodeExistsError):
            create = group.create_group if path == "new" else group.create_array
            create(path, **({} if path == "new" else {"shape": 4, "dtype": "i4", "chunks": 2}))


def resize_and_set_attributes(group):
    if group["a"].shape[0] < 10:
        group["a"].resize((10, 4))
    group["a"].attrs["units"] = "m"


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
    members = dict(group.members(None))
    return {
        name: (each[...].tolist() if isinstance(each, vz.Array) else None, dict(each.attrs))
        for name, each in members.items()
    }


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    "change",
    [
        resize,
        write_beyond,
        write_to_new,
        write_to_new_in_new_group,
        require,
        make_again,
        resize_and_set_attributes,
        set_attributes_of_new_group,
        write_below,
        delete,
        set_attributes,
    ],
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


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("change", ["attributes", "array", "deep"])
def test_zarr_python_finds_groups_that_were_half_made(tmp_path, zarr_format, change):
    vz.copy(vz.open(make(zarr_format)), tmp_path / "a")
    vz.create_group(tmp_path / "new", zarr_format=zarr_format)
    # Consolidated metadata know nothing of it.
    (tmp_path / "new").rename(tmp_path / "a/new")
    group = vz.open(tmp_path / "a", "new", mode="r+")
    if change == "attributes":
        group.attrs["t"] = 3
    else:
        group.create_array("deep/c" if change == "deep" else "c", data=VALUES)
    found = zarr.open_consolidated(tmp_path / "a")
    inside = {"attributes": [], "array": ["c"], "deep": ["deep", "deep/c"]}[change]
    assert sorted(name for name, _ in found["new"].members(None)) == inside
    assert dict(found["new"].attrs) == ({"t": 3} if change == "attributes" else {})
    assert found["a"][...].tolist() == VALUES.tolist()
    assert sorted(vz.open(tmp_path / "a")) == ["a", "in", "new"]


def test_a_move_that_is_cut_short_leaves_one_of_both_whole():
    for allowed in count():
        store = make(3)
        try:
            vz.open(Failing(MemoryStore(store), allowed), mode="r+").move("a", "moved")
            break
        except Broken:
            left = [path for path in ("a", "moved") if path in vz.open(store)]
            assert left
            for path in left:
                assert vz.open(store)[path][...].tolist() == VALUES.tolist()
    assert allowed > 4


def test_a_move_whose_source_stays_says_so():
    class Keeping(MemoryStore):
        def delete(self, key):
            raise SourceError("no rights to delete")

    store = make(3)
    with pytest.raises(WriteError, match=r"'moved' is complete, but .* no rights"):
        vz.open(Keeping(store), mode="r+").move("a", "moved")
    assert vz.open(store)["moved"][...].tolist() == VALUES.tolist()


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("path", ["a", "in"])
def test_a_move_in_a_directory_that_is_cut_short(tmp_path, zarr_format, path):
    inner = "" if path == "a" else "/b"
    for allowed in count():
        folder = tmp_path / f"{allowed}"
        vz.copy(vz.open(make(zarr_format)), folder)
        try:
            vz.open(Failing(LocalStore(folder), allowed), mode="r+").move(path, "moved")
            break
        except Broken:
            group = vz.open(folder, use_consolidated=True)
            for there in (path + inner, "moved" + inner):
                if there in group:
                    assert group[there][...].tolist() == VALUES.tolist()
            with contextlib.suppress(NodeNotFoundError):
                vz.open(folder, mode="r+").move(path, "moved")
            group = vz.open(folder, use_consolidated=True)
            assert path not in group
            assert group["moved" + inner][...].tolist() == VALUES.tolist()
    assert allowed > 2


def test_a_move_that_readers_are_not_told_of_says_so(tmp_path):
    class Untold(LocalStore):
        left = 1

        def update(self, key, change):
            self.left -= 1
            if self.left < 0:
                raise SourceError("no space left")
            super().update(key, change)

    vz.copy(vz.open(make(3)), tmp_path / "a")
    with pytest.raises(WriteError, match=r"it is at 'moved' now, but consolidated .* no space"):
        vz.open(Untold(tmp_path / "a"), mode="r+").move("a", "moved")
    assert "a" not in vz.open(tmp_path / "a")
    vz.open(tmp_path / "a", mode="r+").consolidate_metadata()
    assert vz.open(tmp_path / "a")["moved"][...].tolist() == VALUES.tolist()


def make_deep(zarr_format):
    store = {}
    group = vz.create_group(store, zarr_format=zarr_format)
    for path in ("h/a", "h/in/b"):
        group.create_array(path, data=VALUES + 1, chunks=(2, 4))
    group["h/in"].consolidate_metadata()
    group.consolidate_metadata()
    return store


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_was_deleted_in_part_comes_back_whole_or_not_at_all(zarr_format):
    for allowed in count():
        store = make_deep(zarr_format)
        try:
            del vz.open(Failing(MemoryStore(store), allowed), mode="r+")["h"]
            break
        except Broken:
            group = vz.open(store, mode="r+")
            group.require_group("h/in")
            group.consolidate_metadata()
            for reader in (vz.open(store), vz.open(store, use_consolidated=False)):
                for path in ("h/a", "h/in/b"):
                    if path in reader:
                        assert reader[path][...].tolist() == (VALUES + 1).tolist()
            for path in ("h/a", "h/in/b"):
                new = {"shape": (6, 4), "dtype": "i8", "chunks": (2, 4), "fill_value": 7}
                try:
                    group.create_array(path, **new)
                except NodeExistsError:
                    group.create_array(path, overwrite=True, **new)
                assert (vz.open(store)[path][...] == 7).all()
            del group["h"]
            assert not [key for key in store if key.startswith("h/")]
    assert allowed > 10


def test_chunks_of_no_array_are_not_those_of_a_new_one(tmp_path):
    for root in (tmp_path / "r", tmp_path / "g/a"):
        vz.create_array(root, data=VALUES + 1, chunks=(2, 4))
        (root / "zarr.json").unlink()
        with pytest.raises(NodeExistsError, match="a chunk of no array"):
            vz.create_array(root, shape=(6, 4), dtype="i8")
    group = vz.create_group(tmp_path / "g")
    with pytest.raises(VirtualZarrError, match="overwrite=True deletes them"):
        group.create_array("a", shape=(6, 4), dtype="i8")
    assert not group.create_array("a", shape=(6, 4), dtype="i8", overwrite=True)[...].any()


def test_a_lock_file_that_cannot_be_deleted_locks_nobody_out(tmp_path, monkeypatch):
    array = vz.create_array(tmp_path / "a", data=VALUES)
    unlink, refused = os.unlink, []

    def refuse(path, *args, **options):
        if str(path).endswith("lock") and not refused:
            refused.append(path)
            raise OSError(5, "Input/output error")
        unlink(path, *args, **options)

    monkeypatch.setattr(os, "unlink", refuse)
    array.resize((8, 4))
    array.resize((9, 4))
    assert vz.open(tmp_path / "a").shape == (9, 4)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("work", ["delete", "move"])
@pytest.mark.parametrize("is_local", [True, False])
def test_groups_that_are_consolidated_while_a_node_is_deleted(
    tmp_path, monkeypatch, zarr_format, work, is_local
):
    """Who consolidates sees its documents still, and would leave them to readers for good."""
    root = vz.create_group(tmp_path if is_local else {}, zarr_format=zarr_format)
    for name in "ab":
        root.create_array(name, data=np.arange(1, 4))
    root.consolidate_metadata()
    owner, step = (LocalStore, "rename") if is_local and work == "move" else (
        write_nodes, "delete_documents")  # fmt: skip
    done = getattr(owner, step)

    def consolidate_and_do(*args, **options):
        root.consolidate_metadata()
        return done(*args, **options)

    monkeypatch.setattr(owner, step, consolidate_and_do)
    if work == "delete":
        del root["a"]
    else:
        root.move("a", "c")
    names = ["b", "c"] if work == "move" else ["b"]
    assert sorted(root) == names
    for use_consolidated in (True, False):
        opened = zarr.open_group(
            tmp_path if is_local else ZarrStore(root.store),
            mode="r", use_consolidated=use_consolidated,
        )  # fmt: skip
        assert sorted(opened.array_keys()) == names


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("work", ["delete", "append", "attributes", "create"])
def test_groups_that_change_while_they_are_first_consolidated(zarr_format, work):
    """Who changes them does not find consolidated metadata to keep up to date yet."""
    made = {}
    root = vz.create_group(made, zarr_format=zarr_format)
    for name in "ab":
        root.create_array(name, data=np.arange(1, 4))
    other = vz.open_group(made, mode="r+")
    changes = {
        "delete": lambda: other.__delitem__("a"),
        "append": lambda: other["a"].append([9]),
        "attributes": lambda: other["a"].attrs.update(new=1),
        "create": lambda: other.create_array("c", data=np.arange(2)),
    }
    # What is read for it is read before the change, and written after it.
    store = root.store
    update, left = store.update, [changes[work]]

    def update_late(key, change):
        def change_late(old):
            new = change(old)
            if left and b"consolidated" in (new or b""):
                left.pop()()
            return new

        update(key, change_late)

    store.update = update_late
    root.consolidate_metadata()
    assert not left
    names = {"delete": ["b"], "create": ["a", "b", "c"]}.get(work, ["a", "b"])
    theirs = zarr.open_group(ZarrStore(made), mode="r", use_consolidated=True)
    assert sorted(theirs.array_keys()) == names
    for name in names:
        assert theirs[name].shape == other[name].shape
        assert dict(theirs[name].attrs) == dict(other[name].attrs)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_groups_that_vanish_while_others_are_consolidated(zarr_format):
    """Between the look at their documents and that at what is in them."""
    root = vz.create_group({}, zarr_format=zarr_format)
    root.create_array("a", data=np.arange(3))
    root.create_array("g/x", data=np.arange(3))
    store, left = root.store, [True]
    list_dir = store.list_dir

    def delete_and_list(prefix):
        if prefix == "g" and left.pop():
            store.delete_dir("g")
        return list_dir(prefix)

    store.list_dir = delete_and_list
    root.consolidate_metadata()
    assert not left
    theirs = zarr.open_group(ZarrStore(store), mode="r", use_consolidated=True)
    assert sorted(theirs) == ["a"]
