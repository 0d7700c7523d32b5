"""What each writer says in documents, as other readers open it: the same dataset as the source.

Sources of many formats go through `copy`, `publish` and the native form, in Zarr v2 and v3 where
there is a choice. xarray must open the result as it opens the source by its own engine, zarr-python
and TensorStore must open every array, and every document must be strict JSON.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.virtual.from_store import as_virtual

xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr", minversion="3.0")
netCDF4 = pytest.importorskip("netCDF4")
h5py = pytest.importorskip("h5py")
fsspec = pytest.importorskip("fsspec")

pytestmark = [
    pytest.mark.interop,
    # What xarray says of fill values that are no conforming ones is part of the sources.
    pytest.mark.filterwarnings("ignore"),
]

NAN = float("nan")
F4 = np.array([0, 1.5, -999, np.nan, np.inf, 2], "f4")


# ------------------------------------------------------------------------------- sources


def netcdf(path: Path, kind: str) -> None:
    """A netCDF file with every way of marking what is missing."""
    with netCDF4.Dataset(path, "w", format=kind) as file:
        file.set_auto_maskandscale(False)
        file.createDimension("x", 6)
        file.createDimension("text", 3)

        def variable(name, dtype, values, dims=("x",), fill=None, **attributes):
            made = file.createVariable(name, dtype, dims, fill_value=fill)
            made.setncatts(attributes)
            if values is not None:
                made[...] = values

        ints = np.array([0, 1, -32767, 5, -999, 7])
        variable("x", "f8", np.arange(6.0), axis="X")
        variable("plain", "f4", F4, valid_min=np.float32(0))
        variable("nan", "f4", F4, fill=np.float32(NAN))
        variable("filled", "f4", F4, fill=np.float32(-999), units="K")
        variable("large", "f4", F4, fill=np.float32(1e20))
        variable("missing", "f4", F4, missing_value=np.float32(-999))
        variable("both", "f8", F4, fill=-999.0, missing_value=-999.0)
        variable("integer", "i4", ints, flag_values=np.array([0, 1, 5], "i4"))
        variable("marked", "i4", ints, fill=np.int32(-999))
        variable("zero", "i2", ints, fill=np.int16(0))
        packed = {"scale_factor": 0.5, "add_offset": 10.0}
        variable("packed", "i2", ints, fill=np.int16(-32767), **packed)
        variable("packed4", "i2", ints, scale_factor=np.float64(0.25), missing_value=np.int16(5))
        variable("seen", "i1", [0, 1, -1, 3, 4, 5], fill=np.int8(-1), _Unsigned="true")
        variable("time", "i4", np.arange(6), units="hours since 2000-01-01", fill=np.int32(-1))
        variable("later", "f8", np.arange(6) / 2, units="days since 1999-01-01 12:00")
        variable("crs", "i4", 0, (), grid_mapping_name="latitude_longitude")
        variable("scalar", "f4", np.float32(-999), (), fill=np.float32(-999))
        variable("unwritten", "f4", None, fill=np.float32(-9))
        letters = np.array(list("abcdefghijklmnopqr"), "S1").reshape(6, 3)
        variable("letters", "S1", letters, ("x", "text"))
        if kind == "NETCDF4":
            variable("unsigned", "u2", [0, 1, 65535, 3, 4, 5], fill=np.uint16(65535))
            variable("signed", "u1", [0, 1, 255, 3, 200, 5], fill=np.uint8(255), _Unsigned="false")
            variable("long", "i8", 2**62 + np.arange(6), fill=np.int64(2**62 + 1))
        file.setncatts({"title": "made up", "level": np.int16(3), "step": np.float32(0.1)})


def hdf5(path: Path) -> None:
    """What netCDF does not have: fill values that are not `_FillValue`, and missing chunks."""
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", data=np.arange(6.0))
        x.make_scale("x")

        def variable(name, values, fill=None, chunks=(3,), **attributes):
            values = np.asarray(values)
            made = file.create_dataset(
                name, (6,), values.dtype, fillvalue=fill, chunks=chunks, compression="gzip"
            )
            made[: len(values)] = values
            made.dims[0].attach_scale(x)
            made.attrs.update(attributes)

        variable("other", np.arange(6, dtype="f4"), 7, _FillValue=np.float32(2))
        variable("half", np.arange(3, dtype="f4"), np.float32(-9), _FillValue=np.float32(-9))
        variable("gaps", np.arange(3, dtype="i4"), 4)
        variable("nans", np.arange(3, dtype="f8"), NAN, _FillValue=NAN)
        variable("holes", np.arange(3, dtype="f4"), 5, _FillValue=NAN)
        variable("wide", np.array([1, 1e20], "f4"), _FillValue=np.float64(1e20))
        file.create_dataset("crs", data=np.int32(0)).attrs["proj"] = "none"
        file.attrs["title"] = "made up"


def decoded():
    """A dataset for xarray to write: text, times, Booleans, complex numbers and gaps."""
    times = np.array(["2000-01-01", "NaT", "2000-01-03"], "M8[ns]")
    variables = {
        "air": (("x",), np.array([1, np.nan, 3], "f4"), {"units": "K", "range": [0.5, 2.0]}),
        "count": (("x",), np.array([0, 1, 2])),
        "flag": (("x",), np.array([True, False, True])),
        "when": (("x",), times),
        "name": (("x",), np.array(["a", "", "é"])),
        "wave": (("x",), np.array([1j, 0, 2], "c8")),
        "packed": (("x",), np.array([0.5, np.nan, 1])),
        "unsigned": (("x",), np.array([1, 2, np.nan])),
        "crs": ((), 0, {"code": 4326}),
        "zero": ((), 0.0),
    }
    dataset = xr.Dataset(variables, {"x": [0.0, 1, 2]}, {"title": "made up"})
    dataset["air"].encoding = {"_FillValue": np.float32(-999)}
    dataset["packed"].encoding = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -32767}
    dataset["unsigned"].encoding = {"dtype": "u1", "_FillValue": 255}
    return dataset


def zarr_of(path: Path, zarr_format: int) -> None:
    """A Zarr hierarchy as xarray writes it, with missing chunks."""
    dataset = decoded()
    encoding = {"air": {"chunks": (1,)}, "count": {"chunks": (2,)}}
    if zarr_format == 2:
        dataset = dataset.drop_vars("wave")
    dataset.to_zarr(path, zarr_format=zarr_format, encoding=encoding, consolidated=False)


def tiff(path: Path) -> None:
    """A GeoTIFF's nodata value, in an image of strips."""
    tifffile = pytest.importorskip("tifffile")
    extra = [(42113, "s", 0, "-999", True)]
    tifffile.imwrite(path, np.arange(-999, -975, dtype="i2").reshape(4, 6), extratags=extra)


