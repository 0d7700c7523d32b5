"""Arrays that mean different things by their numbers, against xarray decoding each by itself."""

from __future__ import annotations

import warnings
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import virtualzarr as vz
from grids import RegularGrid
from tests.combine.helpers import ZLIB, numbers, virtual_array
from virtualzarr import Array, Group, Manifest
from virtualzarr.choices import CombineAttrs
from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.core.base import ChunkSpec
from virtualzarr.combine.attributes import combine_attributes
from virtualzarr.combine.cf_time import TimeUnit, day_number
from virtualzarr.combine.error_report import ErrorReport, InputLabels
from virtualzarr.combine.harmonize import harmonize
from virtualzarr.combine.options import ParsedOptions
from virtualzarr.errors import CodecError, MismatchError
from virtualzarr.metadata import ArrayMetadata, TypedFloat, json_attributes

xr = pytest.importorskip("xarray")
merge_attrs = pytest.importorskip("xarray.structure.merge").merge_attrs
to_dataset = pytest.importorskip("virtualzarr.integrations.xarray_backend").to_dataset
RULES = ParsedOptions.parse(True).harmonize


def virtual(values: np.ndarray, attributes: dict[str, Any], fill: Any = 0) -> Array:
    pipeline = Pipeline([make("bytes", endian="little")])
    grid = RegularGrid(values.shape, values.shape)
    meta = ArrayMetadata(
        values.shape, values.dtype, grid, pipeline, fill, ("x",), json_attributes(attributes)
    )
    return Array.from_manifest(meta, Manifest.inline(values.tobytes(), values.ndim), "v")


