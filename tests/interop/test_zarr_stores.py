"""Stores that zarr-python and TensorStore wrote, read bit for bit as they read them themselves."""

from __future__ import annotations

import itertools
import json

import numcodecs
import numpy as np
import pytest

import virtualzarr as vz

zarr = pytest.importorskip("zarr")
pytest.importorskip("zarr.storage", reason="zarr-python 3")
from zarr import codecs as zc  # noqa: E402
from zarr.codecs import numcodecs as zn  # noqa: E402

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]

ZARR = tuple(int(part) for part in zarr.__version__.split(".")[:2])
RECORD = np.dtype([("a", "<i2"), ("b", ">f8"), ("c", "S3")])
NUMBERS = ["i1", "u1", "<i2", ">i2", "<u4", ">i4", "<i8", ">u8", "<f2", "<f4", ">f4", "<f8", ">f8"]
DTYPES = [
    *NUMBERS, "?", "<c8", ">c16", "<M8[ns]", ">M8[s]", "<m8[10us]", "S5", "V3", "<U3", ">U3",
    RECORD, np.dtype([("a", "u1")]),
]  # fmt: skip
LAYOUTS = [
    ((), ()), ((7,), (3,)), ((7,), (10,)), ((0,), (4,)), ((5, 6), (2, 4)), ((3, 0), (2, 2)),
    ((3, 4, 5), (2, 3, 2)),
]  # fmt: skip


def values(dtype, shape, seed=0):
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "SU":
        words = np.array(["", "a", "é€" if dtype.kind == "U" else "bc", "xyz"], dtype)
        return np.asarray(words[rng.integers(0, 4, shape)], dtype)
    if dtype.kind == "O":
        return np.array(["x" * (i % 4) + "é" for i in range(int(np.prod(shape)))], dtype).reshape(
            shape
        )
    raw = rng.integers(0, 3, (int(np.prod(shape)), dtype.itemsize), dtype="u1")
    return np.frombuffer(raw.tobytes(), dtype).reshape(shape).copy()


def check(path, data, reference, what):
    """Read all and some of an array, and compare bits."""
    array = vz.open(path)
    result = np.asarray(array)
    if data.dtype.hasobject:
        assert result.tolist() == data.tolist() == np.asarray(reference).tolist(), what
        return
    expected = np.asarray(reference).astype(result.dtype)
    assert result.shape == expected.shape == data.shape, what
    assert result.dtype == data.dtype.newbyteorder("=") or data.dtype.names, what
    assert result.tobytes() == expected.tobytes() == data.astype(result.dtype).tobytes(), what
    if data.ndim and data.size:
        part = (slice(None, None, -2), ..., slice(1, None))[: 3 if data.ndim > 1 else 2]
        assert array[part].tobytes() == expected[part].tobytes(), what


def refused_by_writer(make, data):
    """Write, unless the writer itself does not support the combination."""
    try:
        array = make()
        if data.size:
            array[...] = data
        return array
    except (ValueError, TypeError, KeyError, NotImplementedError):
        return None


