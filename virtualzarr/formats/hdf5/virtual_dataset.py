"""Virtual datasets as references to their sources, or else as a copy of their values.

The HDF5 library is never asked for a virtual dataset: it opens whatever files the names, links and
lists of external files in them lead to, and a damaged mapping ends the process.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.hdf5 import dataset as datasets
from virtualzarr.formats.hdf5 import header, inline_values, virtual_references
from virtualzarr.formats.hdf5.byte_source import UnknownStructureError
from virtualzarr.formats.hdf5.context import FileContext
from virtualzarr.formats.hdf5.dataset import Values
from virtualzarr.formats.hdf5.datatype import check_type, convert, decode_type, get_size, is_text
from virtualzarr.formats.hdf5.describe import Description
from virtualzarr.formats.hdf5.virtual_mappings import (
    UNLIMITED,
    AxisSelection,
    Mapping,
    Selection,
    read_mappings,
)
from virtualzarr.formats.hdf5.virtual_sources import VirtualSources, expand_mappings

_POINTER = 16  # bytes of an element that points to a heap

Selected = tuple[NDArray[np.int64], ...] | NDArray[np.bool_]
"""Indices along each axis, or which elements."""


def read(description: Description, context: FileContext) -> Values:
    """Find out how the values of a virtual dataset lie, or copy them: see `dataset.read_values`."""
    sources = VirtualSources(context, datasets.read_values)
    description, mappings = _expand(description, context, sources)
    shape, element = description.shape, description.element
    assert shape is not None
    if element.has_pointers:
        return _read_vlen(description, context, mappings, sources)
    try:
        stored, fill = _read_references(description, context, mappings, sources)
    except virtual_references.UnalignedError as reason:
        dataset = datasets.Dataset(description, context, element, shape + element.inner)
        raw = read_raw(description, context, mappings, str(reason))
        stored = datasets.make_inline(dataset, np.frombuffer(raw.tobytes(), np.uint8))
        fill = np.zeros((), element.dtype)[()]
    grid, manifest, pipeline = stored
    full = shape + element.inner
    return Values(full, element.dtype, grid, manifest, pipeline, fill, element.labels)


def _expand(
    description: Description, context: FileContext, sources: VirtualSources
) -> tuple[Description, list[Mapping]]:
    """Return what describes a virtual dataset as long as its sources now are, and its mappings."""
    if description.mappings is None or context.file.objects is None:
        raise UnsupportedError("only the HDF5 library could read this virtual dataset")
    shape = description.shape
    assert shape is not None
    width = context.file.objects.superblock.length_size
    stored = read_mappings(description.mappings, len(shape), width) if description.mappings else []
    now, plain = expand_mappings(stored, shape, sources)
    return replace(description, shape=now), plain


def _read_references(
    description: Description, context: FileContext, mappings: list[Mapping], sources: VirtualSources
) -> tuple[Any, Any]:
    """Return grid, references and codecs, and the fill value.

    Raises `UnalignedError` if references cannot stand for the dataset.
    """
    shape, element = description.shape, description.element
    assert shape is not None
    dataset = datasets.Dataset(description, context, element, shape + element.inner)
    if 0 in dataset.shape:
        return datasets.lay_out_empty(dataset), np.zeros((), element.dtype)[()]
    try:
        fill = datasets.find_fill_value(dataset, None)
    except UnsupportedError as error:
        raise virtual_references.UnalignedError(error.message) from error
    raw = np.asarray(fill, element.dtype).tobytes()
    pieces = virtual_references.align_mappings(mappings, shape, sources, element, raw)
    return virtual_references.assemble(pieces, dataset.shape, dataset.decoding().pipeline), fill


def read_raw(
    description: Description,
    context: FileContext,
    mappings: list[Mapping] | None = None,
    why: str = "",
) -> NDArray[Any]:
    """Return the elements of a virtual dataset as stored, of dtype V.

    Raises `UnsupportedError` if they are too many; `SourceError` if a selection contradicts the
    dataset that it is one of.
    """
    sources = VirtualSources(context, _read_source)
    if mappings is None:
        description, mappings = _expand(description, context, sources)
    message, fill = _read_stored_type(description, context)
    shape, width = description.shape, get_size(message)
    assert shape is not None
    try:
        inline_values.check_size(int(np.prod(shape, dtype=object)) * width)
    except UnsupportedError as error:
        reason = f" ({why})" if why else ""
        raise UnsupportedError(
            f"references cannot stand for the virtual dataset{reason}: {error.message}"
        ) from None
    out = np.full(shape, np.frombuffer(fill, f"V{width}")[0], f"V{width}")
    for mapping in mappings:
        source = sources.values(mapping)
        if source is not None:
            array, theirs = source
            inside, outside = _pair_selections(mapping, shape, array.shape)
            # HDF5 converts between the datatypes of source and virtual dataset on reading.
            picked = convert(theirs, message, _read_selected(array, outside))
            _write_selected(out, inside, picked)
    return out


def _read_stored_type(description: Description, context: FileContext) -> tuple[bytes, bytes]:
    """Return the datatype message of a dataset, and the bytes of its fill value."""
    try:
        if context.file.objects is None or description.address is None:
            raise UnknownStructureError("no object header that is understood")
        message = check_type(context.file.objects.messages(description.address)[header.TYPE])
        return message, datasets.read_fill(description, context, get_size(message))
    except UnknownStructureError as error:
        raise _library_only(error.message) from error


def _library_only(reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"only the HDF5 library could read this part of a virtual dataset: {reason}"
    )


def _read_source(description: Description, context: FileContext) -> tuple[Array, bytes]:
    """Return a source as an array of elements as stored, and its datatype message."""
    message, fill = _read_stored_type(description, context)
    if description.shape is None:
        raise UnsupportedError("a source of the virtual dataset has a null dataspace")
    if description.layout.kind != "virtual":
        try:
            values = datasets.read_opaque(description, context, len(fill))
        except UnknownStructureError as error:
            raise _library_only(error.message) from error
    else:
        raw = read_raw(description, context)
        pipeline = Pipeline([make("bytes")])
        values = datasets.make_inline_values(raw.dtype, raw.shape, raw.tobytes(), pipeline)
    return datasets.as_array(values), message


def _pair_selections(
    mapping: Mapping, shape: tuple[int, ...], theirs: tuple[int, ...]
) -> tuple[Selected, Selected]:
    """Return which elements of a dataset are which of a source, both in order of their indices.

    Raises `SourceError` if a selection reaches out of its dataset, or the two have other numbers of
    elements.
    """
    lengths: list[int | None] = []
    for selection, extents in ((mapping.inside, shape), (mapping.outside, theirs)):
        for axis, stop in selection.ends.items():
            if axis >= len(extents) or stop > extents[axis]:
                raise SourceError("a selection of a virtual dataset reaches out of a dataset")
        endless = selection.unlimited_axis
        lengths.append(None if endless is None else _count_endless(selection, endless, extents))
    if (lengths[0] is None) != (lengths[1] is None):
        raise SourceError("only one of two selections of a virtual dataset is without end")
    # What is without end goes as far as both do.
    most = None if lengths[0] is None or lengths[1] is None else min(lengths[0], lengths[1])
    inside, outside = (
        _locate(selection, extents, most)
        for selection, extents in ((mapping.inside, shape), (mapping.outside, theirs))
    )
    if _count_selected(inside) != _count_selected(outside):
        raise SourceError("two selections of a virtual dataset have other numbers of elements")
    return inside, outside


def _count_endless(selection: Selection, axis: int, extents: tuple[int, ...]) -> int:
    assert selection.parts is not None
    if len(selection.parts) != len(extents):
        raise SourceError("a selection of a virtual dataset has another number of axes")
    return len(_indices_along(selection.parts[axis], extents[axis]))


def _locate(selection: Selection, extents: tuple[int, ...], most: int | None) -> Selected:
    """Return which elements are selected, along an axis without end at most so many."""
    if selection.blocks is not None:
        return _mask(selection.blocks, extents)
    parts = selection.parts or virtual_references.select_all(extents)
    if len(parts) != len(extents):
        raise SourceError("a selection of a virtual dataset has another number of axes")
    indices = [_indices_along(part, extent) for part, extent in zip(parts, extents, strict=True)]
    if most is not None and selection.unlimited_axis is not None:
        indices[selection.unlimited_axis] = indices[selection.unlimited_axis][:most]
    return tuple(indices)


def _indices_along(part: AxisSelection, extent: int) -> NDArray[np.int64]:
    """Return the indices that are selected along one axis."""
    start, stride, count, block = part
    if block == UNLIMITED:
        inline_values.check_size(max(extent - start, 0))
        return np.arange(start, extent)
    if count == UNLIMITED:
        count = -(-max(extent - start, 0) // stride)
    inline_values.check_size(count * block)
    indices = (start + stride * np.arange(count)[:, None] + np.arange(block)).reshape(-1)
    return indices[indices < extent]


def _mask(blocks: NDArray[np.int64], extents: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return which elements lie in blocks."""
    inline_values.check_size(int(np.prod(extents, dtype=object)))
    selected = np.zeros(extents, np.bool_)
    if not len(blocks):
        return selected
    if blocks.shape[2] != len(extents):
        raise SourceError("a selection of a virtual dataset has another number of axes")
    # Blocks of one selection do not overlap: many that do would take any time.
    if int((blocks[:, 1] - blocks[:, 0] + 1).prod(axis=1).sum()) > selected.size:
        raise SourceError("the blocks of a selection of a virtual dataset overlap")
    for first, last in blocks.tolist():
        selected[tuple(slice(a, b + 1) for a, b in zip(first, last, strict=True))] = True
    return selected


