"""numcodecs' filters of arrays: dtypes along the chain, against numcodecs itself."""

from __future__ import annotations

import numcodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codecs.blocks import same
from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import CodecError

CASES = [
    ("delta", {"dtype": "<i4"}, "i4"),
    ("delta", {"dtype": "<i4", "astype": "<i2"}, "i4"),
    ("delta", {"dtype": "|u1"}, "u1"),
    ("delta", {"dtype": "<f8"}, "f8"),
    ("fixedscaleoffset", {"offset": -3, "scale": 10, "dtype": "<f8", "astype": "<i2"}, "f8"),
    ("fixedscaleoffset", {"offset": 0.5, "scale": 2, "dtype": "<f4", "astype": "|u1"}, "f4"),
    ("quantize", {"digits": 2, "dtype": "<f8"}, "f8"),
    ("quantize", {"digits": 1, "dtype": "<f8", "astype": "<f4"}, "f8"),
    ("astype", {"encode_dtype": "<i2", "decode_dtype": "<f8"}, "f8"),
    ("astype", {"encode_dtype": "<f4", "decode_dtype": "<f8"}, "f8"),
    ("bitround", {"keepbits": 5}, "f4"),
    ("packbits", {}, "?"),
]


def values(dtype, shape, seed=0):
    rng = np.random.default_rng(seed)
    block = rng.integers(0, 2 if dtype == "?" else 60, shape)
    return np.asarray(block + (rng.random(shape) if "f" in dtype else 0), dtype)


@pytest.mark.parametrize(("short", "configuration", "dtype"), CASES)
@pytest.mark.parametrize("endian", ["little", "big"])
@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=0, max_size=3).map(tuple), st.booleans())
def test_against_numcodecs(short, configuration, dtype, endian, shape, turned):
    block = values(dtype, shape)
    head = [make("transpose", order=list(range(len(shape)))[::-1])] if turned else []
    tail = [make("bytes", endian=endian), make("numcodecs.zlib")]
    codec = Pipeline([*head, make(f"numcodecs.{short}", **configuration), *tail])
    codec = codec.for_block(shape, dtype)
    other = numcodecs.get_codec({"id": short, **configuration})
    encoded = np.asarray(other.encode(np.ascontiguousarray(block.T if turned else block)))
    data = codec.encode(block)
    sign = "<" if endian == "little" else ">"
    raw = numcodecs.Zlib().decode(data)
    assert np.asarray(encoded, encoded.dtype.newbyteorder(sign)).tobytes() == bytes(raw)
    theirs = np.asarray(other.decode(encoded)).reshape(shape[::-1] if turned else shape)
    theirs = theirs.T if turned else theirs
    assert same(codec.decode(data), np.asarray(theirs, dtype))
    out = np.zeros(shape, dtype)
    codec.decode_into(data, out, tuple(slice(None, None, -1) for _ in shape))
    assert (out == np.flip(theirs)).all()


def test_dtypes_come_from_the_array_where_they_are_missing():
    block = values("i4", (3, 4))
    for name, configuration in (
        ("delta", {}),
        ("fixedscaleoffset", {"offset": 1, "scale": 1}),
        ("astype", {"encode_dtype": "|u1"}),
    ):
        codec = Pipeline([make(f"numcodecs.{name}", **configuration), make("bytes", endian="big")])
        codec = codec.for_block((3, 4), "i4")
        assert same(codec.decode(codec.encode(block)), block)


def test_filters_follow_each_other_with_their_own_dtypes():
    block = values("f8", (5, 7))
    chain = [
        make("numcodecs.fixedscaleoffset", offset=0, scale=100, dtype="<f8", astype="<i4"),
        make("numcodecs.delta", dtype="<i4", astype="<i2"),
        make("numcodecs.astype", encode_dtype="<i8", decode_dtype="<i2"),
        make("bytes", endian="big"),
    ]
    codec = Pipeline(chain).for_block(block.shape, "f8")
    assert len(codec.encode(block)) == 8 * block.size
    assert np.allclose(codec.decode(codec.encode(block)), block, atol=0.005)


def test_wrong_places_and_configurations_are_refused():
    tail = make("bytes", endian="little")
    with pytest.raises(CodecError, match=r"decodes to <i4, but the array there is float32"):
        Pipeline([make("numcodecs.delta", dtype="<i4"), tail]).for_block((2,), "f4")
    with pytest.raises(CodecError, match="packs booleans"):
        Pipeline([make("numcodecs.packbits"), tail]).for_block((2,), "u1")
    for bad in ({"dtype": "no"}, {"dtype": "O"}, {"dtype": [["a", "<i4"]]}):
        with pytest.raises(CodecError, match=r"numcodecs\.delta"):
            make("numcodecs.delta", **bad)
    codec = Pipeline([make("numcodecs.bitround", keepbits=30), tail]).for_block((2,), "f4")
    with pytest.raises(CodecError, match="Keepbits too large"):
        codec.encode(np.zeros(2, "f4"))


@pytest.mark.parametrize("padding", [0, 1, 8, 9, 200, 255])
def test_packed_bits_with_a_wrong_count_of_padding(padding):
    codec = Pipeline([make("numcodecs.packbits"), make("bytes")]).for_block((11,), "?")
    data = bytearray(codec.encode(np.ones(11, "?")))
    assert data[0] == 5
    data[0] = padding
    with pytest.raises(CodecError, match=r"numcodecs\.packbits"):
        codec.decode(bytes(data))


def test_lossy_filters_are_identities_on_reading():
    block = np.float32([1.0000001, 2])
    codec = Pipeline([make("numcodecs.bitround", keepbits=2), make("bytes", endian="little")])
    assert codec.for_block((2,), "f4").decode(block.tobytes()).tobytes() == block.tobytes()
    other = numcodecs.BitRound(2).encode(block)
    assert codec.for_block((2,), "f4").encode(block) == other.tobytes()


def test_packed_bits_of_v2():
    block = np.arange(11) % 3 == 0
    pipeline = Pipeline.from_v2([{"id": "packbits"}], {"id": "zlib", "level": 1}, "C", "|b1", (11,))
    theirs = numcodecs.Zlib().encode(numcodecs.PackBits().encode(block))
    assert same(pipeline.for_block((11,), "?").decode(theirs), block)
    members = pipeline.to_v2("?", 1)
    assert members["dtype"] == np.dtype("?")
    assert members["filters"] == [{"id": "packbits"}]
