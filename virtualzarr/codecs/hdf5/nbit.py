"""The HDF5 filter n-bit (5): only the bits that elements use."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from virtualzarr.codecs.core.base import U1, Block, Buffer, as_u1
from virtualzarr.codecs.hdf5.filter import Filter
from virtualzarr.errors import CodecError

_AT_ONCE = 1 << 14
_MOST_PARTS = 4096
_WIDEST = 16
_ATOMIC, _ARRAY, _COMPOUND, _BYTES = 1, 2, 3, 4


class _Part(NamedTuple):
    """Bits of an element: `precision` of them at bit `offset` of `size` bytes at `at`."""

    at: int
    size: int
    big: bool
    precision: int
    offset: int


class NBit(Filter):
    """HDF5 filter 5 (``virtualzarr.hdf5_nbit``): only the bits that elements use.

    Parameters, as HDF5's `H5Znbit.c` keeps them: their number, whether nothing was packed, number
    of elements, and the type: class (1 number, 2 array, 3 compound, 4 bytes), size, and for
    numbers byte order (0 little), precision and offset; for arrays the type of an element; for
    compounds the number of members, and the offset and type of each.
    Elements follow each other bit by bit, the most significant first.
    """

    needed = 5
    compressor = True

    def check(self, values: list[int]) -> None:
        """Check that the type is one HDF5 packs."""
        size, parts = self._parse_type()
        if any(not 0 <= p.at <= p.at + p.size <= size for p in parts):
            raise self.invalid("a part does not lie inside its element")
        if values[2] * max(size, 1) > 1 << 32:
            raise self.invalid("the parameters contradict each other")

    def _parse_type(self) -> tuple[int, list[_Part]]:
        """Return the bytes of an element and what is packed of it."""
        values = self.configuration["parameters"]
        parts: list[_Part] = []
        try:
            self._add_part(values, 3, 0, parts, 0)
        except CodecError:
            raise
        except (IndexError, ValueError) as error:
            raise self.invalid("the parameters end early") from error
        return values[4], parts

    def _add_part(self, values: list[int], k: int, at: int, parts: list[_Part], depth: int) -> int:
        """Add the parts of the type at parameter `k`; return where the next begins."""
        kind, size = values[k], values[k + 1]
        # A few parameters can describe arrays of arrays with billions of parts.
        if len(parts) >= _MOST_PARTS or depth > 16:
            raise self.invalid("the type has too many parts")
        if kind == _ATOMIC:
            big, precision, offset = values[k + 2 : k + 5]
            if big > 1 or not 0 < size <= _WIDEST or not 0 < precision <= 8 * size - offset:
                raise self.invalid(f"{precision} bits at bit {offset} of {size} bytes")
            parts.append(_Part(at, size, bool(big), precision, offset))
            return k + 5
        if kind == _BYTES:
            if len(parts) + size > _MOST_PARTS:
                raise self.invalid("the type has too many parts")
            parts += [_Part(at + i, 1, False, 8, 0) for i in range(size)]
            return k + 2
        if kind == _ARRAY:
            width = values[k + 3]
            if not width or size % width:
                raise self.invalid(f"an array of {size} bytes, its elements of {width}")
            for start in range(0, size, width):
                after = self._add_part(values, k + 2, at + start, parts, depth + 1)
            return after if size else k + 4
        if kind != _COMPOUND:
            raise self.invalid(f"class {kind} is not known")
        after = k + 3
        for _ in range(values[k + 2]):
            after = self._add_part(values, after + 1, at + values[after], parts, depth + 1)
        return after

    def decode(self, data: Buffer, size: int | None, limit: int) -> Buffer:
        """Return the elements' bytes; bits that were not kept are 0."""
        count = self.configuration["parameters"][2]
        width, parts = self._parse_type()
        allowed = limit if size is None else size
        if count * width > allowed:
            raise self.size_error(count * width, allowed)
        bits = sum(part.precision for part in parts)
        raw = as_u1(data)
        # unpackbits would fill up with zeros, and the last elements be wrong.
        if raw.size < -(-count * bits // 8):
            raise self.error(f"{count} elements of {bits} bits do not fit {raw.size} bytes")
        out = np.zeros((count, width), U1)
        # A bit takes a byte while it is moved: not all at once. Any 8 elements end on a byte.
        step = max(8, _AT_ONCE // max(bits, 1) & ~7)
        for start in range(0, count if bits else 0, step):
            block = out[start : start + step]
            flat = np.unpackbits(raw[start * bits // 8 :], count=len(block) * bits)
            _scatter_bits(flat.reshape(-1, bits), parts, block)
        return out.reshape(-1)


def _scatter_bits(bits: Block, parts: list[_Part], out: Block) -> None:
    """Put the bits of elements, one row each, where they belong."""
    at = 0
    for part in parts:
        # Most significant bit first, so that packbits gives big-endian numbers.
        spread = np.zeros((len(bits), 8 * part.size), U1)
        stop = 8 * part.size - part.offset
        spread[:, stop - part.precision : stop] = bits[:, at : at + part.precision]
        number = np.packbits(spread, axis=1)
        out[:, part.at : part.at + part.size] = number if part.big else number[:, ::-1]
        at += part.precision