V2 = {
    "none": {"compressors": None},
    "zlib": {"compressors": numcodecs.Zlib(3)},
    "gzip": {"compressors": numcodecs.GZip(3)},
    "bz2": {"compressors": numcodecs.BZ2(1)},
    "lzma": {"compressors": numcodecs.LZMA()},
    "lz4": {"compressors": numcodecs.LZ4()},
    "zstd": {"compressors": numcodecs.Zstd(3, checksum=True)},
    "blosc": {"compressors": numcodecs.Blosc()},
    "blosc bits": {"compressors": numcodecs.Blosc("zstd", 5, 2)},
    "blosc auto": {"compressors": numcodecs.Blosc("blosclz", 5, -1)},
    "shuffle": {"filters": [numcodecs.Shuffle(4)], "compressors": numcodecs.Zlib(1)},
    "fletcher32": {"filters": [numcodecs.Fletcher32()], "compressors": numcodecs.Zlib(1)},
    "crc32": {"filters": [numcodecs.CRC32(location="end")], "compressors": None},
    "crc32c": {"filters": [numcodecs.CRC32C()], "compressors": None},
    "adler32": {"filters": [numcodecs.Adler32()], "compressors": None},
    "jenkins": {"filters": [numcodecs.JenkinsLookup3()], "compressors": None},
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_v2(tmp_path, dtype):
    combinations = [
        *itertools.product([LAYOUTS[4]], "CF", ".", V2),
        *itertools.product(LAYOUTS, "CF", "/", ["none"]),
    ]
    written = 0
    for i, (layout, order, separator, codec) in enumerate(combinations):
        data = values(dtype, layout[0], i)
        array = refused_by_writer(
            lambda i=i, layout=layout, order=order, separator=separator, codec=codec:
            zarr.create_array(
                tmp_path / str(i), shape=layout[0], chunks=layout[1], dtype=np.dtype(dtype),
                order=order, zarr_format=2, **V2[codec],
                chunk_key_encoding={"name": "v2", "separator": separator},
            ), data)  # fmt: skip
        if array is not None:
            written += 1
            check(tmp_path / str(i), data, array[...], (layout, order, separator, codec))
    assert written > 25


FILTERS = {
    "delta": lambda d: [numcodecs.Delta(d)],
    "delta, wider": lambda d: [numcodecs.Delta(d, astype=f"{d[0]}i8" if d[0] in "<>" else "<i8")],
    "scaled": lambda d: [numcodecs.FixedScaleOffset(offset=1, scale=10, dtype=d)],
    "scaled to bytes": lambda d: [numcodecs.FixedScaleOffset(0, 1, d, astype="u1")],
    "scaled to big endian": lambda d: [numcodecs.FixedScaleOffset(0, 1, d, astype=">i2")],
    "quantized": lambda d: [numcodecs.Quantize(2, d)],
    "rounded": lambda d: [numcodecs.BitRound(5)],
    "cast": lambda d: [numcodecs.AsType(">f8", d)],
    "cast, then delta": lambda d: [numcodecs.AsType(">i8", d), numcodecs.Delta(">i8")],
    "delta, then shuffle": lambda d: [numcodecs.Delta(d), numcodecs.Shuffle(np.dtype(d).itemsize)],
}


@pytest.mark.parametrize("name", FILTERS)
def test_v2_filters(tmp_path, name):
    written = 0
    combinations = itertools.product(NUMBERS, LAYOUTS[1:6:3], "CF", [None, numcodecs.Zlib(1)])
    for i, (dtype, layout, order, compressor) in enumerate(combinations):
        data = np.random.default_rng(i).integers(0, 3, layout[0]).astype(dtype)
        array = refused_by_writer(
            lambda i=i, dtype=dtype, layout=layout, order=order, compressor=compressor:
            zarr.create_array(
                tmp_path / str(i), shape=layout[0], chunks=layout[1], dtype=np.dtype(dtype),
                order=order, zarr_format=2, filters=FILTERS[name](dtype), compressors=compressor,
            ), data)  # fmt: skip
        if array is not None:
            written += 1
            reference = array[...]
            assert vz.open(tmp_path / str(i))[...].tobytes() == reference.astype(
                data.dtype.newbyteorder("=")).tobytes(), (dtype, layout, order)  # fmt: skip
    assert written > 10


V3 = {
    "none": [],
    "gzip": [zc.GzipCodec(level=2)],
    "zstd": [zc.ZstdCodec(level=1, checksum=True)],
    "blosc": [zc.BloscCodec()],
    "blosc bits": [zc.BloscCodec(cname="zstd", shuffle="bitshuffle")],
    "crc32c": [zc.Crc32cCodec()],
    "gzip, then crc32c": [zc.GzipCodec(), zc.Crc32cCodec()],
    "crc32c, then gzip": [zc.Crc32cCodec(), zc.GzipCodec()],
    "zlib": [zn.Zlib(level=1)],
    "bz2": [zn.BZ2(level=1)],
    "lzma": [zn.LZMA()],
    "lz4": [zn.LZ4()],
    "shuffle": [zn.Shuffle(elementsize=2), zn.Zlib(level=1)],
    "fletcher32": [zn.Fletcher32()],
    "adler32": [zn.Adler32()],
}
KEYS = list(itertools.product(["default", "v2"], "/."))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_v3(tmp_path, dtype):
    native = np.dtype(dtype).newbyteorder("=")
    ordered = native.kind not in "SVb" and native.itemsize > 1
    combinations = [
        *itertools.product([LAYOUTS[6]], ["big"], ["mixed"], V3),
        *itertools.product(LAYOUTS, ["little", "big"], [None, "reversed"], ["none"]),
    ]
    written = 0
    for i, (layout, endian, axes, codec) in enumerate(combinations):
        key = KEYS[i % 4]
        options = {"compressors": V3[codec] or None}
        order = {"mixed": (2, 0, 1), "reversed": tuple(range(len(layout[0])))[::-1]}.get(axes)
        if order and len(order) > 1:
            options["filters"] = [zc.TransposeCodec(order=order)]
        if ordered:
            options["serializer"] = zc.BytesCodec(endian=endian)
        data = values(native, layout[0], i)
        array = refused_by_writer(
            lambda i=i, layout=layout, key=key, options=options: zarr.create_array(
                tmp_path / str(i), shape=layout[0], chunks=layout[1], dtype=native, zarr_format=3,
                chunk_key_encoding={"name": key[0], "separator": key[1]}, **options,
            ), data)  # fmt: skip
        if array is not None:
            written += 1
            check(tmp_path / str(i), data, array[...], (layout, endian, axes, codec))
    assert written > 30


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_strings(tmp_path, zarr_format, layout):
    data = values(object, layout[0])
    array = zarr.create_array(
        tmp_path / "a", shape=layout[0], chunks=layout[1], dtype=str, zarr_format=zarr_format
    )
    if data.size:
        array[...] = data
    check(tmp_path / "a", data, array[...], layout)


FILLS = [
    ("<f4", np.nan), ("<f8", -0.0), (">f8", np.inf), ("<f2", -np.inf),
    ("<c8", complex(np.nan, -0.0)), ("<i8", -(2**63)), (">u8", 2**64 - 1), ("?", True),
    ("<M8[s]", "NaT"), ("<m8[ns]", 5),
    ("S4", b"ab"), ("<U3", "é"), ("V2", b"\1\2"),
]  # fmt: skip


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(("dtype", "fill"), FILLS, ids=str)
def test_missing_chunks(tmp_path, zarr_format, dtype, fill):
    dtype = np.dtype(dtype)
    stored = dtype if zarr_format == 2 else dtype.newbyteorder("=")
    fill = np.array(fill, dtype)[()]
    array = zarr.create_array(
        tmp_path / "a", shape=(7,), chunks=(3,), dtype=stored, fill_value=fill,
        zarr_format=zarr_format,
    )  # fmt: skip
    reference = array[...]
    result = vz.open(tmp_path / "a")[...]
    assert result.tobytes() == reference.astype(result.dtype).tobytes()
    assert result.tobytes() == np.full(7, fill, dtype).astype(result.dtype).tobytes()


@pytest.mark.parametrize(
    "dtype", ["<f4", ">i8", "?", "<c8", "S4", "<U3", "V2", "<M8[s]", ">M8[D]", "<m8[ns]"]
)
def test_missing_chunks_without_a_fill_value(tmp_path, dtype):
    array = zarr.create_array(
        tmp_path / "a", shape=(7,), chunks=(3,), dtype=dtype, zarr_format=2, compressors=None
    )
    document = json.loads((tmp_path / "a/.zarray").read_text())
    (tmp_path / "a/.zarray").write_text(json.dumps(document | {"fill_value": None}))
    ours = vz.open(tmp_path / "a", mode="r+")
    ours[1] = array[1] = np.ones((), dtype)[()]
    reference = zarr.open_array(tmp_path / "a", mode="r")[...]
    result = ours[...]
    assert result.tobytes() == reference.astype(result.dtype).tobytes()


@pytest.mark.skipif(ZARR < (3, 2), reason="this zarr-python has no rectilinear grids")
@pytest.mark.parametrize("codec", ["none", "gzip", "blosc"])
def test_rectilinear(tmp_path, codec):
    shapes = [((9,), [[2, 3, 4]]), ((9, 8), [[5, 1, 3], 3]), ((9, 8), [[4, 4, 1], [1, 1, 6]])]
    with zarr.config.set({"array.rectilinear_chunks": True}):
        for i, (shape, edges) in enumerate(shapes):
            data = values("<i4", shape, i)
            array = zarr.create_array(
                tmp_path / str(i), shape=shape, chunks=edges, dtype="i4",
                compressors=V3[codec] or None,
            )  # fmt: skip
            array[...] = data
            document = json.loads((tmp_path / str(i) / "zarr.json").read_text())
            assert document["chunk_grid"]["name"] == "rectilinear"
            check(tmp_path / str(i), data, array[...], edges)


# --- TensorStore -------------------------------------------------------------------------------

TS_LAYOUTS = [layout for layout in LAYOUTS if layout[0] != ()]


def written_by_tensorstore(path, driver, metadata, data):
    ts = pytest.importorskip("tensorstore")
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": str(path)}}
    array = ts.open({**spec, "metadata": metadata}, create=True).result()
    array.write(data).result()
    return array.read().result()


@pytest.mark.parametrize("dtype", ["|b1", *NUMBERS, "<c8", ">c16"])
def test_tensorstore_v2(tmp_path, dtype):
    pytest.importorskip("tensorstore")
    if np.dtype(dtype).itemsize == 1:
        dtype = "|" + dtype[-2:]
    compressors = [
        None, {"id": "zlib", "level": 1}, {"id": "gzip"}, {"id": "bz2", "level": 1},
        {"id": "zstd", "level": 1}, {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": -1},
    ]  # fmt: skip
    combinations = itertools.product(TS_LAYOUTS, "CF", compressors)
    for i, (layout, order, compressor) in enumerate(combinations):
        if len(layout[0]) < 2 and order == "F":
            continue  # which it takes for C
        data = values(dtype, layout[0], i)
        metadata = {
            "dtype": dtype, "shape": layout[0], "chunks": layout[1], "order": order,
            "compressor": compressor, "dimension_separator": "./"[i % 2],
        }  # fmt: skip
        reference = written_by_tensorstore(tmp_path / str(i), "zarr", metadata, data)
        check(tmp_path / str(i), data, reference, (layout, order, compressor))


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64", "complex64"],
)
def test_tensorstore_v3(tmp_path, dtype):
    pytest.importorskip("tensorstore")
    blosc = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0}
    tails = [
        [], [{"name": "gzip", "configuration": {"level": 1}}], [{"name": "crc32c"}],
        [{"name": "zstd", "configuration": {"level": 1}}, {"name": "crc32c"}],
        [{"name": "blosc", "configuration": blosc}],
    ]  # fmt: skip
    combinations = itertools.product(LAYOUTS, ["little", "big"], tails, [False, True])
    for i, (layout, endian, tail, transposed) in enumerate(combinations):
        codecs = [{"name": "bytes", "configuration": {"endian": endian}}, *tail]
        if transposed and len(layout[0]) > 1:
            order = [*reversed(range(len(layout[0])))]
            codecs.insert(0, {"name": "transpose", "configuration": {"order": order}})
        data = values(dtype, layout[0], i)
        name, separator = KEYS[i % 4]
        metadata = {
            "data_type": dtype, "shape": layout[0], "codecs": codecs,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": layout[1]}},
            "chunk_key_encoding": {"name": name, "configuration": {"separator": separator}},
        }  # fmt: skip
        reference = written_by_tensorstore(tmp_path / str(i), "zarr3", metadata, data)
        check(tmp_path / str(i), data, reference, (layout, codecs))


