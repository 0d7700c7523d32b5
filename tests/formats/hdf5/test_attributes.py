"""Attributes and names of axes, beside netCDF4's own reading."""

from __future__ import annotations

import warnings

import h5py
import numpy as np
import pytest

from tests.formats.hdf5.helpers import assert_same, scan_all
from virtualzarr.errors import SkippedVariableWarning
from virtualzarr.formats.hdf5 import scan


def test_attributes_are_json(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("g/x", data=[1, 2])
        values = {
            "text": "grün", "bytes": np.bytes_(b"abc"), "one": np.array([1.5]), "int": np.int8(3),
            "list": np.arange(3), "table": np.eye(2), "texts": ["a", "b"], "flag": True,
            "nan": np.float32(np.nan), "empty": h5py.Empty("f4"), "blank": h5py.Empty("S1"),
            "fixed": np.array([b"ab", b"c"]), "NAME": "my name", "CLASS": "my class",
        }  # fmt: skip
        dataset.attrs.update(values)
        dataset.attrs["ref"] = dataset.ref
        dataset.attrs["vlen"] = np.array([np.arange(2), np.arange(1)], object).astype(
            h5py.vlen_dtype("i4")
        )
        file.attrs["title"] = "root"
        file["g"].attrs["inner"] = 1
    group = scan_all(path)
    attributes = group["g/x"].attrs
    assert np.isnan(attributes.pop("nan"))
    assert attributes == {
        "text": "grün", "bytes": "abc", "one": 1.5, "int": 3, "list": [0, 1, 2],
        "table": [[1, 0], [0, 1]], "texts": ["a", "b"], "flag": True, "empty": [], "blank": "",
        "fixed": ["ab", "c"], "NAME": "my name", "CLASS": "my class", "ref": "/g/x",
        "vlen": [[0, 1], [0]],
    }  # fmt: skip
    assert group.attrs == {"title": "root"}
    assert group["g"].attrs == {"inner": 1}


def test_attributes_without_json_form_cost_only_themselves(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", data=[1, 2])
        dataset.attrs["region"] = dataset.regionref[0:1]
        dataset.attrs["fine"] = 1
    with pytest.warns(SkippedVariableWarning, match="'region' was left out.*variable x"):
        group = scan(path)
    assert group["x"].attrs == {"fine": 1}


def test_latin1_text_is_read_with_a_warning(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.attrs["units"] = np.bytes_(b"\xb0C")
    with pytest.warns(SkippedVariableWarning, match="Latin-1"):
        group = scan(path)
    assert group.attrs == {"units": "°C"}


def write_netcdf(path):
    netCDF4 = pytest.importorskip("netCDF4")
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("lat", 3)
        file.createDimension("bnds", 2)  # without a variable
        time = file.createVariable("time", "f8", ("time",), chunksizes=(512,))
        time.units = "days since 2000-01-01"
        file.createVariable("lat", "f4", ("lat",))[:] = [1, 2, 3]
        air = file.createVariable(
            "air", "i2", ("time", "lat"), zlib=True, fill_value=-1, chunksizes=(1, 3)
        )
        air.scale_factor = 0.5
        time[:] = [0, 1]
        air.set_auto_scale(False)
        air[:] = np.arange(6).reshape(2, 3)
        file.createVariable("time_bnds", "f8", ("time", "bnds"))[:] = 1
        inner = file.createGroup("inner")
        inner.createDimension("level", 4)
        inner.createVariable("level", "i4", ("level",))[:] = 1
        inner.createVariable("v", "f4", ("time", "level", "lat"))[:] = 2
        # A variable of a dimension's name that is no coordinate of it.
        file.createVariable("bnds", "f4", ("lat",))[:] = 3
        file.title = "test"


def test_netcdf4_dimensions(tmp_path):
    netCDF4 = pytest.importorskip("netCDF4")
    path = tmp_path / "a.nc"
    write_netcdf(path)
    group = scan_all(path)
    with netCDF4.Dataset(path) as file:
        for where, prefix in ((file, ""), (file["inner"], "inner/")):
            where.set_auto_maskandscale(False)
            for name, variable in where.variables.items():
                array = group[prefix + name]
                assert array.dims == variable.dimensions
                assert np.array_equal(array[...], variable[...])
                assert set(array.attrs) == set(variable.ncattrs())
    assert set(group) == {"time", "lat", "air", "time_bnds", "inner", "bnds"}
    assert group.attrs == {"title": "test"}
    assert group["air"].attrs == {"_FillValue": -1, "scale_factor": 0.5}
    assert group["air"].fill_value == -1
    assert group["time"].chunks == (512,)


def test_dimension_without_variable_is_no_variable(tmp_path):
    path = tmp_path / "a.nc"
    netCDF4 = pytest.importorskip("netCDF4")
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("x", 4)
        file.createVariable("v", "f4", ("x",))[:] = 1
    group = scan_all(path)
    assert list(group) == ["v"]
    assert group["v"].dims == ("x",)
    assert group.skipped == {}


def test_coordinates_of_two_dimensions(tmp_path):
    path = tmp_path / "a.nc"
    netCDF4 = pytest.importorskip("netCDF4")
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("station", 2)
        file.createDimension("length", 5)
        names = file.createVariable("station", "S1", ("station", "length"))
        names[:] = np.array([list("abcde"), list("fgh  ")], "S1")
        file.createVariable("v", "f4", ("length", "station"))[:] = 1
    group = scan_all(path)
    assert group["station"].dims == ("station", "length")
    assert group["v"].dims == ("length", "station")


def test_made_up_names_are_those_of_netcdf4(tmp_path):
    netCDF4 = pytest.importorskip("netCDF4")
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.zeros((2, 3))
        file["b"] = np.zeros((3, 3, 2))
        file["g/c"] = np.zeros((3,))
        file["h"] = np.zeros((4, 2))
    group = scan_all(path)
    with netCDF4.Dataset(path) as file:
        assert group["a"].dims == file["a"].dimensions
        assert group["b"].dims == file["b"].dimensions
        assert group["h"].dims == file["h"].dimensions
        assert group["g/c"].dims == file["g"]["c"].dimensions


def test_scales_of_plain_hdf5(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros((2, 3))
        file["s/rows"] = np.arange(2)
        file["s/rows"].make_scale("a name of its own")
        file["x"].dims[0].attach_scale(file["s/rows"])
    group = scan_all(path)
    assert group["x"].dims[0] == "rows"
    assert group["x"].dims[1].startswith("phony_dim_")
    assert group["s/rows"].dims == ("rows",)
    assert group["s/rows"].attrs == {}


def test_many_attributes_and_dimensions_by_xarray(tmp_path):
    xr = pytest.importorskip("xarray")
    path = tmp_path / "a.nc"
    attributes = {f"a{k}": "x" * k for k in range(20)}  # more than fit the object header
    data = xr.Dataset(
        {"v": (("time", "x"), np.random.default_rng(0).normal(size=(5, 4)), attributes)},
        coords={"time": np.arange(5), "x": list("abcd")},
    )
    data.to_netcdf(path, engine="netcdf4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = scan(path)
    assert_same(path, group)
    assert group["v"].dims == ("time", "x")
    assert {name: group["v"].attrs[name] for name in attributes} == attributes


def test_references_to_named_datatypes(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["types/t"], file["u"], file["x"] = np.dtype("i4"), np.dtype("f8"), [1, 2]
        file["a_link"] = h5py.SoftLink("/types/t")
        file["x"].attrs["one"] = file["types/t"].ref
        references = np.array([file["u"].ref, file["x"].ref, h5py.Reference()], h5py.ref_dtype)
        file["x"].attrs["several"] = references
        file["x"].attrs.create("of_the_type", 7, dtype=file["types/t"])
    attributes = scan_all(path)["x"].attrs
    assert attributes == {"one": "/types/t", "several": ["/u", "/x", ""], "of_the_type": 7}
    with h5py.File(path) as file:
        assert file[file["x"].attrs["one"]].name == attributes["one"]
