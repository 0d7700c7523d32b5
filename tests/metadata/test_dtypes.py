from __future__ import annotations

import sys

import numpy as np
import pytest

from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata import (
    BYTES,
    STRING,
    dtype_from_v2,
    dtype_from_v3,
    dtype_to_v2,
    dtype_to_v3,
)
from virtualzarr.metadata.dtypes import list_leaves, vlen_kind

PLAIN = [
    "?",
    *(
        f"{o}{t}"
        for t in ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
        for o in "<>"
    ),
]
TIMES = [f"{o}{k}8{u}" for o in "<>" for k in "mM" for u in ("[ns]", "[25s]", "[D]", "[as]", "")]
TEXTS = ["S1", "S12", "V6", "<U5", ">U5", "i1", "u1"]
STRUCTS = [
    [("a", "<i4"), ("b", ">f8")],
    [("r", "u1"), ("g", "u1")],
    [("x", "<f4"), ("z", "<f4", (2, 2))],
    [("foo", "<f4"), ("bar", [("baz", ">f4"), ("qux", "<i4", (3,))], (2,))],
    [("t", "<M8[ns]"), ("s", "S3"), ("u", ">U2"), ("v", "V5"), ("?", "?")],
]


@pytest.mark.parametrize("spec", [*PLAIN, *TIMES, *TEXTS, *STRUCTS], ids=str)
def test_v2_round_trip_keeps_dtype_and_byte_order(spec):
    dtype = np.dtype(spec)
    document = dtype_to_v2(dtype)
    back = dtype_from_v2(document)
    assert back == dtype
    assert [leaf.str for leaf in list_leaves(back)] == [leaf.str for leaf in list_leaves(dtype)]
    assert dtype_to_v2(back) == document


def test_v2_structures_of_the_specification():
    rgb = [["r", "|u1"], ["g", "|u1"], ["b", "|u1"]]
    assert dtype_from_v2(rgb) == np.dtype([(c, "u1") for c in "rgb"])
    nested = [["foo", "<f4"], ["bar", [["baz", "<f4"], ["qux", "<i4"]]]]
    assert dtype_from_v2(nested)["bar"] == np.dtype([("baz", "<f4"), ("qux", "<i4")])
    assert dtype_from_v2([["x", "<u2", [2, 3]], ["y", "<f4", [5]]]).itemsize == 32


def test_v2_padding_is_kept_in_both_directions():
    aligned = np.dtype([("a", "u1"), ("b", "<i4"), ("c", "<i2")], align=True)
    document = dtype_to_v2(aligned)
    assert document == [["a", "|u1"], ["", "|V3"], ["b", "<i4"], ["c", "<i2"], ["", "|V2"]]
    back = dtype_from_v2(document)
    assert back.itemsize == aligned.itemsize == 12
    assert {n: back.fields[n][1] for n in back.names} == {"a": 0, "b": 4, "c": 8}


@pytest.mark.parametrize(("text", "dtype"), [("<u1", "u1"), (">i1", "i1"), ("<b1", "?")])
def test_v2_byte_order_of_single_bytes_does_not_matter(text, dtype):
    assert dtype_from_v2(text) == np.dtype(dtype)


@pytest.mark.parametrize(
    "value",
    [
        *("", "f4", "=f4", "<f3", "|i2", "|f4", "|U4", "<i16", "<b2", "<f4[s]", "|M8[s]", "<M4[s]"),
        *(
            "<M8[fortnight]",
            "<M8[0s]",
            "<M8[]s",
            "|S0",
            "|Sx",
            "<U-1",
            "|S99999999999",
            "<U600000000",
        ),
        *(None, 4, {}, [], [["a"]], [["a", "<f4", [2], 1]], [[1, "<f4"]], [["a", "<f4", [-1]]]),
        *([["a", "<f4"], ["a", "<i4"]], [["", "<f4"]], [["", "|V4"]], [["a", "<f4", [2.5]]]),
        *(
            [["a", "<f8", [65536, 65536]]],
            [["a", "<f8", [0]]],
            [["a", [["b", "f4"]]]],
            ["a", "<f4"],
        ),
    ],
    ids=str,
)
def test_v2_values_that_are_no_data_type(value):
    with pytest.raises(MetadataError):
        dtype_from_v2(value)


