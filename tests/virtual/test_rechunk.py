"""Arrays cut anew hold what numpy takes from the values of the old one."""

from __future__ import annotations

from typing import ClassVar
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grids
import virtualzarr as vz
from grids import Axis
from tests.combine.helpers import BIG, RAW, SHUFFLED, ZLIB, numbers, virtual_array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.manifest import Affine, Decoder, Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.stores.files import LocalFile
from virtualzarr.virtual.axis_slices import AxisSlices
from virtualzarr.virtual.rechunk import apply_axis_slices, with_decoder, with_planes
from virtualzarr.virtual.transforms import fill_constant

FORTRAN = Pipeline([make("transpose", order="F"), make("bytes", endian="little")])
SHARDED = Pipeline(
    [
        make(
            "sharding_indexed",
            chunk_shape=[1, 1],
            codecs=[make("bytes", endian="little").to_v3(), "crc32c"],
        )
    ]
)


@st.composite
def axes(draw, most=7):
    """An axis of one edge, or of several; the last may reach past the end."""
    length = draw(st.integers(1, most))
    if draw(st.booleans()):
        return Axis.bare(length, draw(st.integers(1, length + 2)))
    cuts = sorted(draw(st.sets(st.integers(1, length), max_size=3)) | {length})
    edges = np.diff([0, *cuts])
    edges[-1] += draw(st.integers(0, 2))
    return Axis(length, edges)


@st.composite
def pieces_and_indices(draw, axis):
    """AxisSlices of an axis, and the indices they stand for: -1 where nothing is."""
    n = axis.extent
    kind = draw(st.sampled_from(["whole", "clipped", "slice", "refined", "take", "pad"]))
    if kind == "whole":
        return AxisSlices.identity(axis), np.arange(n)
    if kind == "clipped":
        return AxisSlices.clip(axis), np.arange(n)
    if kind == "slice":
        start = draw(st.integers(0, n))
        stop = draw(st.integers(start, n))
        return AxisSlices.slice(axis, start, stop), np.arange(start, stop)
    if kind == "refined":
        other = draw(axes(most=n).filter(lambda a: a.extent == n) | st.just(Axis.bare(n, 2)))
        finer = grids.refine([grids.from_axes([axis]), grids.from_axes([other])]).axes[0]
        return AxisSlices.refine(axis, finer), np.arange(n)
    if kind == "pad":
        before, after = draw(st.integers(0, 4)), draw(st.integers(0, 4))
        pieces = AxisSlices.pad(axis, before, after, draw(st.none() | st.integers(1, 3)))
        return pieces, np.concatenate([np.full(before, -1), np.arange(n), np.full(after, -1)])
    runs = draw(st.lists(st.tuples(st.integers(-1, n - 1), st.integers(1, n)), max_size=4))
    indices = [
        i for start, count in runs for i in range(start, min(start + count, n)) if i or start >= 0
    ]
    return AxisSlices.take(axis, np.array(indices, int)), np.array(indices, int)


@st.composite
def arrays(draw):
    """Arrays of blocks of several kinds, some larger than their cells, some missing."""
    own = [draw(axes()) for _ in range(draw(st.integers(1, 3)))]
    grid = grids.from_axes(own)
    values = numbers(grid.shape, "i4", 100)
    fill = -5
    declared = draw(st.sampled_from([RAW, BIG, ZLIB, SHUFFLED, FORTRAN]))
    pipelines = draw(st.lists(st.sampled_from([RAW, BIG, ZLIB, FORTRAN]), max_size=2))
    decoders: dict[Decoder, int] = {}
    shape = grid.grid_shape
    source, offset, length = np.zeros((3, *shape), np.int64)
    decoder, origin = np.full(shape, -1), np.zeros((*shape, len(own)), int)
    heap = b"head"
    for cell in np.ndindex(shape):
        where = tuple(
            slice(o, o + n)
            for o, n in zip(grid.cell_origin(cell), grid.cell_extent(cell), strict=True)
        )
        kind = draw(st.sampled_from(["declared", "missing", "decoder", "part"]))
        if kind == "missing":
            source[cell] = -1
            values[where] = fill
            continue
        block_shape, pipeline = grid.cell_shape(cell), declared
        if kind != "declared" and pipelines:
            pipeline = draw(st.sampled_from(pipelines))
            before = after = (0,) * len(own)
            if kind == "part":
                before = [draw(st.integers(0, 2)) for _ in own]
                after = [draw(st.integers(0, 2)) for _ in own]
            block_shape = tuple(map(sum, zip(block_shape, before, after, strict=True)))
            found = Decoder(pipeline, block_shape if kind == "part" else None)
            decoder[cell] = decoders.setdefault(found, len(decoders))
            origin[cell] = before
        block = np.full(block_shape, 77, values.dtype)
        inside = tuple(
            slice(o, o + n) for o, n in zip(origin[cell], grid.cell_extent(cell), strict=True)
        )
        block[inside] = values[where]
        data = bytes(pipeline.for_block(block_shape, values.dtype).encode(block))
        offset[cell], length[cell] = len(heap), len(data)
        heap += data
    meta = ArrayMetadata(grid.shape, values.dtype, grid, declared, fill)
    odd = (decoder >= 0).any()
    manifest = Manifest(
        shape,
        Sources([Source.inline(heap)]),
        source,
        offset,
        length,
        tuple(decoders) if odd else (),
        decoder if odd else None,
        origin if origin.any() else None,
    )
    return vz.Array.from_manifest(meta, manifest, "x"), values


