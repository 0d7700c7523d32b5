from __future__ import annotations

import base64
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata import (
    BYTES,
    STRING,
    default_fill,
    fill_from_json,
    fill_to_json,
    to_scalar,
)
from virtualzarr.metadata.fill import is_same_fill

FLOATS = [np.dtype(f"f{size}") for size in (2, 4, 8)]
INTS = [np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)]


def bits(value):
    return int.from_bytes(np.asarray(value).tobytes(), "little")


def from_bits(number, dtype):
    return np.array(number, f"u{dtype.itemsize}").view(dtype)[()]


def round_trip(value, dtype, zarr_format):
    """Write, through JSON text as a document would have it, and read."""
    text = json.dumps(fill_to_json(value, dtype, zarr_format), allow_nan=False)
    return fill_from_json(json.loads(text), dtype, zarr_format)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_v3_floats_come_back_to_the_bit(data):
    dtype = data.draw(st.sampled_from(FLOATS))
    number = data.draw(st.integers(0, 2 ** (8 * dtype.itemsize) - 1))
    value = from_bits(number, dtype)
    back = round_trip(value, dtype, 3)
    assert back.dtype == dtype
    assert bits(back) == number


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_v3_complex_come_back_to_the_bit(data):
    dtype = data.draw(st.sampled_from([np.dtype("c8"), np.dtype("c16")]))
    half = np.dtype(f"f{dtype.itemsize // 2}")
    parts = [data.draw(st.integers(0, 2 ** (8 * half.itemsize) - 1)) for _ in range(2)]
    value = np.array([from_bits(part, half) for part in parts], half).view(dtype)[0]
    back = round_trip(value, dtype, 3)
    assert back.dtype == dtype
    assert np.asarray(back).tobytes() == np.asarray(value).tobytes()


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_v2_finite_and_common_values_come_back_to_the_bit(data):
    kind = st.sampled_from([*FLOATS, *INTS, np.dtype("?"), np.dtype("c8"), np.dtype("M8[ns]")])
    dtype = data.draw(kind)
    number = data.draw(st.integers(0, 2 ** (8 * dtype.itemsize) - 1))
    raw = number.to_bytes(dtype.itemsize, "little")
    if dtype.kind == "b":
        raw = bytes([number % 2])
    value = np.frombuffer(raw, dtype)[0]
    if dtype.kind in "fc" and np.isnan(value):
        value = dtype.type("nan")
    for zarr_format in (2, 3):
        back = round_trip(value, dtype, zarr_format)
        assert back.dtype == dtype
        assert is_same_fill(back, value)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integer_limits_are_exact(dtype):
    limits = np.iinfo(dtype)
    for number in (limits.min, limits.max):
        for zarr_format in (2, 3):
            value = fill_from_json(number, dtype, zarr_format)
            assert int(value) == number
            assert fill_to_json(value, dtype, zarr_format) == number
    for number in (limits.min - 1, limits.max + 1, 10**400):
        with pytest.raises(MetadataError, match="range"):
            fill_from_json(number, dtype, 3)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_special_floats(dtype):
    for zarr_format in (2, 3):
        assert fill_from_json("Infinity", dtype, zarr_format) == math.inf
        assert fill_from_json("-Infinity", dtype, zarr_format) == -math.inf
        nan = fill_from_json("NaN", dtype, zarr_format)
        assert bits(nan) == {2: 0x7E00, 4: 0x7FC00000, 8: 0x7FF8 << 48}[dtype.itemsize]
        assert fill_to_json(nan, dtype, zarr_format) == "NaN"
        for value in (math.inf, -math.inf):
            text = fill_to_json(to_scalar(value, dtype), dtype, zarr_format)
            assert text == ("Infinity" if value > 0 else "-Infinity")
        zero = fill_from_json(-0.0, dtype, zarr_format)
        assert math.copysign(1, zero) == -1
        assert math.copysign(1, fill_to_json(zero, dtype, zarr_format)) == -1


def test_hexadecimal_floats():
    assert bits(fill_from_json("0x7fc00001", np.dtype("f4"), 3)) == 0x7FC00001
    assert bits(fill_from_json("0x7E01", np.dtype("f2"), 3)) == 0x7E01
    assert bits(fill_from_json("0xfff0000000000001", np.dtype("f8"), 3)) == 0xFFF0000000000001
    assert fill_to_json(from_bits(0xFFC00000, np.dtype("f4")), np.dtype("f4"), 3) == "0xffc00000"
    pair = fill_from_json(["0x7fc00001", 1], np.dtype("c8"), 3)
    assert bits(pair) == (0x3F800000 << 32) | 0x7FC00001
    assert fill_to_json(pair, np.dtype("c8"), 3) == ["0x7fc00001", 1.0]


