"""Common chunks: cells into which all arrays can be cut, so that they can be joined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np

import grids
from grids import Axis, GridError
from virtualzarr.array import Array
from virtualzarr.combine.compatibility import format_axis, has_same_cells
from virtualzarr.config import config
from virtualzarr.errors import UnsupportedError
from virtualzarr.manifest import Manifest
from virtualzarr.virtual.axis_slices import AxisSlices
from virtualzarr.virtual.rechunk import apply_axis_slices, get_axes, with_planes

Axes = tuple[Axis, ...]


def find_common_chunks(arrays: Sequence[Array], axis: int | None) -> Axes:
    """Return axes into whose cells those of all arrays can be cut; `axis` may be any of them.

    Arrays that were never written can be cut in any way, and have no say.

    Raises
    ------
    UnsupportedError
        There would be too many cells.
    """
    first = arrays[0]
    # The usual case: one archive, one chunk shape. It costs a comparison of axes, no arrays.
    if all(has_same_cells(array.grid, first.grid, axis) for array in arrays[1:]):
        return get_axes(first)
    first = next((array for array in arrays if array.manifest.nrefs), first)
    baseline = get_axes(first)
    # Thousands of inputs have few kinds of grids: each kind is refined once.
    distinct: dict[Axes, None] = {}
    for array in arrays:
        if not has_same_cells(array.grid, first.grid, axis) and array.manifest.nrefs:
            distinct.setdefault(get_axes(array))
    if not distinct:
        return baseline
    common = list(baseline)
    for i, chunks in enumerate(baseline):
        if i == axis:
            continue
        try:
            parts = dict.fromkeys([chunks, *(axes[i] for axes in distinct)])
            common[i] = grids.refine([grids.from_axes([part]) for part in parts]).axes[0]
        except GridError as error:
            raise UnsupportedError(
                f"chunks along {format_axis(first.metadata, i)} are too different: {error}"
            ) from error
    along = len(arrays) if axis is None else sum(get_axes(array)[axis].ncells for array in arrays)
    # Checked before anything is allocated: two chunk lengths without a common divisor would give a
    # cell for nearly every element.
    cells = along * math.prod(chunks.ncells for i, chunks in enumerate(common) if i != axis)
    most = config.limits.derived_cells
    if cells > most:
        raise UnsupportedError(
            f"the chunks are cut so differently that common cells of all would be {cells:,}, with "
            f"at most {most:,} allowed (virtualzarr.config.limits.derived_cells); copy the arrays "
            "that differ most to other chunks first"
        )
    return tuple(common)


def cut_to_chunks(array: Array, axes: Axes) -> Array:
    """Return an array cut into the cells of some axes."""
    if _has_chunks(array, axes, None):
        return array
    if not array.manifest.nrefs:
        return cut_unwritten(array, axes, None)
    return apply_axis_slices(array, _pieces_of_axes(get_axes(array), axes, None))


def cut_unwritten(array: Array, axes: Axes, axis: int | None) -> Array:
    """Return an array that was never written with the cells of some axes; others as they are."""
    if _has_chunks(array, axes, axis) or array.manifest.nrefs:
        return array
    stored = get_axes(array)
    grid = grids.simplify(
        [a if i == axis else b for i, (a, b) in enumerate(zip(stored, axes, strict=True))]
    )
    metadata = array.metadata.replace(grid=grid)
    return array.replace(metadata, Manifest.missing(grid.grid_shape))


def _has_chunks(array: Array, axes: Axes, axis: int | None) -> bool:
    pairs = zip(get_axes(array), axes, strict=True)
    return all(i == axis or a is b or a.has_same_cells(b) for i, (a, b) in enumerate(pairs))


def _pieces_of_axes(stored: Axes, axes: Axes, axis: int | None) -> list[AxisSlices]:
    return [
        AxisSlices.identity(a) if i == axis or a.has_same_cells(b) else AxisSlices.refine(a, b)
        for i, (a, b) in enumerate(zip(stored, axes, strict=True))
    ]


def concat_manifests(
    arrays: Sequence[Array], axes: Axes, axis: int, along: Sequence[Sequence[Axis]] | None = None
) -> tuple[grids.ChunkGrid, Manifest]:
    """Join arrays that decode alike along one axis.

    Parameters
    ----------
    arrays : sequence of Array
        None of them empty, unless it is the only one.
    axes : tuple of Axis
        Into whose cells all are cut, apart from `axis`.
    along : sequence of sequences of Axis, optional
        The axes that each array has one behind the other along `axis`, if it is of several inputs
        as they are stored; by default its own.

    Returns
    -------
    grid : ChunkGrid
    manifest : Manifest
    """
    # Neighbours with one grid are joined before they are cut: one cut of a long manifest costs
    # numpy calls, thousands of small ones Python.
    if along is None:
        along = [[get_axes(array)[axis]] for array in arrays]
    runs: list[tuple[list[Array], list[Axis]]] = []
    for array, each in zip(arrays, along, strict=True):
        if not runs or not has_same_cells(array.grid, runs[-1][0][0].grid, axis):
            runs.append(([], []))
        runs[-1][0].append(array)
        runs[-1][1].extend(each)
    parts = [_concat_run(*run, axes, axis, last=run is runs[-1]) for run in runs]
    grid = grids.concatenate([part.grid for part in parts], axis)
    manifests = [part.manifest for part in parts]
    return grid, manifests[0] if len(parts) == 1 else Manifest.concatenate(manifests, axis)


def _concat_run(
    arrays: list[Array], along: list[Axis], axes: Axes, axis: int, *, last: bool
) -> Array:
    """Join arrays with the same cells along all other axes, and cut what they make.

    It is joined as it is stored: the last chunk of each may reach further than its array, and is
    cut off where the next one begins.
    """
    axes_stored = get_axes(arrays[0])
    inside = _join_axes(along)
    # Only the last array of all may have a chunk that reaches beyond its end: in between, the part
    # behind the end belongs to the next array.
    if not last:
        inside = AxisSlices.clip(inside).axis
    stored = _make_stored_axis(along if not last else along[:-1], along, inside)
    manifests = [array.manifest for array in arrays]
    manifest = manifests[0] if len(arrays) == 1 else Manifest.concatenate(manifests, axis)
    grid = grids.simplify([*axes_stored[:axis], stored, *axes_stored[axis + 1 :]])
    metadata = arrays[0].metadata.replace(shape=grid.shape, grid=grid)
    joined = arrays[0].replace(metadata, manifest)
    pieces = _pieces_of_axes(axes_stored, axes, axis)
    refined = any(piece.axis is not a for piece, a in zip(pieces, axes_stored, strict=True))
    if stored is inside:
        return (
            apply_axis_slices(joined, _replace_axis(pieces, axis, AxisSlices.identity(inside)))
            if refined
            else joined
        )
    if refined:
        # Other axes are cut, too: every cell starts where its chunk does, but may end earlier.
        cells = np.arange(inside.ncells)
        return apply_axis_slices(
            joined, _replace_axis(pieces, axis, AxisSlices(cells, np.zeros_like(cells), inside))
        )
    # Only in planes where one array ends and the next begins: there are far fewer of them.
    ends = np.cumsum([axis.ncells for axis in along]) - 1
    ends = ends[inside.edge(ends) != stored.edge(ends)]
    edges = inside.edge(ends)
    cut = AxisSlices(ends, np.zeros_like(ends), Axis(int(edges.sum()), edges))
    planes = apply_axis_slices(joined, _replace_axis(pieces, axis, cut)).manifest
    grid = grids.simplify([*axes_stored[:axis], inside, *axes_stored[axis + 1 :]])
    metadata = metadata.replace(shape=grid.shape, grid=grid)
    return joined.replace(metadata, with_planes(manifest, planes, axis, ends))


def _replace_axis(pieces: list[AxisSlices], axis: int, along: AxisSlices) -> list[AxisSlices]:
    return [*pieces[:axis], along, *pieces[axis + 1 :]]


def _join_axes(along: list[Axis]) -> Axis:
    """Return the axis of several, one behind the other."""
    *before, last = along
    parts = []
    # Files that are alike share one axis: it is repeated here, not joined thousands of times.
    for _, same in groupby(before, key=id):
        axis, *others = same
        count = 1 + len(others)
        if count == 1 or not axis.extent:
            parts.append(axis)
            continue
        edges, counts = axis.runs(clipped=True)
        if axis.regular and len(edges) == 1:
            parts.append(Axis.bare(count * axis.extent, int(edges[0])))
        else:
            runs = np.tile(edges, count), np.tile(counts, count)
            parts.append(Axis(count * axis.extent, *runs))
    return grids.concatenate([grids.from_axes([part]) for part in [*parts, last]]).axes[0]


def _make_stored_axis(cut: list[Axis], along: list[Axis], inside: Axis) -> Axis:
    """Return the axis on which all cells are as long as they are stored.

    Only what some of the arrays have past their ends makes it another than `inside`.
    """
    if all(axis.end == axis.extent for axis in cut):
        return inside
    # Runs of equal chunks, not single chunks: an axis of a million chunks is two numbers.
    stored = {id(axis): axis for axis in along}
    runs = {key: np.stack(axis.runs()) for key, axis in stored.items()}
    edges, counts = np.concatenate([runs[id(axis)] for axis in along], axis=1)
    total = int(edges @ counts)
    return inside if total == inside.end else Axis(total, edges, counts)
