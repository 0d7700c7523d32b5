"""Blosc, LZ4, bzip2 and LZMA, against numcodecs in both directions."""

from __future__ import annotations

import bz2
import contextlib
import lzma

import numcodecs
import numpy as np
import pytest

from tests.codecs.blocks import block_of
from virtualzarr.codecs import ChunkSpec, Pipeline, blosc, make
from virtualzarr.errors import CodecError

RAW = block_of(np.dtype("u1"), (9000,)).tobytes()
CASES = [
    *(
        ("blosc", {"cname": cname, "clevel": 5, "shuffle": shuffle, "typesize": 4, "blocksize": 0})
        for cname in ("lz4", "lz4hc", "blosclz", "zlib", "zstd")
        for shuffle in ("noshuffle", "shuffle", "bitshuffle")
    ),
    ("numcodecs.blosc", {"cname": "zstd", "clevel": 1, "shuffle": -1, "blocksize": 512}),
    ("numcodecs.lz4", {"acceleration": 3}),
    ("numcodecs.bz2", {"level": 9}),
    ("numcodecs.lzma", {"format": 1, "check": -1, "preset": None, "filters": None}),
    ("numcodecs.lzma", {"format": lzma.FORMAT_ALONE}),
    ("numcodecs.lzma", {"format": lzma.FORMAT_RAW, "filters": [{"id": lzma.FILTER_LZMA2}]}),
    ("numcodecs.zlib", {"level": 3}),
    ("numcodecs.zstd", {"level": 3}),
    ("numcodecs.base64", {}),
]


def decode(codec, data, size):
    out = np.zeros(size, "u1")
    codec.decode_into(data, out)
    assert bytes(codec.decode(data, None, size)) == out.tobytes()
    return out.tobytes()


def numcodec(name, configuration):
    fields = dict(configuration)
    if name == "blosc":
        fields["shuffle"] = ("noshuffle", "shuffle", "bitshuffle").index(fields["shuffle"])
        fields["typesize"] = fields.pop("typesize", None)
    return numcodecs.get_codec({"id": name.removeprefix("numcodecs."), **fields})


@pytest.mark.parametrize(("name", "configuration"), CASES)
def test_both_directions(name, configuration):
    codec, other = make(name, **configuration), numcodec(name, configuration)
    theirs = bytes(other.encode(np.frombuffer(RAW, "u1")))
    assert decode(codec, theirs, len(RAW)) == RAW
    ours = bytes(codec.encode(RAW))
    assert bytes(other.decode(ours)) == RAW
    assert decode(codec, ours, len(RAW)) == RAW


@pytest.mark.parametrize(("name", "configuration"), CASES)
def test_damage_is_an_error(name, configuration):
    codec = make(name, **configuration)
    data = bytes(codec.encode(RAW))
    for cut in (0, 1, 3, 4, 8, 15, 16, 20, len(data) // 2, len(data) - 1):
        with pytest.raises(CodecError, match=name):
            decode(codec, data[:cut], len(RAW))
    for size in (0, 1, len(RAW) - 1, len(RAW) + 1, 2 * len(RAW)):
        with pytest.raises(CodecError, match=name):
            decode(codec, data, size)
    rng = np.random.default_rng(0)
    for _ in range(300):
        bad = bytearray(data)
        bad[rng.integers(len(bad))] ^= 1 << rng.integers(8)
        out = np.zeros(len(RAW) + 64, "u1")
        with contextlib.suppress(CodecError):
            codec.decode_into(bytes(bad), out[:-64])
        assert not out[-64:].any()


def test_blosc_writes_what_numcodecs_writes():
    block = np.arange(3000, dtype="f4")
    codec = make("blosc", cname="lz4", clevel=5, shuffle="shuffle", typesize=4, blocksize=0)
    theirs = numcodecs.Blosc("lz4", 5, numcodecs.Blosc.SHUFFLE).encode(block)
    assert bytes(codec.encode(block.view("u1"))) == bytes(theirs)
    auto = make("blosc", shuffle=-1).resolve(spec_of("u1"))
    assert auto.to_v3()["configuration"]["shuffle"] == "bitshuffle"
    assert make("blosc", shuffle=-1).resolve(spec_of("f4")).to_v3()["configuration"] == {
        "typesize": 4,
        "cname": "lz4",
        "clevel": 5,
        "shuffle": "shuffle",
        "blocksize": 0,
    }


def spec_of(dtype):
    return ChunkSpec((1,), np.dtype(dtype))


@pytest.mark.parametrize("name", ["blosc", "numcodecs.blosc"])
def test_blosc_of_another_length_than_its_header_says(name):
    """One byte more in the middle shifts what is behind it, and the library decodes that."""
    data = numcodecs.Blosc("lz4").encode(RAW)
    for longer in (data + b"12345", data * 2, data[:30] + b"\x07" + data[30:]):
        with pytest.raises(CodecError, match=f"has {len(longer)} bytes, its header says"):
            decode(make(name), longer, len(RAW))


def test_blosc_without_imagecodecs(monkeypatch):
    monkeypatch.setattr(blosc, "_blosc_decode", lambda: blosc._numcodecs_blosc)
    codec = make("blosc", typesize=4)
    assert decode(codec, bytes(codec.encode(RAW)), len(RAW)) == RAW


def test_blosc_with_snappy_inside():
    imagecodecs = pytest.importorskip("imagecodecs")
    data = imagecodecs.blosc_encode(RAW, compressor="snappy", typesize=4)
    assert decode(make("blosc", cname="snappy", typesize=4), data, len(RAW)) == RAW


@pytest.mark.parametrize("name", ["blosc", "numcodecs.lz4"])
def test_a_header_that_promises_much_is_refused_on_its_word(name):
    start = 4 if name == "blosc" else 0
    data = bytes(make(name).encode(RAW))
    data = data[:start] + (0x7FFFFFFF).to_bytes(4, "little") + data[start + 4 :]
    for size in (len(RAW), None):
        with pytest.raises(CodecError, match="decoded 2147483647 bytes"):
            make(name).decode(data, size, len(RAW))


def test_several_streams_are_joined():
    for name, compress in (("numcodecs.bz2", bz2.compress), ("numcodecs.lzma", lzma.compress)):
        data = compress(RAW[:100]) + compress(RAW[100:])
        assert decode(make(name), data, len(RAW)) == RAW
        assert decode(make(name), data + b"tail", len(RAW)) == RAW


def test_configurations_are_checked():
    for bad in ({"cname": "lzma"}, {"shuffle": "bytes"}, {"shuffle": 7}):
        with pytest.raises(CodecError, match="blosc"):
            make("blosc", **bad)
    raw = make("numcodecs.lzma", format=lzma.FORMAT_RAW)
    with pytest.raises(CodecError, match=r"numcodecs\.lzma"):
        Pipeline([make("bytes"), raw]).for_block((3,), "u1").decode(b"abc")
