"""Notes name the packed variables that xarray unpacks otherwise from documents than from files."""

from __future__ import annotations

import fsspec
import numpy as np
import pytest

import virtualzarr as vz

netCDF4 = pytest.importorskip("netCDF4")
xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")
engine = pytest.importorskip("virtualzarr.integrations.xarray_backend").VirtualZarrBackendEntrypoint


def write(path, factor, stored, fill, with_offset):
    """Write a packed variable; its numbers are such that roundings tell precisions apart."""
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("x", 120)
        v = file.createVariable("v", stored, "x", fill_value=fill)
        v.set_auto_maskandscale(False)
        v.scale_factor = np.array(0.1 if factor[0] == "f" else 3, factor)[()]
        if with_offset:
            v.add_offset = np.array(0.3 if factor[0] == "f" else 2, factor)[()]
        values = np.arange(120).astype(stored)
        if stored[0] == "f":
            values = (values * np.array(1.1, stored)).astype(stored)
        if fill is not None:
            values[5] = fill
        v[:] = values
    return path


def same(a, b):
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("with_offset", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("stored", ["i1", "i2", "i4", "u2", "f4", "f8"])
@pytest.mark.parametrize("factor", ["f4", "f8", "i4"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_who_is_named_is_unpacked_otherwise(
    tmp_path, factor, stored, masked, with_offset, zarr_format
):
    fill = None if not masked else np.nan if stored[0] == "f" else 9
    path = write(tmp_path / "a.nc", factor, stored, fill, with_offset)
    if factor == "i4" and masked and stored[0] != "f" and not with_offset:
        pytest.skip("xarray has no integer for what is masked")
    with xr.open_dataset(path, engine="netcdf4") as found:
        expected = found.v.values
    report = vz.virtualize(path).publish(tmp_path / "a.json", zarr_format=zarr_format)
    fs = fsspec.filesystem("reference", fo=str(tmp_path / "a.json"), asynchronous=True)
    store = zarr.storage.FsspecStore(fs, read_only=True, path="")
    with xr.open_dataset(store, engine="zarr") as found:
        values = found.v.values
    named = [note for note in report.notes if note.startswith("v: scale_factor is")]
    if (factor, stored, masked) == ("i4", "f4", True):
        assert named  # of small integers, few products are rounded otherwise
    else:
        assert bool(named) == (not same(values, expected))
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    vz.virtualize(path).publish(tmp_path / "a.zarr")
    with xr.open_dataset(tmp_path / "a.zarr", engine=engine) as found:
        assert same(found.v.values, expected)
