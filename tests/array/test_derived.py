"""Arrays cut into smaller chunks, and arrays that stand for missing ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from tests.combine.helpers import RAW, ZLIB, numbers, virtual_array
from virtualzarr.errors import UnsupportedError
from virtualzarr.publish.canonical import make_canonical


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
    assert not len(make_canonical(split.metadata, split.manifest).odd)
    assert "Unusual" not in split.info


def test_info_tells_what_is_unusual():
    split = vz.split_chunks(virtual_array(numbers((6, 4)), (6, 4), pipeline=ZLIB), (2, 4))
    assert "Unusual    : 3 parts of larger blocks" in split.info
    joined = vz.concat([split, split, virtual_array(numbers((2, 4)))])
    assert "6 parts of larger blocks; 1 decoded by bytes" in joined.info


def test_chunks_beyond_counting_are_refused():
    huge = virtual_array(numbers((2, 2))).metadata
    big = vz.missing_like(
        vz.Array.virtual(huge, virtual_array(numbers((2, 2))).manifest), (10**9, 8)
    )
    with pytest.raises(UnsupportedError, match="8,000,000,000 chunks"):
        vz.split_chunks(big, 1)


def test_a_missing_input_reads_as_the_fill_value():
    array = virtual_array(numbers((4, 3)), (3, 3), fill_value=-7, pipeline=ZLIB)
    missing = vz.missing_like(array, (5, 3))
    joined = vz.concat([array, missing, array])
    expected = np.concatenate([numbers((4, 3)), np.full((5, 3), -7), numbers((4, 3))])
    np.testing.assert_array_equal(joined[...], expected)
