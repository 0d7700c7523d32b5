"""Codecs and orders of new arrays."""

from __future__ import annotations

import numpy as np
import pytest

import virtualzarr as vz
from tests.hierarchy.helpers import BYTES, ZSTD, document
from virtualzarr.codecs import make
from virtualzarr.errors import (
    MetadataError,
    MismatchError,
    UnsupportedError,
)


def codecs_of(**arguments):
    store = {}
    array = vz.create_array(store, data=np.arange(12.0).reshape(3, 4), **arguments)
    assert array[...].tolist() == np.arange(12.0).reshape(3, 4).tolist()
    return document(store)["codecs"]


def test_notations():
    numcodecs = pytest.importorskip("numcodecs")
    gzip = {"name": "gzip", "configuration": {"level": 3}}
    for given_ in (gzip, make("gzip", level=3), {"id": "gzip", "level": 3}, [gzip]):
        assert codecs_of(compressors=given_) == [BYTES, gzip]
    assert codecs_of(compressors=numcodecs.GZip(3)) == [BYTES, gzip]
    assert codecs_of(compressors=["crc32c"]) == [BYTES, {"name": "crc32c"}]
    assert codecs_of(codecs=[BYTES, gzip]) == [BYTES, gzip]
    assert codecs_of(compressors=None) == codecs_of(compressors=[]) == [BYTES]


def test_blosc_says_what_it_took():
    (_, blosc) = codecs_of(compressors={"name": "blosc", "configuration": {"cname": "zstd"}})
    assert blosc["configuration"] == {
        "cname": "zstd",
        "clevel": 5,
        "shuffle": "shuffle",
        "typesize": 8,
        "blocksize": 0,
    }


CRC = {"name": "crc32c"}
TURN = {"name": "transpose", "configuration": {"order": [1, 0]}}
BLOSC = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 8, "blocksize": 0}


def sharding(**members):
    return {"name": "sharding_indexed", "configuration": members}


@pytest.mark.parametrize(
    ("given_", "inside", "index"),
    [
        ({}, [BYTES], [BYTES, CRC]),
        ({"codecs": []}, [BYTES], [BYTES, CRC]),
        ({"codecs": ["bytes"]}, [BYTES], [BYTES, CRC]),
        (
            {"codecs": ["bytes", {"name": "blosc", "configuration": {"cname": "lz4"}}]},
            [BYTES, {"name": "blosc", "configuration": BLOSC}],
            [BYTES, CRC],
        ),
        ({"codecs": ["crc32c"]}, [BYTES, CRC], [BYTES, CRC]),
        (
            {"codecs": [{"name": "transpose", "configuration": {"order": "F"}}]},
            [TURN, BYTES],
            [BYTES, CRC],
        ),
        ({"index_codecs": ["bytes"]}, [BYTES], [BYTES]),
        ({"index_codecs": ["crc32c"]}, [BYTES], [BYTES, CRC]),
        ({"index_codecs": []}, [BYTES], [BYTES]),
    ],
)
def test_chains_within_shards_are_completed(given_, inside, index):
    codec = sharding(chunk_shape=[3, 2], **given_)
    expected = sharding(chunk_shape=[3, 2], codecs=inside, index_codecs=index, index_location="end")
    assert codecs_of(codecs=[codec]) == [expected]
    # Nested, and as the one codec from array to bytes.
    (outer,) = codecs_of(codecs=[sharding(chunk_shape=[3, 4], codecs=[codec])])
    assert outer["configuration"]["codecs"] == [expected]
    (alone,) = codecs_of(serializer=codec)
    if "codecs" in given_:
        assert alone == expected
    else:
        assert alone["configuration"]["codecs"] == [BYTES, ZSTD]


@pytest.mark.parametrize("codec", ["sharding_indexed", sharding(), sharding(chunk_shape=[3, 2])])
def test_sub_chunks_and_orders_are_those_of_the_layout(codec):
    layout = {"read_chunk_shape": (3, 2), "write_chunk_shape": (3, 4), "inner_order": (1, 0)}
    store = {}
    data = np.arange(12.0).reshape(3, 4)
    asked = {"codecs": [codec], "layout": layout}
    array = vz.create_array(store, data=data, **asked)
    (written,) = document(store)["codecs"]
    assert written["configuration"]["chunk_shape"] == [3, 2]
    assert written["configuration"]["codecs"] == [TURN, BYTES]
    np.testing.assert_array_equal(vz.open_array(store, **asked)[...], data)
    assert (array.chunks, array.shards) == ((3, 2), (3, 4))
    # Transposes before the shards turn their axes.
    turned = codecs_of(codecs=[TURN, "sharding_indexed"], layout={"read_chunk_shape": (3, 2)})
    assert turned[1]["configuration"]["chunk_shape"] == [2, 3]


@pytest.mark.parametrize(
    ("asked", "same"),
    [
        ("sharding_indexed", True),
        (sharding(chunk_shape=[2, 2]), True),
        (sharding(codecs=["bytes", "crc32c"], index_codecs=["crc32c"]), True),
        (sharding(codecs=["crc32c"], index_location="end"), True),
        (sharding(chunk_shape=[2, 1]), False),
        (sharding(codecs=["bytes"]), False),
        (sharding(index_codecs=["bytes"]), False),
        (sharding(index_location="start"), False),
    ],
)
def test_stored_shards_are_as_asked(asked, same):
    store = {}
    arguments = {"shape": (4, 4), "dtype": "u2"}
    full = sharding(chunk_shape=[2, 2], codecs=[BYTES, CRC])
    vz.create_array(store, codecs=[full], **arguments)
    if same:
        vz.open_array(store, codecs=[asked], **arguments)
        return
    with pytest.raises(MismatchError, match="sharding_indexed"):
        vz.open_array(store, codecs=[asked], **arguments)


