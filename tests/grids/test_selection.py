"""Selections: what is refused, and the few that mean something else elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from grids import RegularGrid
from tests.grids import brute

GRID = RegularGrid((5, 6), (2, 4))
CUBE = RegularGrid((3, 4, 5), (2, 2, 2))


@pytest.mark.parametrize(
    ("selection", "mode", "message"),
    [
        (5, "basic", "index 5 is out of bounds for axis 0 with size 5"),
        ((0, -7), "basic", "index -7 is out of bounds for axis 1 with size 6"),
        (10**40, "basic", "out of bounds for axis 0"),
        ((0, 0, 0), "basic", "has 2 axes, but 3 were indexed"),
        ((..., 0, ...), "basic", "only one ellipsis"),
        (True, "basic", "a bool is not an index"),
        (np.True_, "orthogonal", "a bool is not an index"),
        (np.array(True), "basic", "a bool is not an index"),
        (1.0, "basic", "is not an index"),
        ("time", "basic", "is not an index"),
        ({1: 2}, "basic", "is not an index"),
        (np.float64(1), "basic", "must hold integers or bools, not float64"),
        (np.array([1.0]), "basic", "must hold integers or bools, not float64"),
        (["a"], "basic", "must hold integers or bools"),
        ([[1], [1, 2]], "basic", "ragged"),
        (slice(None, None, 0), "basic", "bad slice"),
        (slice(0.0, 3), "basic", "bad slice"),
        ([1, 5], "basic", "index 5 is out of bounds for axis 0 with size 5"),
        ([1, -6], "orthogonal", "index -6 is out of bounds for axis 0"),
        (np.array([2**64 - 1], np.uint64), "basic", "out of bounds for axis 0"),
        ((slice(None), np.array([-7], np.int8)), "basic", "index -7 is out of bounds for axis 1"),
        (np.zeros(4, bool), "basic", "mask for axis 0 has 4 entries, but the axis has size 5"),
        (np.zeros((5, 5), bool), "basic", r"mask has shape \(5, 5\)"),
        (np.zeros((5, 5), bool), "mask", r"mask has shape \(5, 5\)"),
        (np.zeros((5, 6), bool), "orthogonal", "must be one-dimensional"),
        ((np.zeros((5, 6), bool), 0), "basic", "must be one-dimensional"),
        ([[0, 1]], "orthogonal", "must be one-dimensional; use .vindex"),
        ([0, 1], "mask", "one boolean array"),
        ((np.zeros(5, bool), 0), "mask", "one boolean array"),
        (([0, 1], slice(None)), "coordinate", "coordinates must be integers"),
        ([0, 1], "coordinate", "has 2 axes, but coordinates for 1"),
        (([0, 1], [0, 1, 2]), "coordinate", "do not broadcast together"),
        (([0, 1], [0, 6]), "coordinate", "index 6 is out of bounds for axis 1"),
        (([0, 1], None), "coordinate", "coordinates must be integers"),
        (3, "block", "index 3 is out of bounds for axis 0 with size 3"),
        ((0, [0, 1]), "block", "integers and slices"),
        (None, "block", "integers and slices"),
        (slice(None, None, 2), "block", "must have step 1"),
        (slice(None, None, -1), "block", "must have step 1"),
    ],
)
def test_refused(selection, mode, message):
    with pytest.raises(IndexError, match=message):
        GRID.project(selection, mode)


@pytest.mark.parametrize(
    "selection",
    [
        ([0, 1], slice(None), [0, 1]),
        ([0, 1], [0, 1]),
        ([0, 1], [0, 1], None),
        (slice(None), np.zeros((2, 2), int)),
    ],
)
def test_arrays_beside_slices_are_ambiguous(selection):
    with pytest.raises(IndexError, match=r"\.oindex .* \.vindex"):
        CUBE.project(selection)


@pytest.mark.parametrize(
    "selection", [(0, slice(None), [0, 1]), (0, None, [0, 1]), (None, 2, slice(2), [0, 1])]
)
def test_an_array_apart_from_an_integer_is_refused_where_numpy_moves_its_axis(selection):
    array = brute.numbered(CUBE.shape)
    assert CUBE.project(selection, "orthogonal").shape != array[selection].shape
    with pytest.raises(IndexError, match=r"moves its axis .* use \.oindex"):
        CUBE.project(selection)


@pytest.mark.parametrize(
    "selection",
    [
        ([0, 1],),
        ([0, 1], slice(None), 3),
        (slice(None), 2, [0, 1]),
        (0, [3, 0], slice(None)),
        (..., [3, 0]),
        ([2, 0], None),
        (0, ..., 1, [3, 0]),
        (1, np.array([[0, 3]]), [[2], [4]]),
        ([0, 1], ..., [0, 1], [3, 3]),
        (np.array([True, False, True]), 1),
        (np.array([True, False, True]), [0, 1], 4),
        ([], 1, 2),
        (np.int8(-1), np.uint64(3), np.array(2)),
        ([False, True, True],),
        ((0, 2), 1),
    ],
)
def test_what_numpy_and_zarr_agree_on(selection):
    brute.check(CUBE, selection, "basic", np.asarray(brute.numbered(CUBE.shape)[selection]))


def test_integer_axes_are_dropped_and_blocks_are_not():
    assert GRID.project(2).shape == (6,)
    assert GRID.project((2, 3)).shape == ()
    assert GRID.project(2, "orthogonal").shape == (6,)
    assert GRID.project((2, 3), "coordinate").shape == ()
    assert GRID.project(2, "block").shape == (1, 6)
    assert GRID.project((slice(1, None), -1), "block").shape == (3, 2)


def test_arrays_without_axes():
    grid = RegularGrid((), ())
    for selection in ((), ..., (...,), (..., None)):
        expected = np.asarray(np.array(0)[selection])
        brute.check(grid, selection, "basic", expected)
    assert grid.project((), "coordinate").shape == ()
    with pytest.raises(IndexError, match="has 0 axes"):
        grid.project(0)


def test_unknown_modes_are_refused():
    with pytest.raises(ValueError, match="unknown selection mode 'fancy'"):
        GRID.project(0, "fancy")


def test_the_selection_is_not_changed():
    index = np.array([-1, 2])
    GRID.project(index)
    assert index.tolist() == [-1, 2]
