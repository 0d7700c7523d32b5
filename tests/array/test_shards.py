"""Sharded arrays: every selection equals numpy, and nothing is read that is not needed."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr
from grids import RectilinearGrid, RegularGrid
from tests.array.test_reading import basic, write_chunks
from virtualzarr import Array
from virtualzarr.array.read import shard_indexes as shards
from virtualzarr.array.read.shard_indexes import shard_indexes
from virtualzarr.array.read.shards import ShardedChunks
from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.sharding import find_sharding
from virtualzarr.errors import ChunkNotFoundError, CodecError, MetadataError, SourceError
from virtualzarr.manifest import Decoder, Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata, KeyEncoding, array_to_v3
from virtualzarr.stores import MemoryStore, open_store

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
FILL = 7


def sharding(chunk_shape, *codecs, **rest):
    codecs = list(codecs or [LITTLE])
    return make("sharding_indexed", chunk_shape=list(chunk_shape), codecs=codecs, **rest)


def keys_of(metadata, data, skip=lambda cell: False):
    """Encode an array shard by shard; the keys and values of a store, but for the metadata."""
    keys, grid = {}, metadata.grid
    for cell in np.ndindex(*grid.grid_shape):
        if skip(cell):
            continue
        shape = grid.cell_shape(cell)
        block = np.full(shape, FILL, data.dtype)
        place = tuple(
            slice(o, o + n)
            for o, n in zip(grid.cell_origin(cell), grid.cell_extent(cell), strict=True)
        )
        block[tuple(slice(0, s.stop - s.start) for s in place)] = data[place]
        codec = metadata.pipeline.for_block(shape, data.dtype, FILL)
        keys[metadata.key_encoding.key(cell)] = codec.encode(block)
    return keys


def metadata_of(shape, grid, pipeline):
    pipeline = pipeline if isinstance(pipeline, Pipeline) else Pipeline([pipeline])
    return ArrayMetadata(shape, np.dtype("i4"), grid, pipeline, FILL)


@st.composite
def cases(draw):
    shape = tuple(draw(st.lists(st.integers(0, 12), min_size=0, max_size=3)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    inner = [draw(st.integers(1, 3)) for _ in shape]
    if draw(st.booleans()):
        outer = [n * draw(st.integers(1, 3)) for n in inner]
        grid = RegularGrid(shape, outer)
    else:
        times = st.lists(st.integers(1, 3), min_size=1, max_size=4)
        edges = [[n * c for n in draw(times)] for c in inner]
        edges = [[*e, n + -n % c] for e, c, n in zip(edges, inner, shape, strict=True)]
        grid = RectilinearGrid(
            shape, [[n for n in e if n] or [c] for e, c in zip(edges, inner, strict=True)]
        )
    codecs = draw(st.sampled_from([[LITTLE], [BIG, "gzip"], [LITTLE, "crc32c"]]))
    if len(shape) > 1 and draw(st.booleans()):
        order = list(range(len(shape)))[::-1]
        codecs = [{"name": "transpose", "configuration": {"order": order}}, *codecs]
    location = draw(st.sampled_from(["start", "end"]))
    before = []
    for _ in range(draw(st.integers(0, 2))):
        order = draw(st.permutations(range(len(shape))))
        before.append({"name": "transpose", "configuration": {"order": order}})
        inner = [inner[axis] for axis in order]
    codec = sharding(inner, *codecs, index_location=location)
    if draw(st.booleans()):
        finest = [draw(st.sampled_from([n for n in range(1, c + 1) if c % n == 0])) for c in inner]
        codec = sharding(inner, sharding(finest, *codecs).to_v3(), index_location=location)
    rest = draw(st.sampled_from([[], [], ["gzip"]]))
    data = rng.integers(0, 2**31, shape, dtype="i4")
    data[tuple(slice(0, n // 2) for n in shape)] = FILL
    return metadata_of(shape, grid, Pipeline([*before, codec, *rest])), data, rng


@settings(deadline=None, max_examples=150)
@given(st.data(), cases(), st.sampled_from([0, 10**9]), st.booleans())
def test_every_selection(data, case, split, virtual):
    metadata, expected, rng = case
    if virtual:
        manifest, expected = write_chunks(expected, metadata.grid, metadata.pipeline, rng)
        array = Array.from_manifest(metadata, manifest)
    else:
        array = Array.from_store(metadata, MemoryStore(keys_of(metadata, expected)))
    with virtualzarr.config.set(partial_read_bytes=split):
        selection = data.draw(basic(array.shape))
        np.testing.assert_array_equal(array[selection], expected[selection])
        np.testing.assert_array_equal(array[...], expected)
        if 0 in array.shape or not array.shape:
            return
        chosen = [
            np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5)))
            for n in array.shape
        ]
        count = min(map(len, chosen))
        points = tuple(index[:count] for index in chosen)
        np.testing.assert_array_equal(array.oindex[tuple(chosen)], expected[np.ix_(*chosen)])
        np.testing.assert_array_equal(array.vindex[points], expected[points])
        last = tuple(n - 1 for n in array.grid.grid_shape)
        start = array.grid.cell_origin(last)
        np.testing.assert_array_equal(
            array.blocks[last], expected[tuple(slice(o, None) for o in start)]
        )


@settings(deadline=None, max_examples=150)
@given(st.data(), cases())
def test_every_write(data, case):
    metadata, values, rng = case
    array = Array.from_store(metadata, MemoryStore(keys_of(metadata, values)))
    for _ in range(3):
        selection = data.draw(basic(array.shape))
        value = data.draw(st.sampled_from([FILL, rng.integers(0, 2**31, dtype="i4")]))
        array[selection] = values[selection] = value
        np.testing.assert_array_equal(array[...], values)
        if values.size:
            points = tuple(rng.integers(0, n, 4) for n in array.shape)
            array.vindex[points] = values[points] = value
    np.testing.assert_array_equal(array[...], values)
    array[...] = FILL
    assert not array.chunk_source.store.data


class CountingFile:
    """Bytes that note which of them are read."""

    def __init__(self, data, uri, log, remote):
        self.data, self.uri, self.log, self.remote = data, uri, log, remote

    def read(self, start, stop, limit=None):
        stop = len(self.data) if stop is None else stop
        if stop > len(self.data):
            raise SourceError("too short")
        self.log.append((self.uri, start, stop))
        return self.data[start:stop]

    def tail(self, nbytes):
        return self.read(max(len(self.data) - nbytes, 0), None)

    def read_into(self, start, out):
        out[:] = self.read(start, start + out.nbytes)

    def open(self):
        return nullcontext(self)


class CountingStore(MemoryStore):
    """A store whose files note what is read."""

    def __init__(self, data, remote=True):
        super().__init__(data)
        self.log = []
        self.remote = remote

    def file(self, key):
        value = self.data.get(key)
        return None if value is None else CountingFile(value, key, self.log, self.remote)


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("remote", [False, True])
def test_only_the_bytes_that_are_needed_are_read(monkeypatch, location, remote):
    monkeypatch.setattr(virtualzarr.config, "remote_gap", 0)
    monkeypatch.setattr(virtualzarr.config, "local_gap", 0)
    values = np.arange(32 * 32, dtype="i4").reshape(32, 32)
    codec = sharding([4, 4], index_location=location)
    metadata = metadata_of((32, 32), RegularGrid((32, 32), (16, 16)), codec)
    index, chunk = 16 * 16 + 4, 64
    first = index if location == "start" else 0
    store = CountingStore(keys_of(metadata, values), remote)
    array = Array.from_store(metadata, store)

    np.testing.assert_array_equal(array[5, 20:23], values[5, 20:23])
    at = 0 if location == "start" else 16 * chunk
    place = first + 5 * chunk
    assert store.log == [("c/0/1", at, at + index), ("c/0/1", place, place + chunk)]

    store.log.clear()
    # Sub-chunks side by side in one shard are one read.
    np.testing.assert_array_equal(array[16:20, :], values[16:20, :])
    assert sorted(store.log) == sorted(
        [(key, at, at + index) for key in ("c/1/0", "c/1/1")]
        + [(key, first, first + 4 * chunk) for key in ("c/1/0", "c/1/1")]
    )
    store.log.clear()
    array[...]
    assert sum(stop - start for _, start, stop in store.log) == sum(map(len, store.data.values()))


def test_empty_sub_chunks_and_missing_shards_are_not_read():
    values = np.full((8, 8), FILL, "i4")
    values[0, 0], values[7, 7] = 1, 2
    metadata = metadata_of((8, 8), RegularGrid((8, 8), (4, 4)), sharding([2, 2]))
    store = CountingStore(keys_of(metadata, values, lambda cell: cell in [(0, 1), (1, 0)]))
    array = Array.from_store(metadata, store)
    np.testing.assert_array_equal(array[...], values)
    assert len(store.log) == 2
    np.testing.assert_array_equal(array[2:6], values[2:6])
    assert len(store.log) == 2 + 2  # indexes alone
    strict = Array(metadata, array.chunk_source, "x", fill_missing=False)
    assert strict[1, 1] == FILL
    for place in ((0, 4), (3, 3)):
        with pytest.raises(ChunkNotFoundError, match=r"variable x, chunk [01]\.[12]"):
            strict[place]


def test_shards_behind_a_transpose_are_read_in_part(monkeypatch):
    data = np.arange(8 * 12, dtype="i4").reshape(8, 12)
    turn = {"name": "transpose", "configuration": {"order": [1, 0]}}
    pipeline = Pipeline([turn, sharding([3, 2])])
    metadata = metadata_of((8, 12), RegularGrid((8, 12), (4, 6)), pipeline)
    store = CountingStore(keys_of(metadata, data))
    array = Array.from_store(metadata, store)
    assert array.chunks == (2, 3)
    assert array.shards == (4, 6)
    assert array.nchunks == 16
    np.testing.assert_array_equal(array[2:4, 3:6], data[2:4, 3:6])
    # Two sub-chunks along either axis: the index, and the last of the four.
    size = 2 * 3 * 4
    assert sorted(read[1:] for read in store.log) == [
        (3 * size, 4 * size),
        (4 * size, 4 * size + 68),
    ]
    block = pipeline.for_block((4, 6), "i4", FILL)
    np.testing.assert_array_equal(block.decode(store.data["c/1/0"]), data[4:, :6])


def test_arrays_with_shards_behind_a_transpose_are_made_and_compared():
    turn = {"name": "transpose", "configuration": {"order": [1, 2, 0]}}
    wishes = {"shape": (8, 9, 10), "dtype": "i4", "chunks": (4, 6, 10)}
    codecs = [turn, sharding([3, 5, 2])]
    array = virtualzarr.create_array({}, codecs=codecs, **wishes)
    assert array.chunks == (2, 3, 5)
    assert array.shards == (4, 6, 10)
    store = array.chunk_source.store
    virtualzarr.open_array(store, mode="r", codecs=codecs, **wishes)
    virtualzarr.open_array(store, mode="r", chunks=(2, 3, 5), shards=(4, 6, 10))
    with pytest.raises(MetadataError, match="write chunks of 3 are not a multiple of read chunks"):
        virtualzarr.create_array({}, codecs=codecs, **wishes | {"chunks": (3, 6, 10)})


def test_nested_shards_are_read_through_both_indexes():
    values = np.arange(64, dtype="i4")
    codec = sharding([16], sharding([4]).to_v3(), index_location="start")
    metadata = metadata_of((64,), RegularGrid((64,), (64,)), codec)
    store = CountingStore(keys_of(metadata, values))
    array = Array.from_store(metadata, store)
    assert array[37] == 37
    outer, inner = 4 * 16 + 4, 4 * 16 + 4
    shard = outer + 2 * (64 + inner)
    assert store.log == [
        ("c/0", 0, outer),
        ("c/0", shard + 64, shard + 64 + inner),
        ("c/0", shard + 16, shard + 32),
    ]
    assert array.chunks == (16,)
    assert array.shards == (64,)


def test_two_requests_for_a_sub_chunk_at_a_url(tmp_path, http_server, monkeypatch):
    monkeypatch.setattr(
        virtualzarr.config, "remote_gap", 0
    )  # no shard is small enough to fetch it whole
    values = np.arange(64, dtype="i4")
    metadata = metadata_of((64,), RegularGrid((64,), (32,)), sharding([4], LITTLE, "gzip"))
    for key, data in keys_of(metadata, values).items():
        path = tmp_path / key
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    array = Array.from_store(metadata, open_store(http_server(tmp_path)))
    http_server.requests.clear()
    assert array[33:36].tolist() == [33, 34, 35]
    assert http_server.requests == ["/c/1", "/c/1"]
    (tmp_path / "c" / "0").unlink()
    assert array[30:34].tolist() == [FILL, FILL, 32, 33]
    (tmp_path / "c" / "0").write_bytes(b"abc")
    with pytest.raises(CodecError, match=r"the shard has 3 bytes.*/c/0"):
        array[0]


def test_virtual_shards_within_a_file(tmp_path):
    values = np.arange(64, dtype="i4")
    metadata = metadata_of((64,), RegularGrid((64,), (32,)), sharding([4], BIG))
    parts = keys_of(metadata, values)
    path = tmp_path / "all.bin"
    path.write_bytes(b"head" + parts["c/0"] + b"gap" + parts["c/1"] + b"end")
    offset = [4, 4 + len(parts["c/0"]) + 3]
    sources = Sources([Source.from_file(path)])
    length = [len(parts["c/0"]), len(parts["c/1"])]
    manifest = Manifest((2,), sources, 0, offset, length)
    array = Array.from_manifest(metadata, manifest, "v")
    np.testing.assert_array_equal(array[::3], values[::3])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(array))[...], values)
    short = Array.from_manifest(metadata, Manifest((2,), sources, 0, offset, [length[0], 20]), "v")
    with pytest.raises(CodecError, match=r"has 20 bytes.*all\.bin, variable v"):
        short[40]
    path.unlink()
    with pytest.raises(SourceError, match=r"all\.bin"):
        array[0]


def test_chunks_that_decode_otherwise_are_not_taken_for_shards():
    values = np.arange(8, dtype="<i4")
    metadata = metadata_of((8,), RegularGrid((8,), (4,)), sharding([2]))
    shard = keys_of(metadata, values)["c/0"]
    heap = shard + values[4:].tobytes()
    manifest = Manifest(
        (2,),
        Sources([Source.inline(heap)]),
        0,
        [0, len(shard)],
        [len(shard), 16],
        (Decoder(Pipeline([LITTLE])),),
        np.array([-1, 0]),
    )
    np.testing.assert_array_equal(Array.from_manifest(metadata, manifest)[...], values)


@pytest.mark.parametrize("change", [b"\0", b"", None])
def test_corrupt_shards_are_named(change):
    values = np.arange(16, dtype="i4")
    metadata = metadata_of((16,), RegularGrid((16,), (8,)), sharding([4]))
    keys = {f"x/{key}": data for key, data in keys_of(metadata, values).items()}
    shard = keys["x/c/1"]
    keys["x/c/1"] = shard[:-1] + change if change else shard[: 0 if change is None else -8]
    array = Array.from_store(metadata, MemoryStore(keys), "x")
    assert array[3] == 3
    with pytest.raises(CodecError, match=r"index.*\[file x/c/1, variable x"):
        array[8]


def test_sub_chunks_that_do_not_decode_are_named():
    values = np.arange(16, dtype="i4")
    metadata = metadata_of((16,), RegularGrid((16,), (8,)), sharding([4], LITTLE, "crc32c"))
    keys = {f"x/{key}": data for key, data in keys_of(metadata, values).items()}
    keys["x/c/1"] = b"x" + keys["x/c/1"][1:]
    array = Array.from_store(metadata, MemoryStore(keys), "x")
    assert array[12] == 12
    with pytest.raises(CodecError, match=r"checksum.*\[file x/c/1, variable x, chunk 2\]"):
        array[8]


def test_chunks_shards_and_counts():
    array = Array.from_store(metadata_of((10, 9), RegularGrid((10, 9), (4, 6)), sharding([2, 3])),
                         MemoryStore({}))  # fmt: skip
    assert (array.chunks, array.shards, array.nchunks) == ((2, 3), (4, 6), 15)
    grid = RectilinearGrid((10, 9), [[4, 6], [9]])
    array = Array.from_store(metadata_of((10, 9), grid, sharding([2, 3])), MemoryStore({}))
    assert (array.chunks, array.shards) == ((2, 3), ((4, 6), (9,)))
    plain = metadata_of((10, 9), RegularGrid((10, 9), (4, 6)), Pipeline([LITTLE]))
    assert Array.from_store(plain, MemoryStore({})).shards is None
    whole = metadata_of((10, 9), RegularGrid((10, 9), (4, 6)), Pipeline([sharding([2, 3]), "gzip"]))
    array = Array.from_store(whole, MemoryStore({}))
    assert (array.chunks, array.shards, array.nchunks) == ((4, 6), None, 6)


def test_huge_arrays_take_no_memory():
    shape = (2**60, 2**40)
    metadata = metadata_of(shape, RegularGrid(shape, (2**20, 2**20)), sharding([2**10, 2**10]))
    array = Array.from_store(metadata, MemoryStore({}))
    assert array[2**59, 5:7].tolist() == [FILL, FILL]
    assert array.vindex[[0, 2**60 - 1], [0, 2**40 - 1]].tolist() == [FILL, FILL]


# -- shards that change ----------------------------------------------------------------------------


def stored(tmp_path, values, chunk=4, shard=32, codecs=(LITTLE,)):
    """Store an array in a folder, each shard written long enough ago to be trusted."""
    metadata = metadata_of(values.shape, RegularGrid(values.shape, (shard,)),
                           sharding([chunk], *codecs))  # fmt: skip
    store_shards(tmp_path, metadata, values)
    return Array.from_store(metadata, open_store(tmp_path))


def store_shards(tmp_path, metadata, values, age=60):
    (tmp_path / "c").mkdir(exist_ok=True)
    for key, data in keys_of(metadata, values).items():
        new = tmp_path / "new"
        new.write_bytes(data)
        now = new.stat().st_mtime
        os.utime(new, (now, now - age))
        new.rename(tmp_path / key)


@pytest.fixture
def settled(monkeypatch):
    """Trust the times of files at once, and not after seconds."""
    monkeypatch.setattr(virtualzarr.config, "settled_ns", 0)


@pytest.fixture
def parsed(monkeypatch):
    """Count the indexes that are parsed."""
    shard_indexes.clear()
    found = []
    original = shards._read_index

    def read_index(*args):
        before = shard_indexes.nbytes
        index = original(*args)
        found.append(shard_indexes.nbytes > before)
        return index

    monkeypatch.setattr(shards, "_read_index", read_index)
    return found


def test_indexes_are_kept_until_the_file_changes(tmp_path, parsed, settled):
    values = np.arange(64, dtype="i4")
    array = stored(tmp_path, values)
    assert array[0] == 0
    assert array[20] == 20
    assert parsed == [True, False]
    values[:4] = FILL  # all others move
    store_shards(tmp_path, array.metadata, values, age=30)
    assert array[20] == 20
    assert array[0] == FILL
    assert parsed == [True, False, True, False]


def test_indexes_of_files_just_written_are_not_kept(tmp_path, parsed):
    values = np.arange(64, dtype="i4")
    array = stored(tmp_path, values)
    store_shards(tmp_path, array.metadata, values, age=0)
    assert array[20] == 20
    assert shard_indexes.nbytes == 0
    assert parsed == [False]


def test_the_cache_has_a_limit(tmp_path, monkeypatch, settled):
    shard_indexes.clear()
    values = np.arange(640, dtype="i4")
    array = stored(tmp_path, values)
    monkeypatch.setattr(virtualzarr.config, "shard_index_bytes", 2000)
    np.testing.assert_array_equal(array[...], values)
    assert 0 < shard_indexes.nbytes <= 2000
    monkeypatch.setattr(virtualzarr.config, "shard_index_bytes", 0)
    np.testing.assert_array_equal(array[...], values)
    assert shard_indexes.nbytes == 0


@pytest.mark.parametrize("split", [0, 10**9])
def test_a_shard_replaced_between_index_and_data_is_read_again(tmp_path, monkeypatch, split):
    monkeypatch.setattr(virtualzarr.config, "partial_read_bytes", split)
    old, new = np.arange(64, dtype="i4"), np.arange(100, 164, dtype="i4")
    old[:4] = FILL
    array = stored(tmp_path, old)
    original = ShardedChunks._locate
    pending = [new, None, old, new]

    def locate(self, *args):
        located = original(self, *args)
        if pending and (values := pending.pop()) is not None:
            store_shards(tmp_path, array.metadata, values, age=len(pending))
        return located

    monkeypatch.setattr(ShardedChunks, "_locate", locate)
    result = array[...]
    assert len(pending) < 3
    for chunk in range(0, 64, 4):
        assert result[chunk : chunk + 4].tolist() in (
            old[chunk : chunk + 4].tolist(),
            new[chunk : chunk + 4].tolist(),
        )


def test_one_chunk_that_is_read_again_is_decoded_alone(tmp_path, monkeypatch):
    """Though those that were read before were decoded many at a time."""
    old, new = np.arange(64, dtype="i4"), np.arange(100, 164, dtype="i4")
    array = stored(tmp_path, old, codecs=(LITTLE, "zstd"))
    (tmp_path / "later").mkdir()
    store_shards(tmp_path / "later", array.metadata, new, age=30)
    original = ShardedChunks._locate

    def locate(self, *args):
        located = original(self, *args)
        monkeypatch.undo()
        os.replace(tmp_path / "later" / "c" / "1", tmp_path / "c" / "1")
        return located

    monkeypatch.setattr(ShardedChunks, "_locate", locate)
    assert array[24:36].tolist() == [*range(24, 32), *range(132, 136)]


def test_readers_see_shards_that_are_rewritten_all_the_time(tmp_path):
    one = np.arange(256, dtype="i4")
    two = one + 1000
    two[::8] = FILL
    two[:64] = FILL
    array = stored(tmp_path, one, shard=256, codecs=(LITTLE, "crc32c"))
    stop = threading.Event()

    def rewrite():
        while not stop.is_set():
            for values in (two, one):
                store_shards(tmp_path, array.metadata, values, age=0)

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        for _ in range(200):
            chunks = array[...].reshape(-1, 4)
            right = [(chunks == values.reshape(-1, 4)).all(axis=1) for values in (one, two)]
            assert (right[0] | right[1]).all()
    finally:
        stop.set()
        writer.join()


def test_a_virtual_shard_that_changed_is_an_error(tmp_path):
    values = np.arange(32, dtype="i4")
    array = stored(tmp_path, values)
    path = tmp_path / "c" / "0"
    manifest = Manifest((1,), Sources([Source.from_file(path)]), 0, [0], [path.stat().st_size])
    virtual = Array.from_manifest(array.metadata, manifest)
    np.testing.assert_array_equal(virtual[...], values)
    store_shards(tmp_path, array.metadata, values, age=5)
    with pytest.raises(SourceError, match="changed since it was scanned"):
        virtual[...]


def test_a_dangling_link_is_not_a_missing_shard(tmp_path):
    array = stored(tmp_path, np.arange(64, dtype="i4"))
    (tmp_path / "c" / "1").unlink()
    (tmp_path / "c" / "1").symlink_to(tmp_path / "gone")
    with pytest.raises(SourceError, match="symbolic link"):
        array[40]


def test_other_key_encodings(tmp_path):
    values = np.arange(64, dtype="i4").reshape(8, 8)
    metadata = metadata_of((8, 8), RegularGrid((8, 8), (4, 4)), sharding([2, 2]))
    metadata = metadata.replace(key_encoding=KeyEncoding("v2", "."))
    array = Array.from_store(metadata, MemoryStore(keys_of(metadata, values)))
    np.testing.assert_array_equal(array[...], values)


# -- writing ---------------------------------------------------------------------------------------


def test_sub_chunks_that_are_not_touched_keep_their_bytes():
    values = np.arange(64, dtype="i4").reshape(8, 8)
    gzip = {"name": "gzip", "configuration": {"level": 9}}
    codec = sharding([2, 2], LITTLE, gzip)
    metadata = metadata_of((8, 8), RegularGrid((8, 8), (4, 8)), codec)
    # Another level gives other bytes for the same elements.
    other = Pipeline([sharding([2, 2], LITTLE, gzip | {"configuration": {"level": 0}})])
    store = MemoryStore(keys_of(metadata.replace(pipeline=other), values))
    shard = codec.shard((4, 8))
    old = {i: bytes(part) for i, part in shard.split(store.data["c/1/0"]).items()}
    first = store.data["c/0/0"]
    array = Array.from_store(metadata, store)
    array[5, 3] = values[5, 3] = -1
    array[6:, 4:6] = values[6:, 4:6] = FILL
    np.testing.assert_array_equal(array[...], values)
    assert store.data["c/0/0"] == first
    new = {i: bytes(part) for i, part in shard.split(store.data["c/1/0"]).items()}
    assert old.keys() - new.keys() == {6}
    assert [i for i in new if new[i] != old[i]] == [1]


def test_chunks_of_nested_shards_that_are_not_touched_keep_their_bytes():
    values = np.arange(256, dtype="i4").reshape(16, 16)

    def nested(level):
        gzip = {"name": "gzip", "configuration": {"level": level}}
        turn = {"name": "transpose", "configuration": {"order": [1, 0]}}
        inner = sharding([2, 4], LITTLE, gzip, index_location="start").to_v3()
        return Pipeline([turn, sharding([8, 8], turn, inner)])

    metadata = metadata_of((16, 16), RegularGrid((16, 16), (16, 16)), nested(9))
    store = MemoryStore(keys_of(metadata.replace(pipeline=nested(0)), values))
    array = Array.from_store(metadata, store)

    def chunks():
        outer = find_sharding(metadata.pipeline)
        inner = find_sharding(outer.pipeline)
        deeper = inner.shard((8, 8))
        return {
            (i, k): bytes(data)
            for i, part in outer.shard((16, 16)).split(store.data["c/0/0"]).items()
            for k, data in deeper.split(part).items()
        }

    old = chunks()
    assert len(old) == 4 * 8
    array[3, 9] = values[3, 9] = -1
    array[8:, :8] = values[8:, :8] = FILL
    np.testing.assert_array_equal(array[...], values)
    new = chunks()
    # The first axis is the fastest of the outer index; the one within is turned back again.
    assert {i for i, _ in old.keys() - new.keys()} == {1}
    assert [(i, k) for i, k in new if new[i, k] != old[i, k]] == [(2, 2)]


def test_a_corrupt_nested_shard_can_be_written_over():
    metadata = metadata_of((8,), RegularGrid((8,), (8,)), sharding([4], sharding([2]).to_v3()))
    outer = find_sharding(metadata.pipeline)
    store = MemoryStore(keys_of(metadata, np.arange(8, dtype="i4")))
    parts = outer.shard((8,)).split(store.data["c/0"])
    store.data["c/0"] = outer.shard((8,)).join(parts | {1: bytes(parts[1])[:-1] + b"\0"})
    array = Array.from_store(metadata, store)
    array[1:3] = [-1, -2]
    with pytest.raises(CodecError, match=r"index is corrupt.*c/0"):
        array[5] = 1
    array[4:] = [4, 3, 2, 1]
    assert array[...].tolist() == [0, -1, -2, 3, 4, 3, 2, 1]


@pytest.mark.parametrize("nested", [False, True])
def test_a_corrupt_shard_is_not_written_over_in_part(nested):
    codec = sharding([4], sharding([2]).to_v3()) if nested else sharding([4])
    metadata = metadata_of((16,), RegularGrid((16,), (8,)), codec)
    store = MemoryStore(keys_of(metadata, np.arange(16, dtype="i4")))
    broken = store.data["c/1"] = store.data["c/1"][:-1] + b"\0"
    array = Array.from_store(metadata, store)
    with pytest.raises(CodecError, match=r"index is corrupt.*c/1"):
        array[9] = 1
    assert store.data["c/1"] == broken
    array[8:] = np.arange(8)
    assert array[8:].tolist() == list(range(8))


ROWS = """
import sys
from virtualzarr.hierarchy.open_node import open_hierarchy
from virtualzarr.stores import open_store
array = open_hierarchy(open_store(sys.argv[1]))
sys.stdin.read(1)
for row in range(int(sys.argv[2]), array.shape[0], 3):
    array[row] = row + 1
    assert (array[row] == row + 1).all()
"""


def test_processes_that_write_parts_of_one_shard_lose_none(tmp_path):
    """Each sub-chunk is shared by two of the processes, and the shard by all."""
    codec = sharding([2, 4], LITTLE, "crc32c")
    metadata = metadata_of((48, 8), RegularGrid((48, 8), (48, 8)), codec)
    (tmp_path / "zarr.json").write_text(json.dumps(array_to_v3(metadata)))
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", ROWS, str(tmp_path), str(i)], stdin=subprocess.PIPE, text=True
        )
        for i in range(3)
    ]
    for writer in writers:
        writer.communicate("g")
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    array = Array.from_store(metadata, open_store(tmp_path))
    np.testing.assert_array_equal(array[...], np.arange(1, 49)[:, None] + np.zeros(8, "i4"))
    assert [path.name for path in (tmp_path / "c" / "0").iterdir()] == ["0"]
