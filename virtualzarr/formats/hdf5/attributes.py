"""Attributes of HDF5 objects: those that users wrote, and the bookkeeping of dimension scales."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Any

import numpy as np

from virtualzarr.batches.schema import copy_json
from virtualzarr.codecs.hdf5.check_datatype import FLOAT, INTEGER, REFERENCE, SEQUENCE, STRING
from virtualzarr.errors import SourceError, UnsupportedError, VirtualZarrError
from virtualzarr.formats.hdf5 import (
    attribute_values,
    byte_source,
    declare,
    h5py_fallback,
    heaps,
    links,
)
from virtualzarr.formats.hdf5.datatype import get_class, is_text, to_h5py_type
from virtualzarr.formats.hdf5.header import (
    ATTRIBUTE_INFO,
    SPACE,
    TYPE,
    ObjectHeader,
    resolve_shared,
)
from virtualzarr.formats.hdf5.superblock import Superblock
from virtualzarr.metadata import json_attributes

# Bookkeeping of the HDF5 dimension scales and of netCDF4, no part of what users wrote.
_HIDDEN = frozenset(
    {
        "REFERENCE_LIST", "DIMENSION_LIST", "_Netcdf4Dimid", "_Netcdf4Coordinates",
        "_nc3_strict", "_NCProperties", "_NCCOPY",
    }
)  # fmt: skip
_OF_SCALES = ("CLASS", "NAME")

_H5PY_ERRORS = (TypeError, ValueError, OSError, RuntimeError, KeyError, MemoryError)
_DENSE_RECORDS = 8
# Texts of an attribute that are decoded anew for each file of many that are alike.
_MAX_TEXTS = 64
_NOT_CONVERTED = object()
# Of JSON that no two objects may share, and of none.
_MUTABLE = frozenset({list, dict, object})
_HEAD = struct.Struct("<BBHHH")

Complain = Callable[[str, str], None]


@dataclass(slots=True)
class Attributes:
    """The attributes of one object.

    Parameters
    ----------
    user : dict
        What users wrote, as JSON values.
    bookkeeping : dict
        The bookkeeping, as numpy gives it; references as addresses of object headers.
    """

    user: dict[str, Any] = field(default_factory=dict)
    bookkeeping: dict[str, Any] = field(default_factory=dict)

    @property
    def is_scale(self) -> bool:
        """Whether the object is an HDF5 dimension scale."""
        return self.bookkeeping.get("CLASS") == "DIMENSION_SCALE"


class AttributeReader:
    """Shows attributes to users, and reads with h5py those that only it can read.

    Parameters
    ----------
    names : mapping
        Path of each object of the file by address: what references are replaced by.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self.names = names
        self._kinds: dict[bytes, _AttributeType] = {}

    def show(
        self,
        stored: Sequence[Attribute],
        complain: Complain,
        opened: Callable[[str, str], h5py_fallback.LibraryObject],
    ) -> Attributes:
        """Return what was found as users see it.

        Parameters
        ----------
        complain : callable
            Called with the name and the reason for each attribute that cannot be read.
        opened : callable
            Gets the name of an attribute and why the HDF5 library is asked for it; returns the
            object as that has it.
        """
        attributes = Attributes()
        shown, hidden = attributes.user, attributes.bookkeeping
        for attribute in stored:
            # The most frequent path of files with many attributes: an immutable value, converted
            # before.
            if type(attribute.json_value) not in _MUTABLE:
                shown[attribute.name] = attribute.json_value
                continue
            value = attribute.value
            if isinstance(value, byte_source.UnknownStructureError):
                value = self._ask_library(attribute.name, opened(attribute.name, value.message))
            if isinstance(value, VirtualZarrError):
                complain(attribute.name, value.message)
            elif attribute.name in _HIDDEN:
                hidden[attribute.name] = value
            elif type(value) in (list, attribute_values.Address):
                shown |= json_attributes({attribute.name: replace_addresses(value, self.names)})
            else:
                fresh = value is not attribute.value
                plain = (Attribute(attribute.name, value) if fresh else attribute).to_json()
                if plain is not _NOT_CONVERTED:
                    shown[attribute.name] = plain
        # Only with this class is NAME bookkeeping of the dimension scale specification, not a
        # user's own.
        if shown.get("CLASS") == "DIMENSION_SCALE":
            hidden.update({name: shown.pop(name, "") for name in _OF_SCALES})
        return attributes

    def list_with_h5py(self, oid: Any) -> list[Attribute]:
        """Read all attributes of an h5py object identifier."""
        from h5py import h5a

        attributes = []
        for index in range(h5a.get_num_attrs(oid)):
            name = f"number {index}"
            try:
                # By index: an attribute that cannot be opened then costs itself alone.
                aid = h5a.open(oid, index=index)
                name = aid.name.decode("utf-8", "backslashreplace")
                value = None if name == "REFERENCE_LIST" else self._read_value(aid)
            except UnsupportedError as error:
                value = error
            except _H5PY_ERRORS as error:
                value = UnsupportedError(f"h5py cannot read it: {error}")
            if name != "REFERENCE_LIST":
                attributes.append(Attribute(name, value))
        return attributes

    def _ask_library(self, name: str, remote: h5py_fallback.LibraryObject) -> Any:
        """Return the value of one attribute that h5py reads, or why it cannot."""
        try:
            values = dict(remote.attributes())
        except VirtualZarrError as error:
            return error
        return values.get(name, UnsupportedError("h5py has no such attribute"))

    def _read_value(self, aid: Any) -> Any:
        """Read one attribute as numpy values; references become `Address`."""
        kind = self._cached_type(aid.get_type())
        extents = aid.get_space().get_simple_extent_dims()
        if extents is None:  # a null dataspace
            return "" if kind.text else []
        shape = extents + kind.inner
        attribute_values.check_attribute_size(shape, kind.base.itemsize)
        # Zeroed, not empty: what a damaged sequence leaves unset would otherwise be foreign memory.
        values = np.zeros(shape, kind.base)
        aid.read(values, mtype=kind.memory)
        if shape == (1,):  # netCDF keeps every single value as a list of one
            values = values.reshape(())
        return _to_plain_objects(values, aid) if kind.base.kind == "O" else values

    def _cached_type(self, tid: Any) -> _AttributeType:
        key = tid.encode()
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _describe_type(tid)
        return kind


