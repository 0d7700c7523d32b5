"""The sharding codec by itself: whole shards, their indexes, and what is refused."""

from __future__ import annotations

import math
import struct

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grids import RectilinearGrid, RegularGrid
from tests.codecs.blocks import DTYPES, block_of, same
from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.core.base import ChunkSpec
from virtualzarr.codecs.core.fill_value import is_filled
from virtualzarr.codecs.shard_decoder import ShardDecoder
from virtualzarr.codecs.sharding import find_sharding
from virtualzarr.codecs.zstd import Zstd
from virtualzarr.errors import CodecError, MetadataError, UnsupportedError
from virtualzarr.metadata import ArrayMetadata, array_to_v3, parse_array_v3

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
CRC = {"name": "crc32c"}
NONE = 2**64 - 1


def sharding(chunk_shape, codecs=(LITTLE,), **rest):
    return make("sharding_indexed", chunk_shape=list(chunk_shape), codecs=list(codecs), **rest)


def index_of(*pairs, crc=True, order="<"):
    """Return an index as the specification draws it."""
    raw = b"".join(struct.pack(f"{order}QQ", *pair) for pair in pairs)
    return raw + struct.pack("<I", google_crc32c.value(raw)) if crc else raw


INDEXES = [
    [LITTLE, CRC],
    [BIG, CRC],
    [LITTLE],
    [BIG],
    [LITTLE, {"name": "numcodecs.shuffle", "configuration": {"elementsize": 8}}, CRC],
]


@st.composite
def shards(draw):
    """Draw a pipeline with a sharding codec, and the shape of shards for it."""
    inner = draw(st.lists(st.integers(1, 3), max_size=3))
    middle = [n * draw(st.integers(1, 3)) for n in inner]
    outer = [n * draw(st.integers(1, 3)) for n in middle]
    endian = draw(st.sampled_from([LITTLE, BIG]))
    axes = draw(st.permutations(range(len(inner))))
    transpose = {"name": "transpose", "configuration": {"order": list(axes)}}
    chains = [endian], [transpose, endian, "gzip"], [endian, "crc32c"], [endian, "zstd"]
    codecs = draw(st.sampled_from([*chains, [transpose, endian, "zstd"]]))
    options = {
        "index_codecs": draw(st.sampled_from(INDEXES)),
        "index_location": draw(st.sampled_from(["start", "end"])),
    }
    codec = sharding(inner, codecs, **options)
    if draw(st.booleans()):
        codec = sharding(middle, [codec.to_v3()])
    chain = [codec]
    if draw(st.booleans()):
        chain.insert(0, {"name": "transpose", "configuration": {"order": list(axes)}})
        shape = [0] * len(outer)
        for i, axis in enumerate(axes):
            shape[axis] = outer[i]
        outer = shape
    if draw(st.booleans()):
        chain.append("zstd")
    return Pipeline(chain), tuple(outer)


