from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualzarr.errors import BadReferenceError, MetadataError, UnsupportedError
from virtualzarr.metadata import KeyEncoding

ENCODINGS = [KeyEncoding(name, separator) for name in ("default", "v2") for separator in "/."]


@pytest.mark.parametrize(
    ("encoding", "cell", "key"),
    [
        (KeyEncoding(), (1, 23, 45), "c/1/23/45"),
        (KeyEncoding("default", "."), (1, 23, 45), "c.1.23.45"),
        (KeyEncoding("v2"), (1, 23, 45), "1.23.45"),
        (KeyEncoding("v2", "/"), (1, 23, 45), "1/23/45"),
        (KeyEncoding(), (), "c"),
        (KeyEncoding("default", "."), (), "c"),
        (KeyEncoding("v2"), (), "0"),
        (KeyEncoding("v2", "/"), (), "0"),
        (KeyEncoding("v2"), (7,), "7"),
    ],
)
def test_keys_of_the_specification(encoding, cell, key):
    assert encoding.key(cell) == key
    assert encoding.keys(np.array([cell], "i8").reshape(1, len(cell))) == [key]
    assert encoding.parse([key], len(cell)).tolist() == [list(cell)]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_many_keys_are_the_keys_one_by_one_and_parse_back(data):
    encoding = data.draw(st.sampled_from(ENCODINGS))
    ndim = data.draw(st.integers(0, 4))
    number = st.integers(0, 12) | st.integers(0, 2**63 - 1)
    rows = data.draw(st.lists(st.tuples(*[number] * ndim), max_size=20))
    cells = np.array(rows, "i8").reshape(len(rows), ndim)
    keys = encoding.keys(cells)
    assert keys == [encoding.key(row) for row in rows]
    assert all(type(key) is str for key in keys)
    parsed = encoding.parse(keys, ndim)
    assert parsed.dtype == np.int64
    assert parsed.shape == cells.shape
    assert np.array_equal(parsed, cells)


@pytest.mark.parametrize(
    ("encoding", "ndim", "key"),
    [
        (KeyEncoding(), 2, "c/0"),
        (KeyEncoding(), 2, "c/0/0/0"),
        (KeyEncoding(), 2, "d/0/0"),
        (KeyEncoding(), 2, "0/0"),
        (KeyEncoding(), 2, "c.0.0"),
        (KeyEncoding(), 1, "c/01"),
        (KeyEncoding(), 1, "c/-1"),
        (KeyEncoding(), 1, "c/+1"),
        (KeyEncoding(), 1, "c/1_0"),
        (KeyEncoding(), 1, "c/ 1"),
        (KeyEncoding(), 1, "c/\u0661"),
        (KeyEncoding(), 1, "c/9223372036854775808"),
        (KeyEncoding(), 1, "c/"),
        (KeyEncoding(), 0, "c/0"),
        (KeyEncoding("v2"), 0, "c"),
        (KeyEncoding("v2"), 2, "0/0"),
        (KeyEncoding("v2"), 1, ""),
        (KeyEncoding("v2"), 1, ".zarray"),
    ],
)
def test_other_keys_are_refused_by_name(encoding, ndim, key):
    good = encoding.key((3,) * ndim)
    with pytest.raises(BadReferenceError) as caught:
        encoding.parse([good, key], ndim)
    assert repr(key) in str(caught.value)


def test_two_bad_keys_cannot_make_one_good():
    with pytest.raises(BadReferenceError, match="'1'"):
        KeyEncoding("v2").parse(["1", "2.3.4"], 2)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_json_round_trip(encoding):
    assert KeyEncoding.from_json(encoding.to_json()) == encoding


@pytest.mark.parametrize("value", ["v2", {"name": "v2"}, {"name": "v2", "configuration": {}}])
def test_the_separator_of_v2_is_a_dot_where_absent(value):
    assert KeyEncoding.from_json(value) == KeyEncoding("v2", ".")


def test_unknown_encodings_and_separators():
    with pytest.raises(UnsupportedError, match=r"zarrs\.default_suffix"):
        KeyEncoding.from_json("zarrs.default_suffix")
    with pytest.raises(MetadataError, match="separator"):
        KeyEncoding.from_json({"name": "default", "configuration": {"separator": "-"}})
    with pytest.raises(MetadataError, match="configuration: depth"):
        KeyEncoding.from_json({"name": "default", "configuration": {"depth": 1}})
    with pytest.raises(ValueError, match="shape"):
        KeyEncoding().keys([1, 2])
