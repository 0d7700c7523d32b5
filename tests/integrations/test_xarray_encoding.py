"""Variables have the encoding that xarray's own engines give them, and can be written with it."""

from __future__ import annotations

import json

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.config import config
from virtualzarr.hierarchy.group import Group

xr = pytest.importorskip("xarray")
netCDF4 = pytest.importorskip("netCDF4")
h5netcdf = pytest.importorskip("h5netcdf")
zarr = pytest.importorskip("zarr")
from virtualzarr.integrations.xarray_backend import VirtualZarrBackendEntrypoint  # noqa: E402
from virtualzarr.integrations.xarray_datasets import open_virtual_dataset  # noqa: E402

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]
FILTERS = ("zlib", "zstd", "bzip2", "szip", "blosc_lz4", "blosc_zstd")


@pytest.fixture
def path(tmp_path):
    """A netCDF file with what its encoding can say."""
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 600)
        packed = file.createVariable("packed", "i2", ("time", "x"), zlib=True, complevel=3,
                                     shuffle=True, fletcher32=True, chunksizes=(2, 300),
                                     fill_value=-9)  # fmt: skip
        packed.scale_factor = 0.5
        packed[:] = np.arange(2400).reshape(4, 600) // 7
        for name in FILTERS:
            values = file.createVariable(name, "f4", ("x",), compression=name, chunksizes=(300,))
            values[:] = np.arange(600) // 7
        clouds = file.createEnumType("u1", "cloud_t", {"clear": 0, "cloudy": 1})
        file.createVariable("cloud", clouds, ("x",))[:] = 1
        file.createVariable("plain", "f8", ("x",))[:] = np.arange(600)
        file.createVariable("name", str, ("x",))[:] = np.array(["ab", "c", ""] * 200, object)
        file.createVariable("big", ">i4", ("x",), endian="big")[:] = np.arange(600)
    return path


def encodings(dataset):
    return {name: dict(variable.encoding) for name, variable in dataset.variables.items()}


class TestNetCDF:
    def test_are_those_of_the_engine_of_netcdf(self, path):
        ours = xr.open_dataset(path, engine="virtualzarr")
        theirs = xr.open_dataset(path, engine="netcdf4")
        expected = encodings(theirs)
        for name, encoding in encodings(ours).items():
            more = {"compression", "blosc_shuffle"} if "blosc" in name else set()
            assert encoding.keys() - expected[name].keys() == more
            for word, value in expected[name].items():
                assert encoding[word] == value, (name, word)
        assert ours.encoding == theirs.encoding
        assert ours["cloud"].encoding["dtype"].metadata == {
            "enum": {"clear": 0, "cloudy": 1}, "enum_name": "cloud_t"}  # fmt: skip
        theirs.close()

    def test_written_again(self, path, tmp_path):
        ours = xr.open_dataset(path, engine="virtualzarr")
        ours.to_netcdf(tmp_path / "b.nc", engine="netcdf4")
        again = xr.open_dataset(tmp_path / "b.nc", engine="virtualzarr")
        xr.testing.assert_identical(again, ours)
        before, after = encodings(ours), encodings(again)
        # netCDF4 takes a level of 0 for no compression, and xarray writes in native byte order.
        for name in before.keys() - {"szip", "big"}:
            for word in before[name].keys() - {"source"}:
                assert after[name][word] == before[name][word], (name, word)
        assert again.encoding["unlimited_dims"] == {"time"}
        assert (tmp_path / "b.nc").stat().st_size < 1.1 * path.stat().st_size

    def test_written_by_h5netcdf_and_to_zarr(self, path, tmp_path):
        ours = xr.open_dataset(path, engine="virtualzarr")[["packed", "plain", "name", "big"]]
        ours.to_netcdf(tmp_path / "b.nc", engine="h5netcdf")
        ours.chunk(x=450).to_zarr(tmp_path / "b.zarr")
        xr.testing.assert_equal(xr.load_dataset(tmp_path / "b.nc", engine="h5netcdf"), ours)
        xr.testing.assert_equal(xr.load_dataset(tmp_path / "b.zarr", engine="zarr"), ours)
        again = xr.open_dataset(tmp_path / "b.nc", engine="h5netcdf")
        assert again["packed"].encoding["complevel"] == 3

    def test_of_classic_files(self, tmp_path):
        with netCDF4.Dataset(tmp_path / "a.nc", "w", format="NETCDF3_CLASSIC") as file:
            file.createDimension("time", None)
            file.createVariable("v", "i4", ("time",))[:] = [1, 2]
        ours = xr.open_dataset(tmp_path / "a.nc", engine="virtualzarr")
        assert ours.encoding["unlimited_dims"] == {"time"}
        assert ours["v"].encoding["original_shape"] == (2,)

    def test_long_text_stays_as_it_is(self, tmp_path, monkeypatch):

        names = np.array(["a" * 100, "b"], object)
        xr.Dataset({"s": ("x", names)}).to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
        assert xr.open_dataset(tmp_path / "a.nc", engine="virtualzarr")["s"].dtype == "U100"
        monkeypatch.setattr(config.tuning, "xarray_text_bytes", 500)
        lazy = xr.open_dataset(tmp_path / "a.nc", engine="virtualzarr")
        assert lazy["s"].dtype == object
        lazy.to_netcdf(tmp_path / "b.nc", engine="netcdf4")
        again = xr.open_dataset(tmp_path / "b.nc", engine="netcdf4")
        assert again["s"].values.tolist() == names.tolist()


