"""Copies of random arrays with random changes, against numpy."""

from __future__ import annotations

import itertools
import math
import threading
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import grids
import virtualzarr as vz
from virtualzarr.codecs import register
from virtualzarr.codecs.core.base import BytesBytes, as_u1
from virtualzarr.metadata.fill import default_fill, is_same_fill
from virtualzarr.metadata.portable import is_named, with_typed_mask
from virtualzarr.rechunk.blocks import least_memory, plan_blocks, split_box
from virtualzarr.rechunk.stored_boxes import list_stored_cells

PAIR = np.dtype([("a", "<i2"), ("b", ">f4")])
DTYPES = ["i4", ">u2", "f8", "?", "U3", "S2", "M8[s]", "c8", PAIR, str, bytes]
CODECS = [None, "auto", "gzip", {"id": "zlib", "level": 1}]


class Recorded(dict):
    """A mapping that knows how often each key was set."""

    def __init__(self, *args):
        super().__init__(*args)
        self.sets = {}

    def __setitem__(self, key, value):
        self.sets[key] = self.sets.get(key, 0) + 1
        super().__setitem__(key, value)


def elements(dtype, shape, seed):
    random = np.random.default_rng(seed)
    numbers = random.integers(0, 4, shape)
    if dtype in (str, bytes):
        texts = ["", "a", "long text", "\N{SNOWMAN}"]
        data = np.empty(shape, object)
        for index in np.ndindex(*shape):
            text = texts[numbers[index]]
            data[index] = text if dtype is str else text.encode()
        return data
    if dtype is PAIR:
        data = np.zeros(shape, PAIR)
        data["a"], data["b"] = numbers, numbers / 2
        return data
    return numbers.astype(np.dtype(dtype).newbyteorder("="))


@st.composite
def edges(draw, shape, variable=True):
    """How to cut axes: a number for each, or a list."""
    cut = []
    for extent in shape:
        if variable and draw(st.integers(0, 3)) == 0:
            lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
            missing = extent - sum(lengths)
            cut.append([*lengths, missing] if missing > 0 else lengths)
        else:
            cut.append(draw(st.integers(1, 6)))
    return cut


@st.composite
def sources(draw):
    """A stored array, some of it never written, and what is in it."""
    extents = st.integers(0, 9) if draw(st.integers(0, 5)) == 0 else st.integers(3, 20)
    shape = tuple(draw(st.lists(extents, max_size=3)))
    dtype = draw(st.sampled_from(DTYPES))
    zarr_format = draw(st.sampled_from([2, 3]))
    options = {"compressors": draw(st.sampled_from(CODECS))}
    if zarr_format == 3 and draw(st.booleans()):
        inner = draw(edges(shape, variable=False))
        options |= {
            "chunks": inner,
            "shards": [n * draw(st.integers(1, 3)) for n in inner],
        }
    else:
        options["chunks"] = draw(edges(shape, variable=zarr_format == 3))
    if dtype in ("i4", "f8") and draw(st.booleans()):
        options["fill_value"] = draw(st.sampled_from([3, -1]))
    if zarr_format == 2 and dtype == "i4" and draw(st.booleans()):
        options["fill_value"] = None
    store = {}
    array = vz.create_array(
        store, shape=shape, dtype=dtype, zarr_format=zarr_format,
        attributes={"units": "K", "list": [1, 2.5, None]},
        dimension_names=draw(st.sampled_from([None, "xyz"[: len(shape)]])),
        write_empty_chunks=draw(st.booleans()),
        **options,
    )  # fmt: skip
    data = elements(dtype, shape, draw(st.integers(0, 99)))
    if draw(st.booleans()):
        array[...] = data
    elif draw(st.integers(0, 5)):
        low = tuple(draw(st.integers(0, n)) for n in shape)
        box = tuple(slice(a, draw(st.integers(a, n))) for a, n in zip(low, shape, strict=True))
        array[box] = data[box]
    return store