@dataclass(frozen=True)
class _AttributeType:
    """What there is to know about an HDF5 datatype to read attributes of it."""

    base: np.dtype[Any]
    inner: tuple[int, ...]
    memory: Any
    text: bool


def _describe_type(tid: Any) -> _AttributeType:
    from h5py import h5t

    attribute_values.check_readable(tid)
    dtype = tid.dtype
    base, inner = dtype.subdtype or (dtype, ())
    return _AttributeType(base, inner, to_h5py_type(dtype), tid.get_class() == h5t.STRING)


def _to_plain_objects(values: Any, oid: Any) -> Any:
    """Return the objects h5py gives as lists of plain ones."""
    from h5py import h5o, h5r

    if isinstance(values, np.ndarray) and values.dtype.hasobject:
        if values.ndim == 0:
            return _to_plain_objects(values[()], oid)
        return [_to_plain_objects(part, oid) for part in values]
    if isinstance(values, h5r.Reference):
        target = h5r.dereference(values, oid) if values else None
        return attribute_values.Address(-1 if target is None else h5o.get_info(target).addr)
    return values


def replace_addresses(value: Any, names: Mapping[int, str]) -> Any:
    """Replace addresses by the paths of the objects there."""
    if isinstance(value, list):
        return [replace_addresses(item, names) for item in value]
    if isinstance(value, attribute_values.Address):
        return f"/{names[value]}" if value in names else ""
    return value


