"""Creations that are repeated, and options that cannot be."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys

import pytest

import virtualzarr as vz
from tests.dataset.test_dataset import write
from virtualzarr.cli import main
from virtualzarr.dataset.create import build_root, create_dataset
from virtualzarr.dataset.directory import Directory
from virtualzarr.errors import NodeExistsError, UnsupportedError


def test_a_creation_is_done_once(tmp_path):
    write(tmp_path / "0.h5", 0)
    write(tmp_path / "1.h5", 4)
    first = create_dataset(tmp_path / "feed", tmp_path / "0.h5", "time", commit_id="job-1")
    assert first.snapshot.commit == "job-1"
    again = create_dataset(tmp_path / "feed", tmp_path / "0.h5", "time", commit_id="job-1")
    assert again.version == 1
    first.append(tmp_path / "1.h5")
    assert (
        create_dataset(tmp_path / "feed", tmp_path / "0.h5", "time", commit_id="job-1").version == 2
    )
    for other in ("job-2", None):
        with pytest.raises(NodeExistsError):
            create_dataset(tmp_path / "feed", tmp_path / "0.h5", "time", commit_id=other)


@pytest.mark.skipif(sys.platform != "linux", reason="names are UTF-8, or UTF-16, there")
def test_names_of_files_that_are_not_utf8(tmp_path):
    name = os.fsdecode(b"x\xff.h5")
    write(tmp_path / name, 0)
    with pytest.raises(UnsupportedError, match="not UTF-8, which a dataset needs"):
        create_dataset(tmp_path / "feed", tmp_path / name, "time")
    assert not (tmp_path / "feed").exists()
    write(tmp_path / "0.h5", 0)
    dataset = create_dataset(tmp_path / "feed", tmp_path / "0.h5", "time")
    with pytest.raises(UnsupportedError, match="not UTF-8"):
        dataset.append(tmp_path / name)
    assert vz.open(tmp_path / "feed")["time"].shape == (4,)


def test_a_creation_on_the_command_line_is_done_once(tmp_path, capsys):
    write(tmp_path / "0.h5", 0)
    command = ["create", str(tmp_path / "feed"), str(tmp_path / "0.h5"), "--dim", "time"]
    for _ in range(2):
        assert main([*command, "--commit-id", "job-1", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["commit"] == "job-1"
    assert main([*command, "--json"]) == 1


@pytest.mark.parametrize(
    ("name", "value"), [("threads", 0), ("threads", -1), ("threads", 1.5), ("requests", 0),
                        ("retries", -1), ("open_sources", 0)],
)  # fmt: skip
def test_settings_that_nothing_can_work_with(name, value):
    before = vz.config.retry_seconds, getattr(vz.config, name)
    with pytest.raises(ValueError, match=f"config.{name} is an integer from"):
        vz.config.set(retry_seconds=9.0, **{name: value})
    with pytest.raises(ValueError, match=f"config.{name} is an integer from"):
        setattr(vz.config, name, value)
    assert (vz.config.retry_seconds, getattr(vz.config, name)) == before


def test_a_dataset_with_relative_names_moves_with_its_files(tmp_path):
    """However it was made, by the ways that lead from its folder."""
    for place in ("feed", "elsewhere"):
        (tmp_path / place).mkdir()
    files = [tmp_path / "feed" / "0.h5", tmp_path / "elsewhere" / "1.h5"]
    for number, file in enumerate(files):
        write(file, 4 * number)
    main(["create", str(tmp_path / "feed" / "a"), str(files[0]), "--dim", "time", "--relative"])
    vz.virtualize(files[0]).publish(
        tmp_path / "feed" / "b", reference_format="dataset", relative=True
    )
    for name in ("a", "b"):
        vz.Dataset(tmp_path / "feed" / name).append(files[1])
    expected = vz.open(tmp_path / "feed" / "a")["air"][...].tolist()
    (tmp_path / "below" / "deeper").mkdir(parents=True)
    os.rename(tmp_path / "feed", tmp_path / "below" / "deeper" / "feed")
    # From there another way leads to what was not moved.
    shutil.copytree(tmp_path / "elsewhere", tmp_path / "below" / "deeper" / "elsewhere")
    shutil.copystat(files[1], tmp_path / "below" / "deeper" / "elsewhere" / "1.h5")
    for name in ("a", "b"):
        dataset = vz.Dataset(tmp_path / "below" / "deeper" / "feed" / name)
        assert dataset.group["air"][...].tolist() == expected
        moved = tmp_path / "below" / "deeper" / "feed" / "0.h5"
        assert dataset.select_new_files([str(moved)], "skip") == []


@pytest.mark.parametrize("members", [[], ["index", "log"]])
def test_a_group_is_no_place_for_a_dataset(tmp_path, members):
    """Also one that holds nothing else than a dataset which was not finished does."""
    write(tmp_path / "0.h5", 0)
    group = vz.create_group(tmp_path / "g", attributes={"note": "mine"})
    for name in members:
        group.create_array(name, shape=(2,), dtype="i4")
    with pytest.raises(NodeExistsError, match="something already"):
        create_dataset(tmp_path / "g", tmp_path / "0.h5", "time")
    assert vz.open(tmp_path / "g").attributes["note"] == "mine"
    assert sorted(vz.open(tmp_path / "g")) == members
    assert not (tmp_path / "g" / "head").exists()


@pytest.mark.parametrize("root", ['{"virtualzarr.dataset": {"version": 99}}', "[1]", "{", ""])
def test_other_documents_are_not_taken_for_what_a_creation_left(tmp_path, root):
    write(tmp_path / "0.h5", 0)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "zarr.json").write_text(root)
    with pytest.raises(NodeExistsError, match="something already"):
        create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    assert (tmp_path / "d" / "zarr.json").read_text() == root
    with pytest.raises(NodeExistsError, match="something already"):
        create_dataset(tmp_path / "0.h5", tmp_path / "0.h5", "time")


def _listed(folder):
    return {
        str(path.relative_to(folder)): path.is_file() and path.read_bytes()
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize(
    "name", ["head.new", "zarr.json.new", "segments", "schemas", "staged", "log/notes.txt",
             "index/0", "segments/0-0123456789abcdeg", "head/x", "zarr.json/x", "data/1.nc",
             "data/0-0123456789abcdef", "segments/1-0123456789abcdef", "log/00-0123456789abcdef"],
)  # fmt: skip
def test_files_of_others_are_in_the_way(tmp_path, name):
    """Also those that are called as what a dataset has."""
    write(tmp_path / "0.h5", 0)
    (tmp_path / "d" / name).parent.mkdir(parents=True)
    (tmp_path / "d" / name).write_bytes(b"mine")
    before = _listed(tmp_path / "d")
    with pytest.raises(NodeExistsError, match="something already"):
        create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    assert _listed(tmp_path / "d") == before


@pytest.mark.parametrize(
    ("name", "error"),
    [("other", NodeExistsError), ("zarr.json", vz.errors.SourceError)],
)
def test_folders_of_others_are_in_the_way(tmp_path, name, error):
    write(tmp_path / "0.h5", 0)
    (tmp_path / "d" / name).mkdir(parents=True)
    with pytest.raises(error, match=r"something already|not show the document"):
        create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    assert list(_listed(tmp_path / "d")) == [name]


def test_what_stopped_creations_leave_is_in_nobodys_way(tmp_path):
    write(tmp_path / "0.h5", 0)
    for name in (
        "zarr.json.0123456789abcdef.new", "log/0-0123456789abcdef", "index/0-0123456789abcdef",
        "segments/0-0123456789abcdef.0123456789abcdef.new", "schemas/0-0123456789abcdef",
        "staged/0-0123456789abcdef",
    ):  # fmt: skip
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / name).write_bytes(b"part")
    shutil.copytree(tmp_path / "d", tmp_path / "e")
    (tmp_path / "e" / "zarr.json").write_bytes(build_root())
    (tmp_path / "e" / "head.new").write_bytes(b"part")
    for name in ("d", "e"):
        dataset = create_dataset(tmp_path / name, tmp_path / "0.h5", "time")
        assert dataset.version == 1
        assert dataset.group["air"].shape == (4, 5)


@pytest.mark.parametrize("name", ["0.h5/d", "0.h5/deeper/d"])
def test_no_dataset_is_made_below_a_file(tmp_path, name):
    write(tmp_path / "0.h5", 0)
    with pytest.raises(vz.errors.SourceError, match=r"Not a directory.*0.h5"):
        create_dataset(tmp_path / name, tmp_path / "0.h5", "time")


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_is_called_as_the_lock_is_in_the_way(tmp_path, kind):
    """It is not listed, and what a link leads to would be made."""
    write(tmp_path / "0.h5", 0)
    lock = tmp_path / "d" / ".writer.__lock"
    lock.parent.mkdir()
    lock.mkdir() if kind == "folder" else lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NodeExistsError, match="something already"):
        create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    assert [path.name for path in (tmp_path / "d").iterdir()] == [lock.name]
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["head", "head.new", "notes"])
def test_what_comes_while_files_are_scanned_is_in_the_way(tmp_path, name):
    write(tmp_path / "0.h5", 0)

    def put(dataset):
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / name).write_bytes(b"mine")
        return dataset

    with pytest.raises(NodeExistsError, match="something already"):
        create_dataset(tmp_path / "d", tmp_path / "0.h5", "time", preprocess=put)
    assert _listed(tmp_path / "d") == {name: b"mine"}


@pytest.mark.parametrize("is_seen", [True, False])
def test_the_same_creation_that_another_process_finishes_during_the_scan(
    tmp_path, monkeypatch, is_seen
):
    """And that has changed the dataset since; its head may come between two listings."""
    for number in range(3):
        write(tmp_path / f"{number}.h5", 4 * number)
    list_top = Directory.list_top

    def finish(dataset):
        made = create_dataset(tmp_path / "d", tmp_path / "0.h5", "time", commit_id="job")
        made.append(tmp_path / "1.h5")
        made.vacuum(keep=1, grace="0s")
        made.append(tmp_path / "2.h5")
        if not is_seen:
            monkeypatch.setattr(
                Directory, "list_top", lambda self: [n for n in list_top(self) if n != "head"]
            )
        return dataset

    dataset = create_dataset(
        tmp_path / "d", tmp_path / "0.h5", "time", commit_id="job", preprocess=finish
    )
    assert dataset.group["air"].shape[0] == 12
    # One creation, one append, and what the vacuum needed; nothing was added by the second.
    assert dataset.version == vz.Dataset(tmp_path / "d").version > 1
    assert any(name.name[:2] == "1-" for name in (tmp_path / "d").glob("*/*"))


def test_a_root_that_comes_at_the_last_moment_stays(tmp_path, monkeypatch):
    write(tmp_path / "0.h5", 0)
    create_root = Directory.create_root

    def put_first(self, data):
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "zarr.json").write_bytes(b"mine")
        return create_root(self, data)

    monkeypatch.setattr(Directory, "create_root", put_first)
    with pytest.raises(NodeExistsError, match="something already"):
        create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    assert _listed(tmp_path / "d") == {"zarr.json": b"mine"}


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP])
def test_file_systems_without_hard_links(tmp_path, monkeypatch, code):
    write(tmp_path / "0.h5", 0)

    def refuse(source, target):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    assert create_dataset(tmp_path / "d", tmp_path / "0.h5", "time").version == 1
    assert (tmp_path / "d" / "zarr.json").read_bytes() == build_root()
    assert not [*(tmp_path / "d").glob("*.new")]


@pytest.mark.parametrize("name", ["segments/0-0123456789abcdef", "zarr.json.0123456789abcdef.new"])
def test_source_files_are_not_taken_for_leftovers(tmp_path, name):
    """A vacuum would delete them."""
    (tmp_path / "d" / name).parent.mkdir(parents=True)
    write(tmp_path / "d" / name, 0)
    before = _listed(tmp_path / "d")
    with pytest.raises(NodeExistsError, match="something already"):
        create_dataset(tmp_path / "d", tmp_path / "d" / name, "time")
    assert _listed(tmp_path / "d") == before
