"""The attributes of HDF5 objects: what users wrote, and the bookkeeping beside it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Any

import numpy as np

from virtualzarr.codecs.hdf5.check_datatype import REFERENCE, SEQUENCE, STRING
from virtualzarr.errors import SourceError, UnsupportedError, VirtualZarrError
from virtualzarr.formats.hdf5.attribute_values import (
    Address,
    as_array,
    count_elements,
    find_text,
    follow,
    nest,
    refuse_large,
    refuse_unreadable,
)
from virtualzarr.formats.hdf5.datatype import is_text, kind, memory_type
from virtualzarr.formats.hdf5.h5py_fallback import Remote
from virtualzarr.formats.hdf5.header import ATTRIBUTE_INFO, SPACE, TYPE, ObjectHeader, shared
from virtualzarr.formats.hdf5.heaps import GlobalHeap
from virtualzarr.formats.hdf5.links import dense
from virtualzarr.formats.hdf5.superblock import Superblock
from virtualzarr.formats.hdf5.unsupported import Unknown
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
_UNKNOWN = object()
# Of JSON that no two objects may share, and of none.
_OWN = frozenset({list, dict, object})
_HEAD = struct.Struct("<BBHHH")

Complain = Callable[[str, str], None]


@dataclass(slots=True)
class Attributes:
    """The attributes of one object.

    Parameters
    ----------
    shown : dict
        What users wrote, as JSON values.
    hidden : dict
        The bookkeeping, as numpy gives it; references as addresses of object headers.
    """

    shown: dict[str, Any] = field(default_factory=dict)
    hidden: dict[str, Any] = field(default_factory=dict)

    @property
    def is_scale(self) -> bool:
        """Whether the object is an HDF5 dimension scale."""
        return self.hidden.get("CLASS") == "DIMENSION_SCALE"


class AttributeReader:
    """Shows attributes to users, and reads with h5py those that only it can read.

    Parameters
    ----------
    names : mapping
        Path of each object of the file by address: what references are replaced by.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self.names = names
        self._kinds: dict[bytes, _Kind] = {}

    def show(
        self, found: Sequence[Found], complain: Complain, opened: Callable[[str, str], Remote]
    ) -> Attributes:
        """Return what was found as users see it.

        Parameters
        ----------
        found : sequence of Found
        complain : callable
            Called with the name and the reason for each attribute that cannot be read.
        opened : callable
            Gets the name of an attribute and why the HDF5 library is asked for it; returns the
            object as that has it.
        """
        attributes = Attributes()
        shown, hidden = attributes.shown, attributes.hidden
        for one in found:
            if type(one.plain) not in _OWN:
                shown[one.name] = one.plain
                continue
            value = one.value
            if isinstance(value, Unknown):
                value = self._asked(one.name, opened(one.name, value.message))
            if isinstance(value, VirtualZarrError):
                complain(one.name, value.message)
            elif one.name in _HIDDEN:
                hidden[one.name] = value
            elif type(value) in (list, Address):
                shown |= json_attributes({one.name: _named(value, self.names)})
            else:
                found_json = one.json() if value is one.value else Found(one.name, value).json()
                if found_json is not _UNKNOWN:
                    shown[one.name] = found_json
        if shown.get("CLASS") == "DIMENSION_SCALE":
            hidden.update({name: shown.pop(name, "") for name in _OF_SCALES})
        return attributes

    def listed(self, oid: Any) -> list[Found]:
        """Read all attributes of an h5py object identifier."""
        from h5py import h5a

        found = []
        for index in range(h5a.get_num_attrs(oid)):
            name = f"number {index}"
            try:
                aid = h5a.open(oid, index=index)
                name = aid.name.decode("utf-8", "backslashreplace")
                value = None if name == "REFERENCE_LIST" else self._value(aid)
            except UnsupportedError as error:
                value = error
            except _H5PY_ERRORS as error:
                value = UnsupportedError(f"h5py cannot read it: {error}")
            if name != "REFERENCE_LIST":
                found.append(Found(name, value))
        return found

    def _asked(self, name: str, remote: Remote) -> Any:
        """Return the value of one attribute that h5py reads, or why it cannot."""
        try:
            found = dict(remote.attributes())
        except VirtualZarrError as error:
            return error
        return found.get(name, UnsupportedError("h5py has no such attribute"))

    def _value(self, aid: Any) -> Any:
        """Read one attribute as numpy values; references become `Address`."""
        kind = self._kind(aid.get_type())
        extents = aid.get_space().get_simple_extent_dims()
        if extents is None:  # a null dataspace
            return "" if kind.text else []
        shape = extents + kind.inner
        refuse_large(shape, kind.base.itemsize)
        values = np.zeros(shape, kind.base)
        aid.read(values, mtype=kind.memory)
        if shape == (1,):  # netCDF keeps every single value as a list of one
            values = values.reshape(())
        return _objects(values, aid) if kind.base.kind == "O" else values

    def _kind(self, tid: Any) -> _Kind:
        key = tid.encode()
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _kind(tid)
        return kind


@dataclass(frozen=True)
class _Kind:
    """What there is to know about an HDF5 datatype to read attributes of it."""

    base: np.dtype[Any]
    inner: tuple[int, ...]
    memory: Any
    text: bool


def _kind(tid: Any) -> _Kind:
    from h5py import h5t

    refuse_unreadable(tid)
    dtype = tid.dtype
    base, inner = dtype.subdtype or (dtype, ())
    return _Kind(base, inner, memory_type(dtype), tid.get_class() == h5t.STRING)