@dataclass(slots=True)
class Attribute:
    """An attribute as the file has it.

    Parameters
    ----------
    value : object
        As `AttributeReader` reads values, or the error that prevented it.
    json_value : object
        The value as JSON, once `to_json` was asked for it.
    """

    name: str
    value: Any
    json_value: Any = _NOT_CONVERTED

    def to_json(self) -> Any:
        """Return the value as JSON; `_NOT_CONVERTED` if it has no such form, which warns."""
        if self.json_value is _NOT_CONVERTED:
            if type(self.value) is bytes:  # the most frequent
                try:
                    self.json_value = self.value.rstrip(b"\0").decode("utf-8")
                except UnicodeDecodeError:
                    pass
                else:
                    return self.json_value
            self.json_value = json_attributes({self.name: self.value}).get(
                self.name, _NOT_CONVERTED
            )
        return copy_json(self.json_value)


def read(
    superblock: Superblock, heap: heaps.GlobalHeap, header: ObjectHeader
) -> byte_source.Parsing[list[Attribute]]:
    """Read the attributes of an object, by name.

    HDF5 file format specification, sections IV.A.2.m and IV.A.2.v.

    Raises
    ------
    SourceError, UnknownStructureError
        If they cannot be listed; what one of them lacks is its value.
    """
    messages, positions = header.attributes, header.attributes_at
    info = header.messages.get(ATTRIBUTE_INFO)
    if info is not None:
        dense, dense_at = yield from _read_dense(superblock, info, header.positions[ATTRIBUTE_INFO])
        messages, positions = messages + dense, positions + dense_at
    attributes = []
    for message in messages:
        # By the bytes of the whole message: `units` or `_FillValue` are the same in many objects.
        parsed = heap.attributes.get(message)
        if parsed is None:
            parsed = heap.attributes[message] = yield from _parse_attribute(
                superblock, heap, message
            )
        attributes.append(parsed)
    if superblock.recorder is not None:
        if len({attribute.name for _, attribute in attributes}) < len(attributes):
            superblock.recorder.forbid("attributes of one name")
        for message, at, (_, attribute) in zip(messages, positions, attributes, strict=True):
            span = find_fixed_values(message, attribute.value, superblock.length_size)
            if span is not None and at >= 0:
                declare.declare_attribute(
                    superblock.recorder, header.address, attribute.name, message, *span, at
                )
    attributes.sort(key=_name)
    return [attribute for _, attribute in attributes if attribute.name != "REFERENCE_LIST"]


_name = itemgetter(0)


def _read_dense(
    superblock: Superblock, info: bytes, info_at: int
) -> byte_source.Parsing[tuple[list[bytes], list[int]]]:
    if len(info) < 2 or info[0] != 0:
        raise byte_source.UnknownStructureError("attribute info message of another version")
    at = 4 if info[1] & 1 else 2
    heap = superblock.address(info, at)
    if heap == superblock.undefined:
        return [], []
    tree_at = at + superblock.address_size
    tree = superblock.address(info, tree_at)
    superblock.point(info_at + at if info_at >= 0 else -1, heap)
    superblock.point(info_at + tree_at if info_at >= 0 else -1, tree)
    return (yield from links.read_dense(superblock, heap, tree, _DENSE_RECORDS, 0))


def find_fixed_values(message: bytes, value: Any, length_size: int) -> tuple[int, int] | None:
    """Return which bytes of an attribute message are values that lie in it and warn of nothing.

    None where other bytes of the same number could not just be decoded in their place: values that
    point elsewhere, or are not numbers or a few texts.
    """
    if value is None or isinstance(value, VirtualZarrError):
        return None
    start = _find_data_start(message)
    head = _parse_head(message[:start])
    if head.flags & 3:  # a shared message
        return None
    element, shape, count, width = attribute_values.count_elements(
        head.datatype, head.extents, length_size
    )
    number = get_class(element) in (INTEGER, FLOAT) and width <= 8
    text = get_class(element) == STRING and count <= _MAX_TEXTS
    return (start, start + count * width) if shape is not None and (number or text) else None


