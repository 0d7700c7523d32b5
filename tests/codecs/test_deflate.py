"""zlib and gzip streams, against the standard library and with and without the fast decoder."""

from __future__ import annotations

import gzip
import zlib

import numcodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.core.libraries import find_imagecodecs
from virtualzarr.codecs.gzip import Gzip
from virtualzarr.codecs.zlib import Zlib
from virtualzarr.errors import CodecError


@pytest.fixture(params=["libdeflate", "zlib"])
def library(request, monkeypatch):
    """Decode with libdeflate, then as if imagecodecs were not installed."""
    if request.param == "zlib":
        monkeypatch.setattr(Zlib, "_fast", None)
        monkeypatch.setattr(Gzip, "_fast", (None, None))
    elif find_imagecodecs("deflate_decode", "DEFLATE") is None:
        pytest.skip("imagecodecs has no libdeflate")
    return request.param


def decode(name, data, size):
    codec = make(name)
    out = np.zeros(size, "u1")
    codec.decode_into(data, out)
    assert bytes(codec.decode(data, None, size)) == out.tobytes()
    return out.tobytes()


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=1, max_size=3000), st.integers(0, 9))
def test_streams_of_all_levels(raw, level):
    assert decode("numcodecs.zlib", zlib.compress(raw, level), len(raw)) == raw
    assert decode("gzip", gzip.compress(raw, level), len(raw)) == raw
    assert zlib.decompress(make("numcodecs.zlib", level=level).encode(raw)) == raw
    assert gzip.decompress(make("gzip", level=level).encode(raw)) == raw


def test_what_numcodecs_writes_and_reads(library):
    raw = bytes(range(256)) * 20
    assert decode("numcodecs.zlib", numcodecs.Zlib(5).encode(raw), len(raw)) == raw
    assert decode("gzip", numcodecs.GZip(5).encode(raw), len(raw)) == raw
    assert bytes(numcodecs.Zlib().decode(make("numcodecs.zlib").encode(raw))) == raw
    assert bytes(numcodecs.GZip().decode(make("gzip").encode(raw))) == raw


def test_members_of_gzip_are_joined(library):
    raw = bytes(range(200)) * 9
    parts = [raw[:100], b"", raw[100:700], raw[700:]]
    data = b"".join(gzip.compress(part) for part in parts)
    assert decode("gzip", data, len(raw)) == raw
    assert decode("gzip", data + bytes(12), len(raw)) == raw  # zeros after the end are padding
    with pytest.raises(CodecError, match="1799"):
        decode("gzip", data, len(raw) - 1)
    with pytest.raises(CodecError, match=f"decoded {len(raw)} bytes"):
        decode("gzip", data, len(raw) + 1)


def test_a_second_member_is_not_lost(library):
    raw = bytes(range(100))
    with pytest.raises(CodecError):
        decode("gzip", gzip.compress(raw) + gzip.compress(raw[::-1]), len(raw))
    # Its checksum and size are those of the first.
    with pytest.raises(CodecError):
        decode("gzip", gzip.compress(raw) * 2, len(raw))
    with pytest.raises(CodecError):
        decode("gzip", gzip.compress(raw) + gzip.compress(raw)[-8:], len(raw))


def test_what_follows_the_end(library):
    raw = bytes(range(100))
    assert decode("numcodecs.zlib", zlib.compress(raw) + b"garbage", len(raw)) == raw
    with pytest.raises(gzip.BadGzipFile):
        gzip.decompress(gzip.compress(raw) + b"garbage")
    with pytest.raises(CodecError, match="gzip: the stream is corrupt"):
        decode("gzip", gzip.compress(raw) + b"garbage", len(raw))


COMPRESSORS = [("numcodecs.zlib", zlib.compress), ("gzip", gzip.compress)]


@pytest.mark.parametrize(("name", "compress"), COMPRESSORS)
def test_damage_is_an_error(library, name, compress):
    raw = np.random.default_rng(0).integers(0, 99, 5000).astype("u1").tobytes()
    data = compress(raw)
    for cut in (0, 1, 2, 5, 11, len(data) // 2, len(data) - 9, len(data) - 1):
        with pytest.raises(CodecError, match=name):
            decode(name, data[:cut], len(raw))
    for position in range(10, len(data), 97):
        bad = bytearray(data)
        bad[position] ^= 0x20
        with pytest.raises(CodecError, match=name):
            decode(name, bytes(bad), len(raw))
    for size in (0, 1, 4999, 5001, 10000):
        with pytest.raises(CodecError, match=name):
            decode(name, data, size)


def test_levels_are_checked():
    for level in (-2, 10, "6", None):
        with pytest.raises(CodecError, match="level"):
            make("gzip", level=level)


def test_both_libraries_give_the_same_block(library):
    pipeline = Pipeline(
        [make("bytes", endian="big"), make("numcodecs.shuffle", elementsize=8), make("gzip")]
    )
    block = np.random.default_rng(1).normal(size=(40, 30))
    codec = pipeline.for_block(block.shape, block.dtype)
    out = np.zeros((7, 15))
    codec.decode_into(codec.encode(block), out, (slice(3, 10), slice(None, None, 2)))
    assert (out == block[3:10, ::2]).all()
