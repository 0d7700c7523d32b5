"""Sharded arrays between us, zarr-python and TensorStore, in every direction."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grids import RectilinearGrid, RegularGrid
from tests.array.test_shards import BIG, FILL, LITTLE, sharding
from tests.codecs.blocks import block_of
from virtualzarr import Array
from virtualzarr.codecs import Pipeline
from virtualzarr.hierarchy.open_node import open_hierarchy
from virtualzarr.metadata import ArrayMetadata, array_to_v3
from virtualzarr.stores import open_store

zarr = pytest.importorskip("zarr")
pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]

ZARR = tuple(int(part) for part in zarr.__version__.split(".")[:2])
DTYPES = ["bool", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8"]
CRC = {"name": "crc32c"}
INDEXES = [[LITTLE, CRC], [BIG, CRC], [LITTLE], [BIG]]
GZIP = {"name": "gzip", "configuration": {"level": 1}}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
BLOSC = {
    "name": "blosc",
    "configuration": {
        "cname": "lz4",
        "clevel": 5,
        "shuffle": "shuffle",
        "typesize": 4,
        "blocksize": 0,
    },
}


@st.composite
def arrays(draw, outer_codecs=True):
    """Draw the metadata of a sharded array with regular shards, and values for it."""
    shape = tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    inner = [draw(st.integers(1, 3)) for _ in shape]
    outer = [n * draw(st.integers(1, 3)) for n in inner]
    order = draw(st.permutations(range(len(shape))))
    turn = {"name": "transpose", "configuration": {"order": list(order)}}
    codecs = [draw(st.sampled_from([LITTLE, BIG]))]
    codecs += draw(st.sampled_from([[], [GZIP], [ZSTD], [BLOSC], [CRC], [ZSTD, CRC]]))
    if draw(st.booleans()):
        codecs.insert(0, turn)
    rest = {
        "index_codecs": draw(st.sampled_from(INDEXES)),
        "index_location": draw(st.sampled_from(["start", "end"])),
    }
    codec = sharding(inner, *codecs, **rest)
    if draw(st.booleans()):
        finest = [draw(st.sampled_from([n for n in range(1, c + 1) if c % n == 0])) for c in inner]
        codec = sharding(inner, sharding(finest, *codecs, **rest).to_v3(), **rest)
    chain = [codec]
    if outer_codecs and draw(st.booleans()):
        chain.append(draw(st.sampled_from([GZIP, CRC])))
    values = block_of(dtype, shape, draw(st.integers(0, 99)))
    if dtype.kind in "fc":
        values = np.asarray(np.random.default_rng(1).integers(0, 5, shape), dtype)
    fill = values.flat[0]
    values[tuple(slice(0, n // 2 + 1) for n in shape)] = fill
    metadata = ArrayMetadata(shape, dtype, RegularGrid(shape, outer), Pipeline(chain), fill)
    return metadata, values


def ours_at(folder):
    return open_hierarchy(open_store(folder))


def put(folder, metadata, values):
    """Write an array with our codecs."""
    (folder / "zarr.json").write_text(json.dumps(array_to_v3(metadata)))
    for cell in np.ndindex(*metadata.grid.grid_shape):
        origin, extent = metadata.grid.cell_origin(cell), metadata.grid.cell_extent(cell)
        shape = metadata.grid.cell_shape(cell)
        block = np.full(shape, metadata.fill_value, metadata.dtype)
        block[tuple(slice(0, n) for n in extent)] = values[
            tuple(slice(o, o + n) for o, n in zip(origin, extent, strict=True))
        ]
        codec = metadata.pipeline.for_block(shape, metadata.dtype, metadata.fill_value)
        path = folder / metadata.key_encoding.key(cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(codec.encode(block))


def same(array, values):
    np.testing.assert_array_equal(array[...], values)
    part = tuple(slice(n // 3, None, 2) for n in values.shape)
    np.testing.assert_array_equal(array[part], values[part])


relaxed = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


@relaxed
@given(arrays())
def test_zarr_python(tmp_path_factory, case):
    metadata, values = case
    theirs, mine = tmp_path_factory.mktemp("theirs"), tmp_path_factory.mktemp("mine")
    (theirs / "zarr.json").write_text(json.dumps(array_to_v3(metadata)))
    zarr.open_array(theirs, mode="r+")[...] = values
    same(ours_at(theirs), values)
    put(mine, metadata, values)
    written = zarr.open_array(mine, mode="r")
    np.testing.assert_array_equal(written[...], values)
    array = ours_at(mine)
    assert (array.chunks, array.shards) == (written.chunks, written.shards)
    assert array.nchunks == written.nchunks


def tensorstore(folder):
    ts = pytest.importorskip("tensorstore")
    store = {"driver": "file", "path": f"{folder}/"}
    return ts.open({"driver": "zarr3", "kvstore": store}).result()


@relaxed
@given(arrays(outer_codecs=False))
def test_tensorstore(tmp_path_factory, case):
    metadata, values = case
    pytest.importorskip("tensorstore")
    theirs, mine = tmp_path_factory.mktemp("theirs"), tmp_path_factory.mktemp("mine")
    (theirs / "zarr.json").write_text(json.dumps(array_to_v3(metadata)))
    tensorstore(theirs)[...] = values
    same(ours_at(theirs), values)
    put(mine, metadata, values)
    np.testing.assert_array_equal(tensorstore(mine).read().result(), values)


@relaxed
@given(arrays(outer_codecs=False), st.data())
def test_parts_that_we_write_into_shards_of_others(tmp_path_factory, case, data):
    metadata, values = case
    folder = tmp_path_factory.mktemp("both")
    (folder / "zarr.json").write_text(json.dumps(array_to_v3(metadata)))
    zarr.open_array(folder, mode="r+")[...] = values
    ours = Array.from_store(metadata, open_store(folder))
    for _ in range(3):
        part = tuple(data.draw(st.slices(n)) for n in values.shape)
        new = values.flat[-1] if data.draw(st.booleans()) else metadata.fill_value
        values[part] = new
        ours[part] = new
    same(ours, values)
    np.testing.assert_array_equal(zarr.open_array(folder, mode="r")[...], values)
    np.testing.assert_array_equal(tensorstore(folder).read().result(), values)


@pytest.mark.skipif(ZARR < (3, 4), reason="sharded rectilinear arrays came with zarr-python 3.4")
@pytest.mark.parametrize("location", ["start", "end"])
def test_rectilinear_shards_of_zarr_python(tmp_path, location):
    values = np.arange(60 * 40, dtype="i4").reshape(60, 40)
    values[:20, :9] = FILL
    edges = [[10, 20, 30], [12, 16, 12]]
    grid = RectilinearGrid((60, 40), edges)
    codec = sharding([5, 4], LITTLE, ZSTD, index_location=location)
    metadata = ArrayMetadata((60, 40), np.dtype("i4"), grid, Pipeline([codec]), FILL)
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    theirs.mkdir()
    mine.mkdir()
    with zarr.config.set({"array.rectilinear_chunks": True}):
        (theirs / "zarr.json").write_text(json.dumps(array_to_v3(metadata)))
        zarr.open_array(theirs, mode="r+")[...] = values
        array = ours_at(theirs)
        assert array.shards == ((10, 20, 30), (12, 16, 12))
        assert array.chunks == (5, 4)
        same(array, values)
        np.testing.assert_array_equal(array.oindex[[1, 59, 30], 3:], values[[1, 59, 30], 3:])
        put(mine, metadata, values)
        np.testing.assert_array_equal(zarr.open_array(mine, mode="r")[...], values)


def test_strings_in_shards_of_zarr_python(tmp_path):
    array = zarr.create_array(
        tmp_path, shape=(10,), chunks=(2,), shards=(6,), dtype=str, fill_value="na"
    )
    values = np.array(["a", "bé", "na", "na", "", "x", "y", "", "na", "日本"], dtype=object)
    array[...] = values
    ours = ours_at(tmp_path)
    assert ours[...].tolist() == values.tolist()
    assert ours[3:6].tolist() == values[3:6].tolist()


def test_blocks_are_shards_as_in_zarr_python(tmp_path):
    values = np.arange(100, dtype="i4").reshape(10, 10)
    theirs = zarr.create_array(tmp_path, shape=(10, 10), chunks=(2, 2), shards=(4, 6), dtype="i4")
    theirs[...] = values
    ours = ours_at(tmp_path)
    for selection in ((0, 1), (slice(1, 3), 0), (2, slice(None))):
        np.testing.assert_array_equal(ours.blocks[selection], theirs.blocks[selection])


def test_documents_of_others_come_back(tmp_path):
    zarr.create_array(tmp_path, shape=(10, 10), chunks=(2, 2), shards=(4, 6), dtype="f4",
                      filters=[zarr.codecs.TransposeCodec(order=(1, 0))])  # fmt: skip
    document = json.loads((tmp_path / "zarr.json").read_text())
    again = array_to_v3(ours_at(tmp_path).metadata)
    assert again["codecs"] == document["codecs"]
    assert isinstance(ours_at(tmp_path), Array)
