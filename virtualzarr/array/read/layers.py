"""Layers: rows that are stored in several chunkings, of which a read takes the cheapest.

A read is cut along the axis of rows into parts, each of which is read as an array of its own,
straight into the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grids import Axis, SeparableGrid
from grids.grouping import rank_rows
from grids.selection import Box, Indexed, Mode, Points, Strided, resolve
from virtualzarr.array.chunk_source import ChunkSource
from virtualzarr.array.read.output import allocate, check_out
from virtualzarr.config import config

if TYPE_CHECKING:
    from virtualzarr.array.array import Array

Int64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Span:
    """Rows that are cut alike along all other axes.

    Attributes
    ----------
    start, stop : int
        Which rows.
    axes : sequence of Axis
        How stored blocks are cut, of which the cells of the grid may be parts. That of the rows is
        not looked at.
    """

    start: int
    stop: int
    axes: tuple[Axis, ...]


@dataclass(frozen=True, eq=False)
class Chunking:
    """One way in which rows are stored.

    Attributes
    ----------
    source : ChunkSource
    grid : SeparableGrid
        Of the rows that it has, one after the other.
    spans : sequence of Span
        All of these rows.
    """

    source: ChunkSource
    grid: SeparableGrid
    spans: tuple[Span, ...]


@dataclass(frozen=True, eq=False)
class Layer(Chunking):
    """A chunking of some rows of an array.

    Attributes
    ----------
    starts, stops : int64 arrays
        Ranges of rows that it has, in their order.
    """

    starts: Int64
    stops: Int64

    def find(self, rows: Int64) -> tuple[NDArray[np.bool_], Int64]:
        """Tell which rows the layer has, and where among its own those are."""
        begins = np.cumsum(self.stops - self.starts) - (self.stops - self.starts)
        which = np.maximum(np.searchsorted(self.starts, rows, "right") - 1, 0)
        inside = (rows >= self.starts[which]) & (rows < self.stops[which])
        return inside, begins[which] + rows - self.starts[which]


@dataclass(frozen=True, eq=False)
class Layers:
    """All chunkings of an array.

    Attributes
    ----------
    axis : int
        That of the rows.
    base : Chunking
        The one that has all rows.
    others : sequence of Layer
    """

    axis: int
    base: Chunking
    others: tuple[Layer, ...]

    def choose(self, indices: Selected) -> Iterator[tuple[Chunking, Int64, Int64]]:
        """Yield chunkings, and for each the places in a selection and the rows there.

        Parameters
        ----------
        indices : Selected

        Returns
        -------
        iterator of (Chunking, int64 array, int64 array)
            Rows are counted as the chunking does. Each place comes once.
        """
        rows = indices.rows
        free = np.ones(len(rows), bool)
        savings: list[tuple[int, int, Layer, NDArray[np.bool_], Int64]] = []
        for layer in self.others:
            inside, own = layer.find(rows)
            if inside.any():
                saved = self._compare(layer, indices, inside, own)
                savings.append((saved, len(savings), layer, inside, own))
        for saved, _, layer, inside, own in sorted(savings, key=lambda item: -item[0]):
            taken = np.flatnonzero(inside & free)
            # What another layer has taken may have been what made this one worth it.
            if saved > 0 and len(taken) and (
                free[inside].all() or self._compare(layer, indices, inside & free, own) > 0
            ):  # fmt: skip
                free[taken] = False
                yield layer, taken, own[taken]
        if free.any() or not len(rows):
            yield self.base, np.flatnonzero(free), rows[free]

    def _compare(
        self, layer: Layer, indices: Selected, chosen: NDArray[np.bool_], rows: Int64
    ) -> int:
        """Return how much less a layer costs than the base for some of the places."""
        base = compute_cost(self.base, self.axis, indices, chosen, indices.rows)
        return base - compute_cost(layer, self.axis, indices, chosen, rows)


@dataclass(frozen=True, eq=False)
class Selected:
    """The indices of a selection.

    Attributes
    ----------
    rows : int64 array
        Along the axis of rows: of a box its indices there, else one for each point.
    along : sequence of int64 array
        Along all axes; that of rows is not looked at.
    are_points : bool
    itemsize : int
    """

    rows: Int64
    along: tuple[Int64, ...]
    are_points: bool
    itemsize: int


def compute_cost(
    chunking: Chunking, axis: int, indices: Selected, chosen: NDArray[np.bool_], rows: Int64
) -> int:
    """Return what it costs to read some places of a selection, as bytes that are decoded."""
    cost = 0
    for span in chunking.spans:
        inside = chosen & (rows >= span.start) & (rows < span.stop)
        if not inside.any():
            continue
        cells, edges = [], []
        for i, (grid_axis, stored) in enumerate(zip(chunking.grid.axes, span.axes, strict=True)):
            index = rows[inside] if i == axis else indices.along[i]
            if indices.are_points and i != axis:
                index = index[inside]
            touched = grid_axis.cell_of(index)
            if not indices.are_points:
                touched = np.unique(touched)
            cells.append(touched)
            # A cell that is a part of a block costs the whole block.
            if i == axis or grid_axis.has_same_cells(stored):
                edges.append(grid_axis.edge(touched))
            else:
                edges.append(stored.edge(stored.cell_of(grid_axis.start(touched))))
        if indices.are_points:
            rank = rank_rows(cells, [each.ncells for each in chunking.grid.axes])
            _, first = np.unique(rank, return_index=True)
            count = len(first)
            elements = float(np.prod([edge[first].astype(float) for edge in edges], axis=0).sum())
        else:
            count = int(np.prod([len(each) for each in cells], dtype=object))
            elements = float(np.prod([float(edge.sum()) for edge in edges]))
        cost += count * config.tuning.chunk_cost_bytes + int(elements) * indices.itemsize
    return cost


def read_layers(
    array: Array, layers: Layers, selection: Any, mode: Mode, out: NDArray[Any] | None
) -> NDArray[Any]:
    """Read a selection of an array, each row from the chunking that costs least.

    Parameters
    ----------
    array : Array
        Whose settings hold for all chunkings.
    layers : Layers
    selection, mode, out
        As for `Array.read`.
    """
    grid = array.grid
    assert isinstance(grid, SeparableGrid)
    box = resolve(selection, grid.axes, mode)
    items = box.items if isinstance(box, Box) else None
    along = box.coordinates if isinstance(box, Points) else tuple(map(_to_indices, box.items))
    indices = Selected(along[layers.axis], along, items is None, max(array.dtype.itemsize, 1))
    parts = [*layers.choose(indices)]
    if len(parts) == 1 and parts[0][0] is layers.base:
        return _as_array(array, layers.base)._read(selection, mode, out)
    projection = grid.project(selection, mode)
    if out is not None:
        check_out(out, projection.shape, array.dtype)
    work = allocate(projection, array.dtype, array.path) if out is None else projection.spread(out)
    for chunking, places, rows in parts:
        part = _as_array(array, chunking)
        if items is None:
            chosen = [column[places] for column in along]
            chosen[layers.axis] = rows
            work[places] = part._read(tuple(chosen), "coordinate")
            continue
        slices = [_to_slice(item) for item in items]
        slices[layers.axis] = _as_slice(rows)
        where = (slice(None),) * layers.axis + (_as_slice(places),)
        if isinstance(where[-1], slice):
            part._read(tuple(slices), "orthogonal", work[where])
        else:
            work[where] = part._read(tuple(slices), "orthogonal")
    if out is None:
        return projection.finish(work)
    # `spread` gives a view of `out` unless its layout cannot be viewed as the work shape.
    if not np.may_share_memory(work, out):
        out[...] = projection.finish(work)
    return out


def _as_array(array: Array, chunking: Chunking) -> Array:
    """Return the array with one of its chunkings only."""
    metadata = array.metadata
    if isinstance(chunking, Layer):
        metadata = metadata.replace(shape=chunking.grid.shape, grid=chunking.grid)
    return array.replace(metadata, chunking.source)


def _to_indices(item: Strided | Indexed) -> Int64:
    if isinstance(item, Indexed):
        return item.index
    return np.arange(item.start, item.start + item.step * item.count, item.step)


def _to_slice(item: Strided | Indexed) -> Any:
    if isinstance(item, Indexed):
        return item.index
    return slice(item.start, item.start + item.step * item.count, item.step)


def _as_slice(index: Int64) -> Any:
    """Return indices as a slice if they are one."""
    steps = np.diff(index[:2])
    step = int(steps[0]) if len(steps) else 1
    if step < 1 or (len(index) > 2 and (np.diff(index) != step).any()):
        return index
    first = int(index[0]) if len(index) else 0
    return slice(first, first + step * len(index), step)


def join_spans(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return spans with neighbours joined that are cut alike."""
    result: list[Span] = []
    for span in spans:
        if result and result[-1].axes == span.axes and result[-1].stop == span.start:
            span = Span(result.pop().start, span.stop, span.axes)
        result.append(span)
    return tuple(result)
