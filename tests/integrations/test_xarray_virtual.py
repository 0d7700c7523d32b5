"""Datasets over virtual arrays: xarray makes of them what it makes of arrays in memory."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.combine.helpers import BIG, RAW, SHUFFLED, ZLIB, numbers, virtual_array
from tests.combine.test_harmonize import packed
from virtualzarr import Group
from virtualzarr.config import config
from virtualzarr.errors import MismatchError, UnsupportedError
from virtualzarr.metadata import json_attributes

xr = pytest.importorskip("xarray")
duck = pytest.importorskip("virtualzarr.integrations.xarray_duck_array")
from virtualzarr.integrations.xarray_backend import VirtualZarrBackendEntrypoint  # noqa: E402
from virtualzarr.integrations.xarray_datasets import open_virtual_dataset, to_group  # noqa: E402

pytestmark = pytest.mark.interop
COMMON = settings(deadline=None, suppress_health_check=list(HealthCheck))
PACKED = {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": 3}


def virtual(dataset):
    """Whether all variables but dimension coordinates are still unread."""
    return all(
        isinstance(dataset.variables[name]._data, duck.VirtualDuckArray)
        for name in ("a", "p", "n", "lat")
    )


def group_of(draw, sizes, start=0):
    """A group of variables over dimensions of some sizes, chunked and encoded in any ways."""
    members = {}
    for dim, n in sizes.items():
        step = start if dim == "t" else 0
        members[dim] = virtual_array(np.arange(n) * 10 + step, dims=(dim,), path=dim)
    for name, dims, dtype, attrs in [
        ("a", ("t", "y", "x"), "f4", {"units": "K"}),
        ("p", ("y", "x"), "i2", PACKED),
        ("n", ("t", "x"), "i4", {}),
        ("lat", ("y",), "f8", {}),
    ]:
        shape = tuple(sizes[dim] for dim in dims)
        chunks = tuple(draw(st.integers(1, n + 1)) for n in shape)
        values = numbers(shape, dtype, start if "t" in dims else 1)
        missing = ()
        if "t" in dims and draw(st.booleans()):
            missing = ((0,) * len(shape),)
            values[tuple(slice(n) for n in chunks)] = 0
        pipeline = draw(st.sampled_from([RAW, ZLIB, BIG, SHUFFLED]))
        members[name] = virtual_array(
            values, chunks, pipeline=pipeline, missing=missing, dims=dims, attrs=attrs, path=name
        )
    return Group({"title": "made up"}, members)


@st.composite
def pairs(draw, sizes=None, start=0):
    """A virtual dataset, and the same read by xarray."""
    sizes = sizes or {"t": draw(st.integers(1, 4)), "y": draw(st.integers(1, 5)), "x": 3}
    group = group_of(draw, sizes, start)
    ours = open_virtual_dataset(group).set_coords("lat")
    theirs = xr.open_dataset(group, engine=VirtualZarrBackendEntrypoint).set_coords("lat").load()
    assert virtual(ours)
    return ours, theirs


def indexer(draw, n):
    kind = draw(st.sampled_from(["slice", "array"] + ["int"] * (n > 0)))
    if kind == "slice":
        return draw(st.slices(n))
    if kind == "int":
        return draw(st.integers(-n, n - 1))
    picks = st.lists(st.integers(0, n - 1), min_size=1, max_size=5) if n else st.just([])
    return np.array(draw(picks), np.int64)


def dim_of(draw, ds):
    return draw(st.sampled_from(sorted(ds.sizes)))


def isel(draw, ds):
    chosen = {dim: indexer(draw, n) for dim, n in ds.sizes.items() if draw(st.booleans())}
    return lambda d: d.isel(chosen)


def sel(draw, ds):
    dim = dim_of(draw, ds)
    labels = ds[dim].values
    if not len(labels) or dim not in ds.indexes or not ds.indexes[dim].is_unique:
        return lambda d: d
    wanted = draw(st.lists(st.sampled_from(labels.tolist()), min_size=1, max_size=3))
    return lambda d: d.sel({dim: wanted})


def shift(draw, ds):
    dim, by = dim_of(draw, ds), draw(st.integers(-3, 3))
    return lambda d: d.shift({dim: by})


def roll(draw, ds):
    dim, by = dim_of(draw, ds), draw(st.integers(-3, 3))
    return lambda d: d.roll({dim: by}, roll_coords=False)


def pad(draw, ds):
    dim, width = dim_of(draw, ds), draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    options = draw(st.sampled_from([{}, {"constant_values": 7}, {"mode": "edge"}]))
    if not ds.sizes[dim]:
        options = {}
    if not np.issubdtype(ds[dim].dtype, np.floating):
        options = {**options, "keep_attrs": True}
    return lambda d: d.pad({dim: width}, **options)


def reindex(draw, ds):
    dim = dim_of(draw, ds)
    if dim not in ds.indexes or not ds.indexes[dim].is_unique:
        return lambda d: d
    labels = draw(st.lists(st.integers(-1, 6).map(lambda i: 10 * i), max_size=6))
    options = draw(st.sampled_from([{}, {"fill_value": 5}]))
    return lambda d: d.reindex({dim: labels}, **options)


def where(draw, ds):
    dim, limit = dim_of(draw, ds), draw(st.integers(0, 40))
    return lambda d: d.where(d[dim] > limit)


def transpose(draw, ds):
    order = draw(st.permutations(sorted(ds.sizes)))
    return lambda d: d.transpose(*order)


def join_itself(draw, ds):
    dim = dim_of(draw, ds)
    part = draw(st.slices(ds.sizes[dim]))
    return lambda d: xr.concat([d, d.isel({dim: part})], dim, data_vars="minimal", coords="minimal")


def join_new(draw, ds):
    if "run" in ds.dims:
        return lambda d: d.isel(run=0)
    return lambda d: xr.concat([d, d.shift({sorted(d.sizes)[0]: 1})], "run", coords="minimal")


def expand(draw, ds):
    if "new" in ds.dims:
        return lambda d: d.squeeze("new") if d.sizes["new"] == 1 else d.isel(new=-1)
    return lambda d: d.expand_dims(new=2)


def cast(draw, ds):
    dtype = draw(st.sampled_from(["f4", "f8"]))
    return lambda d: d.astype(dtype)


LAZY = [isel, isel, sel, shift, roll, pad, reindex, where, transpose, join_itself, join_new,
        expand, cast]  # fmt: skip


def check(ours, theirs):
    """Compare values, dtypes, coordinates and names."""
    assert set(ours.variables) == set(theirs.variables)
    for name in theirs.variables:
        assert ours[name].dims == theirs[name].dims, name
        assert ours[name].dtype == theirs[name].dtype, name
    xr.testing.assert_equal(ours, theirs)


@settings(COMMON, max_examples=30)
@given(st.data())
def test_any_program_without_reading(data):
    ours, theirs = data.draw(pairs())
    unread = True
    for _ in range(data.draw(st.integers(1, 4), label="operations")):
        if not theirs.sizes:
            break
        operation = data.draw(st.sampled_from(LAZY))
        unread &= all(theirs.sizes.values())  # of nothing, xarray makes numpy arrays
        program = operation(data.draw, theirs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                theirs = program(theirs)
            except (ValueError, KeyError, IndexError, NotImplementedError) as error:
                with pytest.raises(type(error)):
                    program(ours)
                continue
            ours = program(ours)
        assert virtual(ours) or not unread, operation.__name__
        check(ours, theirs)


@settings(COMMON, max_examples=60)
@given(packed(), st.sampled_from([2, 3]), st.sampled_from([RAW, BIG, ZLIB]))
def test_any_packing(case, zarr_format, pipeline):
    values, attributes = case
    array = virtual_array(
        values, 2, pipeline=pipeline, dims=("x",), attrs=json_attributes(attributes), path="v",
        zarr_format=zarr_format, fill_value=values.dtype.type(2),
    )  # fmt: skip
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "partial_read_bytes", 0)  # what is stored as it is is read by parts
        warnings.simplefilter("ignore")
        ours = open_virtual_dataset(array)
        theirs = xr.open_dataset(array, engine=VirtualZarrBackendEntrypoint)
        check(ours.isel(x=slice(1, None)), theirs.isel(x=slice(1, None)))
        again = xr.open_dataset(to_group(ours), engine=VirtualZarrBackendEntrypoint)
        np.testing.assert_array_equal(again["v"].values, theirs["v"].values)
        assert again["v"].dtype == theirs["v"].dtype
    assert isinstance(ours["v"].variable._data, duck.VirtualDuckArray)


MINIMAL = {"data_vars": "minimal", "coords": "minimal", "compat": "override"}
JOINS = {
    "concat": lambda a, b: xr.concat([a, b], "t", **MINIMAL),
    "concat all": lambda a, b: xr.concat([a, b], "t", data_vars="all", join="outer"),
    "by coords": lambda a, b: xr.combine_by_coords([b, a], **MINIMAL),
    "nested": lambda a, b: xr.combine_nested([[a], [b]], ["t", None], **MINIMAL),
    "align": lambda a, b: xr.align(a, b, join="outer")[1],
    "inner": lambda a, b: xr.align(a.isel(x=slice(1, None)), b, join="inner")[0],
    "merge": lambda a, b: xr.merge([a[["a"]], b.rename(a="b")[["b"]]], join="outer"),
    "new": lambda a, b: xr.concat([a, b.assign_coords(t=a.t.values)], "run", coords="minimal"),
    "broadcast": lambda a, b: xr.broadcast(a.drop_vars("lat"))[0],
    "sortby": lambda a, b: a.sortby("x", ascending=False),
    "mixed": lambda a, b: xr.concat([a, b.load()], "t", **MINIMAL),
    "float and int": lambda a, b: xr.concat([a[["n"]], b[["n"]].astype("f8") + 0.5], "t"),
}  # fmt: skip


@pytest.mark.parametrize("join", JOINS)
@settings(COMMON, max_examples=3)
@given(data=st.data())
def test_two_datasets(join, data):
    first, theirs_first = data.draw(pairs({"t": 3, "y": 4, "x": 3}))
    second, theirs_second = data.draw(pairs({"t": 2, "y": 4, "x": 3}, start=100))
    if join == "new":
        second, theirs_second = data.draw(pairs({"t": 3, "y": 4, "x": 3}, start=100))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, theirs = JOINS[join](first, second), JOINS[join](theirs_first, theirs_second)
    data_vars = [ours.variables[name]._data for name in ours.data_vars]
    assert all(isinstance(values, duck.VirtualDuckArray) for values in data_vars)
    check(ours, theirs)


def points(indices):
    return xr.DataArray(indices, dims="p")


READING = {
    "mean": lambda d: d.mean("x"),
    "arithmetic": lambda d: d * 2 + d.isel(x=0),
    "isnull": lambda d: d.isnull(),
    "points": lambda d: d.isel(y=points([0, 1, 1]), x=points([2, 0, 1])),
    "some points": lambda d: d.isel(x=xr.DataArray([[2, 0], [1, 1]], dims=("p", "q"))),
    "mask of values": lambda d: d.where(d.a > 5),
    "mask not along axes": lambda d: d.where(d.x > d.y),
    "fillna": lambda d: d.fillna(0),
    "stack": lambda d: d.stack(z=("y", "x")),
    "groupby": lambda d: d.groupby("x").sum(),
    "rolling": lambda d: d.rolling(t=2).mean(),
    "interp": lambda d: d.interp(x=[5, 15]),
    "coarsen": lambda d: d.coarsen(y=2).max(),
    "diff": lambda d: d.diff("t"),
    "cumsum": lambda d: d.cumsum("t"),
    "to_array": lambda d: d[["a"]].to_dataarray().to_dataset("variable"),
    "quantile": lambda d: d.quantile(0.5, "t"),
    "pad by reflection": lambda d: d.pad(x=1, mode="reflect"),
    "ffill": lambda d: d.shift(x=1).ffill("x"),
    "full_like": lambda d: xr.full_like(d, 3),
    "zeros_like": lambda d: xr.zeros_like(d) + xr.ones_like(d, dtype="i2"),
    "chunks": lambda d: (d.chunk(x=2) + 1).compute(),
}  # fmt: skip


NEEDS = {"ffill": "bottleneck", "interp": "scipy", "chunks": "dask"}


@pytest.mark.parametrize("program", READING)
@settings(COMMON, max_examples=2)
@given(data=st.data())
def test_what_reads(program, data):
    if program in NEEDS:
        pytest.importorskip(NEEDS[program])
    ours, theirs = data.draw(pairs({"t": 3, "y": 4, "x": 3}))
    ours, theirs = ours.shift(t=1).transpose("x", ...), theirs.shift(t=1).transpose("x", ...)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(READING[program](ours), READING[program](theirs))


def weather(path, start="2000-01-01", **attrs):
    random = np.random.default_rng(len(start))
    air = random.normal(280, 5, (4, 6, 8))
    air[1, :, 3] = np.nan
    times = np.datetime64(start, "ns") + np.arange(4) * np.timedelta64(6, "h")
    ds = xr.Dataset(
        {
            "air": (("time", "y", "x"), air.astype("f4"), {"units": "K", **attrs}),
            "packed": (("time", "y", "x"), air),
            "seen": ("time", times + np.timedelta64(7, "m")),
            "name": ("x", np.array([f"s{i}" for i in range(8)], object)),
            "flag": ("x", random.integers(0, 2, 8).astype(bool)),
        },
        coords={
            "time": times,
            "y": np.arange(6.0),
            "lon": (("y", "x"), random.normal(size=(6, 8))),
        },
    )
    packed = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -999}
    ds.to_netcdf(path, engine="h5netcdf", encoding={
        "air": {"chunksizes": (2, 6, 3), "zlib": True}, "packed": packed})  # fmt: skip
    return path


@pytest.fixture
def files(tmp_path):
    pytest.importorskip("h5netcdf")
    return [weather(tmp_path / "a.nc"), weather(tmp_path / "b.nc", "2000-01-02")]


class TestFiles:
    def test_equals_xarrays_own_engine(self, files):
        ours = open_virtual_dataset(files[0])
        for name in ("air", "packed", "lon"):
            assert isinstance(ours[name].variable._data, duck.VirtualDuckArray)
        xr.testing.assert_identical(ours, xr.open_dataset(files[0], engine="h5netcdf"))

    def test_joined_and_published(self, files, tmp_path):
        ours = xr.concat([open_virtual_dataset(file) for file in files], "time", coords="minimal",
                         data_vars="minimal", compat="override")  # fmt: skip
        theirs = xr.concat([xr.open_dataset(file, engine="h5netcdf") for file in files], "time",
                           coords="minimal", data_vars="minimal", compat="override")  # fmt: skip
        xr.testing.assert_identical(ours, theirs)
        group = ours.virtualzarr.to_group()
        for name in ("air", "packed", "lon"):
            assert group[name].manifest.canonical.all()
            assert not any(source.is_inline for source in group[name].manifest.sources)
        assert group["packed"].dtype == np.dtype("i2")
        ours.virtualzarr.publish(tmp_path / "refs.json")
        again = xr.open_dataset(tmp_path / "refs.json", engine=VirtualZarrBackendEntrypoint)
        xr.testing.assert_equal(again, theirs)
        assert again["air"].attrs == theirs["air"].attrs
        xr.testing.assert_identical(open_virtual_dataset(to_group(ours)).load(), again.load())

    def test_what_was_filled_in_stays_packed(self, files):
        ours = open_virtual_dataset(files[0])[["packed"]].shift(time=1).isel(x=3)
        group = to_group(ours)
        assert group["packed"].dtype == np.dtype("i2")
        assert group["packed"].fill_value == -999
        again = xr.open_dataset(group, engine=VirtualZarrBackendEntrypoint)
        xr.testing.assert_equal(again["packed"], ours["packed"].load())

    def test_different_packings_are_joined_unpacked(self, files, tmp_path):
        other = xr.open_dataset(files[1], engine="h5netcdf").load()
        other["packed"].encoding = {"dtype": "i4", "scale_factor": 1e-4, "_FillValue": -1}
        other.to_netcdf(tmp_path / "c.nc", engine="h5netcdf")
        paths = [files[0], tmp_path / "c.nc"]
        ours = xr.concat([open_virtual_dataset(path)[["packed"]] for path in paths], "time")
        theirs = xr.concat([xr.open_dataset(path, engine="h5netcdf")[["packed"]] for path in paths],
                           "time")  # fmt: skip
        assert isinstance(ours["packed"].variable._data, duck.VirtualDuckArray)
        xr.testing.assert_equal(ours, theirs)
        assert to_group(ours)["packed"].dtype == np.dtype("f8")

    def test_units_that_differ(self, files, tmp_path):
        other = weather(tmp_path / "d.nc", "2000-01-02", units="degC")
        with pytest.raises(MismatchError, match="units is 'degC'"):
            xr.concat([open_virtual_dataset(path) for path in (files[0], other)], "time")
        both = [open_virtual_dataset(path, check=False) for path in (files[0], other)]
        assert xr.concat(both, "time").sizes["time"] == 8

    def test_packing_that_differs_undecoded(self, files, tmp_path):
        other = xr.open_dataset(files[1], engine="h5netcdf").load()
        other["packed"].encoding["scale_factor"] = 0.02
        other.to_netcdf(tmp_path / "c.nc", engine="h5netcdf")
        both = [open_virtual_dataset(path, mask_and_scale=False)[["packed"]]
                for path in (files[0], tmp_path / "c.nc")]  # fmt: skip
        with pytest.raises(MismatchError, match="scale_factor"):
            xr.concat(both, "time")

    def test_without_decoding(self, files):
        for options in ({"decode_cf": False}, {"mask_and_scale": False}, {"decode_times": False}):
            ours = open_virtual_dataset(files[0], **options)
            theirs = xr.open_dataset(files[0], engine="h5netcdf", **options)
            ours, theirs = ours.drop_vars("name"), theirs.drop_vars("name")
            assert {k: v.dtype for k, v in ours.variables.items()} == {
                k: v.dtype for k, v in theirs.variables.items()
            }
            xr.testing.assert_equal(ours, theirs)


class TestArrays:
    @pytest.fixture
    def ds(self):
        values = numbers((4, 6))
        array = virtual_array(values, (2, 3), pipeline=ZLIB, dims=("y", "x"), path="a")
        return open_virtual_dataset(array)

    def test_loading(self, ds):
        loaded = ds.copy().load()
        assert isinstance(loaded["a"].variable._data, np.ndarray)
        assert isinstance(ds["a"].variable._data, duck.VirtualDuckArray)
        assert isinstance(ds.compute()["a"].variable._data, np.ndarray)

    def test_copies_and_pickles(self, ds):
        for again in (ds.copy(deep=True), pickle.loads(pickle.dumps(ds))):
            assert isinstance(again["a"].variable._data, duck.VirtualDuckArray)
            xr.testing.assert_identical(again, ds)

    def test_texts(self, ds):
        assert "virtual, 4 chunks" in repr(ds)
        assert "<Array a (4, 6) int32" in repr(ds["a"])

    def test_in_dask(self, ds):
        pytest.importorskip("dask")
        chunked = ds.chunk(y=3)
        np.testing.assert_array_equal(chunked["a"].mean("y").values, ds["a"].values.mean(0))

    def test_plotting(self, ds):
        pytest.importorskip("matplotlib").use("agg")
        assert ds["a"].plot() is not None

    def test_functions_of_numpy(self, ds):
        ours, values = ds["a"].variable._data, ds["a"].values
        for function in (
            lambda a: np.moveaxis(a, 0, -1),
            lambda a: np.swapaxes(a, 0, 1),
            lambda a: np.expand_dims(a, (0, -1)),
            lambda a: np.squeeze(np.expand_dims(a, 1)),
            lambda a: np.reshape(a, (4, 1, -1)),
            lambda a: np.stack([a, a + 0], -1),
            lambda a: np.stack([a, a], 1),
            lambda a: np.pad(a, ((1, 2), (0, 3)), constant_values=((1, 2), (3, 4))),
            lambda a: np.where(np.arange(6) > 2, a, 0),
            lambda a: np.where(np.arange(6) > 2, -1.5, a),
            lambda a: np.where(np.ones((3, 4, 6), bool), a, 0),
            lambda a: a.T,
            lambda a: np.concatenate([a, np.ones((1, 6))]),
            lambda a: a.reshape(6, 4),
            lambda a: np.concatenate([a, a], None),
            lambda a: a[np.ix_([0, 3], [5, 1])],
            lambda a: a[[1, 0], [5, 1]],
            lambda a: a[:, np.array([[1, 0], [5, 1]])],
            lambda a: np.sum(a, 0),
            lambda a: np.zeros_like(a),
            lambda a: abs(-a) ** 2,
        ):
            expected = function(values)
            result = np.asarray(function(ours))
            assert result.dtype == expected.dtype
            np.testing.assert_array_equal(result, expected)
        for wrong in (lambda a: np.concatenate([a, a[:, :1]]), lambda a: np.moveaxis(a, 5, 0)):
            with pytest.raises((ValueError, np.exceptions.AxisError)):
                wrong(ours)


@pytest.mark.parametrize(
    ("first", "second", "encodings"),
    [
        (["ab", "c"], ["longer", "t\u00e4xt"], ({}, {})),
        ([b"ab", b"c"], [b"longer", b"t"], ({}, {})),
        (np.array([1, 2], "i2"), np.array([100_000, 100_001], "i4"), ({}, {})),
        (np.array([1, 2], "f4"), np.array([3.1, 4.2]), ({}, {})),
        ([0.5, 1.0], [1.1, 1.2], ({"dtype": "i2", "scale_factor": 0.5}, {})),
        (
            np.array(["2000-01-01", "2000-01-02"], "M8[ns]"),
            np.array(["2000-01-03T06:30", "2200-01-04"], "M8[ns]"),
            (
                {"dtype": "i2", "units": "days since 2000-01-01"},
                {"dtype": "i4", "units": "minutes since 2000-01-01"},
            ),
        ),
    ],
)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_joined_coordinates_need_not_fit_into_the_encoding_of_the_first(
    tmp_path, first, second, encodings, zarr_format
):
    paths = [tmp_path / f"{i}.zarr" for i in range(2)]
    for path, values, encoding in zip(paths, (first, second), encodings, strict=True):
        dataset = xr.Dataset(coords={"x": np.asarray(values)})
        dataset["x"].encoding = dict(encoding)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dataset.to_zarr(path, zarr_format=zarr_format, consolidated=False)
    expected = xr.concat([xr.open_dataset(path, engine="virtualzarr") for path in paths], "x")
    joined = xr.concat([open_virtual_dataset(path) for path in paths], "x")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        joined.virtualzarr.publish(tmp_path / "a.json")
    found = xr.open_dataset(tmp_path / "a.json", engine="virtualzarr")
    assert found["x"].values.tolist() == expected["x"].values.tolist()


@pytest.mark.parametrize("values", [["ab", "c"], [b"ab", b"c"]])
def test_gaps_in_texts_of_one_length_are_refused(tmp_path, values):
    dataset = xr.Dataset({"s": ("x", np.array(values))}, coords={"x": [0, 1]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset.to_zarr(tmp_path / "a.zarr", consolidated=False)
    gaps = open_virtual_dataset(tmp_path / "a.zarr").reindex(x=[1, 2])
    with pytest.raises(UnsupportedError, match="gaps"):
        gaps.virtualzarr.publish(tmp_path / "a.json")


def test_variables_without_elements_are_published(tmp_path):
    xr.Dataset({"a": ("t", np.arange(4.0))}).to_netcdf(tmp_path / "a.nc")
    dataset = open_virtual_dataset(tmp_path / "a.nc").isel(t=slice(0, 0))
    dataset.assign(b=("t", np.zeros(0))).virtualzarr.publish(tmp_path / "a.json")
    with xr.open_dataset(tmp_path / "a.json", engine="virtualzarr") as read:
        assert dict(read.sizes) == {"t": 0}
        assert set(read.variables) == {"a", "b"}


@pytest.mark.parametrize(
    "encoding",
    [
        {"dtype": "float64"},
        {"_FillValue": -(2**60) - 1},
        {"dtype": "i2", "scale_factor": 0.01},
        {"dtype": "f8", "scale_factor": 1.0},
    ],
)
def test_integers_that_floats_would_round_are_published_as_they_are(tmp_path, encoding):
    values = np.array([2**60 + 1, -5, 2**53 + 1, -(2**63)])
    dataset = xr.Dataset({"a": ("t", values, {}, encoding)})
    dataset.virtualzarr.publish(tmp_path / "a.json")
    with xr.open_dataset(tmp_path / "a.json", engine="virtualzarr") as read:
        assert read["a"].dtype.kind == "i"
        assert read["a"].values.tolist() == values.tolist()


def test_times_whose_encoding_is_of_another_calendar_are_published(tmp_path):
    times = np.array(["2000-01-01", "2000-02-29"], "M8[ns]")
    encoding = {"units": "days since 1990-01-01", "calendar": "noleap"}
    dataset = xr.Dataset({"a": ("t", times, {}, encoding)})
    dataset.virtualzarr.publish(tmp_path / "a.json")
    with xr.open_dataset(tmp_path / "a.json", engine="virtualzarr") as read:
        assert read["a"].values.tolist() == times.tolist()


def test_what_xarray_cannot_encode_is_refused():
    cftime = pytest.importorskip("cftime")
    values = np.array([cftime.Datetime360Day(2000, 2, 30), float("nan")], object)
    with pytest.raises(UnsupportedError, match=r"xarray cannot encode it.*\[variable a"):
        to_group(xr.Dataset({"a": ("t", values)}))
