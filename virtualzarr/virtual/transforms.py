"""Virtual transforms: slices, strides, other axes, other orders and padding, without reading.

Each function takes a virtual array and returns another one over the same bytes. Differences in
where cells lie are sliced axis by axis (`apply_axis_slices`); differences in axes become codecs in
front of the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import Axis, simplify
from virtualzarr.array.array import Array
from virtualzarr.codecs import Codec, Pipeline, make
from virtualzarr.codecs.constant import constant_bytes
from virtualzarr.codecs.core.widen import narrow_pipeline, widen_pipeline
from virtualzarr.codecs.transpose import Transpose
from virtualzarr.config import config
from virtualzarr.errors import CodecError, UnsupportedError
from virtualzarr.manifest import Affine, Decoder, DecoderRows, Manifest, Source, Sources
from virtualzarr.manifest.manifest import CANONICAL
from virtualzarr.metadata.dimension_units import axis_members
from virtualzarr.virtual import rechunk
from virtualzarr.virtual.axis_slices import AxisSlices

REPEATED_ELEMENTS = 1 << 20
"""About how many elements a cell has that repeats a block along an axis."""


def with_manifest(array: Array, manifest: Manifest, **changes: Any) -> Array:
    """Return an array with another manifest and changed metadata, read with the same settings."""
    metadata = array.metadata.replace(**changes) if changes else array.metadata
    return array.replace(metadata, manifest)


def slice_axes(array: Array, pieces: Sequence[AxisSlices | None]) -> Array:
    """Return an array sliced along some axes; None leaves an axis as it is.

    Raises
    ------
    UnsupportedError
        There would be too many cells.
    """
    axes = rechunk.get_axes(array)
    pairs = list(zip(pieces, axes, strict=True))
    # Before any column is made: scattered indices on several axes multiply.
    _check_cells(array, math.prod(p.axis.ncells if p else axis.ncells for p, axis in pairs))
    return rechunk.apply_axis_slices(array, [p or AxisSlices.identity(axis) for p, axis in pairs])


def _check_cells(array: Array, cells: int) -> None:
    most = config.limits.derived_cells
    if cells > max(most, array.manifest.ncells):
        raise UnsupportedError(
            f"the indices do not follow one another: each run of them would be a cell of its own, "
            f"{cells:,} in all, with at most {most:,} allowed (virtualzarr.config.limits."
            "derived_cells); read the elements instead",
            variable=array.path,
        )


# -- steps -------------------------------------------------------------------


def take_strided(array: Array, axis: int, start: int, step: int, count: int) -> Array:
    """Take every `step`-th element along an axis, backwards if the step is negative.

    Parameters
    ----------
    start, step, count : int
        Indices ``start + step * i`` for ``i < count`` lie within the axis.
    """
    stored = rechunk.get_axes(array)[axis]
    if step == 1 or count <= 1:
        return _slice_axis(array, axis, AxisSlices.slice(stored, start, start + count))
    # Cells are located going forward, and reversed afterwards: only the codec that picks elements
    # runs backwards within its block.
    first, by = (start, step) if step > 0 else (start + step * (count - 1), -step)
    _check_cells(array, min(count, stored.ncells))
    cell, inside, counts = _locate_progression(stored, first, by, count)
    edges = stored.edge(cell)
    if step < 0:
        cell, counts, edges = cell[::-1], counts[::-1], edges[::-1]
        inside = inside[::-1] + by * (counts - 1)
    result = Axis(count, counts)
    if int(counts.max()) == 1:
        return _slice_axis(array, axis, AxisSlices(cell, inside, result))
    # Whole cells, in which a codec then picks every `step`-th element.
    cells = AxisSlices(cell, np.zeros_like(cell), Axis(int(edges.sum()), edges))
    return _pick(_slice_axis(array, axis, cells), axis, inside, edges, (step, result))


def _slice_axis(array: Array, axis: int, pieces: AxisSlices) -> Array:
    return slice_axes(array, [pieces if i == axis else None for i in range(array.ndim)])


def _locate_progression(axis: Axis, first: int, by: int, count: int) -> tuple[Any, Any, Any]:
    """Return the cells that an arithmetic progression hits, where it does first, and how often.

    Where steps are longer than cells, cells are found from the elements, else elements from cells.
    """
    last = first + by * (count - 1)
    lowest, highest = axis.cell_of(first), axis.cell_of(last)
    if highest - lowest + 1 > count:
        cell, counts = np.unique(axis.cell_of(first + by * np.arange(count)), return_counts=True)
    else:
        cell = np.arange(lowest, highest + 1)
        # Elements before each cell's end, by division; their differences are those in each cell.
        # Steps may jump over short cells, which then have none.
        ends = np.minimum(axis.start(cell) + axis.edge(cell), last + 1)
        counts = np.diff((ends - 1 - first) // by, prepend=-1)
        cell, counts = cell[counts > 0], counts[counts > 0]
    index = first + by * (np.cumsum(counts) - counts)
    return cell, index - axis.start(cell), counts


# -- fewer axes -------------------------------------------------------------------------------


def without_axis(array: Array, axis: int) -> Array:
    """Drop an axis of length 1."""
    stored = rechunk.get_axes(array)[axis]
    single = array if stored.end == 1 else _slice_axis(array, axis, AxisSlices.index(stored, 0))
    single = rechunk.without_shards(single)
    return _pick(single, axis, np.zeros(1, np.int64), np.ones(1, np.int64), None)


def _pick(
    array: Array, axis: int, starts: Any, edges: Any, steps: tuple[int, Axis] | None
) -> Array:
    """Pick elements within each cell along an axis, by codecs.

    Parameters
    ----------
    starts : int64 array
        Where in each cell along the axis the first one is.
    edges : int64 array
        Of the cells along the axis.
    steps : (step, axis), optional
        The distance of the elements, and their axis. By default, the axis, which has one cell, is
        dropped.
    """
    manifest, metadata = array.manifest, array.metadata
    ndim = array.ndim
    # Numbers along the axis broadcast against columns of any size, affine or constant: no column is
    # written out before it must be.
    tail = (-1,) + (1,) * (ndim - axis - 1)
    rows: Any = np.int64(CANONICAL) if manifest.decoder is None else manifest.decoder
    shapes = [0 if d.shape is None else d.shape[axis] for d in manifest.decoders]
    # The 0 at the end is for row -1, the array's own pipeline, whose blocks are the cells.
    stored = np.array([*shapes, 0], np.int64)[rows]
    length = np.where(stored > 0, stored, edges.reshape(tail))
    begin = starts.reshape(tail)
    if manifest.origin is not None:
        begin = begin + manifest.origin[..., axis]
    count = np.int64(0) if steps is None else steps[1].edge(np.arange(len(edges))).reshape(tail)
    table, inverse = _distinct_rows(rows, begin, length, count)
    rows_of: dict[Decoder, int] = {}
    # Codecs to declare without the axis: an axis of length 1 changes no stored byte, so that chunks
    # in which nothing is picked are readable by anybody.
    declared = (
        _declare_pipeline(metadata.pipeline, axis, ndim) if steps is None else metadata.pipeline
    )
    numbers = []
    # Few: cells of one decoder, length and phase share the codec that picks their elements.
    for row, index, size, count_picked in table:
        decoder = manifest.decoders[row] if row >= 0 else Decoder(metadata.pipeline)
        part = _part_decoder(decoder, axis, ndim, index, size, count_picked, steps and steps[0])
        canonical = part.shape is None and part.pipeline == declared
        numbers.append(CANONICAL if canonical else rows_of.setdefault(part, len(rows_of)))
    column = np.broadcast_to(np.array(numbers, np.int32)[inverse], manifest.shape)
    origin = manifest.origin
    if origin is not None:
        # The picking codec starts at the origin itself, which is thus used up along the axis.
        origin = origin.copy()
        origin[..., axis] = 0
    picked = manifest.replace(decoders=tuple(rows_of), decoder=column, origin=origin)
    if steps is not None:
        axes = rechunk.get_axes(array)
        grid = simplify([*axes[:axis], steps[1], *axes[axis + 1 :]])
        return with_manifest(array, rechunk.simplify_manifest(picked), shape=grid.shape, grid=grid)
    return _drop_axis(array, picked, axis, declared)


def _distinct_rows(*columns: Any) -> tuple[list[tuple[int, ...]], NDArray[np.int64]]:
    """Return the different rows of columns that broadcast, and which of them each row is."""
    # Each column is numbered, and the numbers are put together as digits of one.
    key: Any = np.int64(0)
    tables = []
    for column in columns:
        distinct, inverse = np.unique(column, return_inverse=True)
        key = key * len(distinct) + inverse.reshape(np.shape(column))
        tables.append(distinct)
    kinds, inverse = np.unique(key, return_inverse=True)
    digits = np.unravel_index(kinds, tuple(map(len, tables)))
    rows = zip(*(t[p].tolist() for t, p in zip(tables, digits, strict=True)), strict=True)
    return list(rows), inverse.reshape(np.shape(key))


def _part_decoder(
    decoder: Decoder, axis: int, ndim: int, index: int, length: int, count: int, step: int | None
) -> Decoder:
    """Return a decoder of a part of a block; `count` is its length, unless the axis is dropped."""
    members = {"axis": axis, "index": index, "length": length}
    edge = []
    if step is not None:
        members["step"], edge = step, [count]
    # Bytes of a block do not change with an axis of length 1: no codec, so that all readers can
    # read the result.
    narrow = narrow_pipeline(decoder.pipeline, axis, ndim) if step is None and length == 1 else None
    if narrow is None:
        codec = make("virtualzarr.pick", **members)
        narrow = Pipeline([codec, *decoder.pipeline.codecs])
    return decoder.with_shape(lambda shape: (*shape[:axis], *edge, *shape[axis + 1 :]), narrow)


def _declare_pipeline(pipeline: Pipeline, axis: int, ndim: int) -> Pipeline:
    """Return the codecs to declare for an array without an axis, if no chunk has them, either."""
    narrow = narrow_pipeline(pipeline, axis, ndim)
    return Pipeline([make("bytes", endian="little")]) if narrow is None else narrow


def _drop_axis(array: Array, manifest: Manifest, axis: int, pipeline: Pipeline) -> Array:
    """Return an array without an axis, along which there is one cell."""

    def drop(column: Any) -> Any:
        if isinstance(column, Affine):
            return Affine(
                _without_item(column.shape, axis), column.base, _without_item(column.strides, axis)
            )
        return column[(slice(None),) * axis + (0,)]

    origin = manifest.origin
    if origin is not None:
        origin = np.delete(drop(origin), axis, -1)
    shape = _without_item(manifest.shape, axis)
    narrow = manifest.map_columns(shape, drop, manifest.decoders, origin)
    grid = simplify(_without_item(rechunk.get_axes(array), axis))
    members = axis_members(array.metadata, _without_item(range(array.ndim), axis))
    members |= {"shape": grid.shape, "grid": grid, "pipeline": pipeline}
    return with_manifest(array, rechunk.simplify_manifest(narrow), **members)


def _without_item(items: Sequence[Any], axis: int) -> tuple[Any, ...]:
    return (*items[:axis], *items[axis + 1 :])


# -- more axes --------------------------------------------------------------------------------


def with_axis(array: Array, axis: int, dim: str | None = None, length: int = 1) -> Array:
    """Insert an axis, along which the array is repeated."""
    array = rechunk.without_shards(array)
    metadata, manifest = array.metadata, array.manifest
    axes = rechunk.get_axes(array)
    cell = math.prod(int(stored.runs()[0].max(initial=1)) for stored in axes)
    # Repeated within cells, too: a reference for each index would take too many.
    edge = min(max(length, 1), max(1, REPEATED_ELEMENTS // cell))
    grid = simplify([*axes[:axis], Axis.bare(length, edge), *axes[axis:]])
    repeated = edge > 1

    def widen(pipeline: Pipeline) -> Pipeline:
        if not repeated:
            return widen_pipeline(pipeline, axis, array.ndim)
        return Pipeline([make("virtualzarr.repeat", axis=axis), *pipeline.codecs])

    decoders = [
        d.with_shape(lambda shape: (*shape[:axis], edge, *shape[axis:]), widen(d.pipeline))
        for d in manifest.decoders
    ]
    order = (*range(axis), None, *range(axis, array.ndim))
    return with_manifest(
        array,
        _broadcast_manifest(manifest, axis, grid.grid_shape, decoders),
        shape=grid.shape,
        grid=grid,
        pipeline=widen(metadata.pipeline),
        **axis_members(metadata, order, dim),
    )


def _broadcast_manifest(
    manifest: Manifest, axis: int, shape: tuple[int, ...], decoders: Sequence[Decoder]
) -> Manifest:
    """Return a manifest with the same planes everywhere along a new axis."""

    def broadcast(column: Any) -> Any:
        # A stride of 0 repeats what is there, so that a broadcast of millions takes no memory.
        if isinstance(column, Affine):
            strides = column.strides
            return Affine(shape, column.base, (*strides[:axis], 0, *strides[axis:]))
        column = np.expand_dims(column, axis)
        return np.broadcast_to(column, shape + column.shape[len(shape) :])

    origin = manifest.origin
    if origin is not None:
        origin = broadcast(np.insert(origin, axis, 0, axis=-1))
    return manifest.map_columns(shape, broadcast, decoders, origin)


def repeat_axis(array: Array, axis: int, length: int) -> Array:
    """Repeat an array along one of its axes, of length 1."""
    return with_axis(without_axis(array, axis), axis, array.dims[axis], length)


def transpose(array: Array, axes: Sequence[int]) -> Array:
    """Reorder the axes: axis ``i`` is axis ``axes[i]`` of the array."""
    axes = tuple(axes)
    if axes == tuple(range(array.ndim)):
        return array
    manifest, metadata = array.manifest, array.metadata
    # The inverse permutation: the codec's `order` says which axis of the decoded chunk each stored
    # axis is (v3 spec, transpose), `axes` which stored axis each new one is.
    order = tuple(axes.index(axis) for axis in range(array.ndim))

    def reorder(column: Any) -> Any:
        if isinstance(column, Affine):
            return Affine(reorder_items(column.shape), column.base, reorder_items(column.strides))
        return column.transpose(axes)

    def reorder_items(items: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(items[axis] for axis in axes)

    decoders = [d.with_shape(reorder_items, _transpose_pipeline(d.pipeline, order))
                for d in manifest.decoders]  # fmt: skip
    origin = manifest.origin
    if origin is not None:
        # Its last axis has one number for each axis of the array, which change places as well.
        origin = origin.transpose(*axes, array.ndim)[..., list(axes)]
    reordered = manifest.map_columns(reorder_items(manifest.shape), reorder, decoders, origin)
    grid = simplify(reorder_items(rechunk.get_axes(array)))
    return with_manifest(
        array,
        reordered,
        shape=grid.shape,
        grid=grid,
        pipeline=_transpose_pipeline(metadata.pipeline, order),
        **axis_members(metadata, axes),
    )


def _transpose_pipeline(pipeline: Pipeline, order: tuple[int, ...]) -> Pipeline:
    """Return a pipeline for blocks of which axis ``order[i]`` was axis ``i``."""
    codecs: list[Codec] = list(pipeline.codecs)
    # Two transposes in a row are one, and none at all where they undo each other.
    if isinstance(codecs[0], Transpose):
        order = tuple(order[axis] for axis in codecs.pop(0).axes(len(order)))  # type: ignore[attr-defined]
    if order != tuple(range(len(order))):
        codecs.insert(0, make("transpose", order=order))
    return Pipeline(codecs)


# -- missing elements ----------------------------------------------------------------


def slice_with_fill(
    array: Array, pieces: Sequence[AxisSlices | None], fill_value: Any = None
) -> Array:
    """Return a sliced array whose missing cells read as a value.

    Parameters
    ----------
    fill_value : scalar, optional
        The array's own by default. Where another is given, it becomes that of the array if no
        chunk is missing, else it is referred to from each cell.
    """
    sliced = slice_axes(array, pieces)
    missing: Any = np.False_
    for axis, piece in enumerate(pieces):
        if piece is not None:
            missing = missing | piece.is_missing.reshape((-1,) + (1,) * (array.ndim - axis - 1))
    if not missing.any():
        return sliced
    stored_fill = array.metadata.effective_fill
    value = stored_fill if fill_value is None else _to_element(fill_value, array.dtype)
    # By bits, as NaN differs from itself and -0.0 equals 0.0.
    same = _to_bits(value, array.dtype) == _to_bits(stored_fill, array.dtype)
    if same and array.fill_missing:
        return sliced
    pipelines = [sliced.metadata.pipeline, *(d.pipeline for d in sliced.manifest.decoders)]
    # Without missing chunks, nothing reads as the array's own fill value, which may then be
    # replaced; but for shards, whose missing sub-chunks read as that value.
    complete = array.manifest.nrefs == array.manifest.ncells and array.fill_missing
    shards = any(pipeline.serializer.needs_fill for pipeline in pipelines)
    storable = _is_storable(sliced.metadata.pipeline, value, array.dtype)
    if complete and storable and not shards and array.metadata.zarr_format == 3:
        return with_manifest(sliced, sliced.manifest, fill_value=value)
    missing = np.broadcast_to(missing, sliced.manifest.shape)
    return with_manifest(sliced, fill_constant(sliced, missing, value))


def _is_storable(pipeline: Pipeline, value: Any, dtype: np.dtype[Any]) -> bool:
    """Whether an array with such codecs may declare a fill value."""
    try:
        pipeline.check_fill(value, dtype)
    except CodecError:
        return False
    return True


def _to_element(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a value as one of a dtype.

    Raises
    ------
    ValueError
        The dtype does not have it.
    """
    if dtype.hasobject:
        return value
    if dtype.kind in "mM" and np.asarray(value).dtype.kind in "mM" and np.isnat(value):
        return np.array("NaT", dtype)[()]
    try:
        # An overflow shows in the comparison, where it raises an error instead of a warning.
        with np.errstate(all="ignore"):
            element = np.asarray(value).astype(dtype)[()]
            same = bool(element == value) or bool(element != element and value != value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{value!r} is no {dtype}: {error}") from error
    rounded = dtype.kind in "fc" and np.asarray(value).dtype.kind in "iufc"
    if not (same or rounded):
        raise ValueError(f"{value!r} is no {dtype}; convert the array with astype first")
    return element


def _to_bits(value: Any, dtype: np.dtype[Any]) -> Any:
    return value if dtype.hasobject else np.asarray(value, dtype).tobytes()


def fill_constant(array: Array, where: NDArray[np.bool_], value: Any) -> Manifest:
    """Return a manifest whose chunks in some cells hold nothing but a value."""
    if array.dtype.hasobject:
        raise UnsupportedError(
            "cells of objects cannot be given a fill value of their own where chunks are missing",
            variable=array.path,
        )
    manifest = array.manifest
    data = constant_bytes(value, array.dtype)
    rows = DecoderRows(manifest.decoders)
    row = rows.find(Decoder(Pipeline([make("virtualzarr.constant")])))
    old: Any = np.int32(CANONICAL) if manifest.decoder is None else manifest.decoder
    origin = manifest.origin
    return manifest.replace(
        # One inline element for all cells: the codec repeats it to any block's shape.
        sources=Sources([*manifest.sources, Source.inline(data)]),
        source=np.where(where, np.int32(len(manifest.sources)), manifest.source),
        offset=np.where(where, 0, np.asarray(manifest.offset)),
        length=np.where(where, len(data), np.asarray(manifest.length)),
        decoders=rows.table,
        decoder=np.where(where, np.int32(row), old),
        origin=None if origin is None else np.where(where[..., None], 0, origin),
    )
