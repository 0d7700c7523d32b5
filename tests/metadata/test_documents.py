from __future__ import annotations

import json
import math

import numpy as np
import pytest

from virtualzarr.errors import MetadataError
from virtualzarr.metadata import dumps_json, loads_json
from virtualzarr.metadata.json_documents import is_same_json, short


def test_bare_tokens_are_read_and_written_as_zarr_python_does():
    value = loads_json(b'{"a": NaN, "b": [Infinity, -Infinity]}')
    assert math.isnan(value["a"])
    assert value["b"] == [math.inf, -math.inf]
    assert json.loads(dumps_json(value))["b"] == [math.inf, -math.inf]
    assert b'"a": NaN' in dumps_json(value)


def test_integers_are_exact():
    number = 2**64 - 1
    assert loads_json(str(number).encode()) == number
    assert loads_json(dumps_json({"a": 2**53 + 1})) == {"a": 2**53 + 1}


def test_text_is_ascii_and_comes_back():
    value = {"é": "\u00b5 \U0001f600 \ud800"}
    assert dumps_json(value).isascii()
    assert loads_json(dumps_json(value)) == value
    assert loads_json('\ufeff{"é": 1}'.encode()) == {"é": 1}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"{'a': 1}", "not JSON"),
        (b'{"a": 1,}', "not JSON"),
        (b'{"a": 1} x', "not JSON"),
        (b'{"a": {"b": 1, "c": 2, "b": 1}}', "member 'b' twice"),
        (b'"\xff"', "UTF-8"),
        ("{}".encode("utf-16"), "UTF-8"),
        (b"[" * 200_000, "nested too deeply"),
        (b"1" * 10_000, "not JSON"),
    ],
)
def test_what_is_no_document(data, message):
    with pytest.raises(MetadataError, match=message):
        loads_json(data)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, {"b": math.nan}]}, r"a\[1\]\.b is nan"),
        ({"a": {"b": [math.inf]}}, r"a\.b\[0\] is inf"),
        ({"a": np.int16(1)}, "a is a int16"),
        ({"a": [b"x"]}, r"a\[0\] is a bytes"),
        ({"a": {(1, 2): 1}}, r"a: the member name \(1, 2\)"),
    ],
)
def test_what_json_cannot_hold_is_named(value, message):
    with pytest.raises(MetadataError, match=message):
        dumps_json(value, allow_nan=False)


def test_a_value_that_contains_itself():
    value: dict = {}
    value["a"] = value
    with pytest.raises(MetadataError, match="JSON"):
        dumps_json(value)


def test_same_json():
    assert is_same_json({"a": [math.nan, {}]}, {"a": [math.nan, {}]})
    assert is_same_json({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert is_same_json([0.0, -0.0], [0.0, -0.0])
    for a, b in [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
        ("a", None),
        ({}, []),
    ]:
        assert not is_same_json(a, b)


def test_hostile_numbers_are_shown_short():
    assert short(10**100_000) == "a number of 332193 bits"
    assert len(short("x" * 1000)) == 80
