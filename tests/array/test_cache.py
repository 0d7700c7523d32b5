"""Decoded chunks in memory: never another's, never stale, never more than the limit."""

import json
import math
import multiprocessing
import os
import pickle
import sys
import threading
import time
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from tests.array.test_writing_machine import KINDS as KINDS_OF_WRITING
from tests.array.test_writing_machine import Writing
from tests.conftest import RangeHandler
from virtualzarr import ChunkCache
from virtualzarr.array.read import cached_blocks as kept
from virtualzarr.array.read import chunk_cache as caches
from virtualzarr.array.read import shard_indexes as shards
from virtualzarr.array.read.cache_policy import CachePolicy, resolve_recheck
from virtualzarr.codecs.core.block import BlockCodec
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.stores import LocalStore, ZipStore
from virtualzarr.stores import local as local_stores
from virtualzarr.stores.files import Fingerprint, LocalFile
from virtualzarr.stores.pins import Pin

DATA = np.arange(24 * 24, dtype="i4").reshape(24, 24)
MIB = 1 << 20


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    """Trust the times of files at once, and not after seconds."""
    monkeypatch.setattr(vz.config, "settled_ns", 0)
    shards.shard_indexes.clear()


@pytest.fixture
def decoded(monkeypatch):
    """Count the blocks that are decoded."""
    found = []
    original = BlockCodec.decode_into

    def decode_into(self, *args):
        if self.dtype != np.uint64:  # those are the indexes of shards
            found.append(self)
        return original(self, *args)

    monkeypatch.setattr(BlockCodec, "decode_into", decode_into)
    return found


class another_process:
    """Write as another process would: nobody here is told, but the times of files go on."""

    ticks = 0

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        self.before = self.times()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(local_stores, "notify_change", lambda uri: None)

    def __exit__(self, *error):
        self.patch.undo()
        for path, facts in self.times().items():
            if self.before.get(path) != facts:
                # The clock of files may stand still between two writes.
                another_process.ticks += 1
                os.utime(path, (another_process.ticks, another_process.ticks))

    def times(self):
        found = {}
        for folder, _, names in os.walk(self.folder):
            for name in names:
                facts = os.stat(os.path.join(folder, name))
                found[os.path.join(folder, name)] = (facts.st_ino, facts.st_mtime_ns)
        return found


def make(place, kind, data=DATA, **options):
    """Make an array of chunks of 6 x 6, and return it."""
    options = {
        "plain": {"chunks": (6, 6)},
        "v2": {"chunks": (6, 6), "zarr_format": 2},
        "raw": {"chunks": (6, 6), "compressors": None},
        "listed": {"chunks": [[6, 6, 12], [6, 18]]},
        "shards": {"chunks": (6, 6), "shards": (12, 12)},
        "nested": {"chunks": (12, 24), "codecs": NESTED},
    }[kind] | options
    return vz.create_array(place, data=data, overwrite=True, **options)


LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
INNER = {"chunk_shape": [6, 6], "codecs": [LITTLE, "crc32c"]}
NESTED = [
    {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": [12, 12],
            "codecs": [{"name": "sharding_indexed", "configuration": INNER}],
        },
    }
]
KINDS = ("plain", "v2", "raw", "listed", "shards", "nested")


@pytest.mark.parametrize("bound", [True, "open", False, 3600])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_is_neither_read_nor_decoded(tmp_path, kind, bound, decoded, monkeypatch):
    make(tmp_path / "a.zarr", kind)
    cache = ChunkCache(MIB)
    array = vz.open(tmp_path / "a.zarr", cache=cache, recheck_cached_data=bound)
    np.testing.assert_array_equal(array[2:20, ::-3], DATA[2:20, ::-3])
    assert decoded
    count = len(cache)
    decoded.clear()

    def refuse(self, *args):
        raise AssertionError("the file was read")

    monkeypatch.setattr(LocalFile, "read", refuse)
    monkeypatch.setattr(LocalFile, "open", refuse)
    monkeypatch.setattr(LocalStore, "read_small_files", refuse)
    for _ in range(2):
        np.testing.assert_array_equal(array[2:20, ::-3], DATA[2:20, ::-3])
        assert array[5, 20] == DATA[5, 20]
        np.testing.assert_array_equal(
            array.vindex[[3, 3, 9], [2, 2, 8]], DATA[[3, 3, 9], [2, 2, 8]]
        )
        np.testing.assert_array_equal(array.oindex[[3, 3], :], DATA[[3, 3]])
    assert not decoded
    assert len(cache) == count


