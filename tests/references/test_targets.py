"""Publications in a dict, compressed, in a session of Icechunk, and with copies that move along."""

from __future__ import annotations

import gzip
import json
import shutil

import numpy as np
import pytest

import virtualzarr as vz
from tests.references.arrays import LITTLE, SHUFFLE4, ZLIB, virtual
from tests.references.monthly import write_months
from virtualzarr.config import config
from virtualzarr.errors import (
    AccessError,
    NodeExistsError,
    PublishError,
    SkippedVariableWarning,
    SourceNotFoundError,
)
from virtualzarr.hierarchy.group import Group

VALUES = np.arange(24, dtype="<i4").reshape(4, 6)
COMPRESSED = ["refs.json.zst", "refs.json.gz"]


@pytest.fixture
def mixed(tmp_path):
    """An array of five chunks, of which one has other codecs."""
    (tmp_path / "files").mkdir()
    chains = [[LITTLE, ZLIB]] * 4 + [[LITTLE, SHUFFLE4, ZLIB]]
    parts = [
        virtual(tmp_path / "files" / "a.bin", VALUES + n, (4, 6), chain, dimension_names=("t", "x"))
        for n, chain in enumerate(chains)
    ]
    return Group({"title": "mixed"}, {"a": vz.concat(parts)})


def fsspec_open(fo, **options):
    """The root as zarr-python sees it through fsspec."""
    zarr = pytest.importorskip("zarr", minversion="3")
    fsspec = pytest.importorskip("fsspec")
    fs = fsspec.filesystem("reference", fo=fo, asynchronous=True, **options)
    return zarr.open(zarr.storage.FsspecStore(fs, read_only=True, path=""), mode="r")


def test_a_dict_is_filled_and_opened(tmp_path, mixed):
    refs: dict[str, object] = {}
    report = mixed.publish(refs, regular=True, copy=True, inline=0)
    assert (report.copied, report.inlined, report.references) == (1, 0, 5)
    assert refs == json.loads(json.dumps(refs))
    assert refs["virtualzarr"]["receipt"] == report.receipt
    np.testing.assert_array_equal(vz.open(refs)["a"][...], mixed["a"][...])
    np.testing.assert_array_equal(fsspec_open(refs)["a"][...], mixed["a"][...])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["files"]
    assert mixed.preview({}, regular=True).copied == 1
    # Again, in place of other references, but of nothing else.
    mixed.publish(refs, regular=True, copy=True)
    with pytest.raises(NodeExistsError, match="something else"):
        mixed.publish({"a": 1}, regular=True, copy=True)
    with pytest.raises(ValueError, match="holds the form json"):
        mixed.publish({}, reference_format="parquet")
    with pytest.raises(TypeError, match="a dict or an Icechunk session"):
        mixed.publish(7)


def test_a_failure_leaves_the_dict_as_it_is(mixed):
    refs = {"refs": {}}
    with pytest.raises(PublishError):
        mixed.publish(refs, regular=True)
    assert refs == {"refs": {}}
    with config.set(inline_bytes=10), pytest.raises(PublishError, match="publish to a file"):
        mixed.publish(refs, regular=True, copy=True, inline=0)


def test_a_dict_is_read_by_xarray(mixed):
    xr = pytest.importorskip("xarray")
    pytest.importorskip("kerchunk")
    refs: dict[str, object] = {}
    mixed.publish(refs, regular=True, copy=True)
    theirs = xr.open_dataset(refs, engine="kerchunk")
    np.testing.assert_array_equal(theirs["a"].values, mixed["a"][...])


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_references_grow_and_are_renamed(tmp_path, name):
    files = write_months(tmp_path / "files")
    target = tmp_path / name
    report = vz.virtualize(files[:2], "time").publish(target)
    assert report.nbytes == target.stat().st_size
    plain = vz.virtualize(files[:2], "time").publish(tmp_path / "refs.json")
    assert report.nbytes < plain.nbytes / 2
    if name.endswith(".gz"):
        document = json.loads(gzip.decompress(target.read_bytes()))
        assert (
            document["refs"].keys()
            == json.loads((tmp_path / "refs.json").read_text())["refs"].keys()
        )
    compression = {"refs.json.zst": "zstd", "refs.json.gz": "gzip"}[name]
    assert any(f'"compression": "{compression}"' in note for note in report.notes)
    theirs = fsspec_open(str(target), target_options={"compression": compression})
    np.testing.assert_array_equal(theirs["tas"][...], vz.open(target)["tas"][...])
    vz.append(target, files[2:], "time")
    shutil.move(tmp_path / "files", tmp_path / "moved")
    vz.rename_paths(target, {str(tmp_path / "files"): str(tmp_path / "moved")})
    again = vz.open(target)
    moved = vz.virtualize(sorted((tmp_path / "moved").iterdir()), "time")
    for key in moved:
        np.testing.assert_array_equal(again[key][...], moved[key][...])
    moved.publish(target)  # in place of what is there
    assert vz.check_references(target).good
    (tmp_path / f"other-{name}").write_bytes(gzip.compress(b'{"title": "mine"}'))
    with pytest.raises(NodeExistsError):
        moved.publish(tmp_path / f"other-{name}")


