"""Dimensions: lengths of unlimited ones, as netCDF4 has them, and names of axes."""

import zlib

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.formats.hdf5.helpers import scan_all
from virtualzarr.errors import SkippedVariableWarning

netCDF4 = pytest.importorskip("netCDF4")


def write(path, lengths, start=0, dtype="i4", **options):
    """Write variables on one unlimited dimension, each with its own number of values."""
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", None)
        for name, length in lengths.items():
            variable = file.createVariable(name, dtype, ("time",), **options)
            if length:
                variable[:length] = start + np.arange(length)


def assert_like_netcdf(path, group=None):
    """Check dimensions and values of all variables against netCDF4."""
    group = scan_all(path) if group is None else group
    with netCDF4.Dataset(path) as file:
        for where, prefix in ((file, ""), *((g, f"{n}/") for n, g in file.groups.items())):
            where.set_auto_maskandscale(False)
            for name, variable in where.variables.items():
                array = group[prefix + name]
                assert array.dims == variable.dimensions
                assert array.shape == variable.shape, name
                ours, theirs = np.asarray(array[...]), np.asarray(variable[...])
                assert ours.tolist() == theirs.tolist(), name
    return group


def test_variables_are_as_long_as_the_dimension(tmp_path):
    write(tmp_path / "a.nc", {"a": 8, "b": 4, "c": 0, "time": 6})
    group = assert_like_netcdf(tmp_path / "a.nc")
    assert group["b"][...].tolist() == [0, 1, 2, 3] + [-2147483647] * 4


@pytest.mark.parametrize("fill", [None, -9, False])
@pytest.mark.parametrize("chunk", [1, 3, 4, 100])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_fill_values(tmp_path, fill, chunk, compression):
    write(tmp_path / "a.nc", {"a": 8, "b": 4, "c": 0}, fill_value=fill, chunksizes=[chunk],
          compression=compression)  # fmt: skip
    assert_like_netcdf(tmp_path / "a.nc")


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "u4", "i8", "u8", "f4", "f8", "S1", str])
def test_default_fill_values(tmp_path, kind):
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("time", None)
        for name in "abc":
            file.createVariable(name, kind, ("time",))
        some = np.array(["x", "y", "z"], object if kind is str else "S1")
        file["a"][:3] = some if kind in ("S1", str) else [1, 2, 3]
        file["b"][:1] = some[:1] if kind in ("S1", str) else [1]
    assert_like_netcdf(tmp_path / "a.nc")


def test_text_has_its_own_fill_value(tmp_path):
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("time", None)
        file.createVariable("a", str, ("time",), fill_value="none")[0] = "x"
        file.createVariable("b", "i4", ("time",))[:3] = 1
    assert assert_like_netcdf(tmp_path / "a.nc")["a"][...].tolist() == ["x", "none", "none"]


def test_several_unlimited_dimensions(tmp_path):
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("t", None)
        file.createDimension("u", None)
        file.createDimension("x", 3)
        options = {"chunksizes": (2, 3, 2), "fill_value": -1}
        file.createVariable("a", "i2", ("t", "u", "x"), **options)[:1, :4] = 5
        file.createVariable("b", "i2", ("t", "u", "x"), **options)[:5, :2] = 7
        file.createVariable("t", "f8", ("t",))[:3] = [1, 2, 3]
    group = scan_all(tmp_path / "a.nc")
    # netCDF4 leaves memory as it was where a variable is too short along two axes.
    want = np.full((5, 4, 3), -1, "i2")
    want[:1, :4] = 5
    assert np.array_equal(group["a"][...], want)
    want = np.full((5, 4, 3), -1, "i2")
    want[:5, :2] = 7
    assert np.array_equal(group["b"][...], want)
    assert group["t"].shape == (5,)


