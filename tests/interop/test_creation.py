"""What we make is what zarr-python makes; it and TensorStore open ours, and we open theirs."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.errors import MismatchError

pytestmark = pytest.mark.interop
zarr = pytest.importorskip("zarr")

TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}
GZIP = {"name": "gzip", "configuration": {"level": 3}}


@pytest.fixture(autouse=True)
def quiet():
    """Its warnings about data types and metadata without a specification."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def documents(place):
    return {
        path.relative_to(place).as_posix(): json.loads(path.read_text())
        for path in place.rglob("*")
        if path.name in ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
    }


def alike(value):
    """Without what says nothing: empty configurations, and indexes at the usual place."""
    if isinstance(value, dict):
        idle = [("configuration", {}), ("index_location", "end")]
        return {k: alike(v) for k, v in value.items() if (k, v) not in idle}
    return [alike(item) for item in value] if isinstance(value, list) else value


SAME = {
    "plain": {"shape": (10, 20), "dtype": "f4", "chunks": (5, 6)},
    "no axes": {"shape": (), "dtype": "i8", "chunks": ()},
    "empty": {"shape": (0, 3), "dtype": "u2", "chunks": (1, 3)},
    "names": {
        "shape": (4, 6),
        "dtype": "i2",
        "chunks": (4, 6),
        "dimension_names": ["y", None],
        "attributes": {"units": "K", "n": [1, 2.5, None]},
    },
    "fill": {"shape": (4,), "dtype": "f8", "chunks": (4,), "fill_value": float("nan")},
    "keys": {
        "shape": (4,),
        "dtype": "i1",
        "chunks": (4,),
        "chunk_key_encoding": {"name": "v2", "separator": "/"},
    },
    "codecs": {
        "shape": (4, 6),
        "dtype": "c8",
        "chunks": (4, 6),
        "filters": [TRANSPOSE],
        "compressors": [GZIP, {"name": "crc32c"}],
    },
    "raw": {"shape": (4, 6), "dtype": "?", "chunks": (4, 6), "compressors": None},
    "blosc": {
        "shape": (4, 6),
        "dtype": "u4",
        "chunks": (4, 6),
        "compressors": [
            {
                "name": "blosc",
                "configuration": {
                    "cname": "zstd",
                    "clevel": 3,
                    "shuffle": "bitshuffle",
                    "typesize": 4,
                    "blocksize": 0,
                },
            }
        ],
    },
    "shards": {"shape": (40, 60), "dtype": "i4", "chunks": (5, 6), "shards": (10, 30)},
    "index at start": {
        "shape": (40,),
        "dtype": "i4",
        "chunks": (5,),
        "shards": {"shape": (10,), "index_location": "start"},
    },
    "text": {"shape": (4,), "dtype": str, "chunks": (2,)},
    "fixed text": {"shape": (4,), "dtype": "U3", "chunks": (2,)},
    "times": {"shape": (4,), "dtype": "M8[ms]", "chunks": (2,)},
}
SAME_V2 = {
    name: SAME[name]
    for name in ("plain", "no axes", "empty", "fill", "text", "fixed text", "times")
} | {
    "F order": {"shape": (4, 6), "dtype": ">i2", "chunks": (4, 3), "order": "F"},
    "null": {"shape": (4,), "dtype": "i2", "chunks": (4,), "fill_value": None},
    "struct": {"shape": (4,), "dtype": [("a", "<i2"), ("b", ">f4")], "chunks": (4,)},
    "attributes": {"shape": (4,), "dtype": "i2", "chunks": (4,), "attributes": {"units": "K"}},
}


@pytest.mark.parametrize("name", SAME)
def test_documents_v3(name, tmp_path):
    vz.create_array(tmp_path / "ours", name="a/b", **SAME[name])
    theirs = zarr.create_array(tmp_path / "theirs", name="a/b", **SAME[name])
    assert alike(documents(tmp_path / "ours")) == alike(documents(tmp_path / "theirs"))
    ours = zarr.open_array(tmp_path / "ours", path="a/b", mode="r")
    # NaNs do not equal each other.
    assert repr(ours.metadata) == repr(theirs.metadata)
    # What was asked of them is what we find.
    opened = vz.open_array(tmp_path / "theirs", "a/b", **SAME[name])
    assert opened.metadata == vz.open(tmp_path / "ours", "a/b").metadata


