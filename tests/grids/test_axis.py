"""Axes: cells found by runs are those of the expanded edges."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grids import Axis, GridError
from tests.grids.brute import axes, cell_lengths, edge_lists, expanded

BILLION = 10**9


@given(axes())
def test_cells_are_those_of_the_expanded_edges(axis):
    edges = expanded(axis)
    lengths = cell_lengths(edges, axis.extent)
    starts = np.cumsum([0, *edges]).tolist()
    cells = np.arange(axis.ncells)
    assert axis.ncells == len(lengths)
    assert axis.end == sum(edges)
    assert axis.start(np.arange(axis.ncells + 1)).tolist() == starts[: axis.ncells + 1]
    assert axis.edge(cells).tolist() == edges[: axis.ncells]
    assert axis.length(cells).tolist() == lengths
    owners = np.repeat(cells, lengths).tolist()
    assert axis.cell_of(np.arange(axis.extent)).tolist() == owners
    assert [axis.cell_of(i) for i in range(axis.extent)] == owners
    for cell in cells.tolist():
        got = axis.start(cell), axis.edge(cell), axis.length(cell)
        assert got == (starts[cell], edges[cell], lengths[cell])
        assert {type(value) for value in got} == {int}


@given(axes())
def test_runs_leave_out_what_lies_past_the_extent(axis):
    edges = expanded(axis)
    assert np.repeat(*axis.runs()).tolist() == edges[: axis.ncells]
    assert np.repeat(*axis.runs(clipped=True)).tolist() == cell_lengths(edges, axis.extent)


@given(axes())
def test_equal_edges_make_equal_axes(axis):
    if not axis.regular:
        assert Axis(axis.extent, expanded(axis)) == axis
        assert hash(Axis(axis.extent, expanded(axis))) == hash(axis)
    assert (axis.edges[1:] != axis.edges[:-1]).all()
    assert pickle.loads(pickle.dumps(axis)) == axis


@given(axes(), axes())
def test_same_cells(a, b):
    def cells(axis):
        return axis.extent, expanded(axis)[: axis.ncells]

    assert a.has_same_cells(b) == (cells(a) == cells(b))
    assert a.has_same_cells(Axis(a.extent, expanded(a)))


@given(axes())
def test_uniform_is_the_bare_edge_with_the_same_cells(axis):
    edges = expanded(axis)[: axis.ncells]
    if axis.uniform is None:
        assert len(set(edges)) != 1
    else:
        assert Axis.bare(axis.extent, axis.uniform).has_same_cells(axis)


@given(axes(), st.integers(0, 40))
def test_resize(axis, extent):
    resized = axis.resize(extent)
    assert (resized.extent, resized.regular) == (extent, axis.regular)
    if axis.regular:
        assert resized.uniform == axis.uniform
        return
    before = expanded(axis)
    missing = extent - sum(before)
    assert expanded(resized) == before + ([missing] if missing > 0 else [])


@given(axes(), st.integers(0, 20))
def test_append(axis, length):
    grown = axis.append(length)
    assert grown.extent == axis.extent + length
    if axis.regular:
        assert grown == Axis.bare(grown.extent, axis.uniform)
        return
    before = expanded(axis)[: axis.ncells]
    missing = grown.extent - sum(before)
    assert expanded(grown) == before + ([missing] if missing > 0 else [])


@given(edge_lists, st.lists(st.integers(1, 9), max_size=20))
def test_each_append_to_a_full_axis_is_one_cell(edges, lengths):
    axis = Axis(sum(edges), edges)
    for length in lengths:
        axis = axis.append(length)
    assert expanded(axis) == edges + lengths
    assert axis.ncells == len(edges) + len(lengths)


def test_a_billion_cells_are_two_numbers():
    axis = Axis(BILLION + 8, [1, 8], [BILLION, 1])
    assert axis.edges.nbytes + axis.counts.nbytes == 32
    found = axis.cell_of(np.array([0, BILLION - 1, BILLION, BILLION + 7]))
    assert found.tolist() == [0, BILLION - 1, BILLION, BILLION]
    assert axis.start(found).tolist() == [0, BILLION - 1, BILLION, BILLION]
    assert axis.append(8).counts.tolist() == [BILLION, 2]
    assert axis.resize(3 * BILLION).edges.tolist() == [1, 8, 2 * BILLION - 8]
    assert axis.resize(10).ncells == 10


def test_a_run_may_reach_far_past_the_extent():
    axis = Axis(10, [1], [10**18])
    assert (axis.ncells, axis.end) == (10, 10**18)
    assert axis.runs()[1].tolist() == [10]


@pytest.mark.parametrize(
    ("extent", "edges", "counts", "message"),
    [
        (5, [5, 0], None, "must lie in 1..2\\*\\*62, not be 0"),
        (5, [7, -2], None, "not be -2"),
        (5, [5], [0], "repetitions must lie in"),
        (5, [2, 2], None, "sum to 4, but the extent is 5"),
        (5, [], None, "sum to 0"),
        (5, [2.5, 2.5], None, "must be integers"),
        (5, [True, True], None, "must be integers"),
        (5, [2**70], None, "must be integers below"),
        (5, np.array([2**63], np.uint64), None, "must lie in"),
        (5, [[2, 3]], None, "must be a list"),
        (5, [2, 3], [1], "2 chunk lengths have 1 repetition counts"),
        (5, [2**61], [3], "further than 2\\*\\*62"),
        (5, [2**62, 2**62, 2**62, 2**62, 1], None, "further than 2\\*\\*62"),
        (-1, [2], None, "extent must be at least 0"),
        (2.0, [2], None, "extent must be an integer"),
        (True, [2], None, "extent must be an integer"),
        (2**63, [2], None, "no axis reaches further"),
    ],
)
def test_bad_runs(extent, edges, counts, message):
    with pytest.raises(GridError, match=message):
        Axis(extent, edges, counts)


HUGE = 10**5000  # more digits than Python prints


@pytest.mark.parametrize(
    "edge", [0, -1, True, np.True_, 2.0, "2", None, 2**63, pytest.param(HUGE, id="huge")]
)
def test_bad_bare_edges(edge):
    with pytest.raises(GridError, match="a chunk length"):
        Axis.bare(5, edge)


@pytest.mark.parametrize("length", [-1, 1.0, False])
def test_bad_growth(length):
    with pytest.raises(GridError, match="length to append"):
        Axis(5, [5]).append(length)
    with pytest.raises(GridError, match="the extent"):
        Axis(5, [5]).resize(length)


def test_axes_do_not_change():
    axis = Axis(5, [2, 3])
    with pytest.raises(AttributeError, match="immutable"):
        axis.extent = 6
    for column in (axis.edges, axis.counts, Axis.bare(5, 2).edges):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1


def test_the_caller_keeps_its_arrays():
    edges = np.array([2, 3])
    axis = Axis(5, edges)
    edges[0] = 9
    assert axis.edges.tolist() == [2, 3]
    assert edges.flags.writeable


@settings(max_examples=20)
@given(axes())
def test_repr_says_what_the_axis_is(axis):
    assert eval(repr(axis)) == axis
