from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.core.numbers import NARROW, narrow_dtype
from virtualzarr.codecs.core.rounding import float_format
from virtualzarr.errors import CodecError, UnsupportedError

pytest.importorskip("ml_dtypes")

INTEGERS = [f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)]
FLOATS = {"f2": 10, "f4": 23, "f8": 52, "bfloat16": 7}


def rounded(values, dtype, keepbits):
    chain = [make("bitround", keepbits=keepbits), make("bytes", endian="little")]
    values = np.atleast_1d(np.asarray(values, dtype))
    made = Pipeline(chain).for_block(values.shape, dtype)
    return made.decode(made.encode(values))


def test_the_samples_of_the_specification():
    floats = [0.0, 0.1, 1.2, 12.3, 123.4, 1234.5, np.nan, np.inf, -np.inf]
    want = [0.0, 0.1015625, 1.25, 12.0, 120.0, 1280.0, np.nan, np.inf, -np.inf]
    assert rounded(floats, np.dtype("f4"), 3).tobytes() == np.array(want, "f4").tobytes()
    integers = [0, 1, 10, 11, 100, 123, 200, 208, 209, 255]
    want = [0, 1, 10, 12, 96, 128, 192, 192, 224, 224]
    assert rounded(integers, np.dtype("u1"), 3).tolist() == want


@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("name", FLOATS)
@given(data=st.data())
def test_floats(name, data):
    dtype = narrow_dtype(name) if name in NARROW else np.dtype(name)
    words = st.integers(0, 2 ** (8 * dtype.itemsize) - 1)
    block = np.array([data.draw(words)], f"u{dtype.itemsize}").view(dtype)
    keepbits = data.draw(st.integers(1, FLOATS[name] + 2))
    got = rounded(block, dtype, keepbits)
    value, result = float(block[0]), float(got[0])
    if not math.isfinite(value) or keepbits >= FLOATS[name]:
        assert got.tobytes() == block.tobytes()
        return
    tiny = Fraction(float(np.array([1], f"u{dtype.itemsize}").view(dtype)[0]))
    exponent = math.frexp(value)[1] - 1 - keepbits
    step = max(Fraction(2) ** exponent, tiny * 2 ** (FLOATS[name] - keepbits))
    want = round(Fraction(value) / step) * step
    if abs(want) > Fraction(float_format(dtype).greatest):
        want = math.trunc(Fraction(value) / step) * step
    assert Fraction(result) == want
    assert math.copysign(1, result) == math.copysign(1, value)


@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("name", INTEGERS)
@given(data=st.data())
def test_integers(name, data):
    info = np.iinfo(name)
    edge = data.draw(st.sampled_from([info.min, 0, info.max]))
    near = min(max(edge + data.draw(st.integers(-300, 300)), info.min), info.max)
    values = [data.draw(st.integers(info.min, info.max)), near]
    keepbits = data.draw(st.integers(1, 66))
    for value, got in zip(values, rounded(values, np.dtype(name), keepbits).tolist(), strict=True):
        drop = max(abs(value).bit_length() - keepbits, 0)
        want = round(Fraction(value, 2**drop)) * 2**drop
        if not info.min <= want <= info.max:
            want = math.trunc(Fraction(value, 2**drop)) * 2**drop
        assert got == want


def test_times_and_complex_numbers():
    times = np.array(["NaT", 1000, -1001], "m8[s]")
    assert rounded(times, times.dtype, 3).view("i8").tolist() == [-(2**63), 1024, -1024]
    pair = np.array([1.2 - 12.3j])
    assert rounded(pair, np.dtype("c8"), 3).tolist() == [1.25 - 12.0j]
    half = np.array([1.2 - 12.3j]).astype(narrow_dtype("complex32"))
    assert rounded(half, narrow_dtype("complex32"), 3).astype("c8").tolist() == [1.25 - 12.0j]


def test_configurations():
    for fields in ({}, {"keepbits": 0}, {"keepbits": 2.0}, {"keepbits": True}, {"a": 1}):
        with pytest.raises(CodecError, match="bitround"):
            make("bitround", **fields)
    chain = Pipeline([make("bitround", keepbits=3), make("bytes", endian="little")])
    for name in ("?", "S3"):
        with pytest.raises(CodecError, match="is not defined for"):
            chain.for_block((2,), name)
    with pytest.raises(CodecError, match="is not defined for"):
        chain.for_block((2,), narrow_dtype("float8_e5m2"))
    assert chain.to_v2("f4", 1)["filters"] == [{"id": "bitround", "keepbits": 3}]
    with pytest.raises(UnsupportedError, match="no v2 form"):
        chain.to_v2("i4", 1)
    plain = Pipeline([make("bytes", endian="little")])
    assert chain.decoding_key("f4") == plain.decoding_key("f4")