def test_dimensions_of_groups_above(tmp_path):
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("time", None)
        file.createVariable("a", "i4", ("time",))[:2] = 1
        inner = file.createGroup("inner")
        inner.createVariable("b", "i4", ("time",))[:5] = 1
        inner.createDimension("level", None)
        inner.createVariable("c", "i4", ("level", "time"))[:3] = 1
    group = assert_like_netcdf(tmp_path / "a.nc")
    assert group["a"].shape == group["inner/b"].shape == (5,)


def test_plain_hdf5_with_scales(tmp_path):
    def add(file, name, length, dtype="f4", **options):
        options.setdefault("maxshape", (None,))
        dataset = file.create_dataset(name, data=np.ones(length, dtype), **options)
        dataset.dims[0].attach_scale(file["time"])

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("time", data=np.arange(10.0), maxshape=(None,)).make_scale("time")
        add(file, "fixed", 4, maxshape=None)
        add(file, "filled", 4, fillvalue=7)
        add(file, "never", 4, fillvalue=6, fill_time="never")
        add(file, "empty", 0)
        add(file, "big", 12, ">i4")
    group = assert_like_netcdf(tmp_path / "a.h5")
    assert group["time"].shape == (12,)


def test_unwritten_within_and_past_the_end(tmp_path):
    """HDF5 reads zeros where nothing was written, netCDF its own fill value past the end."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("time", data=np.arange(10.0), maxshape=(None,)).make_scale("time")
        dataset = file.create_dataset("a", (5,), "f4", maxshape=(None,), chunks=(2,))
        dataset[:2] = 1
        dataset.dims[0].attach_scale(file["time"])
    group = assert_like_netcdf(tmp_path / "a.h5")
    assert group["a"][2:5].tolist() == [0, 0, 0]


def test_chunk_is_not_read_past_the_end_of_its_dataset(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("time", data=np.arange(10.0), maxshape=(None,)).make_scale("time")
        dataset = file.create_dataset(
            "a", (5,), "i4", maxshape=(None,), chunks=(8,), fillvalue=-1, compression="gzip"
        )
        dataset.dims[0].attach_scale(file["time"])
        dataset.id.write_direct_chunk((0,), zlib.compress(np.arange(8, dtype="<i4")))
    group = assert_like_netcdf(tmp_path / "a.h5")
    assert group["a"][...].tolist() == [0, 1, 2, 3, 4, -1, -1, -1, -1, -1]


def test_scale_of_another_length_that_cannot_grow(tmp_path):
    """Edges of bins are no dimension: netCDF4 cannot read such a variable."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["edges"] = np.arange(5.0)
        file["edges"].make_scale("edges")
        file["counts"] = np.arange(4)
        file["counts"].dims[0].attach_scale(file["edges"])
    group = scan_all(tmp_path / "a.h5")
    assert group["edges"].dims == ("edges",)
    assert group["counts"].shape == (4,)
    assert group["counts"].dims[0].startswith("phony_dim_")