@pytest.mark.parametrize("place", ["memory", "zip", "remote", "virtual", "shard"])
def test_chunks_from_everywhere_are_kept(tmp_path, place, decoded, monkeypatch):
    monkeypatch.setattr(vz.config, "settled_ns", 0)  # files were written just now
    options = {"cache": ChunkCache(MIB), "recheck_cached_data": "open"}
    if place == "memory":
        store = {}
        make(store, "plain")
        array = vz.open(store, **options)
    elif place == "zip":
        with ZipStore(tmp_path / "a.zip", "w") as store:
            make(store, "plain")
        array = vz.open(tmp_path / "a.zip", **options)
    elif place == "remote":
        make("memory://cached/a.zarr", "shards")
        array = vz.open("memory://cached/a.zarr", **options)
    else:
        stored = make(tmp_path / "a.zarr", "plain" if place == "virtual" else "shards")
        array = virtual_of(stored, tmp_path / "a.zarr")
        array.cache_policy = CachePolicy(options["cache"], data="open")
    np.testing.assert_array_equal(array[...], DATA)
    assert len(decoded) == 16
    np.testing.assert_array_equal(array[...], DATA)
    assert len(decoded) == 16
    assert array.cache_policy.cache.hits == 16


def virtual_of(stored, folder):
    """Return an array whose chunks are references to those of a stored one."""
    cells = np.argwhere(stored.chunk_exists())
    paths = [folder / stored.metadata.key_encoding.key(tuple(cell)) for cell in cells.tolist()]
    shape = stored.grid.grid_shape
    rows = np.arange(len(paths)).reshape(shape)
    length = np.array([path.stat().st_size for path in paths]).reshape(shape)
    sources = Sources([Source.from_file(path) for path in paths])
    return vz.Array.from_manifest(stored.metadata, Manifest(shape, sources, rows, 0 * rows, length))


# -- never another's -------------------------------------------------------------------------


def test_what_looks_alike_is_not_mistaken(tmp_path):
    cache = ChunkCache(MIB)
    one, two = {}, {}
    make(one, "raw", cache=cache)
    make(two, "raw", DATA + 1)
    a, b = vz.open(one, cache=cache), vz.open(two, cache=cache)
    np.testing.assert_array_equal(a[...], DATA)
    np.testing.assert_array_equal(b[...], DATA + 1)
    # The same bytes, but other numbers.
    options = {"chunks": (6, 6), "compressors": None, "assume": True, "cache": cache}
    c = vz.open_array(one, shape=(24, 24), dtype="f4", **options)
    np.testing.assert_array_equal(c[...], DATA.view("f4"))
    d = vz.open_array(one, shape=(24, 24), dtype="i4", order="F", **options)
    np.testing.assert_array_equal(d[:6, :6], DATA[:6, :6].T)
    np.testing.assert_array_equal(a[...], DATA)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_parts_of_one_file_are_told_apart(data, tmp_path_factory):
    """References with any ranges of one file, decoded as one of two types."""
    path = tmp_path_factory.getbasetemp() / "heap.bin"
    heap = np.random.default_rng(0).integers(0, 255, 200, "u1")
    path.write_bytes(heap.tobytes())
    offsets = data.draw(st.lists(st.integers(0, 180), min_size=8, max_size=8))
    cache = ChunkCache(data.draw(st.sampled_from([900, 5000, MIB])))
    arrays = []
    for dtype in ("<i4", "<f4"):
        like = vz.create_array({}, shape=(32,), chunks=(4,), dtype=dtype, compressors=None)
        manifest = Manifest((8,), Sources([Source.from_file(path)]), 0, offsets, 16)
        array = vz.Array.from_manifest(like.metadata, manifest)
        array.cache_policy = CachePolicy(
            cache, data=data.draw(st.sampled_from([True, False, "open"]))
        )
        arrays.append((array, np.concatenate([heap[i : i + 16] for i in offsets]).view(dtype)))
    for which, start, stop in data.draw(
        st.lists(st.tuples(st.integers(0, 1), st.integers(0, 31), st.integers(0, 32)), max_size=6)
    ):
        array, expected = arrays[which]
        np.testing.assert_array_equal(array[start:stop], expected[start:stop])
        assert cache.nbytes <= cache.limit


# -- never stale -----------------------------------------------------------------------------

ROWS = st.tuples(st.integers(0, 23), st.integers(0, 23)).map(lambda pair: slice(*sorted(pair)))


@pytest.mark.parametrize("bound", [True, "open", False, 3600.0, 0.0])
@pytest.mark.parametrize("kind", ["plain", "listed", "shards", "nested"])
@settings(max_examples=8, deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from("rrrwworo"), ROWS, ROWS), min_size=4, max_size=25))
def test_reads_are_of_a_version_that_the_bound_allows(tmp_path_factory, kind, bound, steps):
    """Own writes always show; those of others at once, or as late as after opening anew."""
    folder = tmp_path_factory.mktemp("a")
    make(folder, kind)
    cache = ChunkCache(40 * 300)
    options = {"mode": "r+", "cache": cache, "recheck_cached_data": bound}
    array, other = vz.open(folder, **options), vz.open(folder, mode="r+")
    versions = [DATA.copy()]  # that a read may see, the newest last
    exact = bound in (True, 0.0) and bound is not False
    for number, (step, rows, columns) in enumerate(steps):
        if step == "w":
            writer = (array, other)[number % 2]
            writer[rows, columns] = 1000 + number
            for version in versions:
                version[rows, columns] = 1000 + number
        elif step == "o":
            with another_process(folder):
                other[rows, columns] = 1000 + number
            new = versions[-1].copy()
            new[rows, columns] = 1000 + number
            versions = [new] if exact else [*versions, new]
        elif bound == "open":
            array = vz.open(folder, **options)
            versions = versions[-1:]
        found = array[rows, columns]
        allowed = [found == version[rows, columns] for version in versions]
        assert np.any(allowed, axis=0).all()
        assert cache.nbytes <= cache.limit


