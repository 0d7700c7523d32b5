"""What we publish, others open; what others write, we open: reference files."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

import virtualzarr as vz
from grids import RectilinearGrid
from tests.references.arrays import (
    BIG,
    DECODERS,
    LITTLE,
    SHUFFLE4,
    VALUES,
    ZLIB,
    odd_array,
    virtual,
)
from tests.references.kerchunk.documents import zarray
from tests.references.kerchunk.test_vectors import CASES, SCHEMA
from tests.references.kerchunk_files import hdf5_references
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline
from virtualzarr.hierarchy.group import Group
from virtualzarr.ingest.detect import scan as scan_any
from virtualzarr.manifest import Manifest
from virtualzarr.metadata import BYTES, ArrayMetadata
from virtualzarr.references.kerchunk import scan
from virtualzarr.references.publish import publish

zarr = pytest.importorskip("zarr")
fsspec = pytest.importorskip("fsspec")
pytest.importorskip("zarr.storage", reason="zarr-python 3")

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore"),
]

ZARR = tuple(int(part) for part in zarr.__version__.split(".")[:2])
TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}


def zarr_open(refs, **options):
    """Open references as a user of fsspec and zarr-python does."""
    refs = refs if isinstance(refs, dict) else str(refs)
    fs = fsspec.filesystem("reference", fo=refs, asynchronous=True, **options)
    store = zarr.storage.FsspecStore(fs, read_only=True, path="")
    return zarr.open(store, mode="r")


def xarray_open(refs, **options):
    """Open references as a user of xarray does."""
    xr = pytest.importorskip("xarray")
    fs = fsspec.filesystem("reference", fo=str(refs), asynchronous=True)
    store = zarr.storage.FsspecStore(fs, read_only=True, path="")
    return xr.open_dataset(store, engine="zarr", **options)


def bits(values):
    """Values to compare to the bit; strings as text."""
    values = np.asarray(values)
    if values.dtype.kind in "OTU":
        return values.astype(object).tolist()
    return values.astype(values.dtype.newbyteorder("=")).tobytes()


def assert_read_alike(group: Group, refs) -> None:
    """zarr-python reads every value of every array as we do, and the attributes of groups."""
    theirs = zarr_open(refs)
    for path, node in group.members(None):
        other = theirs[path]
        if isinstance(node, Group):
            assert dict(other.attrs) == node.attrs
            continue
        assert other.shape == node.shape
        assert bits(other[...]) == bits(node[...]), path
    assert dict(theirs.attrs) == group.attrs


def collection(file: Path) -> Group:
    """Arrays of all the kinds that v2 documents can describe."""
    f4, nan = VALUES.astype("f4") - 3, float("nan")
    vlen = np.array(["a", "", "long text é"], object)
    members = {
        "plain": virtual(file, VALUES, (2, 3)),
        "big": virtual(file, VALUES, (2, 3), [BIG]),
        "zlib": virtual(file, VALUES, (2, 3), [LITTLE, ZLIB]),
        "shuffled": virtual(file, VALUES, (2, 3), [LITTLE, SHUFFLE4, ZLIB]),
        "f_order": virtual(file, VALUES, (2, 3), [TRANSPOSE, LITTLE]),
        "f_order_zlib": virtual(file, VALUES, (2, 3), [TRANSPOSE, BIG, ZLIB]),
        "zeros": virtual(file, VALUES * 0, (2, 3), fill_value=0),
        "zero": virtual(file, np.float64(0), (), fill_value=0),
        "scalar": virtual(file, np.int16(7), (), [BIG]),
        "scalar_missing": virtual(file, np.float32(2.5), (), fill_value=2.5, missing=((),)),
        "bool": virtual(file, VALUES % 2 == 0, (5, 7)),
        "complex": virtual(file, f4 * 1j + 2, (2, 3), [BIG]),
        "half": virtual(file, f4.astype("f2"), (2, 3)),
        "long": virtual(file, VALUES.astype("u8") << 50, (2, 3)),
        "bytes": virtual(file, np.array([b"", b"ab", b"xyz"], "S3"), 2, fill_value=b""),
        "text": virtual(file, np.array(["", "é", "abc"], "U3"), 2, fill_value=""),
        "time": virtual(file, np.arange(3).astype("M8[s]"), 2),
        "span": virtual(file, np.arange(3).astype("m8[ns]"), 2),
        "masked": virtual(
            file, f4, (2, 3), fill_value=nan, attributes={"_FillValue": nan}, missing=((1, 1),)
        ),
        "filled": virtual(
            file, f4, (2, 3), fill_value=-9, attributes={"_FillValue": -9.0}, missing=((0, 2),)
        ),
        "other_fill": virtual(file, f4, (2, 3), fill_value=-9, attributes={"_FillValue": 4.0}),
        "rounded": virtual(file, f4, (2, 3), attributes={"_FillValue": float(np.float32(1e20))}),
        "few_missing": virtual(file, VALUES, (2, 3), fill_value=-9, missing=((0, 1), (2, 2))),
        "empty": virtual(file, np.zeros((0, 3), "i2"), (2, 3)),
        "larger_chunk": virtual(file, VALUES, (50, 70), [LITTLE, ZLIB]),
        "void": virtual(file, VALUES[0].astype("i1").view("V7"), 1, [{"name": "bytes"}]),
        "strings": virtual(file, vlen, 2, [{"name": "vlen-utf8"}], fill_value=""),
    }  # fmt: skip
    for name, array in members.items():
        names = tuple(f"{name}_{axis}" for axis in range(array.ndim))
        metadata = array.metadata.replace(dimension_names=names)
        members[name] = Array.from_manifest(metadata, array.manifest, name)
    inline = members["plain"].metadata
    members["inline"] = Array.from_manifest(
        inline.replace(grid=type(inline.grid)((5, 7), (5, 7)), dimension_names=("a", "b")),
        Manifest.inline(VALUES.astype("<i4").tobytes(), 2),
    )
    nested = Group({"level": 2}, {"y": virtual(file, VALUES + 1, (5, 2)), "zlib": members["zlib"]})
    return Group({"title": "t"}, {**members, "g": Group({"level": 1}, {"h": nested})})


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_python_reads_what_we_publish(tmp_path, zarr_format):
    group = collection(tmp_path / "data.bin")
    report = publish(group, tmp_path / "refs.json", zarr_format=zarr_format)
    assert report.zarr_format == zarr_format
    assert_read_alike(group, tmp_path / "refs.json")
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(json.loads((tmp_path / "refs.json").read_text()), SCHEMA)
    assert_read_alike(group, json.loads((tmp_path / "refs.json").read_text()))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_xarray_masks_what_it_should_and_no_more(tmp_path, zarr_format):
    group = collection(tmp_path / "data.bin")
    publish(group, tmp_path / "refs.json", zarr_format=zarr_format)
    dataset = xarray_open(tmp_path / "refs.json").load()
    f4 = VALUES.astype("f4") - 3
    masked, filled = f4.copy(), f4.copy()
    masked[2:4, 3:6] = filled[0:2, 6:] = np.nan
    expected = {"masked": masked, "filled": filled, "other_fill": np.where(f4 == 4, np.nan, f4)}
    for name, array in group.arrays():
        if array.dtype.kind in "mM":
            continue
        got = dataset[name].values
        want = expected.get(name, array[...])
        assert bits(
            got.astype(want.dtype, casting="safe") if got.dtype.kind in "iuf" else got
        ) == bits(want), name
        assert dataset[name].dims == array.dims
    for consolidated in (True, False):
        again = xarray_open(tmp_path / "refs.json", consolidated=consolidated)
        assert set(again.variables) == set(dataset.variables)


def test_missing_chunks_read_as_the_fill_value_in_v3(tmp_path):
    missing = tuple((i,) for i in range(1, 2000))
    values = np.full(16_000, 3.5)
    x = virtual(tmp_path / "x", values, 8, fill_value=3.5, missing=missing, dimension_names=("x",),
                attributes={"_FillValue": -1.0})  # fmt: skip
    report = publish(Group({}, {"x": x}), tmp_path / "refs.json")
    assert (report.zarr_format, report.references) == (3, 1)
    assert (xarray_open(tmp_path / "refs.json").x.values == 3.5).all()


@pytest.mark.skipif(ZARR < (3, 2), reason="zarr-python reads rectilinear grids from 3.2 on")
@pytest.mark.parametrize("codecs", [[LITTLE], [TRANSPOSE, LITTLE, ZLIB]])
def test_rectilinear_grids(tmp_path, codecs):
    more = {"fill_value": 5, "missing": ((1, 1),), "dimension_names": ("y", "x")}
    x = virtual(tmp_path / "x", VALUES, [[1, 3, 1], [4, 3]], codecs, **more)
    assert isinstance(x.grid, RectilinearGrid)
    group = Group({}, {"x": x, "y": virtual(tmp_path / "y", VALUES, (2, 3), codecs)})
    assert publish(group, tmp_path / "refs.json").zarr_format == 3
    with zarr.config.set({"array.rectilinear_chunks": True}):
        assert_read_alike(group, tmp_path / "refs.json")


@pytest.mark.parametrize("case", ["v2", "v3", "several shapes"])
def test_notes_say_who_opens_what(tmp_path, case):
    """The engine kerchunk reads Zarr v2 only, and zarr-python no rectilinear grids unasked."""
    xr = pytest.importorskip("xarray")
    pytest.importorskip("kerchunk")
    grid = [[1, 3, 1], [4, 3]] if case == "several shapes" else (2, 3)
    x = virtual(tmp_path / "x", VALUES, grid, [LITTLE], dimension_names=("y", "x"))
    refs = tmp_path / "refs.json"
    report = publish(Group({}, {"x": x}), refs, zarr_format=3 if case == "v3" else None)
    text = " ".join(report.notes)
    assert ("engine kerchunk reads Zarr v2 only" in text) == (case != "v2")
    assert ("rectilinear_chunks" in text) == (case == "several shapes")
    if case == "v2":
        with xr.open_dataset(str(refs), engine="kerchunk") as found:
            np.testing.assert_array_equal(found.x.values, VALUES)
    else:
        with pytest.raises(FileNotFoundError, match="No group found"):
            xr.open_dataset(str(refs), engine="kerchunk")
    if case == "several shapes":
        with pytest.raises(ValueError, match="ectilinear"):
            xarray_open(refs)
    else:
        np.testing.assert_array_equal(xarray_open(refs).x.values, VALUES)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("decoder", DECODERS)
def test_copied_chunks(tmp_path, decoder, zarr_format):
    odd = odd_array(tmp_path / "data.bin", decoder)
    group = Group({}, {"x": odd, "y": virtual(tmp_path / "y", VALUES, (2, 3))})
    publish(group, tmp_path / "refs.json", copy=True, zarr_format=zarr_format)
    assert_read_alike(group, tmp_path / "refs.json")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_deep_hierarchies_are_whole_in_consolidated_metadata(tmp_path, zarr_format):
    def tree(depth, name):
        members = {f"{name}a": virtual(tmp_path / "x", VALUES[0], 7)}
        if depth:
            for i in range(3):
                members[f"{name}{i}"] = tree(depth - 1, name + str(i))
                members[f"{name}{i}x"] = virtual(tmp_path / "x", VALUES[0], 7)
        return Group({"name": name}, members)

    group = tree(2, "n")
    publish(group, tmp_path / "refs.json", zarr_format=zarr_format)
    assert_read_alike(group, tmp_path / "refs.json")
    theirs = zarr_open(tmp_path / "refs.json")
    found = {path for path, _ in theirs.members(max_depth=None)}
    assert found == {path for path, _ in group.members(None)}


def test_variable_length_bytes(tmp_path):
    grid = RectilinearGrid((3,), [[3]])
    pipeline = Pipeline([{"name": "vlen-bytes"}])
    metadata = ArrayMetadata((3,), BYTES, grid, pipeline, b"")
    data = pipeline.for_block((3,), BYTES).encode(np.array([b"a", b"", b"xyz"], object))
    group = Group({}, {"x": Array.from_manifest(metadata, Manifest.inline(bytes(data), 1))})
    publish(group, tmp_path / "refs.json")
    assert zarr_open(tmp_path / "refs.json")["x"][...].tolist() == [b"a", b"", b"xyz"]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_structured_elements(tmp_path, zarr_format):
    if zarr_format == 3 and ZARR < (3, 4):
        pytest.skip("zarr-python knows the data type struct from 3.4 on")
    values = np.zeros(3, [("a", "<i4"), ("b", "<f8")])
    values["a"] = [1, 2, 3]
    group = Group({}, {"x": virtual(tmp_path / "x", values, 2)})
    publish(group, tmp_path / "refs.json", zarr_format=zarr_format)
    assert zarr_open(tmp_path / "refs.json")["x"][...].tolist() == values.tolist()


def test_stored_arrays(tmp_path):
    root = zarr.open_group(str(tmp_path / "store"), mode="w", zarr_format=3)
    for name, encoding in {"a": "default", "b": "v2"}.items():
        keys = {"name": encoding, "separator": "."}
        array = root.create_array(
            name, shape=(5, 7), chunks=(2, 4), dtype="i4", fill_value=3, chunk_key_encoding=keys
        )
        array[...] = VALUES
    group = scan_any(tmp_path / "store")
    report = publish(group, tmp_path / "refs.json")
    assert report.references == 12
    assert_read_alike(group, tmp_path / "refs.json")
    again = scan(tmp_path / "refs.json")
    for name in "ab":
        assert np.array_equal(again[name][...], VALUES)


@pytest.mark.parametrize(
    "case", [c for c in CASES if any("values" in a for a in c.get("arrays", {}).values())],
    ids=lambda case: case["name"],
)  # fmt: skip
def test_the_vectors_are_what_zarr_python_reads(case):
    if "rectilinear" in case["name"] and ZARR < (3, 2):
        pytest.skip("zarr-python reads rectilinear grids from 3.2 on")
    with zarr.config.set({"array.rectilinear_chunks": True} if ZARR >= (3, 2) else {}):
        theirs = zarr_open(case["document"])
        for path, expected in case["arrays"].items():
            assert np.asarray(theirs[path][...]).tolist() == expected["values"]


# ------------------------------------------------------------------------ written by others


@pytest.fixture
def netcdf(tmp_path):
    """A NetCDF-4 file of a few kinds of variables, as xarray writes it."""
    xr = pytest.importorskip("xarray")
    pytest.importorskip("netCDF4")
    random = np.random.default_rng(0)

    def write(name="a.nc", start=0):
        dataset = xr.Dataset(
            {
                "air": (("time", "y", "x"), random.random((10, 5, 7), "f4")),
                "packed": (("time", "y"), random.random((10, 5))),
                "flag": (("time",), (np.arange(10) % 3).astype("i1")),
                "crs": ((), np.int32(0)),
            },
            coords={"time": np.arange(start, start + 10.0), "y": np.arange(5), "x": np.arange(7)},
            attrs={"title": "a test"},
        )
        encoding = {
            "air": {"zlib": True, "shuffle": True, "chunksizes": (4, 5, 7), "_FillValue": -9999.0},
            "packed": {
                "dtype": "i2",
                "scale_factor": 0.01,
                "_FillValue": -1,
                "chunksizes": (10, 5),
            },
        }
        dataset.to_netcdf(tmp_path / name, engine="netcdf4", encoding=encoding)
        return tmp_path / name

    return write


def assert_same_as_netcdf(group, path):
    netCDF4 = pytest.importorskip("netCDF4")
    with netCDF4.Dataset(path) as file:
        file.set_auto_maskandscale(False)
        assert set(file.variables) <= set(dict(group.arrays()))
        for name, variable in file.variables.items():
            assert bits(group[name][...]) == bits(variable[...]), name


@pytest.mark.parametrize("threshold", [0, 50, 10_000])
def test_kerchunk_of_one_file(netcdf, threshold):
    path = netcdf()
    refs = hdf5_references(path, inline_threshold=threshold)
    assert_same_as_netcdf(scan(refs), path)
    text = path.with_suffix(".json")
    ujson = pytest.importorskip("ujson")
    text.write_text(ujson.dumps(refs))
    assert_same_as_netcdf(scan(text), path)


def test_kerchunk_of_two_files(netcdf, tmp_path):
    combine = pytest.importorskip("kerchunk.combine")
    xr = pytest.importorskip("xarray")
    paths = [netcdf("a.nc"), netcdf("b.nc", start=10)]
    parts = [hdf5_references(path, inline_threshold=0) for path in paths]
    refs = combine.MultiZarrToZarr(
        parts, concat_dims=["time"], identical_dims=["x", "y"]
    ).translate()
    how = {"combine": "nested", "concat_dim": "time", "decode_cf": False, "compat": "override"}
    with xr.open_mfdataset(paths, data_vars="minimal", coords="minimal", **how) as expected:
        group = scan(refs)
        for name in ("flag", "time", "x"):
            assert bits(group[name][...]) == bits(expected[name].values), name


def test_kerchunk_combines_what_we_publish(netcdf, tmp_path):
    combine = pytest.importorskip("kerchunk.combine")
    parts = []
    for i, name in enumerate(("a.nc", "b.nc")):
        group = scan_any(netcdf(name, start=10 * i))
        publish(group, tmp_path / f"{name}.json")
        parts.append(json.loads((tmp_path / f"{name}.json").read_text()))
    refs = combine.MultiZarrToZarr(
        parts, concat_dims=["time"], identical_dims=["x", "y"]
    ).translate()
    assert scan(refs)["time"][...].tolist() == list(range(20))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_netcdf_through_us_and_xarray(netcdf, tmp_path, zarr_format):
    xr = pytest.importorskip("xarray")
    path = netcdf()
    publish(scan_any(path), tmp_path / "refs.json", zarr_format=zarr_format)
    with xr.open_dataset(path, engine="netcdf4") as expected:
        got = xarray_open(tmp_path / "refs.json")
        xr.testing.assert_identical(got.load(), expected.load())


def test_the_kerchunk_engine_of_xarray(netcdf, tmp_path):
    xr = pytest.importorskip("xarray")
    pytest.importorskip("kerchunk")
    path = netcdf()
    publish(scan_any(path), tmp_path / "refs.json")
    with xr.open_dataset(path, engine="netcdf4") as expected:
        got = xr.open_dataset(str(tmp_path / "refs.json"), engine="kerchunk")
        xr.testing.assert_identical(got.load(), expected.load())


@pytest.mark.parametrize("shape", [(64, 48), (60, 50), (3, 60, 50)])
@pytest.mark.parametrize(
    "options", [{"tile": (16, 16)}, {"tile": (16, 16), "compression": "zlib"}, {}]
)
def test_tifffile(tmp_path, shape, options):
    tifffile = pytest.importorskip("tifffile")
    values = np.random.default_rng(0).integers(0, 1000, shape, "u2")
    tifffile.imwrite(tmp_path / "a.tif", values, photometric="minisblack", **options)
    with tifffile.imread(tmp_path / "a.tif", aszarr=True) as store:
        store.write_fsspec(str(tmp_path / "a.json"), url=f"{tmp_path.as_uri()}/")
    document = json.loads((tmp_path / "a.json").read_text())
    for source in (tmp_path / "a.json", document):
        (array,) = [node for _, node in scan(source).arrays()]
        assert np.array_equal(array[...], values)


def test_tifffile_with_templates(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    values = np.arange(64 * 64, dtype="u2").reshape(64, 64)
    tifffile.imwrite(tmp_path / "a.tif", values, tile=(16, 16))
    with tifffile.imread(tmp_path / "a.tif", aszarr=True) as store:
        store.write_fsspec(
            str(tmp_path / "a.json"), url=f"{tmp_path.as_uri()}/", templatename="u", version=1
        )
    assert json.loads((tmp_path / "a.json").read_text())["templates"]
    (array,) = [node for _, node in scan(tmp_path / "a.json").arrays()]
    assert np.array_equal(array[...], values)


def test_virtualizarr_writes_and_reads(netcdf, tmp_path):
    virtualizarr = pytest.importorskip("virtualizarr")
    pytest.importorskip("obstore")
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr.parsers import HDFParser, KerchunkJSONParser

    path = netcdf()
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    parse = {"registry": registry, "loadable_variables": []}
    theirs = virtualizarr.open_virtual_dataset(f"file://{path}", parser=HDFParser(), **parse)
    theirs.vz.to_kerchunk(str(tmp_path / "theirs.json"), format="json")
    assert_same_as_netcdf(scan(tmp_path / "theirs.json"), path)

    group = scan_any(path)
    publish(group, tmp_path / "ours.json")
    read = KerchunkJSONParser()(f"file://{tmp_path}/ours.json", registry)
    for name in ("air", "packed", "flag"):
        ours = group[name].manifest
        manifest = read._group.arrays[name].manifest
        assert np.array_equal(manifest._offsets, np.asarray(ours.offset))
        assert np.array_equal(manifest._lengths, np.asarray(ours.length))


def test_gen_blocks_are_read_where_fsspec_reads_nothing(tmp_path):
    (tmp_path / "data").write_bytes(bytes(range(20)))
    document = {
        "version": 1,
        "refs": {".zgroup": '{"zarr_format":2}', "x/.zarray": zarray([4, 5], [1, 5])},
        "gen": [
            {"key": "x/{{i}}.0", "url": f"{tmp_path}/data", "offset": "{{i * 5}}", "length": "5",
             "dimensions": {"i": {"stop": 4}}}
        ],
    }  # fmt: skip
    assert np.array_equal(scan(document)["x"][...].reshape(-1), np.arange(20))
    assert not zarr_open(document)["x"][...].any()


def test_no_warnings_of_ours(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        publish(Group({}, {"x": virtual(tmp_path / "x", VALUES, (2, 3))}), tmp_path / "refs.json")
        scan(tmp_path / "refs.json")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_nested_groups_as_a_tree_of_xarray(tmp_path, zarr_format):
    xr = pytest.importorskip("xarray")
    names = {"dimension_names": ("y", "x")}
    inner = Group({"k": 1}, {"v": virtual(tmp_path / "v", VALUES, (2, 3), **names)})
    group = Group({}, {"u": virtual(tmp_path / "u", VALUES, (5, 7), **names), "g": inner})
    publish(group, tmp_path / "refs.json", zarr_format=zarr_format)
    fs = fsspec.filesystem("reference", fo=str(tmp_path / "refs.json"), asynchronous=True)
    store = zarr.storage.FsspecStore(fs, read_only=True, path="")
    tree = xr.open_datatree(store, engine="zarr")
    assert np.array_equal(tree["g/v"].values, VALUES)
    assert np.array_equal(tree["u"].values, VALUES)
    assert tree["g"].attrs == {"k": 1}


@pytest.mark.parametrize("chunks", [(2, 4), [[], [4]], [[2, 2], [4]], [[2, 5], [1, 3]]])
@pytest.mark.parametrize("target", ["refs2.json", "refs3.json", "refs.parq", "refs.zarr"])
def test_axes_of_length_zero(tmp_path, chunks, target):
    options = {"shape": (0, 4), "dtype": "f4", "chunks": chunks, "dimension_names": ["t", "y"]}
    stored = vz.create_group(tmp_path / "stored.zarr")
    stored.create_array("x", **options)
    stored.create_array("y", data=np.arange(4), dimension_names=["y"])
    formats = {"refs2.json": 2, "refs3.json": 3}
    stored.publish(tmp_path / target, zarr_format=formats.get(target))
    assert vz.open(tmp_path / target)["x"][...].shape == (0, 4)
    if target == "refs.zarr":  # others do not know the native form
        return
    assert zarr_open(tmp_path / target)["x"][...].shape == (0, 4)
    dataset = xarray_open(tmp_path / target, consolidated=False).load()
    assert dict(dataset.sizes) == {"t": 0, "y": 4}
    more = vz.create_group(tmp_path / "more.zarr")
    more.create_array("x", **options | {"shape": (3, 4), "chunks": (2, 4)})[...] = 7
    more.create_array("y", data=np.arange(4), dimension_names=["y"])
    vz.append(tmp_path / target, tmp_path / "more.zarr", "t")
    assert zarr_open(tmp_path / target)["x"][...].tolist() == [[7] * 4] * 3


@pytest.mark.parametrize("target", ["a.json", "a.zarr"])
def test_numbers_that_are_cast_are_stored_as_others_read_them(tmp_path, target):
    """zarr-python lacks the codec `cast_value`, or the package that it needs for it."""
    parts = []
    for name in ("one", "two"):
        np.save(tmp_path / f"{name}.npy", np.arange(6, dtype="i2"))
        parts.append(vz.open(tmp_path / f"{name}.npy")["data"])
    group = Group({}, {"a": vz.concat(parts, dtype="f8")})
    assert "cast_value" in [codec.name for codec in group["a"].metadata.pipeline.codecs]
    path = tmp_path / target
    if target == "a.zarr":
        vz.copy(group, path)
        found = zarr.open(path, mode="r")
    else:
        with pytest.raises(vz.errors.PublishError, match="cast_value"):
            group.publish(path)
        assert group.publish(path, copy=True).copied == 2
        found = zarr_open(path)
    np.testing.assert_array_equal(found["a"][...], np.tile(np.arange(6.0), 2), strict=True)
