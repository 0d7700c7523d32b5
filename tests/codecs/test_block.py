"""Decoding into place: every layout of bytes, every layout of the output, every selection."""

from __future__ import annotations

import bz2
import functools
import gzip
import lzma
import pickle
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor

import imagecodecs
import numcodecs
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codecs.blocks import block_of, dtypes, same, selections, shapes, strided
from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import CodecError

TAILS = {
    "none": [],
    "zlib": [("numcodecs.zlib", {})],
    "shuffle": [("numcodecs.shuffle", {"elementsize": None})],
    "shuffle-zlib": [("numcodecs.shuffle", {"elementsize": None}), ("numcodecs.zlib", {})],
    "shuffle2-zstd": [("numcodecs.shuffle", {"elementsize": 2}), ("zstd", {})],
    "shuffle-zstd-sum": [
        ("numcodecs.shuffle", {"elementsize": None}),
        ("zstd", {}),
        ("numcodecs.fletcher32", {}),
    ],
    "sum-shuffle-gzip": [
        ("numcodecs.fletcher32", {}),
        ("numcodecs.shuffle", {"elementsize": None}),
        ("gzip", {"level": 1}),
    ],
    "zlib-zlib": [("numcodecs.zlib", {}), ("numcodecs.zlib", {})],
    "lz4": [("numcodecs.lz4", {})],
    "blosc": [("blosc", {})],
    "bz2": [("numcodecs.bz2", {})],
    "zstd": [("zstd", {})],
}


def pipeline_of(tail, endian, order=None):
    head = [] if order is None else [make("transpose", order=order)]
    steps = [make(name, **configuration) for name, configuration in TAILS[tail]]
    return Pipeline([*head, make("bytes", endian=endian), *steps])


@st.composite
def cases(draw):
    shape, dtype = draw(shapes), draw(dtypes)
    order = draw(st.none() | st.permutations(range(len(shape))))
    endian = draw(st.sampled_from(["little", "big"]))
    tail = draw(st.sampled_from(sorted(TAILS)))
    block = block_of(dtype, shape, draw(st.integers(0, 9)))
    return pipeline_of(tail, endian, order).for_block(shape, dtype), block, draw(selections(shape))


@settings(max_examples=100, deadline=None)
@given(cases())
def test_decode_and_decode_into_agree_with_what_was_encoded(case):
    codec, block, select = case
    data = codec.encode(block)
    assert type(data) is bytes
    assert same(codec.decode(data), block)
    assert same(codec.decode(memoryview(data)), block)
    for out in (np.zeros(block.shape, codec.dtype), strided(block.shape, codec.dtype)):
        codec.decode_into(data, out)
        assert same(out, block)
    expected = block[(..., *select)]
    for out in (np.zeros(expected.shape, codec.dtype), strided(expected.shape, codec.dtype)):
        codec.decode_into(np.frombuffer(data, "u1"), out, select)
        assert same(out, expected)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("endian", ["little", "big"])
def test_decode_into_fortran_output_and_other_dtype(tail, endian):
    block = block_of(np.dtype("i2"), (3, 4, 5))
    for order in (None, [2, 1, 0], [1, 2, 0]):
        codec = pipeline_of(tail, endian, order).for_block(block.shape, block.dtype)
        data = codec.encode(block)
        out = np.zeros(block.shape, "i2", order="F")
        codec.decode_into(data, out)
        assert same(out, block)
        wide = np.zeros(block.shape, ">i8")
        codec.decode_into(data, wide)
        assert (wide == block).all()


@pytest.mark.parametrize("tail", TAILS)
def test_blocks_without_elements(tail):
    codec = pipeline_of(tail, "little").for_block((0, 3), "i4")
    assert codec.nbytes == 0
    assert codec.decode(b"").shape == (0, 3)
    codec.decode_into(b"", np.empty((0, 3), "i4"))


@pytest.mark.parametrize("tail", TAILS)
def test_data_too_short_too_long_or_empty_raise(tail):
    codec = pipeline_of(tail, "little").for_block((4, 5), "f4")
    for rows in (3, 5, 4000):
        other = pipeline_of(tail, "little").for_block((rows, 5), "f4")
        data = other.encode(block_of(np.dtype("f4"), (rows, 5)))
        out = np.zeros((4, 5), "f4")
        with pytest.raises(CodecError, match=r"\w"):
            codec.decode(data)
        with pytest.raises(CodecError):
            codec.decode_into(data, out[::-1])
    with pytest.raises(CodecError):
        codec.decode(b"")


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(TAILS)), st.data())
def test_damaged_data_raise_or_give_a_block(tail, data):
    codec = pipeline_of(tail, "big").for_block((6, 7), "i4")
    good = codec.encode(block_of(np.dtype("i4"), (6, 7)))
    position = data.draw(st.integers(0, len(good) - 1))
    damage = data.draw(st.sampled_from(["flip", "cut", "drop", "insert"]))
    bad = {
        "flip": good[:position] + bytes([good[position] ^ 0x41]) + good[position + 1 :],
        "cut": good[:position],
        "drop": good[:position] + good[position + 1 :],
        "insert": good[:position] + b"\xff" + good[position:],
    }[damage]
    guard = np.full((8, 9), 77, "i4")
    try:
        codec.decode_into(bad, guard[1:7, 1:8])
    except CodecError:
        pass
    else:
        assert codec.decode(bad).shape == (6, 7)
    assert (guard[0] == 77).all()
    assert (guard[:, 0] == 77).all()
    assert (guard[7] == 77).all()
    assert (guard[:, 8] == 77).all()


