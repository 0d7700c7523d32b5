"""Folders of references in Parquet that are damaged, hostile, or odd."""

from __future__ import annotations

import io
import json
import math
import pickle
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import grids
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline
from virtualzarr.errors import (
    AccessError,
    BadReferenceError,
    SourceError,
    UnsupportedError,
    VirtualZarrError,
)
from virtualzarr.hierarchy.group import Group
from virtualzarr.ingest.open_target import open as vz_open
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.references.kerchunk import read_records as module
from virtualzarr.references.kerchunk.read_records import read_record
from virtualzarr.references.kerchunk.write_parquet import record_tables, write_table
from virtualzarr.references.publish import publish
from virtualzarr.references.report import Counts

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def array_of(manifest):
    """A virtual array of single bytes over a manifest."""
    grid = grids.RegularGrid(manifest.shape, (1,) * len(manifest.shape))
    metadata = ArrayMetadata(grid.shape, "u1", grid, Pipeline(["bytes"]))
    return Array.from_manifest(metadata, manifest, "x")


def manifest_of(count, seed=0):
    random = np.random.default_rng(seed)
    sources = Sources([Source("s3://b/a"), Source.inline(b"0123456789"), Source("s3://b/c")])
    source = random.integers(-1, 3, count)
    offset = random.integers(0, 5, count)
    length = random.integers(0, 4, count)
    length[(source != 1) & (offset == 0) & (random.random(count) < 0.5)] = -1
    return Manifest((count,), sources, source, offset, length)


def record(manifest, size):
    """The bytes of the first record of a manifest."""
    (_, table), *_ = record_tables(manifest, size, Counts())
    file = io.BytesIO()
    write_table(table, file, "series")
    return file.getvalue()


def resolved(source, offset, length, sources):
    """References as what they mean, whatever the tables are."""
    rows = []
    for row, start, size in zip(source.tolist(), offset.tolist(), length.tolist(), strict=True):
        if row < 0:
            rows.append(None)
        elif sources[row].is_inline:
            data = sources[row].data[start:]
            rows.append(data if size < 0 else data[:size])
        elif size == 0:
            rows.append((sources[row].uri, "nothing"))
        else:
            rows.append((sources[row].uri, start, size))
    return rows


@given(st.integers(1, 40), st.integers(0, 1000))
def test_what_is_written_is_read(count, seed):
    manifest = manifest_of(count, seed)
    found = read_record(record(manifest, count), count, Source)
    want = resolved(manifest.source, manifest.offset, manifest.length, manifest.sources)
    assert resolved(found.source, found.offset, found.length, found.sources) == want
    assert found.series == "series"


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_records_are_read_when_they_are_needed(tmp_path, size, monkeypatch):
    random = np.random.default_rng(1)
    shape = (4, 5)
    file = tmp_path / "data"
    file.write_bytes(bytes(range(20)))
    order = random.permutation(20).reshape(shape)
    manifest = Manifest(shape, Sources([Source(str(file))]), 0, order, 1)
    publish(Group({}, {"x": array_of(manifest)}), tmp_path / "refs.parq", record_size=size)
    read = []
    original = module.read_record

    def counting(data, *arguments):
        read.append(len(data))
        return original(data, *arguments)

    monkeypatch.setattr("virtualzarr.references.kerchunk.read_parquet.read_record", counting)
    array = vz_open(tmp_path / "refs.parq")["x"]
    assert read == []
    assert array[2, 1] == order[2, 1]
    assert len(read) == 1
    assert (array[:, 1] == order[:, 1]).all()
    assert len(read) == len({i * 5 + 1 for i in range(4)} if size == 1 else
                            {(i * 5 + 1) // size for i in range(4)})  # fmt: skip
    assert (array[::-1, ::2] == order[::-1, ::2]).all()
    assert (array.vindex[[3, 0, 3], [1, 1, 0]] == order[[3, 0, 3], [1, 1, 0]]).all()
    assert (pickle.loads(pickle.dumps(array))[:] == order).all()
    assert (np.asarray(array.manifest.offset) == order).all()


def test_few_records_are_kept(tmp_path):
    count = 3 * module.CACHED
    manifest = Manifest((count,), Sources([Source.inline(bytes(range(count)))]), 0, range(count), 1)
    publish(Group({}, {"x": array_of(manifest)}), tmp_path / "refs.parq", record_size=1)
    array = vz_open(tmp_path / "refs.parq")["x"]
    assert array[:].tolist() == list(range(count))
    assert len(array.chunk_source._records) <= module.CACHED


def folder(path, table, *, record_size=4, shape=(4,), **zmetadata):
    """A folder of references as somebody may have written it."""
    zarray = {
        "zarr_format": 2, "shape": list(shape), "chunks": [1] * len(shape), "dtype": "|u1",
        "compressor": None, "filters": None, "fill_value": 7, "order": "C",
    }  # fmt: skip
    (path / "x").mkdir(parents=True)
    document = {
        "metadata": {".zgroup": {"zarr_format": 2}, "x/.zarray": zarray},
        "record_size": record_size,
    }
    (path / ".zmetadata").write_text(json.dumps(document | zmetadata))
    if table is not None:
        parquet.write_table(pyarrow.table(table), path / "x" / "refs.0.parq")
    return path


PLAIN = {"path": ["a"] * 4, "offset": [0, 1, 2, 3], "size": [1] * 4, "raw": [None] * 4}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"path": [1, 2, 3, 4]}, "'path' holds int64"),
        ({"offset": [-1, 0, 0, 0]}, "negative"),
        ({"size": [1, 1, 1, -1]}, "negative"),
        ({"offset": [0.5, 0.0, 0.0, 0.0]}, "byte counts"),
        ({"offset": [math.nan, 0.0, 0.0, 0.0]}, "byte counts"),
        ({"size": ["1", "1", "1", "1"]}, "size"),
        ({"offset": np.array([2**63, 0, 0, 0], np.uint64)}, "byte counts|negative"),
        ({"raw": [b"base64:?", None, None, None]}, "inline data"),
        ({"raw": [1, 2, 3, 4]}, "'raw' holds int64"),
        ({"path": ["a"] * 5, "offset": [0] * 5, "size": [1] * 5, "raw": [None] * 5}, "at most 4"),
        ({"path": ["a"], "offset": [0], "size": [1], "raw": [None]}, "lacks some"),
        ({"path": ["\0", "a", "a", "a"]}, "no URL"),
    ],
)
def test_wrong_records_are_errors(tmp_path, changes, match):
    path = folder(tmp_path / "refs.parq", PLAIN | changes)
    with pytest.raises(VirtualZarrError, match=match):
        vz_open(path)["x"][:]


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" * 10, b"{}", b"\0" * 100])
def test_files_that_are_no_parquet(tmp_path, data):
    path = folder(tmp_path / "refs.parq", None)
    (path / "x" / "refs.0.parq").write_bytes(data)
    with pytest.raises(BadReferenceError, match=r"refs\.0\.parq"):
        vz_open(path)["x"][:]


