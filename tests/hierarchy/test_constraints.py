"""Whether stored arrays are as they are asked to be."""

from __future__ import annotations

import numpy as np
import pytest

import virtualzarr as vz
from tests.hierarchy.helpers import BYTES, ZSTD
from virtualzarr.errors import (
    MismatchError,
    NodeNotFoundError,
)
from virtualzarr.metadata.create import ArrayParams, create_array_metadata, find_differences

AGREEING = [
    {"shape": (4, 6)},
    {"shape": [4, 6], "dtype": ">i4"},
    {"chunks": (2, 3), "fill_value": -1},
    {"chunks": (2, "auto")},
    {"chunks": [[2, 2], [3, 3]]},
    {"dimension_names": ("y", "x"), "zarr_format": 3},
    {"attributes": {"units": "K"}},
    {"compressors": {"name": "zstd", "configuration": {"level": 0, "checksum": False}}},
    {"codecs": [BYTES, ZSTD]},
    {"serializer": BYTES, "filters": None},
    {"order": "C"},
    {"chunk_key_encoding": "default", "dimension_separator": "/"},
    {"layout": {"chunk_shape": (2, 0), "chunk_elements": 10**5, "inner_order": (0, 1)}},
    {"layout": {"chunk_shape": (-1, 3), "soft": {"chunk_shape": (9, 9)}}},
    {"shards": False},
]
DIFFERING = [
    ({"shape": (4, 7)}, r"shape: \(4, 7\) is asked for, but it is \(4, 6\)"),
    ({"shape": (4,)}, "shape"),
    ({"dtype": "u4"}, "dtype: uint32 is asked for, but it is int32"),
    ({"dtype": str}, "dtype: string is asked for"),
    ({"chunks": (4, 3)}, r"chunks: \(4, 3\) is asked for, but it is \(2, 3\)"),
    ({"chunks": [[1, 3], 3]}, "chunks"),
    ({"chunks": False}, r"\(4, 6\) is asked for, but it is \(2, 3\)"),
    ({"shards": (4, 6)}, "shards: .* but it is None"),
    ({"fill_value": 0}, "fill_value: 0 is asked for, but it is -1"),
    ({"dimension_names": ("a", "b")}, "dimension_names"),
    ({"zarr_format": 2}, "Zarr v2"),
    ({"attributes": {"units": "m"}}, "attribute 'units': 'm' is asked for, but it is 'K'"),
    ({"attributes": {"scale": 1}}, "scale"),
    ({"attributes": {"new": None}}, "new"),
    ({"compressors": None}, "compressors: .* but it is .zstd"),
    ({"compressors": "gzip"}, "gzip"),
    ({"order": "F"}, "order of axes"),
    ({"dimension_separator": "."}, "chunk_key_encoding"),
    ({"layout": {"write_chunk_shape": (4, 0)}}, "write_chunk_shape"),
    ({"layout": {"inner_order": (1, 0)}}, "order of axes"),
]


@pytest.mark.parametrize("params", AGREEING)
def test_agreeing(store, params):
    before = dict(store)
    for mode in ("r", "r+", "a"):
        assert vz.open_array(store, mode=mode, **params)[1, 1] == 7
    assert store == before


@pytest.mark.parametrize(("params", "message"), DIFFERING)
def test_differing(store, params, message):
    before = dict(store)
    for opened in (vz.open, vz.open_array):
        with pytest.raises((MismatchError, NodeNotFoundError), match=message):
            opened(store, mode="r+", **params)
    assert store == before


def test_all_are_named(store):
    with pytest.raises(MismatchError) as caught:
        vz.open_array(store, shape=(5, 6), dtype="f4", chunks=(1, 1), attributes={"a": 1})
    for name in ("shape", "dtype", "chunks", "attribute 'a'"):
        assert f"{name}: " in str(caught.value)


@pytest.mark.parametrize(
    ("params", "same"),
    [
        ({"chunks": (2, 2), "shards": (4, 4)}, True),
        ({"chunks": (2, 2)}, True),
        ({"shards": [[4, 4], 4]}, True),
        ({"order": "F", "compressors": None}, True),
        ({"layout": {"read_chunk_shape": (2, 2), "write_chunk_shape": (4, 4)}}, True),
        ({"chunks": (4, 4)}, False),
        ({"shards": (8, 8)}, False),
        ({"shards": False}, False),
        ({"order": "C"}, False),
        ({"layout": {"chunk_shape": (4, 4)}}, False),
    ],
)
def test_shards(params, same):
    asked = {"shape": (8, 8), "dtype": "i2", "order": "F", "compressors": None}
    metadata = create_array_metadata(ArrayParams(**asked, chunks=(2, 2), shards=(4, 4)))
    assert (find_differences(metadata, ArrayParams(**params)) == []) is same


@pytest.mark.parametrize(
    ("params", "same"),
    [
        ({"filters": [{"id": "shuffle", "elementsize": 2}], "order": "F"}, True),
        ({"compressors": {"id": "zlib", "level": 1}, "dtype": ">i2"}, True),
        ({"compressors": "zlib", "filters": "shuffle"}, True),
        ({"serializer": "bytes"}, False),
        ({"filters": None}, False),
        ({"order": "C"}, False),
        ({"compressors": {"id": "zlib", "level": 2}}, False),
    ],
)
def test_v2(params, same):
    metadata = create_array_metadata(
        ArrayParams(
            shape=(8, 8),
            dtype="<i2",
            order="F",
            zarr_format=2,
            filters=[{"id": "shuffle", "elementsize": 2}],
            compressors={"id": "zlib", "level": 1},
        )
    )
    assert (find_differences(metadata, ArrayParams(**params)) == []) is same


def test_what_was_made_is_as_asked():
    asked = {
        "shape": (30, 40),
        "dtype": "f4",
        "chunks": (5, 5),
        "shards": ([10, 20], 20),
        "filters": {"name": "transpose", "configuration": {"order": [1, 0]}},
        "compressors": ["gzip", "crc32c"],
        "fill_value": np.nan,
        "dimension_names": ["a", "a"],
        "attributes": {"x": 0.5},
        "dimension_separator": ".",
    }
    made = {}
    vz.create_array(made, **asked)
    assert vz.open_array(made, **asked).shape == (30, 40)