@pytest.mark.parametrize("name", ["regular-v3-local", "rectilinear-local", "sharded"])
def test_what_is_written_appended_and_resized_is_never_read_from_before(name, monkeypatch):
    monkeypatch.setattr(vz.config, "chunk_cache_bytes", 20_000)
    monkeypatch.setattr(vz.config, "recheck_cached_data", False)
    case = type("Machine", (Writing,), KINDS_OF_WRITING[name]).TestCase
    case.settings = settings(max_examples=12, stateful_step_count=15, deadline=None)
    before = caches._shared.hits
    case().runTest()
    assert caches._shared.hits > before


def test_bounds_say_when_others_are_noticed(tmp_path):
    make(tmp_path, "plain")
    other = vz.open(tmp_path, mode="r+")
    now = time.time()
    bounds = [True, "always", 0, now + 60, "open", False, "never", 3600, now - 60]
    arrays = [vz.open(tmp_path, cache=ChunkCache(MIB), recheck_cached_data=b) for b in bounds]
    assert [int(array[0, 0]) for array in arrays] == [0] * 9
    with another_process(tmp_path):
        other[0, 0] = 7
    assert [int(array[0, 0]) for array in arrays] == [7, 7, 7, 7, 0, 0, 0, 0, 0]
    again = [vz.open(tmp_path, cache=array.cache_policy.cache, recheck_cached_data=bound)
             for bound, array in zip(bounds, arrays, strict=True)]  # fmt: skip
    assert [int(array[0, 0]) for array in again] == [7, 7, 7, 7, 7, 0, 0, 0, 0]
    # What was seen anew holds for those whose bound it meets.
    late = vz.open(tmp_path, cache=arrays[5].cache_policy.cache, recheck_cached_data=True)
    assert (late[0, 0], again[5][0, 0]) == (7, 7)


def test_files_that_just_changed_are_not_trusted(tmp_path, monkeypatch, decoded):
    monkeypatch.setattr(vz.config, "settled_ns", 10**12)
    make(tmp_path, "plain")
    cache = ChunkCache(MIB)
    array = vz.open(tmp_path, cache=cache)
    assert (array[0, 0], array[0, 0], len(decoded), len(cache)) == (0, 0, 2, 0)
    array = vz.open(tmp_path, cache=cache, recheck_cached_data="open")
    assert (array[0, 0], array[0, 0], len(decoded), len(cache)) == (0, 0, 3, 1)


def test_a_chunk_that_is_written_while_it_is_read_is_not_kept(tmp_path, monkeypatch):
    make(tmp_path, "raw")
    array = vz.open(tmp_path, mode="r+", cache=ChunkCache(MIB), recheck_cached_data=False)
    original = kept.CachedBlocks.decode

    def block(self, *args):
        monkeypatch.undo()
        array[0, 0] = 7  # after its bytes were read
        return original(self, *args)

    monkeypatch.setattr(kept.CachedBlocks, "decode", block)
    assert array[0, 0] == 0
    assert array[0, 0] == 7


@pytest.mark.parametrize("bound", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_resizing_and_deleting_drop_what_is_kept(tmp_path, kind, bound):
    make(tmp_path / "g" / "a", kind)
    group = vz.open_group(tmp_path / "g", mode="a")
    cache = ChunkCache(MIB)
    array = vz.open(tmp_path / "g" / "a", mode="r+", cache=cache, recheck_cached_data=bound)
    np.testing.assert_array_equal(array[...], DATA)
    array.resize((20, 3))
    array.resize((24, 24))
    expected = np.zeros_like(DATA)
    expected[:20, :3] = DATA[:20, :3]
    np.testing.assert_array_equal(array[...], expected)
    array.append(DATA[:2])
    np.testing.assert_array_equal(array[24:], DATA[:2])
    group.delete("a")
    assert len(cache) == 0
    new = make(tmp_path / "g" / "a", kind, DATA + 5)
    new.cache_policy = array.cache_policy
    np.testing.assert_array_equal(new[...], DATA + 5)


def test_chunks_at_urls_are_dropped_when_they_are_written():
    make("memory://rewritten/a.zarr", "plain")
    options = {"cache": ChunkCache(MIB), "recheck_cached_data": False}
    array = vz.open("memory://rewritten/a.zarr", mode="r+", **options)
    np.testing.assert_array_equal(array[...], DATA)
    array[1:3] = 5
    assert (array[1:3] == 5).all()
    array.resize((2, 2))
    array.resize((4, 4))
    assert array[...].tolist() == [[0, 1, 0, 0], [5, 5, 0, 0], [0] * 4, [0] * 4]


# -- remote: requests ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "bound", "first", "again"),
    [("plain", "open", 1, 0), ("plain", False, 1, 0), ("plain", 3600, 1, 0),
     ("shards", "open", 2, 0), ("shards", True, 2, 2)],
)  # fmt: skip
def test_requests(tmp_path, http_server, kind, bound, first, again):
    make(tmp_path / "a.zarr", kind)
    url = http_server(tmp_path) + "/a.zarr"
    array = vz.open(url, cache=ChunkCache(MIB), recheck_cached_data=bound)
    counts = []
    for _ in range(2):
        http_server.requests.clear()
        assert array[3, 3] == DATA[3, 3]
        counts.append(len(http_server.requests))
    assert counts == [first, again]


