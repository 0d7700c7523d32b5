"""The codecs `cast_value` and `scale_offset`, alone and together."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.metadata.helpers import zarr_json
from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.core.numbers import narrow_dtype
from virtualzarr.errors import CodecError, MetadataError, UnsupportedError
from virtualzarr.metadata import parse_array_v3

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
NUMPY_LIKE = {
    "data_type": "uint8",
    "rounding": "towards-zero",
    "out_of_range": "wrap",
    "scalar_map": {"encode": [["NaN", 0], ["+Infinity", 0], ["-Infinity", 0]]},
}


def cast_value(data_type, **fields):
    return {"name": "cast_value", "configuration": {"data_type": data_type, **fields}}


def scale_offset(**fields):
    return {"name": "scale_offset", "configuration": fields}


def made(dtype, *codecs, size=None, values=()):
    return Pipeline.from_v3([*codecs, BYTES]).for_block((size or len(values),), dtype)


def there_and_back(dtype, values, *codecs):
    codec = made(dtype, *codecs, values=values)
    data = codec.encode(np.asarray(values, dtype))
    return data, codec.decode(data)


# --------------------------------------------------------------------------------- cast_value


def test_the_numpy_example_of_the_specification():
    values = [0.0, 1.9, -1.9, 300.7, 1e20, np.nan, np.inf, -np.inf]
    data, back = there_and_back("f8", values, cast_value(**NUMPY_LIKE))
    with np.errstate(invalid="ignore"):
        want = np.array([0, 1, 255, 300 - 256, int(1e20) % 256, 0, 0, 0], "u1")
    assert data == want.tobytes()
    assert back.tolist() == want.astype("f8").tolist()


def test_scalar_maps():
    fields = {"scalar_map": {"encode": [["NaN", 0], ["NaN", 9], [5.0, 7]], "decode": [[0, "NaN"]]}}
    nan = np.array([0xFFF8000000000001], "u8").view("f8")[0]
    data, back = there_and_back("f8", [nan, 5.0, 1.0, 0.0], cast_value("uint8", **fields))
    assert data == bytes([0, 7, 1, 0])
    assert np.isnan(back).tolist() == [True, False, False, True]
    assert back[1:3].tolist() == [7.0, 1.0]


@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("stored", ["int16", "uint64", "float32", "bfloat16", "int4", "float64"])
@pytest.mark.parametrize("dtype", ["i1", "u8", "f4", "f8"])
@given(data=st.data())
def test_small_integers_survive(dtype, stored, data):
    pytest.importorskip("ml_dtypes")
    values = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=9))
    _, back = there_and_back(dtype, values, cast_value(stored))
    assert back.tolist() == values
    assert back.dtype == np.dtype(dtype)


def test_what_is_out_of_range():
    codec = made("f8", cast_value("int8"), size=1)
    with pytest.raises(CodecError, match=r"cast_value: 128.0 is not in the range of int8"):
        codec.encode(np.array([127.5]))
    back = made("i1", cast_value("int16"), size=1)
    with pytest.raises(CodecError, match="cast_value: 300 is not in the range of int8"):
        back.decode(np.array([300], "i2").tobytes())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *[({}, "data_type"), ({"data_type": "complex64"}, "integers or floats")],
        *[({"data_type": "uint8", "rounding": "up"}, "rounding"), ({"data_type": 3}, "data_type")],
        ({"data_type": "uint8", "out_of_range": "saturate"}, "out_of_range"),
        ({"data_type": "float32", "out_of_range": "wrap"}, "wrap is for integers"),
        ({"data_type": "uint8", "scalar_map": {"encode": [[1]]}}, "is not a pair"),
        ({"data_type": "uint8", "scalar_map": [[1, 2]]}, "scalar_map must be an object"),
        ({"data_type": "uint8", "other": 1}, "other"),
    ],
)
def test_wrong_configurations(fields, message):
    with pytest.raises(CodecError, match=f"cast_value: .*{message}"):
        make("cast_value", **fields)


def test_configurations_that_do_not_fit_the_array():
    with pytest.raises(CodecError, match="casts integers and floats, the array is complex64"):
        made("c8", cast_value("uint8"), size=1)
    fields = {"scalar_map": {"decode": [[300, 1.0]]}}
    with pytest.raises(CodecError, match="scalar_map: decode: 300 is outside the range of uint8"):
        made("f4", cast_value("uint8", **fields), size=1)


def test_fill_values_must_come_back():
    bad = zarr_json(data_type="float64", fill_value="NaN", codecs=[cast_value("uint8"), BYTES])
    with pytest.raises(MetadataError, match="fill_value: cast_value: nan is not in the range"):
        parse_array_v3(bad)
    bad["fill_value"] = 0.5
    with pytest.raises(MetadataError, match=r"makes 0.0 of the fill value 0.5"):
        parse_array_v3(bad)
    maps = {"encode": [["NaN", 0]], "decode": [[0, "NaN"]]}
    good = bad | {"fill_value": "NaN", "codecs": [cast_value("uint8", scalar_map=maps), BYTES]}
    assert np.isnan(parse_array_v3(good).fill_value)


# ------------------------------------------------------------------------------- scale_offset


@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "i8", "u8", "int4", "uint4"])
@given(data=st.data())
def test_integers_are_exact_or_refused(dtype, data):
    if dtype.endswith("int4"):
        pytest.importorskip("ml_dtypes")
    bits = 4 if dtype.endswith("int4") else 8 * np.dtype(dtype).itemsize
    low, high = (0, 2**bits - 1) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    numbers = st.one_of(st.integers(low, high), st.integers(max(low, -3), 3))
    values = data.draw(st.lists(numbers, min_size=1, max_size=5))
    offset, scale = data.draw(numbers), data.draw(numbers.filter(bool))
    real = narrow_dtype(dtype) if bits == 4 else np.dtype(dtype)
    codec = made(real, scale_offset(offset=offset, scale=scale), values=values)
    block = np.array(values, "i1").astype(real) if bits == 4 else np.array(values, dtype)
    steps = [value - offset for value in values] + [(value - offset) * scale for value in values]
    if all(low <= step <= high for step in steps):
        encoded = codec.encode(block)
        plain = made(real, values=values).decode(encoded)
        assert [int(value) for value in plain] == steps[len(values) :]
        assert [int(value) for value in codec.decode(encoded)] == values
    else:
        with pytest.raises(CodecError, match=r"scale_offset: .* is not in the range"):
            codec.encode(block)


def test_quotients_that_are_no_integers():
    codec = made("i4", scale_offset(scale=3), size=2)
    with pytest.raises(CodecError, match="the quotient by 3 is no integer of int32"):
        codec.decode(np.array([3, 4], "i4").tobytes())
    codec = made("i1", scale_offset(scale=-1), size=1)
    with pytest.raises(CodecError, match=r"-128 \* -1 is not in the range of int8"):
        codec.decode(b"\x80")


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_floats_have_the_arithmetic_of_their_dtype(dtype):
    values = np.array([0.1, 1000.3, -7, np.nan, np.inf], dtype)
    data, back = there_and_back(dtype, values, scale_offset(offset=5, scale=0.1))
    five, tenth = np.array([5, 0.1], dtype)
    stored = (values - five) * tenth
    assert data == stored.tobytes()
    assert back.tobytes() == (stored / tenth + five).astype(dtype).tobytes()


def test_floats_that_overflow():
    with pytest.raises(CodecError, match=r"scale_offset: 60000.0 \* 2.0 is not in the range"):
        there_and_back("f2", [60000.0], scale_offset(scale=2))


def test_small_floats():
    dtype = pytest.importorskip("ml_dtypes").float8_e5m2
    codec = made(dtype, scale_offset(offset=1.0, scale=2.0), size=3)
    block = np.array([1.0, 2.5, -0.25]).astype(dtype)
    data = codec.encode(block)
    assert np.frombuffer(data, dtype).astype("f4").tolist() == [0.0, 3.0, -2.5]
    assert codec.decode(data).astype("f4").tolist() == [1.0, 2.5, -0.25]
    with pytest.raises(CodecError, match=r"scale_offset: .*is not in the range of float8_e5m2"):
        codec.encode(np.array([1, 57344, 1]).astype(dtype))


@pytest.mark.parametrize(
    "fields", [{"scale": 0}, {"scale": "NaN"}, {"offset": 1.5}, {"scale": 300}]
)
def test_parameters_that_do_not_fit(fields):
    with pytest.raises(CodecError, match="scale_offset"):
        made("f4" if "NaN" in fields.values() else "i1", scale_offset(**fields), size=1)


def test_unknown_members_and_dtypes():
    with pytest.raises(CodecError, match="unknown members"):
        make("scale_offset", factor=2)
    with pytest.raises(CodecError, match="is not defined for bool"):
        made("?", scale_offset(), size=1)
    for codec in (scale_offset(offset=1), cast_value("uint8")):
        with pytest.raises(UnsupportedError, match="no v2 form"):
            Pipeline.from_v3([codec, BYTES]).to_v2("i4", 1)
    nothing = Pipeline.from_v3(["scale_offset", BYTES])
    assert nothing.for_block((2,), "i4").encode([1, 2]) == np.array([1, 2], "i4").tobytes()


def test_both_examples_of_the_specification():
    first = [scale_offset(offset=1000), cast_value("uint8")]
    data, back = there_and_back("u2", [1000, 1001, 1255], *first)
    assert data == bytes([0, 1, 255])
    assert back.tolist() == [1000, 1001, 1255]
    maps = {"encode": [["NaN", 0]], "decode": [[0, "NaN"]]}
    second = [scale_offset(offset=-10, scale=0.1),
              cast_value("uint8", rounding="nearest-even", scalar_map=maps)]  # fmt: skip
    data, back = there_and_back("f8", [0.0, 2540.0, np.nan], *second)
    assert data == bytes([1, 255, 0])
    assert back[:2].tolist() == [1 / 0.1 - 10, 255 / 0.1 - 10]
    assert np.isnan(back[2])


# ------------------------------------------------------------------------------------ interop


@pytest.mark.interop
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("dtype", "fill", "codecs"),
    [
        ("float32", 0.0, [scale_offset(offset=5.0, scale=0.5)]),
        ("int16", 3, [scale_offset(offset=3, scale=2)]),
        ("float64", 0.0, [cast_value("int16", rounding="nearest-away", out_of_range="clamp")]),
        ("float64", 0.0, [cast_value("float16", rounding="towards-positive")]),
        ("int32", 0, [cast_value("uint8", out_of_range="wrap")]),
        ("float32", 0.0, [scale_offset(offset=-10.0, scale=0.5), cast_value("int32")]),
        ("float64", 0.0, [cast_value(**NUMPY_LIKE)]),
    ],
    ids=str,
)
def test_with_zarr_python(tmp_path, dtype, fill, codecs):
    zarr = pytest.importorskip("zarr", minversion="3.2.1")
    if any(codec["name"] == "cast_value" for codec in codecs):
        pytest.importorskip("cast_value_rs")
        if "scalar_map" in codecs[0]["configuration"]:
            # zarr-python knows the infinity only as the specification of fill values spells it.
            text = json.dumps(codecs).replace("+Infinity", "Infinity")
            codecs = json.loads(text)
    document = zarr_json(shape=[6], data_type=dtype, fill_value=fill, codecs=[*codecs, BYTES])
    document["chunk_grid"]["configuration"]["chunk_shape"] = [6]
    (tmp_path / "zarr.json").write_text(json.dumps(document))
    array = zarr.open_array(tmp_path, mode="r+")
    values = np.array(
        [3, 5, 7, 99, 250, 11] if dtype[0] == "i" else [0, 1.5, 2.5, -7.25, 99.1, 3.0]
    )
    if dtype == "int16":
        values = np.array([3, 5, 7, -99, 250, 11])
    array[:] = values.astype(dtype)
    metadata = parse_array_v3(json.loads((tmp_path / "zarr.json").read_text()))
    codec = metadata.pipeline.for_block((6,), metadata.dtype)
    stored = (tmp_path / "c/0").read_bytes()
    assert codec.encode(values.astype(dtype)) == stored
    assert codec.decode(stored).tobytes() == np.asarray(array[:]).tobytes()
