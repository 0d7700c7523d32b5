"""Zstandard frames: several, without size, skippable, damaged."""

from __future__ import annotations

import struct

import numcodecs
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualzarr.codecs import make, zstd
from virtualzarr.errors import CodecError, MissingDependencyError

SKIPPED = struct.pack("<II", 0x184D2A53, 5) + b"hello"


def unsized(raw, **options):
    return zstandard.ZstdCompressor(write_content_size=False, **options).compress(raw)


def decode(data, size):
    codec = make("zstd")
    out = np.zeros(size, "u1")
    codec.decode_into(data, out)
    assert bytes(codec.decode(data, None, size)) == out.tobytes()
    return out.tobytes()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.binary(max_size=2000), st.booleans(), st.booleans()), min_size=1, max_size=4
    ),
    st.sampled_from([-5, 1, 3, 19]),
)
def test_frames_are_joined(parts, level):
    data = b""
    for raw, sized, checked in parts:
        data += zstandard.ZstdCompressor(
            level=level, write_content_size=sized, write_checksum=checked
        ).compress(raw)
    raw = b"".join(part for part, _, _ in parts)
    assert decode(data, len(raw)) == raw
    assert decode(SKIPPED + data + SKIPPED, len(raw)) == raw
    for size in (len(raw) + 1, len(raw) + 1000, *([len(raw) - 1] if raw else [])):
        with pytest.raises(CodecError, match="zstd"):
            decode(data, size)


@pytest.mark.parametrize("size", [10, 200_000, 1_500_000])
@pytest.mark.parametrize("content", ["random", "zeros", "text"])
def test_frames_of_many_blocks(size, content):
    rng = np.random.default_rng(0)
    raw = {
        "random": rng.integers(0, 256, size).astype("u1").tobytes(),
        "zeros": bytes(size),
        "text": (b"the quick brown fox " * (size // 20 + 1))[:size],
    }[content]
    for data in (zstandard.compress(raw), unsized(raw), unsized(raw, write_checksum=True)):
        assert decode(data, size) == raw
        assert decode(data + data, 2 * size) == raw + raw
        for cut in (1, 4, 9, len(data) // 2, len(data) - 1):
            with pytest.raises(CodecError, match="zstd"):
                decode(data[:cut], size)
            with pytest.raises(CodecError, match="zstd"):
                make("zstd").decode(data[:cut], None, size)
        with pytest.raises(CodecError, match="zstd"):
            decode(data + b"tail", size)


def test_what_numcodecs_writes_and_reads():
    raw = bytes(range(256)) * 40
    assert decode(numcodecs.Zstd(level=3).encode(raw), len(raw)) == raw
    for options in ({}, {"level": 9}, {"level": -3, "checksum": True}):
        data = make("zstd", **options).encode(raw)
        assert bytes(numcodecs.Zstd().decode(data)) == raw
        assert zstandard.get_frame_parameters(data).has_checksum is options.get("checksum", False)


def test_a_frame_that_promises_much_is_refused_on_its_word():
    frame = bytearray(zstandard.compress(bytes(100_000)))
    header = zstandard.frame_header_size(bytes(frame))
    assert header >= 7
    promised = bytes(frame[:4]) + b"\xe0" + struct.pack("<Q", 1 << 50) + bytes(frame[header:])
    assert zstandard.frame_content_size(promised) == 1 << 50
    with pytest.raises(CodecError, match=str(1 << 50)):
        decode(promised, 100_000)


def test_documents():
    codec = make("zstd", level=4)
    assert codec.to_v3() == {"name": "zstd", "configuration": {"level": 4, "checksum": False}}
    with pytest.raises(CodecError, match="level"):
        make("zstd", level=23)


def test_imagecodecs_serves_without_zstandard(monkeypatch):
    monkeypatch.setattr(zstd, "_library", lambda: None)
    raw = bytes(range(256)) * 40
    codec = make("zstd", level=3, checksum=True)
    out = np.zeros(len(raw), "u1")
    for data in (codec.encode(raw), zstandard.compress(raw)):
        codec.decode_into(data, out)
        assert out.tobytes() == raw
        out[:] = 0
    for size in (len(raw) - 1, len(raw) + 1):
        with pytest.raises(CodecError, match="zstd"):
            codec.decode_into(data, np.zeros(size, "u1"))
    for cut in (3, len(data) - 1):
        with pytest.raises(CodecError, match="zstd"):
            codec.decode_into(data[:cut], out)
    with pytest.raises(MissingDependencyError, match="zstandard"):
        codec.decode(data, None, 99)
    monkeypatch.setattr(zstd.Zstd, "_in_place", None)
    with pytest.raises(MissingDependencyError, match="zstandard"):
        make("zstd").decode_into(data, out)
