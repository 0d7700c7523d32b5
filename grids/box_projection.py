"""Box projection: per axis the touched cells and the part of each, multiplied on demand."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import chain, product, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grids.axis import Axis, Int64
from grids.grouping import build_selectors, concatenate_ranges, group_keys, mesh
from grids.projection import Part, Projection
from grids.selection import Box, Indexed, Strided

FEW = 16  # cells along an axis up to which plain Python is faster than numpy
BATCH = 1 << 16  # cells along an axis, or parts, that are prepared at a time


class Pieces(NamedTuple):
    """Per cell along one axis: the selector inside it, its target, coverage and chunk length."""

    inside: list[Any]
    where: list[Any]
    complete: list[bool]
    edge: list[int]


_PART, _EDGE = range(3), range(3, 4)  # fields of `Pieces`


class Run(NamedTuple):
    """Successive touched cells along one axis with the same selector inside of each.

    Attributes
    ----------
    first, last : int
        The range of positions among the touched cells, without `last`.
    inside : slice
        The selector inside of each cell.
    where : int
        Target of the first cell's elements; those of each further cell follow directly.
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
    _requested: int = 0  # positions so far; all pieces are computed once that pays off

    def cell_at(self, positions: Int64) -> Int64:
        """Return the cells at the given positions among the touched ones."""
        if isinstance(self.cells, slice):
            return self.cells.start + positions * self.cells.step
        return self.cells[positions]

    def iterate_cells(self) -> Iterable[int]:
        """Return the touched cells as Python integers."""
        cells = self.cells
        if isinstance(cells, slice):
            return range(cells.start, cells.stop, cells.step)
        return cells.tolist()

    def pieces(self, positions: Int64 | None = None) -> Pieces:
        """Return the pieces of the touched cells, or of those at some positions among them."""
        if positions is not None:
            return self._pieces(positions)
        if self._all is None:
            self._all = self._pieces(None)
        return self._all

    def pick_pieces(self, positions: Int64) -> tuple[Pieces, list[int]]:
        """Return pieces, and the index of each of the positions in them."""
        # Readers ask for batches of cells. All pieces at once are computed once and then only
        # indexed, which pays unless few cells of a very long axis are requested in total.
        self._requested += len(positions)
        if self._all is not None or self.count <= min(BATCH, 64 + 4 * self._requested):
            return self.pieces(), positions.tolist()
        distinct, inverse = np.unique(positions, return_inverse=True)
        return self._pieces(distinct), inverse.tolist()

    def runs(self) -> list[Run]:
        """Return all touched cells in runs; none where their elements are not in order."""
        return []

    @abstractmethod
    def _pieces(self, positions: Int64 | None) -> Pieces: ...