def test_v2_cannot_hold_other_nans():
    with pytest.raises(UnsupportedError, match="0xffc00000"):
        fill_to_json(from_bits(0xFFC00000, np.dtype("f4")), np.dtype("f4"), 2)


def test_floats_are_rounded_half_to_even_but_not_out_of_range():
    assert fill_from_json(2049, np.dtype("f2"), 3) == 2048
    assert fill_from_json(2051, np.dtype("f2"), 3) == 2052
    assert fill_from_json(0.1, np.dtype("f4"), 3) == np.float32(0.1)
    for number in (65520, 1e39, 10**400):
        with pytest.raises(MetadataError, match="range"):
            fill_from_json(number, np.dtype("f2"), 3)


S4, V2, U2 = np.dtype("S4"), np.dtype("V2"), np.dtype("U2")
POINT = np.dtype([("x", "<f4"), ("n", [("i", ">i2"), ("s", "S2")])])


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1, "?", np.True_),
        (0, "?", np.False_),
        (0.0, "i4", np.int32(0)),
        (-9999.0, "i2", np.int16(-9999)),
        (float("nan"), "f8", np.float64("nan")),
        ([float("nan"), float("-inf")], "c8", np.complex64(complex(math.nan, -math.inf))),
        ("YWI=", "S4", np.bytes_(b"ab")),
        ("", "S4", np.bytes_(b"")),
        (0, "S4", np.bytes_(b"")),
        (0, "U2", np.str_("")),
        ("YWI=", "V2", np.void(b"ab")),
        ("", "V2", np.void(b"\0\0")),
        (0, "V2", np.void(b"\0\0")),
        ("NaT", "M8[s]", np.datetime64("NaT", "s")),
        (-(2**63), "m8[s]", np.timedelta64("NaT", "s")),
        (5, ">m8[25s]", np.array(5, "m8[25s]")[()]),
        (1, ">f4", np.float32(1)),
    ],
    ids=str,
)
def test_v2_values_found_in_stores(value, dtype, expected):
    dtype = np.dtype(dtype)
    found = fill_from_json(value, dtype, 2)
    if dtype.kind not in "SU":  # whose scalars are as long as their text
        assert found.dtype == dtype.newbyteorder("=")
    assert is_same_fill(found, expected)


def test_v2_null_is_none():
    assert fill_from_json(None, np.dtype("f4"), 2) is None
    assert fill_to_json(None, np.dtype("f4"), 2) is None


def test_v2_structured_is_base64_in_the_byte_order_of_each_field():
    raw = np.array((1.5, (-2, b"ab")), POINT).tobytes()
    value = fill_from_json(base64.b64encode(raw).decode(), POINT, 2)
    assert value["x"] == 1.5
    assert value["n"]["i"] == -2
    assert fill_to_json(value, POINT, 2) == base64.b64encode(raw).decode()
    for zero in (0, ""):
        assert fill_from_json(zero, POINT, 2).tobytes() == bytes(8)


