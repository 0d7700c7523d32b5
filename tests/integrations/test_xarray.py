"""The xarray engine gives what xarray's own engines give for the same files."""

from __future__ import annotations

import base64
import json
import pickle
import struct

import numpy as np
import pytest

import virtualzarr
from grids import RectilinearGrid, RegularGrid
from tests.integrations.helpers import metadata
from tests.references.kerchunk_files import hdf5_references
from virtualzarr.array import Array
from virtualzarr.errors import (
    NodeNotFoundError,
    SkippedVariableWarning,
    UnsupportedError,
    VirtualZarrError,
)
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Manifest, Source, Sources

xr = pytest.importorskip("xarray")
from virtualzarr.integrations.xarray_backend import (  # noqa: E402
    BackendArrayWrapper,
    VirtualZarrBackendEntrypoint,
    to_dataset,
)

pytestmark = pytest.mark.interop
ENGINE = VirtualZarrBackendEntrypoint


def weather():
    """A dataset with what CF knows: packed values, times, coordinates, missing values."""
    random = np.random.default_rng(0)
    air = random.normal(280, 5, (10, 6, 8))
    air[2, :, 3] = np.nan
    return xr.Dataset(
        {
            "air": (("time", "y", "x"), air.astype("f4"), {"units": "K"}),
            "packed": (("time", "y", "x"), air),
            "count": (("y", "x"), random.integers(-9, 9, (6, 8)).astype("i2")),
            "station": ((), np.int32(7)),
            "flag": ("x", random.integers(0, 2, 8).astype(bool)),
        },
        coords={
            "time": np.datetime64("2000-01-01", "ns") + np.arange(10) * np.timedelta64(6, "h"),
            "y": np.linspace(50, 55, 6),
            "lon": (("y", "x"), random.normal(size=(6, 8))),
        },
        attrs={"title": "made up", "version": 3},
    )


PACKED = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": np.int16(-999)}


def join(*lengths, cut=(2, 6, 8), dtype="f4"):
    """A virtual array of cells of several lengths along time, over inline bytes."""
    chunks, start = [], 0
    shape = (sum(lengths), *cut[1:])
    data = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    for length in lengths:
        chunks.append(data[start : start + length].tobytes())
        start += length
    grid = RectilinearGrid(shape, [list(lengths), *([n] for n in cut[1:])])
    offsets = np.cumsum([0, *map(len, chunks[:-1])]).reshape(-1, 1, 1)
    sizes = np.array([len(chunk) for chunk in chunks]).reshape(-1, 1, 1)
    sources = Sources([Source.inline(b"".join(chunks))])
    manifest = Manifest((len(lengths), 1, 1), sources, 0, offsets, sizes)
    meta = metadata(grid, dtype, dimension_names=("time", "y", "x"))
    return Array.from_manifest(meta, manifest, "air"), data


