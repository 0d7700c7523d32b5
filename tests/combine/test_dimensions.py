"""Axes that have no name, or one that a reader made up, are joined with any; others are renamed."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import xarray as xr

import virtualzarr as vz
from tests.combine.helpers import numbers, virtual_array
from virtualzarr.errors import MismatchError
from virtualzarr.ingest.detect import scan
from virtualzarr.integrations.xarray_backend import VirtualZarrBackendEntrypoint
from virtualzarr.metadata.dimension_names import find_differing_names, join_names


def named(*dims, start=1):
    return virtual_array(numbers((2, 3), start=start), dims=dims or None)


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        (("y", "x"), (), ("y", "x")),
        ((), ("y", "x"), ("y", "x")),
        (("y", None), (None, "x"), ("y", "x")),
        (("phony_dim_0", "phony_dim_1"), ("lat", "lon"), ("lat", "lon")),
        (("phony_dim_0", "phony_dim_1"), ("phony_dim_2", "x"), ("phony_dim_0", "x")),
        (("phony_dim_0", None), (None, "phony_dim_0"), ("phony_dim_0", None)),
        ((), (), (None, None)),
    ],
)
def test_what_has_no_name_is_joined_with_any(first, second, joined):
    arrays = [named(*first), named(*second, start=7)]
    for axis in (0, 1):
        both = vz.concat(arrays, axis)
        assert both.dims == joined
        np.testing.assert_array_equal(both[...], np.concatenate([a[...] for a in arrays], axis))
    assert vz.stack(arrays, dim="t").dims == ("t", *joined)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([("y", "x"), ("lat", "x")], r"input 1 has dimensions .*lat.*but input 0 .*\{'lat': 'y'\}"),
        ([(), ("y", "x"), ("y", "lon")], r"input 2 .*lon.*but input 1 .*\{'lon': 'x'\}"),
        ([("y", "x"), ("x", "y")], r"transpose\('y', 'x'\)"),
        ([("y", None), (None, "y")], r"input 1 .*but input 0"),
    ],
)
def test_names_that_differ_are_an_error_with_a_way_out(names, said):
    with pytest.raises(MismatchError, match=said):
        vz.concat([named(*dims) for dims in names])
    groups = [vz.Group({}, {"v": named(*dims)}) for dims in names]
    with pytest.raises(MismatchError, match=said):
        vz.concat(groups, 0)


def test_the_same_name_twice_in_one_array_is_its_own_affair():
    assert vz.concat([named("x", "x"), named("x", None), named("x", "x")]).dims == ("x", "x")


def test_dim_is_found_in_whichever_array_has_it():
    arrays = [named(), named("y", "x")]
    assert vz.concat(arrays, dim="x").shape == (2, 6)
    with pytest.raises(ValueError, match="no axis"):
        vz.concat(arrays, dim="z")


def test_dimensions_are_renamed():
    array = named("y", "x")
    assert array.lazy.rename_dims(y="x", x="y").dims == ("x", "y")
    assert array.lazy.rename_dims({0: "lat", 1: "lon"}).dims == ("lat", "lon")
    assert array.dims == ("y", "x")
    same = array.lazy.rename_dims()
    np.testing.assert_array_equal(same[...], array[...])
    with pytest.raises(ValueError, match="two dimensions would be called 'x'"):
        array.lazy.rename_dims(y="x")
    with pytest.raises(ValueError, match="'z'"):
        array.lazy.rename_dims(z="x")


def grid_group():
    members = {
        "air": virtual_array(numbers((2, 3)), dims=("y", "x"), attrs={"coordinates": "area y"}),
        "area": virtual_array(numbers((2, 3)), dims=("y", "x")),
        "x": virtual_array(numbers((3,)), dims=("x",), path="x"),
        "y": virtual_array(numbers((2,)), dims=("y",), path="y"),
    }
    inner = vz.Group({}, {"air": members["air"]}, "inner")
    return vz.Group({"grid_mapping": "area: x y"}, {**members, "inner": inner})


def test_variables_and_dimensions_of_groups_are_renamed():
    group = grid_group().rename({"x": "lon", "area": "x"}, y="lat")
    assert set(group) == {"air", "x", "lon", "lat", "inner"}
    assert group["air"].dims == group["inner/air"].dims == group["x"].dims == ("lat", "lon")
    assert group["air"].attrs["coordinates"] == "x lat"
    assert group.attrs["grid_mapping"] == "x: lon lat"
    assert group["lon"].path == "lon"
    np.testing.assert_array_equal(group["lat"][...], [1, 2])
    with pytest.raises(ValueError, match="would be"):
        grid_group().rename(x="y")
    with pytest.raises(ValueError, match="would be"):
        grid_group().rename(x="z", y="z")


def test_files_are_renamed_before_they_are_joined(tmp_path):
    lat = xr.Dataset({"air": (("lat", "lon"), np.arange(6.0).reshape(2, 3))}, {"lat": [0, 1]})
    y = xr.Dataset({"air": (("y", "x"), np.arange(6.0).reshape(2, 3) + 10)}, {"y": [2, 3]})
    paths = [tmp_path / "a.nc", tmp_path / "b.nc"]
    lat.to_netcdf(paths[0])
    y.to_netcdf(paths[1])
    with pytest.raises(MismatchError, match="rename"):
        vz.virtualize(paths, 0, missing="drop")
    joined = vz.virtualize(
        paths, "lat", preprocess=lambda g: g.rename(y="lat", x="lon") if "y" in g else g
    )
    expected = xr.concat([lat, y.rename(y="lat", x="lon")], "lat")
    np.testing.assert_array_equal(joined["air"][...], expected["air"])
    np.testing.assert_array_equal(joined["lat"][...], expected["lat"])


def test_made_up_names_of_files_are_no_dimensions_of_what_is_merged(tmp_path):
    for name, shape in (("a", (3, 4)), ("b", (5, 6))):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file[name] = np.arange(shape[0] * shape[1]).reshape(shape)
    merged = vz.merge([scan(tmp_path / "a.h5"), scan(tmp_path / "b.h5")])
    opened = xr.open_dataset(merged, engine=VirtualZarrBackendEntrypoint)
    assert {name: v.shape for name, v in opened.variables.items()} == {"a": (3, 4), "b": (5, 6)}
    assert len(set(opened["a"].dims + opened["b"].dims)) == 4


def test_names_by_brute_force():
    names = [None, "a", "b", "phony_dim_0"]
    every = [(x, y) for x in names for y in names]
    for first in every:
        for second in every:
            real = [[None if n == "phony_dim_0" else n for n in pair] for pair in (first, second)]
            clash = any(p and q and p != q for p, q in zip(*real, strict=True))
            merged = [p or q for p, q in zip(*real, strict=True)]
            twice = merged[0] and merged[0] == merged[1]
            own = any(pair[0] and pair[0] == pair[1] for pair in real)
            wrong = bool(clash or (twice and not own))
            assert (find_differing_names([first, second]) is not None) == wrong
            if not clash:
                joined = join_names([first, second])
                assert all(r is None or j == r for j, r in zip(joined, merged, strict=True))
