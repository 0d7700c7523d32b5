"""Chained offsets: exact wherever a chunk is looked up, small, and harmless when hostile."""

from __future__ import annotations

import json
import math
import resource
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from virtualzarr.errors import MetadataError, VirtualZarrError
from virtualzarr.manifest import Affine, Manifest, Source, Sources
from virtualzarr.references.native import columns, parts, save_columns
from virtualzarr.references.native.chained import from_links, to_links
from virtualzarr.references.native.parts import Part, save_part
from virtualzarr.references.native.save_columns import chunk_shape
from virtualzarr.stores.location import Location
from virtualzarr.stores.memory import MemoryStore

LOCATION = Location.of("/archive")
MOST = 2**62


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(vz.config.tuning, "column_cells", 8)
    monkeypatch.setattr(vz.config.tuning, "listed_values", 1)
    monkeypatch.setattr(vz.config.tuning, "measured_values", 2)


def save(offset, length, source=0):
    """Store references, and return the store and the part's name."""
    store = MemoryStore()
    manifest = Manifest(np.shape(offset), Sources([Source("/archive/a")]), source, offset, length)
    return store, save_part(store, "v", manifest)


def reopen(store, name, ndim=1):
    columns.recent.clear()
    return Part(store, "v", name, ndim, LOCATION)


def change(store, name, path, change):
    """Change a document of a part."""
    key = f"v/__manifest/{name}/{path}"
    document = json.loads(bytes(store.get(key)))
    change(document)
    store.set(key, json.dumps(document).encode())


def documented(store, name):
    return json.loads(bytes(store.get(f"v/__manifest/{name}/manifest.json")))


