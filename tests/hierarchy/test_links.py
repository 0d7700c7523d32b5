"""Links to directories: read as what they lead to, deleted as links."""

from __future__ import annotations

import os

import fsspec
import numpy as np
import pytest
import zarr

import virtualzarr as vz
from virtualzarr.errors import NodeNotFoundError, SourceChangedError, SourceError
from virtualzarr.integrations.zarr_python import ZarrStore
from virtualzarr.stores import FsspecStore, LocalStore

DATA = np.arange(1, 9)


@pytest.fixture(params=[2, 3])
def root(tmp_path, request):
    """A group with an array, a group with one, and beside it an array to which links may lead."""
    root = vz.create_group(tmp_path / "h", zarr_format=request.param)
    for path in (tmp_path / "aside", tmp_path / "h/a", tmp_path / "h/g/x"):
        vz.create_array(path, data=DATA, chunks=(2,), zarr_format=request.param)
    vz.open_group(tmp_path / "h", mode="a", zarr_format=request.param).require_group("g")
    return root


def link(tmp_path, name, target="aside"):
    (tmp_path / "h" / name).symlink_to(tmp_path / target)


def delete_by_zarr_python(root, name):
    group = zarr.open_group(ZarrStore(root.store), mode="r+", zarr_format=root.zarr_format)
    del group[name]


DELETIONS = {
    "del": lambda root, name: root.__delitem__(name),
    "create": lambda root, name: root.create_array(name, shape=4, dtype="i4", overwrite=True),
    "store": lambda root, name: root.store.delete_dir(name),
    "zarr": delete_by_zarr_python,
}


@pytest.mark.parametrize("name", ["link", "g"])
@pytest.mark.parametrize("delete", DELETIONS.values(), ids=DELETIONS)
def test_what_links_lead_to_is_not_deleted(tmp_path, root, name, delete):
    link(tmp_path, "link")
    link(tmp_path, "g/link")
    root.consolidate_metadata()
    assert root["link"][...].tolist() == root["g/link"][...].tolist() == DATA.tolist()
    delete(root, name)
    assert vz.open_array(tmp_path / "aside")[...].tolist() == DATA.tolist()
    assert not (tmp_path / "h" / name / "link").exists()
    assert not (tmp_path / "h" / name).is_symlink()
    if name in root:
        assert root[name][...].tolist() == [0] * 4


def test_chunks_in_another_place(tmp_path, root):
    """Read, written and shrunk where they are; they stay there when the array is deleted."""
    array = vz.create_array(tmp_path / "h/b", data=DATA, chunks=(2,))
    os.rename(tmp_path / "h/b/c", tmp_path / "disk")
    (tmp_path / "h/b/c").symlink_to(tmp_path / "disk")
    array[0] = 9
    array.resize(6)
    assert array[...].tolist() == [9, *DATA[1:6]]
    assert sorted(os.listdir(tmp_path / "disk")) == ["0", "1", "2"]
    vz.create_array(tmp_path / "h/b", shape=8, chunks=(2,), dtype="i8", overwrite=True)
    assert vz.open_array(tmp_path / "h/b")[...].tolist() == [0] * 8
    assert sorted(os.listdir(tmp_path / "disk")) == ["0", "1", "2"]


def test_a_store_that_is_a_link(tmp_path, root):
    """Who names it means what it leads to, and not what that has links to."""
    link(tmp_path, "g/link")
    (tmp_path / "named").symlink_to(tmp_path / "h/g")
    vz.copy(vz.create_array({}, data=np.zeros(4)), tmp_path / "named", overwrite=True)
    assert vz.open_array(tmp_path / "h/g")[...].tolist() == [0] * 4
    assert vz.open_array(tmp_path / "aside")[...].tolist() == DATA.tolist()


def test_links_are_moved(tmp_path, root):
    (tmp_path / "h/link").symlink_to("../aside")  # from where it is moved to, it leads to nothing
    root.move("link", "g/link")
    assert root["g/link"][...].tolist() == DATA.tolist()
    assert "link" not in root
    assert vz.open_array(tmp_path / "aside")[...].tolist() == DATA.tolist()


@pytest.mark.parametrize("kind", [LocalStore, FsspecStore])
def test_nothing_is_moved_into_itself_by_a_link(tmp_path, root, kind):
    link(tmp_path, "link", "h/g")
    if kind is FsspecStore:

        class Plain(fsspec.get_filesystem_class("file")):
            protocol = "plain"

        fsspec.register_implementation("plain", Plain, clobber=True)
        root = vz.open_group(f"plain://{tmp_path}/h", mode="r+")
    assert type(root.store) is kind
    with pytest.raises(SourceChangedError, match="nothing was deleted"):
        root.move("g", "link/y")
    assert root["g/x"][...].tolist() == DATA.tolist()


def test_links_to_nothing(tmp_path, root):
    link(tmp_path, "g/link", "nowhere")
    del root["g"]
    assert not os.path.lexists(tmp_path / "h/g")


def test_links_in_a_circle(tmp_path, root):
    link(tmp_path, "g/link", "h/g")
    with pytest.raises(SourceError):
        root.copy("g", "copy")
    del root["g"]
    assert sorted(root) == ["a"]
    assert root["a"][...].tolist() == DATA.tolist()


