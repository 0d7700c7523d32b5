"""External storage: values in other files, and datasets that have none."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from tests.fidelity.compare import difference
from tests.formats.hdf5.helpers import assert_same, scan_all
from virtualzarr import config
from virtualzarr.errors import AccessError, SourceError, UnsupportedError
from virtualzarr.formats.hdf5 import scan
from virtualzarr.formats.hdf5.external_storage import lay_out_segments
from virtualzarr.ingest.detect import scan as scan_any
from virtualzarr.manifest import Source

DATA = np.arange(24, dtype=">i4").reshape(6, 4)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Go where HDF5 looks for external files."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def external(path, parts, dtype=">i4", shape=(6, 4), data=DATA):
    """Write a dataset over pieces of files: name, offset, and length."""
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", shape, dtype, external=parts)
        if data is not None:
            dataset[...] = data


@pytest.mark.parametrize(
    ("parts", "cells"),
    [
        ([("a.bin", 0, 96)], 1),
        ([("a.bin", 10, h5py.h5f.UNLIMITED)], 1),
        ([("a.bin", 0, 32), ("b.bin", 4, 32), ("a.bin", 50, 32)], 3),
        ([("a.bin", 0, 16), ("b.bin", 0, 64), ("c.bin", 0, 100)], 3),
    ],
)
def test_pieces_of_whole_rows_are_referenced(folder, parts, cells):
    external(folder / "v.h5", parts)
    array = assert_same(folder / "v.h5")["x"]
    assert array.manifest.shape == (cells, 1)
    assert {s.uri for s in array.manifest.sources} == {str(folder / part[0]) for part in parts}
    np.testing.assert_array_equal(array[1:5:2, 3], DATA[1:5:2, 3])


def test_pieces_within_rows_are_copied(folder, monkeypatch):
    external(folder / "v.h5", [("a.bin", 0, 30), ("b.bin", 2, 66)])
    assert assert_same(folder / "v.h5")["x"].manifest.sources[0].is_inline
    monkeypatch.setattr(config, "inline_bytes", 90)
    with pytest.raises(UnsupportedError, match="inline_bytes"):
        scan(folder / "v.h5")


@pytest.mark.parametrize("length", [0, 5, 40, 95])
def test_what_a_file_does_not_have_is_zero(folder, length):
    external(folder / "v.h5", [("a.bin", 0, 48), ("b.bin", 0, 48)])
    for k, name in enumerate(("a.bin", "b.bin")):
        raw = (folder / name).read_bytes()
        (folder / name).write_bytes(raw[: max(0, length - 48 * k)])
    array = assert_same(folder / "v.h5")["x"]
    assert array[...].tobytes()[length // 4 * 4 + 4 :].strip(b"\0") == b""


def test_strings_and_scalars(folder):
    external(folder / "s.h5", [("s.bin", 0, 8)], "S4", (2,), [b"ab", b"abcd"])
    external(folder / "n.h5", [("n.bin", 3, 8)], "<f8", (), 2.5)
    assert_same(folder / "s.h5")
    assert_same(folder / "n.h5")


def test_missing_and_insufficient_files(folder):
    external(folder / "v.h5", [("a.bin", 0, 96)])
    (folder / "a.bin").unlink()
    with pytest.raises(SourceError, match="no external file"):
        scan(folder / "v.h5")


def test_files_beside_are_found_from_elsewhere(folder, tmp_path_factory, monkeypatch):
    external(folder / "v.h5", [("a.bin", 0, 96)])
    monkeypatch.chdir(tmp_path_factory.mktemp("other"))
    np.testing.assert_array_equal(scan_all(folder / "v.h5")["x"][...], DATA)


def test_a_prefix_by_the_environment(folder, monkeypatch):
    (folder / "deep").mkdir()
    prefix = str(folder / "deep")
    with h5py.File(folder / "v.h5", "w") as file:
        parts = [("a.bin", 0, 96)]
        file.create_dataset("x", data=DATA, external=parts, efile_prefix=prefix)
    monkeypatch.setenv("HDF5_EXTFILE_PREFIX", "${ORIGIN}/deep")
    array = scan_all(folder / "v.h5")["x"]
    assert array.manifest.sources[0].uri == str(folder / "deep" / "a.bin")
    np.testing.assert_array_equal(array[...], DATA)


def test_other_folders_are_out_of_reach_unless_allowed(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    external(folder / "v.h5", [(str(other / "a.bin"), 0, 96)])
    with pytest.raises(AccessError, match="allowed"):
        scan(folder / "v.h5")
    assert_same(folder / "v.h5", scan_any(folder / "v.h5", allowed=str(other)))


def test_a_regular_grid_only_where_all_pieces_are_equal(folder):
    dataset = Source("/a", 1000)
    grid, _ = lay_out_segments([(dataset, 0, 32), (dataset, 40, 32), (dataset, 80, 32)], (6, 4), 4)
    assert grid.chunk_shape == (2, 4)
    grid, _ = lay_out_segments([(dataset, 0, 32), (dataset, 40, 32), (dataset, 80, 16)], (5, 4), 4)
    assert (
        grid.chunks == ((2, 2, 1), (4,)) if hasattr(grid, "chunks") else grid.grid_shape == (3, 1)
    )


@pytest.mark.parametrize(
    "dtype", ["<i4", ">f8", "S3", h5py.string_dtype(), np.dtype([("a", "i1")]), h5py.ref_dtype]
)
def test_null_dataspaces_are_empty(tmp_path, dtype):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=h5py.Empty(np.dtype(dtype)))
        file["x"].attrs["why"] = "nothing"
        file["y"] = [1, 2]
    group = scan_all(path)
    assert group["x"].shape == (0,)
    assert group["x"][...].size == 0
    assert group["x"].attrs == {"why": "nothing"}
    assert difference(group["y"][...], np.array([1, 2])) is None
