"""Datatype messages: their parts, and conversion by the HDF5 library."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs.hdf5 import check_datatype
from virtualzarr.codecs.hdf5 import check_datatype as hdf5_datatype
from virtualzarr.codecs.hdf5.library_type import is_flat
from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.hdf5.byte_source import UnknownStructureError

_H5PY_ERRORS = (TypeError, ValueError, OSError, RuntimeError, KeyError, MemoryError)


def get_class(message: bytes) -> int:
    """Return the class of a datatype."""
    return message[0] & 15


def get_size(message: bytes) -> int:
    """Return the bytes of an element."""
    return int.from_bytes(message[4:8], "little")


def is_text(message: bytes) -> bool:
    """Whether elements are variable-length strings."""
    return get_class(message) == check_datatype.SEQUENCE and message[1] & 15 == 1


@lru_cache(4096)
def get_base_type(message: bytes) -> bytes:
    """Return the datatype that one of class `SEQUENCE` or `ARRAY` is made of."""
    start = 8
    if get_class(message) == check_datatype.ARRAY:
        start = 8 + check_datatype.count_array_head(message, 8, message[0] >> 4)
    return message[start:]


@lru_cache(4096)
def get_array_dims(message: bytes) -> tuple[int, ...]:
    """Return the dimensions of a datatype of class `ARRAY`."""
    start = 12 if message[0] >> 4 < 3 else 9
    return struct.unpack_from(f"<{message[8]}I", message, start)


@lru_cache(4096)
def check_type(message: bytes) -> bytes:
    """Return a datatype message without what follows it.

    Raises `SourceError` if it ends early, or members reach over the end of an element;
    `UnknownStructureError` if a version or class in it is not known.
    """
    try:
        return hdf5_datatype.check_datatype(message)
    except UnsupportedError as error:
        raise UnknownStructureError(error.message) from error


@lru_cache(1024)
def decode_type(message: bytes) -> Any:
    """Return the type as h5py has it.

    Raises `SourceError` or `UnknownStructureError` as `check_type` does, or if the HDF5 library
    refuses the type.
    """
    from h5py import h5t

    try:
        # What comes before the message is its kind, and the version of such a text.
        return h5t.decode(b"\x03\x00" + check_type(message) + bytes(64))
    except _H5PY_ERRORS as error:
        raise SourceError(f"HDF5 cannot read the datatype: {error}") from error


def list_members(message: bytes) -> list[tuple[int, bytes]]:
    """Return offset and datatype of each member of a datatype of class `COMPOUND`, as stored.

    The HDF5 library itself tells offsets in memory, where pointers are of another length.

    Raises `UnknownStructureError` if members have axes of their own, as version 1 has it.
    """
    version, count = message[0] >> 4, message[1] | message[2] << 8
    # Version 3 stores member offsets in as few bytes as the size of the compound needs.
    wide = 4 if version < 3 else max(-(-get_size(message).bit_length() // 8), 1)
    at, fields = 8, []
    for _ in range(count):
        at = check_datatype.find_name_end(message, at, version)
        offset = int.from_bytes(message[at : at + wide], "little")
        at += wide
        if version == 1:
            if message[at]:
                raise UnknownStructureError("members of a compound datatype with axes of their own")
            # Dimensionality, permutation and four dimension sizes of version 1 (section IV.A.2.d).
            at += 28
        end = check_datatype.find_type_end(message, at, 0)
        fields.append((offset, message[at:end]))
        at = end
    return fields


@dataclass(frozen=True)
class MemoryType:
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
    def of(cls, stored: Any, dtype: np.dtype[Any]) -> MemoryType:
        """Compare a type with a dtype."""
        memory = to_h5py_type(dtype)
        return cls(stored, memory, dtype, bool(stored.equal(memory)))

    def values(self, data: bytes, count: int) -> NDArray[Any]:
        """Return elements as numpy has them.

        Raises `SourceError` if the data end before, or the HDF5 library cannot convert them.
        """
        from h5py import h5t

        # The library trusts the count: it would read past the end of a short buffer.
        need = count * self.stored.get_size()
        if len(data) < need:
            raise SourceError(f"{len(data)} bytes are stored, {need} are needed")
        width = self.dtype.itemsize
        if self.same:
            return np.frombuffer(data, self.dtype, count).copy()
        # Converted in place: the buffer must hold the longer of both forms.
        buffer = np.zeros(max(need, count * width), np.uint8)
        buffer[:need] = np.frombuffer(data, np.uint8, need)
        try:
            h5t.convert(self.stored, self.memory, count, buffer, np.zeros_like(buffer))
        except _H5PY_ERRORS as error:
            raise SourceError(f"HDF5 cannot convert the values: {error}") from error
        return buffer[: count * width].view(self.dtype)


def convert(source: bytes, target: bytes, values: NDArray[Any]) -> NDArray[Any]:
    """Convert elements of one datatype to another, as the HDF5 library does.

    Raises `UnsupportedError` if there is no such conversion, or elements point elsewhere.

    Parameters
    ----------
    source, target : bytes
        Datatype messages.
    values : array
        Elements as stored, of dtype V.
    """
    from h5py import h5t

    source, target = check_type(source), check_type(target)
    if source == target:
        return values
    types = decode_type(source), decode_type(target)
    if not all(map(is_flat, types)):
        raise UnsupportedError("elements of other types that point elsewhere")
    width = get_size(target)
    buffer = np.zeros(max(values.nbytes, values.size * width), np.uint8)
    buffer[: values.nbytes] = np.frombuffer(values.tobytes(), np.uint8)
    try:
        h5t.convert(*types, values.size, buffer, np.zeros_like(buffer))
    except _H5PY_ERRORS as error:
        raise UnsupportedError(f"HDF5 cannot convert the elements: {error}") from error
    return buffer[: values.size * width].view(f"V{width}")


def to_h5py_type(dtype: np.dtype[Any]) -> Any:
    """Return what h5py calls a dtype.

    Raises `TypeError` if that has other sizes: h5py makes fields that overlap of some odd numbers
    in compounds, and the HDF5 library would write past their end.
    """
    from h5py import h5t

    tid = h5t.py_create(dtype)
    if tid.get_size() != dtype.itemsize:
        raise TypeError(f"h5py takes {dtype} for a type of {tid.get_size()} bytes")
    return tid


@lru_cache(1024)
def find_memory_type(message: bytes) -> MemoryType:
    """Return how h5py reads a datatype without pointers.

    Raises `SourceError` or `UnknownStructureError` as `decode_type` does; `TypeError` if numpy has
    no such type.
    """
    tid = decode_type(message)
    try:
        return MemoryType.of(tid, tid.dtype)
    except (ValueError, RuntimeError) as error:  # parameters of no type that numpy has
        raise TypeError(str(error)) from error