BOMBS = {
    "numcodecs.zlib": zlib.compress,
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "numcodecs.bz2": bz2.compress,
    "numcodecs.lzma": lzma.compress,
    "numcodecs.lz4": numcodecs.LZ4().encode,
    "blosc": numcodecs.Blosc().encode,
    "imagecodecs_lzf": functools.partial(imagecodecs.lzf_encode, header=True),
    "imagecodecs_brotli": imagecodecs.brotli_encode,
    "imagecodecs_lz4h5": imagecodecs.lz4h5_encode,
    "imagecodecs_lz4f": imagecodecs.lz4f_encode,
    "imagecodecs_packbits": lambda raw: b"\x81\x00" * (len(raw) // 128),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_raise_before_they_take_memory(name):
    data = BOMBS[name](bytes(50_000_000))
    codec = Pipeline([make("bytes", endian="little"), make(name)]).for_block((100,), "i4")
    out = np.zeros(100, "i4")
    with pytest.raises(CodecError):
        codec.decode(data[:1000])
    tracemalloc.start()
    try:
        with pytest.raises(CodecError, match="400"):
            codec.decode_into(data, out)
        assert tracemalloc.get_traced_memory()[1] < 12_000_000  # an xz dictionary takes 8 of them
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["numcodecs.zlib", "numcodecs.bz2", "numcodecs.lzma", "zstd"])
def test_the_error_names_the_codec_and_the_sizes(name):
    short = Pipeline([make("bytes", endian="little"), make(name)])
    data = short.for_block((750,), "i4").encode(np.zeros(750, "i4"))
    codec = short.for_block((1024,), "i4")
    problem = f"{name}: decoded 3000 bytes, the block needs 4096"
    with pytest.raises(CodecError, match=problem):
        codec.decode(data)
    with pytest.raises(CodecError, match=problem):
        codec.decode_into(data, strided((1024,), "i4"))


@pytest.mark.parametrize("tail", ["shuffle-zlib", "shuffle-zstd-sum", "zlib", "lz4", "blosc"])
def test_threads_do_not_disturb_each_other(tail):
    dtype = np.dtype("f4")
    shapes_ = [(7, 11), (64, 64), (3, 500), (200, 33)]
    codecs = [pipeline_of(tail, "big").for_block(shape, dtype) for shape in shapes_]
    blocks = [[block_of(dtype, shape, seed) for seed in range(8)] for shape in shapes_]
    data = [[codec.encode(b) for b in row] for codec, row in zip(codecs, blocks, strict=True)]

    def work(job):
        which, seed = job % len(codecs), job % 8
        select = (slice(None, None, -1), slice(1, None, 2))
        out = np.empty(blocks[which][seed][select].shape, dtype)
        codecs[which].decode_into(data[which][seed], out, select)
        return same(out, blocks[which][seed][select])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(800)))


def test_raw_says_when_bytes_are_just_elements():
    def raw(*codecs, shape=(2, 3, 4), dtype="i2"):
        return Pipeline(codecs).for_block(shape, dtype).raw

    little, big = make("bytes", endian="little"), make("bytes", endian="big")
    assert raw(little) == (np.dtype("<i2"), (0, 1, 2))
    assert raw(big) == (np.dtype(">i2"), (0, 1, 2))
    turned = (make("transpose", order=[2, 0, 1]), make("transpose", order=[0, 2, 1]), big)
    assert raw(*turned) == (np.dtype(">i2"), (2, 1, 0))
    assert raw(little, make("numcodecs.zlib")) is None
    assert raw(little, make("crc32c")) is None
    assert raw(make("numcodecs.delta"), little) is None
    assert raw(make("numcodecs.bitround", keepbits=3), little, dtype="f4") is not None
    assert raw(little, make("numcodecs.shuffle", elementsize=1)) is not None
    block = block_of(np.dtype("i2"), (2, 3, 4))
    codec = Pipeline(turned).for_block(block.shape, block.dtype)
    dtype, order = codec.raw
    stored = np.frombuffer(codec.encode(block), dtype).reshape([block.shape[k] for k in order])
    assert (stored == block.transpose(order)).all()


def test_encoding_refuses_what_would_change_the_values():
    codec = Pipeline([make("bytes", endian="little")]).for_block((3,), "i2")
    with pytest.raises(CodecError, match="the chunk is"):
        codec.encode(np.zeros(4, "i2"))
    with pytest.raises(CodecError, match="float64"):
        codec.encode(np.array([0.5, 1, 2]))


def test_block_codecs_are_kept_and_pipelines_pickle():
    pipeline = pipeline_of("shuffle-zlib", "little")
    assert pipeline.for_block((3, 4), "f4") is pipeline.for_block([3, 4], np.dtype("f4"))
    block = block_of(np.dtype("f4"), (3, 4))
    data = pipeline.for_block((3, 4), "f4").encode(block)
    assert same(pipeline.for_block((3, 4), "f4").decode(data), block)
    copy = pickle.loads(pickle.dumps(pipeline))
    assert copy == pipeline
    assert hash(copy) == hash(pipeline)
    assert same(copy.for_block((3, 4), "f4").decode(data), block)