def test_the_command_line_and_verify_take_compressed_references(tmp_path, capsys):
    from virtualzarr.cli.parser import main

    pytest.importorskip("zarr", minversion="3")
    pytest.importorskip("fsspec")
    files = write_months(tmp_path / "files", 2)
    target = tmp_path / "refs.json.zst"
    assert main(["concat", *map(str, files), "--dim", "time", "-o", str(target)]) == 0
    report = vz.verify(target, clients=["zarr", "gdal"], timeout=300)
    statuses = {client.client: client.status for client in report.clients}
    assert statuses["zarr"] == "equal", report
    assert statuses["gdal"] in ("unsupported", "missing"), report


@pytest.mark.parametrize("name", ["refs.json", "refs.json.zst", "refs.parq"])
def test_copies_move_with_the_references(tmp_path, mixed, name):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    report = mixed.publish(here / name, regular=True, copy=True, inline=0)
    assert (report.copied, report.inlined) == (1, 0)
    assert report.copied_bytes > 0
    options = {"target_options": {"compression": "zstd"}} if name.endswith("zst") else {}
    fo = str(here / name)
    np.testing.assert_array_equal(fsspec_open(fo, **options)["a"][...], mixed["a"][...])
    shutil.move(here, there)
    np.testing.assert_array_equal(vz.open(there / name)["a"][...], mixed["a"][...])
    assert vz.check_references(there / name).good
    if "json" in name:
        assert any("template_overrides" in note for note in report.notes)
        options["template_overrides"] = {"here": str(there)}
    np.testing.assert_array_equal(
        fsspec_open(str(there / name), **options)["a"][...], mixed["a"][...]
    )
    # What is written again still names them so.
    shutil.move(tmp_path / "files", tmp_path / "data")
    vz.rename_paths(there / name, {str(tmp_path / "files"): str(tmp_path / "data")})
    shutil.move(there, here)
    again = vz.open(here / name)["a"][...]
    np.testing.assert_array_equal(again, np.concatenate([VALUES + n for n in range(5)]))


def test_no_path_of_a_copy_is_absolute_but_as_a_template(tmp_path, mixed):
    mixed.publish(tmp_path / "refs.json", regular=True, copy=True, inline=0)
    document = json.loads((tmp_path / "refs.json").read_text())
    assert document["templates"] == {"here": str(tmp_path)}
    named = [value[0] for value in document["refs"].values() if isinstance(value, list)]
    assert [name[:9] for name in named if "chunks" in name] == ["{{here}}/"]
    mixed.publish(tmp_path / "gdal.json", regular=True, copy=True, inline=0,
                  portable=["zarr", "gdal"], zarr_format=2)  # fmt: skip
    assert "templates" not in json.loads((tmp_path / "gdal.json").read_text())
    # Without copies there is no template, and where names look like templates none either.
    Group({}, {"a": mixed["a"].lazy[:16]}).publish(tmp_path / "plain.json")
    assert "templates" not in json.loads((tmp_path / "plain.json").read_text())
    odd = tmp_path / "{{odd}}"
    odd.mkdir()
    mixed.publish(odd / "refs.json", regular=True, copy=True, inline=0)
    assert "templates" not in json.loads((odd / "refs.json").read_text())
    np.testing.assert_array_equal(vz.open(odd / "refs.json")["a"][...], mixed["a"][...])


def test_copies_that_are_left_behind_are_an_error(tmp_path, mixed):
    (tmp_path / "here").mkdir()
    mixed.publish(tmp_path / "here" / "refs.json", regular=True, copy=True, inline=0)
    shutil.move(tmp_path / "here" / "refs.json", tmp_path / "refs.json")
    with pytest.raises(SourceNotFoundError):
        vz.open(tmp_path / "refs.json")["a"][...]
    vz.rename_paths(tmp_path / "refs.json", lambda uri: uri.replace(
        f"{tmp_path}/refs.", f"{tmp_path}/here/refs."))  # fmt: skip
    np.testing.assert_array_equal(vz.open(tmp_path / "refs.json")["a"][...], mixed["a"][...])


def test_many_copies_of_parquet_lie_beside_it(tmp_path, mixed, monkeypatch):
    from dataclasses import replace

    from virtualzarr.references.kerchunk.parquet_form import ParquetForm

    few = replace(ParquetForm.capabilities, copied_bytes=10)
    monkeypatch.setattr(ParquetForm, "capabilities", few)
    report = mixed.publish(tmp_path / "refs.parq", regular=True, copy=True, inline=0)
    assert any("rename_paths" in note for note in report.notes)
    assert report.copied_to.endswith(".chunks")
    np.testing.assert_array_equal(vz.open(tmp_path / "refs.parq")["a"][...], mixed["a"][...])