def test_no_more_cells_than_the_limit(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("time", (2**40,), "i1", maxshape=(None,), chunks=(1,)).make_scale("t")
        for name in "ab":
            dataset = file.create_dataset(
                name, (2,), "i1", maxshape=(None,), chunks=(1,), fillvalue=3
            )
            dataset.dims[0].attach_scale(file["time"])
        file["b"][0] = 1
    with pytest.warns(SkippedVariableWarning, match="shorter than its unlimited dimensions"):
        group = vz.open(tmp_path / "a.h5", on_error="warn")
    assert group["a"].shape == (2**40,)
    assert set(group.skipped) == {"b"}


def test_joined_variables_keep_their_times(tmp_path):
    write(tmp_path / "0.nc", {"a": 8, "b": 4})
    write(tmp_path / "1.nc", {"a": 4, "b": 8}, start=100)
    paths = [str(tmp_path / name) for name in ("0.nc", "1.nc")]
    group = vz.virtualize(paths, concat_dim="time")
    fill = -2147483647
    assert group["b"][...].tolist() == [0, 1, 2, 3, *[fill] * 4, *range(100, 108)]
    assert group["a"][...].tolist() == [*range(8), 100, 101, 102, 103, *[fill] * 4]


def test_joined_and_read_by_xarray(tmp_path):
    xr = pytest.importorskip("xarray")
    for number in range(2):
        write(tmp_path / f"{number}.nc", {"a": 8 - 4 * number, "b": 4 + 4 * number, "time": 8},
              start=100 * number, dtype="f8")  # fmt: skip
    paths = [str(tmp_path / name) for name in ("0.nc", "1.nc")]
    options = {"combine": "nested", "concat_dim": "time"}
    with (
        xr.open_mfdataset(paths, engine="netcdf4", **options) as theirs,
        xr.open_mfdataset(paths, engine="virtualzarr", **options) as ours,
    ):
        xr.testing.assert_identical(ours.load(), theirs.load())


def test_published_and_appended(tmp_path):
    write(tmp_path / "0.nc", {"a": 8, "b": 4}, chunksizes=[1])
    write(tmp_path / "1.nc", {"a": 4, "b": 8}, start=100, chunksizes=[1])
    vz.open(tmp_path / "0.nc").publish(tmp_path / "refs.json")
    vz.append(tmp_path / "refs.json", [tmp_path / "1.nc"], "time")
    group = vz.open(tmp_path / "refs.json")
    fill = -2147483647
    assert group["b"][...].tolist() == [0, 1, 2, 3, *[fill] * 4, *range(100, 108)]
    assert group["a"][...].tolist() == [*range(8), 100, 101, 102, 103, *[fill] * 4]


def test_last_of_several_scales_names_an_axis(tmp_path):
    h5netcdf = pytest.importorskip("h5netcdf")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = np.zeros(3)
        for name in ("first", "last"):
            file[name] = np.arange(3)
            file[name].make_scale(name)
            file["a"].dims[0].attach_scale(file[name])
    group = scan_all(tmp_path / "a.h5")
    with h5netcdf.File(tmp_path / "a.h5") as theirs, netCDF4.Dataset(tmp_path / "a.h5") as other:
        assert group["a"].dims == theirs["a"].dimensions == other["a"].dimensions == ("last",)


def write_labels(path, shapes):
    with h5py.File(path, "w") as file:
        for name, (shape, labels) in shapes.items():
            file[name] = np.zeros(shape)
            for axis, label in enumerate(labels):
                file[name].dims[axis].label = label


def test_labels_name_axes(tmp_path):
    shapes = {"a": ((3, 4), ("time", "x")), "b": ((3,), ("time",)), "time": ((3,), ("time",)),
              "g/c": ((3, 4), ("time", ""))}  # fmt: skip
    write_labels(tmp_path / "a.h5", shapes)
    group = scan_all(tmp_path / "a.h5")
    assert group["a"].dims == ("time", "x")
    assert group["b"].dims == group["time"].dims == ("time",)
    assert group["g/c"].dims[0] == "time"
    assert group["g/c"].dims[1].startswith("phony_dim_")


def test_labels_that_are_no_dimensions(tmp_path):
    shapes = {"a": ((3, 3), ("y", "y")), "b": ((3,), ("q",)), "c": ((4,), ("q",)),
              "d": ((5,), ("one",)), "one": ((), ()), "e": ((6,), ("x",)),
              "g/f": ((7,), ("x",))}  # fmt: skip
    write_labels(tmp_path / "a.h5", shapes)
    group = scan_all(tmp_path / "a.h5")
    assert group["e"].dims == ("x",)
    for name in ("a", "b", "c", "d", "g/f"):
        assert all(dim.startswith("phony_dim_") for dim in group[name].dims), name


def test_scales_come_before_labels(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"], file["x"] = np.zeros((3, 4)), np.zeros(4)
        file["x"].make_scale("x")
        file["a"].dims[1].attach_scale(file["x"])
        file["a"].dims[0].label, file["a"].dims[1].label = "time", "other"
    assert scan_all(tmp_path / "a.h5")["a"].dims == ("time", "x")