@pytest.fixture
def dated_server(tmp_path):
    """Serve the folder, with dates of files; give its URL."""

    class Dated(RangeHandler):
        def send_header(self, name, value):
            super().send_header(name, value)
            if name == "Accept-Ranges":
                status = os.stat(self.translate_path(self.path))
                super().send_header("Last-Modified", self.date_time_string(status.st_mtime))

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Dated, directory=str(tmp_path)))
    server.requests = []
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("bound", [True, "open", False, 3600])
def test_sub_chunks_at_urls_are_of_the_version_of_their_index(
    tmp_path, dated_server, monkeypatch, bound
):
    """One that is kept of another version would be read for what lies there now."""
    monkeypatch.setattr(vz.config, "remote_gap", 0)
    versions = [[1, 0, 2], [0, 5, 6]]
    contents = []
    for version in versions:
        array = vz.create_array(
            tmp_path / "a.zarr", shape=(1200,), chunks=(400,), shards=(1200,), dtype="i4",
            compressors=None, fill_value=0, overwrite=True,
        )  # fmt: skip
        array[...] = np.repeat(version, 400)
        contents.append((tmp_path / "a.zarr" / "c" / "0").read_bytes())
    url, shard = dated_server + "/a.zarr", tmp_path / "a.zarr" / "c" / "0"
    for first, second in [(0, 1), (1, 0)]:
        for part in np.s_[:400], np.s_[400:800], np.s_[800:], np.s_[:]:
            shards.shard_indexes.clear()
            shard.write_bytes(contents[first])
            date(tmp_path, first)
            array = vz.open(url, cache=ChunkCache(MIB), recheck_cached_data=bound)
            np.testing.assert_array_equal(array[part], np.repeat(versions[first], 400)[part])
            shard.write_bytes(contents[second])
            date(tmp_path, second)
            values = array[...][::400].tolist()
            assert values in (versions if bound is not True else versions[second:][:1])


@pytest.mark.parametrize("has_cache", [True, False])
@pytest.mark.parametrize("bound", [True, "open", False, 3600])
@pytest.mark.parametrize("versions", [[[1, 1, 1], [2, 0, 0]], [[1, 0, 1], [2, 5, 2]]])
def test_what_was_kept_of_a_shard_that_was_seen_replaced_is_not_used(
    tmp_path, dated_server, monkeypatch, bound, versions, has_cache
):
    """It may have become shorter, too: there are no bytes any more where a chunk was."""
    monkeypatch.setattr(vz.config, "remote_gap", 0)
    contents = []
    for version in versions:
        array = vz.create_array(
            tmp_path / "a.zarr", shape=(1200,), chunks=(400,), shards=(1200,), dtype="i4",
            compressors=None, fill_value=0, overwrite=True,
        )  # fmt: skip
        array[...] = np.repeat(version, 400)
        contents.append((tmp_path / "a.zarr" / "c" / "0").read_bytes())
    shard = tmp_path / "a.zarr" / "c" / "0"
    shard.write_bytes(contents[0])
    date(tmp_path, 0)
    cache = ChunkCache(MIB) if has_cache else None
    array = vz.open(dated_server + "/a.zarr", cache=cache, recheck_cached_data=bound)
    assert array[0] == versions[0][0]
    shard.write_bytes(contents[1])
    date(tmp_path, 1)
    assert array[1199] == versions[1][2]  # nothing of it was kept
    assert [array[400], array[1199]] == versions[1][1:]


@pytest.mark.parametrize("bound", [True, "open", False, 3600])
def test_references_are_held_to_a_version_with_a_cache_as_without(tmp_path, dated_server, bound):
    """Where they note none, the first that is read of a file decides."""
    path, url = tmp_path / "f.bin", dated_server
    array = {"zarr_format": 2, "shape": [40], "chunks": [10], "dtype": "<i4", "fill_value": 0,
             "order": "C", "filters": None, "compressor": None}  # fmt: skip
    refs = {".zgroup": '{"zarr_format": 2}', "x/.zarray": json.dumps(array)}
    refs |= {f"x/{i}": [f"{url}/f.bin", 40 * i, 40] for i in range(4)}

    def place(value):
        path.write_bytes(np.full(40, value, "i4").tobytes())
        date(tmp_path, value)

    place(1)
    options = {"cache": ChunkCache(MIB), "recheck_cached_data": bound}
    opened = vz.open({"version": 1, "refs": refs}, **options)["x"]
    assert opened[:10].tolist() == [1] * 10
    place(2)
    for selection in np.s_[10:20], np.s_[:]:
        with pytest.raises(vz.errors.SourceChangedError):
            opened[selection]
    assert vz.open({"version": 1, "refs": refs})["x"][:].tolist() == [2] * 40


