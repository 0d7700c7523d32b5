"""Point projection: single elements anywhere in a grid, grouped by the cells that hold them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grids.axis import Axis, Int64
from grids.grouping import build_selectors, group_keys, rank_rows
from grids.projection import Part, Projection
from grids.selection import Points


class PointProjection(Projection):
    """Points grouped by the cell that holds them; the work array is one-dimensional."""

    def __init__(self, axes: tuple[Axis, ...], points: Points) -> None:
        self.shape = points.shape
        self._distinct = points.distinct
        self.work_shape = (len(points.coordinates[0]),)
        self._axes = axes
        # Everything below is in the order of cells, so that each cell's points are one slice of
        # `_inside` and `_order`, and each cell is decoded once however its points are scattered.
        cells = [a.cell_of(x) for a, x in zip(axes, points.coordinates, strict=True)]
        self._order, self._bounds, _ = group_keys(rank_rows(cells, [axis.ncells for axis in axes]))
        self._inside = []
        self._prepared: tuple[Any, list[bool]] | None = None
        self._cells = np.empty((len(self._bounds) - 1, len(axes)), np.int64)
        for i, (axis, cell, index) in enumerate(zip(axes, cells, points.coordinates, strict=True)):
            self._inside.append((index - axis.start(cell))[self._order])
            # All points of a group are in the same cell: the first names it.
            self._cells[:, i] = cell[self._order[self._bounds[:-1]]]

    @property
    def cell_shape(self) -> tuple[int, ...]:
        """The number of touched cells, as a shape."""
        return (len(self._cells),)

    @property
    def grid_index(self) -> tuple[Any, ...]:
        """One column of cell coordinates per axis."""
        return tuple(self._cells.T)

    def cells(self, indices: ArrayLike | None = None) -> Int64:
        """Return the coordinates of touched cells; see `Projection.cells`."""
        if indices is None:
            return self._cells.copy()
        return self._cells[np.asarray(indices, np.int64)]

    def parts(self, indices: ArrayLike | None = None) -> Iterator[Part]:
        """Iterate over the parts; see `Projection.parts`."""
        if self._prepared is None:
            self._prepared = build_selectors(self._order, self._bounds), self._complete()
        where, complete = self._prepared
        bounds = self._bounds.tolist()
        chosen = range(len(self)) if indices is None else np.asarray(indices, np.int64).tolist()
        for i in chosen:
            at = slice(bounds[i], bounds[i + 1])
            yield tuple([inside[at] for inside in self._inside]), (where(i),), complete[i]

    def _complete(self) -> list[bool]:
        """Tell which cells are covered: those with as many points, all different, as elements."""
        # A covered chunk is written without being read first. Volumes are floats, as products of
        # hostile chunk shapes do not fit int64; below 2**53 they are exact.
        lengths = [a.length(self._cells[:, i]) for i, a in enumerate(self._axes)]
        volume = np.prod([length.astype(float) for length in lengths], axis=0)
        complete = (np.diff(self._bounds) >= volume).tolist()
        # As many points as elements are not enough where one may come twice; only for those cells
        # are points compared. Masks cannot repeat a point.
        repeated = [] if self._distinct else [i for i, full in enumerate(complete) if full]
        for i in repeated:
            at = slice(self._bounds[i], self._bounds[i + 1])
            block = tuple(int(length[i]) for length in lengths)
            flat = np.ravel_multi_index([inside[at] for inside in self._inside], block)
            complete[i] = len(np.unique(flat)) == math.prod(block)
        return complete

    def block_shapes(self, indices: ArrayLike | None = None) -> Iterator[tuple[int, ...]]:
        """Iterate over the declared shapes; see `Projection.block_shapes`."""
        cells = self.cells(indices)
        return zip(*(a.edge(cells[:, i]).tolist() for i, a in enumerate(self._axes)), strict=True)

    def finish(self, work: NDArray[Any]) -> NDArray[Any]:
        """Return the work array as the result; see `Projection.finish`."""
        return work.reshape(self.shape)

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values as a work array; see `Projection.spread`."""
        if values.shape != self.shape:
            values = np.broadcast_to(values, self.shape)
        return values.reshape(self.work_shape)