@pytest.mark.parametrize("name", SAME_V2)
def test_documents_v2(name, tmp_path):
    arguments = {**SAME_V2[name], "zarr_format": 2}
    vz.create_array(tmp_path / "ours", name="a/b", **arguments)
    theirs = zarr.create_array(tmp_path / "theirs", name="a/b", **arguments)
    made, expected = documents(tmp_path / "ours"), documents(tmp_path / "theirs")
    # It also writes attributes where there are none.
    assert {k: v for k, v in made.items() if v} == {k: v for k, v in expected.items() if v}
    ours = zarr.open_array(tmp_path / "ours", path="a/b", mode="r", zarr_format=2)
    assert repr(ours.metadata) == repr(theirs.metadata)
    vz.open_array(tmp_path / "theirs", "a/b", **arguments)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_demands_on_theirs(zarr_format, tmp_path):
    place = tmp_path / "theirs"
    data = np.arange(24, dtype="i2").reshape(4, 6)
    zarr.create_array(place, data=data, chunks=(2, 3), zarr_format=zarr_format)
    opened = vz.open_array(place, shape=(4, 6), dtype="i2", chunks=(2, 3), fill_value=0)
    np.testing.assert_array_equal(opened[...], data)
    with pytest.raises(MismatchError, match=r"chunks: \(4, 3\) is asked for, but it is \(2, 3\)"):
        vz.open_array(place, chunks=(4, 3))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_codecs_of_their_classes(zarr_format, tmp_path):
    numcodecs = pytest.importorskip("numcodecs")
    compressor = numcodecs.Blosc("lz4", 3) if zarr_format == 2 else zarr.codecs.GzipCodec(level=2)
    arguments = {"shape": (4, 6), "dtype": "i4", "chunks": (2, 3), "zarr_format": zarr_format}
    vz.create_array(tmp_path / "ours", compressors=compressor, **arguments)[...] = 5
    theirs = zarr.create_array(tmp_path / "theirs", compressors=compressor, **arguments)
    ours = zarr.open_array(tmp_path / "ours", mode="r")
    assert ours.compressors == theirs.compressors
    assert (ours[...] == 5).all()


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_groups(zarr_format, tmp_path):
    group = vz.create_group(tmp_path, attributes={"title": "weather"}, zarr_format=zarr_format)
    group.create_array("a/x", data=np.arange(10), chunks=4)
    group.create_group("a/empty")
    group["a/x"].attrs["units"] = "K"
    theirs = zarr.open_group(tmp_path, mode="r+")
    assert dict(theirs.attrs) == {"title": "weather"}
    assert sorted(path for path, _ in theirs.members(max_depth=None)) == ["a", "a/empty", "a/x"]
    assert dict(theirs["a/x"].attrs) == {"units": "K"}
    np.testing.assert_array_equal(theirs["a/x"][...], np.arange(10))
    theirs.create_array("b/y", shape=(3,), dtype="f4")
    theirs["a/x"].attrs["by"] = "them"
    assert [path for path, _ in group.members(max_depth=None)] == [
        "a",
        "a/empty",
        "a/x",
        "b",
        "b/y",
    ]
    group.move("b/y", "a/y")
    assert group["a/x"].attrs == {"units": "K", "by": "them"}
    assert sorted(zarr.open_group(tmp_path, mode="r")["a"]) == ["empty", "x", "y"]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_consolidated(zarr_format, tmp_path):
    for maker, name in ((vz, "ours"), (zarr, "theirs")):
        group = maker.create_group(
            tmp_path / name, attributes={"title": "weather"}, zarr_format=zarr_format
        )
        group.create_array(
            "a/x", shape=(4,), dtype="i2", chunks=(2,), attributes={"u": "K"}, compressors=None
        )
        group.create_group("a/empty")
        if maker is vz:
            group.consolidate_metadata()
        else:
            zarr.consolidate_metadata(tmp_path / name)
    key = ".zmetadata" if zarr_format == 2 else "zarr.json"
    made, expected = (documents(tmp_path / name)[key] for name in ("ours", "theirs"))
    if zarr_format == 2:
        # Its v2 groups have a member of v3.
        for document in expected["metadata"].values():
            document.pop("consolidated_metadata", None)
    assert made == expected
    vz.open(tmp_path / "ours", mode="r+")["a/x"].resize((9,))
    vz.open(tmp_path / "ours", mode="r+").create_array("a/z", shape=1, dtype="i1")
    theirs = zarr.open_consolidated(tmp_path / "ours")
    assert theirs["a/x"].shape == (9,)
    assert theirs["a/z"].shape == (1,)