def decoded(values: Any, attributes: dict[str, Any]) -> Any:
    """What xarray makes of an array with attributes as a netCDF reader has them."""
    dataset = xr.Dataset({"v": ("x", values, attributes)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return xr.decode_cf(dataset)["v"]


def check_like_xarray(inputs: list[tuple[np.ndarray, dict[str, Any]]]) -> None:
    arrays = [virtual(values, attributes) for values, attributes in inputs]
    report = ErrorReport(InputLabels(arrays))
    made = harmonize(arrays, RULES, report, "v")
    assert not report.problems
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = xr.concat([decoded(*one) for one in inputs], "x")
    values = np.concatenate([array[...] for array in made])
    ours = decoded(values, made[0].attrs)
    assert ours.dtype == expected.dtype
    np.testing.assert_array_equal(ours.values, expected.values)


NUMBERS = st.sampled_from(["i1", "u1", "i2", "u2", "i4", "u4", "i8", "f4", "f8"])
FLOATS = st.sampled_from([np.float32, np.float64])


@st.composite
def packed(draw: st.DrawFn) -> tuple[np.ndarray, dict[str, Any]]:
    dtype = np.dtype(draw(NUMBERS))
    attributes: dict[str, Any] = {}
    numbers = [0, 1, 2, 3, 5, 100]
    values = np.array(draw(st.lists(st.sampled_from(numbers), min_size=1, max_size=6)), dtype)
    if dtype.kind == "f" and draw(st.booleans()):
        values[0] = np.nan
    if draw(st.booleans()):
        marks = [*numbers, float("nan")] if dtype.kind == "f" else numbers
        attributes["_FillValue"] = dtype.type(draw(st.sampled_from(marks)))
    if draw(st.booleans()):
        kind = draw(st.sampled_from([dtype, np.dtype("f8")]))
        attributes["missing_value"] = kind.type(draw(st.sampled_from([*numbers, 0.1])))
    if draw(st.booleans()):
        attributes["scale_factor"] = draw(FLOATS)(draw(st.sampled_from([0.1, 2, 1e-3])))
    if draw(st.booleans()):
        attributes["add_offset"] = draw(FLOATS)(draw(st.sampled_from([273.15, 1, -0.3])))
    if dtype.kind in "iu" and draw(st.booleans()):
        attributes["_Unsigned"] = "true" if dtype.kind == "i" else "false"
    return values, attributes


@given(st.lists(packed(), min_size=2, max_size=3))
def test_packing_is_undone_as_xarray_does(inputs: list[tuple[np.ndarray, dict[str, Any]]]) -> None:
    check_like_xarray(inputs)


@pytest.mark.parametrize("factor", [float, np.float32, np.float64])
@pytest.mark.parametrize("mask", ["_FillValue", "missing_value"])
def test_floats_of_which_nan_is_masked_keep_their_precision(factor: type, mask: str) -> None:
    """Then xarray calculates in the stored data type, with factors of that of the file."""
    values = np.array([1.5, 2.7, 3.3, 7.123, 13.573, np.nan], "f4")
    attributes = {mask: np.float32(np.nan), "scale_factor": factor(0.01), "add_offset": factor(5)}
    check_like_xarray([(values, attributes), (np.array([1.0, 2.0]), {})])


UNITS = ("days", "hour", "minutes", "seconds", "milliseconds", "microseconds")
DATES = ("2000-01-01", "1999-12-31 12:00", "1970-1-1 00:00:00", "2001-06-01T06:30:00Z",
         "2000-01-01 00:00:00 +01:00")  # fmt: skip


@st.composite
def times(draw: st.DrawFn) -> tuple[np.ndarray, dict[str, Any]]:
    dtype = np.dtype(draw(st.sampled_from(["i2", "i4", "i8", "u1", "u4", "f4", "f8"])))
    numbers = st.integers(0, 200) if dtype.kind != "f" else st.sampled_from([0.0, 0.5, 1.1, 33.3])
    values = np.array(draw(st.lists(numbers, min_size=1, max_size=5)), dtype)
    units = f"{draw(st.sampled_from(UNITS))} since {draw(st.sampled_from(DATES))}"
    attributes: dict[str, Any] = {"units": units}
    if draw(st.booleans()):
        attributes["calendar"] = draw(
            st.sampled_from(["standard", "gregorian", "proleptic_gregorian"])
        )
    if draw(st.booleans()):
        attributes["_FillValue"] = values[-1]
    return values, attributes


@given(st.lists(times(), min_size=2, max_size=3))
def test_times_are_brought_to_one_unit(inputs: list[tuple[np.ndarray, dict[str, Any]]]) -> None:
    check_like_xarray(inputs)


@given(
    st.sampled_from(["noleap", "360_day", "all_leap", "julian", "proleptic_gregorian", "standard"]),
    st.integers(1, 3000), st.integers(1, 12), st.integers(1, 31),
)  # fmt: skip
def test_days_are_counted_as_cftime_does(calendar: str, year: int, month: int, day: int) -> None:
    cftime = pytest.importorskip("cftime")
    ours = day_number(year, month, day, calendar)
    origin = cftime.datetime(1990, 3, 1, calendar=calendar)
    base = day_number(1990, 3, 1, calendar)
    assert base is not None
    try:
        date = cftime.datetime(year, month, day, calendar=calendar)
    except ValueError:
        assert ours is None
        return
    assert ours is not None
    assert ours - base == (date - origin).days


def test_other_calendars_keep_their_days() -> None:
    march = {"units": "days since 2000-03-01", "calendar": "noleap"}
    february = {"units": "hours since 2000-02-28", "calendar": "365_day"}
    inputs = [(np.array([0, 1], "i4"), march), (np.array([24, 48], "i4"), february)]
    arrays = [virtual(*one) for one in inputs]
    made = harmonize(arrays, RULES, ErrorReport(InputLabels(arrays)), "v")
    assert made[0].attrs["units"] == "hours since 2000-03-01"
    assert [array[...].tolist() for array in made] == [[0, 24], [0, 24]]


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ("days since 2000-01-01", ("days since 2000-01-01", "noleap"), "have different days"),
        ("days since 2000-01-01", "days since 2000-01-01 00:00:00.0000000001", "fractions"),
        (
            ("days since 2000-01-01", "noleap"),
            ("days since 2000-01-01 00:00:00.0000001", "noleap"),
            "parts of microseconds",
        ),
    ],
)
def test_times_without_a_common_unit_are_refused(first: Any, second: Any, reason: str) -> None:
    texts = [one if isinstance(one, tuple) else (one, "standard") for one in (first, second)]
    arrays = [
        virtual(np.arange(3, dtype="i4"), {"units": units, "calendar": calendar})
        for units, calendar in texts
    ]
    report = ErrorReport(InputLabels(arrays))
    assert harmonize(arrays, RULES, report, "v") == arrays
    assert reason in report.problems[0][2]


