"""Elements written to a dataset: the chunks they are in become its own, the others stay."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.dataset.editing import Edit, Request
from virtualzarr.dataset.own_chunks import ChunkWriter, encode_chunk, with_checksum
from virtualzarr.dataset.row_replacement import request_replacement
from virtualzarr.dataset.verbs import NothingToDoError
from virtualzarr.errors import UnsupportedError
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Decoder, Manifest
from virtualzarr.manifest.manifest import CANONICAL
from virtualzarr.virtual.rechunk import get_axes

if TYPE_CHECKING:
    from virtualzarr.dataset.dataset import Dataset

Indices = list[NDArray[np.int64]]


def request_write(dataset: Dataset, path: str, selection: Any, values: Any) -> Request:
    """Elements get other values; see `Dataset.write`."""
    dimension, path = dataset.dimension, path.strip("/")
    array = dataset.growing_arrays().get(path)
    if array is None:
        raise UnsupportedError(
            f"only arrays that have the dimension {dimension!r} can be written to", variable=path
        )
    if path == dimension:
        raise UnsupportedError(
            "rows are found by their coordinates; replace the rows", variable=path
        )
    shape, axis = list(array.shape), array.dims.index(dimension)
    runs = dataset.read_runs()
    shape[axis] = len(runs)
    indices, new_values = normalize(selection, values, shape, array)
    if not new_values.size:
        return _request_nothing
    start, stop = int(indices[axis].min()), int(indices[axis].max()) + 1
    indices[axis] = indices[axis] - start

    def build(group: Group, writer: ChunkWriter) -> dict[str, Array]:
        rows = group[path]
        assert isinstance(rows, Array)
        return {path: replace_elements(rows, indices, new_values, writer)}

    return request_replacement(runs.slice(start, stop), "write", build)


def _request_nothing(dataset: Dataset) -> Edit:
    raise NothingToDoError("the selection has no elements")


def normalize(
    selection: Any, values: Any, shape: Sequence[int], array: Array
) -> tuple[Indices, NDArray[Any]]:
    """Return the selected indices along each axis, increasing, and a value for each element.

    Raises
    ------
    IndexError, ValueError, TypeError
        As numpy raises them for an assignment of this kind, or the selection is not one of
        integers, slices and an ellipsis.
    """
    items = list(selection) if isinstance(selection, tuple) else [selection]
    if sum(item is Ellipsis for item in items) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    at = next((k for k, item in enumerate(items) if item is Ellipsis), len(items))
    count = len(items) - (at < len(items))
    if count > len(shape):
        raise IndexError(f"{array.path!r} has {len(shape)} dimensions, not {count}")
    items[at : at + 1] = [slice(None)] * (len(shape) - count)
    # Indices increase, so that those in a cell are a slice of them; values are turned instead.
    indices: Indices = []
    taken: list[int | slice] = []
    for item, length in zip(items, shape, strict=True):
        if isinstance(item, slice):
            along = np.arange(length)[item]
            taken.append(
                slice(None, None, -1) if len(along) > 1 and along[0] > along[-1] else slice(None)
            )
            indices.append(np.sort(along))
        elif isinstance(item, int | np.integer) and not isinstance(item, bool | np.bool_):
            if not -length <= item < length:
                raise IndexError(f"index {item} is out of bounds for an axis of length {length}")
            indices.append(np.array([item % length]))
            taken.append(0)
        else:
            raise TypeError("elements are written by integers, slices and an ellipsis")
    dims = [len(along) for along, how in zip(indices, taken, strict=True) if isinstance(how, slice)]
    cast = np.broadcast_to(_cast(values, array.dtype), dims)
    flips = tuple(how for how in taken if isinstance(how, slice))
    # An element of an array of objects is no array.
    full = np.asarray(cast[flips], array.dtype).reshape([len(along) for along in indices])
    return indices, full


def _cast(values: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return values in a data type: floats may be rounded, but no integer or text is another."""
    uncast = np.asarray(values)
    are_integers = uncast.dtype.kind in "iu" and dtype.kind in "iu"
    cast = uncast.astype(dtype, casting="unsafe" if are_integers else "same_kind")
    if (are_integers or dtype.kind in "SU") and (cast != uncast).any():
        raise ValueError(f"some values do not fit in the data type {dtype}")
    return cast


def replace_elements(
    array: Array, indices: Indices, values: NDArray[Any], writer: ChunkWriter
) -> Array:
    """Return a virtual array with new chunks where elements change."""
    axes = get_axes(array)
    touched = [np.unique(a.cell_of(along)) for a, along in zip(axes, indices, strict=True)]
    # Columns are copied whole: cells that are not touched keep their references, in any file.
    manifest = array.manifest
    source, offset = np.array(manifest.source), np.array(manifest.offset)
    length = np.array(manifest.length)
    decoder = None if manifest.decoder is None else np.array(manifest.decoder)
    origin = None if manifest.origin is None else np.array(manifest.origin)
    decoders, pipeline = manifest.decoders, with_checksum(array.metadata.pipeline)
    decoder_number = CANONICAL
    if pipeline is not array.metadata.pipeline:
        decoder_number, decoders = len(decoders), (*decoders, Decoder(pipeline))
        decoder = np.full(manifest.shape, CANONICAL, np.int32) if decoder is None else decoder
    changed = []
    for numbers in product(*(cells.tolist() for cells in touched)):
        box, inner, outer = [], [], []
        for axis, cell, along in zip(axes, numbers, indices, strict=True):
            first = axis.start(cell)
            stop = first + axis.length(cell)
            low, high = np.searchsorted(along, [first, stop])
            box.append(slice(first, stop))
            inner.append(along[low:high] - first)
            outer.append(slice(low, high))
        block = np.array(array[tuple(box)]).reshape([part.stop - part.start for part in box])
        block[np.ix_(*inner)] = values[tuple(outer)]
        shape = tuple(axis.edge(cell) for axis, cell in zip(axes, numbers, strict=True))
        data = encode_chunk(pipeline, array.metadata, block, shape, array.path)
        if decoder is not None:
            decoder[numbers] = decoder_number
        if origin is not None:
            origin[numbers] = 0
        changed.append((numbers, data if data is None else writer.add(data)))
    writer.finish()
    count = len(manifest.sources)
    for numbers, location in changed:
        source[numbers] = -1
        if location is not None:
            number, offset[numbers], length[numbers] = location
            source[numbers] = count + number
    new = Manifest(
        manifest.shape, writer.sources(manifest.sources), source, offset, length,
        decoders=decoders, decoder=decoder, origin=origin,
    )  # fmt: skip
    return array.replace(array.metadata, new)
