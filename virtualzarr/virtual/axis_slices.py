"""Axis slices: which part of which old cell each cell of a new axis is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import Axis

Int64 = NDArray[np.int64]

MISSING_CELL = -1
"""Old cell of a new cell that is no part of any, and reads as the fill value."""


@dataclass(frozen=True, eq=False)
class AxisSlices:
    """Cells of a new axis, each a part of a cell of an old one.

    Attributes
    ----------
    cell : int64 array
        Which old cell each new cell is a part of; -1 for none: it reads as the fill value.
    start : int64 array
        Where within its old cell each new cell begins.
    axis : Axis
        The new axis. Its last cell may reach past its extent, also past the end of its old cell.

    Examples
    --------
    >>> AxisSlices.slice(Axis.bare(10, 4), 3, 9)
    AxisSlices(cell=array([0, 1, 2]), start=array([3, 0, 0]), axis=Axis(6, [1, 4], [1, 2]))
    """

    cell: Int64
    start: Int64
    axis: Axis

    @classmethod
    def identity(cls, axis: Axis) -> AxisSlices:
        """Keep every cell as it is."""
        return cls(np.arange(axis.ncells), np.zeros(axis.ncells, np.int64), axis)

    @classmethod
    def clip(cls, axis: Axis) -> AxisSlices:
        """Keep every cell, but cut off what the last one has past the extent."""
        if axis.end == axis.extent:
            return cls.identity(axis)
        return cls.identity(Axis(axis.extent, *axis.runs(clipped=True)))

    @classmethod
    def slice(cls, axis: Axis, start: int, stop: int) -> AxisSlices:
        """Keep the indices from `start` up to `stop`, which must lie within the axis."""
        extent = max(0, stop - start)
        edge = axis.uniform or 1
        if not extent:
            return cls.identity(Axis.bare(0, edge))
        cell = np.arange(axis.cell_of(start), axis.cell_of(stop - 1) + 1)
        inside = np.zeros(len(cell), np.int64)
        inside[0] = start - axis.start(int(cell[0]))
        # What the last cell has past the end may stay: it is not part of the array.
        if axis.uniform and not inside[0]:
            return cls(cell, inside, Axis.bare(extent, edge))
        return cls(cell, inside, Axis(extent, axis.edge(cell) - inside))

    @classmethod
    def index(cls, axis: Axis, index: int) -> AxisSlices:
        """Keep a single index, in a cell of just that length."""
        cell = np.array([axis.cell_of(index)])
        return cls(cell, index - axis.start(cell), Axis(1, [1]))

    @classmethod
    def refine(cls, axis: Axis, finer: Axis) -> AxisSlices:
        """Cut into the cells of another axis, each of which must lie within one of these."""
        first = finer.start(np.arange(finer.ncells))
        cell = axis.cell_of(first)
        return cls(cell, first - axis.start(cell), finer)

    @classmethod
    def take(cls, axis: Axis, indices: NDArray[Any]) -> AxisSlices:
        """Take indices in any order, any number of times; -1 is a missing element.

        Indices that follow one another within a cell become one cell.

        Examples
        --------
        >>> pieces = AxisSlices.take(Axis.bare(10, 4), np.array([2, 3, 4, -1, 4]))
        >>> pieces.cell, pieces.start, pieces.axis
        (array([ 0,  1, -1,  1]), array([2, 0, 0, 0]), Axis(5, [2, 1, 4], [1, 2, 1]))
        """
        indices = np.asarray(indices, np.int64)
        if not len(indices):
            return cls.identity(Axis.bare(0, axis.uniform or 1))
        missing = indices < 0
        cells = np.where(missing, MISSING_CELL, axis.cell_of(np.maximum(indices, 0)))
        # A new cell begins with another old cell, and where indices do not follow one another.
        begins = np.ones(len(indices), bool)
        begins[1:] = (cells[1:] != cells[:-1]) | ((np.diff(indices) != 1) & ~missing[1:])
        first = np.flatnonzero(begins)
        edges = np.diff(np.append(first, len(indices)))
        cell = cells[first]
        inside = np.where(cell < 0, 0, indices[first] - axis.start(np.maximum(cell, 0)))
        # The last cell may reach past the extent, which leaves its block whole.
        if cell[-1] >= 0:
            edges[-1] = axis.edge(int(cell[-1])) - inside[-1]
        return cls(cell, inside, Axis(len(indices), edges))

    @classmethod
    def pad(cls, axis: Axis, before: int, after: int, edge: int | None = None) -> AxisSlices:
        """Add missing elements before and after, in cells of at most `edge`.

        Parameters
        ----------
        edge : int, optional
            That of the longest cell by default.
        """
        # With cells as long as the others, a regular grid stays regular where they fit.
        edge = edge or int(axis.runs()[0].max(initial=0)) or max(before, after, 1)
        head, tail = _split_length(before, edge)[::-1], _split_length(after, edge)
        # With elements after it, the last cell must end where the old array does: the rest of its
        # block would come into sight.
        edges, counts = axis.runs(clipped=bool(after))
        inner = Axis(axis.extent, edges[: axis.ncells], counts[: axis.ncells])
        edges = np.concatenate([head, inner.edge(np.arange(inner.ncells)), tail])
        if after:
            edges[-1] = edge
        outside = (np.full(len(head), MISSING_CELL), np.full(len(tail), MISSING_CELL))
        cell = np.concatenate([outside[0], np.arange(inner.ncells), outside[1]])
        extent = before + axis.extent + after
        new = Axis(extent, edges) if len(edges) else Axis.bare(0, edge)
        return cls(cell, np.zeros(len(cell), np.int64), new)

    @classmethod
    def grow(cls, axis: Axis, extent: int) -> AxisSlices:
        """Lengthen an axis by missing cells, as long as its longest one.

        Of the last old cell, only what lies within the old extent is kept.

        Examples
        --------
        >>> pieces = AxisSlices.grow(Axis.bare(6, 4), 13)
        >>> pieces.cell, pieces.axis
        (array([ 0,  1, -1, -1, -1]), Axis(13, [4, 2, 4], [1, 2, 2]))
        """
        edge = axis.uniform or int(axis.runs()[0].max(initial=1))
        # The missing part of the last old cell is a cell, so that those after it stay on the grid.
        partial = min(-axis.extent % edge if axis.uniform else 0, extent - axis.extent)
        new = -(-(extent - axis.extent - partial) // edge)
        cell = np.concatenate([np.arange(axis.ncells), np.full(bool(partial) + new, MISSING_CELL)])
        inside = np.zeros(len(cell), np.int64)
        if axis.uniform and not partial:
            return cls(cell, inside, Axis.bare(extent, edge))
        edges, counts = axis.runs(clipped=True)
        added = np.array([[partial, bool(partial)], [edge, new]])
        added = added[added[:, 1] > 0]
        edges = np.concatenate([edges, added[:, 0]])
        return cls(cell, inside, Axis(extent, edges, np.concatenate([counts, added[:, 1]])))

    @cached_property
    def is_missing(self) -> NDArray[np.bool_]:
        """Which new cells are missing."""
        return self.cell < 0

    @cached_property
    def is_contiguous(self) -> bool:
        """Whether the old cells follow one another."""
        n = len(self.cell)
        return not n or bool(self.cell[0] >= 0 and (np.diff(self.cell) == 1).all())


def _split_length(length: int, edge: int) -> Int64:
    count, remainder = divmod(length, edge)
    return np.array([edge] * count + [remainder] * bool(remainder), np.int64)
