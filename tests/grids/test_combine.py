"""Grids of grids: the same as on expanded edges, without expanding them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import grids
from grids import Axis, GridError, RectilinearGrid, RegularGrid
from tests.grids.brute import axes, boundaries, cell_lengths, expanded, traced

BILLION = 10**9


def line(axis):
    return grids.from_axes([axis])


@given(st.lists(axes(), min_size=1, max_size=5))
def test_concatenate_keeps_every_cell(parts):
    filled = [axis for axis in parts if axis.extent]
    expected = []
    for axis in filled:
        clipped = cell_lengths(expanded(axis), axis.extent)
        expected += expanded(axis)[: axis.ncells] if axis is filled[-1] else clipped
    joined = grids.concatenate([line(axis) for axis in parts]).axes[0]
    assert joined.extent == sum(axis.extent for axis in parts)
    assert expanded(joined)[: joined.ncells] == expected
    if len(parts) > 1 and expected:
        same = len(set(expected)) == 1
        assert joined.regular == same
        assert joined.ncells == len(expanded(joined))


@given(axes(), axes(), axes())
def test_concatenate_leaves_the_other_axes(a, b, other):
    first, second = grids.from_axes([other, a]), grids.from_axes([other, b])
    joined = grids.concatenate([first, second], axis=-1)
    assert joined.axes[0].has_same_cells(other)
    assert joined.axes[1].has_same_cells(grids.concatenate([line(a), line(b)]).axes[0])


@given(axes())
def test_concatenate_one(axis):
    grid = line(axis)
    assert grids.concatenate([grid]) == grid


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([(8, [4]), (6, [4])], RegularGrid((14,), (4,))),
        ([(6, [4]), (8, [4])], RectilinearGrid((14,), [[4, 2, 4, 4]])),
        ([(6, [4]), (0, [4])], RegularGrid((6,), (4,))),
        ([(0, [4]), (6, [4])], RegularGrid((6,), (4,))),
        ([(0, [4]), (0, [5])], RegularGrid((0,), (5,))),
        ([(4, [[4]]), (4, [[4]])], RegularGrid((8,), (4,))),
        ([(3, [[4, 4]]), (3, [[4, 4]])], RectilinearGrid((6,), [[3, 4]])),
        ([(3, [10]), (5, [10])], RectilinearGrid((8,), [[3, 10]])),
    ],
)
def test_concatenate_examples(parts, expected):
    joined = grids.concatenate([grids.parse(chunks, (extent,)) for extent, chunks in parts])
    assert joined == expected


def test_concatenate_thousands_as_runs():
    year = RectilinearGrid((365, 8), [[[30, 12], 5], 8])
    joined = grids.concatenate([year] * 2000)
    assert joined.shape == (730_000, 8)
    assert len(joined.axes[0].edges) == 4000
    hours = grids.concatenate([RegularGrid((1, 8), (1, 8))] * 2000)
    assert hours == RegularGrid((2000, 8), (1, 8))
    large = grids.concatenate([RegularGrid((BILLION + 1,), (1,)), RegularGrid((3,), (2,))])
    assert large == RectilinearGrid((BILLION + 4,), [[[1, BILLION + 1], 2, 2]])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "no grids"),
        ([((4, 5), (2, 5)), ((4, 5), (2, 4))], "grid 1 differs from grid 0 along axis 1"),
        ([((4, 5), (2, 5)), ((4, 6), (2, 6))], "grid 1 differs from grid 0 along axis 1"),
        ([((4, 5), (2, 5)), ((4, 5), (2, [3, 2]))], "grid 1 differs from grid 0 along axis 1"),
        ([((4, 5), (2, 3)), ((4, 5), (2, [3, 2]))], "grid 1 differs from grid 0 along axis 1"),
        ([((4, 5), (2, 5)), ((4,), (2,))], "grid 1 has 1 axes, but grid 0 has 2"),
    ],
)
def test_what_does_not_concatenate(parts, message):
    with pytest.raises(GridError, match=message):
        grids.concatenate([grids.parse(chunks, shape) for shape, chunks in parts], axis=0)


def test_no_such_axis():
    grid = RegularGrid((4,), (2,))
    for axis in (1, -2):
        for function in (grids.concatenate, lambda g, axis: grids.coarsen(g[0], axis, 2)):
            with pytest.raises(GridError, match="does not exist"):
                function([grid, grid], axis=axis)
    with pytest.raises(GridError, match="there are 0 axes"):
        grids.concatenate([RegularGrid((), ())] * 2)


@given(st.data())
def test_refine_joins_the_boundaries(data):
    first = data.draw(axes())
    extent = first.extent
    edges = st.integers(1, 7).map(lambda edge: Axis.bare(extent, edge))
    listed = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=4)
    lists = listed.map(lambda runs: Axis(0, *zip(*runs, strict=True)).resize(extent))
    parts = [first, *data.draw(st.lists(edges | lists, min_size=1, max_size=3))]
    refined = grids.refine([line(axis) for axis in parts]).axes[0]
    assert refined.extent == extent
    end = min(boundaries(axis)[-1] for axis in parts)
    starts = {start for axis in parts for start in boundaries(axis)[: axis.ncells]}
    assert boundaries(refined)[: refined.ncells] == sorted(starts)
    assert boundaries(refined)[-1] == end


@given(axes())
def test_refine_of_equal_grids_changes_nothing(axis):
    assert grids.refine([line(axis)] * 3) == line(axis)


@settings(max_examples=30)
@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 10**15))
def test_refine_by_a_multiple_stays_a_run(edge, times, extent):
    fine, coarse = RegularGrid((extent,), (edge,)), RegularGrid((extent,), (edge * times,))
    refined, peak = traced(lambda: grids.refine([coarse, fine]))
    assert refined.has_same_cells(fine) or refined.axes[0].end == extent == coarse.axes[0].end
    assert len(refined.axes[0].edges) <= 2
    assert peak < 50_000


def test_refine_keeps_runs_between_those_that_differ():
    a = RectilinearGrid((2 * BILLION + 12,), [[[1, BILLION], 4, 4, 4, [1, BILLION]]])
    b = RectilinearGrid((2 * BILLION + 12,), [[[1, BILLION], 6, 6, [1, BILLION]]])
    refined, peak = traced(lambda: grids.refine([a, b]))
    assert refined.chunk_shapes == [[[1, BILLION], 4, 2, 2, 4, [1, BILLION]]]
    assert peak < 50_000


def test_refine_in_two_axes():
    refined = grids.refine([RegularGrid((12, 9), (4, 9)), RectilinearGrid((12, 9), [[6, 6], 3])])
    assert refined == RectilinearGrid((12, 9), [[4, 2, 2, 4], 3])


def test_refine_refuses_to_make_too_many_cells():
    parts = [RegularGrid((10**12,), (2,)), RegularGrid((10**12,), (3,))]

    def skipped():
        with pytest.raises(GridError, match="along axis 0 are too different"):
            grids.refine(parts)

    assert traced(skipped)[1] < 50_000
    with pytest.raises(GridError, match=r"grid 1 has shape \(5,\), but grid 0 \(4,\)"):
        grids.refine([RegularGrid((4,), (2,)), RegularGrid((5,), (2,))])


@given(axes(), st.integers(1, 12))
def test_coarsen_folds_whole_cells(axis, target):
    coarse = grids.coarsen(line(axis), 0, target).axes[0]
    if axis.regular:
        edge = axis.uniform
        assert coarse == Axis.bare(axis.extent, max(1, target // edge) * edge)
        return
    folded = []
    for edge in expanded(axis)[: axis.ncells]:
        if folded and folded[-1] + edge <= target:
            folded[-1] += edge
        else:
            folded.append(edge)
    assert expanded(coarse) == folded


def test_coarsen_a_billion_cells():
    grid = RectilinearGrid((BILLION + 7,), [[[1, BILLION], 7]])
    coarse = grids.coarsen(grid, 0, 1024)
    assert coarse.chunk_shapes == [[[1024, 976562], BILLION % 1024 + 7]]


def test_grids_of_other_kinds_are_not_combined():
    class Odd(grids.ChunkGrid):
        name = "odd"
        shape = grid_shape = (4,)
        cell_origin = cell_shape = cell_extent = project = resize = to_json = None

    for function in (grids.concatenate, grids.refine):
        with pytest.raises(GridError, match="grid 0 does not cut each axis on its own"):
            function([Odd(), RegularGrid((4,), (2,))])


@given(st.lists(axes(), min_size=2, max_size=4))
def test_concatenated_cells_are_found_where_they_were(parts):
    """Each array's cells, one after the other, are the cells of the joined grid."""
    assume(any(axis.extent for axis in parts))
    joined = grids.concatenate([line(axis) for axis in parts]).axes[0]
    owners, first = [], 0
    for axis in parts:
        owners += (first + axis.cell_of(np.arange(axis.extent))).tolist()
        first += axis.ncells
    assert joined.cell_of(np.arange(joined.extent)).tolist() == owners
