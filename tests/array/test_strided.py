"""Many small uncompressed chunks that are placed at once: the elements, and the errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grids
import virtualzarr as vz
from virtualzarr.array.read import strided as together
from virtualzarr.array.read.cache_policy import CachePolicy
from virtualzarr.codecs import Pipeline, make
from virtualzarr.config import config
from virtualzarr.errors import SourceChangedError, VirtualZarrError
from virtualzarr.manifest import Affine, Decoder, Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata

BIG = Pipeline([make("bytes", endian="big")])
PIPELINES = [
    BIG,
    Pipeline([make("transpose", order=[1, 0]), make("bytes", endian="little")]),
    Pipeline([make("virtualzarr.pick", axis=1, index=1, length=3), *BIG.codecs]),
    Pipeline([make("virtualzarr.astype", data_type="int16"), *BIG.codecs]),
    Pipeline([*BIG.codecs, make("numcodecs.zlib", level=1)]),
]


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Place as few chunks as two together, and count how often that is done."""
    monkeypatch.setattr(config.tuning, "strided_chunks", 2)
    monkeypatch.setattr(config.tuning, "strided_chunks_per_read", 1)
    placed = []
    read = together._StridedReads._read
    monkeypatch.setattr(
        together._StridedReads, "_read", lambda *args: placed.append(1) or read(*args)
    )
    return placed


def stored_at(pipeline, shape, dtype, rng):
    """The bytes of a block and what it decodes to."""
    block = rng.integers(-100, 100, shape).astype(dtype)
    codec = pipeline.for_block(shape, np.dtype(dtype))
    picked = pipeline.codecs[0].name == "virtualzarr.pick"
    if not picked:
        return codec.encode(block), block
    whole = rng.integers(-100, 100, (shape[0], 3, *shape[1:])).astype(dtype)
    whole[:, 1] = block
    return whole.astype(np.dtype(dtype).newbyteorder(">")).tobytes(), block


