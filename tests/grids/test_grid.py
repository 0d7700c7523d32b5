"""What all separable grids do, and what users give as chunks."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import grids
from grids import GridError, RectilinearGrid, RegularGrid
from tests.grids.brute import cell_lengths, expanded, separable


@given(separable())
def test_cells_of_a_grid_are_products(grid):
    cells = np.array(list(np.ndindex(grid.grid_shape)), np.int64).reshape(grid.ncells, grid.ndim)
    assert grid.ndim == len(grid.shape)
    columns = grid.cell_origins(cells), grid.cell_shapes(cells), grid.cell_extents(cells)
    for i, cell in enumerate(cells):
        one = grid.cell_origin(cell), grid.cell_shape(cell), grid.cell_extent(cell)
        assert [list(value) for value in one] == [column[i].tolist() for column in columns]


@given(separable())
def test_chunks_are_what_dask_has(grid):
    expected = [cell_lengths(expanded(a), a.extent) or [0] for a in grid.axes]
    assert grid.chunks == tuple(map(tuple, expected))
    again = grids.from_dask(grid.chunks)
    assert again.shape == grid.shape
    assert again.chunks == grid.chunks


@given(separable())
def test_copies_are_equal(grid):
    for other in (pickle.loads(pickle.dumps(grid)), copy.deepcopy(grid)):
        assert other == grid
        assert hash(other) == hash(grid)
        assert type(other) is type(grid)
    assert eval(repr(grid)) == grid or "..." in repr(grid)


@given(separable(), st.data())
def test_resize_and_append_go_axis_by_axis(grid, data):
    shape = tuple(data.draw(st.integers(0, 30)) for _ in grid.shape)
    resized = grid.resize(shape)
    assert type(resized) is type(grid)
    assert resized.axes == tuple(a.resize(n) for a, n in zip(grid.axes, shape, strict=True))
    for i, axis in enumerate(grid.axes):
        grown = grid.append(i - grid.ndim, 3)
        assert grown.axes[i] == axis.append(3)
        assert grown.axes[:i] + grown.axes[i + 1 :] == grid.axes[:i] + grid.axes[i + 1 :]


def test_kinds_are_different_grids_with_the_same_cells():
    regular, bare = RegularGrid((7, 4), (3, 4)), RectilinearGrid((7, 4), [3, 4])
    listed = RectilinearGrid((7, 4), [[3, 3, 3], 4])
    assert len({regular, bare, listed}) == 3
    assert regular.has_same_cells(bare)
    assert bare.has_same_cells(listed)
    assert regular.is_regular
    assert bare.is_regular
    assert listed.is_regular
    assert not RectilinearGrid((7, 4), [[3, 3, 1], 4]).is_regular
    assert not regular.has_same_cells(RegularGrid((7, 4), (4, 4)))
    assert not regular.has_same_cells(RegularGrid((7,), (3,)))
    assert regular != "regular"


def test_repr_is_short():
    grid = RectilinearGrid((731, 53), [[[100, 3], 66, 365], 53])
    assert repr(grid) == (
        "RectilinearGrid(shape=(731, 53), chunk_shapes=[[[100, 3], 66, 365], 53])"
    )
    long = RectilinearGrid((499_500,), [list(range(1, 1000))])
    assert repr(long) == (
        "RectilinearGrid(shape=(499500,), chunk_shapes=[[1, 2, 3, 4, 5, 6, ...]])"
    )
    assert len(repr(long.axes[0])) < 100


def test_grids_do_not_change():
    for grid in (RegularGrid((7,), (3,)), RectilinearGrid((7,), [[3, 4]])):
        with pytest.raises(AttributeError, match="immutable"):
            grid.shape = (8,)
        with pytest.raises(AttributeError):
            grid.extra = 1


@pytest.mark.parametrize("cell", [(3, 0), (-1, 0), (0,), (0, 0, 0)])
def test_cells_outside_of_the_grid(cell):
    grid = RegularGrid((7, 4), (3, 4))
    for method in (grid.cell_origin, grid.cell_shape, grid.cell_extent):
        with pytest.raises(IndexError, match=r"not in a grid of \(3, 1\)"):
            method(cell)


def test_bad_shapes():
    grid = RectilinearGrid((7, 4), [[3, 4], 4])
    with pytest.raises(GridError, match="must have 2 axes"):
        grid.resize((7,))
    with pytest.raises(GridError, match="extent must be at least 0, not -1"):
        grid.resize((7, -1))
    with pytest.raises(GridError, match="axis 0 has chunks of different lengths"):
        RegularGrid((7, 4), (3, 4)).with_axes(grid.axes)


@pytest.mark.parametrize(
    ("chunks", "shape", "expected"),
    [
        (4, (10, 3), RegularGrid((10, 3), (4, 4))),
        (np.int64(4), (10, 3), RegularGrid((10, 3), (4, 4))),
        (None, (10, 0), RegularGrid((10, 0), (10, 1))),
        (-1, (10, 3), RegularGrid((10, 3), (10, 3))),
        ((4, -1), (10, 3), RegularGrid((10, 3), (4, 3))),
        ([4, None], (10, 3), RegularGrid((10, 3), (4, 3))),
        (np.array([4, 2]), (10, 3), RegularGrid((10, 3), (4, 2))),
        ([[4, 6], 3], (10, 3), RectilinearGrid((10, 3), [[4, 6], 3])),
        (((4, 6), (3,)), (10, 3), RectilinearGrid((10, 3), [[4, 6], [3]])),
        ([[(4, 2), 2], 3], (10, 3), RectilinearGrid((10, 3), [[4, 4, 2], 3])),
        ([np.array([4, 6]), 3], (10, 3), RectilinearGrid((10, 3), [[4, 6], 3])),
        ([[], 512], (0, 512), RectilinearGrid((0, 512), [[], 512])),
        ((), (), RegularGrid((), ())),
        (7, (), RegularGrid((), ())),
        (RegularGrid((4,), (2,)), (4,), RegularGrid((4,), (2,))),
        (RectilinearGrid((4,), [[2, 2]]).to_json(), (4,), RectilinearGrid((4,), [[2, 2]])),
    ],
)
def test_parse(chunks, shape, expected):
    assert grids.parse(chunks, shape) == expected


@pytest.mark.parametrize(
    ("chunks", "shape", "message"),
    [
        ([3, 4, 3], (10,), r"3 entries for 1 axes; write \[\[...\]\]"),
        ([3], (10, 10), "1 entries for 2 axes"),
        ("auto", (10,), "not 'auto'"),
        (0, (10,), "axis 0: a chunk length must be at least 1, not 0"),
        (-2, (10,), "axis 0: a chunk length must be at least 1, not -2"),
        (True, (10,), "axis 0: a chunk length must be an integer, not True"),
        (2.0, (10,), "axis 0: a chunk length must be an integer, not 2.0"),
        ([[4, 4], 3], (10, 3), "axis 0: the chunk lengths sum to 8, but the extent is 10"),
        ([[4, -1], 3], (10, 3), "axis 0: chunk lengths must lie in"),
        (RegularGrid((4,), (2,)), (5,), r"has shape \(4,\), but the array \(5,\)"),
        ({"name": "regular"}, (5,), "lacks 'chunk_shape'"),
    ],
)
def test_parse_refuses(chunks, shape, message):
    with pytest.raises(GridError, match=message):
        grids.parse(chunks, shape)


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (((4, 4, 2), (5,)), RegularGrid((10, 5), (4, 5))),
        (((4, 4, 4),), RegularGrid((12,), (4,))),
        (((2, 4),), RectilinearGrid((6,), [[2, 4]])),
        (((4, 2, 4), (3, 2)), RectilinearGrid((10, 5), [[4, 2, 4], 3])),
        (((0,), (3,)), RegularGrid((0, 3), (1, 3))),
        ((), RegularGrid((), ())),
        ((np.array([3, 3, 1]),), RegularGrid((7,), (3,))),
    ],
)
def test_from_dask(chunks, expected):
    assert grids.from_dask(chunks) == expected


@pytest.mark.parametrize(
    "chunks", [((4, 0, 4),), ((float("nan"),) * 2,), ((4, -1),), (4, 4), (([4, 2],),), ((True,),)]
)
def test_from_dask_refuses(chunks):
    with pytest.raises(GridError, match="dask chunks, axis 0"):
        grids.from_dask(chunks)


def test_dask_agrees():
    da = pytest.importorskip("dask.array")
    array = da.zeros((10, 7), chunks=((3, 4, 3), 3))
    grid = grids.from_dask(array.chunks)
    assert grid == RectilinearGrid((10, 7), [[3, 4, 3], 3])
    assert da.zeros(grid.shape, chunks=grid.chunks).chunks == array.chunks


def test_only_numpy_is_imported():
    script = (
        "import sys, grids; print(sorted({name.partition('.')[0] for name in sys.modules}"
        " - set(sys.stdlib_module_names)))"
    )
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{script}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert found.strip() == "['__main__', 'grids', 'numpy']"
