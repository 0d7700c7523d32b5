"""Icechunk repositories: zarr-python and xarray read what we publish, and we read it again."""

from __future__ import annotations

import os

import numpy as np
import pytest

import virtualzarr as vz
from tests.interop.test_references import bits, collection
from tests.references.arrays import DECODERS, VALUES, odd_array, virtual
from tests.references.test_append import same, write
from virtualzarr.errors import MismatchError, PublishError, UnsupportedError
from virtualzarr.hierarchy.group import Group
from virtualzarr.references.icechunk.bindings import container_of, documents
from virtualzarr.references.publish import publish

icechunk = pytest.importorskip("icechunk")
zarr = pytest.importorskip("zarr")

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]

NEW = int(icechunk.__version__.split(".")[0]) >= 2
needs_reading = pytest.mark.skipif(not NEW, reason="older versions do not tell where chunks are")


def opened(path, folder):
    """A repository as its users open it."""
    prefix = f"file://{folder}/"
    access = {prefix: container_of(prefix, None)[1]}
    storage = icechunk.local_filesystem_storage(str(path))
    return icechunk.Repository.open(storage, authorize_virtual_chunk_access=access)


def zarr_open(path, folder):
    return zarr.open(opened(path, folder).readonly_session("main").store, mode="r")


def test_zarr_python_reads_what_we_publish(tmp_path):
    group = collection(tmp_path / "data.bin")
    report = publish(group, tmp_path / "refs.icechunk")
    assert report.zarr_format == 3
    assert any("authorize" in note for note in report.notes)
    theirs = zarr_open(tmp_path / "refs.icechunk", tmp_path)
    for path, node in group.members(None):
        if isinstance(node, Group):
            assert dict(theirs[path].attrs) == node.attrs
        else:
            assert bits(theirs[path][...]) == bits(node[...]), path
    assert dict(theirs.attrs) == group.attrs


def test_xarray(tmp_path):
    xr = pytest.importorskip("xarray")
    files = [write(tmp_path / f"{i}.nc", 4 * i) for i in range(3)]
    publish(vz.virtualize(files, "time"), tmp_path / "refs.icechunk")
    store = opened(tmp_path / "refs.icechunk", tmp_path).readonly_session("main").store
    dataset = xr.open_zarr(store, consolidated=False)
    assert dataset.air.dims == ("time", "y")
    assert dataset.air.values[:, 0].tolist() == [i * 10 for i in range(12)]


@needs_reading
def test_we_open_what_we_publish(tmp_path):
    group = collection(tmp_path / "data.bin")
    publish(group, tmp_path / "refs.icechunk")
    again = vz.open(tmp_path / "refs.icechunk")
    assert again.attrs == group.attrs
    for path, node in group.members(None):
        if not isinstance(node, Group):
            assert bits(again[path][...]) == bits(node[...]), path
            assert again[path].manifest.nrefs == node.manifest.nrefs


@pytest.mark.skipif(NEW, reason="newer versions tell where chunks are")
def test_older_versions_do_not_tell_where_chunks_are(tmp_path):
    publish(Group({}, {"x": virtual(tmp_path / "x", VALUES, (2, 3))}), tmp_path / "refs.icechunk")
    with pytest.raises(UnsupportedError, match=r"2\.0\.5"):
        vz.open(tmp_path / "refs.icechunk")


@pytest.mark.parametrize("decoder", DECODERS)
def test_copied_chunks_are_the_repositorys_own(tmp_path, decoder):
    odd = odd_array(tmp_path / "data.bin", decoder)
    group = Group({}, {"x": odd})
    with pytest.raises(PublishError, match="other readers would read it wrong"):
        publish(group, tmp_path / "refs.icechunk")
    report = publish(group, tmp_path / "refs.icechunk", copy=True)
    assert report.copied == np.count_nonzero(~odd.manifest.canonical)
    assert report.copied_bytes > 0
    assert report.copied_to == str(tmp_path / "refs.icechunk")
    assert bits(zarr_open(tmp_path / "refs.icechunk", tmp_path)["x"][...]) == bits(odd[...])


def test_names_that_urls_encode(tmp_path):
    folder = tmp_path / "a b#c%20"
    folder.mkdir()
    x = virtual(folder / "d?é .bin", VALUES, (2, 3))
    publish(Group({}, {"x": x}), tmp_path / "refs.icechunk")
    assert (zarr_open(tmp_path / "refs.icechunk", tmp_path)["x"][...] == VALUES).all()
    if NEW:
        again = vz.open(tmp_path / "refs.icechunk")["x"].manifest
        assert again.sources[0].uri == x.manifest.sources[0].uri


def test_icechunk_notices_changed_files(tmp_path):
    x = virtual(tmp_path / "x", VALUES, (2, 3))
    publish(Group({}, {"x": x}), tmp_path / "refs.icechunk")
    assert (zarr_open(tmp_path / "refs.icechunk", tmp_path)["x"][...] == VALUES).all()
    file = x.manifest.sources[0].uri
    later = os.stat(file).st_mtime + 100
    os.utime(file, (later, later))
    with pytest.raises(Exception, match=r"(?i)modified|changed"):
        zarr_open(tmp_path / "refs.icechunk", tmp_path)["x"][...]