@pytest.mark.filterwarnings("ignore::UserWarning")
class TestZarr:
    @pytest.mark.parametrize("zarr_format", [2, 3])
    def test_equals_xarrays_own_engine(self, tmp_path, zarr_format):
        pytest.importorskip("zarr")
        path = tmp_path / "a.zarr"
        encoding = {"air": {"chunks": (4, 6, 3)}, "packed": PACKED}
        weather().to_zarr(path, zarr_format=zarr_format, encoding=encoding)
        theirs = xr.open_dataset(path, engine="zarr", chunks=None)
        ours = xr.open_dataset(path, engine=ENGINE)
        assert ours["air"].encoding["preferred_chunks"] == {"time": 4, "y": 6, "x": 3}
        assert ours["air"].encoding["chunks"] == (4, 6, 3)
        xr.testing.assert_identical(ours.load(), theirs.load())
        for name in theirs.variables:
            for key in ("scale_factor", "add_offset", "units", "dtype"):
                assert ours[name].encoding.get(key) == theirs[name].encoding.get(key)

    @pytest.mark.parametrize("zarr_format", [2, 3])
    def test_fill_values_of_every_kind(self, tmp_path, zarr_format):
        pytest.importorskip("zarr")
        ds = xr.Dataset({"f": ("n", [1.5, np.nan]), "i": ("n", [1.0, np.nan])})
        ds["c"] = ("n", [1 + 2j, complex(np.nan, 0)])
        encoding = {"f": {"_FillValue": -1e30}, "i": {"_FillValue": -7, "dtype": "i4"}}
        path = tmp_path / "a.zarr"
        ds.to_zarr(path, zarr_format=zarr_format, encoding=encoding)
        theirs = xr.open_dataset(path, engine="zarr", chunks=None).load()
        xr.testing.assert_identical(xr.open_dataset(path, engine=ENGINE).load(), theirs)

    def test_the_fill_value_of_v2_masks_and_that_of_v3_does_not(self, tmp_path):
        zarr = pytest.importorskip("zarr")
        for zarr_format, masked in ((2, True), (3, False)):
            path = tmp_path / f"{zarr_format}.zarr"
            group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
            array = group.create_array(
                "a", shape=(4,), chunks=(2,), dtype="i4", fill_value=5,
                **({"dimension_names": ["n"]} if zarr_format == 3 else {}),
            )  # fmt: skip
            if zarr_format == 2:
                array.attrs["_ARRAY_DIMENSIONS"] = ["n"]
            array[:2] = [1, 2]
            ours = xr.open_dataset(path, engine=ENGINE)["a"].values
            np.testing.assert_array_equal(ours, [1, 2, *([np.nan] * 2 if masked else [5, 5])])

    def test_strings(self, tmp_path):
        pytest.importorskip("zarr")
        ds = xr.Dataset(
            {"s": ("n", np.array(["a", "", "æøå"], object)), "u": ("n", ["x", "yy", ""])}
        )
        path = tmp_path / "a.zarr"
        ds.to_zarr(path, zarr_format=3)
        ours = xr.open_dataset(path, engine=ENGINE).load()
        assert ours["s"].values.tolist() == ["a", "", "æøå"]
        assert ours["u"].values.tolist() == ["x", "yy", ""]

    def test_members_that_cannot_be_opened_are_warned_about(self, tmp_path):
        zarr = pytest.importorskip("zarr")
        path = tmp_path / "a.zarr"
        xr.Dataset({"good": ("n", np.arange(3))}).to_zarr(path, zarr_format=3, consolidated=False)
        bad = zarr.open_group(path).create_array("bad", shape=(2,), dtype="i4")
        document = path / "bad" / "zarr.json"
        document.write_text(document.read_text().replace('"int32"', '"int31"'))
        assert bad.shape == (2,)
        with pytest.warns(SkippedVariableWarning, match="bad"):
            ds = xr.open_dataset(path, engine=ENGINE)
        assert list(ds.data_vars) == ["good"]
        with pytest.raises(VirtualZarrError, match="int31"):
            xr.open_dataset(path, engine=ENGINE, on_error="raise")


