"""`gen` blocks as columns give what evaluating them one by one gives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.references.kerchunk.documents import GROUP, zarray
from tests.references.kerchunk.test_vectors import listed
from virtualzarr.errors import BadReferenceError
from virtualzarr.references.kerchunk import scan

BASE = {".zgroup": GROUP, "x/.zarray": zarray([6, 40], [1, 1])}


def generated(**block):
    return scan({"version": 1, "gen": [block], "refs": BASE})["x"].manifest


@pytest.mark.parametrize(
    ("key", "cell"),
    [
        ("x/{{i}}.{{j}}", lambda i, j: (i, j)),
        ("x/{{5 - i}}.{{j * 4}}", lambda i, j: (5 - i, j * 4)),
        ("x/{{i}}.3{{j}}", lambda i, j: (i, 30 + j)),
        ("x/{{i}}.{{'%d' % j}}", lambda i, j: (i, j)),
        ("{{'x'}}/{{i}}.{{j}}", lambda i, j: (i, j)),
    ],
)
def test_keys(key, cell):
    manifest = generated(
        key=key,
        url="s3://b/{{i // 2}}/f_{{'%02d' % j}}.nc",
        offset="{{(i * 10 + j) * 7}}",
        length="{{j % 3 + 1}}",
        dimensions={"i": {"stop": 6}, "j": {"start": 1, "stop": 9, "step": 2}},
    )
    expected = [None] * 240
    for i, j in itertools.product(range(6), range(1, 9, 2)):
        a, b = cell(i, j)
        expected[a * 40 + b] = [f"s3://b/{i // 2}/f_{j:02d}.nc", (i * 10 + j) * 7, j % 3 + 1]
    assert listed(manifest) == expected


def test_numbers_side_by_side_are_one_number():
    manifest = generated(
        key="x/0.{{i}}{{j}}", url="s3://b/f", dimensions={"i": [1, 2], "j": {"stop": 3}}
    )
    assert np.flatnonzero(np.asarray(manifest.source)[0] >= 0).tolist() == [10, 11, 12, 20, 21, 22]


def test_one_block_may_fill_several_arrays():
    refs = {".zgroup": GROUP, "x0/.zarray": zarray([2], [1]), "x1/.zarray": zarray([2], [1])}
    block = {
        "key": "x{{i}}/{{j}}",
        "url": "s3://b/{{i}}{{j}}",
        "dimensions": {"i": [0, 1], "j": [0, 1]},
    }
    group = scan({"version": 1, "gen": [block], "refs": refs})
    for i in range(2):
        assert listed(group[f"x{i}"].manifest) == [[f"s3://b/{i}{j}", 0, -1] for j in range(2)]


def test_offsets_may_be_given_as_numbers():
    manifest = generated(key="x/0.{{i}}", url="s3://b/f", offset=7, length=2, dimensions={"i": [0]})
    assert listed(manifest)[0] == ["s3://b/f", 7, 2]


def test_offsets_may_be_made_of_text_and_numbers():
    manifest = generated(
        key="x/0.{{i}}", url="s3://b/f", offset="{{i}}00", length=" 2 ", dimensions={"i": [1, 2]}
    )
    assert listed(manifest)[1:3] == [["s3://b/f", 100, 2], ["s3://b/f", 200, 2]]


def test_an_empty_dimension_makes_nothing():
    assert generated(key="x/{{i}}.0", url="s3://b/f", dimensions={"i": {"stop": 0}}).nrefs == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"key": 5}, {"url": None}, {"dimensions": [1]}, {"dimensions": {"i": "ab"}},
        {"dimensions": {"i": [1.5]}}, {"dimensions": {"i": {"start": 0}}},
        {"dimensions": {"i": {"stop": 3, "step": 0}}}, {"dimensions": {"i": {"stop": 3, "by": 1}}},
        {"dimensions": {"i": {"stop": True}}}, {"offset": "x", "length": "1"},
        {"offset": "1.5", "length": "1"}, {"offset": "1"}, {"key": "y/{{i}}"}, {"key": "x/{{i}}"},
        {"key": "x/{{i}}.0/z"}, {"key": "x/{{n}}.0"}, {"key": "x/\ue000.{{i}}"},
        {"dimensions": {"i": {"stop": 10**12}}}, {"key": "x/{{i - 1}}.0"},
        {"dimensions": {"i": {"stop": 10**30, "step": 10**29}}},
    ],
)  # fmt: skip
def test_wrong_blocks_are_errors(changes):
    block = {"key": "x/{{i}}.0", "url": "s3://b/f", "dimensions": {"i": {"stop": 2}}, **changes}
    with pytest.raises(BadReferenceError):
        generated(**block)


def test_a_block_that_is_no_object_is_an_error():
    with pytest.raises(BadReferenceError, match="gen"):
        scan({"version": 1, "gen": [5], "refs": BASE})
