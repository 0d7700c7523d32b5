"""Whether arrays can be joined into one: what must be equal, and what may differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from grids import Axis, ChunkGrid, SeparableGrid, from_axes
from virtualzarr.array import Array
from virtualzarr.combine.attributes import differing_meaning
from virtualzarr.combine.problems import Problems
from virtualzarr.errors import UnsupportedError
from virtualzarr.metadata import ArrayMetadata, zero_of
from virtualzarr.metadata.dtypes import vlen_kind
from virtualzarr.metadata.fill import same_fill

Difference = tuple[str, Any, Any]


def choose_model(arrays: Sequence[Array]) -> int:
    """Return the first array that has any chunk: the others are held against it.

    An array that was never written says nothing of how chunks decode or how they are cut.
    """
    return next((i for i, array in enumerate(arrays) if array.manifest.nrefs), 0)


def check_agree(
    arrays: Sequence[Array], axis: int | None, model: int, problems: Problems, variable: str
) -> None:
    """Note how arrays differ from one of them.

    Parameters
    ----------
    arrays : sequence of Array
    axis : int or None
        The axis along which lengths and chunks may differ, if there is one.
    model : int
        The array that the others are held against.
    """
    ours = arrays[model]
    for index, array in enumerate(arrays):
        if array is ours:
            continue
        for difference in differences(array.metadata, ours.metadata, axis):
            problems.differ(variable, index, model, *difference)
        if array.ndim == ours.ndim and array.dtype == ours.dtype:
            for difference in _chunk_differences(array, ours, axis):
                problems.differ(variable, index, model, *difference)


def differences(mine: ArrayMetadata, its: ArrayMetadata, axis: int | None) -> Iterator[Difference]:
    """Yield what differs between two arrays, and both values, apart from how they are stored."""
    if mine.dtype != its.dtype or vlen_kind(mine.dtype) != vlen_kind(its.dtype):
        yield "data type", mine.dtype, its.dtype
    if mine.ndim != its.ndim:
        yield "shape", mine.shape, its.shape
        return
    if mine.dimension_names != its.dimension_names:
        yield "dimensions", mine.dimension_names, its.dimension_names
    for i, (a, b) in enumerate(zip(mine.shape, its.shape, strict=True)):
        if a != b and i != axis:
            yield f"length along {axis_name(its, i)}", a, b
    for name, a, b in differing_meaning(mine.attributes, its.attributes):
        yield f"attribute {name}", repr(a), repr(b)


def axis_name(metadata: ArrayMetadata, axis: int) -> str:
    """Return how messages call an axis."""
    name = None if metadata.dimension_names is None else metadata.dimension_names[axis]
    return f"axis {axis}" if name is None else f"axis {axis} ({name})"


def _chunk_differences(mine: Array, its: Array, axis: int | None) -> Iterator[Difference]:
    """Yield what differs in codecs and chunk shapes, if `mine` has any chunk."""
    a, b = mine.metadata, its.metadata
    same_pipeline = a.pipeline == b.pipeline or a.pipeline.decoding_key(
        a.dtype
    ) == b.pipeline.decoding_key(a.dtype)
    if same_pipeline and same_cells(a.grid, b.grid, axis):
        return
    if not mine.manifest.nrefs:
        return
    if not same_pipeline:
        yield "codecs", a.pipeline, b.pipeline
    for i, (x, y) in enumerate(zip(axes_of(a.grid), axes_of(b.grid), strict=True)):
        if i != axis and x.extent == y.extent and not x.same_cells(y):
            yield f"chunk lengths along {axis_name(b, i)}", _lengths(x), _lengths(y)


def axes_of(grid: ChunkGrid) -> tuple[Axis, ...]:
    """Return the axes of a grid that cuts each on its own."""
    if not isinstance(grid, SeparableGrid):
        raise UnsupportedError(f"arrays with the chunk grid {grid!r} cannot be combined")
    return grid.axes


def _lengths(axis: Axis) -> str:
    if axis.uniform is not None:
        return str(axis.uniform)
    edges, counts = axis.runs()
    runs = [f"{n} x {edge}" if n > 1 else f"{edge}" for edge, n in zip(edges, counts, strict=True)]
    return ", ".join(runs[:4]) + (", ..." if len(runs) > 4 else "")


def fill_holder(arrays: Sequence[Array], model: int, problems: Problems, variable: str) -> int:
    """Return the array whose fill value is that of all: one with missing chunks, if there is one.

    Fill values that differ where they matter are noted: among arrays with missing chunks, and in
    Zarr v2 arrays, where readers take the fill value for missing data.
    """
    ours = arrays[model].metadata
    if all(_same_fill(array.metadata, ours) for array in arrays):
        return model
    holder = next((i for i, array in enumerate(arrays) if _has_missing(array)), model)
    for index, array in enumerate(arrays):
        matters = array.metadata.zarr_format == 2 or _has_missing(array)
        if matters and not _same_fill(array.metadata, arrays[holder].metadata):
            mine, its = array.fill_value, arrays[holder].fill_value
            problems.differ(variable, index, holder, "fill value", repr(mine), repr(its))
    return holder


def _same_fill(a: ArrayMetadata, b: ArrayMetadata) -> bool:
    if a.fill_value is b.fill_value or same_fill(a.fill_value, b.fill_value):
        return True
    if a.dtype != b.dtype:
        return False
    return same_fill(*(zero_of(m.dtype) if m.fill_value is None else m.fill_value for m in (a, b)))


def _has_missing(array: Array) -> bool:
    return array.manifest.nrefs < array.manifest.ncells


def same_cells(a: ChunkGrid, b: ChunkGrid, axis: int | None) -> bool:
    """Tell whether two grids have the same cells, apart from one axis."""
    pairs = zip(axes_of(a), axes_of(b), strict=True)
    return all(x is y or i == axis or x.same_cells(y) for i, (x, y) in enumerate(pairs))


def grid_like(grid: ChunkGrid, model: ChunkGrid, axis: int) -> SeparableGrid:
    """Return a grid cut as the model's, apart from one axis."""
    axes = list(axes_of(model))
    axes[axis] = axes_of(grid)[axis]
    return from_axes(axes)
