"""HDF5 filters that no other codec decodes: bitshuffle's container, and scale-offset packing.

Both take the filter's own parameters as HDF5 keeps them, so that nothing is lost in translation.
They cannot be encoded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from virtualzarr.codecs.bridges.imagecodecs import library
from virtualzarr.codecs.core.base import U1, Block, Buffer, BytesBytes, as_u1, nbytes_of
from virtualzarr.errors import UnsupportedError

_AT_ONCE = 1 << 16


class Filter(BytesBytes):
    """A filter with a list of parameters."""

    needed = 0

    def validate(self) -> None:
        """Check that there are enough parameters."""
        values = self.configuration.get("parameters")
        if set(self.configuration) != {"parameters"} or not isinstance(values, list | tuple):
            raise self.invalid("the only member is a list of parameters")
        if len(values) < self.needed or not all(_is_u4(value) for value in values):
            raise self.invalid(f"needs {self.needed} unsigned 32-bit parameters, not {values!r}")
        self.configuration["parameters"] = list(values)
        self.check(self.configuration["parameters"])

    def check(self, values: list[int]) -> None:
        """Check the values of the parameters."""

    def encode(self, data: Buffer) -> Buffer:
        """Refuse."""
        raise UnsupportedError(f"codec {self.name}: encoding is not supported")


def _is_u4(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32


class Bitshuffle(Filter):
    """HDF5 filter 32008 (``virtualzarr.hdf5_bitshuffle``): bits of equal weight together.

    Parameters: version, version, bytes of an element, elements of a block (0: as many as make
    8 kB), compressor (0 none, 2 LZ4, 3 Zstandard). Source: bitshuffle's own `bshuf_h5filter`.
    Compressed chunks begin with their decoded size (8 bytes) and the bytes of a block (4), both
    big-endian; each block with its encoded size. Elements that make no group of 8 follow raw.
    """

    needed = 3
    compressor = True

    def check(self, values: list[int]) -> None:
        """Check element size and compressor."""
        if not 1 <= values[2] <= 1 << 16:
            raise self.invalid(f"elements of {values[2]} bytes")
        if self._compressor not in (0, 2, 3):
            raise self.invalid(f"compressor {self._compressor} is not known")

    @property
    def _compressor(self) -> int:
        values = self.configuration["parameters"]
        return int(values[4]) if len(values) > 4 else 0

    def decode(self, data: Buffer, size: int | None, limit: int) -> Buffer:
        """Return the elements' bytes."""
        raw = bytes(as_u1(data))
        itemsize = self.configuration["parameters"][2]
        if self._compressor:
            return self._blocks(raw, itemsize, limit if size is None else size)
        values = self.configuration["parameters"]
        count = values[3] if len(values) > 3 else 0
        whole = len(raw) - len(raw) % itemsize
        return self._unshuffle(raw[:whole], itemsize, count) + raw[whole:]

    def _blocks(self, raw: bytes, itemsize: int, limit: int) -> bytes:
        total, step = int.from_bytes(raw[:8], "big"), int.from_bytes(raw[8:12], "big")
        if len(raw) < 12 or total > limit:
            raise self.size_error(total, limit)
        if step % (8 * itemsize) or (not step and total >= 8 * itemsize):
            raise self.error(f"blocks of {step} bytes")
        parts: list[bytes] = []
        place, left = 12, total
        while left >= 8 * itemsize:
            count = min(step, left - left % (8 * itemsize))
            stop = place + 4 + int.from_bytes(raw[place : place + 4], "big")
            if stop > len(raw):
                raise self.error("the data are truncated")
            block = self._decompress(raw[place + 4 : stop], count)
            parts.append(self._unshuffle(block, itemsize, count // itemsize))
            place, left = stop, left - count
        if place + left > len(raw):
            raise self.error("the data are truncated")
        parts.append(raw[place : place + left])
        return b"".join(parts)

    def _decompress(self, block: bytes, size: int) -> bytes:
        package = library(self.name)
        decode = package.lz4_decode if self._compressor == 2 else package.zstd_decode
        try:
            out = bytes(decode(block, out=size))
        except (RuntimeError, ValueError) as error:
            raise self.error(error) from error
        if len(out) != size:
            raise self.size_error(len(out), size)
        return out

    def _unshuffle(self, block: bytes, itemsize: int, count: int) -> bytes:
        try:
            return bytes(
                library(self.name).bitshuffle_decode(block, itemsize=itemsize, blocksize=count)
            )
        except (RuntimeError, ValueError) as error:
            raise self.error(error) from error


class ScaleOffset(Filter):
    """HDF5 filter 6 (``virtualzarr.hdf5_scaleoffset``): numbers as offsets from the least, packed.

    Parameters, as HDF5's `H5Zscaleoffset.c` keeps them: kind of scale (0 decimal digits of
    floats, 2 integers), digits, number of elements, class (0 integer, 1 float), bytes of an
    element, signed, byte order (0 little), whether there is a fill value, and its bytes, four in
    each parameter.
    A chunk has a header of 21 bytes, with the bits of an offset (4 bytes) and the least number.
    """

    needed = 8
    compressor = True
    _header = 21

    def check(self, values: list[int]) -> None:
        """Check that the type is one HDF5 packs."""
        kind, _, count, is_float, size = values[:5]
        sizes = (4, 8) if is_float else (1, 2, 4, 8)
        if is_float not in (0, 1) or size not in sizes or (is_float and kind != 0):
            raise self.invalid(f"scale {kind} of class {is_float} and {size} bytes is not known")
        if any(flag not in (0, 1) for flag in values[5:8]):
            raise self.invalid("a parameter that is a flag is neither 0 nor 1")
        if count * size > 1 << 32 or (values[7] and len(values) * 4 < 32 + size):
            raise self.invalid("the parameters contradict each other")

    def decode(self, data: Buffer, size: int | None, limit: int) -> Buffer:
        """Return the elements' bytes."""
        values = self.configuration["parameters"]
        _, digits, count, is_float, width, signed, big, has_fill = values[:8]
        raw = as_u1(data)
        room = limit if size is None else size
        if nbytes_of(data) < self._header or count * width > room:
            raise self.size_error(count * width, room)
        bits = int.from_bytes(raw[:4].tobytes(), "little")
        least = raw[5 : 5 + min(int(raw[4]), 8)].tobytes().ljust(8, b"\0")[:width]
        stored = np.dtype(f"{'>' if big else '<'}{'f' if is_float else 'iu'[not signed]}{width}")
        body = raw[self._header :]
        if bits == 8 * width:  # not packed at all
            if body.size < count * width:
                raise self.error("the data are truncated")
            native = body[: count * width].view(stored.newbyteorder("<"))
            return native.astype(stored).view(U1)
        if bits > 8 * width or body.size < -(-count * bits // 8):
            raise self.error(f"{count} numbers of {bits} bits do not fit {body.size} bytes")
        offsets = _unpack(body, count, bits, width)
        if is_float:
            numbers = _floats(offsets, least, digits)
        else:
            numbers = offsets + np.frombuffer(least, offsets.dtype)
        if has_fill:
            fill = np.array(values[8:], "<u4").tobytes()[:width]
            numbers = numbers.view(offsets.dtype)
            numbers[offsets == (1 << bits) - 1] = np.frombuffer(fill, offsets.dtype)[0]
        return numbers.view(stored.newbyteorder("<")).astype(stored).view(U1)


def _unpack(body: Block, count: int, bits: int, width: int) -> Block:
    """Return numbers that lie bit after bit, the most significant first."""
    numbers = np.zeros(count, f"<u{width}")
    # A bit takes a byte while it is moved: not all at once. Any 8 numbers end on a whole byte.
    for start in range(0, count if bits else 0, _AT_ONCE):
        part = numbers[start : start + _AT_ONCE]
        flat = np.unpackbits(body[start * bits // 8 :][: len(part) * bits], count=len(part) * bits)
        spread = np.zeros((len(part), 8 * width), U1)
        spread[:, 8 * width - bits :] = flat.reshape(len(part), bits)
        part[...] = np.packbits(spread, axis=1).view(f">u{width}").reshape(-1)
    return numbers


def _floats(offsets: Block, least: bytes, digits: int) -> Block:
    """Return floats that were kept as whole numbers of a power of ten above the least."""
    width = offsets.dtype.itemsize
    kind = np.dtype(f"<f{width}").type
    digits = digits - (1 << 32) if digits >> 31 else digits
    with np.errstate(all="ignore"):
        scaled = offsets.view(f"<i{width}").astype(kind) / kind(np.float64(10) ** digits)
        return scaled + np.frombuffer(least, kind)
