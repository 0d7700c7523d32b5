"""What we copy, zarr-python reads; what zarr-python wrote, we copy."""

from __future__ import annotations

import json

import numpy as np
import pytest

import virtualzarr as vz

zarr = pytest.importorskip("zarr", minversion="3.0")
pytestmark = pytest.mark.interop

DATA = np.random.default_rng(0).integers(0, 9, (30, 41)).astype("f4")


@pytest.mark.parametrize("from_format", [2, 3])
@pytest.mark.parametrize("to_format", [2, 3])
@pytest.mark.parametrize("chunks", ["keep", (7, 41), (30, 3)])
def test_there_and_back(tmp_path, from_format, to_format, chunks):
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=from_format)
    group.attrs["title"] = "weather"
    array = group.create_array("inner/x", shape=DATA.shape, chunks=(8, 10), dtype="f4",
                               fill_value=-1)  # fmt: skip
    array[5:] = DATA[5:]
    array.attrs["units"] = "K"
    vz.copy(tmp_path / "a.zarr", tmp_path / "b.zarr", chunks=chunks, zarr_format=to_format)
    copy = zarr.open_group(tmp_path / "b.zarr", mode="r", zarr_format=to_format)
    assert copy.attrs["title"] == "weather"
    assert dict(copy["inner/x"].attrs) == {"units": "K"}
    assert copy["inner/x"].fill_value == -1
    np.testing.assert_array_equal(copy["inner/x"][...], array[...], strict=True)


@pytest.mark.parametrize("options", [{}, {"shards": None}, {"shards": (40, 60)}, {"chunks": 7}])
def test_shards(tmp_path, options):
    if "chunks" in options:
        options = options | {"shards": (21, 14)}
    array = zarr.create_array(tmp_path / "a.zarr", shape=DATA.shape, chunks=(5, 10),
                              shards=(20, 20), dtype="f4")  # fmt: skip
    array[3:12, 4:] = DATA[3:12, 4:]
    vz.copy(tmp_path / "a.zarr", tmp_path / "b.zarr", **options)
    copy = zarr.open_array(tmp_path / "b.zarr", mode="r")
    assert copy.shards == options.get("shards", (20, 20))
    np.testing.assert_array_equal(copy[...], array[...], strict=True)


@pytest.mark.parametrize("dtype", ["string", "S4", "U3", "M8[s]", "complex64", "bool"])
@pytest.mark.parametrize("to_format", [2, 3])
def test_data_types(tmp_path, dtype, to_format):
    values = np.array([1, 0, 20]).astype("M8[s]" if dtype == "M8[s]" else "i8")
    values = values.astype(object if dtype == "string" else dtype)
    if dtype == "string":
        values = np.array(["a", "", "text"], object)
    array = zarr.create_array(tmp_path / "a.zarr", shape=(3,), chunks=(2,), dtype=dtype)
    array[:] = values
    vz.copy(tmp_path / "a.zarr", tmp_path / "b.zarr", chunks=3, zarr_format=to_format)
    copy = zarr.open_array(tmp_path / "b.zarr", mode="r")
    assert copy[:].tolist() == array[:].tolist()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("to_format", [2, 3])
def test_big_endian_elements_behind_filters_of_numcodecs(tmp_path, to_format):
    fits = pytest.importorskip("astropy.io.fits")
    values = np.arange(60_000, 60_012, dtype="u2").reshape(3, 4)
    fits.PrimaryHDU(values).writeto(tmp_path / "a.fits")
    delta = {"id": "delta", "dtype": ">i4"}
    old = zarr.create_array(tmp_path / "a.zarr", data=np.arange(9, dtype=">i4"), zarr_format=2)
    document = json.loads((tmp_path / "a.zarr/.zarray").read_text()) | {"filters": [delta]}
    (tmp_path / "a.zarr/.zarray").write_text(json.dumps(document))
    old = zarr.open_array(tmp_path / "a.zarr", mode="r+")
    old[...] = np.arange(9)
    vz.copy(vz.virtualize(tmp_path / "a.fits"), tmp_path / "b.zarr", zarr_format=to_format)
    vz.copy(vz.open(tmp_path / "a.zarr"), tmp_path / "c.zarr", zarr_format=to_format)
    np.testing.assert_array_equal(zarr.open(tmp_path / "b.zarr")["data"][...], values)
    np.testing.assert_array_equal(zarr.open(tmp_path / "c.zarr")[...], np.arange(9))
