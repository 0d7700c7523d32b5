from __future__ import annotations

import base64
import datetime
import math
import re
import warnings

import numpy as np
import pytest

from virtualzarr.config import config
from virtualzarr.errors import MetadataError, SkippedVariableWarning
from virtualzarr.metadata import (
    decode_fill_attribute,
    dumps_json,
    encode_fill_attribute,
    json_attributes,
    loads_json,
)
from virtualzarr.metadata.json_documents import is_same_json


def converted(value):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = json_attributes({"a": value})["a"]
    assert is_same_json(loads_json(dumps_json(result)), result)
    return result


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int16(-5), -5),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.float32(0.1), 0.10000000149011612),
        (np.float64("nan"), math.nan),
        (np.float16(1.5), 1.5),
        (np.longdouble(1.5), 1.5),
        (np.bool_(True), True),
        (np.array(3, "i4"), 3),
        (np.array([3], "i4"), 3),
        (np.array([3, 4], ">i4"), [3, 4]),
        (np.array([], "f4"), []),
        (np.array([[1], [2]]), [[1], [2]]),
        (np.array([[5]]), [[5]]),
        (np.array([np.inf, -np.inf]), [math.inf, -math.inf]),
        (np.array([b"ab", "é".encode()]), ["ab", "é"]),
        (np.array(["x"], object), "x"),
        (np.array(["x", b"y"], object), ["x", "y"]),
        (np.str_("é"), "é"),
        (b"K", "K"),
        (b"K\0\0", "K"),
        (np.bytes_(b"K"), "K"),
        ("\u00b5m", "\u00b5m"),
        (None, None),
        (True, True),
        (2**70, 2**70),
        ([1], [1]),
        ((1, np.int8(2)), [1, 2]),
        ({"b": np.float32(2)}, {"b": 2.0}),
        (np.array((1, 2.5), [("i", "i4"), ("f", "f4")])[()], {"i": 1, "f": 2.5}),
        (np.array([(1, [2, 3])], [("i", "i4"), ("f", "f4", (2,))]), {"i": 1, "f": [2.0, 3.0]}),
    ],
    ids=repr,
)
def test_values_become_json(value, expected):
    assert is_same_json(converted(value), expected)


@pytest.mark.parametrize("dtype", ["?", "i1", ">u8", ">i4", "f2", ">f4", "f8", "g", "S3", "U2"])
@pytest.mark.parametrize("shape", [(0,), (3,), (2, 0), (2, 1), (2, 3)])
def test_arrays_are_what_their_elements_are(dtype, shape):
    values = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    found = np.array(converted(values), object).reshape(shape)
    for place, value in np.ndenumerate(values):
        assert found[place] == converted(value)
        assert type(found[place]) is type(converted(value))


def test_order_and_names():
    attributes = {"z": 1, "a": 2, b"bytes": 3}
    assert list(json_attributes(attributes)) == ["z", "a", "bytes"]
    with pytest.raises(MetadataError, match="name"):
        json_attributes({3: 1})


@pytest.mark.parametrize("value", [b"\xb0C", b"\xb0C".decode("utf-8", "surrogateescape")])
def test_text_in_another_encoding_is_said(value):
    with pytest.warns(SkippedVariableWarning, match="'units' is not UTF-8"):
        assert json_attributes({"units": value}) == {"units": "°C"}


@pytest.mark.parametrize(
    "value",
    [
        *(1j, np.complex64(1), object(), datetime.date(2020, 1, 1), "\ud800"),
        *(np.void(b"ab"), np.datetime64(1, "s"), np.timedelta64(1, "s"), np.array([1j, 2j])),
        [object()],
    ],
    ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", repr(value)),  # the same in every process
)
def test_what_has_no_json_form_is_left_out_and_said(value):
    with pytest.warns(SkippedVariableWarning, match="'a' was left out"):
        assert json_attributes({"a": value, "b": 1}) == {"b": 1}


def test_numbers_beyond_float64():
    value = np.longdouble(1) + np.finfo(np.longdouble).eps
    if float(value) == value:
        pytest.skip("long double is float64 here")
    with pytest.warns(SkippedVariableWarning, match="float64"):
        assert json_attributes({"a": value}) == {}


def test_hdf5_null_attributes():
    h5py = pytest.importorskip("h5py")
    assert converted(h5py.Empty("S1")) == ""
    assert converted(h5py.Empty("f4")) == []


FILLS = [
    (1.5, "f4"),
    (math.nan, "f8"),
    (-9999, "i2"),
    (2**64 - 1, "u8"),
    (1 - 2j, "c8"),
    (True, "?"),
    (b"ab", "S2"),
    ("é", "U1"),
]


@pytest.mark.parametrize(("value", "dtype"), FILLS, ids=str)
def test_fill_attributes_are_those_of_xarray(value, dtype):
    zarr = pytest.importorskip("xarray.backends.zarr")
    dtype = np.dtype(dtype)
    encoded = encode_fill_attribute(value, dtype)
    assert encoded == zarr.FillValueCoder.encode(value, dtype)
    decoded = decode_fill_attribute(encoded, dtype)
    assert decoded == value or (decoded != decoded and value != value)
    if dtype.kind not in "SU":  # which xarray writes but does not read
        theirs = zarr.FillValueCoder.decode(encoded, dtype)
        assert decoded == theirs or (decoded != decoded and theirs != theirs)


def test_plain_fill_attributes_are_left_alone():
    assert decode_fill_attribute(-9999.0, np.dtype("f4")) == -9999.0
    with pytest.raises(MetadataError, match="_FillValue"):
        decode_fill_attribute(base64.b64encode(b"abc").decode(), np.dtype("f4"))
    with pytest.raises(MetadataError, match="_FillValue"):
        decode_fill_attribute("x", np.dtype("f4"))


def test_attributes_of_more_elements_than_the_limit_are_left_out(monkeypatch):
    monkeypatch.setattr(config.limits, "attribute_elements", 4)
    many = {"a": np.arange(4), "b": np.arange(5), "c": np.zeros((2, 3), "S1")}
    with pytest.warns(SkippedVariableWarning) as caught:
        assert json_attributes(many) == {"a": [0, 1, 2, 3]}
    assert [str(warning.message) for warning in caught] == [
        f"the attribute {name!r} was left out: an array of {count} elements is more than "
        "virtualzarr.config.limits.attribute_elements allows"
        for name, count in (("b", 5), ("c", 6))
    ]
