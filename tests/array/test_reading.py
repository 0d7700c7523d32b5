"""Reading arrays: every selection over every kind of chunks equals numpy."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr
from grids import RectilinearGrid, RegularGrid
from virtualzarr import Array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import ChunkNotFoundError, CodecError, SourceError
from virtualzarr.manifest import Decoder, Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata

ENDIANS = ("little", "big")
COMPRESSED = [[make("numcodecs.shuffle", elementsize=4), make("numcodecs.zlib", level=1)],
              [make("zstd", level=1, checksum=False)]]  # fmt: skip


def write_chunks(data, grid, pipeline, rng, tmp_path=None):
    """Encode the chunks of an array into one file, in random order with gaps; some are missing."""
    source = np.full(grid.grid_shape, -1)
    offset, length = np.zeros(grid.grid_shape, int), np.zeros(grid.grid_shape, int)
    heap, expected = bytearray(b"header"), np.full_like(data, 7)
    cells = list(np.ndindex(*grid.grid_shape))
    rng.shuffle(cells)
    for cell in map(tuple, cells):
        if rng.random() < 0.2:
            continue
        origin, shape, extent = (
            grid.cell_origin(cell),
            grid.cell_shape(cell),
            grid.cell_extent(cell),
        )
        place = tuple(slice(o, o + n) for o, n in zip(origin, extent, strict=True))
        block = np.zeros(shape, data.dtype)
        block[tuple(slice(0, n) for n in extent)] = data[place]
        encoded = bytes(pipeline.for_block(shape, data.dtype).encode(block))
        expected[place] = data[place]
        source[cell], offset[cell], length[cell] = 0, len(heap), len(encoded)
        heap += encoded + bytes(rng.integers(0, 3))
    if tmp_path is None:
        origin = Source.inline(bytes(heap))
    else:
        path = tmp_path / "chunks.bin"
        path.write_bytes(heap)
        origin = Source.from_file(path)
    return Manifest(grid.grid_shape, Sources([origin]), source, offset, length), expected


@st.composite
def cases(draw):
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=0, max_size=3)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if draw(st.booleans()):
        grid = RegularGrid(shape, tuple(draw(st.integers(1, 6)) for _ in shape))
    else:
        edges = []
        for n in shape:
            lengths = draw(st.lists(st.integers(1, 4), max_size=4))
            edges.append([*lengths, n] if n else lengths)
        grid = RectilinearGrid(shape, edges)
    codecs = [make("bytes", endian=draw(st.sampled_from(ENDIANS)))]
    if len(shape) > 1 and draw(st.booleans()):
        codecs.insert(0, make("transpose", order=list(range(len(shape)))[::-1]))
    codecs += draw(st.sampled_from([[], *COMPRESSED]))
    data = rng.integers(-(2**31), 2**31, shape, dtype="i4")
    manifest, expected = write_chunks(data, grid, Pipeline(codecs), rng)
    metadata = ArrayMetadata(shape, np.dtype("i4"), grid, Pipeline(codecs), fill_value=7)
    return Array.from_manifest(metadata, manifest, "x"), expected


@st.composite
def basic(draw, shape):
    parts = []
    for n in shape:
        if n and draw(st.booleans()):
            parts.append(draw(st.integers(-n, n - 1)))
        else:
            parts.append(draw(st.slices(n)))
    return tuple(parts)


@settings(deadline=None)
@given(st.data(), cases(), st.sampled_from([0, 10**9]))
def test_basic_selections(data, case, split):
    array, expected = case
    selection = data.draw(basic(array.shape))
    with virtualzarr.config.set(partial_read_bytes=split):
        result = array[selection]
    np.testing.assert_array_equal(result, expected[selection])
    assert result.dtype == expected.dtype
    assert np.shape(result) == expected[selection].shape


@settings(deadline=None)
@given(st.data(), cases(), st.sampled_from([0, 10**9]))
def test_orthogonal_and_point_selections(data, case, split):
    array, expected = case
    if 0 in array.shape or not array.shape:
        return
    indices = [
        np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5)))
        for n in array.shape
    ]
    count = min(map(len, indices))
    points = tuple(index[:count] for index in indices)
    with virtualzarr.config.set(partial_read_bytes=split):
        np.testing.assert_array_equal(array.oindex[tuple(indices)], expected[np.ix_(*indices)])
        np.testing.assert_array_equal(array.vindex[points], expected[points])
        mixed = (indices[0], *(slice(None, None, 2) for _ in array.shape[1:]))
        np.testing.assert_array_equal(array.oindex[mixed], expected[mixed])
        mask = expected > 0
        np.testing.assert_array_equal(array.vindex[mask], expected[mask])


@pytest.mark.parametrize("threads", [1, 3])
def test_many_threads_and_merged_reads(tmp_path, monkeypatch, threads):
    monkeypatch.setattr(virtualzarr.config, "threads", threads)
    monkeypatch.setattr(virtualzarr.config, "local_read", 1000)
    monkeypatch.setattr(virtualzarr.config, "batch_bytes", 2000)
    rng = np.random.default_rng(0)
    data = rng.integers(0, 9, (100, 60), dtype="i4")
    pipeline = Pipeline([make("bytes", endian="little"), *COMPRESSED[0]])
    grid = RegularGrid(data.shape, (7, 11))
    manifest, expected = write_chunks(data, grid, pipeline, rng, tmp_path)
    array = Array.from_manifest(ArrayMetadata(data.shape, data.dtype, grid, pipeline, 7), manifest)
    np.testing.assert_array_equal(array[...], expected)
    np.testing.assert_array_equal(array[::-3, 5:50:2], expected[::-3, 5:50:2])
    again = pickle.loads(pickle.dumps(array))
    np.testing.assert_array_equal(again[50:], expected[50:])


def test_origin_and_decoder_columns():
    """Cells that are parts of larger stored blocks, some of them compressed otherwise."""
    data = np.arange(12 * 10, dtype="i4").reshape(12, 10)
    plain = Pipeline([make("bytes", endian="little")])
    packed = Pipeline([make("bytes", endian="big"), make("numcodecs.zlib", level=1)])
    first, second = plain.for_block((6, 10), data.dtype), packed.for_block((6, 10), data.dtype)
    heap = bytes(first.encode(data[:6])) + bytes(second.encode(data[6:]))
    sizes = [240, len(heap) - 240]
    grid = RectilinearGrid((12, 10), [[4, 2, 4, 2], [5, 5]])
    column = lambda values: np.repeat(np.array(values)[:, None], 2, axis=1)  # noqa: E731
    origin = np.zeros((4, 2, 2), int)
    origin[[1, 3], :, 0] = 4
    origin[:, 1, 1] = 5
    manifest = Manifest(
        (4, 2), Sources([Source.inline(heap)]), 0, column([0, 0, 240, 240]),
        column([sizes[0], sizes[0], sizes[1], sizes[1]]),
        [Decoder(plain, (6, 10)), Decoder(packed, (6, 10))], column([0, 0, 1, 1]), origin,
    )  # fmt: skip
    array = Array.from_manifest(ArrayMetadata((12, 10), data.dtype, grid, plain, 0), manifest)
    for rows, columns in itertools.product(
        [slice(None), slice(3, 9, 2)], [slice(None), slice(8, 2, -1)]
    ):
        np.testing.assert_array_equal(array[rows, columns], data[rows, columns])
    np.testing.assert_array_equal(array.vindex[[11, 0, 5], [0, 9, 5]], data[[11, 0, 5], [0, 9, 5]])


def simple(manifest, **changes):
    pipeline = Pipeline([make("bytes", endian="little"), make("numcodecs.zlib", level=1)])
    grid = RegularGrid((20,), (10,))
    return Array.from_manifest(
        ArrayMetadata((20,), np.dtype("i4"), grid, pipeline, **changes), manifest, "group/x"
    )


def test_errors_name_file_variable_and_chunk(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"garbage that is not zlib")
    array = simple(Manifest((2,), Sources([Source.from_file(path)]), [-1, 0], 3, 10))
    assert array[:10].tolist() == [0] * 10
    with pytest.raises(CodecError, match=rf"file {path}, variable group/x, chunk 1"):
        array[:]
    beyond = simple(Manifest((2,), Sources([Source.from_file(path)]), [-1, 0], 20, 10))
    with pytest.raises(SourceError, match=r"20 to 30 .* 24 .*chunk 1"):
        beyond[:]
    absurd = simple(Manifest((2,), Sources([Source.from_file(path)]), 0, 0, 2**60))
    with pytest.raises(CodecError, match="claims"):
        absurd[:]
    path.write_bytes(b"something else of another length")
    with pytest.raises(SourceError, match="changed since it was scanned"):
        array[:]
    path.unlink()
    with pytest.raises(SourceError, match="chunk 1"):
        array[:]


def test_missing_chunks_may_be_an_error():
    array = simple(Manifest.missing((2,)))
    array.fill_missing = False
    with pytest.raises(ChunkNotFoundError, match="group/x, chunk 0"):
        array[:]


def test_missing_chunks_of_a_fill_left_open_read_as_zero():
    assert simple(Manifest.missing((2,)), zarr_format=2, fill_value=None)[:].tolist() == [0] * 20


def test_a_selection_of_nothing_asks_for_nothing():
    array = simple(Manifest((2,), Sources([Source("/nowhere")]), 0, 0, 10))
    assert array[5:5].shape == (0,)
    assert array.oindex[[]].shape == (0,)
    with pytest.raises(IndexError):
        array[20]


@pytest.mark.parametrize(("dtype", "zero"), [(str, ""), (bytes, b""), ("i4", 0)])
def test_a_missing_chunk_without_axes(dtype, zero):
    """Of elements of any length, what is read is one, not an array of it."""
    array = virtualzarr.create_array({}, shape=(), dtype=dtype)
    assert type(array.read()[()]) is type(np.asarray(zero, array.dtype)[()])
    assert array[...] == zero
    array[...] = array.read()
