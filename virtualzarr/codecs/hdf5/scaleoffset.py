"""The HDF5 filter scale-offset (6): numbers packed as offsets from the least one."""

from __future__ import annotations

import numpy as np

from virtualzarr.codecs.core.base import U1, Block, Buffer, as_u1, nbytes_of
from virtualzarr.codecs.hdf5.filter import Filter

_AT_ONCE = 1 << 16


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
        allowed = limit if size is None else size
        if nbytes_of(data) < self._header or count * width > allowed:
            raise self.size_error(count * width, allowed)
        bits = int.from_bytes(raw[:4].tobytes(), "little")
        minimum = raw[5 : 5 + min(int(raw[4]), 8)].tobytes().ljust(8, b"\0")[:width]
        stored = np.dtype(f"{'>' if big else '<'}{'f' if is_float else 'iu'[not signed]}{width}")
        body = raw[self._header :]
        # `minbits` of the full width means that the chunk was copied as it is.
        if bits == 8 * width:  # not packed at all
            if body.size < count * width:
                raise self.error("the data are truncated")
            native = body[: count * width].view(stored.newbyteorder("<"))
            return native.astype(stored).view(U1)
        if bits > 8 * width or body.size < -(-count * bits // 8):
            raise self.error(f"{count} numbers of {bits} bits do not fit {body.size} bytes")
        offsets = _unpack(body, count, bits, width)
        if is_float:
            numbers = _floats(offsets, minimum, digits)
        else:
            numbers = offsets + np.frombuffer(minimum, offsets.dtype)
        # All bits set stand for the fill value, which the offset does not apply to.
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


def _floats(offsets: Block, minimum: bytes, digits: int) -> Block:
    """Return floats that were kept as whole numbers of a power of ten above the least."""
    width = offsets.dtype.itemsize
    kind = np.dtype(f"<f{width}").type
    digits = digits - (1 << 32) if digits >> 31 else digits
    with np.errstate(all="ignore"):
        scaled = offsets.view(f"<i{width}").astype(kind) / kind(np.float64(10) ** digits)
        return scaled + np.frombuffer(minimum, kind)