@pytest.fixture
def ts():
    return pytest.importorskip("tensorstore")


def spec(driver, place, **more):
    return {"driver": driver, "kvstore": {"driver": "file", "path": f"{place}/"}, **more}


LAYOUTS = [
    {},
    {"chunk_shape": (5, 0, -1)},
    {"chunk_elements": 100, "chunk_aspect_ratio": (1, 2, 2)},
    {"inner_order": (2, 1, 0)},
]
SHARDED = [
    {"inner_order": (1, 2, 0)},
    {"read_chunk_elements": 50, "write_chunk_elements": 1000},
    {"read_chunk_shape": (2, 3, 4), "write_chunk_shape": (4, 6, 8), "inner_order": (2, 0, 1)},
]


@pytest.mark.parametrize(
    ("driver", "layout"),
    [(d, layout) for d in ("zarr", "zarr3") for layout in LAYOUTS]
    + [("zarr3", layout) for layout in SHARDED],
)
def test_layouts_of_tensorstore(ts, driver, layout, tmp_path):
    shape, zarr_format = (10, 12, 14), 3 if driver == "zarr3" else 2
    theirs = ts.open(
        spec(driver, tmp_path / "theirs"),
        create=True,
        dtype=ts.int16,
        shape=shape,
        chunk_layout=ts.ChunkLayout(**layout),
    ).result()
    codecs = None if zarr_format == 3 else {"id": "blosc", "cname": "lz4", "clevel": 5}
    ours = vz.create_array(
        tmp_path / "ours",
        shape=shape,
        dtype="i2",
        layout=layout,
        compressors=codecs,
        zarr_format=zarr_format,
        **({"fill_value": None} if zarr_format == 2 else {}),
    )
    data = np.arange(ours.size, dtype="i2").reshape(shape)
    ours[...] = data
    opened = ts.open(spec(driver, tmp_path / "ours"), open=True).result()
    assert opened.chunk_layout == theirs.chunk_layout
    np.testing.assert_array_equal(opened.read().result(), data)
    theirs.write(data).result()
    back = vz.open_array(tmp_path / "theirs", shape=shape, dtype="i2", layout=layout)
    np.testing.assert_array_equal(back[...], data)
    made, expected = documents(tmp_path / "ours"), documents(tmp_path / "theirs")
    if zarr_format == 3:
        assert alike(made["zarr.json"]["codecs"]) == expected["zarr.json"]["codecs"]
        assert made["zarr.json"]["chunk_grid"] == expected["zarr.json"]["chunk_grid"]
    else:
        assert made[".zarray"]["chunks"] == expected[".zarray"]["chunks"]
        assert made[".zarray"]["order"] == expected[".zarray"]["order"]


@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
def test_assumed_as_tensorstore_does(ts, driver, tmp_path):
    zarr_format = 3 if driver == "zarr3" else 2
    arguments = {"shape": (10, 12), "dtype": "i2", "chunks": (5, 6), "compressors": None}
    array = vz.open_array(tmp_path, mode="r+", assume=True, zarr_format=zarr_format, **arguments)
    array[...] = 3
    grid = {"name": "regular", "configuration": {"chunk_shape": [5, 6]}}
    metadata = {
        "zarr": {"shape": [10, 12], "dtype": "<i2", "chunks": [5, 6], "compressor": None},
        "zarr3": {"shape": [10, 12], "data_type": "int16", "chunk_grid": grid},
    }[driver]
    theirs = ts.open(
        spec(driver, tmp_path, metadata=metadata), open=True, assume_metadata=True
    ).result()
    assert (theirs.read().result() == 3).all()
    assert not documents(tmp_path)


