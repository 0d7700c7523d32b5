"""Whatever two arrays are: joined they hold what numpy joins, or it is an error. Nothing else."""

from __future__ import annotations

import itertools
import tempfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from tests.combine.helpers import numbers
from tests.combine.makers import MAKERS
from virtualzarr.combine.compatibility import has_missing_chunks
from virtualzarr.combine.dtypes import common_dtype
from virtualzarr.errors import MismatchError, UnsupportedError
from virtualzarr.virtual.from_store import as_virtual, unshard

DTYPES = ["i2", "i4", "u2", "f4", "f8", "i8", "u8", "c8", "?", "S3", "M8[s]"]
NUMBERS = ["i2", "u2", "i4", "f4", "f8"]


def made(data, kind, shape, dtype, start=0):
    """An array of some kind, and its values."""
    fill = {"S": b"no", "M": np.datetime64(7, "s"), "b": True}.get(np.dtype(dtype).kind)
    fill = data.draw(st.sampled_from([0, 5])) if fill is None else fill
    values = numbers(shape, "i8", start).astype(dtype)
    if kind != "references" and np.dtype(dtype).kind not in "iuf":
        kind = "references"
    return MAKERS[kind](data.draw, values, fill), values


def check_joined(data, join, arrays, expected):
    """What is joined holds what is expected; an error is one only where arrays disagree."""
    dtype = common_dtype([array.dtype for array in arrays])
    virtual = [unshard(as_virtual(array)) for array in arrays]
    fills = {np.asarray(a.fill_value, dtype).tobytes() for a in virtual if has_missing_chunks(a)}
    harmonize = data.draw(st.sampled_from([False, "fill"]))
    try:
        joined = join(arrays, harmonize=harmonize)
    except (MismatchError, UnsupportedError):
        assert dtype is None or (len(fills) > 1 and not harmonize)
        return None
    assert dtype is not None
    assert len(fills) < 2 or harmonize
    assert (joined.shape, joined.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(joined[...], expected)
    if expected.size:
        box = tuple(
            slice(*sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))))
            for n in expected.shape
        )
        np.testing.assert_array_equal(joined[box], expected[box])
    return joined


SLOW = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize(
    "kinds", [*itertools.combinations_with_replacement(MAKERS, 2)], ids="-".join
)
@SLOW
@given(st.data())
def test_every_pair_along_every_axis(kinds, data):
    shape = data.draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    kinds = data.draw(st.permutations(kinds))
    axis = data.draw(st.integers(0, 1))
    dtypes = data.draw(st.just(["i4", "i4"]) | st.tuples(*[st.sampled_from(NUMBERS)] * 2))
    inputs = []
    for i, (kind, dtype) in enumerate(zip(kinds, dtypes, strict=True)):
        own = [*shape]
        own[axis] = data.draw(st.integers(1, 6))
        inputs.append(made(data, kind, tuple(own), dtype, 100 * i))
    arrays = [array for array, _ in inputs]
    for array, values in inputs:
        np.testing.assert_array_equal(array[...], values)
    expected = np.concatenate([values for _, values in inputs], axis)
    check_joined(data, lambda items, **how: vz.concat(items, axis, **how), arrays, expected)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_many_of_any_kind(data):
    ndim = data.draw(st.integers(1, 3))
    shape = [data.draw(st.integers(1, 5)) for _ in range(ndim)]
    axis = data.draw(st.integers(0, ndim - 1))
    dtypes = data.draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=2))
    inputs = []
    for i in range(data.draw(st.integers(1, 5))):
        own = [*shape]
        own[axis] = data.draw(st.integers(0, 5))
        kind = data.draw(st.sampled_from(list(MAKERS)))
        inputs.append(made(data, kind, tuple(own), data.draw(st.sampled_from(dtypes)), 100 * i))
    arrays = [array for array, _ in inputs]
    dtype = common_dtype([array.dtype for array in arrays])
    expected = np.concatenate([values.astype(dtype or "O") for _, values in inputs], axis)
    joined = check_joined(
        data, lambda items, **how: vz.concat(items, axis, **how), arrays, expected
    )
    if joined is not None:
        other = data.draw(st.integers(0, ndim - 1))
        twice = vz.concat([joined, joined], other)
        np.testing.assert_array_equal(twice[...], np.concatenate([expected, expected], other))


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_stacks_of_any_kind(data):
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple))
    dtypes = data.draw(st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=2))
    inputs = [
        made(data, data.draw(st.sampled_from(list(MAKERS))), shape, dtype, 100 * i)
        for i, dtype in enumerate(dtypes * 2)
    ]
    axis = data.draw(st.integers(0, len(shape)))
    expected = np.stack([values for _, values in inputs], axis)
    arrays = [array for array, _ in inputs]
    check_joined(data, lambda items, **how: vz.stack(items, axis, **how), arrays, expected)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_what_is_joined_can_be_published(data):
    kinds = data.draw(st.lists(st.sampled_from(list(MAKERS)), min_size=2, max_size=3))
    inputs = [made(data, kind, (4, 3), "i4", 100 * i) for i, kind in enumerate(kinds)]
    joined = vz.concat([array for array, _ in inputs], harmonize="fill")
    expected = np.concatenate([values for _, values in inputs])
    with tempfile.TemporaryDirectory() as folder:
        vz.Group({}, {"x": joined}).publish(f"{folder}/refs.json", copy=True)
        np.testing.assert_array_equal(vz.open(f"{folder}/refs.json")["x"][...], expected)
