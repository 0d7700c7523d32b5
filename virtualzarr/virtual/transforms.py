"""What can be done with an array without reading it: parts of it, other axes, other orders.

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
from virtualzarr.errors import CodecError, UnsupportedError
from virtualzarr.manifest import Affine, Decoder, Manifest, Source, Sources
from virtualzarr.manifest.manifest import CANONICAL
from virtualzarr.metadata import default_fill
from virtualzarr.metadata.dimension_units import axis_members
from virtualzarr.virtual.axis_slices import AxisSlices
from virtualzarr.virtual.rechunk import (
    apply_axis_slices,
    get_axes,
    simplify_manifest,
    without_shards,
)

MAX_CELLS = 10_000_000
"""Nothing is cut into more cells than this, unless it has been before."""

REPEATED_ELEMENTS = 1 << 20
"""About so many elements a cell has that repeats a block along an axis."""


def with_manifest(array: Array, manifest: Manifest, **changes: Any) -> Array:
    """Return an array of other metadata and references, read like this one."""
    metadata = array.metadata.replace(**changes) if changes else array.metadata
    return array.replace(metadata, manifest)


def slice_axes(array: Array, pieces: Sequence[AxisSlices | None]) -> Array:
    """Return an array cut anew along some axes; None leaves an axis as it is.

    Raises
    ------
    UnsupportedError
        There would be too many cells.
    """
    axes = get_axes(array)
    chosen = [p or AxisSlices.identity(axis) for p, axis in zip(pieces, axes, strict=True)]
    cells = math.prod(piece.axis.ncells for piece in chosen)
    if cells > max(MAX_CELLS, array.manifest.ncells):
        raise UnsupportedError(
            f"the indices do not follow one another: each run of them would be a cell of its own, "
            f"{cells:,} in all, with at most {MAX_CELLS:,} allowed; read the elements instead",
            variable=array.path,
        )
    return apply_axis_slices(array, chosen)


def one(axis: Axis, index: int) -> AxisSlices:
    """Return the piece that is a single index, in a cell of just that length."""
    cell = np.array([axis.cell_of(index)])
    return AxisSlices(cell, index - axis.start(cell), Axis(1, [1]))


# -- every so many elements -------------------------------------------------------------------


def take_strided(array: Array, axis: int, start: int, step: int, count: int) -> Array:
    """Take every `step`-th element along an axis, backwards if the step is negative.

    Parameters
    ----------
    start, step, count : int
        Indices ``start + step * i`` for ``i < count`` lie within the axis.
    """
    own = get_axes(array)[axis]
    if step == 1 or count <= 1:
        return _slice_axis(array, axis, AxisSlices.slice(own, start, start + count))
    first, by = (start, step) if step > 0 else (start + step * (count - 1), -step)
    cell, inside, counts = _locate_progression(own, first, by, count)
    edges = own.edge(cell)
    if step < 0:
        cell, counts, edges = cell[::-1], counts[::-1], edges[::-1]
        inside = inside[::-1] + by * (counts - 1)
    axis_of_new = Axis(count, counts)
    if int(counts.max()) == 1:
        return _slice_axis(array, axis, AxisSlices(cell, inside, axis_of_new))
    whole = AxisSlices(cell, np.zeros_like(cell), Axis(int(edges.sum()), edges))
    return _pick(_slice_axis(array, axis, whole), axis, inside, edges, (step, axis_of_new))


def _slice_axis(array: Array, axis: int, pieces: AxisSlices) -> Array:
    return slice_axes(array, [pieces if i == axis else None for i in range(array.ndim)])


def _locate_progression(axis: Axis, first: int, by: int, count: int) -> tuple[Any, Any, Any]:
    """Return the cells that an arithmetic progression meets, where in them, and how often.

    Where steps are longer than cells, cells are found from the elements, else elements from cells.
    """
    last = first + by * (count - 1)
    lowest, highest = axis.cell_of(first), axis.cell_of(last)
    if highest - lowest + 1 > count:
        cell, counts = np.unique(axis.cell_of(first + by * np.arange(count)), return_counts=True)
    else:
        cell = np.arange(lowest, highest + 1)
        ends = np.minimum(axis.start(cell) + axis.edge(cell), last + 1)
        counts = np.diff((ends - 1 - first) // by, prepend=-1)
        cell, counts = cell[counts > 0], counts[counts > 0]
    met = first + by * (np.cumsum(counts) - counts)
    return cell, met - axis.start(cell), counts


# -- fewer axes -------------------------------------------------------------------------------


def without_axis(array: Array, axis: int) -> Array:
    """Leave out an axis of length 1."""
    own = get_axes(array)[axis]
    single = array if own.end == 1 else _slice_axis(array, axis, one(own, 0))
    single = without_shards(single)
    return _pick(single, axis, np.zeros(1, np.int64), np.ones(1, np.int64), None)


def _pick(
    array: Array, axis: int, starts: Any, edges: Any, thinned: tuple[int, Axis] | None
) -> Array:
    """Choose elements within each cell along an axis, by codecs.

    Parameters
    ----------
    starts : int64 array
        Where in each cell along the axis the first one is.
    edges : int64 array
        Of the cells along the axis.
    thinned : (step, axis), optional
        By how many elements one goes on, and the axis of what is chosen. By default, the axis,
        which has one cell, is left out.
    """
    manifest, metadata = array.manifest, array.metadata
    ndim = array.ndim
    tail = (-1,) + (1,) * (ndim - axis - 1)
    rows: Any = np.int64(CANONICAL) if manifest.decoder is None else manifest.decoder
    shapes = [0 if d.shape is None else d.shape[axis] for d in manifest.decoders]
    stored = np.array([*shapes, 0], np.int64)[rows]
    length = np.where(stored > 0, stored, edges.reshape(tail))
    begin = starts.reshape(tail)
    if manifest.origin is not None:
        begin = begin + manifest.origin[..., axis]
    count = np.int64(0) if thinned is None else thinned[1].edge(np.arange(len(edges))).reshape(tail)
    table, inverse = _distinct_rows(rows, begin, length, count)
    known: dict[Decoder, int] = {}
    own = _declare_pipeline(metadata.pipeline, axis, ndim) if thinned is None else metadata.pipeline
    numbers = []
    for row, index, size, kept in table:
        decoder = manifest.decoders[row] if row >= 0 else Decoder(metadata.pipeline)
        made = _part_decoder(decoder, axis, ndim, index, size, kept, thinned and thinned[0])
        canonical = made.shape is None and made.pipeline == own
        numbers.append(CANONICAL if canonical else known.setdefault(made, len(known)))
    column = np.broadcast_to(np.array(numbers, np.int32)[inverse], manifest.shape)
    origin = manifest.origin
    if origin is not None:
        origin = origin.copy()
        origin[..., axis] = 0
    made_of = manifest.replace(decoders=tuple(known), decoder=column, origin=origin)
    if thinned is not None:
        grid = simplify(_with_item(get_axes(array), axis, thinned[1]))
        return with_manifest(array, simplify_manifest(made_of), shape=grid.shape, grid=grid)
    return _drop_axis(array, made_of, axis, own)


def _distinct_rows(*columns: Any) -> tuple[list[tuple[int, ...]], NDArray[np.int64]]:
    """Return the different rows of columns that broadcast, and which of them each row is."""
    which: Any = np.int64(0)
    tables = []
    for column in columns:
        distinct, inverse = np.unique(column, return_inverse=True)
        which = which * len(distinct) + inverse.reshape(np.shape(column))
        tables.append(distinct)
    kinds, inverse = np.unique(which, return_inverse=True)
    places = np.unravel_index(kinds, tuple(map(len, tables)))
    rows = zip(*(t[p].tolist() for t, p in zip(tables, places, strict=True)), strict=True)
    return list(rows), inverse.reshape(np.shape(which))


def _part_decoder(
    decoder: Decoder, axis: int, ndim: int, index: int, length: int, count: int, step: int | None
) -> Decoder:
    """Return what decodes to a part of a block; `count` is its length, unless the axis goes."""
    shape = decoder.shape
    if step is None:
        if shape is not None:
            shape = shape[:axis] + shape[axis + 1 :]
        if length == 1 and (narrow := narrow_pipeline(decoder.pipeline, axis, ndim)) is not None:
            return Decoder(narrow, shape)
        codec = make("virtualzarr.pick", axis=axis, index=index, length=length)
    else:
        if shape is not None:
            shape = (*shape[:axis], count, *shape[axis + 1 :])
        codec = make("virtualzarr.pick", axis=axis, index=index, step=step, length=length)
    return Decoder(Pipeline([codec, *decoder.pipeline.codecs]), shape)


def _declare_pipeline(pipeline: Pipeline, axis: int, ndim: int) -> Pipeline:
    """Return codecs that an array without the axis declares; no chunk may have them."""
    narrow = narrow_pipeline(pipeline, axis, ndim)
    return Pipeline([make("bytes", endian="little")]) if narrow is None else narrow


def _drop_axis(array: Array, manifest: Manifest, axis: int, pipeline: Pipeline) -> Array:
    """Return an array without an axis, along which there is one cell."""

    def flat(column: Any) -> Any:
        if isinstance(column, Affine):
            return Affine(
                _without_item(column.shape, axis), column.base, _without_item(column.strides, axis)
            )
        return None if column is None else column[(slice(None),) * axis + (0,)]

    origin = flat(manifest.origin)
    made = Manifest(
        _without_item(manifest.shape, axis),
        manifest.sources,
        flat(manifest.source),
        flat(manifest.offset),
        flat(manifest.length),
        manifest.decoders,
        flat(manifest.decoder),
        None if origin is None else np.delete(origin, axis, -1),
    )
    grid = simplify(_without_item(get_axes(array), axis))
    members = axis_members(array.metadata, _without_item(range(array.ndim), axis))
    members |= {"shape": grid.shape, "grid": grid, "pipeline": pipeline}
    return with_manifest(array, simplify_manifest(made), **members)


def _without_item(items: Sequence[Any], axis: int) -> tuple[Any, ...]:
    return (*items[:axis], *items[axis + 1 :])


def _with_item(items: Sequence[Any], axis: int, item: Any) -> tuple[Any, ...]:
    return (*items[:axis], item, *items[axis + 1 :])


# -- more axes --------------------------------------------------------------------------------


def with_axis(array: Array, axis: int, dim: str | None = None, length: int = 1) -> Array:
    """Put in an axis, along which the array is repeated."""
    array = without_shards(array)
    metadata, manifest = array.metadata, array.manifest
    axes = get_axes(array)
    cell = math.prod(int(own.runs()[0].max(initial=1)) for own in axes)
    edge = min(max(length, 1), max(1, REPEATED_ELEMENTS // cell))
    grid = simplify([*axes[:axis], Axis.bare(length, edge), *axes[axis:]])
    repeated = edge > 1

    def wide(pipeline: Pipeline) -> Pipeline:
        if not repeated:
            return widen_pipeline(pipeline, axis, array.ndim)
        return Pipeline([make("virtualzarr.repeat", axis=axis), *pipeline.codecs])

    decoders = [
        Decoder(
            wide(d.pipeline),
            None if d.shape is None else (*d.shape[:axis], edge, *d.shape[axis:]),
        )
        for d in manifest.decoders
    ]
    order = (*range(axis), None, *range(axis, array.ndim))
    return with_manifest(
        array,
        _broadcast_manifest(manifest, axis, grid.grid_shape, decoders),
        shape=grid.shape,
        grid=grid,
        pipeline=wide(metadata.pipeline),
        **axis_members(metadata, order, dim),
    )


def _broadcast_manifest(
    manifest: Manifest, axis: int, shape: tuple[int, ...], decoders: Sequence[Decoder]
) -> Manifest:
    """Return a manifest with the same planes everywhere along a new axis."""

    def wide(column: Any) -> Any:
        if column is None:
            return None
        if isinstance(column, Affine):
            strides = column.strides
            return Affine(shape, column.base, (*strides[:axis], 0, *strides[axis:]))
        column = np.expand_dims(column, axis)
        return np.broadcast_to(column, shape + column.shape[len(shape) :])

    origin = manifest.origin
    if origin is not None:
        origin = wide(np.insert(origin, axis, 0, axis=-1))
    source, offset, length = map(wide, (manifest.source, manifest.offset, manifest.length))
    return Manifest(
        shape, manifest.sources, source, offset, length, decoders, wide(manifest.decoder), origin
    )


def repeat_axis(array: Array, axis: int, length: int) -> Array:
    """Repeat an array along one of its axes, of length 1."""
    return with_axis(without_axis(array, axis), axis, array.dims[axis], length)


def transpose(array: Array, axes: Sequence[int]) -> Array:
    """Put the axes in another order: axis ``i`` is axis ``axes[i]`` of the array."""
    axes = tuple(axes)
    if axes == tuple(range(array.ndim)):
        return array
    manifest, metadata = array.manifest, array.metadata
    order = tuple(axes.index(axis) for axis in range(array.ndim))

    def turned(column: Any) -> Any:
        if isinstance(column, Affine):
            strides = [column.strides[axis] for axis in axes]
            return Affine([column.shape[axis] for axis in axes], column.base, strides)
        return None if column is None else column.transpose(axes)

    decoders = [
        Decoder(
            _transpose_pipeline(d.pipeline, order),
            None if d.shape is None else tuple(d.shape[axis] for axis in axes),
        )
        for d in manifest.decoders
    ]
    origin = manifest.origin
    if origin is not None:
        origin = origin.transpose(*axes, array.ndim)[..., list(axes)]
    made = Manifest(
        [manifest.shape[axis] for axis in axes],
        manifest.sources,
        turned(manifest.source),
        turned(manifest.offset),
        turned(manifest.length),
        decoders,
        turned(manifest.decoder),
        origin,
    )
    own = get_axes(array)
    grid = simplify([own[axis] for axis in axes])
    return with_manifest(
        array,
        made,
        shape=grid.shape,
        grid=grid,
        pipeline=_transpose_pipeline(metadata.pipeline, order),
        **axis_members(metadata, axes),
    )


def _transpose_pipeline(pipeline: Pipeline, order: tuple[int, ...]) -> Pipeline:
    """Return a pipeline for blocks of which axis ``order[i]`` was axis ``i``."""
    codecs: list[Codec] = list(pipeline.codecs)
    if isinstance(codecs[0], Transpose):
        order = tuple(order[axis] for axis in codecs.pop(0).axes(len(order)))  # type: ignore[attr-defined]
    if order != tuple(range(len(order))):
        codecs.insert(0, make("transpose", order=order))
    return Pipeline(codecs)


# -- elements that are nowhere ----------------------------------------------------------------


def slice_with_fill(
    array: Array, pieces: Sequence[AxisSlices | None], fill_value: Any = None
) -> Array:
    """Return an array cut anew; cells that are cut out of nothing read as a value.

    Parameters
    ----------
    fill_value : scalar, optional
        The array's own by default. Where another is given, it becomes that of the array if no
        chunk is missing, else it is referred to from each cell.
    """
    made = slice_axes(array, pieces)
    nowhere: Any = np.False_
    for axis, piece in enumerate(pieces):
        if piece is not None:
            nowhere = nowhere | piece.nowhere.reshape((-1,) + (1,) * (array.ndim - axis - 1))
    if not nowhere.any():
        return made
    own = default_fill(array.dtype) if array.fill_value is None else array.fill_value
    value = own if fill_value is None else _to_element(fill_value, array.dtype)
    same = _to_bits(value, array.dtype) == _to_bits(own, array.dtype)
    if same and array.fill_missing:
        return made
    pipelines = [made.metadata.pipeline, *(d.pipeline for d in made.manifest.decoders)]
    complete = array.manifest.nrefs == array.manifest.ncells and array.fill_missing
    shards = any(pipeline.serializer.needs_fill for pipeline in pipelines)
    storable = _is_storable(made.metadata.pipeline, value, array.dtype)
    if complete and storable and not shards and array.metadata.zarr_format == 3:
        return with_manifest(made, made.manifest, fill_value=value)
    nowhere = np.broadcast_to(nowhere, made.manifest.shape)
    return with_manifest(made, _with_constant(made, nowhere, value))


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


def _with_constant(array: Array, where: NDArray[np.bool_], value: Any) -> Manifest:
    """Return a manifest whose chunks in some cells hold nothing but a value."""
    if array.dtype.hasobject:
        raise UnsupportedError(
            "cells of objects cannot be given a fill value of their own where chunks are missing",
            variable=array.path,
        )
    manifest = array.manifest
    data = constant_bytes(value, array.dtype)
    known = {decoder: row for row, decoder in enumerate(manifest.decoders)}
    row = known.setdefault(Decoder(Pipeline([make("virtualzarr.constant")])), len(known))
    old: Any = np.int32(CANONICAL) if manifest.decoder is None else manifest.decoder
    origin = manifest.origin
    return manifest.replace(
        sources=Sources([*manifest.sources, Source.inline(data)]),
        source=np.where(where, np.int32(len(manifest.sources)), manifest.source),
        offset=np.where(where, 0, np.asarray(manifest.offset)),
        length=np.where(where, len(data), np.asarray(manifest.length)),
        decoders=tuple(known),
        decoder=np.where(where, np.int32(row), old),
        origin=None if origin is None else np.where(where[..., None], 0, origin),
    )