@settings(max_examples=120, deadline=None)
@given(shards(), st.sampled_from(DTYPES), st.data())
def test_blocks_come_back(drawn, dtype, data):
    pipeline, shape = drawn
    if dtype.names is not None:
        dtype = np.dtype([("a", "i2"), ("b", "f8")])
    block = block_of(dtype, shape, 1).copy()
    fill = block[(0,) * block.ndim]
    for axis in range(block.ndim):
        if data.draw(st.booleans()):
            block[(slice(None),) * axis + (slice(0, shape[axis] // 2),)] = fill
    codec = pipeline.for_block(shape, dtype, fill)
    encoded = codec.encode(block)
    assert encoded == codec.encode(block)
    assert same(codec.decode(encoded), block)
    again = Pipeline.from_v3(pipeline.to_v3())
    assert again.to_v3() == pipeline.to_v3()
    assert again == Pipeline.from_v3(again.to_v3())
    assert hash(again) == hash(Pipeline.from_v3(again.to_v3()))
    assert again.decoding_key(dtype) == pipeline.decoding_key(dtype)


@pytest.mark.parametrize("edges", [(64,), (4, 8), (2, 4, 8)], ids=str)
@pytest.mark.parametrize("endian", [LITTLE, BIG], ids=["little", "big"])
@pytest.mark.parametrize("dtype", ["i2", "f4", "M8[s]", "S3"])
@pytest.mark.parametrize("box_bytes", [1, 600, 1 << 20])
def test_small_sub_chunks_are_decoded_together(box_bytes, dtype, endian, edges, monkeypatch):
    shape = tuple(3 * edge for edge in edges)
    block = block_of(np.dtype(dtype), shape, 1)
    codec = Pipeline([sharding(edges, [endian, "zstd"])]).for_block(shape, dtype, 0)
    encoded = codec.encode(block)
    together, results = ShardDecoder._decode_box, []

    def note(self, *args):
        results.append(together(self, *args))
        return results[-1]

    monkeypatch.setattr(ShardDecoder, "_decode_box", note)
    monkeypatch.setattr("virtualzarr.codecs.shard_decoder._PART_BYTES", box_bytes)
    # Into memory with gaps, as that of a larger array; and backwards, as for a selection.
    large = np.zeros([2 * length for length in shape], block.dtype)
    places = large[(slice(1, None, 2),) * block.ndim], np.empty_like(block)[::-1]
    for out in places:
        codec.decode_into(encoded, out)
        assert same(np.ascontiguousarray(out), block)
    assert np.count_nonzero(large) == np.count_nonzero(block)
    assert len(results) >= 2
    assert all(results)
    # One that is missing, or not stored as the others are, is decoded alone.
    shard = codec.encode(np.concatenate([np.zeros_like(block[: edges[0]]), block[edges[0] :]]))
    assert same(codec.decode(shard)[edges[0] :], block[edges[0] :])
    monkeypatch.setattr(Zstd, "decode_many", lambda self, chunks, size: None)
    assert same(codec.decode(encoded), block)


@pytest.mark.parametrize("codecs", [[LITTLE, "zstd"], [LITTLE], [LITTLE, "crc32c"]], ids=str)
@pytest.mark.parametrize("part_bytes", [1, 1500, 1 << 20])
@pytest.mark.parametrize("location", ["start", "end"])
def test_shards_are_decoded_part_by_part(codecs, part_bytes, location, monkeypatch):
    """Each part is decoded by its bytes alone, in any order, and touches nothing else."""
    monkeypatch.setattr("virtualzarr.codecs.shard_decoder._PART_BYTES", part_bytes)
    pipeline = Pipeline([sharding((4, 8), codecs, index_location=location)])
    block = block_of(np.dtype("f4"), (16, 32), 1)
    for is_full in (True, False):
        if not is_full:
            block[4:8, 8:24] = 0
        data = pipeline.for_block((16, 32), "f4", 0).encode(block)
        shard = find_sharding(pipeline).shard((16, 32))
        index = shard.read_index(shard.slice_index(memoryview(data)), len(data))
        out = np.full_like(block, -7)
        decoder = ShardDecoder(shard, index, ChunkSpec((16, 32), np.dtype("f4"), 0), out)
        assert len(decoder.missing) == (0 if is_full else 2)
        for part in reversed(range(len(decoder.stops))):
            stop = int(decoder.stops[part])
            before = out != -7
            decoder.decode(memoryview(data[:stop] + b"\xff" * (len(data) - stop)), [part])
            assert same(out[before], block[before])
        for target in shard.iter_slices(decoder.missing):
            assert (out[target] == -7).all()
            out[target] = 0
        assert same(out, block)


@given(st.lists(st.integers(1, 5), max_size=4), st.integers(0, 200))
def test_boxes_hold_every_sub_chunk_once(counts, most):
    edges = [2] * len(counts)
    shard = sharding(edges).shard([2 * n for n in counts])
    numbers = np.arange(math.prod(counts)).reshape(counts)
    boxes = [*shard.iter_boxes(most)]
    found = [numbers[box].reshape(-1).tolist() for _, box in boxes]
    assert found == [[*range(entries.start, entries.stop)] for entries, _ in boxes]
    assert [i for box in found for i in box] == [*range(numbers.size)]
    assert max(map(len, found)) <= max(most, 1)


def test_the_bytes_are_those_of_the_specification():
    block = np.arange(8, dtype="<u2").reshape(2, 4)
    block[:, :2] = 9
    end = Pipeline([sharding([1, 2])]).for_block((2, 4), "u2", 9)
    body = struct.pack("<HHHH", 2, 3, 6, 7)
    assert end.encode(block) == body + index_of((NONE, NONE), (0, 4), (NONE, NONE), (4, 4))
    codec = sharding([1, 2], index_location="start", index_codecs=[BIG])
    start = Pipeline([codec]).for_block((2, 4), "u2", 9)
    pairs = (NONE, NONE), (64, 4), (NONE, NONE), (68, 4)
    assert start.encode(block) == index_of(*pairs, crc=False, order=">") + body


def test_gaps_any_order_and_overlaps_are_read():
    codec = Pipeline([sharding([2])]).for_block((8,), "u1")
    shard = b"..abc." + index_of((3, 2), (2, 2), (NONE, NONE), (2, 2))
    assert bytes(codec.decode(shard)) == b"bcab\0\0ab"


def test_offsets_may_lead_into_the_index():
    codec = Pipeline([sharding([2], index_codecs=[LITTLE])]).for_block((2,), "u1")
    assert codec.decode(index_of((8, 2), crc=False)).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("shard", "problem"),
    [
        (b"ab" + index_of((0, NONE), (0, 2)), "half of the mark"),
        (b"ab" + index_of((0, 2), (NONE, 0)), r"sub-chunk \(1,\).*half of the mark"),
        (b"ab" + index_of((0, 2), (37, 2)), r"sub-chunk \(1,\) has 2 bytes from 37 on"),
        (b"ab" + index_of((0, 2), (NONE - 1, 4)), "the shard has 38"),
        (b"ab" + index_of((0, 2), (1, NONE - 1)), "the shard has 38"),
        (b"ab" + index_of((0, 2), (2**63, 2)), "the shard has 38"),
        (b"ab" + index_of((0, 2), (0, 1)), r"sub-chunk \(1,\): bytes: decoded 1 bytes"),
        (b"ab" + index_of((0, 2), (0, 3)), r"sub-chunk \(1,\): bytes: decoded 3 bytes"),
        (b"ab", "its index alone would have 36"),
        (b"", "its index alone would have 36"),
    ],
)
def test_corrupt_shards_are_refused(shard, problem):
    codec = Pipeline([sharding([2])]).for_block((4,), "u1")
    with pytest.raises(CodecError, match=problem):
        codec.decode(shard)


def test_every_changed_byte_of_an_index_is_noticed():
    codec = Pipeline([sharding([2])]).for_block((4,), "u1")
    shard = codec.encode(np.arange(1, 5, dtype="u1"))
    for i in range(4, len(shard)):
        for bit in (1, 128):
            broken = bytearray(shard)
            broken[i] ^= bit
            with pytest.raises(CodecError, match="checksum"):
                codec.decode(bytes(broken))


@pytest.mark.parametrize(
    ("configuration", "problem"),
    [
        ({"codecs": [LITTLE]}, "chunk_shape"),
        ({"chunk_shape": [0], "codecs": [LITTLE]}, "chunk_shape"),
        ({"chunk_shape": [True], "codecs": [LITTLE]}, "chunk_shape"),
        ({"chunk_shape": "12", "codecs": [LITTLE]}, "chunk_shape"),
        ({"chunk_shape": 2, "codecs": [LITTLE]}, "chunk_shape"),
        ({"chunk_shape": [2.0], "codecs": [LITTLE]}, "chunk_shape"),
        ({"chunk_shape": [2]}, "codecs: codecs must be a list"),
        ({"chunk_shape": [2], "codecs": []}, "at least one codec"),
        ({"chunk_shape": [2], "codecs": ["gzip"]}, "exactly one codec"),
        ({"chunk_shape": [2], "codecs": [LITTLE], "index_codecs": [LITTLE, "gzip"]}, "compress"),
        ({"chunk_shape": [2], "codecs": [LITTLE], "index_codecs": ["vlen-utf8"]}, "compress"),
        ({"chunk_shape": [2], "codecs": [LITTLE], "index_codecs": ["bytes"]}, "endian is missing"),
        ({"chunk_shape": [2], "codecs": [LITTLE], "index_location": "middle"}, "index_location"),
        ({"chunk_shape": [2], "codecs": [LITTLE], "order": "C"}, "unknown members"),
        ({"chunk_shape": [4], "codecs": [sharding([3]).to_v3()]}, "do not divide a shard of 4"),
        ({"chunk_shape": [4], "codecs": [sharding([2, 2]).to_v3()]}, "has 2 axes, the shard 1"),
    ],
)
def test_wrong_configurations_are_refused(configuration, problem):
    with pytest.raises((CodecError, MetadataError), match=problem):
        make("sharding_indexed", **configuration)


def test_sub_chunks_must_divide_the_shards():
    codec = Pipeline([sharding([2, 3])])
    with pytest.raises(CodecError, match="sub-chunks of 3 do not divide a shard of 4 along axis 1"):
        codec.for_block((2, 4), "u1")
    with pytest.raises(CodecError, match="has 2 axes, the shard 1"):
        codec.for_block((6,), "u1")
    with pytest.raises(CodecError, match="at most 2\\^30"):
        Pipeline([sharding([1])]).for_block((2**31,), "u1")


def metadata(grid, pipeline, fill=0):
    return ArrayMetadata(grid.shape, np.dtype("u1"), grid, pipeline, fill)


def test_arrays_are_checked_when_they_are_opened():
    turned = [{"name": "transpose", "configuration": {"order": [1, 0]}}, sharding([3, 2])]
    good = metadata(RegularGrid((9, 9), (4, 6)), Pipeline(turned))
    assert parse_array_v3(array_to_v3(good)) == good
    with pytest.raises(MetadataError, match=r"codecs: .*sub-chunks of 3 do not divide"):
        metadata(RegularGrid((9, 9), (6, 4)), Pipeline(turned))
    edges = [[4, 2, 8], [3, 6, 3]]
    metadata(RectilinearGrid((14, 12), edges), Pipeline([sharding([2, 3])]))
    with pytest.raises(MetadataError, match=r"sub-chunks of 4 do not divide a shard of 2 .*axis 0"):
        metadata(RectilinearGrid((14, 12), edges), Pipeline([sharding([4, 3])]))


def test_there_is_no_form_in_v2():
    with pytest.raises(UnsupportedError, match="no shards"):
        Pipeline([sharding([2])]).to_v2("u1", 1, (4,))


@pytest.mark.parametrize("dtype", ["f4", "c8", "S3", "U2", "M8[s]", "i2"])
def test_what_is_not_stored_is_the_fill_value(dtype):
    fill = block_of(np.dtype(dtype), (5,), 3)[4]
    empty = index_of(*[(NONE, NONE)] * 4)
    codec = Pipeline([sharding([2])]).for_block((8,), dtype, fill)
    assert same(codec.decode(empty), np.full(8, fill, dtype))
    assert codec.encode(np.full(8, fill, dtype)) == empty
    assert Pipeline([sharding([2])]).for_block((8,), "i2").decode(empty).tolist() == [0] * 8


def test_fill_values_pass_the_codecs_before_the_shard():
    scaled = make("numcodecs.fixedscaleoffset", offset=10, scale=2, dtype="<f8", astype="<i4")
    pipeline = Pipeline([scaled, sharding([2])])
    codec = pipeline.for_block((4,), "f8", 12.5)
    assert codec.decode(index_of((NONE, NONE), (NONE, NONE))).tolist() == [12.5] * 4
    encoded = codec.encode(np.array([12.5, 12.5, 10, 11]))
    assert encoded[:8] == struct.pack("<ii", 0, 2)
    assert codec.decode(encoded).tolist() == [12.5, 12.5, 10, 11]


def test_only_the_very_bits_of_the_fill_value_are_left_out():
    quiet, odd = np.array([0x7FC00000, 0x7FC00001], "u4").view("f4")
    for fill, other in ((np.float32(0.0), np.float32(-0.0)), (quiet, odd)):
        codec = Pipeline([sharding([1])]).for_block((2,), "f4", fill)
        block = np.array([fill, other], "f4")
        encoded = codec.encode(block)
        assert len(encoded) == 4 + 36
        assert same(codec.decode(encoded), block)
        # Not the compiled codec of an equal fill value.
        assert same(
            Pipeline([sharding([1])]).for_block((2,), "f4", other).decode(encoded)[:1],
            block[1:],
        )


@pytest.mark.parametrize("dtype", DTYPES[:-1], ids=str)
def test_is_filled(dtype):
    values = block_of(dtype, (50,), 2)
    fill = values[0]
    block = np.full((3, 4), fill, dtype)
    assert is_filled(block, fill)
    assert is_filled(block.T, fill)
    assert is_filled(block[:0], fill)
    assert is_filled(block[0, 0, ...], fill)
    other = next((v for v in values if v.tobytes() != fill.tobytes()), None)
    assert other is not None
    block[2, 3] = other
    assert not is_filled(block, fill)
    assert not is_filled(np.asfortranarray(block), fill)


def test_strings_in_shards():
    codec = Pipeline([sharding([2], ["vlen-utf8", "gzip"])]).for_block((6,), object, "na")
    block = np.array(["a", "bé", "na", "na", "", "na"], object)
    encoded = codec.encode(block)
    assert codec.decode(encoded).tolist() == block.tolist()
    pairs = np.frombuffer(encoded[-52:-4], "<u8").reshape(3, 2)
    assert (pairs[:, 0] == NONE).tolist() == [False, True, False]


def test_what_is_split_and_joined_keeps_its_bytes():
    shard = sharding([2, 2]).shard((4, 4))
    first = shard.join({3: b"last", 0: b"first"})
    assert first.startswith(b"firstlast")
    parts = {i: bytes(part) for i, part in shard.split(first).items()}
    assert parts == {0: b"first", 3: b"last"}
    assert shard.join(parts | {1: b"middle"}).startswith(b"firstmiddlelast")
    with pytest.raises(CodecError, match="checksum"):
        shard.split(first[:-1] + b"x")
    single = sharding([]).shard(())
    assert bytes(single.split(single.join({0: b"x"}))[0]) == b"x"


def test_a_gap_is_closed_by_joining():
    shard = sharding([2], index_location="start").shard((4,))
    old = index_of((38, 1), (36, 2)) + b"bba"
    assert shard.join(shard.split(old)) == index_of((36, 1), (37, 2)) + b"abb"
