"""Reading into arrays that the caller has: any memory layout, and nothing else is touched."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grids import RectilinearGrid, RegularGrid
from tests.array.stored import create
from tests.array.test_writing import basic, filled, grids, sharded
from virtualzarr.codecs import make
from virtualzarr.config import config
from virtualzarr.stores import LocalStore


@st.composite
def layouts(draw, shape):
    """An array of a shape within a larger one: with gaps, falling, transposed or not aligned."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 2, -1, -3])) for _ in shape]
    lengths = [abs(step) * shape[i] + 1 for i, step in zip(order, steps, strict=True)]
    item = np.dtype({"names": ["pad", "x"], "formats": ["u1", "i4"], "itemsize": 5})
    whole = np.zeros(lengths, "i4") if draw(st.booleans()) else np.zeros(lengths, item)["x"]
    whole[...] = -1
    view = whole[(..., *(slice(None, None, step) for step in steps))]
    view = view[(..., *(slice(shape[i]) for i in order))].transpose(np.argsort(order).astype(int))
    return whole, view


@settings(max_examples=100)
@given(st.data(), st.integers(0, 2**32 - 1))
def test_basic_selections(data, seed):
    grid, codecs = data.draw(st.one_of(grids().map(lambda grid: (grid, None)), sharded()))
    array, model = filled(grid, np.random.default_rng(seed), codecs=codecs)
    selection = data.draw(basic(grid.shape))
    expected = np.asarray(model[selection])
    whole, out = data.draw(layouts(expected.shape))
    assert out.shape == expected.shape
    others = np.count_nonzero(whole == -1) - out.size
    assert array.read(selection, out=out) is out
    np.testing.assert_array_equal(out, expected)
    assert np.count_nonzero(whole == -1) == others
    np.testing.assert_array_equal(array.read(selection), expected)


@pytest.mark.parametrize("step", [1, -2])
@pytest.mark.parametrize(
    ("mode", "selection", "expected"),
    [
        ("orthogonal", ([3, 0, 3], slice(1, 4)), lambda m: m[np.ix_([3, 0, 3], [1, 2, 3])]),
        ("orthogonal", ([4, 1], [2, 0]), lambda m: m[np.ix_([4, 1], [2, 0])]),
        ("coordinate", ([[3, 0], [3, 1]], [[1, 1], [4, 0]]), None),
        ("coordinate", ([3, 0, 4], [1, 1, 4]), None),
        ("mask", np.eye(5, dtype=bool), None),
        ("block", (1, slice(0, 2)), lambda m: m[2:4, :4]),
    ],
)
def test_other_modes(mode, selection, expected, step):
    array = create(RegularGrid((5, 5), (2, 2)))
    array[...] = model = np.arange(25).reshape(5, 5)
    expected = model[selection] if expected is None else expected(model)
    out = np.zeros([2 * n for n in expected.shape], "i4")[
        tuple(slice(None, step * n or None, step) for n in expected.shape)
    ][tuple(slice(n) for n in expected.shape)]
    assert array.read(selection, mode=mode, out=out) is out
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("grid", [RegularGrid((), ()), RectilinearGrid((0, 3), [[], [3]])])
def test_no_axes_and_no_elements(grid):
    array = create(grid, fill=3)
    out = np.zeros(grid.shape, "i4")
    assert array.read(out=out) is out
    np.testing.assert_array_equal(out, np.full(grid.shape, 3))
    assert type(array.read()) is np.ndarray


def test_an_integer_gives_an_array_without_axes():
    array = create(RegularGrid((3,), (2,)), fill=3)
    assert array.read(1).shape == ()
    np.testing.assert_array_equal(array.read((1, None)), [3])


def test_structures():
    array = create(RegularGrid((3,), (2,)), dtype=[("a", "u1"), ("b", "f8")], fill=None)
    array[1:] = np.array([(1, 2.5), (2, 0.5)], array.dtype)
    out = np.ones(6, array.dtype)
    array.read(out=out[::2])
    np.testing.assert_array_equal(out[::2], array[...])
    np.testing.assert_array_equal(out[1::2], np.ones(3, array.dtype))


def test_masked_arrays_take_the_values():
    array = create(RegularGrid((3,), (2,)), fill=3)
    out = np.ma.masked_array(np.zeros(3, "i4"), [True, False, False])
    array.read(out=out)
    assert out.data.tolist() == [3, 3, 3]
    assert out.mask.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.zeros((2, 3), "i4"), r"shape \(2, 3\), the selection \(3, 2\)"),
        (np.zeros((1, 3, 2), "i4"), "shape"),
        (np.zeros((3, 2), "i8"), "dtype int64, the array int32"),
        (np.zeros((3, 2), ">i4"), "dtype >i4"),
        (np.broadcast_to(np.zeros((3, 2), "i4"), (3, 2)), "read-only"),
        (np.lib.stride_tricks.as_strided(np.zeros(2, "i4"), (3, 2), (0, 4)), "share memory"),
        ([[0, 0]] * 3, "numpy array, not list"),
    ],
)
def test_what_does_not_fit(out, message):
    array = create(RegularGrid((3, 2), (2, 2)), fill=3)
    with pytest.raises(ValueError, match=message):
        array.read(out=out)
    assert not np.any(out)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("chunk", [64, 4096])
def test_no_memory_is_taken_beside(tmp_path, monkeypatch, chunk, compressed):
    monkeypatch.setattr(config, "threads", 1)
    codecs = (make("bytes", endian="little"), *((make("zstd"),) if compressed else ()))
    store = LocalStore(tmp_path)
    array = create(RegularGrid((1 << 21,), (chunk * 64,)), codecs=codecs, store=store)
    array[...] = model = np.arange(1 << 21, dtype="i4")
    out = np.zeros_like(model)
    array.read(out=out)
    out[...] = 0
    tracemalloc.start()
    array.read(out=out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(out, model)
    assert peak < out.nbytes / 4