class TestHdf5:
    @pytest.mark.parametrize("writer", ["h5netcdf", "netcdf4"])
    def test_equals_xarrays_own_engine(self, tmp_path, writer):
        pytest.importorskip("h5netcdf")
        pytest.importorskip("netCDF4")
        path = tmp_path / "a.nc"
        zipped = {"zlib": True, "complevel": 3, "shuffle": True}
        encoding = {
            "air": {"chunksizes": (4, 6, 3), **zipped},
            "packed": {**PACKED, "chunksizes": (3, 3, 8), **zipped},
        }
        weather().to_netcdf(path, engine=writer, encoding=encoding, unlimited_dims=["time"])
        theirs = xr.open_dataset(path, engine="h5netcdf")
        ours = xr.open_dataset(path, engine=ENGINE)
        assert ours["air"].encoding["preferred_chunks"] == {"time": 4, "y": 6, "x": 3}
        xr.testing.assert_identical(ours.load(), theirs.load())

    def test_without_decoding(self, tmp_path):
        pytest.importorskip("h5netcdf")
        path = tmp_path / "a.nc"
        weather().to_netcdf(path, engine="h5netcdf", encoding={"packed": PACKED})
        for options in ({"decode_cf": False}, {"mask_and_scale": False}, {"decode_times": False}):
            theirs = xr.open_dataset(path, engine="h5netcdf", **options).load()
            ours = xr.open_dataset(path, engine=ENGINE, **options).load()
            xr.testing.assert_equal(ours, theirs)
            assert {k: v.dtype for k, v in ours.variables.items()} == {
                k: v.dtype for k, v in theirs.variables.items()
            }

    def test_strings(self, tmp_path):
        pytest.importorskip("h5netcdf")
        names = np.array(["Bergen", "", "Tromsø"], object)
        ds = xr.Dataset({"name": ("n", names), "code": ("n", np.array([b"ab", b"c", b""]))})
        path = tmp_path / "a.nc"
        ds.to_netcdf(path, engine="h5netcdf")
        theirs = xr.open_dataset(path, engine="h5netcdf").load()
        ours = xr.open_dataset(path, engine=ENGINE).load()
        assert ours["name"].values.tolist() == theirs["name"].values.tolist()
        assert ours["code"].values.tolist() == theirs["code"].values.tolist()

    def test_missing_chunks_are_the_files_fill_value_but_only_its_attribute_masks(self, tmp_path):
        h5py = pytest.importorskip("h5py")
        path = tmp_path / "a.h5"
        with h5py.File(path, "w") as file:
            a = file.create_dataset("a", (6,), "i4", chunks=(2,), fillvalue=-9)
            a[2:4] = [7, 8]
            a.attrs["_FillValue"] = np.int32(7)
        ours = xr.open_dataset(path, engine=ENGINE)["a"]
        np.testing.assert_array_equal(ours.values, [-9, -9, np.nan, 8, -9, -9])

    def test_axes_without_names(self, tmp_path):
        h5py = pytest.importorskip("h5py")
        path = tmp_path / "a.h5"
        with h5py.File(path, "w") as file:
            file["a"] = np.zeros((3, 4))
            file["b"] = np.zeros((4, 4, 3))
        ds = xr.open_dataset(path, engine=ENGINE)
        assert ds["a"].dims[1] == ds["b"].dims[0] != ds["b"].dims[1]
        assert ds["a"].dims[0] == ds["b"].dims[2]

    def test_groups(self, tmp_path):
        h5netcdf = pytest.importorskip("h5netcdf")
        assert h5netcdf.__version__
        path = tmp_path / "a.nc"
        weather().to_netcdf(path, engine="h5netcdf")
        weather()[["count"]].to_netcdf(path, mode="a", group="day/first", engine="h5netcdf")
        root = xr.open_dataset(path, engine=ENGINE)
        assert set(root.data_vars) == set(weather().data_vars)
        inner = xr.open_dataset(path, engine=ENGINE, group="/day/first")
        theirs = xr.open_dataset(path, engine="h5netcdf", group="/day/first")
        xr.testing.assert_identical(inner.load(), theirs.load())
        with pytest.raises(NodeNotFoundError, match="night"):
            xr.open_dataset(path, engine=ENGINE, group="night")
        with pytest.raises(UnsupportedError, match="is an array"):
            xr.open_dataset(path, engine=ENGINE, group="air")

    def test_trees(self, tmp_path):
        pytest.importorskip("h5netcdf")
        path = tmp_path / "a.nc"
        weather().to_netcdf(path, engine="h5netcdf")
        weather()[["count"]].to_netcdf(path, mode="a", group="day/first", engine="h5netcdf")
        tree = xr.open_datatree(path, engine=ENGINE)
        assert {node.path for node in tree.subtree} == {"/", "/day", "/day/first"}
        theirs = xr.open_datatree(path, engine="h5netcdf")
        assert tree.load().identical(theirs.load())
        below = xr.open_groups(path, engine=ENGINE, group="day")
        assert set(below) == {"/", "/first"}

    def test_refused_variables_are_warned_about(self, tmp_path):
        h5py = pytest.importorskip("h5py")
        path = tmp_path / "a.h5"
        with h5py.File(path, "w") as file:
            file["good"] = np.arange(3)
            kind = h5py.h5t.create(h5py.h5t.OPAQUE, 3)
            kind.set_tag(b"NUMPY:M8[s]")  # which has 8 bytes, not 3
            h5py.h5d.create(file.id, b"odd", kind, h5py.h5s.create_simple((2,)))
        with pytest.warns(SkippedVariableWarning, match="odd"):
            ds = xr.open_dataset(path, engine=ENGINE)
        assert list(ds.variables) == ["good"]
        with pytest.raises(VirtualZarrError, match="odd"):
            xr.open_dataset(path, engine=ENGINE, on_error="raise")