@pytest.mark.parametrize("layout", [{}, {"chunk_elements": 5000}, {"chunk_aspect_ratio": (1, 2)}])
@pytest.mark.parametrize("field", [(), (2, 3), (7,), (100, 50, 3)])
def test_fields_count_in_layouts_as_in_tensorstore(ts, field, layout):
    """All of a field's axes are in every chunk, and its numbers count as elements."""
    dtype = [("small", "<i4"), ("large", "<i2", field)]
    shape = (1000, 1000)
    wanted = {name: (*v, *(1 for _ in field)) if name.endswith("ratio") else v
              for name, v in layout.items()}  # fmt: skip
    theirs = ts.open(
        {
            "driver": "zarr",
            "kvstore": {"driver": "memory"},
            "metadata": {"dtype": [["small", "<i4"], ["large", "<i2", list(field)]]},
            "field": "large",
        },
        create=True,
        shape=shape + field,
        chunk_layout=ts.ChunkLayout(**wanted),
    ).result()
    ours = vz.create_array({}, shape=shape, dtype=dtype, layout=layout, zarr_format=2)
    assert ours.chunks == theirs.chunk_layout.read_chunk.shape[:2]
    assert ours.field("large").shape == theirs.shape


def sharding(**members):
    return {"name": "sharding_indexed", "configuration": members}


REVERSE = {"name": "transpose", "configuration": {"order": "F"}}
SHARDS = sharding(chunk_shape=[4, 4])
OPEN = {
    "name": ["sharding_indexed"],
    "no chains": [SHARDS],
    "byte order": [sharding(chunk_shape=[4, 4], codecs=["bytes"], index_codecs=["bytes"])],
    "checksum": [sharding(chunk_shape=[4, 4], codecs=["crc32c"], index_codecs=["crc32c"])],
    "blosc": [sharding(chunk_shape=[4, 4], codecs=[{"name": "blosc", "configuration": {}}])],
    "nested": [sharding(chunk_shape=[8, 8], codecs=[SHARDS])],
    "turned": [REVERSE, SHARDS],
    "turned within": [sharding(chunk_shape=[4, 4], codecs=[REVERSE, "bytes"])],
    "snappy": [{"name": "blosc", "configuration": {"cname": "snappy"}}],
    "outside": ["bytes", "crc32c"],
}
SHARD = {"write_chunk_shape": (16, 16)}
LAYOUTS = [SHARD, SHARD | {"read_chunk_shape": (4, 4)}, SHARD | {"inner_order": (1, 0)}]
# TensorStore takes a chain given in full for the whole of it; we put it into shards.
SHARDED = [(name, layout) for name in list(OPEN)[:-2] for layout in LAYOUTS]
REFUSED = [("checksum", LAYOUTS[2]), ("blosc", LAYOUTS[2]), ("byte order", LAYOUTS[2])]
REFUSED += [("nested", LAYOUTS[1])]


@pytest.mark.parametrize(
    ("name", "layout"),
    [case for case in SHARDED if case not in REFUSED] + [("snappy", SHARD), ("outside", SHARD)],
)
def test_tensorstore_completes_alike(ts, name, layout, tmp_path):
    data = np.arange(32 * 48, dtype="u2").reshape(32, 48)
    spec = {
        "driver": "zarr3",
        "kvstore": (tmp_path / "theirs").as_uri(),
        "metadata": {"codecs": OPEN[name]},
    }
    array = {"shape": data.shape, "dtype": ts.uint16, "chunk_layout": ts.ChunkLayout(**layout)}
    ts.open(spec, create=True, **array).result().write(data).result()
    theirs = vz.open(tmp_path / "theirs")
    ours = vz.create_array(tmp_path / "ours", data=data, codecs=OPEN[name], layout=layout)
    assert ours.metadata.pipeline == theirs.metadata.pipeline
    np.testing.assert_array_equal(theirs[...], data)
    spec = {"driver": "zarr3", "kvstore": (tmp_path / "ours").as_uri()}
    np.testing.assert_array_equal(ts.open(spec).result().read().result(), data)