def test_damaged_records_are_errors_or_references():
    """Checksums find what is damaged in pages, not in what describes them."""
    manifest = manifest_of(30)
    good = record(manifest, 30)
    want = resolved(manifest.source, manifest.offset, manifest.length, manifest.sources)
    choose, errors, same = random.Random(3), 0, 0
    for _ in range(400):
        data = bytearray(good)
        for _ in range(choose.choice([1, 1, 3])):
            data[choose.randrange(len(data))] = choose.randrange(256)
        if choose.random() < 0.2:
            del data[choose.randrange(len(data)) :]
        try:
            found = read_record(bytes(data), 30, Source)
        except VirtualZarrError:
            errors += 1
            continue
        rows = resolved(found.source, found.offset, found.length, found.sources)
        same += rows == want
        assert (found.offset >= 0).all()
        assert (found.length >= -1).all()
    assert errors > 200
    assert same > 0.9 * (400 - errors)


@pytest.mark.parametrize("size", [0, -1, True, "3", 1.5, None, 2**40])
def test_wrong_record_sizes(tmp_path, size):
    path = folder(tmp_path / "refs.parq", PLAIN, record_size=size)
    with pytest.raises(BadReferenceError, match="record size"):
        vz_open(path)["x"]


@pytest.mark.parametrize("metadata", [None, [], "x", {"x/.zarray": 3}, {}])
def test_wrong_metadata(tmp_path, metadata):
    path = folder(tmp_path / "refs.parq", PLAIN, metadata=metadata)
    with pytest.raises(VirtualZarrError):
        vz_open(path, format="kerchunk")["x"]


def test_grids_too_large_to_load_are_refused(tmp_path):
    path = folder(tmp_path / "refs.parq", PLAIN, record_size=1, shape=(10**6, 10**6))
    array = vz_open(path)["x"]
    assert array[5, 5] == 7  # there is no such record
    with pytest.raises(UnsupportedError, match="too many"):
        array.manifest.nrefs  # noqa: B018


def test_references_reach_only_what_is_allowed(tmp_path):
    (tmp_path / "secret").write_bytes(b"abcd")
    path = folder(tmp_path / "refs.parq", PLAIN | {"path": [str(tmp_path / "secret")] * 4})
    assert vz_open(path)["x"][:].tolist() == list(b"abcd")
    with pytest.raises(AccessError):
        vz_open(path, allowed=str(tmp_path / "other"))["x"][:]


def test_a_lost_record_is_an_error_where_all_were_written(tmp_path):
    manifest = Manifest((4,), Sources([Source.inline(b"abcd")]), 0, range(4), 1)
    publish(Group({}, {"x": array_of(manifest)}), tmp_path / "refs.parq", record_size=2)
    (tmp_path / "refs.parq" / "x" / "refs.1.parq").unlink()
    array = vz_open(tmp_path / "refs.parq")["x"]
    assert array[1] == ord("b")
    with pytest.raises(SourceError, match="gone"):
        array[2]
    theirs = folder(tmp_path / "theirs.parq", PLAIN, shape=(6,))
    assert vz_open(theirs)["x"][4:].tolist() == [7, 7]  # kerchunk writes none


def test_the_package_that_is_needed_is_named(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    manifest = Manifest((4,), Sources([Source.inline(b"abcd")]), 0, range(4), 1)
    with pytest.raises(ImportError, match=r"virtualzarr\[parquet\]"):
        publish(Group({}, {"x": array_of(manifest)}), tmp_path / "refs.parq")
    assert not (tmp_path / "refs.parq").exists()