def date(folder, number):
    """Give files one of several dates long ago."""
    for path in folder.rglob("*"):
        os.utime(path, (10**9 + number,) * 2)


def test_indexes_at_urls_are_kept_as_the_bound_allows(tmp_path, http_server, monkeypatch):
    monkeypatch.setattr(vz.config, "remote_gap", 0)  # no shard is small enough to fetch it whole
    make(tmp_path / "a.zarr", "shards")
    url = http_server(tmp_path) + "/a.zarr"
    for bound, expected in ((True, [2, 2]), ("open", [2, 1])):
        array = vz.open(url, recheck_cached_data=bound)
        counts = []
        for _ in range(2):
            http_server.requests.clear()
            assert array[3, 3] == DATA[3, 3]
            counts.append(len(http_server.requests))
        assert counts == expected


def test_entity_tags_tell_versions_apart(monkeypatch):
    """A server that sends them is asked before each use, and its data not sent again."""
    from fsspec.implementations.memory import MemoryFileSystem

    make("memory://tagged/a.zarr", "plain")
    fs = MemoryFileSystem()
    original = MemoryFileSystem.info
    reads = []

    def info(self, path, **options):
        found = original(self, path, **options)
        return found | {"ETag": str(hash(self.store[found["name"]].getvalue()))}

    def cat_file(self, path, *args, **options):
        reads.append(path)
        return MemoryFileSystem.__mro__[1].cat_file(self, path, *args, **options)

    monkeypatch.setattr(MemoryFileSystem, "info", info)
    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
    array = vz.open("memory://tagged/a.zarr", cache=ChunkCache(MIB))
    reads.clear()
    assert (array[0, 0], array[0, 1], len(reads)) == (0, 1, 1)
    fs.pipe_file("/tagged/a.zarr/c/0/0", fs.cat_file("/tagged/a.zarr/c/1/1"))
    reads.clear()
    assert (array[0, 0], array[0, 0], len(reads)) == (DATA[6, 6], DATA[6, 6], 1)
    monkeypatch.setattr(MemoryFileSystem, "info", original)
    reads.clear()
    assert (array[0, 0], array[0, 0], len(reads)) == (DATA[6, 6], DATA[6, 6], 2)


# -- indexes of shards -----------------------------------------------------------------------


@pytest.mark.parametrize("bound", [True, "open", False, 3600])
def test_indexes_follow_the_bound(tmp_path, monkeypatch, bound):
    """Without looking at the file only where the bound allows it, and never wrong after that."""
    make(tmp_path, "shards")
    array = vz.open(tmp_path, recheck_cached_data=bound)
    assert array[0, 0] == 0
    looks = []
    original = shards.stat_version
    monkeypatch.setattr(shards, "stat_version", lambda p: looks.append(p) or original(p))
    assert array[0, 7] == 7
    assert bool(looks) is (bound is True)
    with another_process(tmp_path):
        vz.open(tmp_path, mode="r+")[:6, :6] = np.arange(36).reshape(6, 6) * 10**6 // 7
    assert array[0, 1] == 10**6 // 7
    np.testing.assert_array_equal(array[6:], DATA[6:])


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("versions", [[[6, 0, 0, 4], [0, 7, 0, 4]], [[6, 5, 0, 0], [0, 0, 7, 4]]])
@pytest.mark.parametrize("same_tick", [False, True])
@pytest.mark.parametrize("settled_ns", [0, 10**12])
def test_shards_replaced_by_ones_that_look_alike(
    tmp_path, monkeypatch, settled_ns, same_tick, versions, levels
):
    """Of equal size and date, at any moment: all is of one version, as is its place."""
    if same_tick and not settled_ns:
        pytest.skip("such a file counts as settled only where no two changes fall into one tick")
    monkeypatch.setattr(vz.config, "settled_ns", settled_ns)
    contents = contents_of_shards(tmp_path, versions, levels)
    assert len(contents[0]) == len(contents[1])
    assert contents[0] != contents[1]
    if same_tick:  # and the inode of the one that was replaced
        monkeypatch.setattr(
            caches, "_fingerprint_of", lambda status: Fingerprint(status.st_size, 10**18, "same")
        )
    wait = 0 if settled_ns else 0.02  # more than a tick
    for first in (0, 1):
        for values in read_while_replaced(
            tmp_path, monkeypatch, contents[first], contents[1 - first], wait
        ):
            assert values in versions


