"""Files of any two formats as one array: what numpy joins of what is read of each."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import virtualzarr as vz
from grids import RegularGrid
from tests.combine.writers import WRITERS
from tests.interop.test_references import ZARR, zarr, zarr_open
from virtualzarr.errors import MismatchError, PublishError
from virtualzarr.metadata.dimension_names import real_name

pytestmark = pytest.mark.filterwarnings("ignore")

SHAPE = (3, 6, 8)
DIMS = {0: "time", 1: "y", 2: "x"}
RECTILINEAR = {"array.rectilinear_chunks": True} if ZARR >= (3, 2) else {}
"""How zarr-python is told to read rectilinear grids, which it does from 3.2 on."""


def cube(start, shape=SHAPE):
    """Distinct values, of both signs."""
    return (np.arange(start, start + np.prod(shape)) - 300).reshape(shape).astype("i2")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """For each format an array, and arrays longer by two along one axis each, with their values."""
    found = {}
    for number, (name, write) in enumerate(WRITERS.items()):
        for axis in (None, 0, 1, 2):
            shape = tuple(n + 2 * (i == axis) for i, n in enumerate(SHAPE))
            values = cube(40 * number + (axis or 0), shape)
            path = tmp_path_factory.mktemp("files") / name
            found[name, axis] = write(path, values), values
    return found


def regular(array):
    """Whether zarr-python of any version reads arrays with such a grid."""
    return isinstance(array.grid, RegularGrid)


def called(array):
    """The array with the names that all of them are given."""
    return array.lazy.rename_dims(DIMS)


@pytest.mark.parametrize("name", WRITERS)
def test_every_pair_along_every_axis(files, name, tmp_path):
    members, expected = {}, {}
    for other in WRITERS:
        for axis in range(3):
            (first, a), (second, b) = files[name, None], files[other, axis]
            pairs = zip(first.dims, second.dims, strict=True)
            if any(real_name(p) and real_name(q) and p != q for p, q in pairs):
                with pytest.raises(MismatchError, match=r"rename_dims|transpose"):
                    vz.concat([first, second], axis)
                first, second = called(first), called(second)
            joined = vz.concat([first, second], axis)
            values = np.concatenate([a, b], axis)
            np.testing.assert_array_equal(joined[...], values)
            np.testing.assert_array_equal(joined[1:, ::2, 3:9], values[1:, ::2, 3:9])
            assert joined.dtype == values.dtype
            members[f"{other}-{axis}"], expected[f"{other}-{axis}"] = joined, values
    published = {path: x for path, x in members.items() if RECTILINEAR or regular(x)}
    report = vz.Group({}, published).publish(tmp_path / "refs.json", copy=True)
    assert report.references > report.copied or not published
    ours = vz.open(tmp_path / "refs.json")
    with zarr.config.set(RECTILINEAR):
        theirs = zarr_open(tmp_path / "refs.json")
        for path in published:
            np.testing.assert_array_equal(theirs[path][...], expected[path])
            np.testing.assert_array_equal(ours[path][...], expected[path])


def test_stack_hdf5_cube_and_zarr_array(files, tmp_path):
    arrays = [called(files[name, None][0]) for name in ("tiff_stack", "hdf5", "zarr3")]
    values = np.concatenate([files[name, None][1] for name in ("tiff_stack", "hdf5", "zarr3")])
    joined = vz.concat(arrays, dim="time")
    group = vz.Group({}, {"x": joined})
    with pytest.raises(PublishError, match="copy=True"):
        group.publish(tmp_path / "refs.json")
    report = group.publish(tmp_path / "refs.json", copy=True)
    assert 0 < report.copied < report.references
    if RECTILINEAR:
        with zarr.config.set(RECTILINEAR):
            np.testing.assert_array_equal(zarr_open(tmp_path / "refs.json")["x"][...], values)
    np.testing.assert_array_equal(vz.open(tmp_path / "refs.json")["x"][...], values)
    group.publish(tmp_path / "air.zarr")
    again = vz.open(tmp_path / "air.zarr")
    np.testing.assert_array_equal(again["x"][...], values)
    opened = vz.open_virtual_dataset(again)
    assert opened["x"].dims == ("time", "y", "x")
    np.testing.assert_array_equal(opened["x"].values, values)


@pytest.mark.parametrize("axis", range(3))
def test_all_formats_at_once(files, axis):
    arrays = [called(files[name, axis][0]) for name in WRITERS]
    joined = vz.concat(arrays, axis)
    values = np.concatenate([files[name, axis][1] for name in WRITERS], axis)
    np.testing.assert_array_equal(joined[...], values)
    part = (slice(None), slice(1, None, 3), slice(2, -1))
    np.testing.assert_array_equal(joined.lazy[part][...], values[part])
    np.testing.assert_array_equal(
        vz.concat([joined, joined], 1)[:, 3:], np.tile(values, (1, 2, 1))[:, 3:]
    )


def test_formats_of_other_numbers(files):
    floats = vz.create_array({}, data=cube(7).astype("f4") / 8)
    for name in WRITERS:
        array, values = files[name, None]
        joined = vz.concat([called(array), floats])
        assert joined.dtype == np.float32
        np.testing.assert_array_equal(joined[...], np.concatenate([values, cube(7) / 8]))


def test_formats_stacked(files):
    arrays = [called(files[name, None][0]) for name in WRITERS]
    stacked = vz.stack(arrays, 1, dim="band")
    values = np.stack([files[name, None][1] for name in WRITERS], 1)
    assert stacked.dims == ("time", "band", "y", "x")
    np.testing.assert_array_equal(stacked[...], values)


def dataset(values, start):
    """A dataset whose coordinates go on where those of the one before end."""
    times = np.arange(start, start + len(values), dtype="f8")
    return xr.Dataset(
        {"air": (("time", "y"), values, {"units": "K"})},
        {"time": ("time", times, {"axis": "T"}), "y": ("y", np.array([5.0, 7.0]))},
    )


def test_groups_of_netcdf4_netcdf3_zarr_and_references(tmp_path):
    parts = [dataset(np.arange(2 * n).reshape(n, 2) + 10.0 * n, 5 * n) for n in (2, 3, 4, 5)]
    plain = {"air": {"_FillValue": None}, "time": {"_FillValue": None}, "y": {"_FillValue": None}}
    paths = [tmp_path / name for name in ("a.nc", "b.nc", "c.zarr", "d.json")]
    parts[0].to_netcdf(paths[0], encoding=plain)
    parts[1].to_netcdf(paths[1], format="NETCDF3_CLASSIC", encoding=plain, unlimited_dims=["time"])
    parts[2].to_zarr(paths[2], zarr_format=3, encoding=plain)
    parts[3].to_netcdf(tmp_path / "d.nc", encoding=plain)
    vz.virtualize(tmp_path / "d.nc").publish(paths[3])
    expected = xr.concat(parts, "time")
    for how in ({"concat_dim": "time"}, {"combine": "by_coords"}):
        order = [2, 0, 3, 1] if "combine" in how else range(4)
        group = vz.virtualize([paths[i] for i in order], allowed=tmp_path, **how)
        for name, variable in expected.variables.items():
            np.testing.assert_array_equal(group[name][...], variable)
            assert group[name].dims == variable.dims
            assert {**group[name].attrs} == variable.attrs
    with pytest.raises(MismatchError, match=r"overlap|order"):
        vz.virtualize(paths[::-1], "time", allowed=tmp_path)


def test_masks_of_zarr_v2_are_not_overlooked(files, tmp_path):
    masked = vz.create_array(
        tmp_path / "a.zarr", data=cube(0), fill_value=0, zarr_format=2, chunks=(3, 6, 8)
    )
    arrays = [masked, files["hdf5", None][0]]
    with pytest.raises(MismatchError, match=r"v2, where .*0.* means missing data"):
        vz.concat(arrays)
    joined = vz.concat(arrays, harmonize=True)
    values = np.concatenate([np.where(cube(0) == 0, np.nan, cube(0)), files["hdf5", None][1]])
    np.testing.assert_array_equal(joined[...], values)