@pytest.mark.parametrize("calendar", ["noleap", "360_day", "julian"])
@pytest.mark.parametrize(
    ("days", "hours", "unit"),
    [([0.5, 1.5], [60, 66], "hours"), ([0.25, 0.5], [13.5, 14], "minutes"),
     ([36500.5, 36501.5], [-3.0, 9.0], "hours")],
)  # fmt: skip
def test_fractions_of_days_in_other_calendars(
    days: Any, hours: Any, unit: str, calendar: str
) -> None:
    said = [
        {"units": f"{name} since 2000-01-01", "calendar": calendar} for name in ("days", "hours")
    ]
    arrays = [
        virtual_array(np.array(values, "f8"), attrs=attrs)
        for values, attrs in zip((days, hours), said, strict=True)
    ]
    joined = vz.concat(arrays, harmonize="time")
    assert joined.attrs["units"] == f"{unit} since 2000-01-01"
    decoded = xr.decode_cf(xr.Dataset({"t": ("t", joined[...], dict(joined.attrs))}))["t"].values
    theirs = [xr.decode_cf(xr.Dataset({"t": ("t", a[...], dict(a.attrs))}))["t"].values
              for a in arrays]  # fmt: skip
    assert [str(one) for one in decoded] == [str(one) for one in np.concatenate(theirs)]


def test_fractions_that_are_not_exact_are_refused() -> None:
    units = [{"units": f"{n} since 2000-01-01", "calendar": "noleap"} for n in ("days", "hours")]
    arrays = [virtual_array(np.array([1 / 3, 1]), attrs=attrs) for attrs in units]
    with pytest.raises(MismatchError, match="would be rounded"):
        vz.concat(arrays, harmonize="time")


def test_times_where_the_calendars_differ_are_an_error() -> None:
    arrays = [
        virtual(np.array([0, 1], "i4"), {"units": "days since 1600-01-01", "calendar": name})
        for name in ("standard", "proleptic_gregorian")
    ]
    arrays[1] = virtual(np.array([-7000, 1], "i4"), dict(arrays[1].attrs))
    made = harmonize(arrays, RULES, ErrorReport(InputLabels(arrays)), "v")
    assert made[0][...].tolist() == [0, 1]
    with pytest.raises(CodecError, match="1582-10-15"):
        made[1][...]


def test_times_that_overflow_are_an_error() -> None:
    arrays = [
        virtual(np.array([2**62], "i8"), {"units": "days since 2000-01-01"}),
        virtual(np.array([1], "i8"), {"units": "hours since 2000-01-01"}),
    ]
    made = harmonize(arrays, RULES, ErrorReport(InputLabels(arrays)), "v")
    assert made[1][...].tolist() == [1]
    with pytest.raises(CodecError, match="64 bits"):
        made[0][...]


ATTRIBUTES = st.dictionaries(st.sampled_from("abc"), st.integers(0, 1) | st.just("a"))


@given(st.lists(ATTRIBUTES, min_size=1, max_size=4), st.sampled_from(get_args(CombineAttrs)))
def test_attributes_are_combined_as_xarray_does(attributes: list[Any], policy: str) -> None:
    try:
        expected = merge_attrs(attributes, policy)
    except xr.MergeError:
        with pytest.raises(MismatchError):
            combine_attributes(attributes, policy)
    else:
        assert combine_attributes(attributes, policy) == expected


def test_units_have_several_spellings() -> None:
    units = [
        TimeUnit.from_attributes({"units": f"{word} since 2000-1-1"})
        for word in ("h", "hrs", "Hours")
    ]
    assert units == [TimeUnit("hours", "2000-1-1", "standard")] * 3


