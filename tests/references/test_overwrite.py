"""What publishing replaces, and what it leaves alone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import numpy as np
import pytest

import virtualzarr as vz
from tests.references.test_append import write
from virtualzarr.errors import NodeExistsError, VirtualZarrError, WriteError
from virtualzarr.references.kerchunk.json_form import is_reference_file
from virtualzarr.references.publish import publish

FORMS = ["json", "parquet", "native"]


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "day.nc", 0)


@pytest.fixture
def group(source):
    return vz.virtualize(source)


def contents(folder):
    """Return all files in a folder with their bytes."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_source_is_never_replaced(tmp_path, source, group, form, overwrite):
    before = contents(tmp_path)
    (tmp_path / "link").symlink_to(source)
    os.link(source, tmp_path / "hard")
    for target in (source, tmp_path / "link", tmp_path / "hard", tmp_path):
        with pytest.raises(VirtualZarrError):
            publish(group, target, reference_format=form, overwrite=overwrite)
    (tmp_path / "link").unlink()
    (tmp_path / "hard").unlink()
    assert contents(tmp_path) == before


def test_sources_in_a_hierarchy_are_not_deleted(tmp_path):
    """Nor those in a group of it."""
    vz.create_group(tmp_path / "x.zarr").create_array("g/a", data=np.arange(4), chunks=2)
    before = contents(tmp_path)
    for opened in (vz.open(tmp_path / "x.zarr"), vz.open(tmp_path / "x.zarr" / "g")):
        with pytest.raises(NodeExistsError, match="referred to"):
            publish(opened, tmp_path / "x.zarr", overwrite=True)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("text", ["{}", '{"type": "FeatureCollection"}', "a,b\n1,2\n", "\0" * 100])
def test_foreign_files_are_replaced_if_asked(tmp_path, group, text):
    target = tmp_path / "x.json"
    target.write_text(text)
    with pytest.raises(NodeExistsError, match=r"holds no references already; overwrite=True"):
        publish(group, target)
    assert target.read_text() == text
    publish(group, target, overwrite=True)
    assert vz.open(target)["air"].shape == (4, 6)


def test_files_of_formats_are_named(tmp_path, group):
    other = write(tmp_path / "other.nc", 4)
    with pytest.raises(NodeExistsError, match="a file of the format hdf5 already"):
        publish(group, other)
    publish(group, other, overwrite=True)
    assert is_reference_file(other)


@pytest.mark.parametrize("form", ["json", "icechunk"])
def test_references_of_the_same_form_are_replaced(tmp_path, group, form):
    if form == "icechunk":
        pytest.importorskip("icechunk", minversion="2")
    target = tmp_path / f"refs.{form}"
    for _ in range(2):
        publish(group, target, reference_format=form)
    (target if form == "json" else target / "x").write_bytes(b"")
    publish(group, target, reference_format=form)
    assert vz.open(target)["air"].shape == (4, 6)


def test_folders_in_parquet_are_replaced_if_asked(tmp_path, group):
    """Who has one open reads records of the new one by the metadata of the old one."""
    pytest.importorskip("pyarrow")
    target = tmp_path / "refs.parquet"
    publish(group, target)
    before = contents(target)
    with pytest.raises(NodeExistsError, match=r"load more later, already; overwrite=True"):
        publish(group, target)
    assert contents(target) == before
    publish(group, target, overwrite=True)
    assert vz.open(target)["air"].shape == (4, 6)


@pytest.mark.parametrize(
    "text",
    [
        '{"version": 1, "templates": {"u": "x"}, "refs": {".zgroup": "{}"}}',
        '{"a/.zarray": "{}"}',
        '\n {"version": 1, "refs": {"zarr.json": "{}"}}',
        "",
    ],
)
def test_reference_files_are_recognized(tmp_path, group, text):
    target = tmp_path / "refs.json"
    target.write_text(text)
    publish(group, target)
    assert vz.open(target)["air"].shape == (4, 6)