def _count_selected(where: Selected) -> int:
    if isinstance(where, tuple):
        return int(np.prod([len(part) for part in where], dtype=object))
    return int(np.count_nonzero(where))


def _read_selected(array: Array, where: Selected) -> NDArray[Any]:
    """Read the selected elements, one after the other."""
    inline_values.check_size(_count_selected(where) * array.dtype.itemsize)
    if isinstance(where, tuple):
        return np.asarray(array.oindex[where]).reshape(-1) if where else np.asarray(array[()])[None]
    inline_values.check_size(array.size * array.dtype.itemsize)
    return np.asarray(array[...])[where]


def _write_selected(out: NDArray[Any], where: Selected, values: NDArray[Any]) -> None:
    """Write elements where they were selected."""
    if isinstance(where, tuple):
        box = np.ix_(*where)
        out[box] = values.reshape([len(part) for part in where])
    else:
        out[where] = values


def _read_vlen(
    description: Description, context: FileContext, mappings: list[Mapping], sources: VirtualSources
) -> Values:
    """Copy elements of variable length: text, and sequences of one kind of number."""
    shape = description.shape
    assert shape is not None
    message, fill = _read_stored_type(description, context)
    numbers = None if is_text(message) else inline_values.find_sequence_dtype(decode_type(message))
    # Fill values of variable length point into the heap of one file, references to objects of one
    # file: neither means anything among values of several.
    if any(fill) or not (is_text(message) or numbers):
        raise UnsupportedError(
            "a virtual dataset of references, of compounds of variable length, or of values of "
            "variable length with a fill value"
        )
    inline_values.check_size(int(np.prod(shape, dtype=object)) * _POINTER)
    empty = datasets.make_inline_values(*_encode(np.empty(0, object), numbers))
    out = np.empty(shape, object)
    out[...] = b""
    for mapping in mappings:
        values = sources.values(mapping)
        if values is None:
            continue
        if values.dtype != empty.dtype or values.pipeline != empty.pipeline:
            raise UnsupportedError("a source of the virtual dataset has another type")
        inside, outside = _pair_selections(mapping, shape, values.shape)
        elements = np.asarray(datasets.as_array(values)[...], object)
        picked = elements[np.ix_(*outside) if isinstance(outside, tuple) else outside].reshape(-1)
        _write_selected(out, inside, picked)
    return datasets.make_inline_values(*_encode(out, numbers))


def _encode(values: NDArray[Any], numbers: np.dtype[Any] | None) -> inline_values.InlineValues:
    """Return texts, or sequences of numbers, in the form that is kept."""
    items = values.reshape(-1).tolist()
    if numbers is None:
        texts = [item.encode() if isinstance(item, str) else bytes(item) for item in items]
        return inline_values.encode_texts(texts, values.shape)
    parts = [
        b"" if isinstance(item, bytes) else np.asarray(item, numbers).tobytes() for item in items
    ]
    return inline_values.encode_sequences(parts, values.shape, numbers)