def test_units_that_are_no_times_are_left_alone() -> None:
    for units in ("K", "months since 2000-01-01", "days since yesterday", "days since 2000-02-30"):
        assert TimeUnit.from_attributes({"units": units}) is None


def test_numbers_of_attributes_keep_their_dtype() -> None:
    attributes = json_attributes({"scale_factor": np.float32(0.1), "list": np.array([1, 2], "f4")})
    scale = attributes["scale_factor"]
    assert isinstance(scale, TypedFloat)
    assert scale.scalar.dtype == np.float32
    assert attributes == {"scale_factor": float(np.float32(0.1)), "list": [1.0, 2.0]}


def test_unknown_rules_are_refused() -> None:
    assert ParsedOptions.parse(["packing", "fill"]).harmonize == {"packing", "fill"}
    with pytest.raises(ValueError, match="harmonize is one of"):
        ParsedOptions.parse({"units"})
    with pytest.raises(ValueError, match="combine_attrs is one of"):
        ParsedOptions.parse(combine_attrs="merge")


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_packed_netcdf_is_unpacked_in_the_precision_of_its_file(kind: Any, tmp_path: Any) -> None:
    netCDF4 = pytest.importorskip("netCDF4")
    backend = pytest.importorskip(
        "virtualzarr.integrations.xarray_backend"
    ).VirtualZarrBackendEntrypoint
    path = tmp_path / "packed.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("x", 3)
        variable = file.createVariable("v", "i2", ("x",))
        variable.set_auto_maskandscale(False)
        variable.setncatts({"scale_factor": kind(0.1), "missing_value": np.int16(2)})
        variable[:] = [1, 2, 3]
    ours, theirs = (xr.open_dataset(path, engine=e)["v"] for e in (backend, "netcdf4"))
    assert ours.dtype == theirs.dtype == kind
    np.testing.assert_array_equal(ours.values, theirs.values)


def test_bounds_have_the_unit_of_their_times() -> None:
    groups, datasets = [], []
    for first, unit in ((0, "days since 2000-01-01"), (24, "hours since 2000-01-01")):
        step = 1 if unit.startswith("days") else 24
        times = np.array([first, first + step], "i4")
        bounds = np.stack([times, times + step], axis=1)
        attributes = {"units": unit, "bounds": "edges"}
        variables = {"time": (("time",), times, attributes), "edges": (("time", "n"), bounds, {})}
        datasets.append(xr.decode_cf(xr.Dataset(variables)))
        members = {
            name: virtual_array(values, dims=dims, attrs=dict(attrs), path=name)
            for name, (dims, values, attrs) in variables.items()
        }
        groups.append(Group({}, members))
    groups[1]["time"].attrs["units"] = "hours since 2000-01-02"
    datasets[1] = datasets[1].assign_coords(time=datasets[1]["time"] + np.timedelta64(1, "D"))
    datasets[1]["edges"] = datasets[1]["edges"] + np.timedelta64(1, "D")
    with pytest.raises(MismatchError, match="units"):
        vz.concat(groups, dim="time")
    joined = to_dataset(vz.concat(groups, dim="time", harmonize=True))
    expected = xr.concat(datasets, "time")
    np.testing.assert_array_equal(joined["time"].values, expected["time"].values)
    np.testing.assert_array_equal(joined["edges"].values, expected["edges"].values)


@pytest.mark.parametrize(
    ("first", "second", "mask"),
    [("i4", "f8", None), ("f4", "i4", None), ("i4", "i4", -9)],
)
def test_bounds_follow_times_that_get_another_unit(
    first: str, second: str, mask: int | None
) -> None:
    """The units are equal, but times that are integers, floats or masked are counted anew."""
    groups, datasets = [], []
    for dtype, start, fill in ((first, 0, None), (second, 2, mask)):
        times = np.array([start, start + 1], dtype)
        attributes: dict[str, Any] = {"units": "days since 2000-01-01", "bounds": "edges"}
        attributes |= {} if fill is None else {"_FillValue": fill}
        variables = {
            "time": (("time",), times, attributes),
            "edges": (("time", "n"), np.stack([times, times + 1], 1), {}),
        }
        datasets.append(xr.decode_cf(xr.Dataset(variables)))
        groups.append(
            Group({}, {
                name: virtual_array(values, dims=dims, attrs=dict(attrs), path=name)
                for name, (dims, values, attrs) in variables.items()
            })
        )  # fmt: skip
    joined = to_dataset(vz.concat(groups, dim="time", harmonize=True))
    expected = xr.concat(datasets, "time")
    np.testing.assert_array_equal(joined["time"].values, expected["time"].values)
    np.testing.assert_array_equal(joined["edges"].values, expected["edges"].values)


