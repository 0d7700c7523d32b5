"""Chunk grids of Zarr, regular and rectilinear: where chunks lie, and which a selection touches.

Useful alone: it needs numpy only. An axis is kept as runs of equal chunk lengths, so a billion
chunks cost two numbers; see `grids.axis`. A *cell* is a place in the grid, with a chunk or not.

Examples
--------
>>> import grids
>>> grid = grids.parse([[[1, 10**9], 24], 100], (10**9 + 24, 250))
>>> grid
RectilinearGrid(shape=(1000000024, 250), chunk_shapes=[[[1, 1000000000], 24], 100])
>>> projection = grid.project((slice(-30, -20), 7))
>>> projection.shape, projection.cells()[-1].tolist()
((10,), [1000000000, 0])
"""

from grids.axis import Axis, GridError
from grids.box_projection import AxisProjection, BoxProjection
from grids.combine import coarsen, concatenate, refine, simplify
from grids.grid import ChunkGrid, SeparableGrid, from_json, register
from grids.layout import ChunkLayout
from grids.parse import from_dask, parse
from grids.point_projection import PointProjection
from grids.projection import Projection
from grids.rectilinear import RectilinearGrid, from_axes
from grids.regular import RegularGrid
from grids.selection import Mode

__all__ = [
    "Axis",
    "AxisProjection",
    "BoxProjection",
    "ChunkGrid",
    "ChunkLayout",
    "GridError",
    "Mode",
    "PointProjection",
    "Projection",
    "RectilinearGrid",
    "RegularGrid",
    "SeparableGrid",
    "coarsen",
    "concatenate",
    "from_axes",
    "from_dask",
    "from_json",
    "parse",
    "refine",
    "register",
    "simplify",
]