def test_arrays_with_some_copies_within_grow_virtually(tmp_path, mixed):
    pytest.importorskip("h5py")
    files = write_months(tmp_path / "months", 3, steps=50)
    target = tmp_path / "refs.parq"
    first = vz.open(files[0])
    odd = virtual(tmp_path / "odd.bin", first["tas"][...], (1, 16, 32), [LITTLE, ZLIB],
                  dimension_names=("time", "y", "x"), attributes=first["tas"].attrs)  # fmt: skip
    group = first.replace(members={**dict(first.items()), "tas": odd})
    vz.concat([group, vz.open(files[1])], dim="time").publish(target, regular=True, copy=True)
    vz.append(target, files[2], "time", copy=True)
    again = vz.open(target)["tas"]
    assert again.shape == (150, 16, 32)
    np.testing.assert_array_equal(again[...], vz.virtualize(files, "time")["tas"][...])


def make_repository(folder, *containers):
    icechunk = pytest.importorskip("icechunk", minversion="2.0.5")
    config = icechunk.RepositoryConfig.default()
    for container in containers:
        store = icechunk.local_filesystem_store(str(container))
        config.set_virtual_chunk_container(
            icechunk.VirtualChunkContainer(f"file://{container}/", store)
        )
    access = {f"file://{container}/": icechunk.Credentials.LocalFileSystemAccess()
              if hasattr(icechunk.Credentials, "LocalFileSystemAccess") else None
              for container in containers}  # fmt: skip
    return icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(folder)), config=config,
        authorize_virtual_chunk_access=access,
    )  # fmt: skip


def test_references_are_set_in_a_session_for_its_owner_to_commit(tmp_path):
    group = vz.virtualize(write_months(tmp_path / "files"), "time")
    repository = make_repository(tmp_path / "refs.icechunk", tmp_path / "files")
    session = repository.writable_session("main")
    report = group.publish(session)
    assert (report.copied, report.references) == (0, 180 + 1 + 1 + 3)
    assert session.has_uncommitted_changes
    for name in group:
        np.testing.assert_array_equal(vz.open(session)[name][...], group[name][...])
    with pytest.raises(NodeExistsError, match="nodes already"):
        group.publish(session)
    group.publish(session, overwrite=True)
    session.commit("all of it")
    read_only = repository.readonly_session("main")
    assert vz.open(read_only)["tas"].shape == (180, 16, 32)
    np.testing.assert_array_equal(vz.open(tmp_path / "refs.icechunk")["tas"][...],
                                  group["tas"][...])  # fmt: skip
    with pytest.raises(AccessError, match="read-only"):
        group.publish(read_only)


def test_sessions_without_a_container_for_the_files_are_refused(tmp_path):
    group = vz.virtualize(write_months(tmp_path / "files", 2), "time")
    session = make_repository(tmp_path / "refs.icechunk").writable_session("main")
    with pytest.raises(PublishError, match=r"no virtual chunk container for .*files"):
        group.publish(session)
    assert not session.has_uncommitted_changes


def test_branches_are_written_and_read_by_name(tmp_path):
    pytest.importorskip("icechunk", minversion="2.0.5")
    files = write_months(tmp_path / "files")
    target, dev = tmp_path / "refs.icechunk", {"branch": "dev"}
    vz.virtualize(files[:1], "time").publish(target)
    vz.virtualize(files[:2], "time").publish(target, storage_options=dev)
    assert vz.open(target)["time"].shape == (60,)
    assert vz.open(target, storage_options=dev)["time"].shape == (120,)
    vz.append(target, files[2:], "time", storage_options=dev)
    again = vz.open(target, storage_options=dev)
    assert (again["time"].shape, vz.open(target)["time"].shape) == ((180,), (60,))
    np.testing.assert_array_equal(again["tas"][...], vz.virtualize(files, "time")["tas"][...])


@pytest.mark.parametrize("path", [".z", ".zarrays", "in/.z", ".zin/v"])
def test_names_that_readers_of_parquet_take_for_metadata_are_refused(tmp_path, path):
    pytest.importorskip("pyarrow")
    array = vz.create_array({}, data=np.arange(3), dimension_names=("x",))
    group = Group({}, {"v": array})
    for name in reversed(path.split("/")):
        array = Group({}, {name: array})
    odd = Group({}, {**group, **array})
    with pytest.raises(PublishError, match="takes what begins with"):
        odd.publish(tmp_path / "refs.parq", copy=True)
    assert not (tmp_path / "refs.parq").exists()
    with pytest.warns(SkippedVariableWarning):
        report = odd.publish(tmp_path / "refs.parq", copy=True, on_error="warn")
    assert list(report.skipped) == [path]
    odd.publish(tmp_path / "refs.json")
    np.testing.assert_array_equal(vz.open(tmp_path / "refs.json")[path][...], np.arange(3))