@st.composite
def wishes(draw, shape):
    """What is to be otherwise."""
    options = {}
    if draw(st.booleans()):
        options["chunks"] = draw(edges(shape))
    kind = draw(st.integers(0, 4))
    if kind == 0:
        options["shards"] = None
    elif kind == 1:
        inner = options["chunks"] = draw(edges(shape, variable=False))
        options["shards"] = [n * draw(st.integers(1, 3)) for n in inner]
    if draw(st.booleans()):
        options["compressors"] = draw(st.sampled_from(CODECS))
    options["zarr_format"] = draw(st.sampled_from([None, None, 3, 2]))
    options["write_empty_chunks"] = draw(st.sampled_from([None, None, True, False]))
    options["memory"] = draw(st.sampled_from([None, 50_000, 5_000, 2_000, 1_000]))
    return options


def same(a, b):
    if a.dtype.hasobject:
        return a.shape == b.shape and a.tolist() == b.tolist()
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def overlaps(old, new):
    """Which cells of a copy have something in common with chunks that were stored."""
    touched = np.zeros(new.grid.grid_shape, bool)
    cells, _ = list_stored_cells(old)
    for cell in cells.tolist():
        corner, extent = old.grid.cell_origin(cell), old.grid.cell_extent(cell)
        touched[tuple(
            slice(axis.cell_of(a), axis.cell_of(a + n - 1) + 1)
            for axis, a, n in zip(new.grid.axes, corner, extent, strict=True)
        )] = True  # fmt: skip
    return touched


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_random(data):
    store = data.draw(sources())
    source = vz.open(store)
    options = data.draw(wishes(source.shape))
    copied = Recorded()
    before = dict(store)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = vz.copy(source, copied, **options)
    except (ValueError, NotImplementedError) as error:
        # What cannot be had is told before anything is written.
        assert not copied
        if "memory:" not in str(error) and not refusable(source, options):
            raise
        return
    copy = vz.open(copied)
    assert store == before
    assert same(copy.read(), source.read())
    masked = (source.metadata.zarr_format, copy.metadata.zarr_format) == (2, 3)
    masked = masked and is_named(source.metadata)  # which xarray opens, and masks
    attrs = with_typed_mask(copy.metadata).attributes if masked else copy.attrs
    assert attrs == (with_typed_mask(source.metadata).attributes if masked else source.attrs)
    assert copy.dims == source.dims
    fill = source.fill_value
    if (source.metadata.zarr_format, copy.metadata.zarr_format) == (3, 2):
        fill = None if is_named(source.metadata) else fill  # xarray would mask it
    elif copy.metadata.zarr_format == 3 and fill is None:
        fill = default_fill(source.dtype)
    assert is_same_fill(copy.fill_value, fill)
    assert copy.metadata.zarr_format == (options["zarr_format"] or source.metadata.zarr_format)
    # Each chunk and shard is written once, and missing ones stay missing.
    assert set(copied.sets.values()) <= {1}
    assert ".virtualzarr-copy" not in copied
    touched = overlaps(source, copy)
    if fill is None and source.fill_value is not None:
        return  # missing ones have to be stored
    assert not (copy.chunk_exists() & ~touched).any()
    if options["write_empty_chunks"] and not report.repacked and source.shards is None:
        np.testing.assert_array_equal(copy.chunk_exists(), touched)
    if options["write_empty_chunks"] is False and copy.fill_value is not None:
        assert_without_empty_chunks(copy)


def assert_without_empty_chunks(array):
    fill = np.full((), array.fill_value, array.dtype)
    for cell in np.argwhere(array.chunk_exists()).tolist():
        data = array.blocks[tuple(cell)]
        assert not same(np.asarray(data, array.dtype), np.broadcast_to(fill, np.shape(data)))


def refusable(source, options):
    """Whether there is something that the Zarr format wanted does not have."""
    wanted = options["zarr_format"] or source.metadata.zarr_format
    shards, chunks = options.get("shards", "keep"), options.get("chunks", "keep")
    sharded = source.shards is not None if isinstance(shards, str) else shards is not None
    cut = source.chunks if isinstance(chunks, str) else chunks
    variable = any(isinstance(n, list | tuple) for n in cut)
    if wanted == 2:
        return sharded or variable or source.shards is not None or not source.grid.is_regular
    if source.metadata.zarr_format == 2 and source.dtype == PAIR:
        return True  # v3 has one byte order for all fields
    # Shards must be multiples of chunks.
    return sharded and not isinstance(chunks, str)


