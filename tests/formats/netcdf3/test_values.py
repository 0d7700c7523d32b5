"""What netCDF4 and scipy write is read as netCDF4 reads it."""

from __future__ import annotations

import netCDF4
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import virtualzarr as vz
from tests.formats.netcdf3.helpers import CLASSIC, check_file, values_of, write_netcdf4
from virtualzarr.formats.netcdf3 import scan
from virtualzarr.metadata import TypedFloat

FORMATS = ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"]


@pytest.mark.parametrize("format", FORMATS)
def test_every_type(tmp_path, format):
    path = tmp_path / "a.nc"
    types = CLASSIC + ("BHIqQ" if format.endswith("DATA") else "")
    variables = {}
    for kind in types:
        variables |= {
            f"fixed_{kind}": (("y", "x"), values_of(kind, (3, 5))),
            f"record_{kind}": (("time", "x"), values_of(kind, (4, 5), 1)),
            f"scalar_{kind}": ((), values_of(kind, (), 2)),
        }
    variables["text"] = (("y", "x"), values_of("S1", (3, 5)))
    variables["texts"] = (("time", "x"), values_of("S1", (4, 5)))
    write_netcdf4(path, format, {"time": None, "y": 3, "x": 5}, variables)
    group = check_file(path)
    assert group["record_h"].metadata.grid.chunk_shape == (1, 5)
    assert group["fixed_h"].metadata.grid.chunk_shape == (3, 5)
    assert group["texts"].dtype == np.dtype("S1")
    assert group.attrs["title"] == "made for a test"


@pytest.mark.parametrize("version", [1, 2])
def test_what_scipy_writes(tmp_path, version):
    scipy_io = pytest.importorskip("scipy.io")
    path = tmp_path / "a.nc"
    with scipy_io.netcdf_file(path, "w", version=version) as file:
        for name, length in {"time": None, "x": 3}.items():
            file.createDimension(name, length)
        for kind in CLASSIC:
            made = file.createVariable(f"r{kind}", np.dtype(kind).newbyteorder(">"), ("time", "x"))
            made[:] = values_of(kind, (5, 3))
    check_file(path)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", ["b", "h", "i"])
@pytest.mark.parametrize("row", [1, 3])
def test_records_of_a_single_variable_are_not_filled_up(tmp_path, format, kind, row):
    path = tmp_path / "a.nc"
    variables = {"fixed": (("x",), values_of("h", (row,))),
                 "only": (("time", "x"), values_of(kind, (7, row)))}  # fmt: skip
    write_netcdf4(path, format, {"time": None, "x": row}, variables)
    only = check_file(path)["only"]
    assert only.manifest.shape == (1, 1)


@pytest.mark.parametrize("nvars", [1, 2])
def test_no_records(tmp_path, nvars):
    path = tmp_path / "a.nc"
    variables = {f"v{i}": (("time", "x"), values_of("h", (0, 3))) for i in range(nvars)}
    write_netcdf4(path, "NETCDF3_CLASSIC", {"time": None, "x": 3}, variables)
    group = check_file(path)
    assert group["v0"].shape == (0, 3)


@pytest.mark.parametrize("nvars", [0, 1, 3])
@pytest.mark.parametrize("format", FORMATS)
def test_streamed_files(tmp_path, format, nvars):
    path = tmp_path / "a.nc"
    variables = {f"v{i}": (("time", "x"), values_of("h", (9, 3))) for i in range(nvars)}
    write_netcdf4(path, format, {"time": None, "x": 3}, variables)
    raw = path.read_bytes()
    width = 8 if format.endswith("DATA") else 4
    path.write_bytes(raw[:4] + b"\xff" * width + raw[4 + width :])
    group = scan(path)
    assert list(group) == list(variables)
    for name, (_, values) in variables.items():
        assert np.array_equal(group[name][...], values)


def test_attributes_keep_their_types(tmp_path):
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
        file.createDimension("x", 2)
        made = file.createVariable("packed", "i2", ("x",), fill_value=-9)
        made.setncatts(
            {"scale_factor": np.float32(0.1), "add_offset": 2.0, "note": "ä", "empty": ""}
        )
    attrs = check_file(path)["packed"].attrs
    assert attrs["_FillValue"] == -9
    assert attrs["scale_factor"].dtype == np.float32
    assert isinstance(attrs["add_offset"], TypedFloat)
    assert attrs["add_offset"].dtype == np.float64
    assert (attrs["note"], attrs["empty"]) == ("ä", "")


def test_xarray_decodes_alike(tmp_path):
    xarray = pytest.importorskip("xarray")
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_OFFSET") as file:
        for name, length in {"time": None, "x": 2, "letters": 4}.items():
            file.createDimension(name, length)
        times = file.createVariable("time", "f8", ("time",))
        times.units = "hours since 2000-01-01"
        times[:] = range(3)
        packed = file.createVariable("packed", "i2", ("time", "x"), fill_value=-9)
        packed.scale_factor = np.float32(0.1)
        packed[:] = np.ma.masked_equal([[1, -9], [3, 4], [5, 6]], -9)
        names = file.createVariable("names", "S1", ("x", "letters"))
        names[:] = np.array([list("abcd"), list("efgh")], "S1")
    ours = xarray.open_dataset(path, engine=vz_engine())
    theirs = xarray.open_dataset(path, engine="netcdf4")
    xarray.testing.assert_identical(ours.load(), theirs.load())
    assert ours["packed"].dtype == theirs["packed"].dtype


def vz_engine():
    from virtualzarr.integrations.xarray_backend import VirtualZarrBackendEntrypoint

    return VirtualZarrBackendEntrypoint


def test_files_are_joined_along_their_records(tmp_path):
    parts = []
    for i, count in enumerate((3, 1, 4)):
        values = values_of("f", (count, 3), i)
        variables = {"a": (("time", "x"), values), "b": (("time",), values[:, 0].copy())}
        write_netcdf4(tmp_path / f"{i}.nc", "NETCDF3_CLASSIC", {"time": None, "x": 3}, variables)
        parts.append(values)
    group = vz.virtualize(tmp_path / "*.nc", concat_dim="time")
    assert np.array_equal(group["a"][...], np.concatenate(parts))
    assert np.array_equal(group["b"][2:6], np.concatenate(parts)[2:6, 0])


kinds = st.sampled_from([*CLASSIC, "S1"])


@settings(max_examples=40)
@given(data=st.data())
def test_any_file(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("random") / "a.nc"
    nrecords = data.draw(st.integers(0, 4))
    dims = {"t": None, "x": data.draw(st.integers(1, 5)), "y": data.draw(st.integers(1, 3))}
    lengths = dims | {"t": nrecords}
    axes = [(), ("t",), ("x",), ("t", "x"), ("y", "x"), ("t", "y", "x")]
    variables = {}
    for i in range(data.draw(st.integers(0, 4))):
        names, kind = data.draw(st.sampled_from(axes)), np.dtype(data.draw(kinds))
        shape = tuple(lengths[name] for name in names)
        raw = data.draw(arrays("u1", (*shape, kind.itemsize), elements=st.integers(32, 126)))
        variables[f"v{i}"] = (names, raw.view(kind).reshape(shape))
    write_netcdf4(path, data.draw(st.sampled_from(FORMATS)), dims, variables)
    check_file(path)
