"""Values of HDF5 attributes: element counts, and values in the global heap."""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from virtualzarr.codecs.hdf5.check_datatype import ARRAY, REFERENCE, SEQUENCE
from virtualzarr.errors import SourceError, UnsupportedError, VirtualZarrError
from virtualzarr.formats.hdf5.byte_source import Parsing, UnknownStructureError
from virtualzarr.formats.hdf5.datatype import (
    check_type,
    decode_type,
    find_memory_type,
    get_array_dims,
    get_base_type,
    get_class,
    get_size,
    is_text,
)
from virtualzarr.formats.hdf5.heaps import GlobalHeap
from virtualzarr.formats.hdf5.messages import parse_dataspace

_MAX_BYTES = 1 << 26
# Lists without elements, which an attribute of any size has room for.
_MAX_EMPTY = 1 << 16
_MAX_DEPTH = 16
# Of a value in the global heap: length, collection, number.
_POINTER = struct.Struct("<IQI")


class Address(int):
    """Address of the object header that a reference points to; -1 for one to nothing."""


def check_attribute_size(shape: tuple[int, ...], itemsize: int) -> None:
    """Refuse what no attribute holds, before memory is taken for it."""
    # A shape like (1000000, 0) takes no bytes, but a million empty lists as JSON.
    lists = math.prod([n for n in shape if n]) if 0 in shape else 0
    if math.prod(shape) * itemsize > _MAX_BYTES or lists > _MAX_EMPTY:
        raise UnsupportedError(f"its shape {shape} is too large for an attribute")


def check_readable(tid: Any, inside: bool = False) -> None:
    """Refuse types that have no JSON form, before h5py reads (and sometimes crashes on) them."""
    from h5py import h5t

    # h5py 3 crashes on some of these types, where an exception could not be caught.
    kind = tid.get_class()
    if inside and (kind in (h5t.VLEN, h5t.REFERENCE) or tid.dtype.kind == "O"):
        raise UnsupportedError("its compound type holds variable-length data or references")
    if kind == h5t.REFERENCE and not tid.equal(h5t.STD_REF_OBJ):
        raise UnsupportedError("region references are not supported")
    if kind in (h5t.VLEN, h5t.ARRAY):
        check_readable(tid.get_super(), inside)
    if kind == h5t.COMPOUND:
        for index in range(tid.get_nmembers()):
            check_readable(tid.get_member_type(index), inside=True)


@lru_cache(4096)
def _split_array_type(datatype: bytes) -> tuple[bytes, tuple[int, ...], int]:
    """Return the datatype of the elements of an array type, its dimensions, and their bytes."""
    message = check_type(datatype)
    inner: tuple[int, ...] = ()
    while get_class(message) == ARRAY:
        inner += get_array_dims(message)
        message = get_base_type(message)
    return message, inner, get_size(message)


@lru_cache(4096)
def count_elements(
    datatype: bytes, extents: bytes, length_size: int
) -> tuple[bytes, tuple[int, ...] | None, int, int]:
    """Return the datatype of an attribute's elements, their shape and number, and their bytes.

    The shape of a null dataspace is None.
    """
    element, inner, width = _split_array_type(datatype)
    outer = parse_dataspace(extents, length_size).shape
    if outer is None:
        return element, None, 0, width
    shape = outer + inner
    count = math.prod(shape)
    if not count:
        check_attribute_size(shape, 1)
    # netCDF keeps every single value as a list of one.
    return element, () if shape == (1,) else shape, count, width


def as_array(message: bytes, data: bytes, count: int) -> NDArray[Any]:
    """Return elements that do not lie in heaps.

    Raises `UnsupportedError` if h5py has no such type.
    """
    try:
        _check_readable_message(message)
        return find_memory_type(message).values(data, count)
    except VirtualZarrError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise UnsupportedError(f"h5py cannot read it: {error}") from error


@lru_cache(1024)
def _check_readable_message(message: bytes) -> None:
    check_readable(decode_type(message))


def nest(values: list[Any], shape: tuple[int, ...]) -> Any:
    """Return values as lists of the lengths that `shape` says; one value if it has no axes."""
    if not shape:
        return values[0]
    if len(shape) == 1 or not values:
        return values
    step = math.prod(shape[1:])
    return [nest(values[k * step : (k + 1) * step], shape[1:]) for k in range(shape[0])]


def dereference(
    heap: GlobalHeap, message: bytes, data: bytes, count: int, depth: int = 0
) -> Parsing[list[Any]]:
    """Return elements that are references or lie in the global heap."""
    superblock, width = heap.superblock, get_size(message)
    wide = superblock.address_size
    if get_class(message) == REFERENCE:
        if message[1] & 15 == 1:
            raise UnsupportedError("region references are not supported")
        # Section IV.A.2.d, class 7: type 0 is an object reference, an address; types 2 and above
        # are the opaque references of HDF5 1.12, whose encoding only the library knows.
        if message[1] & 15 or width != wide:
            raise UnknownStructureError("references of another kind")
        addresses = [superblock.address(data, k * width) for k in range(count)]
        return [Address(a if a and a != superblock.undefined else -1) for a in addresses]
    if depth > _MAX_DEPTH:
        raise UnsupportedError(f"its sequences are nested more than {_MAX_DEPTH} deep")
    if width != 8 + wide:
        raise SourceError(f"a sequence has {width} bytes")
    elements: list[Any] = []
    inner, text = get_base_type(message), is_text(message)
    for at in range(0, count * width, width):
        length = int.from_bytes(data[at : at + 4], "little")
        address = superblock.address(data, at + 4)
        stored = b""
        # Length 0, address 0 and the undefined address all say that nothing is stored.
        if length and address and address != superblock.undefined:
            index = int.from_bytes(data[at + 4 + wide : at + width], "little")
            read_already = heap.get_cached(address, index)
            stored = (yield from heap.get(address, index)) if read_already is None else read_already
            superblock.spend(len(stored))
        else:
            length = 0
        if text:
            elements.append(stored[:length].split(b"\0")[0])
        else:
            elements.append((yield from _dereference_sequence(heap, inner, length, stored, depth)))
    return elements


def get_cached_text(heap: GlobalHeap, message: bytes, width: int, data: bytes) -> bytes | None:
    """Return one text whose collection was read already: most are such. None for all else."""
    if width != _POINTER.size or heap.superblock.address_size != 8 or not is_text(message):
        return None
    length, address, index = _POINTER.unpack_from(data)
    # Without a generator: netCDF files have tens of thousands of texts, nearly all in few
    # collections.
    stored = heap.get_cached(address, index) if length else None
    if stored is None:
        return None
    heap.superblock.spend(len(stored))
    return stored[:length].split(b"\0")[0]


def _dereference_sequence(
    heap: GlobalHeap, message: bytes, length: int, data: bytes, depth: int
) -> Parsing[Any]:
    element, dims, width = _split_array_type(message)
    shape = (length, *dims)
    count = math.prod(shape)
    if count * width > len(data):
        raise SourceError(f"{count * width} bytes are needed, {len(data)} are stored")
    if get_class(element) not in (SEQUENCE, REFERENCE):
        return as_array(element, data, count).reshape(shape)
    return nest((yield from dereference(heap, element, data, count, depth + 1)), shape)