class Counted(BytesBytes):
    """Nothing done to bytes, but it is known how often."""

    decoded = 0
    lock = threading.Lock()

    def compute_encoded_size(self, size):
        return size

    def decode_into(self, data, out):
        with self.lock:
            Counted.decoded += 1
        out[:] = as_u1(data)

    def encode(self, data):
        return bytes(data)


@pytest.mark.parametrize("memory", [10**9, 4000, 2500])
def test_chunks_are_decoded_as_often_as_said(memory):
    register("example.counted", Counted)
    data = np.arange(10_000, dtype="u1").reshape(100, 100)
    store = {}
    vz.create_array(store, data=data, chunks=(1, 100), compressors="example.counted")
    Counted.decoded = 0
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        report = vz.copy(store, {}, chunks=(100, 1), compressors=None, memory=memory)
    reads = report.reads.get("/", 1)
    assert Counted.decoded == 100 * reads
    assert (memory == 10**9) == (reads == 1) == (not found)
    if found:
        best = int(str(found[0].message).split("memory=")[1].split()[0])
        assert vz.copy(store, {}, chunks=(100, 1), memory=best).reads == {}
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            vz.copy(store, {}, chunks=(100, 1), memory=best - 1)
        assert len(found) == 1


cuts = st.one_of(
    st.integers(1, 40),
    st.lists(st.integers(1, 12), min_size=1, max_size=12),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(cuts, cuts), min_size=1, max_size=3), st.integers(50, 20_000), st.data())
def test_blocks(pairs, memory, data):
    """Blocks are whole chunks of the target, fit into memory, and cost what they are said to."""
    shape = []
    for pair in pairs:
        most = min([sum(cut) for cut in pair if isinstance(cut, list)], default=60)
        shape.append(data.draw(st.integers(1, most)))
    source = grids.parse([pair[0] for pair in pairs], shape)
    target = grids.parse([pair[1] for pair in pairs], shape)
    least = least_memory(source, target, 2)
    memory = max(memory, least)
    blocks = plan_blocks(source, target, 2, memory)
    sizes = [np.diff(_bounds(axis)) for axis in blocks.grid.axes]
    assert 2 * math.prod(int(size.max()) for size in sizes) <= memory
    reads = 1.0
    for old, new, block in zip(source.axes, target.axes, blocks.grid.axes, strict=True):
        olds, news, bounds = _bounds(old), _bounds(new), _bounds(block)
        assert set(bounds) <= set(news)
        touched = [
            ((bounds[:-1] < b) & (bounds[1:] > a)).sum() for a, b in itertools.pairwise(olds)
        ]
        reads *= np.mean(touched)
    assert blocks.reads == pytest.approx(reads) or reads < blocks.reads
    if blocks.reads > 1:
        assert memory < blocks.best
        assert plan_blocks(source, target, 2, blocks.best).reads < blocks.reads
    assert plan_blocks(source, target, 2, 10**9).reads == 1


def _bounds(axis):
    cells = np.arange(axis.ncells)
    return np.append(axis.start(cells), axis.extent)


@given(st.lists(cuts, min_size=1, max_size=3), st.integers(1, 30), st.data())
def test_portions(edges, count, data):
    shape = [data.draw(st.integers(1, sum(e) if isinstance(e, list) else 60)) for e in edges]
    grid = grids.parse(edges, shape)
    low = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    high = tuple(data.draw(st.integers(a + 1, n)) for a, n in zip(low, shape, strict=True))
    seen = np.zeros(shape, int)
    touched = np.zeros(grid.grid_shape, int)
    for box in split_box(grid, (low, high), count):
        seen[tuple(map(slice, *box))] += 1
        cells = tuple(
            slice(axis.cell_of(a), axis.cell_of(b - 1) + 1)
            for axis, a, b in zip(grid.axes, *box, strict=True)
        )
        touched[cells] += 1
        assert touched[cells].size <= count
    assert touched.max() == 1
    inside = seen[tuple(map(slice, low, high))]
    assert (inside == 1).all()
    assert seen.sum() == inside.size