def taken(values, indices, fill):
    """What the pieces stand for: -1 is the fill value."""
    for axis, index in enumerate(indices):
        part = values.take(np.maximum(index, 0), axis)
        nowhere = (index < 0).reshape((-1,) + (1,) * (values.ndim - axis - 1))
        values = np.where(nowhere, fill, part)
    return values


@settings(max_examples=300, deadline=None)
@given(arrays(), st.data())
def test_it_holds_what_numpy_takes(case, data):
    array, values = case
    np.testing.assert_array_equal(array[...], values)
    for _ in range(2):  # what was cut can be cut again
        cut = [data.draw(pieces_and_indices(axis)) for axis in array.grid.axes]
        array = apply_axis_slices(array, [pieces for pieces, _ in cut])
        values = taken(values, [indices for _, indices in cut], array.fill_value)
        assert array.shape == values.shape
        np.testing.assert_array_equal(array[...], values)
        manifest = array.manifest
        missing = manifest.source < 0
        if manifest.decoder is not None:
            assert (manifest.decoder >= 0).any()
            assert set(np.unique(manifest.decoder[~missing])) - {-1} <= set(
                range(len(manifest.decoders))
            )
        if manifest.origin is not None:
            assert manifest.origin.any()
        if not array.size:
            break


@pytest.mark.parametrize("pipeline", [RAW, BIG])
def test_pieces_of_uncompressed_blocks_are_shorter_ranges(pipeline):
    array = virtual_array(numbers((6, 4)), (3, 4), pipeline=pipeline)
    halves = apply_axis_slices(
        array,
        [
            AxisSlices.refine(array.grid.axes[0], Axis.bare(6, 1)),
            AxisSlices.identity(array.grid.axes[1]),
        ],
    )
    assert halves.manifest.decoder is None
    assert halves.manifest.origin is None
    assert np.asarray(halves.manifest.length).tolist() == [[16]] * 6
    np.testing.assert_array_equal(halves[...], numbers((6, 4)))


def test_pieces_of_columns_are_parts_of_whole_blocks():
    array = virtual_array(numbers((4, 6)), (4, 6))
    cut = apply_axis_slices(
        array,
        [
            AxisSlices.identity(array.grid.axes[0]),
            AxisSlices.refine(array.grid.axes[1], Axis.bare(6, 2)),
        ],
    )
    assert cut.manifest.decoders == (Decoder(RAW, (4, 6)),)
    assert cut.manifest.origin[0, :, 1].tolist() == [0, 2, 4]
    np.testing.assert_array_equal(cut[:, 1:5], numbers((4, 6))[:, 1:5])


def test_columns_without_memory_stay_so():
    shape = (1000, 1000)
    grid = grids.RegularGrid((4000, 4000), (4, 4))
    meta = ArrayMetadata(grid.shape, np.dtype("u1"), grid, ZLIB)
    manifest = Manifest(shape, Sources([Source("/a")]), 0, Affine(shape, 8, (16000, 16)), 16)
    cut = apply_axis_slices(
        vz.Array.from_manifest(meta, manifest),
        [AxisSlices.slice(axis, 400, 2000) for axis in grid.axes],
    )
    assert cut.manifest.nbytes < 100
    assert cut.grid == grids.RegularGrid((1600, 1600), (4, 4))
    assert int(cut.manifest.offset[(np.array(1), np.array(2))]) == 8 + 101 * 16000 + 102 * 16


def test_parts_of_shards_are_decoded_from_whole_shards():
    values = numbers((4, 6), "i4")
    values[0, 0] = 0
    grid = grids.RegularGrid((4, 6), (4, 3))
    blocks = [SHARDED.for_block((4, 3), "i4", 0).encode(values[:, j : j + 3]) for j in (0, 3)]
    heap = b"".join(blocks)
    meta = ArrayMetadata((4, 6), np.dtype("i4"), grid, SHARDED, 0)
    manifest = Manifest(
        (1, 2), Sources([Source.inline(heap)]), 0, [[0, len(blocks[0])]], [[*map(len, blocks)]]
    )
    array = vz.Array.from_manifest(meta, manifest)
    cut = apply_axis_slices(array, [AxisSlices.slice(axis, 1, 4) for axis in grid.axes])
    np.testing.assert_array_equal(cut[...], values[1:4, 1:4])
    np.testing.assert_array_equal(
        apply_axis_slices(
            array, [AxisSlices.slice(a, 0, n) for a, n in zip(grid.axes, (4, 3), strict=True)]
        )[...],
        values[:, :3],
    )


