"""Arrays cut into smaller chunks, and arrays that stand for missing ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from tests.combine.helpers import RAW, ZLIB, numbers, virtual_array
from virtualzarr.array.read.cache_policy import CachePolicy
from virtualzarr.errors import UnsupportedError
from virtualzarr.references.canonical import make_canonical


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_split_chunks_hold_the_same(data):
    shape = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    old, new = (tuple(data.draw(st.integers(1, n + 1)) for n in shape) for _ in range(2))
    pipeline = data.draw(st.sampled_from([RAW, ZLIB]))
    array = virtual_array(numbers(shape), old, pipeline=pipeline)
    split = vz.split_chunks(array, new)
    np.testing.assert_array_equal(split[...], numbers(shape))
    for axis, (whole, part) in enumerate(zip(old, new, strict=True)):
        starts = split.grid.axes[axis].start(np.arange(split.grid.grid_shape[axis]))
        cuts = {*range(0, shape[axis], whole), *range(0, shape[axis], part)}
        assert starts.tolist() == sorted(cuts)


def test_rows_of_uncompressed_chunks_can_be_published():
    array = virtual_array(numbers((6, 4)), (6, 4))
    split = vz.split_chunks(array, (2, 4))
    assert split.manifest.nrefs == 3
    assert not len(make_canonical(split.metadata, split.manifest).misread)
    assert "Unusual" not in split.info


def test_info_tells_what_is_unusual():
    split = vz.split_chunks(virtual_array(numbers((6, 4)), (6, 4), pipeline=ZLIB), (2, 4))
    assert "Unusual    : 3 parts of larger blocks" in split.info
    joined = vz.concat([split, split, virtual_array(numbers((2, 4)))])
    assert "6 parts of larger blocks; 1 decoded by bytes" in joined.info


def test_chunks_beyond_counting_are_refused():
    huge = virtual_array(numbers((2, 2))).metadata
    big = vz.empty_like(
        vz.Array.from_manifest(huge, virtual_array(numbers((2, 2))).manifest), (10**9, 8)
    )
    with pytest.raises(UnsupportedError, match="8,000,000,000 chunks"):
        vz.split_chunks(big, 1)


def test_a_missing_input_reads_as_the_fill_value():
    array = virtual_array(numbers((4, 3)), (3, 3), fill_value=-7, pipeline=ZLIB)
    missing = vz.empty_like(array, (5, 3))
    joined = vz.concat([array, missing, array])
    expected = np.concatenate([numbers((4, 3)), np.full((5, 3), -7), numbers((4, 3))])
    np.testing.assert_array_equal(joined[...], expected)


def settled():
    """A stored array that is read with settings of its own."""
    group = vz.create_group({})
    options = {"shape": (4, 6), "chunks": (2, 3), "dtype": "i4", "fill_value": -1}
    group.create_array("x", **options)[...] = 7
    return vz.open_array(
        group.store, path="x", mode="r", cache=vz.ChunkCache(1 << 20), recheck_cached_data="open",
        fill_missing=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "derive",
    [
        lambda a: vz.concat([a, a]),
        lambda a: vz.stack([a, a]),
        lambda a: vz.concat([a.lazy[:1], a.lazy[1:3], a]),
        lambda a: vz.concat([a, a.lazy.astype("i8")], dtype="f8"),
        lambda a: vz.split_chunks(a, (1, 3)),
        lambda a: a.lazy.pad((1, 1)),
        lambda a: a.lazy.transpose(),
        lambda a: a.with_path("y"),
        lambda a: a.replace(a.metadata.replace(fill_value=0)),
        lambda a: vz.merge([vz.Group({}, {"x": a}), vz.Group({}, {"x": a})])["x"],
        lambda a: vz.concat([vz.Group({}, {"x": a})] * 2, axis=0, harmonize=True)["x"],
        lambda a: vz.Group({}, {"x": a}).rename(x="y")["y"],
        lambda a: vz.Group({}, {"g": vz.Group({}, {"x": a})}).map_arrays(vz.empty_like)["g/x"],
    ],
)
def test_settings_stay(derive):
    array = settled()
    derived = derive(array)
    assert derived.cache_policy.cache is array.cache_policy.cache
    assert derived.cache_policy.data == "open"
    unwritten = derived.is_virtual and not derived.manifest.nrefs
    assert derived.fill_missing == unwritten  # what stands for a missing input reads as fill


def test_chunks_of_joined_arrays_are_read_once(tmp_path):
    cache = vz.ChunkCache(1 << 20)
    for name in "ab":
        vz.create_array(tmp_path / name, data=np.arange(6), chunks=(3,))
    options = {"mode": "r", "cache": cache, "recheck_cached_data": False}
    arrays = [vz.open_array(tmp_path / name, **options) for name in "ab"]
    joined = vz.concat(arrays)
    for _ in range(2):
        joined[...]
    assert (cache.hits, len(cache)) == (4, 4)


def test_settings_that_differ():
    one, other = settled(), settled()
    other.cache_policy = CachePolicy(other.cache_policy.cache, data=60.0)
    joined = vz.concat([one, other])
    assert joined.cache_policy.cache is one.cache_policy.cache
    assert joined.cache_policy.data == "always"
