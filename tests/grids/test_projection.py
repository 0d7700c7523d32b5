"""Projections: reading through them gives what numpy gives, from the right cells only."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grids
from grids import Axis, RectilinearGrid, RegularGrid, box_projection
from tests.grids import brute
from tests.grids.brute import traced

BILLION = 10**9


@st.composite
def grid_and_basic(draw):
    grid = draw(brute.separable())
    entries = [
        draw(brute.slices(size) | brute.indices(size) if size else brute.slices(size))
        for size in grid.shape
    ]
    if draw(st.booleans()):
        at, until = sorted(draw(st.tuples(*[st.integers(0, len(entries))] * 2)))
        entries[at:until] = [Ellipsis]
    elif draw(st.booleans()):
        entries = entries[: draw(st.integers(0, len(entries)))]
    for _ in range(draw(st.integers(0, 2))):
        entries.insert(draw(st.integers(0, len(entries))), None)
    if len(entries) == 1 and draw(st.booleans()):
        return grid, entries[0]
    return grid, tuple(entries)


@given(grid_and_basic())
def test_basic(case):
    grid, selection = case
    brute.check(grid, selection, "basic", np.asarray(brute.numbered(grid.shape)[selection]))


@settings(max_examples=50)
@given(grid_and_basic())
def test_basic_without_the_short_cut_for_few_cells(case):
    grid, selection = case
    few, box_projection.FEW = box_projection.FEW, 0
    try:
        brute.check(grid, selection, "basic", np.asarray(brute.numbered(grid.shape)[selection]))
    finally:
        box_projection.FEW = few


@settings(max_examples=50)
@given(grid_and_basic())
def test_basic_in_batches(case):
    grid, selection = case
    batch, box_projection.BATCH = box_projection.BATCH, 2
    try:
        brute.check(grid, selection, "basic", np.asarray(brute.numbered(grid.shape)[selection]))
    finally:
        box_projection.BATCH = batch


@st.composite
def grid_and_orthogonal(draw):
    grid = draw(brute.separable())
    entries = []
    for size in grid.shape:
        kinds = [brute.slices(size), brute.index_lists(size), brute.masks((size,))]
        entries.append(draw(st.one_of(*kinds, brute.indices(size)) if size else st.one_of(*kinds)))
    return grid, tuple(entries)


@given(grid_and_orthogonal())
def test_orthogonal(case):
    grid, selection = case
    expected = brute.orthogonal(brute.numbered(grid.shape), selection)
    brute.check(grid, selection, "orthogonal", np.asarray(expected))
    if sum(isinstance(entry, np.ndarray) for entry in selection) < 2:
        array = brute.numbered(grid.shape)
        try:
            result = grid.project(selection)
        except IndexError:
            at = next(i for i, entry in enumerate(selection) if isinstance(entry, np.ndarray))
            before = sum(isinstance(entry, slice) for entry in selection[:at])
            assert before > 0
            assert array[selection].tolist() == np.moveaxis(expected, before, 0).tolist()
        else:
            assert result.shape == array[selection].shape
            brute.check(grid, selection, "basic", np.asarray(array[selection]))


@st.composite
def grid_and_coordinates(draw):
    grid = draw(brute.separable(min_axes=1).filter(lambda grid: 0 not in grid.shape))
    result = draw(st.lists(st.integers(0, 3), max_size=2))
    entries = []
    for size in grid.shape:
        shape = [n if draw(st.booleans()) else 1 for n in result][draw(st.integers(0, 1)) :]
        count = int(np.prod(shape))
        flat = draw(st.lists(brute.indices(size), min_size=count, max_size=count))
        entries.append(np.array(flat, int).reshape(shape) if shape else draw(brute.indices(size)))
    return grid, tuple(entries)


@given(grid_and_coordinates())
def test_coordinates(case):
    grid, selection = case
    expected = np.asarray(brute.numbered(grid.shape)[selection])
    brute.check(grid, selection, "coordinate", expected)
    brute.check(grid, selection, "basic", expected)


@given(st.data())
def test_masks(data):
    grid = data.draw(brute.separable(min_axes=1))
    mask = data.draw(brute.masks(grid.shape))
    expected = brute.numbered(grid.shape)[mask]
    for mode in ("mask", "coordinate", "basic"):
        brute.check(grid, mask, mode, expected)


@given(st.data())
def test_blocks(data):
    grid = data.draw(brute.separable())
    array, elements, entries = brute.numbered(grid.shape), [], []
    for axis in grid.axes:
        kinds = [st.builds(slice, *[st.none() | st.integers(-axis.ncells, axis.ncells)] * 2)]
        kinds += [brute.indices(axis.ncells)] if axis.ncells else []
        entry = data.draw(st.one_of(*kinds))
        entries.append(entry)
        chosen = np.arange(axis.ncells)[entry]
        bounds = np.minimum(brute.boundaries(axis), axis.extent)
        elements.append([i for c in np.atleast_1d(chosen) for i in range(bounds[c], bounds[c + 1])])
    expected = array[np.ix_(*(np.array(e, int) for e in elements))] if elements else array
    brute.check(grid, tuple(entries), "block", expected)


@given(st.data())
def test_only_needed_selectors_are_arrays(data):
    """A progression is a slice in the cell and in the work array, however it was asked for."""
    axis = data.draw(brute.axes())
    entry = data.draw(brute.slices(axis.extent))
    grid = grids.from_axes([axis])
    index = np.arange(axis.extent)[entry]
    by_slice = list(grid.project(entry).parts())
    for inside, where, complete in by_slice:
        for part in (*inside, *where):
            assert isinstance(part, slice)
            assert part.step >= 1
        assert not complete or inside[0].step == where[0].step == 1
    if entry.step is None or entry.step > 0:
        assert list(grid.project(index).parts()) == by_slice
        assert list(grid.project((index,), "coordinate").parts()) == by_slice


def test_unsorted_and_repeated_indices_of_several_axes():
    grid = RectilinearGrid((6, 7), [[1, 2, 3], 3])
    selection = (np.array([5, 0, 5, -2]), np.array([6, 1, 1, 0]))
    array = brute.numbered(grid.shape)
    brute.check(grid, selection, "orthogonal", array[np.ix_(*selection)])
    brute.check(grid, selection, "coordinate", array[selection])


def test_the_last_of_repeated_points_wins_a_write():
    grid = RegularGrid((6, 6), (3, 3))
    index = (np.array([5, 1, 5, 5]), np.array([0, 1, 0, 0]))
    values, written = np.arange(4), np.full(grid.shape, -1)
    p = grid.project(index, "coordinate")
    for cell, (inside, where, _) in zip(p.cells().tolist(), p.parts(), strict=True):
        block = np.full((3, 3), -1)
        block[inside] = values[where]
        origin = grid.cell_origin(cell)
        written[tuple(slice(o, o + 3) for o in origin)] = block
    assert written[5, 0] == 3
    assert written[1, 1] == 1


def test_finish_is_a_view():
    grid = RegularGrid((4, 5, 6), (2, 2, 2))
    for selection in [(slice(None, None, -1), 3, None), (1, 2, 3), ..., (slice(1), slice(2), 5)]:
        p = grid.project(selection)
        work = np.zeros(p.work_shape)
        result = p.finish(work)
        assert isinstance(result, np.ndarray)
        assert np.shares_memory(result, work)
    p = grid.project((np.zeros((2, 3), int),) * 3)
    work = np.zeros(p.work_shape)
    assert np.shares_memory(p.finish(work), work)


HUGE = RectilinearGrid((3 * BILLION, BILLION, BILLION), [[[1, BILLION], [2, BILLION]], 7, BILLION])


@pytest.mark.parametrize(
    ("selection", "cells"),
    [
        ((slice(BILLION - 2, BILLION + 3), 8, 0), [BILLION - 2, BILLION - 1, BILLION, BILLION + 1]),
        ((slice(5, None, BILLION), 0, 0), [5, BILLION + 2, 2 * BILLION - BILLION // 2 + 2]),
        ((slice(None, None, -BILLION), 0, 0), [999999999, 1499999999, 1999999999]),
        (([3 * BILLION - 1, 0], 0, 0), [0, 2 * BILLION - 1]),
    ],
)
def test_a_projection_costs_what_it_touches(selection, cells):
    def work():
        p = HUGE.project(selection)
        return p.cells(), list(p.parts()), p.cell_shape

    (found, parts, shape), peak = traced(work)
    assert found[:, 0].tolist() == cells
    assert len(parts) == len(cells) == shape[0]
    assert peak < 100_000


def test_a_box_over_everything_costs_nothing_until_parts_are_asked_for():
    def work():
        p = HUGE.project(...)
        return (
            p,
            p.cell_shape,
            list(itertools.islice(p.parts(), 3)),
            p.cells([5, 14 * 142857143 + 3]),
        )

    (p, shape, first, cells), peak = traced(work)
    assert shape == (2 * BILLION, 142857143, 1)
    assert [axis.cells for axis in p.axes] == [slice(0, n, 1) for n in shape]
    assert cells.tolist() == [[0, 5, 0], [14, 3, 0]]
    assert [inside[1] for inside, _, _ in first] == [slice(0, 7, 1)] * 3
    assert [where[1].start for _, where, _ in first] == [0, 7, 14]
    assert peak < 100_000_000


def test_strides_longer_than_cells_are_slices_of_cells_where_they_fit():
    p = RegularGrid((BILLION,), (10,)).project(slice(3, None, 1000))
    assert p.grid_index == (slice(0, 99999901, 100),)
    assert len(p) == 1_000_000


def test_long_and_short_cells_under_one_stride():
    """One long cell holds most indices; only its neighbours that hold one are looked at."""
    axis = Axis(10**12 + 10**6, [1, 10**12, 1], [500_000, 1, 500_000])
    p = grids.from_axes([axis]).project(slice(None, None, 1000))
    (count,), peak = traced(lambda: p.cell_shape)
    assert count == 500 + 1 + 500
    assert peak < 1_000_000
    cells = p.cells()[:, 0]
    assert cells[:3].tolist() == [0, 1000, 2000]
    assert cells[500] == 500_000
    sizes = [where[0].stop - where[0].start for _, where, _ in p.parts()]
    assert sizes[500] == 10**9
    assert sum(sizes) == 10**9 + 1000


def test_a_grid_with_more_cells_than_int64_can_number():
    grid = RegularGrid((10**18,) * 3, (1, 1, 1))
    points = ([5, 10**18 - 1, 5], [7, 0, 7], [10**17, 1, 10**17])
    p = grid.project(points)
    assert p.cells().tolist() == [[5, 7, 10**17], [10**18 - 1, 0, 1]]
    assert [where for _, where, _ in p.parts()] == [(slice(0, 3, 2),), (slice(1, 2, 1),)]
    assert [complete for _, _, complete in p.parts()] == [True, True]
    box = grid.project((5, slice(3, 5), -1))
    assert box.cells().tolist() == [[5, 3, 10**18 - 1], [5, 4, 10**18 - 1]]


def test_cells_larger_than_int64_can_measure_are_never_covered_by_points():
    p = RegularGrid((10**18,) * 4, (10**18,) * 4).project(([1, 2],) * 4)
    assert [complete for _, _, complete in p.parts()] == [False]


def test_positions_out_of_range_are_refused():
    p = RegularGrid((4, 4), (2, 2)).project(...)
    with pytest.raises((IndexError, ValueError)):
        p.cells([4])
    with pytest.raises((IndexError, ValueError)):
        list(p.parts([4]))