class TestReferences:
    @pytest.mark.parametrize("zarr_format", [None, 3])
    def test_published_equals_the_file(self, tmp_path, zarr_format):
        pytest.importorskip("h5netcdf")
        path, references = tmp_path / "a.nc", tmp_path / "a.json"
        encoding = {"air": {"chunksizes": (4, 6, 3), "zlib": True}, "packed": PACKED}
        weather().to_netcdf(path, engine="h5netcdf", encoding=encoding)
        virtualzarr.virtualize(path).publish(references, zarr_format=zarr_format)
        ours = xr.open_dataset(references, engine=ENGINE)
        xr.testing.assert_identical(ours.load(), xr.open_dataset(path, engine="h5netcdf").load())

    def test_of_kerchunk(self, tmp_path):
        path, references = tmp_path / "a.nc", tmp_path / "a.json"
        encoding = {"air": {"chunksizes": (4, 6, 3), "zlib": True}, "packed": PACKED}
        weather().to_netcdf(path, engine="h5netcdf", encoding=encoding)
        references.write_text(json.dumps(hdf5_references(path)))
        ours = xr.open_dataset(references, engine=ENGINE)
        theirs = xr.open_dataset(path, engine="h5netcdf").load()
        xr.testing.assert_equal(
            ours[["air", "packed", "time"]].load(), theirs[["air", "packed", "time"]]
        )

    def test_missing_chunks_are_not_masked(self, tmp_path):
        h5py = pytest.importorskip("h5py")
        path, references = tmp_path / "a.h5", tmp_path / "a.json"
        with h5py.File(path, "w") as file:
            a = file.create_dataset("a", (200_000,), "i4", chunks=(20_000,), fillvalue=-9)
            a[:20_000] = 7
            a.attrs["_FillValue"] = np.int32(7)
        virtualzarr.virtualize(path).publish(references)
        ours = xr.open_dataset(references, engine=ENGINE)["a"]
        assert np.isnan(ours[:20_000].values).all()
        assert (ours[20_000:].values == -9).all()


class TestTiff:
    def test_pages_with_short_strips(self, tmp_path):
        tifffile = pytest.importorskip("tifffile")
        data = np.random.default_rng(0).integers(0, 999, (3, 50, 64)).astype("u2")
        path = tmp_path / "a.tif"
        options = {"photometric": "minisblack", "metadata": {"axes": "ZYX"}}
        tifffile.imwrite(path, data, rowsperstrip=16, compression="zlib", **options)
        (variable,) = xr.open_dataset(path, engine=ENGINE, chunks={}).variables.values()
        np.testing.assert_array_equal(variable.values, data)
        assert (16, 16, 16, 2) in variable.chunks


