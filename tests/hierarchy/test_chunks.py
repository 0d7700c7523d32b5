"""Chunks and shards of new arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from grids import RegularGrid
from tests.hierarchy.helpers import BYTES, document
from virtualzarr.errors import (
    MetadataError,
)


@pytest.mark.parametrize(
    ("arguments", "chunks", "shards"),
    [
        ({}, (101, 101, 101), None),
        ({"chunks": 100}, (100, 100, 100), None),
        ({"chunks": (64, -1, "auto")}, (64, 2000, 8), None),
        ({"chunks": (None, 5, 5)}, (1000, 5, 5), None),
        ({"chunks": False}, (1000, 2000, 3000), None),
        ({"chunks": True}, (101, 101, 101), None),
        ({"chunks": RegularGrid((1000, 2000, 3000), (7, 7, 7))}, (7, 7, 7), None),
        ({"layout": {"chunk_aspect_ratio": (1, 2, 2)}}, (64, 128, 128), None),
        ({"chunks": 10, "shards": 100}, (10, 10, 10), (100, 100, 100)),
        ({"chunks": 10, "shards": 10}, (10, 10, 10), (10, 10, 10)),
        ({"shards": (200, 200, 200)}, (100, 100, 100), (200, 200, 200)),
        ({"shards": "auto"}, (101, 101, 101), (404, 404, 404)),
        (
            {"layout": {"read_chunk_elements": 1000, "write_chunk_elements": 10**5}},
            (10, 10, 10),
            (40, 40, 40),
        ),
        (
            {"chunks": (10, 500, 1000), "shards": [[100, 900], 1000, -1]},
            (10, 500, 1000),
            ((100, 900), (1000,) * 2, (3000,)),
        ),
    ],
)
def test_shapes(arguments, chunks, shards):
    array = vz.create_array({}, shape=(1000, 2000, 3000), dtype="u2", **arguments)
    assert (array.chunks, array.shards) == (chunks, shards)


def test_variable():
    store = {}
    array = vz.create_array(store, shape=(60, 1000), dtype="f4", chunks=[[10, 20, 30], 512])
    assert document(store)["chunk_grid"] == {
        "name": "rectilinear",
        "configuration": {"kind": "inline", "chunk_shapes": [[10, 20, 30], 512]},
    }
    again = vz.create_array({}, shape=(60, 1000), dtype="f4", chunks=array.grid)
    assert again.grid == array.grid
    from_json = vz.create_array({}, shape=(60, 1000), dtype="f4", chunks=array.grid.to_json())
    assert from_json.grid == array.grid


def test_chunks_within_variable_shards():
    array = vz.create_array({}, shape=(100, 100), dtype="u2", shards=([60, 40], 50))
    assert array.chunks == (20, 50)
    with pytest.raises(MetadataError, match=r"chunks of 20 are not a multiple of .* 30"):
        vz.create_array({}, shape=(100, 100), dtype="u2", chunks=30, shards=([60, 40], 50))


def test_index_at_start():
    store = {}
    vz.create_array(
        store,
        shape=8,
        dtype="u2",
        chunks=2,
        shards={"shape": (4,), "index_location": "start"},
    )
    (codec,) = document(store)["codecs"]
    assert codec["configuration"]["index_location"] == "start"


def test_sharding_codec_given():
    codec = {
        "name": "sharding_indexed",
        "configuration": {"chunk_shape": [5], "codecs": [BYTES], "index_codecs": [BYTES]},
    }
    array = vz.create_array({}, shape=100, dtype="u2", codecs=[codec], chunks=20)
    assert (array.chunks, array.shards) == ((5,), (20,))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chunks": (5,)}, "1 entries for 2 axes"),
        ({"chunks": [[5, 4], 5]}, "axis 0"),
        ({"chunks": (0, 5)}, "0"),
        ({"chunks": "many"}, "many"),
        ({"chunks": (4, 4), "shards": (6, 8)}, "6 are not a multiple of read chunks of 4"),
        ({"chunks": (4, 4), "layout": {"chunk_shape": (5, 0)}}, "5"),
        ({"chunks": [[5, 5], 5], "shards": (10, 10)}, "only shards may differ"),
        ({"chunks": [[5, 5], 5], "layout": {"chunk_elements": 5}}, "chunk_elements"),
        ({"layout": {"chunk_sizes": 5}}, "chunk_sizes"),
    ],
)
def test_refused(arguments, message):
    store = {}
    with pytest.raises(MetadataError, match=message):
        vz.create_array(store, shape=(10, 10), dtype="u2", **arguments)
    assert store == {}


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=3),
    st.integers(10, 500),
    st.integers(10, 2000),
)
def test_what_is_chosen_is_what_is_read(shape, read, write):
    layout = vz.ChunkLayout(read_chunk_elements=read, write_chunk_elements=write)
    data = np.arange(np.prod(shape), dtype="i4").reshape(shape)
    store = {}
    vz.create_array(store, data=data, layout=layout)
    np.testing.assert_array_equal(vz.open(store)[...], data)