@pytest.mark.parametrize("bound", [True, "open", 1000, "never"])
def test_arrays_made_anew_with_larger_shards(tmp_path, monkeypatch, bound):
    """The length that is kept of the old one is no reason to call the new one damaged."""
    monkeypatch.setattr(vz.config, "settled_ns", -1)

    def make(shards, value):
        with another_process(tmp_path / "a"):
            array = vz.create_array(
                tmp_path / "a", shape=(8, 8), dtype="i8", chunks=(2, 2), shards=shards,
                compressors=None, overwrite=True,
            )  # fmt: skip
            array[:2, :2] = value

    make((4, 8), 1)
    assert vz.open(tmp_path / "a", recheck_cached_data=bound)[0, 0] == 1
    make((8, 8), 2)
    for _ in range(2):
        assert vz.open(tmp_path / "a", recheck_cached_data=bound)[0, 0] == 2


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("settled_ns", [0, 10**12])
def test_shards_deleted_or_written_while_they_are_read(tmp_path, monkeypatch, settled_ns, levels):
    """All of them is there, or nothing."""
    monkeypatch.setattr(vz.config, "settled_ns", settled_ns)
    versions = [[6, 1, 5, 4], [0, 0, 0, 0]]
    (shard,) = contents_of_shards(tmp_path, versions[:1], levels)
    monkeypatch.setattr(vz.config, "local_read", 64)  # chunks are read one by one
    for first, second in [(shard, None), (None, shard)]:
        seen = read_while_replaced(tmp_path, monkeypatch, first, second)
        assert all(values in versions for values in seen)
        for values in read_while_replaced(tmp_path, monkeypatch, first, second, fill_missing=False):
            assert values == versions[0] or isinstance(values, vz.errors.ChunkNotFoundError)


@pytest.mark.parametrize("settled_ns", [0, 10**12])
def test_shards_that_are_written_to_in_place_with_their_date_restored(
    tmp_path, monkeypatch, settled_ns
):
    """After they were opened: only the time of the last change tells."""
    monkeypatch.setattr(vz.config, "settled_ns", settled_ns)
    versions = [[6, 0, 0, 4], [0, 7, 0, 4]]
    contents = contents_of_shards(tmp_path, versions, 1)
    shard, look = tmp_path / "a.zarr" / "c" / "0", os.fstat

    def write(content):
        with open(shard, "r+b") as file:
            file.write(content)
        os.utime(shard, (10**9, 10**9))
        time.sleep(0.02)  # more than a tick

    for number in range(6):
        write(contents[0])
        left = [number]

        def look_and_write(descriptor, left=left):
            status = look(descriptor)
            left[0] -= 1
            if left[0] == -1:
                write(contents[1])
            return status

        monkeypatch.setattr(os, "fstat", look_and_write)
        values = vz.open(str(tmp_path / "a.zarr"))[:][::8].tolist()
        monkeypatch.setattr(os, "fstat", look)
        assert values in versions


def contents_of_shards(folder, versions, levels):
    """Return the contents of a shard for each version, of which every value is a chunk."""
    bytes_codec = [{"name": "bytes", "configuration": {"endian": "little"}}]
    codecs = bytes_codec
    for chunk in (8, 16)[:levels]:
        configuration = {"chunk_shape": [chunk], "codecs": codecs}
        codecs = [{"name": "sharding_indexed", "configuration": configuration}]
    contents = []
    for version in versions:
        array = vz.create_array(
            str(folder / "a.zarr"), shape=(32,), codecs=codecs, chunks=(32,), dtype="i8",
            fill_value=0, overwrite=True,
        )  # fmt: skip
        array[...] = np.repeat(version, 8)
        contents.append((folder / "a.zarr" / "c" / "0").read_bytes())
    return contents


def read_while_replaced(folder, monkeypatch, first, second, wait=0, fill_missing=True):
    """Read chunks while their shard is replaced, before each time that it is opened in turn.

    None as contents is no file. Errors of missing chunks are given as they are.
    """
    shard, new = str(folder / "a.zarr" / "c" / "0"), str(folder / "new")
    opened = os.open

    def place(content):
        if content is None:
            Path(shard).unlink(missing_ok=True)
        else:
            Path(new).write_bytes(content)
            os.utime(new, (10**9, 10**9))
            os.replace(new, shard)
        time.sleep(wait)

    for moment in range(6):
        place(first)
        left = [moment]

        def replace_then_open(path, *args, left=left, **kwargs):
            if path == shard:
                if not left[0]:
                    place(second)
                left[0] -= 1
            return opened(path, *args, **kwargs)

        monkeypatch.setattr(os, "open", replace_then_open)
        array = vz.open(str(folder / "a.zarr"))
        array.fill_missing = fill_missing
        try:
            yield array[:][::8].tolist()
        except vz.errors.ChunkNotFoundError as error:
            yield error
        finally:
            monkeypatch.setattr(os, "open", opened)


@pytest.mark.parametrize("settled_ns", [0, 10**12])
def test_shards_of_references_are_of_the_version_that_others_read(
    tmp_path, monkeypatch, settled_ns
):
    """Where the references note none, the first that is read of a file decides."""
    monkeypatch.setattr(vz.config, "settled_ns", settled_ns)
    path = tmp_path / "shard"
    path.write_bytes(b"abc")
    pin = Pin()
    located = LocalFile(str(path), None, pin)
    assert bytes(shards._pin_version(located, math.inf).read(0, 3)) == b"abc"
    (tmp_path / "new").write_bytes(b"xyz")
    os.utime(tmp_path / "new", (10**9, 10**9))
    os.replace(tmp_path / "new", path)
    with pytest.raises(vz.errors.SourceChangedError):
        shards._pin_version(located, math.inf)


