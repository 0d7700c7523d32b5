"""Growth of stored manifests: new parts written behind those that are there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import grids
from grids import Axis, ChunkGrid, SeparableGrid
from virtualzarr.array import Array
from virtualzarr.combine.attributes import iter_meaning_differences
from virtualzarr.combine.cf_time import TimeUnit
from virtualzarr.config import config
from virtualzarr.errors import CodecError, MismatchError, UnsupportedError
from virtualzarr.manifest import Manifest
from virtualzarr.metadata import ArrayMetadata, attribute_dtypes
from virtualzarr.metadata.dimension_names import find_differing_names
from virtualzarr.metadata.fill import is_same_fill, show_fills
from virtualzarr.metadata.portable import with_typed_mask
from virtualzarr.references.native.manifest_chunks import NativeChunks
from virtualzarr.references.native.parts import save_part
from virtualzarr.references.native.storage_transformer import Configuration, Stretch
from virtualzarr.stores import Store
from virtualzarr.virtual.rechunk import with_decoder


def save_manifest(
    store: Store, path: str, metadata: ArrayMetadata, manifest: Manifest, *, relative: bool = False
) -> ArrayMetadata:
    """Store the manifest of a new array, and return the metadata to write for it."""
    name = save_part(store, path, manifest, relative_uris=relative)
    configuration = Configuration(
        0, (Stretch(name, manifest.shape),), None, relative, attribute_dtypes(metadata.attributes)
    )
    return metadata.replace(storage_transformers=(configuration.to_json(),))


def native_chunks(array: Array) -> NativeChunks:
    """Return the chunks of an array with a stored manifest.

    Raises `UnsupportedError` if it has none.
    """
    chunks: Any = array.chunk_source
    if not isinstance(chunks, NativeChunks):
        raise UnsupportedError(
            "the array has no manifest stored with it: references cannot be appended to it; "
            "append its values",
            variable=array.path,
        )
    return chunks


def tail(array: Array, axis: int) -> Array:
    """Return the virtual array of the last cells along an axis: what an append may change."""
    chunks, grid = native_chunks(array), _separable(array)
    last = max(grid.axes[axis].ncells - 1, 0)
    end = grid.axes[axis].ncells
    manifest = chunks.references(axis, last, end)
    # The end of the array as an array of its own, so that joining it is any other concat.
    metadata = with_typed_mask(array.metadata).replace(**_members(_last_layer(grid, axis)))
    return array.replace(metadata, manifest)


def _separable(array: Array) -> SeparableGrid:
    if not isinstance(array.grid, SeparableGrid):
        raise UnsupportedError(
            f"an array with the chunk grid {array.grid!r} cannot grow by references",
            variable=array.path,
        )
    return array.grid


def _members(grid: ChunkGrid) -> dict[str, Any]:
    return {"shape": grid.shape, "grid": grid}


def _last_layer(grid: SeparableGrid, axis: int) -> ChunkGrid:
    old = grid.axes[axis]
    last = old.ncells - 1
    if last < 0:
        new = old
    elif old.regular:
        new = Axis.bare(old.length(last), old.edge(last))
    else:
        new = Axis(old.length(last), [old.edge(last)])
    return grid.with_axes([new if i == axis else a for i, a in enumerate(grid.axes)])


def _without_last(grid: SeparableGrid, axis: int) -> ChunkGrid:
    old = grid.axes[axis]
    extent = old.start(old.ncells - 1)
    shape = [extent if i == axis else n for i, n in enumerate(grid.shape)]
    return grid.resize(shape)


def extend(array: Array, joined: Array, axis: int) -> ArrayMetadata:
    """Store the references of what is appended to an array, and return its metadata then.

    Raises `MismatchError` if all of the array would have to be described anew; `UnsupportedError`
    if a natively written chunk would have to be.

    Parameters
    ----------
    joined : Array
        The array's `tail`, and what is appended, concatenated.
    """
    # What is stored stays as it is: nothing that was joined may have changed its meaning.
    check_alike(array, joined, axis)
    chunks, old = native_chunks(array), _separable(array)
    before, after = old.axes[axis], _separable(joined).axes[axis]
    last = before.ncells - 1
    if after.extent == (before.length(last) if before.ncells else 0):
        return array.metadata
    manifest, grid = joined.manifest, joined.grid
    # The join may have chosen the addition's codecs; the array's stay, and the references decode
    # by a decoder of their own.
    theirs = joined.metadata.pipeline
    if theirs.decoding_key(array.dtype) != array.metadata.pipeline.decoding_key(array.dtype):
        manifest = with_decoder(manifest, theirs)
    unchanged = max(last, 0)
    if unchanged:
        grid = grids.concatenate([_without_last(old, axis), grid], axis)
    # Where the last chunk's length stays as it was, so does its reference; else the new part
    # begins with that cell, described anew.
    if before.ncells and after.edge(0) == before.edge(last):
        unchanged = before.ncells
        ahead = [slice(1, None) if i == axis else slice(None) for i in range(array.ndim)]
        manifest = _cut(manifest, tuple(ahead))
    elif before.ncells:
        _refuse_native(chunks, array, axis, last)
    _check_shards(array, grid)
    configuration = _along(chunks, axis)
    parts = _end_at(configuration, old.grid_shape, unchanged)
    # Parts are never rewritten one by one: when many small ones have gathered, they become one,
    # as in a log-structured merge.
    large = _large_parts(parts)
    if len(parts) - len(large) >= config.tuning.small_parts:
        begin = sum(part.shape[axis] for part in large)
        again = chunks.references(axis, begin, unchanged)
        manifest, parts = Manifest.concatenate([again, manifest], axis), large
    name = save_part(chunks.store, array.path, manifest, relative_uris=configuration.relative)
    parts = (*parts, Stretch(name, manifest.shape))
    transformer = replace(configuration, parts=parts).to_json()
    return array.metadata.replace(**_members(grid), storage_transformers=(transformer,))


def _check_shards(array: Array, grid: ChunkGrid) -> None:
    """Refuse shards that sub-chunks do not divide: the array's codecs decode what is stored."""
    assert isinstance(grid, SeparableGrid)
    try:
        array.metadata.pipeline.check_edges([axis.edges for axis in grid.axes])
    except CodecError as error:
        raise UnsupportedError(
            f"{error.message}: only the last shard may be shorter; publish all of it anew, or make "
            "it a dataset (upgrade)",
            variable=array.path,
        ) from error