class TestVirtual:
    def test_irregular_chunks_are_dasks_chunks(self):
        array, data = join(2, 5, 1, 4)
        group = Group({}, {"air": array})
        ds = xr.open_dataset(group, engine=ENGINE, chunks={})
        assert ds["air"].chunks == ((2, 5, 1, 4), (6,), (8,))
        assert ds["air"].encoding["preferred_chunks"] == {"time": (2, 5, 1, 4), "y": 6, "x": 8}
        np.testing.assert_array_equal(ds["air"].compute().values, data)
        np.testing.assert_array_equal(ds["air"].sum("time").compute().values, data.sum(0))

    def test_irregular_chunks_can_be_written_again(self, tmp_path):
        pytest.importorskip("h5netcdf")
        array, data = join(2, 5, 1, 4)
        ds = to_dataset(Group({}, {"air": array}))
        ds.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
        again = xr.open_dataset(tmp_path / "a.nc", engine="h5netcdf")
        np.testing.assert_array_equal(again["air"].values, data)

    def test_computing_in_other_processes(self):
        array, data = join(2, 5, 1, 4)
        ds = xr.open_dataset(Group({}, {"air": array}), engine=ENGINE, chunks={})
        assert ds["air"].values.shape == data.shape  # The cache of open files must pickle, too.
        result = ds["air"].mean().compute(scheduler="processes", num_workers=2)
        assert float(result) == pytest.approx(data.mean())

    @pytest.mark.parametrize("read_first", [False, True])
    def test_pickling(self, read_first):
        array, data = join(3, 1)
        ds = to_dataset(Group({"title": "t"}, {"air": array}))
        if read_first:
            assert ds["air"][0, 0, 0].values == data[0, 0, 0]
        again = pickle.loads(pickle.dumps(ds))
        np.testing.assert_array_equal(again["air"].values, data)
        assert again.attrs == {"title": "t"}

    def test_nothing_is_read_before_values_are_used(self):
        class Untouched:
            def locate(self, projection):
                raise AssertionError("read")

        array, _ = join(3, 1)
        ds = to_dataset(Group({}, {"air": Array(array.metadata, Untouched(), "air")}))
        part = ds["air"].isel(time=slice(1, 3), x=[3, 1])
        assert part.shape == (2, 6, 2)
        with pytest.raises(AssertionError, match="read"):
            part.load()

    @pytest.mark.parametrize(
        "selection",
        [
            {"time": 3},
            {"time": -1, "y": 2, "x": 0},
            {"time": slice(None, None, -1)},
            {"time": slice(8, 1, -3), "x": slice(1, None, 2)},
            {"time": [5, 0, 5], "x": [7, 2]},
            {"time": [1, 3], "y": 0},
            {"time": slice(4, 4)},
            {"time": []},
        ],
    )
    def test_selections(self, selection):
        array, data = join(2, 5, 1, 4)
        expected = xr.DataArray(data, dims=("time", "y", "x")).isel(selection)
        ours = to_dataset(array)["air"].isel(selection)
        xr.testing.assert_equal(ours.load().drop_attrs(), expected)

    def test_points(self):
        array, data = join(2, 5, 1, 4)
        plain = xr.DataArray(data, dims=("time", "y", "x"))
        points = {"time": ("p", [0, 11, 3, 3]), "x": ("p", [7, 0, 2, 2])}
        indexers = {dim: xr.DataArray(list(i), dims=d) for dim, (d, i) in points.items()}
        ours = to_dataset(array)["air"]
        xr.testing.assert_equal(ours.isel(indexers).load(), plain.isel(indexers))
        both = {"time": xr.DataArray([[0, 1], [11, 4]], dims=("p", "q"))}
        xr.testing.assert_equal(ours.isel(both).load(), plain.isel(both))

    def test_a_selection_of_a_selection(self):
        array, data = join(2, 5, 1, 4)
        ours = to_dataset(array)["air"].isel(time=slice(2, None, 2)).isel(time=[3, 0], x=-1)
        np.testing.assert_array_equal(ours.values, data[2::2][[3, 0]][..., -1])

    def test_empty_and_scalar_arrays(self):
        empty = metadata(RegularGrid((0, 3), (2, 3)), "f4")
        scalar = metadata(RegularGrid((), ()), "i4")
        data = np.int32(42).tobytes()
        group = Group({}, {
            "empty": Array.from_manifest(empty, Manifest.missing((0, 1))),
            "scalar": Array.from_manifest(scalar, Manifest.inline(data, ndim=0)),
        })  # fmt: skip
        for chunks in (None, {}):
            ds = xr.open_dataset(group, engine=ENGINE, chunks=chunks).load()
            assert ds["empty"].shape == (0, 3)
            assert ds["scalar"].item() == 42

    def test_variables_that_disagree_about_a_dimension(self):
        first, _ = join(2)
        second, _ = join(3)
        group = Group({}, {"a": first, "b": second})
        with pytest.raises(ValueError, match=r"'time'.*'b'.*'a'"):
            xr.open_dataset(group, engine=ENGINE)
        ds = xr.open_dataset(group, engine=ENGINE, drop_variables="a")
        assert ds.sizes["time"] == 3

    def test_phony_names_do_not_collide(self):
        meta = metadata(RegularGrid((2, 3), (2, 3)), "i1")
        named = meta.replace(dimension_names=("phony_dim_0", None))
        group = Group({}, {
            "a": Array.from_manifest(meta, Manifest.missing((1, 1))),
            "b": Array.from_manifest(named, Manifest.missing((1, 1))),
        })  # fmt: skip
        ds = to_dataset(group)
        assert ds["a"].dims == ("phony_dim_1", "phony_dim_2")
        assert ds["b"].dims == ("phony_dim_0", "phony_dim_2")


