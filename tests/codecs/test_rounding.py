"""Casts, checked against exact arithmetic with fractions on every value of the small formats."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualzarr.codecs.core.numbers import NARROW, limits, narrow_dtype, number_format
from virtualzarr.codecs.core.rounding import ROUNDINGS, cast, float_format
from virtualzarr.errors import CodecError

ml_dtypes = pytest.importorskip("ml_dtypes")

FLOATS = [name for name, number in NARROW.items() if number.kind == "f"]
INTEGERS = [name for name, number in NARROW.items() if number.kind in "iu"]
PLAIN_INTEGERS = [f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)]


def dtype_of(name):
    return narrow_dtype(name) if name in NARROW else np.dtype(name)


def whole(value: Fraction, rounding):
    """Round a fraction to an integer."""
    if rounding == "towards-zero":
        return math.trunc(value)
    if rounding == "towards-positive":
        return math.ceil(value)
    if rounding == "towards-negative":
        return math.floor(value)
    if rounding == "nearest-even":
        return round(value)
    return math.floor(abs(value) + Fraction(1, 2)) * (1 if value >= 0 else -1)


def expected(value, dtype, rounding, beyond):
    """Return the value cast, or None where it is out of range."""
    number = number_format(dtype)
    if number.kind in "iu":
        low, high = limits(number)
        result = whole(Fraction(value), rounding)
        if beyond == "wrap":
            return (result - low) % (1 << number.bits) + low
        if low <= result <= high:
            return result
        return None if beyond is None else low if result < low else high
    form = float_format(dtype)
    exact = Fraction(value)
    whole_bits = abs(exact.numerator).bit_length() - exact.denominator.bit_length()
    quantum = Fraction(2) ** max(form.quantum, whole_bits - form.precision)
    while abs(exact) >= quantum * 2**form.precision:
        quantum *= 2
    result = whole(exact / quantum, rounding) * quantum
    if form.lowest <= result <= form.greatest:
        return float(result)
    edge = math.inf if number.infinity else form.greatest
    least = form.lowest if form.lowest > 0 else -edge
    return None if beyond is None else least if result < form.lowest else edge


def check(values, dtype, rounding, beyond):
    for value in values.reshape(-1):
        want = expected(value.item() if value.dtype.kind != "V" else float(value), dtype, rounding,
                        beyond)  # fmt: skip
        one = np.array([value], values.dtype)
        if want is None:
            with pytest.raises(CodecError, match="is not in the range of"):
                cast(one, dtype, rounding, beyond)
            continue
        got = cast(one, dtype, rounding, beyond)
        assert got.dtype == dtype
        number = int(got[0]) if number_format(dtype).kind in "iu" else float(got[0])
        assert number == want, (value, rounding, beyond)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", [*FLOATS, "f2", "f4"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_floats_to_floats(name, rounding, data):
    dtype = dtype_of(name)
    step = float(np.float64(float_format(dtype).greatest))
    near = data.draw(st.floats(-2.0, 2.0)) * step * 2.0 ** -data.draw(st.integers(0, 40))
    tie = math.ldexp(data.draw(st.integers(-64, 64)), data.draw(st.integers(-20, 20)))
    values = np.array([near, tie, data.draw(st.floats(allow_nan=False, allow_infinity=False))])
    check(values, dtype, rounding, data.draw(st.sampled_from([None, "clamp"])))


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", [*INTEGERS, *PLAIN_INTEGERS])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_floats_to_integers(name, rounding, data):
    low, high = limits(number_format(dtype_of(name)))
    values = [
        data.draw(st.integers(4 * low - 20, 4 * high + 20)) / 4,
        data.draw(st.floats(-1e30, 1e30)),
        float(high),
        float(low),
        high + 1.5,
    ]
    beyond = data.draw(st.sampled_from([None, "clamp", "wrap"]))
    check(np.array(values), dtype_of(name), rounding, beyond)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", ["f8", "f4", "f2", "bfloat16", "float8_e5m2", "float4_e2m1fn"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_large_integers_to_floats(name, rounding, data):
    source = data.draw(st.sampled_from(["i8", "u8"]))
    low, high = limits(number_format(np.dtype(source)))
    middle = data.draw(st.integers(0, 63))
    near = (1 << middle) + (1 << data.draw(st.integers(0, middle))) + data.draw(st.integers(-2, 2))
    values = [near, high, high - near % 5000, low, data.draw(st.integers(low, high))]
    values = np.array([min(max(value, low), high) for value in values], source)
    check(values, dtype_of(name), rounding, data.draw(st.sampled_from([None, "clamp"])))


@pytest.mark.parametrize("target", [*INTEGERS, *PLAIN_INTEGERS])
@pytest.mark.parametrize("source", [*INTEGERS, *PLAIN_INTEGERS])
def test_integers_to_integers(source, target):
    low, high = limits(number_format(dtype_of(source)))
    values = sorted({low, low + 1, max(low, -1), 0, 1, min(high, 3), high - 1, high})
    block = np.array(values, source) if source not in NARROW else cast(
        np.array(values, "i8"), dtype_of(source))  # fmt: skip
    for beyond in (None, "clamp", "wrap"):
        for value, one in zip(values, np.split(block, len(block)), strict=True):
            want = expected(value, dtype_of(target), "nearest-even", beyond)
            if want is None:
                with pytest.raises(CodecError, match=f"{value} is not in the range"):
                    cast(one, dtype_of(target), "nearest-even", beyond)
            else:
                assert int(cast(one, dtype_of(target), "nearest-even", beyond)[0]) == want


@pytest.mark.parametrize("name", FLOATS)
def test_every_small_float_survives_a_detour(name):
    dtype = narrow_dtype(name)
    words = np.arange(1 << number_format(dtype).bits, dtype=f"u{dtype.itemsize}")
    with np.errstate(invalid="ignore"):
        wide = words.view(dtype).astype("f8")
    finite = words[np.isfinite(wide)]
    for middle in ("f4", "f8"):
        there = cast(finite.view(dtype), np.dtype(middle))
        assert cast(there, dtype).view(words.dtype).tolist() == finite.tolist()


def test_special_values():
    odd = np.array([np.nan, np.inf, -np.inf, -0.0])
    back = cast(odd, narrow_dtype("bfloat16"))
    assert back.view("u2").tolist() == [0x7FC0, 0x7F80, 0xFF80, 0x8000]
    assert np.signbit(cast(np.array([-0.2]), narrow_dtype("float4_e2m1fn"))).tolist() == [True]
    assert cast(odd[3:], narrow_dtype("float8_e5m2fnuz")).view("u1").tolist() == [0]
    for index in range(3):
        for beyond in (None, "clamp", "wrap"):
            with pytest.raises(CodecError, match=r"(nan|inf) is not in the range of int8"):
                cast(odd[index : index + 1], np.dtype("i1"), "nearest-even", beyond)
    for value in odd[1:3]:
        with pytest.raises(CodecError, match="inf is not in the range of float8_e4m3fn"):
            cast(np.array([value]), narrow_dtype("float8_e4m3fn"), "nearest-even", "clamp")
    assert cast(odd[:1], narrow_dtype("float8_e4m3fn")).view("u1").tolist() == [0x7F]
    with pytest.raises(CodecError, match="nan is not in the range of float6_e2m3fn"):
        cast(odd[:1], narrow_dtype("float6_e2m3fn"), "nearest-even", "clamp")


def test_the_examples_of_the_specification():
    i1, i2 = np.dtype("i1"), np.dtype("i2")
    with pytest.raises(CodecError, match="128"):
        cast(np.array([128.0]), i1)
    assert cast(np.array([128.0]), i1, beyond="clamp").tolist() == [127]
    assert cast(np.array([128.0]), i1, beyond="wrap").tolist() == [-128]
    values = np.array([32768, 32769, -32769])
    assert cast(values, i2, beyond="wrap").tolist() == [-32768, -32767, 32767]
    assert cast(values.astype("f8"), i2, beyond="wrap").tolist() == [-32768, -32767, 32767]


def test_nothing_to_cast():
    assert cast(np.empty((0, 3)), np.dtype("u1")).shape == (0, 3)
    assert cast(np.empty((0, 3), "i8"), np.dtype("f4")).shape == (0, 3)