def test_packed_arrays_are_joined_along_an_axis() -> None:
    packed = numbers((3, 2), "i2")
    attributes = [
        {"scale_factor": 0.5, "_FillValue": 3, "units": "m"},
        {"scale_factor": 0.25, "units": "m"},
    ]
    arrays = [virtual_array(packed, (2, 2), pipeline=ZLIB, attrs=a) for a in attributes]
    with pytest.raises(MismatchError, match="scale_factor"):
        vz.concat(arrays)
    joined = vz.concat(arrays, harmonize="packing")
    first = np.where(packed == 3, np.nan, packed * 0.5)
    np.testing.assert_array_equal(joined[...], np.concatenate([first, packed * 0.25]))
    assert joined.attrs == {"units": "m"}
    assert joined.chunks == ((2, 1, 2, 1), (2,))
    np.testing.assert_array_equal(vz.stack(arrays, harmonize=True)[0], first)


def test_equal_numbers_of_other_precision_are_found() -> None:
    packed = np.array([1, 2], "i2")
    arrays = [
        virtual(packed, {"scale_factor": kind(np.float32(0.1))}) for kind in (np.float32, float)
    ]
    with pytest.raises(MismatchError, match="dtype of scale_factor"):
        vz.concat(arrays)
    check_like_xarray([(packed, {"scale_factor": np.float32(0.1)}),
                       (packed, {"scale_factor": float(np.float32(0.1))})])  # fmt: skip


def test_attributes_that_give_meaning_are_kept_where_others_are_dropped() -> None:
    attributes = {"scale_factor": 0.5, "_FillValue": 3, "units": "K", "history": "h"}
    array = virtual_array(numbers((3, 2), "i2"), attrs=attributes)
    del attributes["history"]
    assert vz.concat([array, array], combine_attrs="drop").attrs == attributes
    group = Group({"title": "t"}, {"x": array})
    joined = vz.stack([group, group], dim="t", combine_attrs="drop")
    assert (joined.attrs, joined["x"].attrs) == ({}, attributes)


def test_one_mask_said_in_two_ways() -> None:
    check_like_xarray(
        [
            (np.array([1, -1], "i2"), {"_FillValue": np.int16(-1)}),
            (np.array([-1, 2], "i2"), {"missing_value": np.int16(-1)}),
        ]
    )
    parts = [
        virtual_array(np.array([1, -1], "i2"), attrs={name: -1})
        for name in ("_FillValue", "missing_value")
    ]
    np.testing.assert_array_equal(vz.concat(parts, harmonize=True)[...], [1, np.nan] * 2)


@pytest.mark.parametrize("fill", [0, 3])
def test_fill_values_of_zarr_v2_are_masks(fill: int) -> None:
    values = np.array([0, 3], "i2")
    arrays = [virtual_array(values, fill_value=fill, zarr_format=n) for n in (2, 3)]
    with pytest.raises(MismatchError, match="of Zarr v2, where"):
        vz.concat(arrays)
    joined = vz.concat(arrays, harmonize=True)
    expected = [*np.where(values == fill, np.nan, values), *values]
    np.testing.assert_array_equal(joined[...], expected)