def rewrite_parts(
    array: Array, change: Callable[[Manifest], Manifest], *, relative: bool | None = None
) -> ArrayMetadata:
    """Store all parts of an array's manifest changed, and return its metadata then.

    Parameters
    ----------
    change : callable
        Gives a manifest of the same cells.
    relative : bool, optional
        Whether sources are named relative to the array; by default as they were.
    """
    chunks = native_chunks(array)
    configuration = chunks.configuration
    relative = configuration.relative if relative is None else relative
    parts = list(configuration.parts)
    for number, stretch in enumerate(configuration.parts):
        part = chunks.part(number)
        if part is not None:
            manifest = change(part.load([slice(n) for n in stretch.shape]))
            name = save_part(chunks.store, array.path, manifest, relative_uris=relative)
            parts[number] = Stretch(name, stretch.shape)
    transformer = replace(configuration, parts=tuple(parts), relative=relative).to_json()
    return array.metadata.replace(storage_transformers=(transformer,))


def _cut(manifest: Manifest, index: tuple[slice, ...]) -> Manifest:
    """Return the manifest of a box of cells."""
    shape = np.broadcast_to(np.int8(0), manifest.shape)[index].shape
    offset, length = (np.asarray(column)[index] for column in (manifest.offset, manifest.length))
    return Manifest(
        shape, manifest.sources, manifest.source[index], offset, length, manifest.decoders,
        None if manifest.decoder is None else manifest.decoder[index],
        None if manifest.origin is None else manifest.origin[index],
    )  # fmt: skip