# -- never more than the limit ---------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 23), st.integers(1, 24)), min_size=1, max_size=12),
       st.integers(0, 6000))  # fmt: skip
def test_no_more_is_kept_than_the_limit(requests, limit):
    store = {}
    make(store, "plain")
    cache = ChunkCache(limit)
    array = vz.open(store, cache=cache)
    for start, count in requests:
        np.testing.assert_array_equal(array[start : start + count], DATA[start : start + count])
        blocks = [value for value, _ in cache._entries.values()]
        assert all(block.flags.owndata and not block.flags.writeable for block in blocks)
        real = sum(sys.getsizeof(value) for value in blocks)
        assert real <= sum(nbytes for _, nbytes in cache._entries.values()) == cache.nbytes <= limit
    # At least 2 x 144 bytes and what an entry takes: something is kept where there is room.
    assert (len(cache) > 0) == (limit > 2000) or 600 < limit <= 2000
    cache.limit = 0
    assert (len(cache), cache.nbytes) == (0, 0)
    array[...]
    assert len(cache) == 0


def test_memory_is_that_of_the_limit(tmp_path):
    import tracemalloc

    data = np.random.default_rng(0).integers(0, 1000, (64, 65536), "i4")
    array = vz.create_array(tmp_path, data=data, chunks=(1, 65536), compressors=None)
    array.cache_policy = CachePolicy(ChunkCache(2 * MIB), data=False)
    array[0]
    tracemalloc.start()
    for row in range(64):
        array[row]
    kept_now, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(array.cache_policy.cache) == 7
    assert kept_now < 2.2 * MIB


def test_what_was_used_last_stays():
    store = {}
    make(store, "raw")
    cache = ChunkCache(2 * (144 + 144 + caches.ENTRY_OVERHEAD))
    array = vz.open(store, cache=cache)
    array[0, 0], array[6, 6], array[0, 0], array[12, 12]
    assert (cache.hits, cache.misses) == (1, 3)
    array[0, 0], array[12, 12]
    assert cache.hits == 3
    array[6, 6]
    assert (cache.hits, len(cache)) == (3, 2)


def test_objects_and_large_chunks_are_not_kept(tmp_path):
    cache = ChunkCache(1000)
    text = vz.create_array({}, data=np.array(["a", "bb"], object), dtype=str, cache=cache)
    assert text[...].tolist() == text[...].tolist() == ["a", "bb"]
    large = make(tmp_path / "large", "raw", chunks=(24, 24), cache=cache)
    np.testing.assert_array_equal(large[...], DATA)
    np.testing.assert_array_equal(large[3:5], DATA[3:5])
    assert (len(cache), cache.misses) == (0, 0)


def test_what_is_returned_is_not_what_is_kept():
    store = {}
    make(store, "plain")
    array = vz.open(store, cache=ChunkCache(MIB))
    for _ in range(3):
        found = array[:6, :6]
        np.testing.assert_array_equal(found, DATA[:6, :6])
        found[...] = -1


# -- sharing ---------------------------------------------------------------------------------


def test_one_cache_for_all_arrays_by_a_setting(tmp_path, monkeypatch, decoded):
    make(tmp_path, "plain")
    array = vz.open(tmp_path)
    array[0, 0]
    array[0, 0]
    assert len(decoded) == 2
    monkeypatch.setattr(vz.config, "chunk_cache_bytes", MIB)
    array[0, 0], vz.open(tmp_path)[0, 1], array[0, 2]
    assert len(decoded) == 3
    vz.open(tmp_path, cache=ChunkCache(0))[0, 0]  # without any
    assert len(decoded) == 4
    monkeypatch.setattr(vz.config, "chunk_cache_bytes", 0)
    array[0, 0]
    assert len(decoded) == 5
    assert caches._shared.nbytes == 0


def test_groups_hand_it_to_their_arrays(tmp_path):
    vz.create_group(tmp_path).create_array("a/b", data=DATA, chunks=(6, 6))
    cache = ChunkCache(MIB)
    group = vz.open(tmp_path, mode="r+", cache=cache, recheck_cached_metadata=True)
    for array in (group["a/b"], group["a"]["b"], dict(group["a"].arrays())["b"]):
        assert array.cache_policy.cache is cache
        assert array.cache_policy.metadata is True
    assert group.create_array("c", shape=3, dtype="i4").cache_policy.cache is cache
    assert group.require_array("c").cache_policy.cache is cache
    own = ChunkCache(5)
    assert group.create_array("d", shape=3, dtype="i4", cache=own).cache_policy.cache is own


def test_files_of_other_formats(tmp_path, decoded):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("g/x", data=DATA, chunks=(6, 6), compression="gzip")
    array = vz.open(tmp_path / "a.h5", cache=ChunkCache(MIB))["g/x"]
    for _ in range(2):
        np.testing.assert_array_equal(array[...], DATA)
        assert len(decoded) == 16
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["g/x"][0, 0] = 5
    with pytest.raises(vz.errors.SourceError, match="changed since it was scanned"):
        array[0, 0]