def decode_fixed(message: bytes, length_size: int) -> Attribute | None:
    """Return the attribute of a message for whose like `find_fixed_values` named the values.

    None where that warns, as of text that is not UTF-8.
    """
    start = _find_data_start(message)
    head = _parse_head(message[:start])
    element, shape, count, width = attribute_values.count_elements(
        head.datatype, head.extents, length_size
    )
    assert shape is not None
    try:
        value = _decode_values(element, shape, count, width, message[start:])
        if get_class(element) == STRING:
            for text in np.asarray(value).reshape(-1).tolist():
                text.rstrip(b"\0").decode("utf-8")
    except (VirtualZarrError, UnicodeDecodeError):
        return None
    return Attribute(head.text, value)


def _decode_values(
    element: bytes, shape: tuple[int, ...], count: int, width: int, data: bytes
) -> Any:
    """Return values that do not lie in heaps."""
    if not shape and get_class(element) == STRING and not element[1] & 15:
        return data[:width].split(b"\0")[0]  # the most frequent, and ended by a NUL
    return attribute_values.as_array(element, data, count).reshape(shape)


def _parse_attribute(
    superblock: Superblock, heap: heaps.GlobalHeap, message: bytes
) -> byte_source.Parsing[tuple[bytes, Attribute]]:
    """Read an attribute message, versions 1 to 3."""
    start = _find_data_start(message)
    head = _parse_head(message[:start])
    if head.text == "REFERENCE_LIST":  # who uses a scale: long, and its users say it, too
        return head.name, Attribute(head.text, None)
    datatype, extents = head.datatype, head.extents
    value: Any
    try:
        # Flags of versions 2 and 3: datatype (bit 0) or dataspace (bit 1) is a shared message.
        if head.flags & 1:
            datatype = yield from resolve_shared(superblock, datatype, TYPE, 0)
        if head.flags & 2:
            extents = yield from resolve_shared(superblock, extents, SPACE, 0)
        element, shape, count, width = attribute_values.count_elements(
            datatype, extents, superblock.length_size
        )
        if shape is None:  # a null dataspace
            value = "" if get_class(element) == STRING or is_text(element) else []
        else:
            data = message[start:]
            if count * width > len(data):
                raise SourceError(f"{count * width} bytes are needed, {len(data)} are stored")
            if get_class(element) in (SEQUENCE, REFERENCE):
                value = (
                    None if shape else attribute_values.get_cached_text(heap, element, width, data)
                )
                if value is None:
                    value = attribute_values.nest(
                        (yield from attribute_values.dereference(heap, element, data, count)), shape
                    )
            else:
                value = _decode_values(element, shape, count, width, data)
    except VirtualZarrError as error:
        value = error
    return head.name, Attribute(head.text, value)


def _find_data_start(message: bytes) -> int:
    """Return where the values of an attribute start in its message."""
    if len(message) < 9:
        raise SourceError("an attribute message ends early")
    version, _, name, datatype, extents = _HEAD.unpack_from(message)
    if version == 1:
        # Version 1 pads name, datatype and dataspace to multiples of 8 bytes each (section
        # IV.A.2.m).
        start = 8 + (name + 7 & ~7) + (datatype + 7 & ~7) + (extents + 7 & ~7)
    elif version in (2, 3):
        start = 6 + version + name + datatype + extents
    else:
        raise byte_source.UnknownStructureError(f"attribute message version {version}")
    if start > len(message):
        raise SourceError("an attribute message ends early")
    return start


@dataclass(frozen=True)
class _Head:
    """An attribute message up to its values: often the same in all objects of a file."""

    name: bytes
    text: str
    flags: int
    datatype: bytes
    extents: bytes


@lru_cache(4096)
def _parse_head(message: bytes) -> _Head:
    version, flags, *lengths = _HEAD.unpack_from(message)
    at, parts = 9 if version == 3 else 8, []
    for length in lengths:
        parts.append(message[at : at + length])
        at += length + 7 & ~7 if version == 1 else length
    name = parts[0].split(b"\0")[0]
    text = name.decode("utf-8", "backslashreplace")
    return _Head(name, text, flags if version > 1 else 0, parts[1], parts[2])
