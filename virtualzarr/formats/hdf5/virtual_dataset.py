"""Values of HDF5 virtual datasets: references to their sources, or else a copy of what those hold.

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
from virtualzarr.formats.hdf5 import header, inlined, virtual
from virtualzarr.formats.hdf5.context import Surroundings
from virtualzarr.formats.hdf5.dataset import Values
from virtualzarr.formats.hdf5.datatype import checked, convert, decoded, is_text, size
from virtualzarr.formats.hdf5.describe import Described
from virtualzarr.formats.hdf5.mappings import UNLIMITED, Mapping, Part, Selection, read_mappings
from virtualzarr.formats.hdf5.unsupported import Unknown
from virtualzarr.formats.hdf5.virtual_sources import VirtualSources, expand_mappings

_POINTER = 16  # bytes of an element that points to a heap

Where = tuple[NDArray[np.int64], ...] | NDArray[np.bool_]
"""Indices along each axis, or which elements."""


def read(described: Described, near: Surroundings) -> Values:
    """Find out how the values of a virtual dataset lie, or copy them: see `dataset.read_values`."""
    sources = VirtualSources(near, datasets.read_values)
    described, mappings = _present(described, near, sources)
    shape, element = described.shape, described.element
    assert shape is not None
    if element.elsewhere:
        return _objects(described, near, mappings, sources)
    try:
        found, given = _aligned(described, near, mappings, sources)
    except virtual.Unaligned as reason:
        dataset = datasets.Dataset(described, near, element, shape + element.inner)
        raw = read_raw(described, near, mappings, str(reason))
        found = datasets.inline(dataset, np.frombuffer(raw.tobytes(), np.uint8))
        given = np.zeros((), element.dtype)[()]
    grid, manifest, pipeline = found
    full = shape + element.inner
    return Values(full, element.dtype, grid, manifest, pipeline, given, element.labels)


def _present(
    described: Described, near: Surroundings, sources: VirtualSources
) -> tuple[Described, list[Mapping]]:
    """Return what describes a virtual dataset as long as its sources now are, and its mappings."""
    if described.mappings is None or near.file.objects is None:
        raise UnsupportedError("only the HDF5 library could read this virtual dataset")
    shape = described.shape
    assert shape is not None
    width = near.file.objects.superblock.length_size
    stored = read_mappings(described.mappings, len(shape), width) if described.mappings else []
    now, plain = expand_mappings(stored, shape, sources)
    return replace(described, shape=now), plain


def _aligned(
    described: Described, near: Surroundings, mappings: list[Mapping], sources: VirtualSources
) -> tuple[Any, Any]:
    """Return grid, references and codecs, and the fill value.

    Raises
    ------
    Unaligned
        If references cannot stand for the dataset.
    """
    shape, element = described.shape, described.element
    assert shape is not None
    dataset = datasets.Dataset(described, near, element, shape + element.inner)
    if 0 in dataset.shape:
        return datasets.lay_nothing(dataset), np.zeros((), element.dtype)[()]
    try:
        given = datasets.fill_value(dataset, None)
    except UnsupportedError as error:
        raise virtual.Unaligned(error.message) from error
    raw = np.asarray(given, element.dtype).tobytes()
    found = virtual.pieces(mappings, shape, sources, element, raw)
    return virtual.assemble(found, dataset.shape, dataset.decoding().pipeline), given


def read_raw(
    described: Described, near: Surroundings, mappings: list[Mapping] | None = None, why: str = ""
) -> NDArray[Any]:
    """Return the elements of a virtual dataset as stored, of dtype V.

    Raises
    ------
    UnsupportedError
        If they are too many.
    SourceError
        If a selection contradicts the dataset that it is one of.
    """
    sources = VirtualSources(near, _as_stored)
    if mappings is None:
        described, mappings = _present(described, near, sources)
    message, given = _stored_type(described, near)
    shape, width = described.shape, size(message)
    assert shape is not None
    try:
        inlined.check_size(int(np.prod(shape, dtype=object)) * width)
    except UnsupportedError as error:
        reason = f" ({why})" if why else ""
        raise UnsupportedError(
            f"references cannot stand for the virtual dataset{reason}: {error.message}"
        ) from None
    out = np.full(shape, np.frombuffer(given, f"V{width}")[0], f"V{width}")
    for mapping in mappings:
        source = sources.values(mapping)
        if source is not None:
            array, theirs = source
            inside, outside = _pair(mapping, shape, array.shape)
            picked = convert(theirs, message, _take(array, outside))
            _put(out, inside, picked)
    return out


def _stored_type(described: Described, near: Surroundings) -> tuple[bytes, bytes]:
    """Return the datatype message of a dataset, and the bytes of its fill value."""
    try:
        if near.file.objects is None or described.address is None:
            raise Unknown("no object header that is understood")
        message = checked(near.file.objects.messages(described.address)[header.TYPE])
        return message, datasets.read_fill(described, near, size(message))
    except Unknown as error:
        raise _only_library(error.message) from error


def _only_library(reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"only the HDF5 library could read this part of a virtual dataset: {reason}"
    )


def _as_stored(described: Described, near: Surroundings) -> tuple[Array, bytes]:
    """Return a source as an array of elements as stored, and its datatype message."""
    message, given = _stored_type(described, near)
    if described.shape is None:
        raise UnsupportedError("a source of the virtual dataset has a null dataspace")
    if described.layout.kind != "virtual":
        try:
            found = datasets.as_stored_elements(described, near, len(given))
        except Unknown as error:
            raise _only_library(error.message) from error
    else:
        raw = read_raw(described, near)
        pipeline = Pipeline([make("bytes")])
        found = datasets.inline_values(raw.dtype, raw.shape, raw.tobytes(), pipeline)
    return datasets.as_array(found), message


def _pair(mapping: Mapping, shape: tuple[int, ...], theirs: tuple[int, ...]) -> tuple[Where, Where]:
    """Return which elements of a dataset are which of a source, both in order of their indices.

    Raises
    ------
    SourceError
        If a selection reaches out of its dataset, or the two have other numbers of elements.
    """
    lengths: list[int | None] = []
    for selection, extents in ((mapping.inside, shape), (mapping.outside, theirs)):
        for axis, stop in selection.ends.items():
            if axis >= len(extents) or stop > extents[axis]:
                raise SourceError("a selection of a virtual dataset reaches out of a dataset")
        endless = selection.endless
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


def _locate(selection: Selection, extents: tuple[int, ...], most: int | None) -> Where:
    """Return which elements are selected, along an axis without end at most so many."""
    if selection.blocks is not None:
        return _mask(selection.blocks, extents)
    parts = selection.parts or virtual.select_all(extents)
    if len(parts) != len(extents):
        raise SourceError("a selection of a virtual dataset has another number of axes")
    found = [_indices_along(part, extent) for part, extent in zip(parts, extents, strict=True)]
    if most is not None and selection.endless is not None:
        found[selection.endless] = found[selection.endless][:most]
    return tuple(found)


def _indices_along(part: Part, extent: int) -> NDArray[np.int64]:
    """Return the indices that are selected along one axis."""
    start, stride, count, block = part
    if block == UNLIMITED:
        inlined.check_size(max(extent - start, 0))
        return np.arange(start, extent)
    if count == UNLIMITED:
        count = -(-max(extent - start, 0) // stride)
    inlined.check_size(count * block)
    found = (start + stride * np.arange(count)[:, None] + np.arange(block)).reshape(-1)
    return found[found < extent]


def _mask(blocks: NDArray[np.int64], extents: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return which elements lie in blocks."""
    inlined.check_size(int(np.prod(extents, dtype=object)))
    found = np.zeros(extents, np.bool_)
    if not len(blocks):
        return found
    if blocks.shape[2] != len(extents):
        raise SourceError("a selection of a virtual dataset has another number of axes")
    # Blocks of one selection do not overlap: many that do would take any time.
    if int((blocks[:, 1] - blocks[:, 0] + 1).prod(axis=1).sum()) > found.size:
        raise SourceError("the blocks of a selection of a virtual dataset overlap")
    for first, last in blocks.tolist():
        found[tuple(slice(a, b + 1) for a, b in zip(first, last, strict=True))] = True
    return found