def test_integers_of_zarr_v2_are_joined_as_integers(tmp_path: Any) -> None:
    values = np.array([[0, 3], [5, 0]], "i2")
    group = vz.create_group({}, zarr_format=2)
    stored = group.create_array("x", data=values)
    np.save(tmp_path / "a.npy", values)
    other = vz.open(tmp_path / "a.npy")["data"]
    assert stored.fill_value == 0
    with pytest.raises(MismatchError, match="harmonize='unmask' takes them for numbers"):
        vz.concat([stored, other])
    assert vz.concat([stored, other], harmonize=True).dtype == "f4"
    for rules in ("unmask", ["unmask", "packing", "fill"]):
        joined = vz.concat([stored, other], harmonize=rules)
        assert joined.dtype == "i2"
        assert joined.metadata.zarr_format == 3
        assert joined[...].tolist() == [*values.tolist()] * 2
    groups = [vz.Group({}, {"x": array}) for array in (stored, other)]
    assert vz.stack(groups, dim="t", harmonize="unmask")["x"].dtype == "i2"


def test_unmasking_leaves_what_attributes_mask() -> None:
    arrays = [
        virtual_array(np.array([0, 3], "i2"), fill_value=0, zarr_format=n, attrs={"_FillValue": 3})
        for n in (2, 3)
    ]
    joined = vz.concat(arrays, harmonize="unmask")
    assert joined.attrs["_FillValue"] == 3
    unpacked = vz.concat(
        [*arrays, virtual_array(np.array([3], "i2"))], harmonize=["unmask", "packing"]
    )
    np.testing.assert_array_equal(unpacked[...], [0, np.nan, 0, np.nan, 3])


@pytest.mark.parametrize(
    ("first", "second", "advice"),
    [
        ({"scale_factor": 1.0}, {"scale_factor": 2.0}, "(harmonize='packing' may resolve"),
        ({"units": "days since 2000-01-01"}, {"units": "hours since 2000-01-01"},
         "(harmonize='time' may resolve"),
        ({"units": "hours since 2000-01-01", "_FillValue": 1}, {"units": "days since 2000-01-01"},
         "(harmonize=['packing', 'time'] may resolve"),
        ({"units": "K"}, {"units": "degC"}, None),
        ({"scale_factor": 1.0, "units": "K"}, {"scale_factor": 2.0, "units": "degC"}, "'packing'"),
    ],
)  # fmt: skip
def test_errors_say_what_may_resolve_them(first: Any, second: Any, advice: str | None) -> None:
    arrays = [virtual_array(np.arange(2, dtype="i4"), attrs=attrs) for attrs in (first, second)]
    with pytest.raises(MismatchError) as caught:
        vz.concat(arrays)
    assert ("harmonize" in str(caught.value)) == (advice is not None)
    assert (advice or "") in str(caught.value)


def test_errors_do_not_propose_what_was_asked_for() -> None:
    numbers = np.arange(2, dtype="i4")
    units = {"units": "days since 2000-01-01"}
    arrays = [virtual_array(numbers, attrs=units | {"calendar": c}) for c in ("noleap", "360_day")]
    with pytest.raises(MismatchError, match="different days") as caught:
        vz.concat(arrays, harmonize="time")
    assert "harmonize" not in str(caught.value)
    groups = [vz.Group({}, {"x": virtual_array(numbers + i)}) for i in range(2)]
    with pytest.raises(MismatchError, match='compat="override" takes'):
        vz.merge(groups)


def test_unpacked_arrays_of_bytes_have_a_native_form(tmp_path: Any) -> None:
    arrays = [virtual_array(np.array([1, 2], "i1"), attrs={"scale_factor": s}) for s in (0.5, 0.25)]
    pipeline = Pipeline([make("bytes")])
    arrays = [
        Array.from_manifest(array.metadata.replace(pipeline=pipeline), array.manifest, "v")
        for array in arrays
    ]
    Group({}, {"v": vz.concat(arrays, harmonize=True)}).publish(tmp_path / "v.zarr")
    assert vz.open(tmp_path / "v.zarr")["v"][...].tolist() == [0.5, 1, 0.25, 0.5]