def test_v2_errors_name_the_field():
    with pytest.raises(MetadataError, match=r"\[1\]\[0\]: '<f3' is no v2"):
        dtype_from_v2([["a", "<f4"], ["b", [["c", "<f3"]]]])


@pytest.mark.parametrize("value", ["<f16", "<c32", "complex32", "complex_float16", "float8_e9m9"])
def test_v2_types_not_supported_are_named(value):
    with pytest.raises(UnsupportedError, match=value):
        dtype_from_v2(value)


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype("longdouble"),
        np.dtype(("f4", (2,))),
        np.dtype([("a", "O")]),
        np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [0, 2]}),
        np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [4, 0]}),
        np.dtype([(("title", "a"), "i4")]),
        np.dtype("S0"),
        np.dtypes.StringDType(),
    ],
    ids=str,
)
def test_dtypes_without_a_form(dtype):
    for write in (dtype_to_v2, dtype_to_v3):
        with pytest.raises(UnsupportedError):
            write(dtype)


V3 = {
    **{name: np.dtype(name) for name in ("bool", "int8", "int16", "int32", "int64")},
    **{name: np.dtype(name) for name in ("uint8", "uint16", "uint32", "uint64")},
    **{name: np.dtype(name) for name in ("float16", "float32", "float64")},
    **{name: np.dtype(name) for name in ("complex64", "complex128")},
}


@pytest.mark.parametrize("name", V3)
def test_v3_core_names(name):
    assert dtype_from_v3(name) == dtype_from_v3({"name": name}) == V3[name]
    assert dtype_from_v3({"name": name, "configuration": {}, "must_understand": True}) == V3[name]
    assert dtype_to_v3(V3[name]) == dtype_to_v3(V3[name].newbyteorder()) == name


@pytest.mark.parametrize(
    "dtype",
    [
        *("S5", "V7", "U3", "M8[10us]", "m8[s]", "M8", "M8[ns]"),
        [("a", "i4"), ("b", [("c", "S2"), ("d", "M8[s]")])],
    ],
    ids=str,
)
def test_v3_round_trip(dtype):
    dtype = np.dtype(dtype)
    back = dtype_from_v3(dtype_to_v3(dtype))
    assert back == dtype
    assert all(leaf.isnative for leaf in list_leaves(back))
    assert dtype_to_v3(back) == dtype_to_v3(dtype)


def test_v3_variable_length():
    assert vlen_kind(dtype_from_v3("string")) is str
    for name in ("bytes", "variable_length_bytes", "binary"):
        assert vlen_kind(dtype_from_v3(name)) is bytes
    assert dtype_to_v3(STRING) == "string"
    assert dtype_to_v3(BYTES) == "bytes"
    with pytest.raises(UnsupportedError):
        dtype_to_v3(np.dtype(object))
    assert vlen_kind(np.dtype(object, metadata={"vlen": np.dtype("i4")})) is None


def test_v3_raw_bits_keep_their_name():
    dtype = dtype_from_v3("r24")
    assert dtype == np.dtype("V3")
    assert dtype_to_v3(dtype) == "r24"
    assert dtype_to_v3(np.dtype("V3"))["name"] == "raw_bytes"


def test_v3_struct_and_its_legacy_form():
    expected = np.dtype([("x", "f4"), ("t", "M8[s]")])
    time = {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}}
    objects = [{"name": "x", "data_type": "float32"}, {"name": "t", "data_type": time}]
    pairs = [["x", "float32"], ["t", time]]
    for name in ("struct", "structured"):
        for fields in (objects, pairs):
            value = {"name": name, "configuration": {"fields": fields}}
            assert dtype_from_v3(value) == expected
    assert dtype_to_v3(expected) == {"name": "struct", "configuration": {"fields": objects}}