@pytest.mark.parametrize("name", [".zmetadata", "zarr.json", ".zgroup"])
def test_documents_of_zarr_are_no_references(tmp_path, group, name):
    group_there = vz.create_group(tmp_path / "x", zarr_format=3 if name == "zarr.json" else 2)
    group_there.consolidate_metadata()
    with pytest.raises(NodeExistsError):
        publish(group, tmp_path / "x" / name, reference_format="json")


def test_foreign_folders_are_left_alone(tmp_path, group):
    pytest.importorskip("pyarrow")
    target = tmp_path / "table.parquet"
    target.mkdir()
    (target / "part-0.parquet").write_bytes(b"PAR1")
    with pytest.raises(NodeExistsError, match=r"a folder that holds no references already"):
        publish(group, target)
    assert (target / "part-0.parquet").read_bytes() == b"PAR1"
    publish(group, target, overwrite=True)
    assert [*vz.open(target)]
    assert not (target / "part-0.parquet").exists()
    (tmp_path / "empty.parq").mkdir()
    publish(group, tmp_path / "empty.parq")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_is_no_folder(tmp_path, group, overwrite):
    (tmp_path / "a.parq").write_text("x")
    (tmp_path / "b.json").mkdir()
    for name in ("a.parq", "b.json"):
        with pytest.raises(NodeExistsError, match=r"there is a (file|folder) already: remove it"):
            publish(group, tmp_path / name, overwrite=overwrite)
    assert (tmp_path / "a.parq").read_text() == "x"
    assert (tmp_path / "b.json").is_dir()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device here")
@pytest.mark.parametrize("overwrite", [False, True])
def test_devices_are_left_alone(group, overwrite):
    with pytest.raises(NodeExistsError, match=r"neither a file nor a folder.*/dev/full"):
        publish(group, "/dev/full", overwrite=overwrite)
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    assert not os.path.exists("/dev/full.__lock")


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_links_are_followed_and_modes_stay(tmp_path, group, form):
    if form == "parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / "refs", tmp_path / "link"
    link.symlink_to("real/refs")
    publish(group, link, reference_format=form)
    assert link.is_symlink()
    mode = 0o750 if form == "parquet" else 0o640
    real.chmod(mode)
    publish(group, link, reference_format=form, overwrite=True)
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == mode
    assert vz.open(real)["air"].shape == (4, 6)
    vz.append(link, write(tmp_path / "next.nc", 4), "time")
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == mode
    assert vz.open(link)["air"].shape == (8, 6)


def test_new_files_have_the_mode_that_others_have(tmp_path, group):
    old = os.umask(0o027)
    try:
        publish(group, tmp_path / "refs.json")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "refs.json").stat().st_mode) == 0o640


FULL = """
import resource, sys
import virtualzarr as vz
import pyarrow.parquet
from virtualzarr.errors import WriteError
source, target, limit, form = sys.argv[1:]
group = vz.virtualize(source)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
try:
    group.publish(target, reference_format=form, overwrite=form == "parquet")
except WriteError as error:
    assert "cannot write here" in str(error) and target in str(error), error
    assert error.errno is not None or form == "icechunk"
    assert "\\n" not in str(error), error
else:
    raise SystemExit("was written")
"""


@pytest.mark.parametrize("form", ["json", "parquet"])
@pytest.mark.parametrize("limit", [10, 600])
def test_no_space_leaves_what_was_there(tmp_path, source, group, form, limit):
    pytest.importorskip("pyarrow")
    target = tmp_path / f"refs.{form}"
    publish(group, target, reference_format=form)
    before = contents(tmp_path)
    command = [sys.executable, "-c", FULL, source, target, str(limit), form]
    subprocess.run([str(part) for part in command], check=True, timeout=120)
    assert contents(tmp_path) == before
    assert not list(tmp_path.glob(".*"))


