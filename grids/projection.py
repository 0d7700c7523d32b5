"""A selection laid over a grid: which cells it touches, which part of each, and where that goes.

A box keeps, per axis, which cells are touched and which part of each: its parts are the products
of these, made as they are asked for. Points are in `point_projection`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import chain, product, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grids.axis import Axis, Int64
from grids.grouping import grouped, mesh, ranges, selectors
from grids.selection import Box, Indexed, Strided

Selector = tuple[Any, ...]
Part = tuple[Selector, Selector, bool]

FEW = 16  # cells along an axis up to which plain Python is faster than numpy
BATCH = 1 << 16  # cells along an axis, or parts, that are prepared at a time


class Projection(ABC):
    """What a selection touches: the face that readers and writers use.

    Attributes
    ----------
    shape : tuple of int
        Shape of the final result, as numpy has it for the selection.
    work_shape : tuple of int
        Shape of the work array, which the parts are put into.
    cell_shape : tuple of int
        Shape of `column[grid_index]`; its product is the number of touched cells.
    grid_index : tuple
        Indexes a numpy array with the grid's shape; one entry per touched cell, in C order.

    Examples
    --------
    Gather, which is what a reader does:

    >>> import grids
    >>> grid = grids.RectilinearGrid((7,), [[4, 3]])
    >>> blocks = {(0,): np.arange(4), (1,): np.arange(4, 7)}
    >>> p = grid.project(slice(None, None, -2))
    >>> work = np.empty(p.work_shape, int)
    >>> for cell, (inside, where, complete) in zip(p.cells().tolist(), p.parts()):
    ...     work[where] = blocks[tuple(cell)][inside]
    >>> p.finish(work)
    array([6, 4, 2, 0])
    """

    shape: tuple[int, ...]
    work_shape: tuple[int, ...]

    @property
    @abstractmethod
    def cell_shape(self) -> tuple[int, ...]:
        """Shape of `column[grid_index]`."""

    @property
    @abstractmethod
    def grid_index(self) -> tuple[Any, ...]:
        """Index of the touched cells into an array of the grid's shape."""

    def __len__(self) -> int:
        return math.prod(self.cell_shape)

    @abstractmethod
    def cells(self, indices: ArrayLike | None = None) -> Int64:
        """Return the grid coordinates of the touched cells.

        Parameters
        ----------
        indices : array of int, optional
            Positions among the touched cells; all of them, in C order, by default.

        Returns
        -------
        int64 array of shape (cells, ndim)
        """

    @abstractmethod
    def parts(self, indices: ArrayLike | None = None) -> Iterator[Part]:
        """Iterate over `(inside, where, complete)`, one for each touched cell.

        `inside` indexes the decoded block of the cell and `where` the work array; both have an
        entry for each axis of what they index, and give the same shape. Entries are slices with
        `start`, `stop` and a positive `step` wherever possible, otherwise int64 arrays.
        `complete` says that all of the cell that lies inside of the array is covered.

        Parameters
        ----------
        indices : array of int, optional
            Positions among the touched cells; all of them, in C order, by default.
        """

    @abstractmethod
    def block_shapes(self, indices: ArrayLike | None = None) -> Iterator[tuple[int, ...]]:
        """Iterate over the declared shapes of the touched cells' blocks, as codecs see them."""

    @abstractmethod
    def finish(self, work: NDArray[Any]) -> NDArray[Any]:
        """Return the work array as the final result: a view of it with `shape`."""

    @abstractmethod
    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values for the final result as a work array: `finish` undone.

        Parameters
        ----------
        values : array
            Anything that broadcasts to `shape`; not copied where that can be avoided. An array of
            that very shape gives a view that is as writable as the array, except that points
            spread over several axes may need a copy.

        Raises
        ------
        ValueError
            The values do not broadcast to `shape`.
        """


class Pieces(NamedTuple):
    """Per cell along one axis: the selector inside it, where that goes, and the rest."""

    inside: list[Any]
    where: list[Any]
    complete: list[bool]
    edge: list[int]


_PART, _EDGE = range(3), range(3, 4)  # fields of `Pieces`


class Run(NamedTuple):
    """Touched cells along one axis that follow one another, of each of which the same is taken.

    Attributes
    ----------
    first, last : int
        Which of the touched cells they are; `last` is not one of them.
    inside : slice
        What is taken of each cell.
    where : int
        Where what is taken of the first goes; that of each other goes behind that of the last one.
    length : int
        Elements taken of each cell.
    """

    first: int
    last: int
    inside: slice
    where: int
    length: int


class AxisProjection(ABC):
    """The part of a box projection along one axis.

    Attributes
    ----------
    axis : Axis
    cells : slice or int64 array
        The touched cells, rising.
    count : int
        How many cells are touched.
    """

    axis: Axis
    cells: slice | Int64
    count: int
    _all: Pieces | None = None
    _asked: int = 0  # positions so far; all pieces are made once that has paid off

    def cell_at(self, positions: Int64) -> Int64:
        """Return the cells at the given positions among the touched ones."""
        if isinstance(self.cells, slice):
            return self.cells.start + positions * self.cells.step
        return self.cells[positions]

    def listed(self) -> Iterable[int]:
        """Return the touched cells as Python's integers."""
        cells = self.cells
        if isinstance(cells, slice):
            return range(cells.start, cells.stop, cells.step)
        return cells.tolist()

    def pieces(self, positions: Int64 | None = None) -> Pieces:
        """Return what happens to the touched cells, or to those at some positions among them."""
        if positions is not None:
            return self._pieces(positions)
        if self._all is None:
            self._all = self._pieces(None)
        return self._all

    def picked(self, positions: Int64) -> tuple[Pieces, list[int]]:
        """Return pieces, and where in them each of the positions is found."""
        self._asked += len(positions)
        if self._all is not None or self.count <= min(BATCH, 64 + 4 * self._asked):
            return self.pieces(), positions.tolist()
        distinct, found = np.unique(positions, return_inverse=True)
        return self._pieces(distinct), found.tolist()

    def runs(self) -> list[Run]:
        """Return all touched cells in runs; none where what is taken of them is not in order."""
        return []

    @abstractmethod
    def _pieces(self, positions: Int64 | None) -> Pieces: ...