def fits(path: Path) -> None:
    """A FITS image of packed numbers, some of them blank."""
    module = pytest.importorskip("astropy.io.fits")
    hdu = module.PrimaryHDU(np.array([[1, 2, -1], [4, 5, 6]], "i2"))
    hdu.header.update({"BLANK": -1, "BSCALE": 0.5, "BZERO": 10.0})
    hdu.writeto(path)


SOURCES = {
    "netcdf3": (lambda path: netcdf(path, "NETCDF3_64BIT_OFFSET"), "a.nc", "scipy"),
    "netcdf4": (lambda path: netcdf(path, "NETCDF4"), "a.nc", "netcdf4"),
    "hdf5": (hdf5, "a.h5", "h5netcdf"),
    "zarr2": (lambda path: zarr_of(path, 2), "a.zarr", "zarr"),
    "zarr3": (lambda path: zarr_of(path, 3), "a.zarr", "zarr"),
    "tiff": (tiff, "a.tif", None),
    "fits": (fits, "a.fits", None),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Each source, made once: its path, and what xarray's own engine makes of it."""
    folder, made = tmp_path_factory.mktemp("sources"), {}

    def source(name):
        if name not in made:
            write, file, engine = SOURCES[name]
            path = folder / name / file
            path.parent.mkdir()
            write(path)
            target = vz.virtualize(path) if engine is None else path
            with opened(target, engine or "virtualzarr") as dataset:
                made[name] = path, dataset.load()
        return made[name]

    return source


# ------------------------------------------------------------------------------- readers


def opened(target, engine):
    options = {"consolidated": False} if engine == "zarr" else {}
    return xr.open_dataset(target, engine=engine, **options)


def strict(text):
    """Parse JSON as readers do that know no NaN."""

    def refuse(token):
        raise AssertionError(f"{token} is no JSON")

    return json.loads(text, parse_constant=refuse)


def assert_strict(path: Path) -> None:
    """Every document below a path, or in a reference file, is strict JSON."""
    if path.is_file():
        for key, value in strict(path.read_text())["refs"].items():
            if key.rpartition("/")[2] in (
                ".zarray",
                ".zattrs",
                ".zgroup",
                ".zmetadata",
                "zarr.json",
            ):
                strict(value)
        return
    names = [p for p in path.rglob("*") if p.name == "zarr.json" or p.name.startswith(".z")]
    assert names
    for name in names:
        strict(name.read_text())


def assert_same(found, expected):
    """Datasets are identical but for what JSON does not tell: tuples, arrays and lists."""
    for dataset in (found, expected):
        dataset.load()
    xr.testing.assert_identical(plain(found), plain(expected))
    for name, variable in expected.variables.items():
        got = found[name].variable
        text = {got.dtype.kind, variable.dtype.kind} <= set("OUT")
        # Numbers of 32 bits in attributes are of 64 bits in JSON.
        floats = {got.dtype.kind, variable.dtype.kind} == {"f"} and "scale_factor" in got.encoding
        assert text or floats or got.dtype == variable.dtype, name


def plain(dataset):
    """The dataset with attributes as JSON has them."""
    dataset = dataset.copy()
    for holder in (dataset, *dataset.variables.values()):
        holder.attrs = {name: jsonable(value) for name, value in holder.attrs.items()}
    return dataset


def jsonable(value):
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    value = list(value) if isinstance(value, tuple) else value
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def store_of(references, **options):
    """References as fsspec shows them to zarr-python."""
    fs = fsspec.filesystem("reference", fo=str(references), asynchronous=True, **options)
    return zarr.storage.FsspecStore(fs, read_only=True, path="")


def assert_tensorstore_opens(path: Path) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    group = zarr.open_group(path, mode="r")
    driver = "zarr" if group.metadata.zarr_format == 2 else "zarr3"
    for name, array in group.arrays():
        if array.dtype.kind not in "biuf" or any(c is not None and "numcodecs" in str(type(c))
                                                 for c in array.compressors):  # fmt: skip
            continue
        kvstore = {"driver": "file", "path": f"{path / name}/"}
        found = tensorstore.open({"driver": driver, "kvstore": kvstore}).result().read().result()
        np.testing.assert_array_equal(np.asarray(found), array[...])


# ------------------------------------------------------------------------------- the matrix


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("source", SOURCES)
def test_copies(sources, source, zarr_format, tmp_path):
    path, expected = sources(source)
    vz.copy(vz.virtualize(path), tmp_path / "b.zarr", zarr_format=zarr_format)
    assert_strict(tmp_path / "b.zarr")
    assert_same(opened(tmp_path / "b.zarr", "zarr"), expected)
    assert_same(opened(tmp_path / "b.zarr", "virtualzarr"), expected)
    assert_tensorstore_opens(tmp_path / "b.zarr")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("source", SOURCES)
def test_references(sources, source, zarr_format, tmp_path):
    path, expected = sources(source)
    refs = tmp_path / "refs.json"
    vz.virtualize(path).publish(refs, zarr_format=zarr_format, copy=True)
    assert_strict(refs)
    for consolidated in (True, False):
        found = xr.open_dataset(store_of(refs), engine="zarr", consolidated=consolidated)
        assert_same(found, expected)
    assert_same(opened(refs, "virtualzarr"), expected)
    for _, array in zarr.open_group(store_of(refs), mode="r").arrays():
        array[...]


@pytest.mark.parametrize("source", SOURCES)
def test_parquet(sources, source, tmp_path):
    pytest.importorskip("pyarrow")
    path, expected = sources(source)
    refs = tmp_path / "refs.parq"
    vz.virtualize(path).publish(refs, copy=True)
    assert_strict(refs)
    assert_same(opened(refs, "virtualzarr"), expected)
    found = xr.open_dataset(store_of(refs), engine="zarr", consolidated=False)
    assert_same(found, expected)


@pytest.mark.parametrize("source", SOURCES)
def test_icechunk(sources, source, tmp_path):
    icechunk = pytest.importorskip("icechunk", minversion="2.0.5")
    path, expected = sources(source)
    repository = tmp_path / "a.icechunk"
    vz.virtualize(path).publish(repository, copy=True)
    storage = icechunk.local_filesystem_storage(str(repository))
    prefixes = icechunk.Repository.open(storage).config.virtual_chunk_containers or {}
    access = icechunk.containers_credentials(dict.fromkeys(prefixes))
    opened_one = icechunk.Repository.open(storage, authorize_virtual_chunk_access=access)
    store = opened_one.readonly_session("main").store
    assert_same(xr.open_dataset(store, engine="zarr", consolidated=False), expected)
    assert_same(opened(repository, "virtualzarr"), expected)


@pytest.mark.parametrize("source", SOURCES)
def test_native(sources, source, tmp_path):
    path, expected = sources(source)
    vz.virtualize(path).publish(tmp_path / "a.zarr")
    assert_strict(tmp_path / "a.zarr")
    assert_same(opened(tmp_path / "a.zarr", "virtualzarr"), expected)


@pytest.mark.parametrize("source", SOURCES)
def test_our_engine(sources, source):
    path, expected = sources(source)
    assert_same(opened(vz.virtualize(path), "virtualzarr"), expected)


# ------------------------------------------------------------------- what once went wrong


def floats(path, kind):
    """One and the same variable with a `_FillValue`, in some format."""
    values = np.array([1, np.nan, 3], "f4")
    dataset = xr.Dataset({"a": (("x",), values)})
    dataset["a"].encoding = {"_FillValue": np.float32(-999)}
    if kind == "netcdf":
        dataset.to_netcdf(path, engine="netcdf4")
    else:
        dataset.to_zarr(path, zarr_format=kind, consolidated=False)
    return path


def test_one_fill_value_in_three_formats_is_one(tmp_path):
    paths = [floats(tmp_path / f"{kind}", kind) for kind in ("netcdf", 2, 3)]
    joined = vz.concat([vz.virtualize(path) for path in paths], dim="x")
    expected = xr.Dataset({"a": (("x",), np.array([1, np.nan, 3] * 3, "f4"))})
    assert joined["a"][...].tolist() == [1, -999, 3] * 3
    for zarr_format in (2, 3):
        joined.publish(tmp_path / "refs.json", zarr_format=zarr_format, copy=True)
        assert_same(xr.open_dataset(store_of(tmp_path / "refs.json"), engine="zarr"), expected)


def test_fill_value_0_of_v2_is_not_null(tmp_path):
    kinds = {"zero": 0, "null": None}
    for name, fill in kinds.items():
        options = {"dtype": "i4", "zarr_format": 2, "fill_value": fill, "dimension_names": ("x",)}
        vz.create_array(tmp_path / name, shape=3, **options)[...] = [0, 1, 2]
    arrays = [vz.open(tmp_path / name) for name in kinds]
    with pytest.raises(vz.errors.MismatchError, match="_FillValue"):
        vz.concat(arrays)


def test_missing_chunks_that_are_stored_once_are_not_masked(tmp_path):
    """A chunk of fill values that stands for all missing ones needs no fill value beside it."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("a", (400_000,), "f8", chunks=(40_000,), fillvalue=7)
        made[:40_000] = np.random.default_rng(0).random(40_000)
        made.dims[0].label = "x"
    refs = tmp_path / "a.parq"
    vz.virtualize(tmp_path / "a.h5").publish(refs, copy=True)
    found = xr.open_dataset(store_of(refs), engine="zarr", consolidated=False)
    assert (found["a"].values[40_000:] == 7).all()


@pytest.mark.parametrize(
    ("target", "copied"),
    [("a.json", 0), ("2.json", 1), ("a.parq", 1), ("2.zarr", 1), ("3.zarr", 0), ("n.zarr", 0)],
)
@pytest.mark.parametrize("fill", [99, -1])
def test_masks_of_unsigned_big_endian_integers(tmp_path, target, copied, fill):
    """In Zarr v2, xarray looks for them with swapped bytes: not for what reads alike both ways."""
    with netCDF4.Dataset(tmp_path / "a.nc", "w", format="NETCDF3_CLASSIC") as file:
        file.set_auto_maskandscale(False)
        file.createDimension("x", 4)
        made = file.createVariable("a", "i2", ("x",), fill_value=fill)
        made._Unsigned = "true"
        made[:] = [99, -1, 2, -32768]
    path = tmp_path / target
    if target in ("2.zarr", "3.zarr"):
        vz.copy(tmp_path / "a.nc", path, zarr_format=int(target[0]))
    else:
        zarr_format = 2 if target == "2.json" else None
        report = vz.open(tmp_path / "a.nc").publish(path, copy=True, zarr_format=zarr_format)
        assert report.copied == (copied if fill == 99 else 0)
    expected = np.array([99, 65535, 2, 32768], "f4")
    expected[expected == fill % 65536] = np.nan
    options = {"engine": "virtualzarr"} if target == "n.zarr" else {"engine": "zarr"}
    source = path if "zarr" in target else store_of(path)
    with xr.open_dataset(source, **options) as found:
        np.testing.assert_array_equal(found["a"].values, expected)
    with xr.open_dataset(path, engine="virtualzarr") as found:
        np.testing.assert_array_equal(found["a"].values, expected)


def test_notes_name_what_became_text(tmp_path):
    array = vz.create_array(tmp_path / "a", shape=3, dtype="f4", dimension_names=("x",))
    document = json.loads((tmp_path / "a/zarr.json").read_text())
    document["attributes"] = {"range": [NAN, 1.0], "units": "K"}
    (tmp_path / "a/zarr.json").write_text(json.dumps(document))
    source = vz.Group({"limit": float("inf")}, {"a": vz.open(tmp_path / "a")})
    array[...] = 1
    reports = [
        vz.copy(source, tmp_path / "b.zarr"),
        source.publish(tmp_path / "refs.json"),
        source.publish(tmp_path / "c.zarr", reference_format="native"),
    ]
    for report in reports:
        assert [note.split(":")[0] for note in report.notes] == ["/", "a"]
        assert "limit" in repr(report)
    for name in ("b.zarr", "refs.json", "c.zarr"):
        assert_strict(tmp_path / name)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_gaps_are_missing(tmp_path, zarr_format):
    """Booleans and integers with gaps are floats, as in memory, and not True and 0."""
    from virtualzarr.integrations.xarray_datasets import open_virtual_dataset

    numbers = {
        "flag": ("x", np.array([True, False, True])),
        "count": ("x", np.arange(3, dtype="i4")),
        "packed": ("x", np.arange(3, dtype="i2"), {"scale_factor": 0.5}),
        "marked": ("x", np.arange(3, dtype="i2"), {"_FillValue": np.int16(7)}),
    }
    dataset = xr.Dataset(numbers, {"x": np.arange(3)})
    dataset.to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    gaps = {
        "reindexed": lambda d: d.reindex(x=[0, 1, 2, 3, 4, 5]),
        "shifted": lambda d: d.shift(x=1),
        "unstacked": lambda d: (
            d.assign_coords(y=("x", [0, 0, 1]), z=("x", [0, 1, 1]))
            .set_index(x=["y", "z"])
            .unstack("x")
        ),
    }
    for name, change in gaps.items():
        refs = tmp_path / f"{name}.json"
        changed = change(open_virtual_dataset(tmp_path / "a.nc"))
        if zarr_format == 2 and name != "unstacked":  # whose chunks are no longer of one length
            continue
        changed.virtualzarr.publish(refs, zarr_format=zarr_format, copy=True)
        assert_strict(refs)
        expected = change(opened(tmp_path / "a.nc", "netcdf4").load())
        for name_of, variable in expected.variables.items():
            want = variable.values.astype("f8") if variable.dtype.kind in "Ob" else variable.values
            engines = ("virtualzarr", "zarr") if name == "unstacked" else ("virtualzarr",)
            for engine in engines:
                target = refs if engine == "virtualzarr" else store_of(refs)
                with opened(target, engine) as found:
                    np.testing.assert_array_equal(found[name_of].values, want)


def test_texts_and_compounds_are_missing_for_us_in_v3(tmp_path):
    pair = np.dtype([("a", "i1"), ("b", "<f4")])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        letters = file.create_dataset("letters", data=np.array([b"ab", b"X"]))
        letters.attrs["_FillValue"] = np.bytes_(b"X")
        pairs = file.create_dataset("pair", data=np.zeros(2, pair))
        pairs.attrs["_FillValue"] = np.array((1, 2.5), pair)
    group = vz.virtualize(tmp_path / "a.h5")
    letters = vz.Group({}, {"letters": group["letters"]})
    report = letters.publish(tmp_path / "refs.json", zarr_format=3)
    assert any("_FillValue" in note for note in report.notes)
    vz.copy(group, tmp_path / "b.zarr", zarr_format=3)
    group.publish(tmp_path / "v2.json", zarr_format=2)
    assert "pair" in xr.open_dataset(store_of(tmp_path / "v2.json"), engine="zarr")
    for target in ("b.zarr", "v2.json"):
        assert vz.virtualize(tmp_path / target)["pair"].fill_value in (None, np.zeros((), pair))
        masked = as_virtual(vz.open(tmp_path / target)["pair"])
        assert masked.attrs["_FillValue"] == {"a": 1, "b": 2.5}
    options = {"engine": "h5netcdf", "drop_variables": ["pair"]}  # which xarray fails for
    with xr.open_dataset(tmp_path / "a.h5", **options) as expected:
        for target in (tmp_path / "refs.json", tmp_path / "b.zarr"):
            found = opened(vz.open(target), "virtualzarr")["letters"]
            assert found.values.tolist()[0] == expected["letters"].values.tolist()[0] == b"ab"
            np.testing.assert_equal(found.values[1], expected["letters"].values[1])
    zarr.open_group(tmp_path / "b.zarr", mode="r")["letters"][...]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_two_documents_that_disagree_are_an_error(tmp_path, zarr_format):
    refs = tmp_path / "refs.json"
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("x", 3)
        for name in "ab":
            file.createVariable(name, "f4", ("x",))[:] = [1, 2, 3]
    vz.virtualize(tmp_path / "a.nc").publish(refs, zarr_format=zarr_format)
    assert set(vz.open(refs)) == {"a", "b"}
    document = json.loads(refs.read_text())
    key = "a/.zattrs" if zarr_format == 2 else "a/zarr.json"
    own = json.loads(document["refs"][key])
    (own if zarr_format == 2 else own["attributes"])["scale_factor"] = 2.0
    document["refs"][key] = json.dumps(own)
    refs.write_text(json.dumps(document))
    with pytest.raises(
        vz.errors.BadReferenceError, match="consolidated metadata differ in"
    ) as info:
        vz.open(refs)["a"]
    assert info.value.variable == "a"
    assert set(vz.open(refs, on_error="warn")) == {"b"}


def test_sequences_do_not_take_their_group_with_them(tmp_path):
    """zarr-python has no data type for them, and opens no member of a group that has one."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("sequence", (2,), h5py.vlen_dtype("i4"))[0] = [1, 2]
        file["x"] = np.arange(3)
    group, refs = vz.virtualize(tmp_path / "a.h5"), tmp_path / "refs.json"
    for zarr_format in (2, 3):
        with pytest.raises(vz.errors.PublishError, match=r"sequence: .*no data type for such"):
            group.publish(refs, zarr_format=zarr_format, copy=True)
    with pytest.warns(vz.errors.SkippedVariableWarning, match="sequence"):
        report = group.publish(refs, on_error="warn")
    assert list(report.skipped) == ["sequence"]
    assert zarr.open_group(store_of(refs), mode="r")["x"][...].tolist() == [0, 1, 2]


@pytest.mark.parametrize("codec", ["base64", "categorize"])
def test_codecs_that_others_have_in_v2_only_are_copied_in_v3(tmp_path, codec):
    path, values = tmp_path / "a.zarr", [3, 4, 5]
    document = {"zarr_format": 2, "shape": [3], "chunks": [3], "fill_value": None, "order": "C"}
    if codec == "base64":
        document |= {"dtype": "<i4", "compressor": {"id": "base64"}, "filters": None}
    else:
        values = ["a", "b", "a"]
        labels = {"id": "categorize", "labels": ["a", "b"], "dtype": "|O", "astype": "|u1"}
        document |= {"dtype": "|O", "compressor": None, "filters": [labels]}
    path.mkdir()
    (path / ".zarray").write_text(json.dumps(document))
    vz.open(path, mode="r+")[...] = np.array(values, object if codec == "categorize" else "i4")
    group, refs = vz.virtualize(path), tmp_path / "refs.json"
    with pytest.raises(vz.errors.PublishError):
        group.publish(refs, zarr_format=3)
    assert group.publish(refs, zarr_format=3, copy=True).copied == 1
    found = zarr.open_group(store_of(refs), mode="r")["a"]
    assert np.asarray(found[...]).tolist() == values
    vz.copy(path, tmp_path / "b.zarr", zarr_format=3)
    assert np.asarray(zarr.open_array(tmp_path / "b.zarr")[...]).tolist() == values


def test_names_that_are_reserved_in_v3_only(tmp_path):
    name, refs = "__xarray_dataarray_variable__", tmp_path / "refs.json"
    xr.DataArray(np.arange(3.0), dims="x").to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    group = vz.virtualize(tmp_path / "a.nc")
    assert group.publish(refs).zarr_format == 2
    assert zarr.open_group(store_of(refs), mode="r")[name][...].tolist() == [0, 1, 2]
    with pytest.raises(vz.errors.PublishError, match=r"is reserved; rename it, or write Zarr v2"):
        group.publish(tmp_path / "b.json", zarr_format=3)
    vz.copy(group, tmp_path / "b.zarr", zarr_format=2)
    assert zarr.open_group(tmp_path / "b.zarr", mode="r")[name][...].tolist() == [0, 1, 2]


@pytest.mark.parametrize("align", [True, False])
def test_gaps_between_fields_are_no_fields(tmp_path, align):
    dtype = np.dtype([("a", "i1"), ("b", "<f8")], align=align)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["pair"] = np.array([(1, 2.5), (3, 4.5)], dtype)
    group, refs = vz.virtualize(tmp_path / "a.h5"), tmp_path / "refs.json"
    if align:
        with pytest.raises(vz.errors.PublishError, match="between the fields"):
            group.publish(refs, zarr_format=2)
    report = group.publish(refs, zarr_format=2, copy=True)
    assert report.copied == align
    found = zarr.open_group(store_of(refs), mode="r")["pair"][...]
    assert found.dtype.names == ("a", "b")
    assert found.tolist() == [(1, 2.5), (3, 4.5)]