@pytest.mark.parametrize("dtype", ["i4", "i8", "f8"])
def test_times_in_chunks_that_are_not_full(dtype: str, tmp_path: Any) -> None:
    netCDF4 = pytest.importorskip("netCDF4")
    paths = []
    for i, units in enumerate(["days since 2000-01-01", "hours since 2000-01-01"]):
        paths.append(tmp_path / f"{i}.nc")
        with netCDF4.Dataset(paths[-1], "w") as file:
            file.createDimension("time", None)
            time = file.createVariable("time", dtype, ("time",))
            time.units = units
            time[:] = np.array([i, i + 2]) * (24 if i else 1)
    joined = vz.concat([vz.open(path)["time"] for path in paths], harmonize=True)
    decoded = xr.decode_cf(xr.Dataset({"time": ("time", joined[...], dict(joined.attrs))}))
    expected = xr.concat([xr.open_dataset(path)["time"] for path in paths], "time")
    np.testing.assert_array_equal(decoded["time"].values, expected.values)


def test_fill_values_that_are_no_times() -> None:
    codec = make("virtualzarr.time", data_type="int64", factor=3600 * 10**9, shift=0, fill=2**62)
    stored = np.array([1, 2**62, -2147483647, -9223372036854775806])
    decoded = codec.decode(stored, ChunkSpec(stored.shape, np.dtype("i8")))
    assert decoded.tolist() == [3600 * 10**9, *[np.iinfo("i8").min] * 3]
    with pytest.raises(CodecError, match="64 bits"):
        codec.decode(stored - 1, ChunkSpec(stored.shape, np.dtype("i8")))
    near = make("virtualzarr.time", data_type="int64", factor=1, shift=1)
    assert (
        near.decode(stored, ChunkSpec(stored.shape, np.dtype("i8"))).tolist()
        == (stored + 1).tolist()
    )


@pytest.mark.parametrize("calendar", ["noleap", "360_day"])
def test_missing_times_of_other_calendars_are_as_in_each_file(tmp_path: Any, calendar: str) -> None:
    """xarray has no missing date there: an integer is an error, a float the date of the units."""
    netCDF4, xr = pytest.importorskip("netCDF4"), pytest.importorskip("xarray")
    engine = pytest.importorskip(
        "virtualzarr.integrations.xarray_backend"
    ).VirtualZarrBackendEntrypoint

    def write(name: str, start: int, year: int, dtype: str, fill: float) -> Any:
        path = tmp_path / name
        with netCDF4.Dataset(path, "w") as file:
            file.createDimension("time", 3)
            time = file.createVariable("time", dtype, "time", fill_value=fill)
            time.setncatts({"units": f"days since {year}-01-01", "calendar": calendar})
            time[:] = np.ma.masked_array(np.arange(start, start + 3), [0, 1, 0])
        return path

    def dates(path: Any) -> Any:
        with xr.open_dataset(path, engine=engine) as found:
            return found.time.values.tolist()

    for dtype, fill in (("f8", np.nan), ("f8", -999.0), ("i4", -999)):
        paths = [write(f"{dtype}{n}.nc", 3 * n, 2000, dtype, fill) for n in range(2)]
        vz.virtualize(paths, "time").publish(tmp_path / "same.json", overwrite=True)
        if dtype == "f8":
            files = [xr.open_dataset(path, engine="netcdf4").time.values for path in paths]
            assert dates(tmp_path / "same.json") == [*files[0], *files[1]]
        else:
            for path, reader in ((paths[0], "netcdf4"), (tmp_path / "same.json", engine)):
                with pytest.raises(OverflowError):
                    xr.open_dataset(path, engine=reader)
    mixed = [write("a.nc", 0, 2000, "f8", np.nan), write("b.nc", 0, 2001, "f8", np.nan)]
    vz.virtualize(mixed, "time", harmonize=True).publish(tmp_path / "mixed.json", copy=True)
    with pytest.raises(OverflowError):
        dates(tmp_path / "mixed.json")
    with xr.open_dataset(tmp_path / "mixed.json", engine=engine, decode_times=False) as found:
        year = 365 if calendar == "noleap" else 360
        days = found.time.values
        assert np.isnan(days).tolist() == [False, True, False] * 2
        assert days[~np.isnan(days)].tolist() == [0, 2, year, year + 2]
