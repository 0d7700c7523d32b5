"""Where the values lie: contiguous, chunked, compact, nowhere."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from tests.formats.hdf5.helpers import assert_same, low_level, scan_all
from virtualzarr.errors import SkippedVariableWarning
from virtualzarr.formats.hdf5 import scan

DATA = np.arange(42, dtype="<i4").reshape(6, 7)


@pytest.fixture(params=["earliest", "latest"])
def libver(request):
    return request.param


def test_contiguous_is_one_reference(tmp_path, libver):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=libver) as file:
        offset = file.create_dataset("x", data=DATA).id.get_offset()
    array = assert_same(path)["x"]
    assert array.chunks == (6, 7)
    assert array.manifest.nrefs == 1
    assert array.manifest.sources[0].uri == str(path)
    assert array.manifest.sources[0].size == path.stat().st_size
    assert (int(array.manifest.offset[0, 0]), int(array.manifest.length[0, 0])) == (offset, 168)


@pytest.mark.parametrize("maxshape", [None, (None, 7), (None, None), (12, 14)])
@pytest.mark.parametrize("chunks", [(2, 3), (6, 7), (100, 7), (1, 1)])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_chunked_with_every_index(tmp_path, libver, maxshape, chunks, compression):
    path = tmp_path / "a.h5"
    if maxshape == (12, 14) and chunks == (100, 7):
        chunks = (12, 14)  # HDF5 wants chunks within a fixed limit
    elif maxshape in (None, (None, 7)) and chunks == (100, 7):
        maxshape = (None, 7)
    with h5py.File(path, "w", libver=libver) as file:
        file.create_dataset(
            "x", data=DATA, chunks=chunks, maxshape=maxshape, compression=compression
        )
    array = assert_same(path)["x"]
    assert array.chunks == chunks
    assert array.manifest.nrefs == array.nchunks
    assert array.manifest.canonical.all()


@pytest.mark.parametrize("maxshape", [(6, None), (9, None)])
def test_extensible_array_that_h5py_misreports(tmp_path, libver, maxshape):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=libver) as file:
        file.create_dataset("x", data=DATA, chunks=(2, 3), maxshape=maxshape)
    assert_same(path)


def test_first_axis_unlimited_is_reported_rightly(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        data = np.arange(20 * 9).reshape(20, 9)
        file.create_dataset("x", data=data, chunks=(1, 2), maxshape=(None, 14))
    assert_same(path)


@pytest.mark.parametrize("size", [512, 4096])
def test_user_block_shifts_all_offsets(tmp_path, libver, size):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=size, libver=libver) as file:
        file.create_dataset("contiguous", data=DATA)
        file.create_dataset("chunked", data=DATA, chunks=(4, 4), compression="gzip")
        file.create_dataset("never", (5,), "i4", fillvalue=3)
    group = assert_same(path)
    assert group["never"].manifest.nrefs == 0


@pytest.mark.parametrize("filters", [None, 512])
def test_compact_values_are_kept_in_the_manifest(tmp_path, libver, filters):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=filters, libver=libver) as file:
        for name, dtype in (("x", ">i2"), ("pairs", [("a", "<f4"), ("b", ">i8")])):
            tid = h5py.h5t.py_create(np.dtype(dtype))
            dataset = low_level(file, name, (2, 3), tid, layout=h5py.h5d.COMPACT)
            dataset[...] = (
                np.zeros((2, 3), dtype) if name == "pairs" else np.arange(6).reshape(2, 3)
            )
            if name == "pairs":
                dataset[0, 1] = (1.5, -7)
    group = assert_same(path)
    assert all(source.is_inline for source in group["x"].manifest.sources)


@pytest.mark.parametrize("alloc", ["ALLOC_TIME_EARLY", "ALLOC_TIME_LATE", "ALLOC_TIME_INCR"])
@pytest.mark.parametrize("maxshape", [(6, 7), (9, 9), (h5py.h5s.UNLIMITED,) * 2])
def test_allocation_times(tmp_path, libver, alloc, maxshape):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=libver) as file:
        options = {"alloc_time": getattr(h5py.h5d, alloc), "chunk": ((2, 3),)}
        fill = np.array(-5, "i4")
        dataset = low_level(file, "some", (6, 7), h5py.h5t.STD_I32LE, maxshape=maxshape,
                         fill_value=fill, **options)  # fmt: skip
        dataset[2:4, 3:6] = 1
        low_level(file, "none", (6, 7), h5py.h5t.STD_I32LE, maxshape=maxshape, fill_value=fill,
                  **options)  # fmt: skip
    assert_same(path)


def test_shrunken_and_grown_again(tmp_path, libver):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=libver) as file:
        for name, maxshape in (("a", (None, 20)), ("b", (None, None)), ("c", (20, 20))):
            dataset = file.create_dataset(name, (9, 9), "i2", chunks=(2, 2), maxshape=maxshape)
            dataset[...] = 7
            dataset.resize((3, 5))
            dataset.resize((6, 8))
            dataset[5, 7] = 1
    group = assert_same(path)
    assert group["a"].manifest.nrefs < group["a"].nchunks


def test_missing_chunks_are_the_fill_value(tmp_path, libver):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=libver) as file:
        dataset = file.create_dataset("x", (6, 7), "f4", chunks=(2, 3), fillvalue=-9)
        dataset.attrs["_FillValue"] = np.float32(7)
        dataset[0:2, 3:6] = 1
        file.create_dataset("never", (6, 7), "f8", chunks=(2, 3), fillvalue=np.nan)
        file.create_dataset("contiguous", (6, 7), "u2", fillvalue=8)
        file.create_dataset("scalar", (), "i8", fillvalue=4)
    group = assert_same(path)
    assert group["x"].fill_value == -9
    assert group["x"].attrs["_FillValue"] == 7
    assert group["x"].manifest.nrefs == 1
    assert group["never"].chunks == (2, 3)
    assert [group[name].manifest.nrefs for name in ("never", "contiguous", "scalar")] == [0, 0, 0]


@pytest.mark.parametrize("when", ["never", "alloc", "ifset"])
def test_fill_times(tmp_path, libver, when):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=libver) as file:
        for name, chunks in (("chunked", (2,)), ("contiguous", None)):
            file.create_dataset(name, (5,), "i4", chunks=chunks, fillvalue=3, fill_time=when)
    assert_same(path)


def test_empty_scalar_and_null(tmp_path, libver):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=libver) as file:
        file.create_dataset("scalar", data=np.float32(2.5))
        file.create_dataset("empty", (0, 3), "i4", maxshape=(None, 3), chunks=(4, 3))
        file.create_dataset("flat", (3, 0), "i4")
        file.create_dataset("strings", (0,), h5py.string_dtype())
    group = assert_same(path)
    assert group["scalar"][()] == 2.5


def test_large_and_almost_empty_grid_is_refused(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (1 << 20, 1 << 20), "i1", chunks=(1, 1 << 4))
        file.create_dataset("never", (1 << 20, 1 << 20), "i1", chunks=(1, 1 << 4))
        dataset[0, 0] = 1
    with pytest.warns(SkippedVariableWarning, match="only 1 of 68719476736 chunks"):
        group = scan(path, on_error="warn")
    assert group["never"][-1, -2:].tolist() == [0, 0]
    assert group["never"].manifest.nbytes < 1000


def test_scanning_reads_no_values(tmp_path):
    """What was scanned still refers to the file: a change there is noticed when it is read."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=DATA)
    array = scan_all(path)["x"]
    with h5py.File(path, "a") as file:
        file["x"][0, 0] = 77
        file.create_dataset("more", data=DATA)
    with pytest.raises(OSError, match="changed since it was scanned"):
        array[0, 0]