def test_consolidation_of_a_group_that_goes_away(root, monkeypatch):
    """Another process deletes it just then: no half of a document is written."""
    from virtualzarr.nodes import consolidated

    found = consolidated.find_node

    def find_and_delete(store, path):
        node = found(store, path)
        root.__delitem__("g")
        return node

    group = root["g"]
    monkeypatch.setattr(consolidated, "find_node", find_and_delete)
    with pytest.raises(NodeNotFoundError):
        group.consolidate_metadata()
    assert sorted(root) == ["a"]


@pytest.mark.parametrize("folder", ["c", "c/1"])
def test_folders_of_chunks_that_lead_nowhere(tmp_path, folder):
    """As on a disk that is not mounted."""
    values = np.arange(1, 9).reshape(2, 4)
    root = vz.create_group(tmp_path / "r")
    root.create_array("x", data=values, chunks=(1, 4))
    link = tmp_path / "r/x" / folder
    os.rename(link, tmp_path / "disk")
    link.symlink_to(os.path.relpath(tmp_path / "disk", link.parent))
    assert root["x"][...].tolist() == values.tolist()
    os.rename(tmp_path / "disk", tmp_path / "elsewhere")
    (tmp_path / "r/z").mkdir()
    (tmp_path / "r/z/notes.txt").write_text("here before")  # or it would be a plain renaming
    works = [
        root["x"].__getitem__,
        lambda _: root["x"].chunk_exists(),
        lambda _: root.copy("x", "y"),
        lambda _: root.move("x", "z"),
        lambda _: vz.copy(tmp_path / "r/x", tmp_path / "copy"),
        lambda _: vz.publish(vz.Group({}, {"x": root["x"]}), tmp_path / "x.json"),
        lambda _: vz.concat([root["x"], root["x"]], axis=0)[...],
    ]
    for work in works:
        with pytest.raises(SourceError, match=r"a symbolic link to a missing .*directory"):
            work(...)
    assert link.is_symlink()
    os.rename(tmp_path / "elsewhere", tmp_path / "disk")
    assert root["x"][...].tolist() == values.tolist()


@pytest.mark.parametrize("place", ["c", "c/1", "c/1/0"])
@pytest.mark.parametrize("is_inside", [False, True])
def test_links_that_are_moved(tmp_path, place, is_inside):
    """What they are relative to is another folder then: not if they stay in the array."""
    values = np.arange(1, 9).reshape(2, 4)
    root = vz.create_group(tmp_path / "r")
    root.create_array("x", data=values, chunks=(1, 4))
    root.create_array("d/other", data=-values, chunks=(1, 4))
    link = tmp_path / "r/x" / place
    kept = tmp_path / "r/x/kept" if is_inside else tmp_path / "kept"
    os.rename(link, kept)
    link.symlink_to(os.path.relpath(kept, link.parent))
    root.move("x", "d/x")
    assert root["d/x"][...].tolist() == values.tolist()
    assert sorted(root) == ["d"]
    assert (tmp_path / "r/d/x" / place).is_symlink() == is_inside
    if not is_inside:
        assert kept.exists()


@pytest.mark.parametrize("is_absolute", [True, False])
@pytest.mark.parametrize("target", ["z", "other/t"])
def test_links_that_lead_in_again_by_a_name_that_is_moved(tmp_path, target, is_absolute):
    root = vz.create_group(tmp_path / "r")
    for name, values in (("s/b", [1, 2, 3]), ("other/s/b", [7, 8, 9])):
        root.create_array(name, data=values, chunks=(1,))
    chunk = tmp_path / "r/s/b/c/0"
    chunk.rename(tmp_path / "r/s/b/blob")
    chunk.symlink_to(tmp_path / "r/s/b/blob" if is_absolute else "../../../s/b/blob")
    (tmp_path / "r/other/s/b/blob").write_bytes((tmp_path / "r/other/s/b/c/0").read_bytes())
    node = tmp_path / "r/s/latest"
    node.symlink_to(tmp_path / "r/s/b" if is_absolute else "../s/b")
    root.move("s", target)
    for name in ("b", "latest"):
        assert root[f"{target}/{name}"][...].tolist() == [1, 2, 3]
    assert root["other/s/b"][...].tolist() == [7, 8, 9]
    assert "s" not in root


def test_links_that_lead_to_the_same_from_everywhere_are_moved(tmp_path):
    root = vz.create_group(tmp_path / "r")
    root.create_array("s/b", data=[1, 2, 3], chunks=(1,))
    for number, is_absolute in ((0, True), (1, False)):
        chunk = tmp_path / f"r/s/b/c/{number}"
        chunk.rename(kept := tmp_path / "kept" if is_absolute else chunk.parent / "kept")
        chunk.symlink_to(kept if is_absolute else "../c/kept")
    root.move("s", "t/s")
    assert root["t/s/b"][...].tolist() == [1, 2, 3]
    assert all((tmp_path / f"r/t/s/b/c/{number}").is_symlink() for number in (0, 1))


def test_chunks_that_were_never_written_are_not_behind_a_link(tmp_path):
    array = vz.create_array(tmp_path / "real", shape=(4, 4), chunks=(1, 4), dtype="i4")
    (tmp_path / "named").symlink_to("real")
    assert vz.open_array(tmp_path / "named")[...].tolist() == array[...].tolist() == [[0] * 4] * 4
