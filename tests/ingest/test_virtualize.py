"""Files that others wrote, virtualized together: as their own readers read them, or refused."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.errors import (
    MismatchError,
    SkippedVariableWarning,
    SourceError,
    UnsupportedError,
    VirtualZarrError,
)
from virtualzarr.ingest.find_files import find_files, natural_key

h5py = pytest.importorskip("h5py")
netCDF4 = pytest.importorskip("netCDF4")
tifffile = pytest.importorskip("tifffile")

UNITS = "days since 2000-01-01"


def write(path: Path, days: int, start: int = 0, *, y: Any = (10, 20, 30), **storage: Any) -> Path:
    """Write a netCDF4 file with `air` over time and y.

    Parameters
    ----------
    storage
        `attrs` and `time_attrs` for attributes, `dtype`, `written` (how many days of `air` are),
        and what `h5py.Group.create_dataset` takes.
    """
    attrs, time_attrs = storage.pop("attrs", {}), storage.pop("time_attrs", {})
    dtype, written = storage.pop("dtype", "<f4"), storage.pop("written", days)
    values = np.random.default_rng(start).integers(0, 100, (days, len(y))).astype(dtype)
    with h5py.File(path, "w") as file:
        time = file.create_dataset("time", data=np.arange(start, start + days, dtype="f8"))
        time.attrs.update({"units": UNITS, "calendar": "standard", **time_attrs})
        rows = file.create_dataset("y", data=np.asarray(y, "f4"))
        air = file.create_dataset("air", shape=values.shape, dtype=dtype, **storage)
        if written:
            air[:written] = values[:written]
        air.attrs.update({"units": "K", **attrs})
        for axis, scale in enumerate((time, rows)):
            scale.make_scale(scale.name[1:])
            air.dims[axis].attach_scale(scale)
        file.attrs["title"] = "made up"
        file.attrs["history"] = path.name
    return path


def as_h5py_reads(paths: list[Path], name: str) -> np.ndarray:
    parts = []
    for path in paths:
        with h5py.File(path) as file:
            parts.append(file[name][...])
    return np.concatenate(parts)


GZIP = {"compression": "gzip", "chunks": (100, 3)}
FINE = {
    "nothing": ({}, {}),
    "chunk length along time": ({**GZIP}, {**GZIP, "chunks": (7, 3)}),
    "chunked and contiguous": ({"chunks": (100, 3)}, {}),
    "nothing, but partial chunks": (GZIP, GZIP),
    "nothing, but partial uncompressed chunks": ({"chunks": (100, 3)}, {"chunks": (100, 3)}),
    "chunks longer than the array": (
        {**GZIP, "chunks": (512, 3), "maxshape": (None, 3)},
        {**GZIP, "chunks": (512, 3), "maxshape": (None, 3)},
    ),
    "chunks wider than the array": (
        {**GZIP, "chunks": (100, 4), "maxshape": (None, None)},
        {**GZIP, "chunks": (90, 4), "maxshape": (None, None)},
    ),
    "gzip level": ({**GZIP, "compression_opts": 1}, {**GZIP, "compression_opts": 9}),
    "one never written": (GZIP, {**GZIP, "written": 0, "fillvalue": 0}),
    "one never written, contiguous": (GZIP, {"written": 0}),
    "one never written, other codecs": ({**GZIP, "written": 0}, {"chunks": (100, 2)}),
    "chunks never written": (
        {**GZIP, "written": 120, "fillvalue": -9},
        {**GZIP, "fillvalue": -9, "written": 250},
    ),
    "fill value, but only one has missing chunks": (
        {**GZIP, "fillvalue": 3},
        {**GZIP, "fillvalue": -9, "written": 250},
    ),
    "chunk length along y": (GZIP, {**GZIP, "chunks": (100, 2)}),
    "gzip and none": (GZIP, {"chunks": (100, 3)}),
    "gzip and shuffled gzip": (GZIP, {**GZIP, "shuffle": True}),
    "shuffle and none": (
        {**GZIP, "shuffle": True, "compression": None},
        {**GZIP, "compression": None},
    ),
    "byte order": (GZIP, {**GZIP, "dtype": ">f4"}),
    "dtype of one size": (GZIP, {**GZIP, "dtype": "<i4"}),
    "dtype": (GZIP, {**GZIP, "dtype": "<f8"}),
}


@pytest.mark.parametrize("case", FINE)
def test_files_that_differ_in_storage(case, tmp_path):
    first, second = FINE[case]
    paths = [
        write(tmp_path / "a.nc", 366, **first),
        write(tmp_path / "b.nc", 365, 366, **second),
        write(tmp_path / "c.nc", 130, 731, **first),
    ]
    group = vz.virtualize(paths, concat_dim="time")
    for name in ("air", "time"):
        expected = as_h5py_reads(paths, name)
        np.testing.assert_array_equal(group[name][...], expected)
        np.testing.assert_array_equal(group[name][360:740:3], expected[360:740:3])
    assert group["y"][...].tolist() == [10, 20, 30]
    assert group.attrs == {"title": "made up"}


REFUSED = {
    "data type": ("air", "data type", GZIP, {**GZIP, "dtype": "<i8"}),
    "fill value": ("air", "fill value", {**GZIP, "fillvalue": 1, "written": 100},
                   {**GZIP, "fillvalue": 2, "written": 100}),
    "scale_factor": ("air", "attribute scale_factor", {"attrs": {"scale_factor": 0.5}},
                     {"attrs": {"scale_factor": 0.25}}),
    "add_offset": ("air", "attribute add_offset", {}, {"attrs": {"add_offset": 273.15}}),
    "_FillValue": ("air", "attribute _FillValue", {"attrs": {"_FillValue": np.float32(-9)}},
                   {"attrs": {"_FillValue": np.float32(-99)}}),
    "missing_value": ("air", "attribute missing_value", {}, {"attrs": {"missing_value": -1.0}}),
    "units": ("air", "attribute units", {}, {"attrs": {"units": "degC"}}),
    "time units": ("time", "attribute units", {}, {"time_attrs": {"units": "days since 2001-1-1"}}),
    "calendar": ("time", "attribute calendar", {}, {"time_attrs": {"calendar": "noleap"}}),
    "y reversed": ("y", "values", {}, {"y": (30, 20, 10)}),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_files_that_differ_in_meaning(case, tmp_path):
    variable, what, first, second = REFUSED[case]
    paths = [write(tmp_path / "a.nc", 366, **first), write(tmp_path / "b.nc", 365, 366, **second)]
    with pytest.raises(MismatchError, match=what) as caught:
        vz.virtualize(paths, concat_dim="time")
    assert (caught.value.variable, caught.value.file) == (variable, str(paths[1]))
    assert str(paths[0]) in str(caught.value)


@pytest.mark.parametrize(("start", "why"), [(300, "overlap"), (0, "overlap"), (-400, "order")])
def test_times_that_overlap_repeat_or_go_back(start, why, tmp_path):
    paths = [write(tmp_path / "a.nc", 366), write(tmp_path / "b.nc", 365, abs(start))]
    with h5py.File(paths[1], "a") as file:
        file["time"][...] = np.arange(start, start + 365)
    with pytest.raises(MismatchError, match=why) as caught:
        vz.virtualize(paths, concat_dim="time")
    assert (caught.value.variable, caught.value.file) == ("time", str(paths[1]))


def test_netcdf4_and_xarray(tmp_path):
    xr = pytest.importorskip("xarray")
    from virtualzarr.integrations.xarray_backend import VirtualZarrBackendEntrypoint

    days = np.arange("2000-01-01", "2002-01-01", dtype="datetime64[D]").astype("datetime64[ns]")
    data = np.random.default_rng(0).normal(size=(731, 3, 4)).astype("f4")
    whole = xr.Dataset(
        {"air": (("time", "y", "x"), data, {"units": "K"}), "crs": ((), 4326)},
        {"time": days, "y": [3.0, 2.0, 1.0], "x": ("x", [1, 2, 3, 4], {"units": "m"})},
    )
    encoding = {
        "air": {"zlib": True, "chunksizes": (100, 3, 2)},
        "time": {"units": UNITS, "dtype": "f8"},
    }
    for i, part in enumerate((slice(0, 366), slice(366, None))):
        path = tmp_path / f"y{i}.nc"
        whole.isel(time=part).to_netcdf(path, encoding=encoding, unlimited_dims=["time"])
    group = vz.virtualize(tmp_path / "y*.nc", concat_dim="time")
    np.testing.assert_array_equal(group["air"][...], data)
    np.testing.assert_array_equal(group["time"][...], np.arange(731))
    assert group["air"].dims == ("time", "y", "x")
    opened = xr.open_dataset(group, engine=VirtualZarrBackendEntrypoint)
    xr.testing.assert_identical(opened.load(), whole)


def test_groups_in_files(tmp_path):
    paths = [tmp_path / f"{i}.nc" for i in range(2)]
    for i, path in enumerate(paths):
        with netCDF4.Dataset(path, "w") as file:
            inner = file.createGroup("a").createGroup("b")
            inner.createDimension("time", None)
            inner.createVariable("time", "i4", ("time",))[:] = [2 * i, 2 * i + 1]
            inner.createVariable("n", "i8", ())[...] = 5
    group = vz.virtualize(paths, concat_dim="time")
    assert group["a/b/time"][...].tolist() == [0, 1, 2, 3]
    assert group["a/b/n"][...] == 5


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_a_stack_of_images(compression, tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (12, 37, 50)).astype("u2")
    for i, image in enumerate(images):
        tifffile.imwrite(
            tmp_path / f"day{i}.tif",
            image,
            compression=compression,
            predictor=compression is not None,
            rowsperstrip=10,
            byteorder=">",
            metadata=None,
        )
    group = vz.virtualize(f"{tmp_path}/day*.tif", concat_dim="time")
    (array,) = dict(group.arrays()).values()
    assert array.dims == ("time", "y", "x")
    assert array.manifest.canonical.all()
    np.testing.assert_array_equal(array[...], images)
    single = vz.virtualize(tmp_path / "day3.tif", concat_dim="time")
    np.testing.assert_array_equal(single[array.name][...], images[3:4])


def test_images_of_other_sizes_are_refused(tmp_path):
    for i in range(2):
        tifffile.imwrite(tmp_path / f"{i}.tif", np.zeros((4 + i, 5), "u1"))
    with pytest.raises(MismatchError, match="length along axis 0"):
        vz.virtualize(tmp_path / "*.tif", concat_dim="time")


def test_which_files(tmp_path):
    names = ["day10.nc", "day2.nc", "day[1].nc", "other.nc"]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "day3.nc").touch()

    def found(*paths):
        given = [f"{tmp_path}/{path}" for path in paths]
        return [Path(path).name for path in find_files(given if len(given) > 1 else given[0])]

    assert found("day*.nc") == ["day2.nc", "day10.nc", "day[1].nc"]
    assert found("day[1].nc") == ["day[1].nc"]
    assert found("**/day3.nc") == ["day3.nc"]
    assert found("other.nc", "day?.nc") == ["other.nc", "day2.nc"]
    assert found("not there.nc") == ["not there.nc"]
    with pytest.raises(SourceError, match="no file matches"):
        find_files(tmp_path / "*.tif")
    with pytest.raises(SourceError, match="no paths"):
        find_files([])
    assert natural_key("a10b") > natural_key("a9c")
    with pytest.raises(UnsupportedError, match="chained"):
        find_files("simplecache::s3://bucket/*.nc")
    assert find_files("https://host/a.nc?b[0]=c") == ["https://host/a.nc?b[0]=c"]


def test_differences_in_meaning_are_resolved_on_request(tmp_path):
    xr = pytest.importorskip("xarray")
    from virtualzarr.integrations.xarray_backend import VirtualZarrBackendEntrypoint

    packed = {"dtype": "<i2", "attrs": {"scale_factor": 0.5, "_FillValue": np.int16(7)}}
    paths = [
        write(tmp_path / "a.nc", 30, **GZIP_SMALL, **packed),
        write(tmp_path / "b.nc", 20, 0, time_attrs={"units": "days since 2000-01-31"}),
    ]
    group = vz.virtualize(paths, concat_dim="time", harmonize=True)
    opened = xr.open_dataset(group, engine=VirtualZarrBackendEntrypoint).load()
    each = [xr.open_dataset(path, engine="h5netcdf") for path in paths]
    expected = xr.concat(each, "time", data_vars="minimal", coords="minimal")
    for name in ("air", "time", "y"):
        assert opened[name].dtype == expected[name].dtype
        np.testing.assert_array_equal(opened[name].values, expected[name].values)


def test_files_along_two_dimensions(tmp_path):
    parts = {}
    for i in range(2):
        for j in range(3):
            rows = tuple(10 * j + k for k in range(3))
            path = write(tmp_path / f"{i}{j}.nc", 4 + i, 4 * i, y=rows, **({} if i else GZIP_SMALL))
            parts[i, j] = path
    paths = [[parts[i, j] for j in range(3)] for i in range(2)]
    expected = np.concatenate(
        [np.concatenate([read_air(path) for path in row], axis=1) for row in paths]
    )
    nested = vz.virtualize(paths, ["time", "y"])
    flat = [parts[key] for key in sorted(parts, key=lambda key: (key[1], -key[0]))]
    placed = vz.virtualize(flat, combine="by_coords")
    for group in (nested, placed):
        np.testing.assert_array_equal(group["air"][...], expected)
        assert group["y"][...].tolist() == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    with pytest.raises(ValueError, match="lists within lists"):
        vz.virtualize(flat, ["time", "y"])
    with pytest.raises(ValueError, match="by_coords"):
        vz.virtualize(paths, ["time", "y"], gaps="fill")


GZIP_SMALL = {"compression": "gzip", "chunks": (3, 2)}


def read_air(path):
    with h5py.File(path) as file:
        return file["air"][...]


def test_new_dimensions_get_coordinates(tmp_path):
    for day in (1, 2, 11):
        tifffile.imwrite(tmp_path / f"scene_200001{day:02}.tif", np.full((4, 5), day, "u1"))
    pattern = tmp_path / "*.tif"
    by_name = vz.from_filename(r"_(\d{8})\.tif$", "%Y%m%d")
    group = vz.virtualize(pattern, "time", coordinate=by_name)
    assert group["time"][...].tolist() == [10957, 10958, 10967]
    assert group["time"].attrs["units"] == "days since 1970-01-01"
    listed = vz.virtualize(pattern, "time", coordinate=["a", "b", "c"])
    assert listed["time"][...].tolist() == ["a", "b", "c"]
    with pytest.raises(MismatchError, match="does not match"):
        vz.virtualize(pattern, "time", coordinate=vz.from_filename("month(.)"))
    path = tmp_path / "refs.json"
    group.publish(path)
    assert vz.open(path)["time"][...].tolist() == [10957, 10958, 10967]


def test_coordinates_from_what_is_in_the_files(tmp_path):
    paths = [tmp_path / f"{i}.h5" for i in range(2)]
    for i, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            file.attrs["orbit"] = 7 + i
            file["inner/n"] = 5 * i
            file["air"] = np.full((2, 3), i)
    for source in (vz.from_attribute("orbit"), vz.from_attribute("/@orbit")):
        assert vz.virtualize(paths, "orbit", coordinate=source)["orbit"][...].tolist() == [7, 8]
    by_value = vz.from_variable("inner/n")
    assert vz.virtualize(paths, "n", coordinate=by_value)["n"][...].tolist() == [0, 5]
    with pytest.raises(MismatchError, match="no attribute") as caught:
        vz.virtualize(paths, "n", coordinate=vz.from_attribute("pass"))
    assert caught.value.file == str(paths[0])
    with pytest.raises(MismatchError, match="no variable with one value"):
        vz.virtualize(paths, "n", coordinate=vz.from_variable("air"))


def test_bad_files_have_the_length_of_the_file_before(tmp_path):
    numbers = [[0.0, 1, 2], [3.0, 4], None, [7.0]]
    paths = []
    for i, values in enumerate(numbers):
        paths.append(tmp_path / f"{i}.h5")
        with h5py.File(paths[-1], "w") as file:
            if values is not None:
                file["t"] = values
                file["t"].make_scale("t")
    paths[2].write_bytes(b"damaged")
    with pytest.warns(SkippedVariableWarning):
        group = vz.virtualize(paths, "t", bad_files="fill")
    np.testing.assert_array_equal(group["t"][...], [0, 1, 2, 3, 4, np.nan, np.nan, 7])
    given = {"coordinate": [1, 2, 3], "bad_files": "skip"}
    with pytest.warns(SkippedVariableWarning):
        group = vz.virtualize([paths[3], paths[2], paths[3]], "run", **given)
    assert group["run"][...].tolist() == [1, 3]
    with (
        pytest.warns(SkippedVariableWarning),
        pytest.raises(ValueError, match="no coordinates by which"),
    ):
        vz.virtualize(paths, combine="by_coords", bad_files="fill")
    with (
        pytest.warns(SkippedVariableWarning),
        pytest.raises(MismatchError, match="none could be read"),
    ):
        vz.virtualize([[paths[0]], [paths[2]]], ["run", "t"], bad_files="skip")


def test_a_file_without_variables_is_no_bad_file(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.attrs["title"] = "nothing"
    assert vz.virtualize(tmp_path / "a.h5").attrs == {"title": "nothing"}


def test_what_is_open_is_no_path(tmp_path):
    with pytest.raises(TypeError, match=r"give paths, not virtualzarr\.Group"):
        vz.virtualize(vz.Group({}, {"a": vz.Group()}), "t")


def test_bad_files(tmp_path):
    paths = [write(tmp_path / f"{i}.nc", 3, 3 * i) for i in range(3)]
    paths[1].write_bytes(paths[1].read_bytes()[:100])
    with pytest.raises(SourceError, match=r"1\.nc"):
        vz.virtualize(paths, "time")
    with pytest.warns(SkippedVariableWarning, match=r"left out.*1\.nc"):
        group = vz.virtualize(paths, "time", bad_files="skip")
    assert group["time"][...].tolist() == [0, 1, 2, 6, 7, 8]
    with pytest.warns(SkippedVariableWarning, match=r"missing values.*1\.nc"):
        group = vz.virtualize(paths, "time", bad_files="fill")
    expected = as_h5py_reads([paths[0], paths[2]], "air")
    assert np.isnan(group["air"][3:6]).all()
    np.testing.assert_array_equal(np.delete(group["air"][...], [3, 4, 5], axis=0), expected)
    with (
        pytest.warns(SkippedVariableWarning),
        pytest.raises(MismatchError, match="no file could be read"),
    ):
        vz.virtualize(paths[1], bad_files="skip")
    with pytest.raises(ValueError, match="bad_files"):
        vz.virtualize(paths, "time", bad_files="ignore")


def test_files_are_scanned_by_processes_and_by_dask(tmp_path):
    paths = [write(tmp_path / f"{i}.nc", 3, 3 * i, **GZIP_SMALL) for i in range(3)]
    expected = as_h5py_reads(paths, "air")
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        group = vz.virtualize(paths, "time", parallel=pool)
    np.testing.assert_array_equal(group["air"][...], expected)
    with ThreadPoolExecutor(2) as pool:

        def get_executor(*, pure):  # as dask.distributed.Client has it
            assert not pure  # a file that has changed is no result that is known already
            return pool

        client = SimpleNamespace(get_executor=get_executor)
        group = vz.virtualize(paths, "time", parallel=client)
        np.testing.assert_array_equal(group["air"][...], expected)
        (tmp_path / "3.nc").write_bytes(b"nothing")
        with pytest.raises(VirtualZarrError, match=r"3\.nc"):
            vz.virtualize([*paths, tmp_path / "3.nc"], "time", parallel=client)


def test_urls(tmp_path):
    paths = [write(tmp_path / f"{i}.nc", 150, 150 * i, **GZIP) for i in range(11)]
    memory = fsspec.filesystem("memory")
    for path in paths:
        memory.pipe(f"/archive/{path.name}", path.read_bytes())
    try:
        group = vz.virtualize("memory://archive/*.nc", concat_dim="time")
        np.testing.assert_array_equal(group["air"][...], as_h5py_reads(paths, "air"))
        np.testing.assert_array_equal(group["time"][...], np.arange(1650))
        with pytest.raises(SourceError, match="no file matches"):
            vz.virtualize("memory://archive/*.tif", concat_dim="time")
    finally:
        memory.rm("/archive", recursive=True)


def test_one_file_and_no_dimension(tmp_path):
    path = write(tmp_path / "a.nc", 5)
    assert sorted(vz.virtualize(path)) == ["air", "time", "y"]
    with pytest.raises(ValueError, match="concat_dim"):
        vz.virtualize([path, path])
    assert vz.virtualize(path, concat_dim="time")["air"].shape == (5, 3)


def test_a_bad_file_is_named(tmp_path):
    good, bad = write(tmp_path / "a.nc", 5), tmp_path / "b.nc"
    bad.write_bytes(b"nothing of the kind")
    for on_error in ("raise", "warn"):
        with pytest.raises(UnsupportedError) as caught:
            vz.virtualize([good, bad], concat_dim="time", on_error=on_error)
        assert caught.value.file == str(bad)
    with pytest.raises(SourceError) as missing:
        vz.virtualize([good, tmp_path / "c.nc"], concat_dim="time")
    assert missing.value.file == str(tmp_path / "c.nc")


def test_a_refused_variable_is_refused_in_the_whole(tmp_path):
    paths = [write(tmp_path / f"{i}.nc", 3, 3 * i) for i in range(2)]
    with h5py.File(paths[0], "a") as file:
        file["odd"] = np.arange(3)
    with h5py.File(paths[1], "a") as file:
        file["odd"] = h5py.ExternalLink("elsewhere.h5", "x")
    with pytest.raises(UnsupportedError, match="odd") as caught:
        vz.virtualize(paths, concat_dim="time")
    assert str(paths[1]) in str(caught.value)
    with pytest.warns(vz.errors.SkippedVariableWarning, match="odd"):
        group = vz.virtualize(paths, concat_dim="time", on_error="warn")
    assert "odd" not in group
    assert f"(in input 1 ({paths[1]}))" in group.skipped["odd"]


def test_side_by_side_and_with_a_progress_bar(tmp_path, capsys):
    paths = [write(tmp_path / f"{i}.nc", 3, 3 * i) for i in range(12)]
    with ThreadPoolExecutor(3) as pool:
        group = vz.virtualize(paths, concat_dim="time", parallel=pool, progress=True)
    assert group["time"][...].tolist() == list(range(36))
    assert "12/12" in capsys.readouterr().err
    vz.virtualize(paths, concat_dim="time")
    assert capsys.readouterr().err == ""


def test_axes_without_names(tmp_path):
    paths = [tmp_path / f"{i}.h5" for i in range(3)]
    for i, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            file["a"] = np.arange(2 * i + 2).reshape(2, i + 1)
            file["n"] = 5
    group = vz.virtualize(paths, concat_dim=-1)
    expected = [np.arange(2 * i + 2).reshape(2, i + 1) for i in range(3)]
    np.testing.assert_array_equal(group["a"][...], np.concatenate(expected, axis=1))
    assert group["n"][...] == 5


def test_misspelt_dimensions_are_no_new_ones(tmp_path):
    paths = [write(tmp_path / f"{i}.nc", 3, 3 * i) for i in range(2)]
    for name in ("tmie", "times", "TIME"):
        with pytest.raises(ValueError, match="is 'time' meant"):
            vz.virtualize(paths, name)
    same = [write(tmp_path / f"same{i}.nc", 3) for i in range(2)]
    assert vz.virtualize(same, "times", coordinate=[1, 2])["air"].dims[0] == "times"
    assert vz.virtualize(same, "run")["air"].dims[0] == "run"
    for i, path in enumerate(same):
        with h5py.File(path, "a") as file:
            file["times"] = i
    assert vz.virtualize(same, "times")["air"].dims[0] == "times"


def test_variables_left_out(tmp_path):
    paths = [write(tmp_path / f"{i}.nc", 3, 3 * i) for i in range(2)]
    for i, path in enumerate(paths):
        with h5py.File(path, "a") as file:
            file["made"] = file["g/made"] = file["g/kept"] = i // 2
            file["made"][...] = file["g/made"][...] = i
    with pytest.raises(MismatchError, match="drop_variables") as caught:
        vz.virtualize(paths, concat_dim="time", drop_variables=["made"])
    assert caught.value.variable == "g/made"
    group = vz.virtualize(paths[0], drop_variables="made")
    assert "made" not in group
    assert "time" in group
    group = vz.virtualize(paths, concat_dim="time", drop_variables=["made", "g/made"])
    assert sorted(path for path, _ in group.members(None)) == ["air", "g", "g/kept", "time", "y"]
