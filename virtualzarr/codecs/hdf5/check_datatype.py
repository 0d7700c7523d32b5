"""Checks of HDF5 datatype messages, which the HDF5 library trusts."""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from itertools import pairwise

from virtualzarr.errors import SourceError, UnsupportedError

INTEGER, FLOAT, TIME, STRING, BITFIELD, OPAQUE = range(6)
COMPOUND, REFERENCE, ENUM, SEQUENCE, ARRAY, COMPLEX = range(6, 12)
_MAX_DEPTH = 32
_PROPERTIES = {INTEGER: 4, FLOAT: 12, TIME: 2, STRING: 0, BITFIELD: 4, REFERENCE: 0}


@lru_cache(4096)
def check_datatype(message: bytes) -> bytes:
    """Return a datatype message without what follows it.

    HDF5 file format specification, section IV.A.2.d, versions 1 to 5.

    Raises
    ------
    SourceError
        If it ends early, or members reach over the end of an element.
    UnsupportedError
        If a version or class in it is not known.
    """
    try:
        return message[: find_type_end(message, 0, 0)]
    except (struct.error, IndexError, ValueError) as error:
        raise SourceError("the datatype message ends early") from error


def find_type_end(message: bytes, at: int, depth: int) -> int:
    """Return where the datatype at byte `at` ends, having looked at all of it."""
    if depth > _MAX_DEPTH:
        raise SourceError(f"the datatype is nested more than {_MAX_DEPTH} levels deep")
    kind, version = message[at] & 15, message[at] >> 4
    if version not in (1, 2, 3, 4, 5):
        raise UnsupportedError(f"datatype message version {version}")
    # Class and version, 24 class bits, the size of an element; properties follow (IV.A.2.d).
    count = message[at + 1] | message[at + 2] << 8
    (length,) = struct.unpack_from("<I", message, at + 4)
    if not length:
        raise SourceError("a datatype has elements of no bytes")
    at += 8
    if kind in _PROPERTIES:
        end = _check_end(message, at + _PROPERTIES[kind])
        if kind in (INTEGER, FLOAT, BITFIELD):
            _check_bits(message, at, 8 * length)
        return end
    if kind == OPAQUE:
        return _check_end(message, at + -(-(count & 255) // 8) * 8)
    if kind == COMPOUND:
        return _find_compound_end(message, at, version, count, length, depth)
    if kind == ENUM:
        # Names and values of an enumeration are as many as its bits say: a wrong count reads on
        # into whatever follows.
        width = int.from_bytes(message[at + 4 : at + 8], "little")
        if width != length:
            raise SourceError("an enumeration and its numbers have different sizes")
        at = find_type_end(message, at, depth + 1)
        for _ in range(count):
            at = find_name_end(message, at, version)
        return _check_end(message, at + count * width)
    if kind in (SEQUENCE, COMPLEX):
        return find_type_end(message, at, depth + 1)
    if kind == ARRAY:
        inner = at + count_array_head(message, at, version)
        # The library multiplies lengths without looking: a size that differs makes it write past
        # elements.
        lengths = struct.unpack_from(f"<{message[at]}I", message, at + (4 if version < 3 else 1))
        if math.prod(lengths) * int.from_bytes(message[inner + 4 : inner + 8], "little") != length:
            raise SourceError("an array datatype has another size than its elements have together")
        return find_type_end(message, inner, depth + 1)
    raise UnsupportedError(f"datatype class {kind}")


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


def _check_end(message: bytes, at: int) -> int:
    if at > len(message):
        raise SourceError("the datatype message ends early")
    return at


def find_name_end(message: bytes, at: int, version: int) -> int:
    """Return where a name ends; up to version 2 its bytes are a multiple of 8."""
    end = message.index(b"\0", at) + 1
    return end if version > 2 else at + -(-(end - at) // 8) * 8


def count_array_head(message: bytes, at: int, version: int) -> int:
    """Return the bytes of an array's dimensions."""
    rank = message[at]
    return 4 + 8 * rank if version < 3 else 1 + 4 * rank


def _find_compound_end(
    message: bytes, at: int, version: int, count: int, length: int, depth: int
) -> int:
    if not count:
        raise SourceError("a compound datatype has no members")
    wide = max(-(-length.bit_length() // 8), 1)
    taken = []
    for _ in range(count):
        at = find_name_end(message, at, version)
        width = 4 if version < 3 else wide
        offset = int.from_bytes(message[at : at + width], "little")
        at += width
        repeats = 1
        # Version 1 has dimensions in each member: rank, permutation, and four lengths (28 bytes).
        if version == 1:
            rank = message[at]
            for n in struct.unpack_from(f"<{min(rank, 4)}I", message, at + 12):
                repeats *= n
            at += 28
        inner = int.from_bytes(message[at + 4 : at + 8], "little")
        if offset + inner * repeats > length:
            raise SourceError("a member reaches over the end of its compound datatype")
        taken.append((offset, offset + inner * repeats))
        at = find_type_end(message, at, depth + 1)
    # Members in any order, but none over another: the library converts them in place.
    taken.sort()
    if any(stop > start for (_, stop), (start, _) in pairwise(taken)):
        raise SourceError("members of a compound datatype overlap")
    return at