def test_snappy():
    pytest.importorskip("imagecodecs")
    blosc = {"name": "blosc", "configuration": BLOSC | {"cname": "snappy"}}
    assert codecs_of(compressors=blosc) == [BYTES, blosc]


def test_members_outside_of_what_documents_may_say():
    store = {}
    array = {"shape": 3, "dtype": "S300"}
    vz.create_array(store, **array, compressors="blosc")
    assert document(store)["codecs"][1]["configuration"]["typesize"] == 1
    (_, blosc) = codecs_of(compressors={"name": "blosc", "configuration": {"typesize": 0}})
    assert blosc["configuration"]["typesize"] == 1
    assert codecs_of(compressors={"id": "gzip", "level": -1})[1]["configuration"]["level"] == 6
    for member, value in (("clevel", 10), ("clevel", -1), ("blocksize", -1), ("typesize", -1)):
        codec = {"name": "blosc", "configuration": {member: value}}
        with pytest.raises(MetadataError, match=member):
            vz.create_array({}, **array, compressors=codec)


def test_orders():
    transpose = {"name": "transpose", "configuration": {"order": [1, 0]}}
    assert codecs_of(order="F") == [transpose, BYTES, ZSTD]
    assert codecs_of(layout={"inner_order": (1, 0)}) == [transpose, BYTES, ZSTD]
    assert codecs_of(layout={"soft": {"inner_order": (1, 0)}}) == [transpose, BYTES, ZSTD]
    assert codecs_of(order="C") == [BYTES, ZSTD]
    assert codecs_of(order="F", filters=transpose) == [transpose, BYTES, ZSTD]
    (sharding,) = codecs_of(order="F", chunks=(3, 2), shards=(3, 4))
    assert sharding["configuration"]["codecs"] == [transpose, BYTES, ZSTD]


def test_v2():
    store = {}
    vz.create_array(
        store,
        data=np.arange(12.0).reshape(3, 4),
        zarr_format=2,
        order="F",
        filters=[{"id": "delta", "dtype": "<f8"}, "shuffle"],
        compressors={"name": "gzip", "configuration": {"level": 1}},
        dimension_separator="/",
        chunks=(2, 2),
    )
    written = document(store, ".zarray")
    assert written["order"] == "F"
    assert written["compressor"] == {"id": "gzip", "level": 1}
    assert [f["id"] for f in written["filters"]] == ["delta", "shuffle"]
    assert "0/0" in store
    np.testing.assert_array_equal(vz.open(store)[...], np.arange(12.0).reshape(3, 4))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"compressors": "snakeoil"}, UnsupportedError, "snakeoil"),
        ({"compressors": BYTES}, MetadataError, "array to bytes"),
        ({"filters": 5}, MetadataError, r"filters\[0\]"),
        ({"serializer": None}, MetadataError, "serializer"),
        ({"codecs": [BYTES], "compressors": None}, MetadataError, "compressors"),
        ({"serializer": "vlen-utf8"}, MetadataError, "float64"),
        ({"order": "A"}, MetadataError, "order"),
        ({"order": "C", "layout": {"inner_order": (1, 0)}}, MetadataError, "inner_order"),
        (
            {
                "order": "F",
                "filters": {"name": "transpose", "configuration": {"order": [0, 1]}},
            },
            MetadataError,
            "transpose",
        ),
        ({"zarr_format": 2, "shards": (2, 2)}, UnsupportedError, "shards"),
        ({"zarr_format": 2, "chunks": [[1, 2], 4]}, UnsupportedError, "one shape"),
        ({"zarr_format": 2, "serializer": BYTES}, UnsupportedError, "serializer"),
        ({"zarr_format": 2, "codecs": [BYTES]}, UnsupportedError, "codecs"),
        ({"zarr_format": 2, "compressors": ["gzip", "zlib"]}, UnsupportedError, "one"),
        ({"zarr_format": 2, "chunk_key_encoding": "default"}, UnsupportedError, "v2"),
        ({"zarr_format": 4}, UnsupportedError, "zarr_format"),
        ({"fill_value": "x"}, MetadataError, "fill_value"),
        ({"dimension_names": ["x"]}, MetadataError, "dimension_names"),
        ({"attributes": {"x": object()}}, MetadataError, "x"),
        ({"dtype": object}, UnsupportedError, "objects"),
        ({"dtype": "U"}, MetadataError, "length"),
        ({"dtype": "float17"}, (MetadataError, UnsupportedError), "float17"),
        ({"shape": (-1, 4)}, MetadataError, "-1"),
        ({"shape": None}, MetadataError, "shape"),
    ],
)
def test_refused(arguments, error, message):
    store = {}
    with pytest.raises(error, match=message):
        vz.create_array(store, **{"shape": (3, 4), "dtype": "f8", **arguments})
    assert store == {}


def test_three_axes_in_v2():
    arguments = {"shape": (2, 3, 4), "dtype": "f8", "zarr_format": 2}
    with pytest.raises(UnsupportedError, match="inner_order"):
        vz.create_array({}, layout={"inner_order": (2, 0, 1)}, **arguments)
    store = {}
    vz.create_array(store, layout={"soft": {"inner_order": (2, 0, 1)}}, **arguments)
    assert document(store, ".zarray")["order"] == "C"