def test_copies_share_the_cache_within_a_process():
    array = make({}, "plain", cache=ChunkCache(MIB), recheck_cached_data="open")
    copy = pickle.loads(pickle.dumps(array))
    assert copy.cache_policy.cache is array.cache_policy.cache
    assert copy.cache_policy.data == "open"
    assert copy.cache_policy.opened > array.cache_policy.opened
    data = pickle.dumps(ChunkCache(123))
    assert pickle.loads(data).limit == 123
    assert len(pickle.loads(data)) == 0


def _in_child(array, pipe):
    before = len(array.cache_policy.cache)
    pipe.send((before, int(array[...].sum()), array.cache_policy.cache.nbytes > 0))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_forked_processes_begin_anew(tmp_path):
    make(tmp_path, "shards")
    array = vz.open(tmp_path, cache=ChunkCache(MIB), recheck_cached_data=False)
    total = int(array[...].sum())
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    with array.cache_policy.cache._lock, shards.shard_indexes._lock:  # as another thread might
        child = context.Process(target=_in_child, args=(array, there))
        child.start()
    assert here.poll(30)
    assert here.recv() == (0, total, True)
    child.join()


def test_threads_never_see_what_was_before_their_own_writes(tmp_path):
    """Each thread writes one row of every chunk, reads it back, and reads others' rows."""
    array = make(tmp_path, "plain", np.zeros((24, 24), "i4"))
    array.cache_policy = CachePolicy(ChunkCache(10 * 700), data=False)
    errors, done = [], [0] * 4

    def work(row):
        try:
            for value in range(1, 16):
                array[row::6] = value
                done[row] = value
                assert (array[row::6] == value).all()
                before = list(done)
                found = array[...]
                for other in range(4):
                    assert (found[other::6] >= before[other]).all()
                assert array.cache_policy.cache.nbytes <= array.cache_policy.cache.limit
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(row,)) for row in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert array.cache_policy.cache.hits > 0


# -- metadata --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "v2", "shards", "listed"])
def test_resizes_by_others_are_noticed_as_the_bound_has_it(tmp_path, kind):
    make(tmp_path, kind)
    other = vz.open(tmp_path, mode="r+")
    now = time.time()
    bounds = [True, "always", 0, now + 60, None, "open", False, "never", 3600, now - 60]
    arrays = [vz.open(tmp_path, mode="r+", recheck_cached_metadata=b) for b in bounds]
    other.append(np.full((3, 24), 7))
    assert [len(array[...]) for array in arrays] == [27] * 4 + [24] * 6
    assert [array.shape[0] for array in arrays] == [27] * 4 + [24] * 6
    for array in arrays[:4]:
        array[26, 0] = 9
    with pytest.raises(IndexError):
        arrays[4][26, 0] = 9
    arrays[4].refresh()
    assert arrays[4][26, 0] == 9


def test_an_array_made_anew_by_another_is_read_as_it_is_now(tmp_path):
    make(tmp_path, "plain")
    array = vz.open(tmp_path, cache=ChunkCache(MIB), recheck_cached_metadata=True)
    np.testing.assert_array_equal(array[...], DATA)
    other = {"chunk_key_encoding": {"name": "v2", "separator": "."}, "chunks": (5, 24)}
    make(tmp_path, "raw", DATA.astype("f8") / 2, **other)
    np.testing.assert_array_equal(array[...], DATA / 2)
    assert (array.dtype, array.chunks) == (np.dtype("f8"), (5, 24))


def test_assumed_metadata_are_never_looked_up(tmp_path):
    array = vz.open_array(tmp_path, shape=(4,), dtype="i4", assume=True,
                          recheck_cached_metadata=True)  # fmt: skip
    assert array[...].tolist() == [0] * 4


def test_settings_are_the_defaults(tmp_path, monkeypatch):
    make(tmp_path, "plain")
    array = vz.open(tmp_path)
    vz.open(tmp_path, mode="r+").resize((30, 24))
    assert array[...].shape == (24, 24)
    monkeypatch.setattr(vz.config, "recheck_cached_metadata", True)
    assert array[...].shape == (30, 24)
    assert array.cache_policy.data_valid_since() == math.inf
    monkeypatch.setattr(vz.config, "recheck_cached_data", "never")
    assert array.cache_policy.data_valid_since() == -math.inf


@pytest.mark.parametrize("bound", ["sometimes", -1, math.nan, 1j, []])
def test_what_is_no_bound_is_refused(bound):
    for name in ("recheck_cached_metadata", "recheck_cached_data"):
        with pytest.raises(ValueError, match=f"{name} is True or 'always'"):
            vz.create_array({}, shape=4, dtype="i4", **{name: bound})
    with pytest.raises(ValueError, match="0 bytes or more"):
        ChunkCache(-1)


def test_seconds_and_times():
    now = time.monotonic()
    assert now - 5 <= resolve_recheck(5, 0.0) <= time.monotonic() - 5
    assert abs(resolve_recheck(time.time() - 5, 0.0) - (now - 5)) < 1
