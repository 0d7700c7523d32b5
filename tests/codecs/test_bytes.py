"""The bytes codec and transpose: byte orders, structures, axes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codecs.blocks import DTYPES, block_of, dtypes, same, shapes
from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.core.byte_order import byte_positions, has_order
from virtualzarr.errors import CodecError, UnsupportedError


@settings(max_examples=80, deadline=None)
@given(shapes, dtypes, st.sampled_from(["little", "big"]))
def test_bytes_are_numpys(shape, dtype, endian):
    block = block_of(dtype, shape)
    codec = Pipeline([make("bytes", endian=endian)]).for_block(shape, dtype)
    stored = dtype.newbyteorder({"little": "<", "big": ">"}[endian])
    data = codec.encode(block)
    if dtype.names is None:
        assert data == block.astype(stored).tobytes()
    assert same(codec.decode(data), block)
    again = np.frombuffer(data, stored).reshape(shape)
    assert same(np.asarray(again, dtype), block)


def test_endian_is_needed_where_it_means_something():
    for dtype in DTYPES:
        codec = Pipeline([make("bytes")])
        if dtype.names is not None or not has_order(dtype):
            assert codec.for_block((2,), dtype).raw[0] == dtype
        else:
            with pytest.raises(CodecError, match="endian is missing"):
                codec.for_block((2,), dtype)


def test_a_structure_without_endian_keeps_the_order_of_its_fields():
    dtype = np.dtype([("a", ">i2"), ("b", "<f4")])
    block = np.array([(1, 2.0)], dtype)
    codec = Pipeline([make("bytes")]).for_block((1,), dtype)
    assert codec.encode(block) == b"\0\1" + np.array(2, "<f4").tobytes()
    big = Pipeline([make("bytes", endian="big")]).for_block((1,), dtype)
    assert big.encode(block) == b"\0\1" + np.array(2, ">f4").tobytes()
    assert same(big.decode(big.encode(block)), block)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_byte_positions(dtype):
    for sign in "<>":
        stored = dtype.newbyteorder(sign)
        block = block_of(dtype, (1,))
        if dtype.names is not None:
            block = np.zeros(1, dtype)
            for k, name in enumerate(dtype.names):
                block[name] = k + 3
        raw = np.asarray(block, stored).view("u1")
        out = np.zeros(dtype.itemsize, "u1")
        out[list(byte_positions(stored, dtype))] = raw
        assert same(out.view(dtype), block)


def test_configurations_are_checked():
    for configuration in ({"endian": "middle"}, {"endian": 1}, {"order": "big"}):
        with pytest.raises(CodecError):
            make("bytes", **configuration)
    assert make("bytes", endian=None) == make("bytes")
    with pytest.raises(UnsupportedError, match="vlen"):
        Pipeline([make("bytes")]).for_block((2,), object)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_transposes(data):
    shape = data.draw(shapes)
    orders = data.draw(st.lists(st.permutations(range(len(shape))), max_size=3))
    block = block_of(np.dtype("i4"), shape)
    chain = [*(make("transpose", order=order) for order in orders), make("bytes", endian="little")]
    expected = block
    for order in orders:
        expected = expected.transpose(order)
    codec = Pipeline(chain).for_block(shape, "i4")
    assert codec.encode(block) == np.asarray(expected, "<i4").tobytes()
    assert same(codec.decode(codec.encode(block)), block)


def test_orders_are_checked():
    for order in ([0, 0], [1, 2], "A", 3, None, [0.5, 1]):
        with pytest.raises(CodecError, match="order"):
            make("transpose", order=order)
    with pytest.raises(CodecError, match="2 dimensions"):
        Pipeline([make("transpose", order=[0, 1, 2]), make("bytes")]).for_block((2, 2), "u1")
    letter = Pipeline([make("transpose", order="F"), make("bytes")])
    assert letter.for_block((2, 3), "u1").raw[1] == (1, 0)
    assert letter.to_v3(2)[0] == {"name": "transpose", "configuration": {"order": [1, 0]}}
    with pytest.raises(UnsupportedError, match="ndim"):
        letter.to_v3()