def test_tensorstore_structs(tmp_path):
    ts = pytest.importorskip("tensorstore")
    dtype = [["x", "<u2", [2, 3]], ["y", ">f4", [5]]]
    for order in "CF":
        metadata = {"dtype": dtype, "shape": [4, 3], "chunks": [3, 2], "order": order}
        spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(tmp_path / order)}}
        expected = {}
        for i, (field, *_) in enumerate(dtype):
            options = {"metadata": metadata, "create": True} if i == 0 else {}
            array = ts.open({**spec, "field": field, **options}).result()
            expected[field] = values(array.dtype.numpy_dtype, array.shape, i)
            array.write(expected[field]).result()
        result = vz.open(tmp_path / order)[...]
        for field, data in expected.items():
            np.testing.assert_array_equal(result[field], data)


@pytest.fixture(params=[2, 3])
def stale(request, tmp_path):
    """A hierarchy whose consolidated metadata are older than its arrays."""
    place = tmp_path / "a.zarr"
    group = zarr.create_group(place, zarr_format=request.param)
    array = group.create_array("inner/x", shape=(4,), chunks=(2,), dtype="i4")
    array[:] = np.arange(4)
    zarr.consolidate_metadata(place, zarr_format=request.param)
    array = zarr.open_array(place, path="inner/x", mode="r+", zarr_format=request.param)
    array.resize((6,))
    array[4:] = 7
    array.attrs["units"] = "K"
    zarr.open_group(place, mode="r+", use_consolidated=False).create_array("y", shape=1, dtype="i1")
    return place