def _objects(values: Any, oid: Any) -> Any:
    """Return the objects h5py gives as lists of plain ones."""
    from h5py import h5o, h5r

    if isinstance(values, np.ndarray) and values.dtype.hasobject:
        if values.ndim == 0:
            return _objects(values[()], oid)
        return [_objects(part, oid) for part in values]
    if isinstance(values, h5r.Reference):
        target = h5r.dereference(values, oid) if values else None
        return Address(-1 if target is None else h5o.get_info(target).addr)
    return values


def _named(value: Any, names: Mapping[int, str]) -> Any:
    """Replace addresses by the paths of the objects there."""
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    if isinstance(value, Address):
        return f"/{names[value]}" if value in names else ""
    return value


@dataclass(slots=True)
class Found:
    """An attribute as the file has it.

    Parameters
    ----------
    name : str
    value : object
        As `AttributeReader` reads values, or the error that prevented it.
    plain : object
        The value as JSON, once `json` was asked for it.
    """

    name: str
    value: Any
    plain: Any = _UNKNOWN

    def json(self) -> Any:
        """Return the value as JSON; `_UNKNOWN` if it has no such form, which warns."""
        if self.plain is _UNKNOWN:
            if type(self.value) is bytes:  # the most frequent
                try:
                    self.plain = self.value.rstrip(b"\0").decode("utf-8")
                except UnicodeDecodeError:
                    pass
                else:
                    return self.plain
            self.plain = json_attributes({self.name: self.value}).get(self.name, _UNKNOWN)
        return _copy(self.plain)


def _copy(value: Any) -> Any:
    """Return JSON of which nothing is shared: the same message is often that of many objects."""
    if type(value) is list:
        return [_copy(item) if type(item) in (list, dict) else item for item in value]
    if type(value) is dict:
        return {key: _copy(item) for key, item in value.items()}
    return value


def read(
    superblock: Superblock, heap: GlobalHeap, header: ObjectHeader
) -> Generator[Any, Any, list[Found]]:
    """Read the attributes of an object, by name.

    HDF5 file format specification, sections IV.A.2.m and IV.A.2.v.

    Raises
    ------
    SourceError, Unknown
        If they cannot be listed; what one of them lacks is its value.
    """
    messages = header.attributes
    info = header.messages.get(ATTRIBUTE_INFO)
    if info is not None:
        messages = messages + (yield from _dense(superblock, info))
    found = []
    for message in messages:
        known = heap.attributes.get(message)
        if known is None:
            known = heap.attributes[message] = yield from _attribute(superblock, heap, message)
        found.append(known)
    found.sort(key=_name)
    return [one for _, one in found if one.name != "REFERENCE_LIST"]


_name = itemgetter(0)


def _dense(superblock: Superblock, info: bytes) -> Generator[Any, Any, list[bytes]]:
    if len(info) < 2 or info[0] != 0:
        raise Unknown("attribute info message of another version")
    at = 4 if info[1] & 1 else 2
    heap = superblock.address(info, at)
    if heap == superblock.undefined:
        return []
    tree = superblock.address(info, at + superblock.address_size)
    return (yield from dense(superblock, heap, tree, _DENSE_RECORDS, 0))


def _attribute(
    superblock: Superblock, heap: GlobalHeap, message: bytes
) -> Generator[Any, Any, tuple[bytes, Found]]:
    """Read an attribute message, versions 1 to 3."""
    start = _data_start(message)
    head = _head(message[:start])
    if head.shown == "REFERENCE_LIST":  # who uses a scale: long, and its users say it, too
        return head.name, Found(head.shown, None)
    datatype, extents = head.datatype, head.extents
    value: Any
    try:
        if head.flags & 1:
            datatype = yield from shared(superblock, datatype, TYPE, 0)
        if head.flags & 2:
            extents = yield from shared(superblock, extents, SPACE, 0)
        element, shape, count, width = count_elements(datatype, extents, superblock.length_size)
        if shape is None:  # a null dataspace
            value = "" if kind(element) == STRING or is_text(element) else []
        else:
            data = message[start:]
            if count * width > len(data):
                raise SourceError(f"{count * width} bytes are needed, {len(data)} are stored")
            if kind(element) in (SEQUENCE, REFERENCE):
                value = None if shape else find_text(heap, element, width, data)
                if value is None:
                    value = nest((yield from follow(heap, element, data, count)), shape)
            elif not shape and kind(element) == STRING and not element[1] & 15:
                value = data[:width].split(b"\0")[0]  # the most frequent, and ended by a NUL
            else:
                value = as_array(element, data, count).reshape(shape)
    except VirtualZarrError as error:
        value = error
    return head.name, Found(head.shown, value)


def _data_start(message: bytes) -> int:
    """Return where the values of an attribute start in its message."""
    if len(message) < 9:
        raise SourceError("an attribute message ends early")
    version, _, name, datatype, extents = _HEAD.unpack_from(message)
    if version == 1:
        start = 8 + (name + 7 & ~7) + (datatype + 7 & ~7) + (extents + 7 & ~7)
    elif version in (2, 3):
        start = 6 + version + name + datatype + extents
    else:
        raise Unknown(f"attribute message version {version}")
    if start > len(message):
        raise SourceError("an attribute message ends early")
    return start


@dataclass(frozen=True)
class _Head:
    """An attribute message up to its values: often the same in all objects of a file."""

    name: bytes
    shown: str
    flags: int
    datatype: bytes
    extents: bytes


@lru_cache(4096)
def _head(message: bytes) -> _Head:
    version, flags, *lengths = _HEAD.unpack_from(message)
    at, parts = 9 if version == 3 else 8, []
    for length in lengths:
        parts.append(message[at : at + length])
        at += length + 7 & ~7 if version == 1 else length
    name = parts[0].split(b"\0")[0]
    shown = name.decode("utf-8", "backslashreplace")
    return _Head(name, shown, flags if version > 1 else 0, parts[1], parts[2])
