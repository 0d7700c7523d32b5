"""Writing arrays: every selection that can be read can be written, as numpy does it."""

import multiprocessing
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr
from grids import RectilinearGrid, RegularGrid
from tests.array.stored import ZSTD, chunk_keys, create, reopen
from virtualzarr import Array
from virtualzarr.codecs import make
from virtualzarr.errors import AccessError, CodecError, UnsupportedError
from virtualzarr.manifest import Manifest
from virtualzarr.stores import LocalStore, MemoryStore

SPAWN = multiprocessing.get_context("spawn")


@st.composite
def grids(draw, min_dims=0):
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=min_dims, max_size=3)))
    if draw(st.booleans()):
        return RegularGrid(shape, tuple(draw(st.integers(1, 6)) for _ in shape))
    edges = []
    for n in shape:
        lengths = draw(st.lists(st.integers(1, 4), max_size=4))
        edges.append([*lengths, n + draw(st.integers(0, 2))] if n else lengths)
    return RectilinearGrid(shape, edges)


@st.composite
def sharded(draw):
    """A grid, and codecs that put several chunks in each of its cells."""
    inner = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)))
    shape = tuple(draw(st.integers(1, 9)) for _ in inner)
    if draw(st.booleans()):
        grid = RegularGrid(shape, tuple(i * draw(st.integers(1, 3)) for i in inner))
    else:
        grid = RectilinearGrid(
            shape,
            [[i * draw(st.integers(1, 2)), i * (-(-n // i))]
             for n, i in zip(shape, inner, strict=True)],
        )  # fmt: skip
    bytes_ = {"name": "bytes", "configuration": {"endian": "little"}}
    return grid, (make("sharding_indexed", chunk_shape=list(inner), codecs=[bytes_]),)


@st.composite
def basic(draw, shape):
    parts = []
    for n in shape:
        if n and draw(st.booleans()):
            parts.append(draw(st.integers(-n, n - 1)))
        else:
            parts.append(draw(st.slices(n)))
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))), None)
    return tuple(parts)


def filled(grid, rng, **options):
    """Return an array half full, and what it holds."""
    array = create(grid, fill=7, **options)
    model = np.full(grid.shape, 7, "i4")
    if grid.ncells and rng.random() < 0.8:
        model[...] = rng.integers(0, 9, grid.shape)
        array[...] = model
    return array, model


def value_for(shape, rng):
    if rng.random() < 0.3:
        return int(rng.integers(0, 9))
    shape = tuple(1 if rng.random() < 0.2 else n for n in shape)
    return rng.integers(0, 9, shape, dtype="i4")


cases = st.one_of(grids().map(lambda grid: (grid, None)), sharded())


@settings(deadline=None)
@given(st.data(), cases, st.integers(0, 2**32))
def test_basic_selections(data, case, seed):
    rng = np.random.default_rng(seed)
    array, model = filled(case[0], rng, codecs=case[1])
    for _ in range(3):
        selection = data.draw(basic(array.shape))
        value = value_for(model[selection].shape, rng)
        array[selection] = value
        model[selection] = value
        np.testing.assert_array_equal(array[...], model)


@settings(deadline=None)
@given(st.data(), cases, st.integers(0, 2**32))
def test_orthogonal_point_mask_and_block_selections(data, case, seed):
    rng = np.random.default_rng(seed)
    grid, codecs = case
    if 0 in grid.shape or not grid.shape:
        return
    array, model = filled(grid, rng, codecs=codecs)
    # Indices may be repeated: the last value counts.
    indices = [
        np.array(data.draw(st.lists(st.integers(-n, n - 1), min_size=1, max_size=5)))
        for n in array.shape
    ]
    value = rng.integers(0, 9, tuple(map(len, indices)), dtype="i4")
    array.oindex[tuple(indices)] = value
    model[np.ix_(*indices)] = value
    np.testing.assert_array_equal(array[...], model)

    count = data.draw(st.integers(1, 12))
    points = tuple(rng.integers(0, n, count) for n in array.shape)
    array.vindex[points] = value = rng.integers(0, 99, count)
    model[points] = value
    np.testing.assert_array_equal(array[...], model)

    mask = rng.random(array.shape) < 0.4
    array.vindex[mask] = value = rng.integers(0, 99, mask.sum())
    model[mask] = value
    np.testing.assert_array_equal(array[...], model)

    cell = tuple(int(rng.integers(0, n)) for n in grid.grid_shape)
    place = tuple(
        slice(o, o + n) for o, n in zip(grid.cell_origin(cell), grid.cell_extent(cell), strict=True)
    )
    array.blocks[cell] = 3
    model[place] = 3
    np.testing.assert_array_equal(array[...], model)
    np.testing.assert_array_equal(reopen(array)[...], model)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", ["memory", "local"])