@pytest.mark.parametrize("use_consolidated", [None, True, False])
def test_stale_consolidated_metadata(stale, use_consolidated):
    theirs = zarr.open_group(stale, mode="r", use_consolidated=use_consolidated)
    for ours in (
        vz.open(stale, use_consolidated=use_consolidated),
        vz.open_group(stale, mode="r", use_consolidated=use_consolidated),
    ):
        assert sorted(ours) == sorted(theirs)
        assert ours["inner/x"].shape == theirs["inner/x"].shape
        assert dict(ours["inner"]["x"].attrs) == dict(theirs["inner"]["x"].attrs)
        assert ours["inner/x"][...].tolist() == theirs["inner/x"][...].tolist()
    # Each node alone is what its own document says.
    assert vz.open(stale, "inner/x").shape == zarr.open_array(stale, path="inner/x").shape == (6,)


def test_stale_consolidated_metadata_do_not_count_where_there_are_writers(stale):
    """Otherwise than in zarr-python, whose writers would take the old shape for the array's."""
    for mode in ("r+", "a"):
        assert vz.open(stale, mode=mode)["inner/x"].shape == (6,)
        assert vz.open(stale, mode=mode, use_consolidated=True)["inner/x"].shape == (4,)


def test_consolidated_metadata_that_are_asked_for(stale, tmp_path):
    with pytest.raises(vz.errors.MetadataError, match="use_consolidated"):
        vz.open(stale, "inner", use_consolidated=True)
    assert vz.open(stale, "inner", use_consolidated=False)["x"].shape == (6,)
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(vz.errors.UnsupportedError, match="use_consolidated"):
        vz.open(tmp_path / "a.npy", use_consolidated=False)