@st.composite
def selections(draw, shape):
    """A selection by slices of any step, integers, and lists of indices along one axis."""
    chosen = []
    for length in shape:
        start, stop = draw(st.integers(-length, length)), draw(st.integers(-length, length))
        step = draw(st.integers(-3, 3).filter(bool))
        chosen.append(draw(st.just(slice(None)) | st.just(slice(start, stop, step))))
    if draw(st.booleans()):
        axis = draw(st.integers(0, len(shape) - 1))
        length = shape[axis]
        chosen[axis] = draw(
            st.integers(0, length - 1)
            | st.lists(st.integers(0, length - 1), max_size=9).map(lambda i: np.array(i, int))
            | st.lists(st.booleans(), min_size=length, max_size=length).map(np.array)
        )
    return tuple(chosen)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_selection_of_any_chunks(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    shape = (data.draw(st.integers(1, 40)), data.draw(st.integers(1, 9)))
    edges = (data.draw(st.sampled_from([1, 1, 2, 3, [shape[0]]])), data.draw(st.integers(1, 9)))
    edges = [min(e, n) if isinstance(e, int) else e for e, n in zip(edges, shape, strict=True)]
    dtype, fill = data.draw(st.sampled_from(["i4", "u1", "f8"])), 7
    grid = grids.parse(edges, shape)
    chosen = data.draw(st.lists(st.sampled_from(PIPELINES), min_size=1, max_size=2, unique=True))
    even = data.draw(st.booleans())
    values = np.full(grids.parse(edges, shape).shape, fill, dtype)
    columns = {key: np.zeros(grid.grid_shape, int) for key in ("source", "offset", "length", "of")}
    heap = b"head"
    for cell in np.ndindex(grid.grid_shape):
        which = data.draw(st.integers(0, len(chosen) - 1)) if not even else 0
        columns["of"][cell] = which - 1
        if not even and data.draw(st.integers(0, 9)) == 0:
            columns["source"][cell] = -1
            continue
        raw, block = stored_at(chosen[which], grid.cell_shape(cell), dtype, rng)
        columns["offset"][cell], columns["length"][cell] = len(heap), len(raw)
        heap += raw + b"-" * (3 if even else data.draw(st.integers(0, 5)))
        where = zip(grid.cell_origin(cell), grid.cell_extent(cell), strict=True)
        inside = block[tuple(slice(n) for n in grid.cell_extent(cell))]
        values[tuple(slice(o, o + n) for o, n in where)] = inside
    decoder = columns.pop("of") if len(chosen) > 1 else None
    decoders = [Decoder(pipeline) for pipeline in chosen[1:]]
    metadata = ArrayMetadata(shape, np.dtype(dtype), grid, chosen[0], fill)
    manifest = Manifest(
        grid.grid_shape, Sources([Source.inline(heap)]), columns["source"], columns["offset"],
        columns["length"], decoders, decoder,
    )  # fmt: skip
    array = vz.Array.from_manifest(metadata, manifest, "x")
    np.testing.assert_array_equal(array[...], values)
    for _ in range(3):
        selection = data.draw(selections(shape))
        got, expected = array.oindex[selection], values
        for axis in (1, 0):
            expected = expected[(slice(None),) * axis + (selection[axis],)]
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


def records(path, count=500, gap=8):
    """An array of three numbers a record, and its values."""
    values = np.arange(3 * count, dtype=">f4").reshape(count, 3)
    rows = np.zeros(count, [("values", ">f4", 3), ("gap", f"V{gap}")])
    rows["values"] = values
    path.write_bytes(b"head" + rows.tobytes())
    grid = grids.RegularGrid((count, 3), (1, 3))
    metadata = ArrayMetadata((count, 3), np.dtype("f4"), grid, BIG, np.float32(0))
    offset = Affine((count, 1), 4, (12 + gap, 0))
    manifest = Manifest((count, 1), Sources([Source.from_file(path)]), 0, offset, 12)
    return vz.Array.from_manifest(metadata, manifest, "air"), values


def test_records_are_placed_at_once(tmp_path, at_once):
    array, values = records(tmp_path / "a.bin")
    for selection in (..., slice(3, 400), (slice(None, None, -2), 1), np.arange(5, 300, 7)):
        at_once.clear()
        np.testing.assert_array_equal(array.oindex[selection], values[selection])
        assert len(at_once) == 1
    both = vz.concat([array, array.lazy[::2]])
    at_once.clear()
    np.testing.assert_array_equal(both[1:], np.concatenate([values, values[::2]])[1:])
    assert len(at_once) == 1


@pytest.mark.parametrize("count", [500, 1500])
def test_many_records_are_not_looked_up_in_a_cache(tmp_path, at_once, count):
    array, values = records(tmp_path / "a.bin", count)
    array.cache_policy = CachePolicy(cache := vz.ChunkCache(1 << 20), data=False)
    for _ in range(2):
        np.testing.assert_array_equal(array[...], values)
    assert (len(at_once), bool(len(cache))) == ((2, False) if count > 1000 else (0, True))


def test_reads_are_no_longer_than_they_may_be(tmp_path, monkeypatch, at_once):
    array, values = records(tmp_path / "a.bin")
    monkeypatch.setattr(config, "local_read", 1000)
    np.testing.assert_array_equal(array[...], values)
    assert len(at_once) == 10
    monkeypatch.setattr(config, "local_gap", 4)
    monkeypatch.setattr(config.tuning, "strided_chunks_per_read", 2)
    np.testing.assert_array_equal(array[...], values)
    assert len(at_once) == 10


def test_errors_name_file_and_chunk(tmp_path):
    path = tmp_path / "a.bin"
    array, _ = records(path)
    wrong = array.manifest.replace(length=np.where(np.arange(500)[:, None] == 77, 11, 12))
    with pytest.raises(VirtualZarrError, match=r"(?s)air.*77\.0") as caught:
        vz.Array.from_manifest(array.metadata, wrong, "air")[...]
    assert caught.value.file == str(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(SourceChangedError, match=r"a\.bin"):
        array[...]
    unguarded = Sources([Source(str(path))])
    with pytest.raises(VirtualZarrError, match=r"a\.bin"):
        vz.Array.from_manifest(array.metadata, array.manifest.replace(sources=unguarded), "air")[
            ...
        ]
