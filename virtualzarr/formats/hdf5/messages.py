"""Dataspace, fill value and filter pipeline messages."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.byte_source import UnknownStructureError

_MAX_RANK = 32
_NULL = 2


@dataclass(frozen=True)
class Dataspace:
    """A dataspace.

    Parameters
    ----------
    shape : tuple of int, optional
        None for a null dataspace.
    limits : tuple of int or None
        How far each axis can grow; None where without end.
    """

    shape: tuple[int, ...] | None
    limits: tuple[int | None, ...] = ()


@lru_cache(4096)
def parse_dataspace(body: bytes, length_size: int) -> Dataspace:
    """Read a dataspace message.

    HDF5 file format specification, section IV.A.2.b, versions 1 and 2.
    """
    if len(body) < 4:
        raise SourceError("the dataspace message ends early")
    # Section IV.A.2.b: version 1 has 5 reserved bytes in place of version 2's kind, so that a null
    # dataspace can only be said by version 2.
    version, rank, flags, kind = body[:4]
    if version not in (1, 2):
        raise UnknownStructureError(f"dataspace message version {version}")
    if version == 2 and kind == _NULL:
        return Dataspace(None)
    if rank > _MAX_RANK:
        raise SourceError(f"the dataspace message claims {rank} axes")
    start = 8 if version == 1 else 4
    shape = _lengths(body, start, rank, length_size)
    if not flags & 1:
        return Dataspace(shape, shape)
    most = _lengths(body, start + rank * length_size, rank, length_size)
    # All bits set is `H5S_UNLIMITED`.
    undefined = (1 << 8 * length_size) - 1
    limits = tuple([None if n == undefined else n for n in most])
    if any(limit is not None and limit < n for n, limit in zip(shape, limits, strict=True)):
        raise SourceError("the dataspace message claims more than its own limits")
    return Dataspace(shape, limits)


def from_h5py_space(sid: Any) -> Dataspace:
    """Return a dataspace that h5py has.

    Parameters
    ----------
    sid : h5py.h5s.SpaceID
    """
    from h5py import h5s

    if sid.get_simple_extent_type() == h5s.NULL:
        return Dataspace(None)
    limits = sid.get_simple_extent_dims(True)
    shape = sid.get_simple_extent_dims()
    return Dataspace(shape, tuple([None if n == h5s.UNLIMITED else n for n in limits]))


def _lengths(body: bytes, at: int, count: int, width: int) -> tuple[int, ...]:
    if at + count * width > len(body):
        raise SourceError("the dataspace message ends early")
    if width == 8:
        return struct.unpack_from(f"<{count}Q", body, at)
    places = range(at, at + count * width, width)
    return tuple([int.from_bytes(body[k : k + width], "little") for k in places])


@dataclass(frozen=True)
class FillValue:
    """What is read where nothing was written.

    Parameters
    ----------
    value : bytes, optional
        One element as stored; None where the user gave none.
    never : bool
        Whether it is never written.
    """

    value: bytes | None = None
    never: bool = False


@lru_cache(4096)
def parse_fill(body: bytes | None, old: bytes | None) -> FillValue:
    """Read the fill value message, or the old one of files that have no other.

    HDF5 file format specification, sections IV.A.2.e and IV.A.2.f, versions 1 to 3.
    """
    try:
        if body is None:
            return FillValue() if old is None else FillValue(_read_sized(old, 0))
        # Versions 1 and 2 give allocation time, write time and whether a value is defined a byte
        # each, version 3 packs all of them in one (section IV.A.2.f). Write time 1 is "never".
        version = body[0]
        if version in (1, 2):
            defined = version == 1 or body[3]
            return FillValue(_read_sized(body, 4) if defined else None, body[2] == 1)
        if version == 3:
            flags = body[1]
            return FillValue(_read_sized(body, 2) if flags & 0x20 else None, flags >> 2 & 3 == 1)
    except (struct.error, IndexError) as error:
        raise SourceError("the fill value message ends early") from error
    raise UnknownStructureError(f"fill value message version {version}")


def _read_sized(body: bytes, at: int) -> bytes | None:
    (size,) = struct.unpack_from("<i", body, at)
    value = body[at + 4 : at + 4 + max(size, 0)]
    if len(value) < size:
        raise SourceError("the fill value message ends early")
    return value if size > 0 else None


@dataclass(frozen=True)
class Filter:
    """One step of a filter pipeline: its registered number, its name and its parameters."""

    number: int
    name: str
    values: tuple[int, ...]


@lru_cache(4096)
def parse_filters(body: bytes) -> tuple[Filter, ...]:
    """Read the filter pipeline message.

    HDF5 file format specification, section IV.A.2.l.

    Raises `SourceError` if the message ends early; `UnknownStructureError` if its version is not
    known.
    """
    version, count = body[:2] if len(body) > 1 else (0, 0)
    if version not in (1, 2):
        raise UnknownStructureError(f"filter message version {version}")
    at = 8 if version == 1 else 2
    filters = []
    try:
        for _ in range(count):
            (number,) = struct.unpack_from("<H", body, at)
            at += 2
            length = 0
            # Version 2 leaves the name of filters of the library itself (numbers below 256) out.
            if version == 1 or number >= 256:
                (length,) = struct.unpack_from("<H", body, at)
                at += 2
            _, nvalues = struct.unpack_from("<HH", body, at)
            at += 4
            name = body[at : at + length].split(b"\0")[0].decode("utf-8", "replace")
            # Version 1 pads names to multiples of 8 bytes, and odd numbers of parameters by one
            # more.
            at += -(-length // 8) * 8 if version == 1 else length
            values = struct.unpack_from(f"<{nvalues}I", body, at)
            at += 4 * nvalues + (4 if version == 1 and nvalues % 2 else 0)
            filters.append(Filter(number, name, values))
    except struct.error as error:
        raise SourceError("the filter message ends early") from error
    return tuple(filters)