@st.composite
def tables(draw):
    """Draw offsets and lengths: some chunks follow on the one before, some lie anywhere."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    count = math.prod(shape)
    length = draw(st.lists(st.integers(-1, 99) | st.integers(-1, MOST), min_size=count,
                           max_size=count))  # fmt: skip
    offset, end = [], 0
    for size in length:
        start = end if draw(st.booleans()) and end <= MOST else draw(st.integers(0, MOST))
        offset.append(start)
        end = max(0, start + size)
    source = draw(st.lists(st.integers(-1, 0), min_size=count, max_size=count))
    return tuple(np.array(each).reshape(shape) for each in (offset, length, source))


@settings(max_examples=150)
@given(tables(), st.data())
def test_cells_and_boxes_are_those_that_were_saved(table, data):
    offset, length, source = table
    with (
        mock.patch.object(save_columns, "_is_chain", return_value=True),
        mock.patch.object(parts, "find_affine", lambda column: column),
    ):
        store, name = save(offset, length, source)
    is_stored = min(offset.size, np.unique(offset).size, np.unique(length).size) > 1
    described = documented(store, name)
    assert ("chained" in described["columns"]["offset"]) == is_stored
    assert described["version"] == (2 if is_stored else 1)
    cell = tuple(data.draw(st.integers(0, n - 1)) for n in offset.shape)
    found = reopen(store, name, offset.ndim).take(np.array([cell]))
    assert (found.offset[0], found.length[0]) == (offset[cell], length[cell])
    box = tuple(slice(*sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2))))
                for n in offset.shape)  # fmt: skip
    part = reopen(store, name, offset.ndim)
    if 0 not in offset[box].shape:
        np.testing.assert_array_equal(part.load(box).offset, offset[box])
    every = part.take(np.argwhere(np.ones(offset.shape)))
    np.testing.assert_array_equal(every.offset, offset.reshape(-1))


@settings(max_examples=100)
@given(tables(), st.integers(1, 20))
def test_each_block_is_decoded_by_itself(table, room):
    offset, length, _ = table
    with vz.config.tuning.set(column_cells=room):
        chunks = chunk_shape(offset.shape)
    links = to_links(offset, length, chunks)
    blocks = [range(0, n, c) for n, c in zip(offset.shape, chunks, strict=True)]
    for start in np.array(np.meshgrid(*blocks)).reshape(offset.ndim, -1).T:
        block = tuple(slice(a, a + c) for a, c in zip(start, chunks, strict=True))
        np.testing.assert_array_equal(from_links(links[block], length[block]), offset[block])


def test_chunks_that_follow_each_other_cost_their_lengths_only():
    random = np.random.default_rng(0)
    length = random.integers(1, 2**16, (100, 1000))
    offset = np.cumsum(length, axis=1) - length + random.integers(0, 2**40, (100, 1))
    with vz.config.tuning.set(column_cells=1 << 16):
        store, name = save(offset, length)
        assert "chained" in documented(store, name)["columns"]["offset"]
        assert sum(size for _, size in store.list()) < 2.1 * length.size
        # Slots of one size are smaller as they are, and any reader knows them.
        slots = 2**16 * np.arange(length.size).reshape(length.shape)
        store, name = save(slots, length)
        assert documented(store, name)["version"] == 1


@pytest.mark.parametrize("is_rising", [True, False])
def test_columns_are_stored_as_differences_where_that_is_smaller(is_rising):
    random = np.random.default_rng(0)
    offset = random.integers(0, 2**30, 5000)
    offset = np.sort(offset) if is_rising else offset
    with vz.config.tuning.set(column_cells=1 << 16):
        store, name = save(offset, 9)
    document = json.loads(bytes(store.get(f"v/__manifest/{name}/offset/zarr.json")))
    assert any("delta" in codec["name"] for codec in document["codecs"]) == is_rising
    np.testing.assert_array_equal(reopen(store, name).load((slice(5000),)).offset, offset)


def test_even_offsets_and_equal_lengths_are_not_chained():
    for offset, length in ((Affine((9,), 3, (5,)), np.arange(9)), (np.arange(9), 1)):
        store, name = save(offset, length)
        assert documented(store, name)["version"] == 1


LENGTHS = np.append(2 * np.arange(19) + 1, 7)
"""Those of chunks at squares, but for the last one: all of them would be evenly spaced."""


@pytest.fixture
def stored():
    offset, length = np.arange(20) ** 2, LENGTHS
    with mock.patch.object(save_columns, "_is_chain", return_value=True):
        store, name = save(offset, length)
    assert "chained" in documented(store, name)["columns"]["offset"]
    return store, name, offset


def test_a_cell_costs_one_chunk_of_each_column(stored):
    store, name, offset = stored
    part, asked = reopen(store, name), []
    get = MemoryStore.get
    with mock.patch.object(
        MemoryStore, "get", lambda self, key, *args: asked.append(key) or get(self, key, *args)
    ):
        assert part.take(np.array([[13]])).offset.tolist() == [offset[13]]
    assert sorted(key.split("/", 3)[3] for key in asked) == [
        "length/c/1", "length/zarr.json", "offset/c/1", "offset/zarr.json",
    ]  # fmt: skip


def test_readers_of_version_1_are_refused_by_the_version(stored):
    store, name, _ = stored
    change(store, name, "manifest.json", lambda document: document.update(version=1))
    with pytest.raises(MetadataError, match="must be constant"):
        reopen(store, name)
    change(store, name, "manifest.json", lambda document: document.update(version=3))
    with pytest.raises(MetadataError, match="version: must be 1 or 2, not 3"):
        reopen(store, name)


@pytest.mark.parametrize("way", ["take", "load"])
@pytest.mark.parametrize(
    "links", [[0, -65, 0, 0], [MOST, 1, 0, 0], [MOST, MOST, 0, 0], [-1, 0, 0, 0], [0, 0, 0]]
)
def test_links_that_lead_out_of_bounds_are_errors(stored, links, way):
    store, name, _ = stored
    key = f"v/__manifest/{name}/offset"
    change(store, name, "offset/zarr.json", lambda document: document.update(
        codecs=[{"name": "bytes", "configuration": {"endian": "little"}}], data_type="int64",
        chunk_grid={"name": "regular", "configuration": {"chunk_shape": [8]}},
    ))  # fmt: skip
    for number in range(3):
        store.set(f"{key}/c/{number}", np.array([*links, 0, 0, 0, 0], "<i8").tobytes())
    part = reopen(store, name)
    with pytest.raises(VirtualZarrError):
        part.take(np.array([[9]])) if way == "take" else part.load((slice(20),))


def test_what_lies_beyond_the_end_of_a_column_is_not_looked_at(stored):
    store, name, offset = stored
    change(store, name, "offset/zarr.json", lambda document: document.update(
        codecs=[{"name": "bytes", "configuration": {"endian": "little"}}], data_type="int64",
    ))  # fmt: skip
    last = np.array([offset[16], 0, 0, 0, -(2**40), 7, 7, 7], "<i8")
    store.set(f"v/__manifest/{name}/offset/c/2", last.tobytes())
    assert reopen(store, name).take(np.array([[19]])).offset.tolist() == [offset[19]]


@pytest.mark.parametrize("is_chained", [True, False])
@pytest.mark.parametrize("count", [10**8, 10**12, 2**61])
def test_columns_that_claim_very_many_cells_take_no_memory(stored, count, is_chained):
    store, name, offset = stored
    if not is_chained:
        store, name = save(offset, LENGTHS)
    change(store, name, "manifest.json", lambda document: document.update(shape=[count]))
    for column in ("offset", "length"):
        change(store, name, f"{column}/zarr.json", lambda document: document.update(shape=[count]))
    part = reopen(store, name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert part.take(np.array([[13]])).offset.tolist() == [offset[13]]
    for cells in ([[count - 1]], [[0], [count // 2]]):
        with pytest.raises(VirtualZarrError):
            part.take(np.array(cells))
    with pytest.raises(VirtualZarrError):
        part.load((slice(count),))
    # Memory that is asked for and not touched is none: what counts is what was there at most.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 64 * 1024