def test_v2_structured_with_subarrays_of_the_tensorstore_documentation():
    dtype = np.dtype([("x", "<u2", (2, 3)), ("y", "<f4", (5,))])
    text = "AQACAAMABAAFAAYAAAAgQQAAMEEAAEBBAABQQQAAYEE="
    value = fill_from_json(text, dtype, 2)
    assert value["x"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert value["y"].tolist() == [10, 11, 12, 13, 14]
    assert fill_to_json(value, dtype, 2) == text


def test_v3_structured():
    dtype = np.dtype([("x", "f4"), ("n", [("i", "i2"), ("s", "S2")])])
    document = {"x": "0x7fc00001", "n": {"i": -2, "s": "YWI="}}
    value = fill_from_json(document, dtype, 3)
    assert bits(value["x"]) == 0x7FC00001
    assert fill_to_json(value, dtype, 3) == document
    for endian, order in (("little", "<"), ("big", ">"), (None, "<")):
        raw = np.array((1.5, (-2, b"ab")), dtype.newbyteorder(order)).tobytes()
        text = base64.b64encode(raw).decode()
        value = fill_from_json(text, dtype, 3, endian=endian)
        assert value.dtype == dtype
        assert (value["x"], value["n"]["i"]) == (1.5, -2)


def test_v3_bytes_are_integers_or_base64():
    for dtype, expected in ((BYTES, b"\1\2"), (V2, b"\1\2"), (S4, b"\1\2")):
        for value in ([1, 2], "AQI="):
            found = fill_from_json(value, dtype, 3)
            assert (found if dtype is BYTES else found.tobytes().rstrip(b"\0")) == expected
    assert fill_to_json(b"\1\2", BYTES, 3) == "AQI="
    raw_bits = np.dtype("V2", metadata={"v3": "r16"})
    assert fill_to_json(fill_from_json([1, 2], raw_bits, 3), raw_bits, 3) == [1, 2]


def test_strings():
    assert fill_from_json("hé", U2, 3) == "hé"
    assert fill_from_json("x" * 99, STRING, 3) == "x" * 99
    assert fill_from_json(0, STRING, 2) == ""
    assert fill_from_json("0", STRING, 2) == "0"


@pytest.mark.parametrize(
    ("value", "dtype", "formats"),
    [
        (0, "?", (3,)),
        (2, "?", (2, 3)),
        ("true", "?", (2, 3)),
        (1.0, "i4", (3,)),
        (1.5, "i4", (2, 3)),
        (True, "i4", (2, 3)),
        ("1", "i4", (2, 3)),
        ("NaN", "i4", (2, 3)),
        (float("nan"), "i4", (2, 3)),
        (1e300, "i8", (2, 3)),
        (True, "f4", (2, 3)),
        ("nan", "f4", (2, 3)),
        ("0x7fc00000", "f4", (2,)),
        ("0x17fc00000", "f4", (3,)),
        ("0x", "f4", (3,)),
        ("0x7fc0_000", "f4", (3,)),
        ([0.0], "f4", (2, 3)),
        (0.0, "c8", (3,)),
        ([0.0], "c8", (2, 3)),
        ([0.0, True], "c8", (2, 3)),
        ("NaN", "c8", (2, 3)),
        (1.5, "M8[s]", (2, 3)),
        ("2020-01-01", "M8[s]", (2, 3)),
        (2**63, "M8[s]", (2, 3)),
        ("abc", "U2", (2, 3)),
        (1, "U2", (2, 3)),
        ("!!!!", "S4", (2, 3)),
        ("é", "S4", (2, 3)),
        ("YWJjZGU=", "S4", (2, 3)),
        ([1, 2], "S4", (2,)),
        ("YQ==", "V2", (2, 3)),
        ([1, 256], "V2", (3,)),
        ([1, -1], "V2", (3,)),
        ([1, True], "V2", (3,)),
        ([1], "V2", (3,)),
        (None, "f4", (3,)),
        (None, "M8[s]", (3,)),
        ("AAAA", POINT, (2, 3)),
        ({"x": 1.0}, POINT, (2, 3)),
        ({"x": 1.0, "n": {"i": 1, "s": ""}, "z": 1}, POINT, (3,)),
        ({"x": 1.0, "n": {"i": 1.5, "s": ""}}, POINT, (3,)),
        (0, STRING, (3,)),
        (1, STRING, (2, 3)),
        ("!", BYTES, (2, 3)),
    ],
    ids=str,
)
def test_values_that_are_refused(value, dtype, formats):
    dtype = np.dtype(dtype)
    for zarr_format in formats:
        with pytest.raises(MetadataError):
            fill_from_json(value, dtype, zarr_format)


def test_v3_has_no_null():
    with pytest.raises(UnsupportedError):
        fill_to_json(None, np.dtype("f4"), 3)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (None, "f4", None),
        (0, "f4", np.float32(0)),
        (10**20, "f8", np.float64(1e20)),
        (0.0, "i4", np.int32(0)),
        (True, "i4", np.int32(1)),
        (1, "?", np.True_),
        (2**64 - 1, "u8", np.uint64(2**64 - 1)),
        (np.array([7], ">i2"), "i2", np.int16(7)),
        (np.int64(-1), "f2", np.float16(-1)),
        (1j, "c16", np.complex128(1j)),
        ("ab", "S4", np.bytes_(b"ab")),
        (b"ab", "V2", np.void(b"ab")),
        ("NaT", "M8[s]", np.datetime64("NaT", "s")),
        (np.datetime64("2020-01-01"), "M8[s]", np.datetime64("2020-01-01", "s")),
        (np.timedelta64(60, "s"), "m8[m]", np.timedelta64(1, "m")),
        (3, "m8[s]", np.timedelta64(3, "s")),
    ],
    ids=str,
)
def test_scalars_from_python(value, dtype, expected):
    result = to_scalar(value, np.dtype(dtype))
    assert is_same_fill(result, expected)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        *((0.5, "i4"), (math.nan, "i4"), (math.inf, "i8"), (256, "u1"), (-1, "u8"), (2, "?")),
        *(
            ("x", "f4"),
            (1e39, "f4"),
            (10**400, "f8"),
            (1j, "f4"),
            ([1, 2], "f4"),
            (frozenset(), "f4"),
        ),
        *(("abc", "U2"), (b"abcde", "S4"), (b"abc", "V2"), (1, "S4"), (1.5, "M8[s]")),
        *((np.timedelta64(61, "s"), "m8[m]"), (np.datetime64(1, "s"), "m8[s]"), (1, STRING)),
        *(("x", BYTES), ((1,), POINT), (np.uint64(2**63), "i8"), ({}, "i4")),
    ],
    ids=str,
)
def test_scalars_that_do_not_fit(value, dtype):
    with pytest.raises(MetadataError, match="fill value"):
        to_scalar(value, np.dtype(dtype))