def test_v3_micro_sign():
    value = {"name": "numpy.timedelta64", "configuration": {"unit": "μs", "scale_factor": 1}}
    assert dtype_from_v3(value) == np.dtype("m8[us]")


def _sized(name, size):
    return {"name": name, "configuration": {"length_bytes": size}}


def _fields(*fields):
    return {"name": "struct", "configuration": {"fields": list(fields)}}


def _time(**configuration):
    return {"name": "numpy.datetime64", "configuration": configuration}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "JSON object"),
        (3, "JSON object"),
        ({}, "name"),
        ({"name": 3}, "name"),
        ({"name": "int8", "configuration": {"a": 1}}, "configuration: a"),
        ({"name": "int8", "configuration": []}, "configuration"),
        ({"name": "int8", "extra": 1}, "extra"),
        ({"name": "int8", "must_understand": False}, "must_understand"),
        ("r12", "r12"),
        ("r0", "r0"),
        (f"r{8 * 2**40}", "multiple of 8"),
        ("null_terminated_bytes", "configuration: length_bytes"),
        (_sized("raw_bytes", 0), "length_bytes"),
        (_sized("raw_bytes", True), "length_bytes"),
        (_sized("raw_bytes", 2.0), "length_bytes"),
        (_sized("raw_bytes", 2**40), "length_bytes"),
        (_sized("fixed_length_utf32", 6), "multiple of 4"),
        ("numpy.datetime64", "unit"),
        (_time(unit="s"), "scale_factor"),
        (_time(unit="x", scale_factor=1), "unit"),
        (_time(unit=["s"], scale_factor=1), "unit"),
        (_time(unit="s", scale_factor=2**31), "scale_factor"),
        (_time(unit="s", scale_factor=1, zone="UTC"), "zone"),
        (_fields(), "at least one field"),
        (_fields(["a"]), r"fields\[0\]"),
        (_fields(["a", "int8"], ["a", "int8"]), r"fields\[1\]: two fields"),
        (_fields({"name": "a"}), "data_type"),
        (_fields({"name": "", "data_type": "int8"}), "no name"),
        (_fields({"name": 1, "data_type": "int8"}), "name"),
        (_fields({"name": "a", "data_type": "int8", "shape": [2]}), "shape"),
        (_fields(["a", "string"]), "fixed size"),
    ],
    ids=str,
)
def test_v3_malformed(value, message):
    with pytest.raises(MetadataError, match=message):
        dtype_from_v3(value)


@pytest.mark.parametrize(
    "name", ["int1", "float8_e9m9", "complex_float8_e4m3", "complex32", "nonsense"]
)
def test_v3_types_not_supported_are_named(name):
    with pytest.raises(UnsupportedError, match=name):
        dtype_from_v3(name)
    with pytest.raises(UnsupportedError, match=rf"fields\[0\]: .*{name}"):
        dtype_from_v3(_fields(["a", name]))


@pytest.mark.parametrize(
    ("dtype", "reason"),
    [
        (np.dtype([("a", "u1"), ("b", "i4")], align=True), "padding"),
        (np.dtype({"names": ["a"], "formats": ["u1"], "itemsize": 4}), "padding after"),
        (np.dtype([("a", "f4", (2,))]), "'a': it has a shape"),
        (np.dtype([("a", "O")]), "'a'"),
    ],
    ids=str,
)
def test_v3_has_no_form_for(dtype, reason):
    with pytest.raises(UnsupportedError, match=reason):
        dtype_to_v3(dtype)


def test_leaves_of_nested_fields():
    swapped = ">" if sys.byteorder == "little" else "<"
    nested = np.dtype([("a", "u1"), ("b", [("c", f"{swapped}i4", (2,))])])
    assert [leaf.isnative for leaf in list_leaves(nested)] == [True, False]
    native = np.dtype([("a", "u1"), ("b", "=i4")])
    assert all(leaf.isnative for leaf in list_leaves(native))