class TestZarr:
    @pytest.mark.parametrize("shards", [None, (8, 6)])
    def test_are_those_of_the_engine_of_zarr(self, tmp_path, shards):
        codec = zarr.codecs.BloscCodec(cname="zstd", clevel=3, shuffle="shuffle", typesize=8)
        encoding = {"a": {"chunks": (4, 3), "shards": shards, "compressors": [codec]}}
        ds = xr.Dataset({"a": (("y", "x"), np.arange(48.0).reshape(8, 6))})
        ds.to_zarr(tmp_path / "a.zarr", zarr_format=3, encoding=encoding)
        theirs = xr.open_dataset(tmp_path / "a.zarr", engine="zarr")["a"].encoding
        ours = xr.open_dataset(tmp_path / "a.zarr", engine="virtualzarr")
        for word in ("chunks", "compressors", "filters"):
            assert ours["a"].encoding[word] == theirs[word]
        assert ours["a"].encoding.get("shards") == theirs["shards"]
        ours.to_zarr(tmp_path / "b.zarr")
        again = zarr.open(tmp_path / "b.zarr")["a"]
        assert (again.chunks, again.shards) == ((4, 3), shards)
        assert again.compressors == theirs["compressors"]

    def test_references_of_netcdf_are_compressed_again(self, path, tmp_path):
        group = vz.virtualize(path)
        Group({}, {name: group[name] for name in ("zlib", "plain")}).publish(tmp_path / "a.json")
        refs = json.loads((tmp_path / "a.json").read_text())["refs"]
        assert json.loads(refs["zlib/.zarray"])["zarr_format"] == 2
        ours = xr.open_dataset(tmp_path / "a.json", engine="virtualzarr")
        assert ours["zlib"].encoding["zlib"] is True
        ours.to_netcdf(tmp_path / "b.nc")
        ours.to_zarr(tmp_path / "b.zarr")  # in another Zarr format
        for again in (xr.load_dataset(tmp_path / "b.nc"), xr.load_dataset(tmp_path / "b.zarr")):
            xr.testing.assert_equal(again, ours)
        assert xr.open_dataset(tmp_path / "b.nc")["zlib"].encoding["zlib"] is True


class TestSequences:
    """Elements of variable length that are no text."""

    @pytest.mark.parametrize(
        "attributes",
        [{}, {"units": "days since 2000-01-01"}, {"scale_factor": 2.0}, {"missing_value": 1.0}],
    )
    def test_are_given_as_they_are(self, tmp_path, attributes):
        rows = [np.array(row, "f8") for row in ([1, 2], [], [3])]
        with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
            file.createDimension("x", 3)
            kind = file.createVLType("f8", "row_t")
            ragged = file.createVariable("rows", kind, ("x",))
            for i, row in enumerate(rows):
                ragged[i] = row
            ragged.setncatts(attributes)
            file.createVariable("t", "f8", ("x",))[:] = [1, 2, 3]
            file["t"].units = "days since 2000-01-01"
        for opened in (
            xr.open_dataset(tmp_path / "a.nc", engine="virtualzarr"),
            xr.open_dataset(tmp_path / "a.nc", engine="virtualzarr", chunks={}),
            open_virtual_dataset(tmp_path / "a.nc"),
        ):
            assert "rows" in repr(opened)
            assert opened["t"].dtype.kind == "M"
            assert {k: opened["rows"].attrs[k] for k in attributes} == attributes
            for ours, row in zip(opened["rows"].values, rows, strict=True):
                np.testing.assert_array_equal(ours, row)
            np.testing.assert_array_equal(opened["rows"].isel(x=0).values.item(), rows[0])

    def test_decoding_of_the_others_can_be_chosen(self, tmp_path):
        with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
            file.createDimension("x", 1)
            file.createVariable("rows", file.createVLType("i4", "row_t"), ("x",))[0] = np.arange(2)
            file.createVariable("t", "f8", ("x",)).units = "days since 2000-01-01"
            file.createVariable("p", "i2", ("x",)).scale_factor = 2.0
        options = {"decode_times": False, "mask_and_scale": {"p": False}}
        ours = xr.open_dataset(tmp_path / "a.nc", engine="virtualzarr", **options)
        assert (ours["t"].dtype, ours["p"].dtype) == ("f8", "i2")


