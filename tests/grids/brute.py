"""Grids and selections to test with, and answers found the slow way."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

import grids


def expanded(axis: grids.Axis) -> list[int]:
    """Every declared edge of an axis, one by one."""
    return [int(edge) for edge in np.repeat(axis.edges, axis.counts)]


def traced(function: Callable[[], Any]) -> tuple[Any, int]:
    """The result of a call, and how many bytes it had in memory at its peak."""
    tracemalloc.start()
    try:
        return function(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def cell_lengths(edges: list[int], extent: int) -> list[int]:
    """The lengths inside of the extent of the cells with the given edges."""
    lengths, start = [], 0
    for edge in edges:
        if start < extent:
            lengths.append(min(edge, extent - start))
        start += edge
    return lengths


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    """An array in which every element is different."""
    return np.arange(np.prod(shape, dtype=int)).reshape(shape)


def blocks(grid: grids.ChunkGrid, array: np.ndarray) -> dict[tuple[int, ...], np.ndarray]:
    """The part of the array in each cell; past the extent, where no one may look, it is -1."""
    found = {}
    for cell in np.ndindex(grid.grid_shape):
        block = np.full(grid.cell_shape(cell), -1)
        extent = grid.cell_extent(cell)
        inside = tuple(slice(o, o + n) for o, n in zip(grid.cell_origin(cell), extent, strict=True))
        block[tuple(slice(n) for n in extent)] = array[inside]
        found[cell] = block
    return found


def gather(
    grid: grids.ChunkGrid, array: np.ndarray, projection: grids.Projection
) -> tuple[np.ndarray, dict[tuple[int, ...], tuple[set[int], bool]]]:
    """Read through a projection; also what each touched cell gave, and whether all of it."""
    source = blocks(grid, array)
    work = np.full(projection.work_shape, -2)
    touched = {}
    cells = [tuple(cell) for cell in projection.cells().tolist()]
    for cell, (inside, where, complete) in zip(cells, projection.parts(), strict=True):
        part = source[cell][inside]
        assert part.shape == work[where].shape
        work[where] = part
        assert cell not in touched
        touched[cell] = (set(part.ravel().tolist()), complete)
    return projection.finish(work), touched


def check(grid: grids.ChunkGrid, selection: Any, mode: str, expected: np.ndarray) -> None:
    """Compare a projection with the expected result, and its account of cells with the elements."""
    array = numbered(grid.shape)
    projection = grid.project(selection, mode)
    result, touched = gather(grid, array, projection)
    assert result.shape == projection.shape == expected.shape
    assert (result == expected).all()

    wanted = set(expected.ravel().tolist())
    members = {
        cell: set(block.ravel().tolist()) - {-1} for cell, block in blocks(grid, array).items()
    }
    assert {cell: got for cell, (got, _) in touched.items()} == {
        cell: elements & wanted for cell, elements in members.items() if elements & wanted
    }
    for cell, (got, complete) in touched.items():
        assert complete == (got == members[cell])
    check_columns(grid, projection)


def check_columns(grid: grids.ChunkGrid, projection: grids.Projection) -> None:
    """Compare the ways in which a projection names cells with one another."""
    cells = projection.cells()
    ids = np.ravel_multi_index(tuple(cells.T), grid.grid_shape) if grid.ndim else np.zeros(1, int)
    assert (np.diff(ids) > 0).all()
    column = numbered(grid.grid_shape)[projection.grid_index]
    assert column.shape == projection.cell_shape
    assert column.ravel().tolist() == ids.tolist()
    assert len(projection) == len(cells)
    shapes = list(projection.block_shapes())
    assert shapes == [grid.cell_shape(cell) for cell in cells.tolist()]

    some = np.random.default_rng(len(cells)).permutation(np.repeat(np.arange(len(cells)), 2))
    assert projection.cells(some).tolist() == cells[some].tolist()
    parts = [repr(part) for part in projection.parts()]
    assert [repr(part) for part in projection.parts(some)] == [parts[i] for i in some]
    assert list(projection.block_shapes(some)) == [shapes[i] for i in some]


edge_lists = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@st.composite
def axes(draw: st.DrawFn) -> grids.Axis:
    if draw(st.booleans()):
        return grids.Axis.bare(draw(st.integers(0, 12)), draw(st.integers(1, 7)))
    edges = draw(edge_lists)
    counts = draw(st.lists(st.integers(1, 3), min_size=len(edges), max_size=len(edges)))
    total = int(np.dot(edges, counts))
    extent = total if draw(st.booleans()) else draw(st.integers(0, total))
    return grids.Axis(extent, edges, counts)


@st.composite
def separable(draw: st.DrawFn, min_axes: int = 0, max_axes: int = 3) -> grids.SeparableGrid:
    return grids.from_axes(draw(st.lists(axes(), min_size=min_axes, max_size=max_axes)))


def slices(size: int) -> st.SearchStrategy[slice]:
    bound = st.none() | st.integers(-size - 2, size + 2)
    step = st.none() | st.integers(-5, 5).filter(bool) | st.sampled_from([-100, 100])
    return st.builds(slice, bound, bound, step)


def indices(size: int) -> st.SearchStrategy[int]:
    return st.integers(-size, size - 1)


def index_lists(size: int) -> st.SearchStrategy[np.ndarray]:
    several = st.lists(indices(size), max_size=8) if size else st.just([])
    return several.map(lambda found: np.array(found, int))


def masks(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    def mask(seed: int, share: float) -> np.ndarray:
        return np.random.default_rng(seed).random(shape) < share

    return st.builds(mask, st.integers(0, 999), st.sampled_from([0, 0.2, 0.7, 1]))


def orthogonal(array: np.ndarray, selection: tuple[Any, ...]) -> np.ndarray:
    """What an orthogonal selection of one entry per axis gives, one axis after the other."""
    for axis in reversed(range(array.ndim)):
        array = array[(slice(None),) * axis + (selection[axis],)]
    return array


def boundaries(axis: grids.Axis) -> list[int]:
    """Where the cells of an axis start, and where the last of them ends."""
    return [0, *itertools.accumulate(expanded(axis)[: axis.ncells])]