class TestFillValues:
    """Text that xarray writes for `_FillValue` in v3 documents."""

    def masked(self, dtype, attribute):
        meta = metadata(RegularGrid((1,), (1,)), dtype)
        meta = meta.replace(attributes={"_FillValue": attribute})
        array = Array.from_manifest(meta, Manifest.missing((1,)), "a")
        return to_dataset(array, mask_and_scale=False)["a"].attrs["_FillValue"]

    @pytest.mark.parametrize("number", [np.nan, -1e30, 0.1, np.inf])
    def test_base64_of_a_double(self, number):
        text = base64.standard_b64encode(struct.pack("<d", number)).decode()
        np.testing.assert_equal(self.masked("f4", text), number)
        np.testing.assert_equal(self.masked("c16", [text, text]), complex(number, number))

    @pytest.mark.parametrize(("value", "number"), [("NaN", np.nan), ("-Infinity", -np.inf), (3, 3)])
    def test_plain_numbers(self, value, number):
        np.testing.assert_equal(self.masked("f4", value), number)

    def test_byte_strings(self):
        assert self.masked("S2", base64.standard_b64encode(b"\0x").decode()) == b"\0x"
        assert self.masked("S2", "ab") == b"ab"
        assert self.masked("S4", "----") == b"----"


def test_which_targets_are_claimed(tmp_path):
    backend = VirtualZarrBackendEntrypoint()
    references = tmp_path / "refs.json"
    references.write_text('{"version": 1, "refs": {}}')
    other = tmp_path / "map.json"
    other.write_text('{"type": "FeatureCollection"}')
    assert backend.guess_can_open(Group())
    assert backend.guess_can_open(references)
    assert not backend.guess_can_open(other)
    for name in ("a.nc", "a.zarr", "a.tif", "missing.json", b"bytes"):
        assert not backend.guess_can_open(name)


def test_on_error_is_checked():
    with pytest.raises(ValueError, match="on_error"):
        xr.open_dataset(Group(), engine=ENGINE, on_error="ignore")


def test_a_single_array_has_no_groups():
    array, _ = join(2)
    with pytest.raises(UnsupportedError, match="single array"):
        xr.open_dataset(array, engine=ENGINE, group="inner")


def test_lazy_arrays_do_not_tempt_others_to_load_them():
    array, _ = join(2)
    assert not hasattr(BackendArrayWrapper(array), "array")


def test_codecs_whose_package_zarr_python_lacks_have_no_encoding(monkeypatch):
    """zarr-python raises ImportError for them where it only has to read their configuration."""
    from zarr.core.metadata import ArrayV3Metadata

    from virtualzarr.integrations import xarray_encoding

    def lacks(document):
        raise ImportError("install it")

    monkeypatch.setattr(ArrayV3Metadata, "from_dict", lacks)
    xarray_encoding._zarr_words.cache_clear()
    array = virtualzarr.create_array({}, data=np.arange(3), dimension_names=["x"])
    dataset = to_dataset(Group({}, {"a": array}))
    xarray_encoding._zarr_words.cache_clear()
    assert dataset["a"].values.tolist() == [0, 1, 2]
    assert "compressors" not in dataset["a"].encoding
