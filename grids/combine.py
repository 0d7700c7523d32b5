"""Concatenation, refinement and coarsening of grids, on runs of equal chunk lengths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from grids.axis import Axis, GridError, Int64, as_int
from grids.grid import ChunkGrid, SeparableGrid, normalize_axis
from grids.grouping import concatenate_ranges
from grids.rectilinear import RectilinearGrid, from_axes
from grids.regular import RegularGrid

REFINE_LIMIT = 10_000_000  # cells that `refine` computes one by one at most


def concatenate(grids: Sequence[ChunkGrid], axis: int = 0) -> SeparableGrid:
    """Return the grid of arrays that are joined along an axis, with the cells of all of them.

    Parameters
    ----------
    grids : sequence of ChunkGrid
        Grids of the arrays, with the same cells along all other axes. Along `axis`, each adds its
        cells with the lengths that lie inside of its array; the last that has any cells adds them
        as declared.
    axis : int
        The axis along which the arrays are joined.

    Returns
    -------
    RegularGrid if a regular grid has these cells, otherwise RectilinearGrid

    Raises
    ------
    GridError
        The grids differ along another axis; the message names the axis and the grid.

    Examples
    --------
    >>> parts = [RegularGrid((8, 5), (4, 5)), RegularGrid((6, 5), (4, 5))]
    >>> concatenate(parts, axis=0)
    RegularGrid(shape=(14, 5), chunk_shape=(4, 5))
    >>> concatenate(parts[::-1], axis=0)
    RectilinearGrid(shape=(14, 5), chunk_shapes=[[4, 2, 4, 4], 5])
    """
    parts = _require_separable(grids)
    axis = normalize_axis(axis, parts[0].ndim)
    if len(parts) == 1:
        return parts[0]
    first = parts[0].axes
    for number, grid in enumerate(parts[1:], 1):
        for other, (a, b) in enumerate(zip(first, grid.axes, strict=True)):
            if other != axis and not (a is b or a.has_same_cells(b)):
                raise GridError(
                    f"grid {number} differs from grid 0 along axis {other}: {b} is not {a}"
                )
    joined = _join_axes([grid.axes[axis] for grid in parts])
    return simplify([*first[:axis], joined, *first[axis + 1 :]])


def _require_separable(grids: Iterable[ChunkGrid]) -> list[SeparableGrid]:
    parts: list[SeparableGrid] = []
    for number, grid in enumerate(grids):
        if not isinstance(grid, SeparableGrid):
            raise GridError(f"grid {number} does not cut each axis on its own: {grid!r}")
        if parts and grid.ndim != parts[0].ndim:
            raise GridError(f"grid {number} has {grid.ndim} axes, but grid 0 has {parts[0].ndim}")
        parts.append(grid)
    if not parts:
        raise GridError("there are no grids to combine")
    return parts


def simplify(axes: Sequence[Axis]) -> RegularGrid | RectilinearGrid:
    """Return the product of axes: a `RegularGrid` where one has the same cells.

    Examples
    --------
    >>> simplify([Axis(7, [4, 4]), Axis.bare(5, 5)])
    RegularGrid(shape=(7, 5), chunk_shape=(4, 5))
    """
    edges = [axis.uniform for axis in axes]
    if None in edges:
        return from_axes(axes)
    return from_axes([Axis.bare(a.extent, e) for a, e in zip(axes, edges, strict=True) if e])


def _join_axes(axes: list[Axis]) -> Axis:
    filled = [axis for axis in axes if axis.extent]
    if not filled:
        return axes[-1]
    # Inside, a cell must end where its array ends: the next array's elements follow. Only the last
    # array's chunks may go on past the extent, as they do in it alone.
    edges, counts = np.concatenate([_clip_runs(filled[:-1]), filled[-1].runs()], axis=1)
    joined = Axis(sum(axis.extent for axis in filled), edges, counts)
    if joined.uniform and all(axis.regular for axis in filled):
        return Axis.bare(joined.extent, joined.uniform)
    return joined


def _clip_runs(axes: list[Axis]) -> Int64:
    """Return rows of chunk lengths and counts: the runs of the axes, inside of their arrays."""
    if not axes:
        return np.empty((2, 0), np.int64)
    uniform = [axis.uniform for axis in axes]
    if None in uniform:
        each = zip(*(axis.runs(clipped=True) for axis in axes), strict=True)
        return np.stack([np.concatenate(column) for column in each])
    # Thousands of files with regular chunks are the usual input: two runs each (the full chunks,
    # and the clipped one) as columns at once, interleaved, then without those that are empty.
    edges = np.array(uniform, np.int64)
    full, remainder = np.divmod(np.array([axis.extent for axis in axes]), edges)
    runs = np.stack([edges, remainder, full, remainder > 0], axis=1).reshape(-1, 2, 2)
    flat = runs.swapaxes(0, 1).reshape(2, -1)
    return flat[:, flat[1] > 0]


def refine(grids: Sequence[ChunkGrid]) -> SeparableGrid:
    """Return the common refinement: the coarsest grid whose cells each lie in one cell of each.

    Parameters
    ----------
    grids : sequence of ChunkGrid
        Grids of one shape.

    Returns
    -------
    RegularGrid if a regular grid has these cells, otherwise RectilinearGrid
        Last cells reach past the extent as far as the last cells of all of the grids do.

    Raises
    ------
    GridError
        The shapes differ, or more than ten million cells with an irregular pattern would result.

    Examples
    --------
    >>> refine([RegularGrid((12,), (4,)), RegularGrid((12,), (6,))])
    RectilinearGrid(shape=(12,), chunk_shapes=[[4, 2, 2, 4]])
    >>> refine([RegularGrid((10**12,), (4,)), RegularGrid((10**12,), (8,))])
    RegularGrid(shape=(1000000000000,), chunk_shape=(4,))
    """
    parts = _require_separable(grids)
    for number, grid in enumerate(parts):
        if grid.shape != parts[0].shape:
            raise GridError(f"grid {number} has shape {grid.shape}, but grid 0 {parts[0].shape}")
    if all(grid.has_same_cells(parts[0]) for grid in parts):
        return parts[0]
    refined = list(parts[0].axes)
    for i in range(len(refined)):
        for axis in dict.fromkeys(grid.axes[i] for grid in parts[1:]):
            refined[i] = _refine_axis(refined[i], axis, i)
    return simplify(refined)


def _refine_axis(a: Axis, b: Axis, number: int) -> Axis:
    """Return the axis with the boundaries of both, as runs wherever those of one suffice."""
    if a.has_same_cells(b):
        return a
    # Segment by segment, where both have one chunk length each: there the boundaries of `a` and of
    # `b` are two lattices, and often one contains the other, so that its run is the answer.
    (a_edges, a_counts), (b_edges, b_counts) = a.runs(), b.runs()
    end = min(int(a_edges @ a_counts), int(b_edges @ b_counts))
    a_ends, b_ends = np.cumsum(a_edges * a_counts), np.cumsum(b_edges * b_counts)
    a_starts, b_starts = a_ends - a_edges * a_counts, b_ends - b_edges * b_counts

    starts = np.union1d(a_starts, b_starts)
    ends = np.append(starts[1:], end)
    in_a = a_starts.searchsorted(starts, side="right") - 1
    in_b = b_starts.searchsorted(starts, side="right") - 1
    a_edge, b_edge = a_edges[in_a], b_edges[in_b]
    # The first boundary of each lattice at or after the start of the segment, then strictly after.
    a_first = starts + (a_starts[in_a] - starts) % a_edge
    b_first = starts + (b_starts[in_b] - starts) % b_edge
    a_inner = np.where(a_first == starts, a_first + a_edge, a_first)
    b_inner = np.where(b_first == starts, b_first + b_edge, b_first)
    # `b` alone cuts a segment if `a` has no boundary inside of it, or if the boundaries of `a` are
    # among those of `b`: its chunk length is a multiple, in phase. And the other way round.
    by_b = (a_inner >= ends) | ((a_edge % b_edge == 0) & ((a_first - b_first) % b_edge == 0))
    by_a = (b_inner >= ends) | ((b_edge % a_edge == 0) & ((b_first - a_first) % a_edge == 0))
    mixed = ~(by_a | by_b)
    singles = _cut_mixed(starts, ends, [(a_inner, a_edge), (b_inner, b_edge)], mixed, number)
    first, edge = np.where(by_b, b_inner, a_inner), np.where(by_b, b_edge, a_edge)
    runs = _cut_evenly(*(column[~mixed] for column in (starts, ends, first, edge)))
    at, edges, counts = (np.concatenate(pair) for pair in zip(singles, runs, strict=True))
    order = np.argsort(at, kind="stable")
    refined = Axis(a.extent, edges[order], counts[order])
    if a.regular and b.regular and refined.uniform:
        return Axis.bare(a.extent, refined.uniform)
    return refined


Cells = tuple[Int64, Int64, Int64]  # start, edge, count of each run


def _cut_mixed(
    starts: Int64, ends: Int64, lattices: list[tuple[Int64, Int64]], mixed: np.ndarray, number: int
) -> Cells:
    """Cut the mixed segments at the boundaries of both axes, one cell at a time."""
    # Lattices such as 4 and 6 give a pattern (4, 2, 2, 4) that is no run. It is listed, up to a
    # limit that is checked on the numbers before any array of that size is allocated.
    lo, hi = starts[mixed], ends[mixed]
    cuts = [lo]
    for first, edge in lattices:
        inner, step = first[mixed], edge[mixed]
        sizes = -((inner - hi) // step)
        if sizes.astype(float).sum() > REFINE_LIMIT:
            raise GridError(f"the chunks along axis {number} are too different to refine the grids")
        # The k-th cut of a segment is its first one plus k chunk lengths.
        nth = concatenate_ranges(np.zeros_like(sizes), sizes)
        cuts.append(np.repeat(inner, sizes) + nth * np.repeat(step, sizes))
    at = np.unique(np.concatenate(cuts))
    if not len(at):
        return at, at, at
    # A cell ends at the next cut, or where its segment does if that comes first: segments that are
    # not mixed lie in between.
    after = np.append(at[1:], hi[-1])
    segment_end = hi[lo.searchsorted(at, side="right") - 1]
    return at, np.minimum(after, segment_end) - at, np.ones_like(at)


def _cut_evenly(starts: Int64, ends: Int64, first: Int64, edge: Int64) -> Cells:
    """Cut segments at `first`, `first + edge`, ...: a cell before, a run, and the remainder."""
    # A segment ends where a run of the other axis starts, which need not be on this lattice: the
    # remainder is then a cell, which the next segment does not continue.
    first = np.minimum(first, ends)
    count = (ends - first) // edge
    last = first + count * edge
    at = np.concatenate([starts, first, last])
    edges = np.concatenate([first - starts, edge, ends - last])
    counts = np.concatenate([np.ones_like(starts), count, np.ones_like(starts)])
    real = (edges > 0) & (counts > 0)
    return at[real], edges[real], counts[real]


def coarsen(grid: ChunkGrid, axis: int, target: int) -> SeparableGrid:
    """Return the grid with neighbouring cells merged along an axis.

    Cells are merged, from the first on, as long as their chunk lengths sum to no more than
    `target`; a chunk longer than that stays alone. On a regular axis the chunk length becomes a
    multiple of itself.

    Parameters
    ----------
    grid : ChunkGrid
    axis : int
    target : int
        The longest chunk length that merged cells may have.

    Examples
    --------
    >>> coarsen(RectilinearGrid((34, 5), [[[1, 25], 9], 5]), axis=0, target=10)
    RectilinearGrid(shape=(34, 5), chunk_shapes=[[10, 10, 5, 9], 5])
    """
    (part,) = _require_separable([grid])
    axis = normalize_axis(axis, part.ndim)
    target = as_int(target, "the target", 1)
    axes = list(part.axes)
    axes[axis] = _coarsen_axis(axes[axis], target)
    return part.with_axes(axes)


def _coarsen_axis(axis: Axis, target: int) -> Axis:
    if axis.regular:
        edge = int(axis.edges[0])
        return Axis.bare(axis.extent, edge * max(1, target // edge))
    # Runs are merged greedily without being expanded: `filled` is the length of the cell that is
    # still open. Each run first fills that, then gives equal groups, then opens the next cell.
    merged: list[tuple[int, int]] = []
    filled = 0
    for edge, count in zip(*(column.tolist() for column in axis.runs()), strict=True):
        if filled:
            taken = min(count, max(0, target - filled) // edge)
            filled += taken * edge
            count -= taken
            if not count:
                continue
            merged.append((filled, 1))
        size = max(1, target // edge)
        groups = (count - 1) // size  # the last one may have room for a shorter chunk
        if groups:
            merged.append((size * edge, groups))
        filled = (count - groups * size) * edge
    if filled:
        merged.append((filled, 1))
    edges, counts = zip(*merged, strict=True) if merged else ((), ())
    return Axis(axis.extent, edges, counts)