def test_many_chunks_in_threads(tmp_path, monkeypatch, threads, kind):
    monkeypatch.setattr(virtualzarr.config, "threads", threads)
    monkeypatch.setattr(virtualzarr.config, "batch_bytes", 1000)
    monkeypatch.setattr(virtualzarr.config.tuning, "write_cells", 17)
    monkeypatch.setattr(virtualzarr.config.tuning, "small_chunk_bytes", 0)
    store = MemoryStore() if kind == "memory" else LocalStore(tmp_path)
    array = create(RegularGrid((100, 60), (7, 11)), "f8", fill=np.nan, store=store)
    model = np.full((100, 60), np.nan)
    rng = np.random.default_rng(0)
    for selection in [(...,), (slice(3, 90, 2), slice(5, 50)), (slice(None, None, -3), 7)]:
        value = rng.normal(size=model[selection].shape)
        array[selection] = value
        model[selection] = value
        np.testing.assert_array_equal(array[...], model)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("u1", np.array([1.9, 2.1, 255.0])),
        ("i2", np.array([70000, -1, 5])),
        ("f4", [1, 2, 3]),
        ("?", [0, 2, -1]),
        ("c8", np.arange(3)),
        ("M8[s]", np.array(["2000-01-01", "NaT", "1970-01-02"], "M8[D]")),
        ("S3", ["a", "bcdef", ""]),
        ("U2", np.array(["ä", "xyz", ""])),
        ([("a", "<i2"), ("b", "<f8")], [(1, 2.5), (3, -0.0), (0, np.nan)]),
    ],
)
def test_values_are_cast_as_numpy_assigns(dtype, value):
    array = create(RegularGrid((5,), (2,)), dtype, fill=np.zeros((), dtype)[()])
    model = np.zeros(5, dtype)
    array[1:4] = value
    model[1:4] = value
    assert array[...].tobytes() == model.tobytes()


def test_values_that_cannot_be_cast_change_nothing():
    array = create(RegularGrid((4,), (2,)), "u1", fill=9)
    with pytest.raises(OverflowError):
        array[...] = 300
    with pytest.raises(ValueError, match="literal"):
        array[...] = ["1", "2", "3", "x"]
    with pytest.raises(ValueError, match="broadcast"):
        array[...] = np.arange(3)
    with pytest.raises(IndexError):
        array[4] = 1
    assert chunk_keys(array) == []


def test_text_of_any_length():
    codecs = (make("vlen-utf8"), *ZSTD)
    array = create(RegularGrid((5,), (2,)), "O", fill="", codecs=codecs)
    array[1:4] = ["one", "", "drei"]
    array[4] = "fünf"
    assert array[...].tolist() == ["", "one", "", "drei", "fünf"]
    array[1:2] = ""
    assert chunk_keys(array) == ["c/1", "c/2"]


def test_text_without_a_fill_value():
    codecs = (make("vlen-utf8"), *ZSTD)
    array = create(RegularGrid((5,), (3,)), "O", fill=None, codecs=codecs, zarr_format=2)
    array[1] = "one"
    array[4] = "four"
    assert array[...].tolist() == ["", "one", "", "", "four"]
    array.resize(4)
    array.resize(5)
    assert array[...].tolist() == ["", "one", "", "", ""]


def test_no_axes_and_no_elements():
    array = create(RegularGrid((), ()), "f8")
    array[...] = 2.5
    assert array[()] == 2.5
    array[()] = 3
    assert array[...] == 3
    array = create(RegularGrid((0, 3), (2, 2)))
    array[...] = 5
    array[:, 1] = np.empty(0)
    assert chunk_keys(array) == []


def test_edge_chunks_are_padded_with_the_fill_value():
    array = create(RegularGrid((5,), (4,)), "u1", fill=9, codecs=(make("bytes"),))
    array[...] = np.arange(5)
    store = array.chunk_source.store
    assert (store.get("x/c/0"), store.get("x/c/1")) == (b"\0\1\2\3", b"\4\x09\x09\x09")


def test_chunks_of_nothing_but_fill_are_not_stored():
    array = create(RegularGrid((6,), (2,)), "f4", fill=0.0)
    array[...] = [1, 0, 0, 0, 0, 2]
    assert chunk_keys(array) == ["c/0", "c/2"]
    array[0] = 0
    array[4:] = 0
    assert chunk_keys(array) == []
    array[2] = -0.0
    assert chunk_keys(array) == ["c/1"]
    assert np.signbit(array[2])
    array.write_empty_chunks = True
    array[...] = 0
    assert chunk_keys(array) == ["c/0", "c/1", "c/2"]
    array.write_empty_chunks = False
    array[...] = 0
    assert chunk_keys(array) == []