def test_a_million_references_are_cut_without_a_loop_over_them():
    shape = (1000, 1000)
    grid = grids.RegularGrid((3000, 3000), (3, 3))
    meta = ArrayMetadata(grid.shape, np.dtype("i4"), grid, ZLIB)
    offset = np.arange(10**6).reshape(shape) * 50
    array = vz.Array.from_manifest(meta, Manifest(shape, Sources([Source("/a")]), 0, offset, 50))
    cut = apply_axis_slices(array, [AxisSlices.slice(axis, 1, 3000) for axis in grid.axes])
    assert len(cut.manifest.decoders) == 1
    assert int(np.count_nonzero(~cut.manifest.canonical)) == 1999


class Counted(make("numcodecs.zlib", level=1).__class__):
    """A codec that notes what it decodes."""

    seen: ClassVar[list[bytes]] = []

    def decode_into(self, data, out):
        self.seen.append(bytes(data))
        super().decode_into(data, out)


COUNTED = Pipeline([make("bytes", endian="little"), Counted("numcodecs.zlib", {"level": 1})])


def finer(axis, edge):
    """The pieces of an axis cut at the multiples of an edge, too."""
    other = grids.RegularGrid((axis.extent,), (edge,))
    return AxisSlices.refine(axis, grids.refine([grids.from_axes([axis]), other]).axes[0])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_each_stored_block_is_decoded_once_a_request(data):
    shape = data.draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    values = np.random.default_rng(0).integers(0, 2**30, shape).astype("i4")
    array = virtual_array(values, chunks, pipeline=COUNTED)
    edges = [data.draw(st.integers(1, n)) for n in shape]
    cut = apply_axis_slices(
        array, [finer(*pair) for pair in zip(array.grid.axes, edges, strict=True)]
    )
    box = tuple(
        slice(*sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))) for n in shape
    )
    lengths = st.integers(1, 400)
    Counted.seen.clear()
    names = ("local_read", "local_gap", "batch_bytes")
    with vz.config.set(**{name: data.draw(lengths) for name in names}):
        if data.draw(st.booleans()):
            found = cut[box]
        else:
            found = cut.oindex[tuple(np.arange(s.start, s.stop) for s in box)]
    np.testing.assert_array_equal(found, values[box])
    assert len(Counted.seen) == len(set(Counted.seen))


def test_large_uncompressed_blocks_are_read_once_for_many_cells(tmp_path):
    values = numbers((64, 2048), "i4")
    array = virtual_array(values, (64, 2048), file=str(tmp_path / "a"))
    cut = apply_axis_slices(array, [finer(array.grid.axes[0], 8), finer(array.grid.axes[1], 100)])
    read = []

    def counting(self, start, stop, limit=None, real=LocalFile.read):
        read.append(stop - start)
        return real(self, start, stop, limit)

    with mock.patch.object(LocalFile, "read", counting):
        np.testing.assert_array_equal(cut[...], values)
        assert read == [values.nbytes]
        read.clear()
        np.testing.assert_array_equal(cut[5, 120:130], values[5, 120:130])
        assert sum(read) <= 400


@pytest.fixture
def alike():
    """An array of six chunks of two rows, of which some have decoders that are equal."""
    values = np.arange(12, dtype="<i4") * 1000
    big = values.astype(">i4").view("<i4")
    order = [0, 1, 2, 2, 0, 1]  # of these, the third is for what was written big-endian
    stored = np.where(np.repeat(np.array(order) == 2, 2), big, values)
    array = virtual_array(stored, (2,))
    decoders = (Decoder(ZLIB), Decoder(ZLIB), Decoder(BIG))
    plain, packed = virtual_array(stored, (2,)), virtual_array(stored, (2,), pipeline=ZLIB)
    joined = Manifest.concatenate([plain.manifest, packed.manifest], 0)
    cells = [n if row == 2 else n + 6 for n, row in enumerate(order)]
    manifest = Manifest(
        (6,), joined.sources, joined.source[cells], np.asarray(joined.offset)[cells],
        np.asarray(joined.length)[cells], decoders, order,
    )  # fmt: skip
    return values, array.replace(array.metadata, manifest)


def test_slices_keep_the_decoders_of_cells_among_equal_ones(alike):
    values, array = alike
    np.testing.assert_array_equal(array[...], values)
    for start in range(12):
        for stop in range(start + 1, 13):
            found = array.lazy[start:stop][...]
            np.testing.assert_array_equal(found, values[start:stop])


def test_decoders_are_added_to_equal_ones(alike):
    values, array = alike
    planes = with_planes(array.manifest, array.manifest, 0, np.arange(6))
    named = with_decoder(array.manifest, RAW)
    for manifest in (planes, named, with_decoder(array.manifest, ZLIB)):
        np.testing.assert_array_equal(array.replace(array.metadata, manifest)[...], values)
    filled = fill_constant(array, np.arange(6) == 0, 7)
    found = array.replace(array.metadata, filled)[...]
    np.testing.assert_array_equal(found, np.where(np.arange(12) < 2, 7, values))
