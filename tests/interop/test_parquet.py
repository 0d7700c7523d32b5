"""References in Parquet: fsspec opens ours with both engines, and we open kerchunk's."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.interop.test_references import assert_read_alike, bits, collection
from tests.references.arrays import LITTLE, VALUES, ZLIB, virtual
from virtualzarr.errors import PublishError
from virtualzarr.hierarchy.group import Group
from virtualzarr.ingest.open_target import open as vz_open
from virtualzarr.references.kerchunk import scan
from virtualzarr.references.publish import publish

zarr = pytest.importorskip("zarr")
pytest.importorskip("zarr.storage", reason="zarr-python 3")
pytest.importorskip("pyarrow")
fsspec = pytest.importorskip("fsspec")
reference = pytest.importorskip("fsspec.implementations.reference")

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(params=["fastparquet", "pyarrow"])
def engine(request):
    pytest.importorskip(request.param)
    return request.param


def filesystem(path, engine, **options):
    """fsspec's file system of references, as its users make it."""
    mapper = reference.LazyReferenceMapper(str(path), engine=engine)
    return fsspec.filesystem("reference", fo=mapper, asynchronous=True, **options)


def zarr_open(path, engine, **options):
    store = zarr.storage.FsspecStore(filesystem(path, engine, **options), read_only=True, path="")
    return zarr.open(store, mode="r")


@pytest.mark.parametrize("record_size", [None, 2])
def test_zarr_python_reads_what_we_publish(tmp_path, engine, record_size):
    group = collection(tmp_path / "data.bin")
    report = publish(group, tmp_path / "refs.parq", record_size=record_size)
    assert report.zarr_format == 2
    assert any("remote_protocol" in note for note in report.notes)  # for nested groups
    theirs = zarr_open(tmp_path / "refs.parq", engine, remote_protocol="file")
    for path, node in group.members(None):
        if isinstance(node, Group):
            assert dict(theirs[path].attrs) == node.attrs
        else:
            assert bits(theirs[path][...]) == bits(node[...]), path


def test_flat_groups_open_without_options(tmp_path, engine):
    if engine != "fastparquet":
        pytest.skip("the engine that fsspec takes by itself")
    group = collection(tmp_path / "data.bin")
    flat = Group(group.attrs, dict(group.arrays()))
    publish(flat, tmp_path / "refs.parq")
    assert_read_alike(flat, tmp_path / "refs.parq")


def test_xarray_masks_what_it_should_and_no_more(tmp_path, engine):
    xr = pytest.importorskip("xarray")
    group = collection(tmp_path / "data.bin")
    flat = Group(group.attrs, dict(group.arrays()))
    publish(flat, tmp_path / "refs.parq")
    store = zarr.storage.FsspecStore(
        filesystem(tmp_path / "refs.parq", engine), read_only=True, path=""
    )
    dataset = xr.open_dataset(store, engine="zarr", consolidated=False).load()
    f4 = VALUES.astype("f4") - 3
    masked, filled = f4.copy(), f4.copy()
    masked[2:4, 3:6] = filled[0:2, 6:] = np.nan
    expected = {"masked": masked, "filled": filled, "other_fill": np.where(f4 == 4, np.nan, f4)}
    for name, array in flat.arrays():
        if array.dtype.kind in "mM":
            continue
        got, want = dataset[name].values, expected.get(name, array[...])
        if got.dtype.kind in "iuf":
            got = got.astype(want.dtype, casting="safe")
        assert bits(got) == bits(want), name


def test_kerchunks_engine_of_xarray(tmp_path):
    pytest.importorskip("fastparquet")
    pytest.importorskip("kerchunk.xarray_backend")
    xr = pytest.importorskip("xarray")
    x = virtual(tmp_path / "x", VALUES, (2, 3), [LITTLE, ZLIB], dimension_names=("y", "x"))
    publish(Group({"a": 1}, {"x": x}), tmp_path / "refs.parq")
    dataset = xr.open_dataset(str(tmp_path / "refs.parq"), engine="kerchunk")
    assert (dataset.x.values == VALUES).all()
    assert dataset.attrs == {"a": 1}