class StridedProjection(AxisProjection):
    """A progression of indices along one axis."""

    def __init__(self, axis: Axis, item: Strided) -> None:
        self.axis = axis
        self.item = item
        self.cells = cells = _find_strided_cells(axis, item)
        if isinstance(cells, slice):
            self.count = -(-(cells.stop - cells.start) // cells.step)
        else:
            self.count = len(cells)

    def _pieces(self, positions: Int64 | None) -> Pieces:
        if positions is None:
            if isinstance(self.cells, slice) and self.count <= FEW:
                return self._few_pieces(self.iterate_cells())
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
            # All but the first and the last are taken whole, so of a billion cells three columns
            # are enough: first, second, last. They become runs by the comparison below.
            positions = positions[[*{0, min(1, self.count - 1), self.count - 1}]]
            positions.sort()
        inside, stop, steps, lo, hi, _, _ = self._columns(positions)
        # A run ends where anything differs from the cell before.
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
        """Return bounds and step inside of cells, target bounds, coverage, and chunk lengths."""
        # Which numbers `lo` to `hi` of the progression lie in a cell that starts at `s` and ends at
        # `e`: first + lo * step >= s gives lo = ceil((s - first) / step), and likewise hi from e.
        # `-(x // step)` is that ceiling in integers; floats would be inexact beyond 2**53.
        first, step, count = self.item.start, self.item.step, self.item.count
        cells = self.cell_at(positions)
        starts, edges = self.axis.start(cells), self.axis.edge(cells)
        lengths = np.minimum(edges, self.axis.extent - starts)
        lo = np.maximum(-((first - starts) // step), 0)
        hi = np.minimum(-((first - starts - lengths) // step), count)
        inside = first + lo * step - starts
        # A single element gets step 1, so that cells which differ in nothing else form one run and
        # slices stay within the block.
        steps = np.where(hi - lo > 1, step, 1)
        stop = inside + (hi - lo - 1) * steps + 1
        return inside, stop, steps, lo, hi, hi - lo == lengths, edges

    def _few_pieces(self, cells: Iterable[int]) -> Pieces:
        """Return the same as `_pieces`, without numpy."""
        # For up to `FEW` cells the dozen numpy calls of `_columns` cost more than this loop.
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
        # Indices grouped by cell, in the order given within each: `_order` is where their values
        # go in the result, `_inside` where they come from in the block.
        cell = axis.cell_of(item.index)
        self._order, self._bounds, cells = group_keys(cell)
        self._index = item.index[self._order]
        self._inside = self._index - axis.start(cell[self._order])
        self.count = len(cells)
        self._prepared: tuple[Any, Any, NDArray[np.bool_]] | None = None
        # As a slice, the cells index columns of references without copying them.
        unbroken = self.count and int(cells[-1] - cells[0]) == self.count - 1
        self.cells = slice(int(cells[0]), int(cells[-1]) + 1, 1) if unbroken else cells

    def _pieces(self, positions: Int64 | None) -> Pieces:
        if positions is None:
            positions = np.arange(self.count)
        if self._prepared is None:
            self._prepared = (
                build_selectors(self._inside, self._bounds),
                build_selectors(self._order, self._bounds),
                self._complete(),
            )
        inside, where, complete = self._prepared
        chosen = positions.tolist()
        return Pieces(
            [inside(i) for i in chosen],
            [where(i) for i in chosen],
            complete[positions].tolist(),
            self.axis.edge(self.cell_at(positions)).tolist(),
        )

    def runs(self) -> list[Run]:
        """Return all touched cells as one run, if they are single elements, in order."""
        # That is what long time axes with one step per chunk give; other index arrays rarely
        # repeat a pattern from cell to cell.
        single = self.axis.uniform == 1 and self.count == len(self._order)
        if not single or (np.diff(self._order) < 0).any():
            return []
        return [Run(0, self.count, slice(0, 1, 1), 0, 1)]

    def _complete(self) -> NDArray[np.bool_]:
        # Distinct indices only: one that comes twice does not cover two elements.
        cell = self.axis.cell_of(np.unique(self._index))
        covered = np.diff(group_keys(cell)[1])
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

    def _is_full(self, indices: ArrayLike | None) -> bool:
        """Tell whether the indices are those of all touched cells, in order."""
        if indices is None:
            return True
        # Worth a comparison: products of the pieces are far cheaper than looking each one up.
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
        is_full, count = self._is_full(indices), self._count
        # An empty axis first: along the others there may be more cells than memory.
        if not count:
            return np.empty((0, ndim), np.int64)
        if is_full and count <= FEW:
            few = list(product(*[axis.iterate_cells() for axis in self.axes]))
            return np.array(few, np.int64).reshape(count, ndim)
        if is_full:
            # Broadcasting writes each axis' column along all others: C order without index arrays.
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
        # Pieces are Python objects: of a long axis they are computed a batch at a time.
        if indices is None and max(self.cell_shape, default=0) > BATCH:
            return chain.from_iterable(map(self.parts, self._batches()))
        inside, where, complete = self._columns(indices, _PART)
        if self._meshed:
            inside, where = map(mesh, inside), map(mesh, where)
        return zip(inside, where, map(all, complete), strict=True)

    def block_shapes(self, indices: ArrayLike | None = None) -> Iterator[tuple[int, ...]]:
        """Iterate over the chunk shapes; see `Projection.block_shapes`."""
        if indices is None and max(self.cell_shape, default=0) > BATCH:
            return chain.from_iterable(map(self.block_shapes, self._batches()))
        return self._columns(indices, _EDGE)[0]

    def _batches(self) -> Iterator[Int64]:
        total = math.prod(self.cell_shape)
        return (np.arange(lo, min(lo + BATCH, total)) for lo in range(0, total, BATCH))

    def _columns(self, indices: ArrayLike | None, fields: range) -> list[Iterator[tuple[Any, ...]]]:
        """Return, for some fields of `Pieces`, an iterator over tuples with an entry per axis."""
        # `product`, `map` and `zip` run in C: between them and the reader there is no Python code
        # per cell.
        if self._is_full(indices):
            pieces = [axis.pieces() for axis in self.axes]
            return [product(*[piece[field] for piece in pieces]) for field in fields]
        indices = np.asarray(indices, np.int64)
        if not self.axes:
            return [repeat((), len(indices)) for _ in fields]
        columns = np.unravel_index(indices, self.cell_shape)
        picked = [axis.pick_pieces(at) for axis, at in zip(self.axes, columns, strict=True)]
        return [
            zip(*(map(pieces[field].__getitem__, at) for pieces, at in picked), strict=True)
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
        # New axes are dropped again, and axes that an integer dropped are restored with length 1;
        # reversals undo themselves.
        inverse = {type(None): 0, int: None}
        return values[tuple([inverse.get(type(entry), entry) for entry in self._finish])]


def _find_strided_cells(axis: Axis, item: Strided) -> slice | Int64:
    """Return the cells that a progression touches, in time linear in their number and the runs."""
    if not item.count:
        return slice(0, 0, 1)
    first, step = item.start, item.step
    lo, hi = axis.cell_of(first), axis.cell_of(first + (item.count - 1) * step)
    if step == 1 or lo == hi:
        return slice(lo, hi + 1, 1)
    # One chunk length: steps shorter than it touch every cell, multiples of it every n-th, and
    # longer ones at most one index per cell, so that their number bounds the work.
    edges, counts = axis.edges, axis.counts
    if len(edges) == 1:
        edge = int(edges[0])
        if step <= edge:
            return slice(lo, hi + 1, 1)
        if step % edge == 0:
            return slice(lo, hi + 1, step // edge)
        return (first + step * np.arange(item.count)) // edge
    if item.count <= len(edges):
        # Fewer indices than runs: cheapest is to look each up, and drop repeated cells.
        cells = axis.cell_of(first + step * np.arange(item.count))
        return cells[np.flatnonzero(np.diff(cells, prepend=-1))]
    # Otherwise run by run: every cell at least as long as a step is touched, which is a range of
    # cells; shorter ones hold one index each, or none, so there the indices are looked up.
    after = np.cumsum(counts)
    short = edges < step
    if not short.any():
        return slice(lo, hi + 1, 1)
    begin, end = np.maximum(after - counts, lo), np.minimum(after, hi + 1)
    long_cells = concatenate_ranges(begin[~short], end[~short])
    # The numbers of the progression that lie in each run of short cells, by the ceiling division
    # of `StridedProjection._columns`.
    ends = np.cumsum(edges * counts)
    at = -((first - (ends - edges * counts)[short]) // step)
    until = -((first - ends[short]) // step)
    short_positions = concatenate_ranges(np.maximum(at, 0), np.minimum(until, item.count))
    return np.sort(np.concatenate([long_cells, axis.cell_of(first + step * short_positions)]))