RECORD = np.dtype([("a", ">f4"), ("b", "u1", (2,)), ("c", [("t", "<M8[s]"), ("s", "S2")])])
PAYLOAD = np.array(0x7FC00001, "u4").view("f4")[()]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, [2, 3], ("NaT", b"x")), (1, [2, 3], ("NaT", b"x"))),
        ((PAYLOAD, 7, (5, "ab")), (PAYLOAD, [7, 7], (5, b"ab"))),
        ((1, np.array([2, 3]), (np.datetime64(60, "s"), b"")), (1, [2, 3], (60, b""))),
        (np.array((PAYLOAD, [2, 3], (0, b"y")), RECORD), (PAYLOAD, [2, 3], (0, b"y"))),
        (
            np.array((PAYLOAD, [2, 3], (1, b"y")),
                     [("x", "f4"), ("y", "i8", 2), ("z", [("t", "M8[m]"), ("s", "S1")])])[()],
            (PAYLOAD, [2, 3], (60, b"y")),
        ),
    ],
    ids=str,
)  # fmt: skip
def test_records(value, expected):
    got = to_scalar(value, RECORD)
    assert got.dtype == RECORD
    assert got.tobytes() == np.array(expected, RECORD).tobytes()


@pytest.mark.parametrize(
    "value",
    [(1, [2, 3]), (1, [2, 300], ("NaT", b"")), (1, [2, 3, 4], ("NaT", b"")), 1.5,
     (1, [2, 0.5], ("NaT", b"")), (1, 2, ("NaT", b"abc")), (1, 2, (1.5, b"")), ("x", 2, (1, b""))],
    ids=str,
)  # fmt: skip
def test_records_that_do_not_fit(value):
    with pytest.raises(MetadataError, match="fill value"):
        to_scalar(value, RECORD)


def test_a_number_for_all_fields():
    plain = np.dtype([("x", "f4"), ("y", ">i4", (2,))])
    assert to_scalar(7, plain).tobytes() == np.array((7, [7, 7]), plain).tobytes()
    with pytest.raises(MetadataError, match="fill value"):
        to_scalar(1.5, np.dtype([("x", "f4"), ("y", "i4")]))


@pytest.mark.parametrize("number", [0x7FA00001, 0xFFC00000, 0x80000000])
def test_scalars_of_the_same_type_keep_their_bits(number):
    value = from_bits(number, np.dtype("f4"))
    assert bits(to_scalar(value, np.dtype("f4"))) == number
    swapped = np.array([value]).byteswap().view(">f4")
    assert bits(to_scalar(swapped, np.dtype("f4"))) == number


def test_zeros():
    assert default_fill(STRING) == ""
    assert default_fill(BYTES) == b""
    assert default_fill(POINT).tobytes() == bytes(8)
    assert fill_to_json(default_fill(np.dtype("M8[s]")), np.dtype("M8[s]"), 3) == -(2**63)


@pytest.mark.parametrize(
    ("dtype", "at", "is_padding"),
    [
        (np.dtype([("a", "i1"), ("b", "<f8")], align=True), 3, True),
        (np.dtype([("a", "i1"), ("b", "<f8")], align=True), 8, False),
        (np.dtype([("in", [("a", "u1"), ("b", ">i4", (2,))])], align=True), 0, False),
        (np.dtype({"names": ["a"], "formats": ["<i4"], "itemsize": 8}), 7, True),
        (np.dtype({"names": ["a"], "formats": ["<i4"], "itemsize": 8}), 2, False),
        (np.dtype("S4"), 3, False),
    ],
)
def test_padding_is_no_part_of_a_fill_value(dtype, at, is_padding):
    raw = np.zeros(dtype.itemsize, "u1")
    fill = raw.copy().view(dtype)[0]
    raw[at] = 7
    assert is_same_fill(fill, raw.view(dtype)[0]) == is_padding


@pytest.mark.skipif(np.finfo(np.longdouble).nmant != 63, reason="long doubles of x87 are padded")
@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
def test_padding_of_long_doubles(dtype):
    size = np.dtype(np.longdouble).itemsize
    raw = np.tile(np.full(size, 7, "u1"), np.dtype(dtype).itemsize // size)
    other = raw.copy().reshape(-1, size)
    other[:, 10:] = 0
    fills = [one.reshape(-1).view(dtype)[0] for one in (raw, other)]
    assert is_same_fill(*fills)
    other[-1, 9] = 8
    assert not is_same_fill(fills[0], other.reshape(-1).view(dtype)[0])