class TestText:
    def test_written_from_virtual_datasets(self, tmp_path):
        array = vz.create_array(
            tmp_path / "a.zarr/t", shape=(4,), chunks=(2,), dtype="str", dimension_names=("x",)
        )
        array[...] = np.array(["a", "", "longer", "æ"], object)
        ds = open_virtual_dataset(Group({}, {"t": array}))
        ds.to_netcdf(tmp_path / "a.nc", engine="netcdf4")
        ds.to_netcdf(tmp_path / "b.nc", engine="h5netcdf")
        ds.to_zarr(tmp_path / "b.zarr")
        for again in (
            xr.load_dataset(tmp_path / "a.nc", engine="netcdf4"),
            xr.load_dataset(tmp_path / "b.nc", engine="h5netcdf"),
            xr.load_dataset(tmp_path / "b.zarr", engine="zarr"),
            ds.astype(str).load(),
        ):
            assert again["t"].values.tolist() == ["a", "", "longer", "æ"]

    def test_chunks_chosen_by_dask(self, path):
        pytest.importorskip("dask")
        ds = xr.open_dataset(path, engine="virtualzarr", chunks="auto")
        assert ds["packed"].chunks is not None
        assert ds["name"].values.tolist() == ["ab", "c", ""] * 200


async def test_loading_in_the_background(path):
    ds = xr.open_dataset(path, engine="virtualzarr")
    if hasattr(ds, "load_async"):
        loaded = await ds.load_async()
        xr.testing.assert_identical(loaded, xr.load_dataset(path, engine="virtualzarr"))


def test_virtual_datasets_know_their_source_and_get_no_index_unasked(path):
    indexed = path.with_name("indexed.nc")
    xr.Dataset({"a": ("x", [1, 2])}, coords={"x": [3, 4]}).to_netcdf(indexed)
    ds = open_virtual_dataset(indexed)
    assert ds.encoding["source"] == str(indexed)
    assert list(ds.xindexes) == ["x"]
    bare = open_virtual_dataset(indexed, create_default_indexes=False)
    assert not bare.xindexes
    xr.testing.assert_equal(bare.drop_vars("x").load(), ds.drop_vars("x").load())
    assert bare["x"].values.tolist() == [3, 4]


def test_references_need_no_engine(path, tmp_path):
    group = vz.virtualize(path)
    for name in ("a.json", "a.parq", "native.zarr"):
        Group({}, {"plain": group["plain"]}).publish(tmp_path / name)
        assert VirtualZarrBackendEntrypoint().guess_can_open(str(tmp_path / name))
        assert VirtualZarrBackendEntrypoint().guess_can_open(tmp_path / name)
    ours = xr.open_dataset(tmp_path / "native.zarr")  # no engine but this one claims it
    xr.testing.assert_equal(ours, xr.open_dataset(path)[["plain"]])
    others = tmp_path / "others.zarr"
    xr.Dataset({"a": ("x", [1, 2])}).to_zarr(others, zarr_format=2)
    assert not VirtualZarrBackendEntrypoint().guess_can_open(others)
    assert not VirtualZarrBackendEntrypoint().guess_can_open(tmp_path)
    xr.Dataset({"a": ("x", [1, 2])}).to_zarr(tmp_path / "v3.zarr", zarr_format=3)
    assert not VirtualZarrBackendEntrypoint().guess_can_open(tmp_path / "v3.zarr")