def test_other_nans_than_the_fill_value_are_stored():
    array = create(RegularGrid((4,), (2,)), "f4", fill=np.float32("nan"))
    array[...] = np.nan
    assert chunk_keys(array) == []
    payload = np.array([0x7FC00001, 0x7FC00000], "u4").view("f4")
    array[:2] = payload
    assert chunk_keys(array) == ["c/0"]
    assert array[:2].tobytes() == payload.tobytes()


def test_without_a_fill_value_everything_is_stored():
    array = create(RegularGrid((4,), (2,)), fill=None, zarr_format=2)
    array[0] = 0
    array[2:] = 0
    assert chunk_keys(array) == ["0", "1"]


def test_empty_sub_chunks_and_shards_are_not_stored():
    codec = make("sharding_indexed", chunk_shape=[2], codecs=["bytes"])
    array = create(RegularGrid((8,), (4,)), "u1", codecs=(codec,))
    array[...] = [0, 0, 1, 1, 0, 0, 0, 0]
    store = array.chunk_source.store
    assert chunk_keys(array) == ["c/0"]
    one = len(store.get("x/c/0"))
    array[0] = 3
    assert len(store.get("x/c/0")) == one + 2
    array[:4] = 0
    assert chunk_keys(array) == []


def test_each_partial_chunk_is_updated_once_and_whole_ones_are_not_read():
    class Counting(MemoryStore):
        calls = ()

        def update(self, key, change):
            self.calls += (key,)
            super().update(key, change)

        def get(self, key, byte_range=None):
            # Once, whether consolidated metadata above are up to date.
            assert key == "zarr.json", "no chunk is to be read"
            return super().get(key, byte_range)

    store = Counting()
    array = create(RegularGrid((10, 10), (5, 5)), store=store)
    array[:] = np.arange(100).reshape(10, 10)
    assert store.calls == ()
    array.vindex[[0, 1, 9, 9, 0], [0, 1, 9, 8, 0]] = 5
    assert store.calls == ("x/c/0/0", "x/c/1/1")


def test_errors_name_file_variable_and_chunk():
    store = MemoryStore()
    array = create(RegularGrid((4,), (2,)), store=store, path="a/x")
    store.set("a/x/c/1", b"damaged")
    with pytest.raises(CodecError, match=r"file memory/a/x/c/1, variable a/x, chunk 1"):
        array[1:3] = 1
    array[2:] = 1
    assert array[...].tolist()[2:] == [1, 1]


def test_virtual_and_read_only_arrays():
    array = create(RegularGrid((4,), (2,)))
    virtual = Array.from_manifest(array.metadata, Manifest.missing((2,)), "v")
    for write in (lambda: virtual.append([1]), lambda: virtual.resize((3,))):
        with pytest.raises(UnsupportedError, match="variable v"):
            write()
    with pytest.raises(UnsupportedError, match="virtual"):
        virtual[0] = 1
    fixed = MemoryStore(tuple_mapping(array.chunk_source.store.data))
    with pytest.raises(AccessError, match="read-only"):
        Array.from_store(array.metadata, fixed, "x")[0] = 1


def tuple_mapping(data):
    import types

    return types.MappingProxyType(data)


def write_rows(root, rows, codecs):
    store = LocalStore(root)
    array = Array.from_store(create(GRID, store=MemoryStore(), codecs=codecs).metadata, store, "x")
    for row in rows:
        array[row] = row + 1


GRID = RegularGrid((200, 3), (200, 3))
SHARDS = (make("sharding_indexed", chunk_shape=[7, 3], codecs=[
    {"name": "bytes", "configuration": {"endian": "little"}}]),)  # fmt: skip
SHARD_GRID = RegularGrid((200, 3), (203, 3))


def expected_rows():
    return np.repeat(np.arange(1, 201)[:, None], 3, axis=1)


def test_processes_that_write_rows_of_one_chunk_lose_none(tmp_path):
    array = create(GRID, store=LocalStore(tmp_path))
    processes = [
        SPAWN.Process(target=write_rows, args=(tmp_path, range(first, 200, 3), None))
        for first in (0, 1)
    ]
    for process in processes:
        process.start()
    write_rows(tmp_path, range(2, 200, 3), None)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    np.testing.assert_array_equal(array[...], expected_rows())


@pytest.mark.parametrize("kind", ["memory", "local"])
@pytest.mark.parametrize("shards", [False, True])
def test_threads_that_write_rows_of_one_chunk_lose_none(tmp_path, kind, shards):
    store = MemoryStore() if kind == "memory" else LocalStore(tmp_path)
    if shards:
        array = create(SHARD_GRID, store=store, codecs=SHARDS)
    else:
        array = create(GRID, store=store)

    def work(first):
        for row in range(first, 200, 4):
            array[row] = row + 1

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(array[...], expected_rows())