def _count_selected(where: Where) -> int:
    if isinstance(where, tuple):
        return int(np.prod([len(part) for part in where], dtype=object))
    return int(np.count_nonzero(where))


def _take(array: Array, where: Where) -> NDArray[Any]:
    """Read the selected elements, one after the other."""
    inlined.check_size(_count_selected(where) * array.dtype.itemsize)
    if isinstance(where, tuple):
        return np.asarray(array.oindex[where]).reshape(-1) if where else np.asarray(array[()])[None]
    inlined.check_size(array.size * array.dtype.itemsize)
    return np.asarray(array[...])[where]


def _put(out: NDArray[Any], where: Where, values: NDArray[Any]) -> None:
    """Write elements where they were selected."""
    if isinstance(where, tuple):
        box = np.ix_(*where)
        out[box] = values.reshape([len(part) for part in where])
    else:
        out[where] = values


def _objects(
    described: Described, near: Surroundings, mappings: list[Mapping], sources: VirtualSources
) -> Values:
    """Copy elements of variable length: text, and sequences of one kind of number."""
    shape = described.shape
    assert shape is not None
    message, given = _stored_type(described, near)
    numbers = None if is_text(message) else inlined.sequence(decoded(message))
    if any(given) or not (is_text(message) or numbers):
        raise UnsupportedError(
            "a virtual dataset of references, of compounds of variable length, or of values of "
            "variable length with a fill value"
        )
    inlined.check_size(int(np.prod(shape, dtype=object)) * _POINTER)
    empty = datasets.inline_values(*_encode(np.empty(0, object), numbers))
    out = np.empty(shape, object)
    out[...] = b""
    for mapping in mappings:
        values = sources.values(mapping)
        if values is None:
            continue
        if values.dtype != empty.dtype or values.pipeline != empty.pipeline:
            raise UnsupportedError("a source of the virtual dataset has another type")
        inside, outside = _pair(mapping, shape, values.shape)
        whole = np.asarray(datasets.as_array(values)[...], object)
        picked = whole[np.ix_(*outside) if isinstance(outside, tuple) else outside].reshape(-1)
        _put(out, inside, picked)
    return datasets.inline_values(*_encode(out, numbers))


def _encode(values: NDArray[Any], numbers: np.dtype[Any] | None) -> inlined.Copied:
    """Return texts, or sequences of numbers, in the form that is kept."""
    items = values.reshape(-1).tolist()
    if numbers is None:
        texts = [item.encode() if isinstance(item, str) else bytes(item) for item in items]
        return inlined.texts(texts, values.shape)
    parts = [
        b"" if isinstance(item, bytes) else np.asarray(item, numbers).tobytes() for item in items
    ]
    return inlined.sequences(parts, values.shape, numbers)
