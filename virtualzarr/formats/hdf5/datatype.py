"""Datatype messages: how many bytes they take, and the type the HDF5 library makes of them."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.source import Unknown

INTEGER, FLOAT, TIME, STRING, BITFIELD, OPAQUE = range(6)
COMPOUND, REFERENCE, ENUM, SEQUENCE, ARRAY, COMPLEX = range(6, 12)
_MAX_DEPTH = 32
_H5PY_ERRORS = (TypeError, ValueError, OSError, RuntimeError, KeyError, MemoryError)
_PROPERTIES = {INTEGER: 4, FLOAT: 12, TIME: 2, STRING: 0, BITFIELD: 4, REFERENCE: 0}


def kind(message: bytes) -> int:
    """Return the class of a datatype."""
    return message[0] & 15


def size(message: bytes) -> int:
    """Return the bytes of an element."""
    return int.from_bytes(message[4:8], "little")


def is_text(message: bytes) -> bool:
    """Whether elements are variable-length strings."""
    return kind(message) == SEQUENCE and message[1] & 15 == 1


@lru_cache(4096)
def base(message: bytes) -> bytes:
    """Return the datatype that one of class `SEQUENCE` or `ARRAY` is made of."""
    start = 8
    if kind(message) == ARRAY:
        start = 8 + _array(message, 8, message[0] >> 4)
    return message[start:]


@lru_cache(4096)
def dimensions(message: bytes) -> tuple[int, ...]:
    """Return the dimensions of a datatype of class `ARRAY`."""
    start = 12 if message[0] >> 4 < 3 else 9
    return struct.unpack_from(f"<{message[8]}I", message, start)


@lru_cache(4096)
def checked(message: bytes) -> bytes:
    """Return a datatype message without what follows it.

    HDF5 file format specification, section IV.A.2.d, versions 1 to 5.

    Raises
    ------
    SourceError
        If it ends early, or members reach over the end of an element.
    Unknown
        If a version or class in it is not known.
    """
    try:
        return message[: _end(message, 0, 0)]
    except (struct.error, IndexError, ValueError) as error:
        raise SourceError("the datatype message ends early") from error


@lru_cache(1024)
def decoded(message: bytes) -> Any:
    """Return the type as h5py has it.

    Raises
    ------
    SourceError, Unknown
        As `checked` does, or if the HDF5 library refuses the type.
    """
    from h5py import h5t

    try:
        # What comes before the message is its kind, and the version of such a text.
        return h5t.decode(b"\x03\x00" + checked(message) + bytes(64))
    except _H5PY_ERRORS as error:
        raise SourceError(f"HDF5 cannot read the datatype: {error}") from error


def _end(message: bytes, at: int, depth: int) -> int:
    """Return where the datatype at byte `at` ends, having looked at all of it."""
    if depth > _MAX_DEPTH:
        raise SourceError(f"the datatype is nested more than {_MAX_DEPTH} levels deep")
    found, version = message[at] & 15, message[at] >> 4
    if version not in (1, 2, 3, 4, 5):
        raise Unknown(f"datatype message version {version}")
    count = message[at + 1] | message[at + 2] << 8
    (length,) = struct.unpack_from("<I", message, at + 4)
    if not length:
        raise SourceError("a datatype has elements of no bytes")
    at += 8
    if found in _PROPERTIES:
        end = _within(message, at + _PROPERTIES[found])
        if found in (INTEGER, FLOAT, BITFIELD):
            _check_bits(message, at, 8 * length)
        return end
    if found == OPAQUE:
        return _within(message, at + -(-(count & 255) // 8) * 8)
    if found == COMPOUND:
        return _compound(message, at, version, count, length, depth)
    if found == ENUM:
        width = int.from_bytes(message[at + 4 : at + 8], "little")
        if width != length:
            raise SourceError("an enumeration and its numbers have different sizes")
        at = _end(message, at, depth + 1)
        for _ in range(count):
            at = _name(message, at, version)
        return _within(message, at + count * width)
    if found in (SEQUENCE, COMPLEX):
        return _end(message, at, depth + 1)
    if found == ARRAY:
        inner = at + _array(message, at, version)
        lengths = struct.unpack_from(f"<{message[at]}I", message, at + (4 if version < 3 else 1))
        if math.prod(lengths) * int.from_bytes(message[inner + 4 : inner + 8], "little") != length:
            raise SourceError("an array datatype has another size than its elements have together")
        return _end(message, inner, depth + 1)
    raise Unknown(f"datatype class {found}")


def _check_bits(message: bytes, at: int, bits: int) -> None:
    """Check that a number, the properties of which start at a byte, lies in its element.

    The HDF5 library converts others, and writes past their end.
    """
    offset, precision = struct.unpack_from("<HH", message, at)
    parts = [(offset, precision)]
    if message[at - 8] & 15 == FLOAT:
        exponent, exponent_bits, mantissa, mantissa_bits = message[at + 4 : at + 8]
        parts += [(exponent, exponent_bits), (mantissa, mantissa_bits), (message[at - 6], 1)]
        if exponent_bits > 64:
            raise SourceError("the datatype has an exponent that cannot be")
    if any(not count or first + count > bits for first, count in parts):
        raise SourceError("the datatype has bits outside its elements")


def _within(message: bytes, at: int) -> int:
    if at > len(message):
        raise SourceError("the datatype message ends early")
    return at


def _name(message: bytes, at: int, version: int) -> int:
    """Return where a name ends; up to version 2 its bytes are a multiple of 8."""
    end = message.index(b"\0", at) + 1
    return end if version > 2 else at + -(-(end - at) // 8) * 8


def _array(message: bytes, at: int, version: int) -> int:
    """Return the bytes of an array's dimensions."""
    rank = message[at]
    return 4 + 8 * rank if version < 3 else 1 + 4 * rank