def check_alike(array: Array, joined: Array, axis: int, *, same_chunks: bool = True) -> None:
    """Refuse what would change the array that is there.

    `same_chunks` is whether chunks along other axes must be cut alike.
    """
    old, new = array.metadata, joined.metadata
    # No fill value in a v2 document means zero, as a default of the data type.
    fills = [m.effective_fill for m in (old, new)]
    wrong = []
    if old.dtype != new.dtype:
        wrong.append(f"data type: {new.dtype}, not {old.dtype}")
    elif not is_same_fill(*fills):
        stored, appended = show_fills(*fills)
        wrong.append(f"fill value: {appended}, not {stored}")
    before, after = (with_typed_mask(metadata).attributes for metadata in (old, new))
    for name, old_value, new_value in _iter_changed_meaning(before, after):
        wrong.append(f"attribute {name}: {new_value!r}, not {old_value!r}, which stays")
    if find_differing_names([array.dims, joined.dims]):
        wrong.append(f"dimension names: {joined.dims}, not {array.dims}")
    axes, new_axes = _separable(array).axes, _separable(joined).axes
    for i, (a, b) in enumerate(zip(axes, new_axes, strict=True)):
        same = a == b or (a.extent == b.extent and _cuts(a) == _cuts(b))
        # Other cuts along another axis would recut all cells that are there.
        if i != axis and not same and (same_chunks or a.extent != b.extent):
            wrong.append(f"chunks along axis {i}: all would have to be cut anew")
    if wrong:
        raise MismatchError(
            "what is appended does not fit what is stored: " + "; ".join(wrong)
            + "; join the inputs and save them anew",
            variable=array.path,
        )  # fmt: skip


def _iter_changed_meaning(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the attributes by which numbers would mean something else than what is stored says."""
    unit, other = TimeUnit.from_attributes(old), TimeUnit.from_attributes(new)
    same_unit = unit is not None and other is not None and unit.same_as(other)
    for name, *values in iter_meaning_differences(old, new):
        if not (same_unit and name in ("units", "calendar")):
            yield name, values[0], values[1]


def _cuts(axis: Axis) -> tuple[Any, ...]:
    cells = np.arange(axis.ncells)
    is_short = axis.ncells < config.tuning.column_cells
    return tuple(axis.edge(cells).tolist()) if is_short else (axis,)


def _refuse_native(chunks: NativeChunks, array: Array, axis: int, last: int) -> None:
    if (marks := chunks.marks) is None:
        return
    cells = marks.find_marked(array.grid.grid_shape)
    if (cells[:, axis] == last).any():
        raise UnsupportedError(
            "the last chunks were written natively and reach past the end of the array: "
            "references cannot follow them; append values until they are full",
            variable=array.path,
        )


def _along(chunks: NativeChunks, axis: int) -> Configuration:
    """Return the configuration with an axis of growth: if that is another, all is one part."""
    configuration = chunks.configuration
    if configuration.axis != axis and len(configuration.parts) > 1:
        shape = chunks.metadata.grid.grid_shape
        manifest = chunks.references(axis, 0, shape[axis])
        name = save_part(chunks.store, chunks.path, manifest, relative_uris=configuration.relative)
        return replace(configuration, axis=axis, parts=(Stretch(name, shape),))
    return replace(configuration, axis=axis)


def _end_at(
    configuration: Configuration, grid_shape: tuple[int, ...], end: int
) -> tuple[Stretch, ...]:
    """Return parts that cover the cells up to one along the axis of growth, and no others."""
    axis = configuration.axis
    shape = (*grid_shape[:axis], end, *grid_shape[axis + 1 :])
    cut = configuration.cut(shape)
    if cut.length < end:  # cells that were added natively
        missing = (*grid_shape[:axis], end - cut.length, *grid_shape[axis + 1 :])
        return (*cut.parts, Stretch(None, missing))
    return cut.parts


def _large_parts(parts: tuple[Stretch, ...]) -> tuple[Stretch, ...]:
    """Return the parts without the small ones at the end."""
    count, small = len(parts), config.tuning.column_cells
    while count and math.prod(parts[count - 1].shape) < small:
        count -= 1
    return parts[:count]
