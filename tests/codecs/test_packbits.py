from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codecs.blocks import same
from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.core.numbers import NARROW, component, narrow_dtype, number_format
from virtualzarr.errors import CodecError, MetadataError, UnsupportedError

pytest.importorskip("ml_dtypes")

PLAIN = ["?", "i1", "u1", "i2", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", "M8[s]", "m8[ns]"]


def dtype_of(name):
    return narrow_dtype(name) if name in NARROW else np.dtype(name)


def codec(dtype, shape, **configuration):
    return Pipeline([make("packbits", **configuration)]).for_block(shape, dtype)


def block_of(dtype, shape, seed):
    size = math.prod(shape) * dtype.itemsize
    words = np.random.default_rng(seed).integers(0, 256, size, dtype="u1")
    number = number_format(dtype)
    if number is not None and number.bits < 8:
        words &= (1 << number.bits) - 1
    return words.view(dtype).reshape(shape)


def reference(block, first, last, padding):
    """Pack by the letter of the specification: one Python integer of all bits."""
    part = component(block.dtype)
    words = np.ascontiguousarray(block).reshape(-1).view(f"u{part.itemsize}").tolist()
    width = last - first + 1
    sequence = 0
    for index, word in enumerate(words):
        sequence |= ((word >> first) & ((1 << width) - 1)) << (index * width)
    count = len(words) * width
    size = -(-count // 8)
    counted = bytes([8 * size - count])
    packed = sequence.to_bytes(size, "little")
    return {"none": packed, "first_byte": counted + packed, "last_byte": packed + counted}[padding]


@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize("name", [*PLAIN, *NARROW])
@given(data=st.data())
def test_round_trip(name, data):
    dtype = dtype_of(name)
    shape = tuple(data.draw(st.lists(st.integers(1, 7), max_size=3)))
    padding = data.draw(st.sampled_from(["none", "first_byte", "last_byte"]))
    bits = 64 if dtype.kind in "mM" else number_format(dtype).bits
    block = block_of(dtype, shape, data.draw(st.integers(0, 99)))
    made = codec(dtype, shape, padding_encoding=padding)
    encoded = made.encode(block)
    assert encoded == reference(block, 0, bits - 1, padding)
    assert same(made.decode(encoded), block)
    last = data.draw(st.integers(0, bits - 1))
    first = data.draw(st.integers(0, last))
    made = codec(dtype, shape, padding_encoding=padding, first_bit=first, last_bit=last)
    encoded = made.encode(block)
    assert encoded == reference(block, first, last, padding)
    decoded = made.decode(encoded)
    assert made.encode(decoded) == encoded
    kept = ((1 << last + 1) - 1) & ~((1 << first) - 1)
    words = [np.ascontiguousarray(b).reshape(-1).view(f"u{component(dtype).itemsize}")
             for b in (block, decoded)]  # fmt: skip
    signed = dtype.kind in "mM" or number_format(dtype).kind == "i"
    for before, after in zip(words[0].tolist(), words[1].tolist(), strict=True):
        want = before & kept
        if signed and want >> last & 1:
            want |= ((1 << bits) - 1) & ~((1 << last + 1) - 1)
        assert after == want


def test_more_elements_than_are_unpacked_at_once():
    block = np.arange(100_003, dtype="u4")
    made = codec(block.dtype, block.shape, last_bit=16)
    encoded = made.encode(block)
    assert len(encoded) == -(-100_003 * 17 // 8)
    assert same(made.decode(encoded), block)


@pytest.mark.parametrize(
    ("name", "values", "encoded"),
    [
        ("?", [True, False, True, True, False, False, False, False, True], "0d01"),
        *[("int2", [1, -2, -1, 0], "39"), ("int4", [1, -1, 7], "f107")],
        *[("uint2", [3, 0, 1], "13"), ("uint4", [10, 11, 12], "ba0c")],
    ],
)
def test_vectors(name, values, encoded):
    dtype = dtype_of(name)
    block = np.array(values).astype(dtype)
    made = codec(dtype, block.shape)
    assert made.encode(block).hex() == encoded
    assert same(made.decode(bytes.fromhex(encoded)), block)


def test_padding_bits_mean_nothing():
    assert codec(np.dtype("?"), (3,)).decode(b"\xfd").tolist() == [True, False, True]


@pytest.mark.parametrize("data", [b"", b"\x05", b"\x05\x05\x05", b"\x04\x05", b"\x05\xff\xff"])
def test_data_of_another_size(data):
    made = codec(np.dtype("?"), (3,), padding_encoding="first_byte")
    assert made.decode(b"\x05\x05").tolist() == [True, False, True]
    with pytest.raises(CodecError, match="packbits"):
        made.decode(data)


@pytest.mark.parametrize(
    "configuration",
    [
        *[{"first_bit": -1}, {"last_bit": True}, {"first_bit": 1.0}, {"padding_encoding": "both"}],
        *[{"bits": 3}, {"padding_encoding": None}],
    ],
)
def test_wrong_configurations(configuration):
    with pytest.raises(CodecError, match="packbits"):
        make("packbits", **configuration)


@pytest.mark.parametrize("configuration", [{"first_bit": 5, "last_bit": 4}, {"last_bit": 8}])
def test_bits_that_are_not_there(configuration):
    with pytest.raises(CodecError, match="are not among the 8 bits"):
        codec(np.dtype("u1"), (3,), **configuration)


def test_what_cannot_be_packed():
    with pytest.raises(CodecError, match="packs numbers"):
        codec(np.dtype("S3"), (3,))
    with pytest.raises(UnsupportedError, match="no v2 form"):
        Pipeline([make("packbits")]).to_v2("?", 1)
    with pytest.raises(MetadataError, match="exactly one codec"):
        Pipeline([make("packbits"), make("bytes")])


def test_decoding_keys():
    keys = [
        Pipeline([make("packbits", **fields)]).decoding_key("u1")
        for fields in ({}, {"first_bit": 0}, {"last_bit": 7}, {"last_bit": 6}, {"first_bit": None})
    ]
    assert len(set(keys)) == 2