def _compound(message: bytes, at: int, version: int, count: int, length: int, depth: int) -> int:
    if not count:
        raise SourceError("a compound datatype has no members")
    wide = max(-(-length.bit_length() // 8), 1)
    taken = []
    for _ in range(count):
        at = _name(message, at, version)
        width = 4 if version < 3 else wide
        offset = int.from_bytes(message[at : at + width], "little")
        at += width
        repeats = 1
        if version == 1:
            rank = message[at]
            for n in struct.unpack_from(f"<{min(rank, 4)}I", message, at + 12):
                repeats *= n
            at += 28
        inner = int.from_bytes(message[at + 4 : at + 8], "little")
        if offset + inner * repeats > length:
            raise SourceError("a member reaches over the end of its compound datatype")
        taken.append((offset, offset + inner * repeats))
        at = _end(message, at, depth + 1)
    taken.sort()
    if any(stop > start for (_, stop), (start, _) in pairwise(taken)):
        raise SourceError("members of a compound datatype overlap")
    return at


def members(message: bytes) -> list[tuple[int, bytes]]:
    """Return offset and datatype of each member of a datatype of class `COMPOUND`, as stored.

    The HDF5 library itself tells offsets in memory, where pointers are of another length.

    Raises
    ------
    Unknown
        If members have axes of their own, as version 1 has it.
    """
    version, count = message[0] >> 4, message[1] | message[2] << 8
    wide = 4 if version < 3 else max(-(-size(message).bit_length() // 8), 1)
    at, found = 8, []
    for _ in range(count):
        at = _name(message, at, version)
        offset = int.from_bytes(message[at : at + wide], "little")
        at += wide
        if version == 1:
            if message[at]:
                raise Unknown("members of a compound datatype with axes of their own")
            at += 28
        end = _end(message, at, 0)
        found.append((offset, message[at:end]))
        at = end
    return found


@dataclass(frozen=True)
class Memory:
    """A flat datatype and the numpy dtype that h5py reads it as.

    Parameters
    ----------
    stored, memory : h5py.h5t.TypeID
        As in the file, and as numpy has it.
    dtype : numpy dtype
    same : bool
        Whether both have the same bytes.
    """

    stored: Any
    memory: Any
    dtype: np.dtype[Any]
    same: bool

    @classmethod
    def of(cls, stored: Any, dtype: np.dtype[Any]) -> Memory:
        """Compare a type with a dtype."""
        memory = memory_type(dtype)
        return cls(stored, memory, dtype, bool(stored.equal(memory)))

    def values(self, data: bytes, count: int) -> NDArray[Any]:
        """Return elements as numpy has them.

        Raises
        ------
        SourceError
            If the data end before, or the HDF5 library cannot convert them.
        """
        from h5py import h5t

        need = count * self.stored.get_size()
        if len(data) < need:
            raise SourceError(f"{len(data)} bytes are stored, {need} are needed")
        width = self.dtype.itemsize
        if self.same:
            return np.frombuffer(data, self.dtype, count).copy()
        buffer = np.zeros(max(need, count * width), np.uint8)
        buffer[:need] = np.frombuffer(data, np.uint8, need)
        try:
            h5t.convert(self.stored, self.memory, count, buffer, np.zeros_like(buffer))
        except _H5PY_ERRORS as error:
            raise SourceError(f"HDF5 cannot convert the values: {error}") from error
        return buffer[: count * width].view(self.dtype)


def memory_type(dtype: np.dtype[Any]) -> Any:
    """Return what h5py calls a dtype.

    Raises
    ------
    TypeError
        If that has other sizes: h5py makes fields that overlap of some odd numbers in compounds,
        and the HDF5 library would write past their end.
    """
    from h5py import h5t

    tid = h5t.py_create(dtype)
    if tid.get_size() != dtype.itemsize:
        raise TypeError(f"h5py takes {dtype} for a type of {tid.get_size()} bytes")
    return tid


@lru_cache(1024)
def memory(message: bytes) -> Memory:
    """Return how h5py reads a datatype without pointers.

    Raises
    ------
    SourceError, Unknown
        As `decoded` does.
    TypeError
        If numpy has no such type.
    """
    tid = decoded(message)
    try:
        return Memory.of(tid, tid.dtype)
    except (ValueError, RuntimeError) as error:  # parameters of no type that numpy has
        raise TypeError(str(error)) from error