def test_many_missing_chunks_read_as_the_fill_value(tmp_path, engine):
    missing = tuple((i,) for i in range(1, 2000))
    x = virtual(tmp_path / "x", np.full(16_000, 3.5), 8, fill_value=3.5, missing=missing)
    report = publish(Group({}, {"x": x}), tmp_path / "refs.parq", record_size=700)
    assert (report.references, report.inlined) == (2000, 1999)
    assert (zarr_open(tmp_path / "refs.parq", engine)["x"][:] == 3.5).all()
    assert report.nbytes < 40_000


def test_large_missing_chunks_are_copied_once(tmp_path, engine):
    values = np.zeros((6, 40_000), "i4")
    missing = tuple((i, 0) for i in range(1, 6))
    x = virtual(tmp_path / "x", values, (1, 40_000), fill_value=9, missing=missing)
    with pytest.raises(PublishError, match="chunks are missing"):
        publish(Group({}, {"x": x}), tmp_path / "refs.parq")
    report = publish(Group({}, {"x": x}), tmp_path / "refs.parq", copy=True)
    assert (report.copied_bytes, report.references) == (160_000, 6)
    got = zarr_open(tmp_path / "refs.parq", engine)["x"][:]
    assert (got[1:] == 9).all()
    assert (got[0] == 0).all()
    assert (vz_open(tmp_path / "refs.parq")["x"][:] == got).all()


def test_whole_files_and_empty_chunks(tmp_path, engine):
    (tmp_path / "whole").write_bytes(bytes(range(4)))
    refs = {
        ".zgroup": '{"zarr_format": 2}',
        "x/.zarray": {
            "zarr_format": 2, "shape": [6], "chunks": [2], "dtype": "|u1", "compressor": None,
            "filters": None, "fill_value": None, "order": "C",
        },
        "x/0": [str(tmp_path / "whole"), 0, 2], "x/1": "base64:YmE=",
        "x/2": [str(tmp_path / "two")],
    }  # fmt: skip
    (tmp_path / "two").write_bytes(b"ab")
    group = scan(refs)
    publish(group, tmp_path / "refs.parq")
    want = [0, 1, *b"ba", *b"ab"]
    assert zarr_open(tmp_path / "refs.parq", engine)["x"][:].tolist() == want
    assert vz_open(tmp_path / "refs.parq")["x"][:].tolist() == want


def test_inline_chunks_that_look_encoded(tmp_path, engine):
    chunk = np.frombuffer(b"base64:AAAA", "u1")
    from virtualzarr.array import Array
    from virtualzarr.manifest import Manifest

    x = virtual(tmp_path / "x", chunk, 11)
    x = Array.from_manifest(x.metadata, Manifest.inline(chunk.tobytes(), 1), "x")
    publish(Group({}, {"x": x}), tmp_path / "refs.parq")
    assert (zarr_open(tmp_path / "refs.parq", engine)["x"][:] == chunk).all()
    assert (vz_open(tmp_path / "refs.parq")["x"][:] == chunk).all()


@pytest.mark.parametrize("record_size", [3, 1000])
@pytest.mark.parametrize("threshold", [1, 1000])
def test_we_open_what_kerchunk_writes(tmp_path, record_size, threshold):
    pytest.importorskip("fastparquet")
    df = pytest.importorskip("kerchunk.df")
    group = collection(tmp_path / "data.bin")
    flat = Group(group.attrs, dict(group.arrays()))
    publish(flat, tmp_path / "refs.json", zarr_format=2)
    refs = json.loads((tmp_path / "refs.json").read_text())
    df.refs_to_dataframe(
        refs, str(tmp_path / "theirs.parq"), record_size=record_size,
        categorical_threshold=threshold,
    )  # fmt: skip
    ours = vz_open(tmp_path / "theirs.parq")
    assert set(ours) == set(flat)
    for name, array in flat.arrays():
        assert bits(ours[name][...]) == bits(array[...]), name
        again = ours[name].manifest  # all of it, after a part
        assert again.nrefs == scan(tmp_path / "refs.json")[name].manifest.nrefs