def test_publishing_again_is_another_commit(tmp_path):
    refs = tmp_path / "refs.icechunk"
    publish(Group({}, {"x": virtual(tmp_path / "x", VALUES, (2, 3))}), refs)
    publish(Group({}, {"y": virtual(tmp_path / "x", VALUES, (2, 3))}), refs)
    assert list(zarr_open(refs, tmp_path)) == ["y"]
    assert len(list(opened(refs, tmp_path).ancestry(branch="main"))) == 3


@needs_reading
@pytest.mark.parametrize("axis", [0, 1])
def test_append(tmp_path, axis):
    files = [write(tmp_path / f"{i}.nc", 4 * i, axis=axis) for i in range(3)]
    refs, whole = tmp_path / "refs.icechunk", tmp_path / "whole.icechunk"
    publish(vz.virtualize(files[:2], "time"), refs)
    before = opened(refs, tmp_path).readonly_session("main").snapshot_id
    vz.append(refs, files[2], "time")
    publish(vz.virtualize(files, "time"), whole)
    same(vz.open(refs), vz.open(whole))
    air = zarr_open(refs, tmp_path)["air"][...]
    assert (air if axis == 0 else air.T)[:, 0].tolist() == [i * 10 for i in range(12)]
    old = opened(refs, tmp_path).readonly_session(snapshot_id=before).store
    assert zarr.open(old, mode="r")["time"].shape == (8,)
    with pytest.raises(MismatchError, match="there already"):
        vz.append(refs, files[2], "time")


@needs_reading
@pytest.mark.parametrize("form", ["json", "parq"])
def test_convert_and_check(tmp_path, form):
    files = [write(tmp_path / f"{i}.nc", 4 * i) for i in range(2)]
    refs, back = tmp_path / "refs.icechunk", tmp_path / f"back.{form}"
    group = vz.virtualize(files, "time")
    publish(group, refs)
    vz.convert_references(refs, back)
    for name in group:
        np.testing.assert_array_equal(vz.open(back)[name][...], group[name][...])
    assert vz.check_references(refs).ok == tuple(map(str, files))
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in files:
        file.rename(moved / file.name)
    vz.rename_paths(refs, {str(tmp_path): str(moved)})
    assert (zarr_open(refs, moved)["air"][...] == vz.open(refs)["air"][...]).all()


@needs_reading
def test_nothing_but_missing_chunks(tmp_path):
    group = vz.create_group(tmp_path / "empty")
    group.create_array("a", shape=(0, 3), dtype="i2", chunks=(1, 3))
    group.create_array("b", shape=(2,), dtype="i2", chunks=1, fill_value=7)
    publish(group, tmp_path / "refs.icechunk")
    again = vz.open(tmp_path / "refs.icechunk")
    assert again["a"].shape == (0, 3)
    assert again["b"][...].tolist() == [7, 7]


@needs_reading
def test_an_empty_file_is_appended(tmp_path):
    for name, count in (("some", 2), ("none", 0)):
        group = vz.create_group(tmp_path / name)
        group.create_array("a", data=np.arange(count), chunks=1, dimension_names=["t"])
    publish(vz.virtualize(tmp_path / "some"), tmp_path / "refs.icechunk")
    vz.append(tmp_path / "refs.icechunk", tmp_path / "none", "t")
    assert vz.open(tmp_path / "refs.icechunk")["a"][...].tolist() == [0, 1]


@pytest.mark.parametrize("chunks", [(2, 4), [[], [4]], [[2, 5], [1, 3]]])
def test_axes_of_length_zero(tmp_path, chunks):
    stored = vz.create_group(tmp_path / "stored.zarr")
    options = {"shape": (0, 4), "dtype": "f4", "chunks": chunks, "dimension_names": ["t", "y"]}
    stored.create_array("x", **options)
    publish(stored, tmp_path / "refs.icechunk")
    theirs = zarr_open(tmp_path / "refs.icechunk", tmp_path)
    assert theirs["x"][...].shape == (0, 4)


def test_new_names_leave_chunks_of_the_repository_in_it(tmp_path):
    """A repository whose sources were renamed may be moved with the chunks that it has itself."""
    pytest.importorskip("icechunk", minversion="2.0.5")
    pytest.importorskip("h5py")
    import shutil

    from tests.references.monthly import write_months

    files = write_months(tmp_path / "files", 2)
    target = tmp_path / "refs.icechunk"
    vz.virtualize(files, "time").publish(target)
    expected = {name: array[...] for name, array in vz.open(target).arrays()}
    shutil.move(tmp_path / "files", tmp_path / "other")
    vz.rename_paths(target, {str(tmp_path / "files"): str(tmp_path / "other")})
    shutil.move(target, tmp_path / "moved.icechunk")
    again = vz.open(tmp_path / "moved.icechunk")
    for name, values in expected.items():
        np.testing.assert_array_equal(again[name][...], values)
    folders = {source.uri for source in again["time"].manifest.sources if not source.is_inline}
    assert all(uri.startswith(str(tmp_path / "moved.icechunk")) for uri in folders)


def test_members_may_be_called_as_chunks_are():
    session = icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main")
    root = zarr.open_group(session.store, mode="w")
    root.create_array("c", data=np.arange(4), chunks=(2,))
    root.create_group("c1").create_group("c").create_array("c", data=np.arange(3))
    names = ["", "c/", "c1/", "c1/c/", "c1/c/c/"]
    assert set(documents(session.store)) == {f"{name}zarr.json" for name in names}
