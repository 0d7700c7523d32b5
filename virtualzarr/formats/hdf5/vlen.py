"""Variable-length values and references, read in rounds and without h5py.

Elements of variable length say how long they are, and which object of which collection they are.
All elements of a dataset are looked at together, and so is what they hold: a round of requests for
each level.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import RegularGrid
from virtualzarr.codecs import Pipeline
from virtualzarr.codecs.hdf5.check_datatype import ARRAY, COMPOUND, REFERENCE, SEQUENCE
from virtualzarr.codecs.hdf5.library_type import is_flat
from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.hdf5 import datatype, inline_values, region_references
from virtualzarr.formats.hdf5.byte_source import Parsing, UnknownStructureError
from virtualzarr.formats.hdf5.objects import Objects
from virtualzarr.manifest import Manifest

_MAX_DEPTH = 16
_TO_REGIONS = 1

Values = NDArray[Any]
Rows = NDArray[np.uint8]


def read_elements(
    grid: RegularGrid, manifest: Manifest, pipeline: Pipeline, fill: bytes, start: int
) -> Parsing[Values]:
    """Return the elements of a dataset as stored, of dtype V.

    Raises `SourceError` or `CodecError`; `UnsupportedError` if they take more than
    `config.inline_bytes`.

    Parameters
    ----------
    grid, manifest, pipeline
        How they lie.
    fill : bytes
        The element where nothing was written.
    start : int
        Byte of the file that address 0 is.
    """
    dtype = np.dtype((np.void, len(fill)))
    inline_values.check_size(math.prod(grid.shape) * dtype.itemsize)
    if manifest.nrefs:
        inline_values.check_size(math.prod(grid.chunk_shape) * dtype.itemsize)
    values = np.zeros(grid.shape, dtype)
    # Chunks that are not stored hold the fill value, which for strings points into the heap, too.
    values[...] = np.frombuffer(fill, dtype)[0]
    if not manifest.nrefs:
        return values
    stored = np.asarray(manifest.source) >= 0
    cells = np.argwhere(stored)
    offset, length = np.asarray(manifest.offset)[stored], np.asarray(manifest.length)[stored]
    first = manifest.sources[0]
    if first.is_inline:
        assert first.data is not None
        parts: Any = [first.data]
    else:
        # Offsets of manifests count from byte 0, requests of parsers from the superblock.
        parts = yield list(zip((offset - start).tolist(), length.tolist(), strict=True))
    kinds = [-1] * len(cells) if manifest.decoder is None else manifest.decoder[stored].tolist()
    for cell, part, skip, nbytes in zip(cells.tolist(), parts, kinds, length.tolist(), strict=True):
        if len(part) < nbytes:
            raise SourceError("the file ends inside a chunk")
        chunk_pipeline = pipeline if skip < 0 else manifest.decoders[skip].pipeline
        block = chunk_pipeline.for_block(grid.chunk_shape, dtype).decode(part)
        # Chunks at the edge are stored whole: what lies beyond the extent is cut off.
        begin = [k * n for k, n in zip(cell, grid.chunk_shape, strict=True)]
        end = [min(k + n, m) for k, n, m in zip(begin, grid.chunk_shape, grid.shape, strict=True)]
        inside = tuple(slice(b - a) for a, b in zip(begin, end, strict=True))
        values[tuple(map(slice, begin, end))] = block[inside]
    return values


def decode_elements(
    objects: Objects, names: Mapping[int, str], message: bytes, stored: Values
) -> Parsing[inline_values.InlineValues]:
    """Return what the elements of a dataset stand for, in the form that is kept.

    Raises `SourceError`; `UnsupportedError` if the values take more than `config.inline_bytes`, or
    have no such form; `UnknownStructureError` if only h5py can read them.

    Parameters
    ----------
    objects : Objects
        Of the file.
    names : mapping
        Path of each object of the file by address.
    message : bytes
        Datatype of the elements.
    stored : array
        The elements as stored, of dtype V.
    """
    shape, rows = stored.shape, np.frombuffer(stored.tobytes(), np.uint8)
    while datatype.get_class(message) == ARRAY:
        shape += datatype.get_array_dims(message)
        message = datatype.get_base_type(message)
    rows = rows.reshape(math.prod(shape), datatype.get_size(message))
    reader = _Reader(objects, names)
    if datatype.is_text(message):
        return inline_values.encode_texts((yield from reader.read_texts(rows)), shape)
    numbers = inline_values.find_sequence_dtype(datatype.decode_type(message))
    if numbers is not None and datatype.find_memory_type(datatype.get_base_type(message)).same:
        parts = yield from reader.read_bytes(rows, numbers.itemsize)
        return inline_values.encode_sequences(parts, shape, numbers)
    values = yield from reader.read(message, rows, 0)
    return inline_values.encode_objects(
        datatype.decode_type(message), values.reshape(shape), None, names
    )


def read_texts(objects: Objects, rows: Rows) -> Parsing[list[bytes]]:
    """Return strings of variable length, given as stored: one in each row of bytes."""
    return (yield from _Reader(objects, {}).read_texts(rows))


class _Reader:
    """Makes of rows of bytes, each an element, what h5py would; references become paths."""

    def __init__(self, objects: Objects, names: Mapping[int, str]) -> None:
        self.objects = objects
        self.heap = objects.heap
        self.names = names

    def read(self, message: bytes, rows: Rows, depth: int) -> Parsing[Values]:
        """Return the values of a datatype, one in each row of bytes."""
        if depth > _MAX_DEPTH:
            raise UnsupportedError(f"the datatype is nested more than {_MAX_DEPTH} levels deep")
        if datatype.get_class(message) == ARRAY:
            inner, dims = datatype.get_base_type(message), datatype.get_array_dims(message)
            rows = rows.reshape(len(rows) * math.prod(dims), datatype.get_size(inner))
            values = yield from self.read(inner, rows, depth + 1)
            return values.reshape(-1, *dims, *values.shape[1:])
        if datatype.get_class(message) == COMPOUND and not is_flat(datatype.decode_type(message)):
            return (yield from self._read_compound(message, rows, depth))
        if datatype.is_text(message):
            return _to_object_array((yield from self.read_texts(rows)))
        if datatype.get_class(message) == SEQUENCE:
            return (yield from self._read_sequences(datatype.get_base_type(message), rows, depth))
        if datatype.get_class(message) == REFERENCE and message[1] & 15 == _TO_REGIONS:
            return _to_object_array((yield from self._describe_regions(rows)))
        if datatype.get_class(message) == REFERENCE:
            return self._resolve_paths(message, rows)
        return _read_flat(message, rows)

    def read_bytes(self, rows: Rows, width: int) -> Parsing[list[bytes]]:
        """Return the bytes that elements of variable length point to.

        Parameters
        ----------
        rows : array
            Length, address of a collection and index of an object in it.
        width : int
            Bytes that the length counts by.
        """
        superblock = self.heap.superblock
        wide = superblock.address_size
        if rows.shape[1] != 8 + wide:
            raise SourceError(f"elements of variable length have {rows.shape[1]} bytes")
        length = _decode_column(rows, 0, 4).astype(np.int64)
        address, index = _decode_column(rows, 4, wide), _decode_column(rows, 4 + wide, 4)
        present = (length > 0) & (address > 0) & (address != superblock.undefined)
        length = np.where(present, length * width, 0)
        # Elements may point to the same place: what is small in the file may be large here.
        inline_values.check_size(int(length.sum()) + 4 * len(rows))
        objects = yield from self.heap.get_all(
            address[present].astype(np.uint64), index[present], length[present]
        )
        if len(objects) == len(rows):
            return objects
        parts = [b""] * len(rows)
        for k, part in zip(np.flatnonzero(present).tolist(), objects, strict=True):
            parts[k] = part
        return parts

    def read_texts(self, rows: Rows) -> Parsing[list[bytes]]:
        """Return strings of variable length, which end before the first NUL."""
        parts = yield from self.read_bytes(rows, 1)
        # One search through all of them: texts with a NUL inside are rare, and splitting each is
        # slow.
        if b"\0" in b"".join(parts):
            parts = [part.split(b"\0", 1)[0] for part in parts]
        return parts

    def _read_sequences(self, message: bytes, rows: Rows, depth: int) -> Parsing[Values]:
        width = datatype.get_size(message)
        parts = yield from self.read_bytes(rows, width)
        # Items of all sequences are read as one array, so that nesting costs a round a level, not a
        # round an element.
        ends = np.cumsum([len(part) // width for part in parts], dtype=np.int64)
        items = np.frombuffer(b"".join(parts), np.uint8).reshape(-1, width)
        values = yield from self.read(message, items, depth + 1)
        return _to_object_array(np.split(values, ends[:-1]) if len(ends) else [])

    def _read_compound(self, message: bytes, rows: Rows, depth: int) -> Parsing[Values]:
        fields, dtype = [], []
        # Names by h5py, offsets from the message: in memory, pointers have another length than in
        # files.
        names = datatype.decode_type(message).dtype.names
        for name, (offset, member) in zip(names, datatype.list_members(message), strict=True):
            raw = np.ascontiguousarray(rows[:, offset : offset + datatype.get_size(member)])
            field = yield from self.read(member, raw, depth + 1)
            fields.append((name, field))
            dtype.append((name, field.dtype, field.shape[1:]))
        out = np.zeros(len(rows), np.dtype(dtype))
        for name, field in fields:
            out[name] = field
        return out

    def _resolve_paths(self, message: bytes, rows: Rows) -> Values:
        """Return the paths of what references point to, "" for those to nothing."""
        if message[1] & 15 or rows.shape[1] != self.heap.superblock.address_size:
            raise UnknownStructureError("references of another kind")
        return _to_object_array(
            [self._resolve_path(at) for at in _decode_column(rows, 0, rows.shape[1]).tolist()]
        )

    def _resolve_path(self, address: int) -> str:
        if not address:
            return ""
        if address not in self.names:
            raise UnknownStructureError("a reference to what no link leads to")
        return f"/{self.names[address]}"

    def _describe_regions(self, rows: Rows) -> Parsing[list[str]]:
        """Return what references to regions point to, as JSON."""
        wide = self.heap.superblock.address_size
        if rows.shape[1] != wide + 4:
            raise UnknownStructureError("references of another kind")
        # References are often repeated, and decoding one asks the HDF5 library.
        distinct, which = np.unique(rows, axis=0, return_inverse=True)
        present = _decode_column(distinct, 0, wide) > 0
        objects = yield from self.heap.get_all(
            _decode_column(distinct, 0, wide)[present].astype(np.uint64),
            _decode_column(distinct, wide, 4)[present],
        )
        texts = ["null"] * len(distinct)
        for k, data in zip(np.flatnonzero(present).tolist(), objects, strict=True):
            texts[k] = self._describe_region(data)
        return [texts[k] for k in which.reshape(-1).tolist()]

    def _describe_region(self, data: bytes) -> str:
        superblock = self.heap.superblock
        address = superblock.address(data, 0)
        path, extent = self._resolve_path(address), self.objects.extent(address)
        if extent is None:
            raise UnknownStructureError("a reference to a region of what is no dataset")
        selection = data[superblock.address_size :]
        space = region_references.decode_selection(extent, selection, superblock.length_size)
        return json.dumps(region_references.describe_selection(path, space))


def _read_flat(message: bytes, rows: Rows) -> Values:
    how = datatype.find_memory_type(message)
    base, inner = how.dtype.subdtype or (how.dtype, ())
    values = how.values(rows.tobytes(), len(rows))
    return values.view(base).reshape(len(rows), *inner)


def _decode_column(rows: Rows, at: int, width: int) -> NDArray[Any]:
    """Return little-endian numbers that lie in a column of bytes."""
    return np.ascontiguousarray(rows[:, at : at + width]).view(f"<u{width}").reshape(len(rows))


def _to_object_array(items: list[Any]) -> Values:
    out = np.empty(len(items), object)
    for k, item in enumerate(items):  # at once, numpy would take sequences for axes
        out[k] = item
    return out