class StridedProjection(AxisProjection):
    """A progression of indices along one axis."""

    def __init__(self, axis: Axis, item: Strided) -> None:
        self.axis = axis
        self.item = item
        self.cells = cells = _strided_cells(axis, item)
        if isinstance(cells, slice):
            self.count = -(-(cells.stop - cells.start) // cells.step)
        else:
            self.count = len(cells)

    def _pieces(self, positions: Int64 | None) -> Pieces:
        if positions is None:
            if isinstance(self.cells, slice) and self.count <= FEW:
                return self._few_pieces(self.listed())
            positions = np.arange(self.count)
        inside, stop, steps, lo, hi, complete, edges = self._columns(positions)
        return Pieces(
            list(map(slice, inside.tolist(), stop.tolist(), steps.tolist())),
            list(map(slice, lo.tolist(), hi.tolist(), repeat(1))),
            complete.tolist(),
            edges.tolist(),
        )

    def runs(self) -> list[Run]:
        """Return all touched cells in runs."""
        if not self.count:
            return []
        positions = np.arange(self.count)
        if self.axis.uniform and (self.item.step == 1 or self.axis.uniform == 1):
            # All but the first and the last are taken whole.
            positions = positions[[*{0, min(1, self.count - 1), self.count - 1}]]
            positions.sort()
        inside, stop, steps, lo, hi, _, _ = self._columns(positions)
        new = np.ones(len(positions), bool)
        for column in (inside, stop, steps):
            new[1:] &= column[1:] == column[:-1]
        new[1:] = ~new[1:]
        at = np.flatnonzero(new)
        firsts = positions[at]
        lasts = np.append(firsts[1:], self.count)
        slices = map(slice, inside[at].tolist(), stop[at].tolist(), steps[at].tolist())
        columns = firsts.tolist(), lasts.tolist(), slices, lo[at].tolist(), (hi - lo)[at].tolist()
        return list(map(Run, *columns))

    def _columns(self, positions: Int64) -> tuple[NDArray[Any], ...]:
        """Return bounds and step inside of cells, where that goes, if it is all, and edges."""
        first, step, count = self.item.start, self.item.step, self.item.count
        cells = self.cell_at(positions)
        starts, edges = self.axis.start(cells), self.axis.edge(cells)
        lengths = np.minimum(edges, self.axis.extent - starts)
        lo = np.maximum(-((first - starts) // step), 0)
        hi = np.minimum(-((first - starts - lengths) // step), count)
        inside = first + lo * step - starts
        steps = np.where(hi - lo > 1, step, 1)
        stop = inside + (hi - lo - 1) * steps + 1
        return inside, stop, steps, lo, hi, hi - lo == lengths, edges

    def _few_pieces(self, cells: Iterable[int]) -> Pieces:
        """Do the same without numpy, for a box that touches few cells along the axis."""
        first, step, count = self.item.start, self.item.step, self.item.count
        axis = self.axis
        pieces = Pieces([], [], [], [])
        for cell in cells:
            start, edge = axis.start(cell), axis.edge(cell)
            length = min(edge, axis.extent - start)
            lo = max(-((first - start) // step), 0)
            hi = min(-((first - start - length) // step), count)
            inside = first + lo * step - start
            by = step if hi - lo > 1 else 1
            pieces.inside.append(slice(inside, inside + (hi - lo - 1) * by + 1, by))
            pieces.where.append(slice(lo, hi, 1))
            pieces.complete.append(hi - lo == length)
            pieces.edge.append(edge)
        return pieces


class IndexedProjection(AxisProjection):
    """Any indices along one axis, grouped by the cell that holds them."""

    def __init__(self, axis: Axis, item: Indexed) -> None:
        self.axis = axis
        cell = axis.cell_of(item.index)
        self._order, self._bounds, cells = grouped(cell)
        self._index = item.index[self._order]
        self._inside = self._index - axis.start(cell[self._order])
        self.count = len(cells)
        self._made: tuple[Any, Any, NDArray[np.bool_]] | None = None
        unbroken = self.count and int(cells[-1] - cells[0]) == self.count - 1
        self.cells = slice(int(cells[0]), int(cells[-1]) + 1, 1) if unbroken else cells

    def _pieces(self, positions: Int64 | None) -> Pieces:
        if positions is None:
            positions = np.arange(self.count)
        if self._made is None:
            self._made = (
                selectors(self._inside, self._bounds),
                selectors(self._order, self._bounds),
                self._complete(),
            )
        inside, where, complete = self._made
        chosen = positions.tolist()
        return Pieces(
            [inside(i) for i in chosen],
            [where(i) for i in chosen],
            complete[positions].tolist(),
            self.axis.edge(self.cell_at(positions)).tolist(),
        )

    def runs(self) -> list[Run]:
        """Return all touched cells as one run, if they are single elements, in order."""
        single = self.axis.uniform == 1 and self.count == len(self._order)
        if not single or (np.diff(self._order) < 0).any():
            return []
        return [Run(0, self.count, slice(0, 1, 1), 0, 1)]

    def _complete(self) -> NDArray[np.bool_]:
        cell = self.axis.cell_of(np.unique(self._index))
        covered = np.diff(grouped(cell)[1])
        return covered == self.axis.length(self.cell_at(np.arange(self.count)))


class BoxProjection(Projection):
    """A box laid over axes: the parts are the products of the pieces along each axis.

    Attributes
    ----------
    axes : tuple of AxisProjection
    """

    def __init__(self, axes: tuple[Axis, ...], box: Box) -> None:
        self.shape = box.shape
        self.work_shape = tuple([item.count for item in box.items])
        self._finish = box.finish
        self._meshed = sum([type(item) is Indexed for item in box.items]) > 1
        self.axes: tuple[AxisProjection, ...] = tuple([
            StridedProjection(axis, item)
            if isinstance(item, Strided)
            else IndexedProjection(axis, item)
            for axis, item in zip(axes, box.items, strict=True)
        ])  # fmt: skip
        self._cell_shape = tuple([axis.count for axis in self.axes])
        self._count = math.prod(self._cell_shape)

    @property
    def cell_shape(self) -> tuple[int, ...]:
        """How many cells are touched along each axis."""
        return self._cell_shape

    def __len__(self) -> int:
        return self._count

    def _is_every(self, indices: ArrayLike | None) -> bool:
        """Tell whether all touched cells are asked for, in order: then nothing is to be picked."""
        if indices is None:
            return True
        chosen, count = np.asarray(indices), self._count
        if len(chosen) != count or count > BATCH:
            return False
        return count == 1 or bool((chosen == np.arange(count)).all())

    @property
    def grid_index(self) -> tuple[Any, ...]:
        """Slices and arrays that index an array of the grid's shape."""
        return mesh(tuple(axis.cells for axis in self.axes))

    def cells(self, indices: ArrayLike | None = None) -> Int64:
        """Return the coordinates of touched cells; see `Projection.cells`."""
        ndim, shape = len(self.axes), self.cell_shape
        every, count = self._is_every(indices), self._count
        if not count:  # however many there are along the other axes
            return np.empty((0, ndim), np.int64)
        if every and count <= FEW:
            found = list(product(*[axis.listed() for axis in self.axes]))
            return np.array(found, np.int64).reshape(count, ndim)
        if every:
            cells = np.empty((*shape, ndim), np.int64)
            for i, axis in enumerate(self.axes):
                column = axis.cell_at(np.arange(axis.count))
                cells[..., i] = column.reshape((-1,) + (1,) * (ndim - i - 1))
            return cells.reshape(-1, ndim) if ndim else np.empty((1, 0), np.int64)
        chosen = np.asarray(indices, np.int64)
        cells = np.empty((len(chosen), ndim), np.int64)
        if ndim:
            for i, positions in enumerate(np.unravel_index(chosen, shape)):
                cells[:, i] = self.axes[i].cell_at(positions)
        return cells

    def parts(self, indices: ArrayLike | None = None) -> Iterator[Part]:
        """Iterate over the parts; see `Projection.parts`."""
        if indices is None and max(self.cell_shape, default=0) > BATCH:
            return chain.from_iterable(map(self.parts, self._batches()))
        inside, where, complete = self._columns(indices, _PART)
        if self._meshed:
            inside, where = map(mesh, inside), map(mesh, where)
        return zip(inside, where, map(all, complete), strict=True)

    def block_shapes(self, indices: ArrayLike | None = None) -> Iterator[tuple[int, ...]]:
        """Iterate over the declared shapes; see `Projection.block_shapes`."""
        if indices is None and max(self.cell_shape, default=0) > BATCH:
            return chain.from_iterable(map(self.block_shapes, self._batches()))
        return self._columns(indices, _EDGE)[0]

    def _batches(self) -> Iterator[Int64]:
        total = math.prod(self.cell_shape)
        return (np.arange(lo, min(lo + BATCH, total)) for lo in range(0, total, BATCH))

    def _columns(self, indices: ArrayLike | None, fields: range) -> list[Iterator[tuple[Any, ...]]]:
        """Return, for some fields of `Pieces`, an iterator over tuples with an entry per axis."""
        if self._is_every(indices):
            pieces = [axis.pieces() for axis in self.axes]
            return [product(*[piece[field] for piece in pieces]) for field in fields]
        indices = np.asarray(indices, np.int64)
        if not self.axes:
            return [repeat((), len(indices)) for _ in fields]
        columns = np.unravel_index(indices, self.cell_shape)
        found = [axis.picked(at) for axis, at in zip(self.axes, columns, strict=True)]
        return [
            zip(*(map(pieces[field].__getitem__, at) for pieces, at in found), strict=True)
            for field in fields
        ]

    def finish(self, work: NDArray[Any]) -> NDArray[Any]:
        """Return the work array as the result; see `Projection.finish`."""
        return work if self._finish is None else work[self._finish]

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values as a work array; see `Projection.spread`."""
        if values.shape != self.shape:
            values = np.broadcast_to(values, self.shape)
        if self._finish is None:
            return values
        # New axes are taken away again, and axes that were dropped are put back.
        undone = {type(None): 0, int: None}
        return values[tuple([undone.get(type(entry), entry) for entry in self._finish])]


def _strided_cells(axis: Axis, item: Strided) -> slice | Int64:
    """Return the cells that a progression touches, in time of their number (and of the runs)."""
    if not item.count:
        return slice(0, 0, 1)
    first, step = item.start, item.step
    lo, hi = axis.cell_of(first), axis.cell_of(first + (item.count - 1) * step)
    if step == 1 or lo == hi:
        return slice(lo, hi + 1, 1)
    edges, counts = axis.edges, axis.counts
    if len(edges) == 1:
        edge = int(edges[0])
        if step <= edge:
            return slice(lo, hi + 1, 1)
        if step % edge == 0:
            return slice(lo, hi + 1, step // edge)
        return (first + step * np.arange(item.count)) // edge
    if item.count <= len(edges):
        cells = axis.cell_of(first + step * np.arange(item.count))
        return cells[np.flatnonzero(np.diff(cells, prepend=-1))]
    # Every cell as long as a step is touched; shorter ones hold one index each, or none.
    after = np.cumsum(counts)
    short = edges < step
    if not short.any():
        return slice(lo, hi + 1, 1)
    begin, end = np.maximum(after - counts, lo), np.minimum(after, hi + 1)
    whole = ranges(begin[~short], end[~short])
    ends = np.cumsum(edges * counts)
    at = -((first - (ends - edges * counts)[short]) // step)
    until = -((first - ends[short]) // step)
    single = ranges(np.maximum(at, 0), np.minimum(until, item.count))
    return np.sort(np.concatenate([whole, axis.cell_of(first + step * single)]))
