"""Hierarchies far away: what does not depend on each other is asked for side by side."""

from __future__ import annotations

import numpy as np
import pytest

import virtualzarr as vz
from tests.dataset.s3_server import count_rounds, running
from virtualzarr.errors import MetadataError

pytest.importorskip("s3fs")

ARRAYS = 24


@pytest.fixture(scope="module")
def bucket():
    with running() as bucket:
        yield bucket


@pytest.fixture(params=[2, 3])
def root(request, bucket):
    """A group with a group of arrays in it, each of three chunks."""
    made = {}
    group = vz.create_group(made, zarr_format=request.param)
    for number in range(ARRAYS):
        array = group.create_array(f"g/a{number:02}", data=np.arange(6) + number, chunks=(2,))
        array.attrs["number"] = number
    bucket.objects.clear()
    bucket.objects |= {f"bucket/r/{key}": bytes(value) for key, value in made.items()}
    root = vz.open_group("s3://bucket/r", mode="r+", storage_options=bucket.options())
    bucket.latency = 0.03
    bucket.requests.clear()
    return root


def share_of_rounds(bucket):
    """How many requests wait for another one, of all."""
    bucket.latency = 0.0
    return count_rounds(bucket.requests) / len(bucket.requests)


def contents(group):
    return {path: (node.attrs["number"], node[...].tolist()) for path, node in group.arrays()}


EXPECTED = {f"a{i:02}": (i, [*range(i, i + 6)]) for i in range(ARRAYS)}


def test_members(root, bucket):
    group = vz.open_group("s3://bucket/r/g", storage_options=bucket.options())
    assert [name for name, _ in group.members()] == sorted(EXPECTED)
    assert share_of_rounds(bucket) < 0.5


def test_copies(root, bucket):
    root.copy("g", "h")
    assert share_of_rounds(bucket) < 0.5
    assert contents(root["h"]) == contents(root["g"]) == EXPECTED


def test_moves(root, bucket):
    root.move("g", "h")
    assert share_of_rounds(bucket) < 0.5
    assert contents(root["h"]) == EXPECTED
    assert not [key for key in bucket.objects if key.startswith("bucket/r/g")]


def test_consolidation(root, bucket):
    root.consolidate_metadata()
    assert share_of_rounds(bucket) < 0.5
    opened = vz.open_group("s3://bucket/r", use_consolidated=True, storage_options=bucket.options())
    assert contents(opened["g"]) == EXPECTED
    bucket.requests.clear()
    assert len([*opened.members(None)]) == ARRAYS + 1
    assert not bucket.requests


def test_a_member_that_cannot_be_opened(root, bucket):
    """Those before it are yielded, and it is an error."""
    key = next(key for key in bucket.objects if "/a20/" in key and key.rpartition("/")[2] in
               ("zarr.json", ".zarray"))  # fmt: skip
    bucket.latency, bucket.objects[key] = 0.0, b'{"zarr_format": 7}'
    names = []
    with pytest.raises(MetadataError, match="g/a20"):
        names.extend(name for name, _ in root["g"].members())
    assert names == sorted(EXPECTED)[:20]