def test_no_space_for_icechunk(tmp_path, source, group):
    pytest.importorskip("icechunk", minversion="2")
    target = tmp_path / "refs.icechunk"
    publish(group, target)
    command = [sys.executable, "-c", FULL, source, target, "10", "icechunk"]
    subprocess.run([str(part) for part in command], check=True, timeout=120)
    assert vz.open(target)["air"].shape == (4, 6)


def test_no_folder_and_no_permission(tmp_path, group):
    with pytest.raises(WriteError, match=r"No such file.*nowhere/refs\.json"):
        publish(group, tmp_path / "nowhere" / "refs.json")
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(VirtualZarrError, match=r"Not a directory.*refs\.json"):
        publish(group, tmp_path / "day.nc" / "refs.json")


def test_objects_at_urls(tmp_path, group, source):
    fsspec = pytest.importorskip("fsspec")
    memory, place = fsspec.filesystem("memory"), f"/{tmp_path.name}"
    memory.pipe(f"{place}/x.json", b"{}")
    memory.pipe(f"{place}/day.nc", source.read_bytes())
    target = f"memory:/{place}/x.json"
    with pytest.raises(NodeExistsError, match="an object already that holds no references"):
        publish(group, target)
    publish(group, target, overwrite=True)
    publish(group, target)
    remote = vz.virtualize(f"memory:/{place}/day.nc")
    with pytest.raises(NodeExistsError, match="referred to"):
        publish(remote, f"memory:/{place}/day.nc", overwrite=True)
    assert memory.cat(f"{place}/day.nc") == source.read_bytes()


@pytest.mark.parametrize("form", FORMS)
def test_convert(tmp_path, group, form):
    publish(group, tmp_path / "refs.json")
    target = write(tmp_path / "other.nc", 4) if form == "json" else tmp_path / "other"
    if form != "json":
        vz.create_array(target, data=np.arange(3))
    before = contents(tmp_path)
    with pytest.raises(NodeExistsError, match="overwrite=True"):
        vz.convert_references(tmp_path / "refs.json", target, reference_format=form)
    assert contents(tmp_path) == before
    vz.convert_references(tmp_path / "refs.json", target, reference_format=form, overwrite=True)
    assert vz.open(target)["air"].shape == (4, 6)


class TestCopies:
    def test_a_zip_file_replaces_only_what_it_may(self, tmp_path, group, source):
        target = tmp_path / "x.zip"
        target.write_text("mine")
        with pytest.raises(NodeExistsError, match="overwrite=True"):
            vz.copy(group, target)
        assert target.read_text() == "mine"
        (tmp_path / "real").mkdir()
        real = target.rename(tmp_path / "real" / "y.zip")
        real.chmod(0o640)
        target.symlink_to(real)
        (tmp_path / "x.zip.part").write_text("mine, too")
        vz.copy(group, target, overwrite=True)
        assert target.is_symlink()
        assert stat.S_IMODE(real.stat().st_mode) == 0o640
        assert (tmp_path / "x.zip.part").read_text() == "mine, too"
        np.testing.assert_array_equal(vz.open(real)["air"][...], group["air"][...])

    def test_devices_and_sources(self, tmp_path, source):
        (tmp_path / "full.zip").symlink_to("/dev/full")
        with pytest.raises(VirtualZarrError, match="neither a file nor a folder"):
            vz.copy(source, tmp_path / "full.zip", overwrite=True)
        named = source.rename(tmp_path / "source.zip")
        before = named.read_bytes()
        for target in (named, tmp_path / "link.zip"):
            if target != named:
                target.symlink_to(named)
            with pytest.raises(VirtualZarrError):
                vz.copy(named, target, overwrite=True, format="hdf5")
        assert named.read_bytes() == before

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_file_is_no_hierarchy(self, tmp_path, group, overwrite):
        other = write(tmp_path / "other.nc", 4)
        before = other.read_bytes()
        with pytest.raises(VirtualZarrError, match=r"other\.nc"):
            vz.copy(group, other, overwrite=overwrite)
        assert other.read_bytes() == before
