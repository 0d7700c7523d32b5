"""Integers of less than 8 bits, small floats and their complex pairs: names, fill values, bytes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import grids
from tests.metadata.helpers import zarr_json, zarray
from virtualzarr.codecs import Pipeline
from virtualzarr.codecs.core.numbers import NARROW, number_format
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata import (
    array_to_v2,
    array_to_v3,
    dtype_from_v2,
    dtype_from_v3,
    dtype_to_v2,
    dtype_to_v3,
    fill_from_json,
    fill_to_json,
    parse_array_v2,
    parse_array_v3,
    to_scalar,
)

ml_dtypes = pytest.importorskip("ml_dtypes")

REAL = [name for name, number in NARROW.items() if number.kind != "c"]
INTEGERS = [name for name in REAL if NARROW[name].kind in "iu"]
FLOATS = [name for name in REAL if NARROW[name].kind == "f"]
V3 = [*REAL, "complex_float16", "complex_bfloat16"]


def bits_of(dtype):
    """Return every element a dtype of up to 16 bits has."""
    count = 1 << number_format(dtype).bits
    return np.arange(count, dtype=f"u{dtype.itemsize}").view(dtype)


def raw(array):
    return np.ascontiguousarray(array).tobytes()


@pytest.mark.parametrize("name", V3)
def test_names_of_v3(name):
    dtype = dtype_from_v3(name)
    assert dtype.name == {"complex_float16": "complex32", "complex_bfloat16": "bcomplex32"}.get(
        name, name
    )
    assert dtype_to_v3(dtype) == name
    assert dtype_from_v3({"name": name, "configuration": {}}) == dtype
    with pytest.raises(MetadataError, match="configuration: x: unknown"):
        dtype_from_v3({"name": name, "configuration": {"x": 1}})


def test_complex_float32_and_64_are_those_of_the_core():
    assert dtype_from_v3("complex_float32") == np.dtype("c8")
    assert dtype_from_v3("complex_float64") == np.dtype("c16")


@pytest.mark.parametrize("name", REAL)
def test_names_of_v2(name):
    dtype = dtype_from_v2(name)
    assert dtype == dtype_from_v3(name)
    assert dtype_to_v2(dtype) == name


def test_what_v2_has_no_form_for():
    with pytest.raises(UnsupportedError, match="bfloat16 has no big-endian form in v2"):
        dtype_to_v2(np.dtype("bfloat16").newbyteorder(">"))
    with pytest.raises(UnsupportedError, match="complex32 has no v2 form"):
        dtype_to_v2(np.dtype(ml_dtypes.complex32))


@pytest.mark.parametrize("name", ["int1", "uint1"])
def test_one_bit_integers_have_no_name(name):
    with pytest.raises(UnsupportedError, match="has no v3 form"):
        dtype_to_v3(np.dtype(getattr(ml_dtypes, name)))


def test_without_ml_dtypes_the_extra_is_named():
    code = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "from virtualzarr.metadata import dtype_from_v3\n"
        "from virtualzarr.errors import MissingDependencyError\n"
        "try: dtype_from_v3('int4')\n"
        "except MissingDependencyError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "int4 needs ml_dtypes 0.5 or newer; install virtualzarr[dtypes]" in done.stdout


def test_ml_dtypes_is_imported_only_when_needed():
    code = (
        "import sys, virtualzarr.metadata as m; m.dtype_to_v3(m.dtype_from_v3('float16'));"
        "sys.exit('ml_dtypes' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ------------------------------------------------------------------------------- fill values


@pytest.mark.parametrize("name", REAL)
def test_every_fill_value_comes_back_to_the_bit(name):
    dtype = dtype_from_v3(name)
    for value in bits_of(dtype):
        document = fill_to_json(value, dtype, 3)
        assert raw(fill_from_json(document, dtype, 3)) == raw(value), document
        assert raw(to_scalar(value, dtype)) == raw(value)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        *[("bfloat16", 0x7FC0), ("float8_e3m4", 0x78), ("float8_e4m3", 0x7C)],
        *[("float8_e4m3b11fnuz", 0x80), ("float8_e4m3fnuz", 0x80), ("float8_e4m3fn", 0x7F)],
        *[("float8_e5m2", 0x7E), ("float8_e5m2fnuz", 0x80), ("float8_e8m0fnu", 0xFF)],
    ],
)
def test_nan_has_the_bits_of_the_specification(name, bits):
    dtype = dtype_from_v3(name)
    value = fill_from_json("NaN", dtype, 3)
    assert np.atleast_1d(value).view(f"u{dtype.itemsize}")[0] == bits
    assert fill_to_json(value, dtype, 2) == "NaN"


def test_other_nans_are_hexadecimal():
    dtype = dtype_from_v3("bfloat16")
    value = fill_from_json("0xff81", dtype, 3)
    assert fill_to_json(value, dtype, 3) == "0xff81"
    with pytest.raises(UnsupportedError, match="v2 has no form for the NaN"):
        fill_to_json(value, dtype, 2)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *[("int4", 8, "outside the range"), ("int4", -9, "outside"), ("uint2", 4, "outside")],
        *[("int2", 1.0, "without fraction"), ("uint4", True, "must be an integer")],
        *[("float4_e2m1fn", "NaN", "has no NaN"), ("float6_e2m3fn", "Infinity", "has no Inf")],
        *[("float8_e4m3fn", "-Infinity", "has no"), ("float8_e8m0fnu", -1.0, "not in the range")],
        *[("bfloat16", 1e39, "not in the range"), ("float4_e2m1fn", 7.5, "not in the range")],
        *[("float4_e2m1fn", "0x10", "more bits"), ("float6_e3m2fn", "0x40", "more bits")],
        *[("bfloat16", "0x10000", "more bits"), ("bfloat16", "nan", "is not a number")],
        *[("complex_float16", 1.0, "real, imaginary"), ("complex_bfloat16", [0, "x"], r"\[1\]")],
    ],
)
def test_fill_values_that_do_not_fit(name, value, message):
    with pytest.raises(MetadataError, match=message):
        fill_from_json(value, dtype_from_v3(name), 3)


@pytest.mark.parametrize(
    ("name", "value", "nearest"),
    [
        *[("bfloat16", 1.0 + 2**-8, 1.0), ("bfloat16", 1.0 + 2**-8 + 2**-40, 1.0 + 2**-7)],
        *[("float8_e5m2", 61439.0, 57344.0), ("float4_e2m1fn", 2.5, 2.0), ("uint4", 15, 15)],
        ("float8_e8m0fnu", 0.0, 2.0**-127),  # TensorStore's default for a format without zero
    ],
)
def test_fill_values_are_rounded_once(name, value, nearest):
    assert float(fill_from_json(value, dtype_from_v3(name), 3)) == nearest


@pytest.mark.parametrize("name", ["complex_float16", "complex_bfloat16"])
def test_complex_fill_values(name):
    dtype = dtype_from_v3(name)
    for document in ([1.5, -0.0], ["NaN", "-Infinity"], ["0x7f81", 2.0]):
        value = fill_from_json(document, dtype, 3)
        assert fill_to_json(value, dtype, 3) == document
    assert str(fill_to_json(fill_from_json([1.5, -0.0], dtype, 3), dtype, 3)[1]) == "-0.0"


@pytest.mark.parametrize("name", V3)
def test_scalars_of_other_types_as_fill_value(name):
    dtype = dtype_from_v3(name)
    assert to_scalar(1, dtype) == dtype.type(1)
    assert to_scalar(np.float32(1), dtype).dtype == dtype
    with pytest.raises(MetadataError, match="does not fit"):
        to_scalar("1", dtype)
    if dtype.name in INTEGERS:
        with pytest.raises(MetadataError, match="does not fit"):
            to_scalar(0.5, dtype)


# ------------------------------------------------------------------------------------- bytes


def codec(dtype, endian="little", shape=(3, 5), more=()):
    codecs = [*more, {"name": "bytes", "configuration": {"endian": endian}}]
    return Pipeline.from_v3(codecs).for_block(shape, dtype)


@pytest.mark.parametrize("name", V3)
@given(data=st.data())
def test_bytes_round_trip(name, data):
    dtype = dtype_from_v3(name)
    endian = data.draw(st.sampled_from(["little", "big"]))
    more = data.draw(
        st.sampled_from([(), ({"name": "transpose", "configuration": {"order": [1, 0]}},)])
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    words = rng.integers(0, 256, 15 * dtype.itemsize, dtype="u1")
    if (mask := (1 << number_format(dtype).bits) - 1) < 255:
        words &= mask
    block = words.view(dtype).reshape(3, 5)
    made = codec(dtype, endian, more=more)
    encoded = made.encode(block)
    halves = f"{'>' if endian == 'big' else '<'}u{min(2, dtype.itemsize)}"
    stored = np.frombuffer(encoded, halves).astype(halves[1:])
    logical = np.ascontiguousarray(block.T if more else block).reshape(-1).view(halves[1:])
    assert stored.tolist() == logical.tolist()
    decoded = made.decode(encoded)
    assert decoded.dtype == dtype
    assert raw(decoded) == raw(block)
    part = np.empty((2, 3), dtype)
    made.decode_into(encoded, part, (slice(0, 3, 2), slice(1, 4)))
    assert raw(part) == raw(block[::2, 1:4])


@pytest.mark.parametrize("name", [n for n in REAL if NARROW[n].bits < 8])
def test_unused_bits_are_ignored_on_reading_and_zero_on_writing(name):
    dtype = dtype_from_v3(name)
    used = NARROW[name].bits
    made = codec(dtype, shape=(256,))
    assert made.raw is None
    every = np.arange(256, dtype="u1")
    decoded = made.decode(every.tobytes())
    assert raw(decoded) == raw(every & ((1 << used) - 1))
    assert made.encode(every.view(dtype)) == raw(decoded)
    integers = decoded.astype("i2")
    if name.startswith("int"):
        assert integers.tolist() == [((v + 2 ** (used - 1)) % 2**used) - 2 ** (used - 1)
                                     for v in range(256)]  # fmt: skip


def test_narrow_fields_of_structures():
    dtype = np.dtype([("a", ml_dtypes.int4), ("b", ml_dtypes.bfloat16), ("c", "u2"),
                      ("d", ml_dtypes.uint2, (2,))])  # fmt: skip
    block = np.zeros(3, dtype)
    block["a"], block["b"], block["c"], block["d"] = [-8, 7, -1], [1, 2, 0.5], 258, [1, 3]
    for endian, middle in (("little", "803f0201"), ("big", "3f800102")):
        made = codec(dtype, endian, (3,))
        encoded = made.encode(block)
        assert encoded[:7].hex() == f"08{middle}0103"
        dirty = bytearray(encoded)
        dirty[0] |= 0xF0
        back = made.decode(bytes(dirty))
        assert back["a"].astype(int).tolist() == [-8, 7, -1]
        assert back["b"].astype(float).tolist() == [1, 2, 0.5]
        assert back["c"].tolist() == [258] * 3
        assert back["d"].astype(int).tolist() == [[1, 3]] * 3
    assert dtype_from_v2(dtype_to_v2(dtype)) == dtype


def test_complex_fields_in_the_other_byte_order_are_refused():
    dtype = np.dtype([("a", ml_dtypes.complex32)])
    with pytest.raises(UnsupportedError, match="other byte order"):
        codec(dtype, "big", (3,))


@pytest.mark.parametrize("name", V3)
@pytest.mark.parametrize("compressor", ["blosc", "zstd", "numcodecs.shuffle"])
def test_behind_compressors(name, compressor):
    dtype = dtype_from_v3(name)
    configuration = {
        "blosc": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": dtype.itemsize,
                  "blocksize": 0},
        "zstd": {"level": 1, "checksum": False},
        "numcodecs.shuffle": {"elementsize": dtype.itemsize},
    }[compressor]  # fmt: skip
    chain = Pipeline.from_v3(
        [
            {"name": "bytes", "configuration": {"endian": "big"}},
            {"name": compressor, "configuration": configuration},
        ]
    )
    words = np.arange(40 * dtype.itemsize, dtype="u1") & (
        (1 << min(8, number_format(dtype).bits)) - 1
    )
    block = words.view(dtype).reshape(8, 5)
    made = chain.for_block((8, 5), dtype)
    assert raw(made.decode(made.encode(block))) == raw(block)


# --------------------------------------------------------------------------------- documents


def test_documents():
    v3 = zarr_json(data_type="bfloat16", fill_value="0x7fc1")
    metadata = parse_array_v3(v3)
    assert array_to_v3(metadata)["fill_value"] == "0x7fc1"
    assert array_to_v3(metadata)["data_type"] == "bfloat16"
    with pytest.raises(MetadataError, match="endian: missing"):
        parse_array_v3(zarr_json(data_type="bfloat16", codecs=["bytes"]))
    v2 = zarray(dtype="int4", fill_value=-8, compressor=None)
    metadata = parse_array_v2(v2)
    assert metadata.fill_value == ml_dtypes.int4(-8)
    assert array_to_v2(metadata)[0] == v2
    assert isinstance(metadata.grid, grids.RegularGrid)
    assert parse_array_v3(zarr_json(data_type="int4", fill_value=1, codecs=["bytes"])).itemsize == 1
