"""The codecs only HDF5 files need, on hostile data."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualzarr.codecs import Pipeline, codec_from_v2, codec_from_v3, make
from virtualzarr.errors import CodecError, UnsupportedError

LITTLE = make("bytes", endian="little")
BITSHUFFLE = "virtualzarr.hdf5_bitshuffle"
SCALEOFFSET = "virtualzarr.hdf5_scaleoffset"
PACKED = [2, 0, 20, 0, 4, 1, 0, 0] + [0] * 12
GOOD = [2, 0, 20, 0, 2, 1, 0, 0]
FLOATS = [0, 2, 20, 1, 4, 0, 0, 1, 5] + [0] * 11


def block(name, parameters):
    return Pipeline([LITTLE, make(name, parameters=parameters)]).for_block((20,), "i4")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        (BITSHUFFLE, [0, 4, 4, 0, 0]),
        (BITSHUFFLE, [0, 4, 4, 8, 2]),
        (BITSHUFFLE, [0, 4, 4, 0, 3]),
        (SCALEOFFSET, PACKED),
        (SCALEOFFSET, FLOATS),
    ],
)
@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=120), bits=st.integers(0, 33), head=st.booleans())
def test_any_bytes_decode_or_fail_clearly(name, parameters, data, bits, head):
    if head and name == SCALEOFFSET:
        data = bits.to_bytes(4, "little") + b"\x08" + data
    elif head:
        data = (80).to_bytes(8, "big") + (32).to_bytes(4, "big") + data
    with contextlib.suppress(CodecError):
        assert block(name, parameters).decode(data).nbytes == 80


def test_no_memory_is_taken_on_a_chunk_s_word():
    header = (1 << 60).to_bytes(8, "big") + (1 << 20).to_bytes(4, "big")
    with pytest.raises(CodecError, match="the block needs 80"):
        block(BITSHUFFLE, [0, 4, 4, 0, 2]).decode(header + bytes(100))
    with pytest.raises(CodecError, match="the block needs 80"):
        block(SCALEOFFSET, [2, 0, 1 << 20, 0, 4, 1, 0, 0]).decode(bytes(100))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        (BITSHUFFLE, [0, 4]),
        (BITSHUFFLE, [0, 4, 0]),
        (BITSHUFFLE, [0, 4, 4, 0, 9]),
        (SCALEOFFSET, [2, 0, 20, 0, 3, 1, 0, 0]),
        (SCALEOFFSET, [1, 0, 20, 1, 4, 1, 0, 0]),
        (SCALEOFFSET, [2, 0, 20, 0, 4, 1, 0, 1]),
        (SCALEOFFSET, [2, 0, 1 << 31, 0, 8, 1, 0, 0]),
        (SCALEOFFSET, [2, 0, 20, 0, 4, 1, 0, -1]),
        (SCALEOFFSET, "text"),
    ],
)
def test_bad_parameters(name, parameters):
    with pytest.raises(CodecError, match=name):
        make(name, parameters=parameters)


@pytest.mark.parametrize("name", [BITSHUFFLE, SCALEOFFSET])
def test_documents_and_no_encoding(name):
    codec = make(name, parameters=GOOD)
    assert codec_from_v3(codec.to_v3()) == codec
    assert codec_from_v2({"id": name, "parameters": GOOD}) == codec
    with pytest.raises(UnsupportedError, match="encoding"):
        Pipeline([LITTLE, codec]).for_block((20,), "i4").encode(np.zeros(20, "i4"))
