"""Checks of GRIB packings, before ecCodes is given the values.

ecCodes trusts the numbers that say how values are packed: with wrong ones it takes any amount of
memory, reads beyond the end of the message, or ends the process.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs.core.base import U1, Buffer
from virtualzarr.codecs.grib.message import NO_BITMAP, Sections, point_count
from virtualzarr.errors import CodecError

_MOST_BITS = 32
_MOST_BITS_SIMPLE = 60
"""Longer values ecCodes unpacks to other numbers."""


def check_packing(sections: Sections, size: int) -> bool:
    """Check a field of edition 2 that must have `size` points.

    Returns
    -------
    bool
        Whether this packing is one that can be checked.

    Raises
    ------
    CodecError
    """
    head, values = sections[5], memoryview(sections[7])[5:]
    if len(head) < 11:
        raise CodecError("GRIB: section 5 (packing) is cut off")
    points, count = point_count(sections[3]), int.from_bytes(head[5:9], "big")
    template = int.from_bytes(head[9:11], "big")
    grid = int.from_bytes(sections[3][12:14], "big")
    # Coefficients are no points: their number follows from the truncation, not from the block.
    spectral = 50 <= grid < 70
    if (template in _COEFFICIENTS) != spectral or grid not in _COEFFICIENTS.get(template, (grid,)):
        raise CodecError(f"GRIB: packing {template} is not for such a grid")
    if not spectral and (points != size or count > size):
        raise CodecError(
            f"GRIB: {count} values for a grid of {points} points; the block needs {size}"
        )
    # ecCodes allocates by this number alone.
    if count > max(8 * size, 1 << 16):
        raise CodecError(f"GRIB: {count} values for {size} points")
    if template in _SPECTRAL:
        _SPECTRAL[template](head, values, count)
    packing = _PACKINGS.get(template)
    if packing is None:
        return False
    _check_bitmap(sections[6], size, count)
    length, check = packing
    if len(head) < length:
        raise CodecError(
            f"GRIB: section 5 has {len(head)} bytes, packing {template} needs {length}"
        )
    check(head, values, count)
    return True


def explain_unsupported(template: int, bits: int) -> str:
    """Return why values cannot be unpacked, whatever they are; nothing if they may be.

    Parameters
    ----------
    template : int
        Of data representation; 0 for simple packing of edition 1, too.
    bits : int
        Of a value, if it is packed simply.

    Examples
    --------
    >>> explain_unsupported(50000, 0), explain_unsupported(0, 48)
    ('GRIB: packing 50000, which ecCodes does not unpack', '')
    """
    if template not in {*_PACKINGS, *_COEFFICIENTS, *_BY_TRIAL}:
        return f"GRIB: packing {template}, which ecCodes does not unpack"
    if template == 0 and bits > _MOST_BITS_SIMPLE:
        return f"GRIB: values of {bits} bits, of which ecCodes makes other numbers"
    return ""


def check_packing1(sections: Sections, size: int) -> bool:
    """Check a message of edition 1 that must have `size` points; see `check_packing`."""
    values = sections[4]
    flags, bits = values[3], values[10]
    # Bits of table 11: spherical harmonics, second order packing, extra flags. Those go to a
    # process of their own.
    if flags & 0xD0 or not has_whole_grid1(sections.get(2)):
        return False
    if 3 in sections:
        bitmap = sections[3]
        if bitmap[4:6] != b"\0\0":
            raise CodecError("GRIB: the bitmap is one that is only known by its number")
        if 8 * (len(bitmap) - 6) - bitmap[3] < size:
            raise CodecError(f"GRIB: the bitmap has fewer than {size} bits")
        count = int(np.unpackbits(np.frombuffer(bitmap, U1, offset=6), count=size).sum())
    else:
        count = size
    _check_bits(bits, _MOST_BITS_SIMPLE)
    _check_length(count * bits, len(values) - 11)
    return True


def has_whole_grid1(grid: bytes | None) -> bool:
    """Whether section 2 of edition 1 is as long as its type of grid needs.

    If it is not, ecCodes supposes that it is longer, and finds no section after it.
    """
    if grid is None:
        return True
    levels = 4 * grid[3] if grid[4] != 255 else 0
    return len(grid) >= _GRIDS1.get(grid[5], 1 << 24) + levels


def _check_bitmap(section: bytes, size: int, count: int) -> None:
    """Check that there are as many values as the bitmap has points with one."""
    if len(section) < 6:
        raise CodecError("GRIB: section 6 (bitmap) is cut off")
    if section[5] == NO_BITMAP:
        if count != size:
            raise CodecError(f"GRIB: {count} values without a bitmap for {size} points")
        return
    if section[5] != 0:
        raise CodecError(f"GRIB: the bitmap is one that is only known by its number, {section[5]}")
    if 8 * (len(section) - 6) < size:
        raise CodecError(f"GRIB: the bitmap has fewer than {size} bits")
    present = int(np.unpackbits(np.frombuffer(section, U1, offset=6), count=size).sum())
    if present > count:
        raise CodecError(f"GRIB: {count} values for {present} points of the bitmap")


def _check_bits(bits: int, limit: int = _MOST_BITS) -> None:
    if bits > limit:
        raise CodecError(f"GRIB: values of {bits} bits")


def _check_length(bits: int, nbytes: int) -> None:
    if -(-bits // 8) > nbytes:
        raise CodecError(f"GRIB: the values take {-(-bits // 8)} bytes, there are {nbytes}")


def _check_simple(head: bytes, values: memoryview, count: int) -> None:
    _check_bits(head[19], _MOST_BITS_SIMPLE)
    _check_length(count * head[19], len(values))


def _check_ieee(head: bytes, values: memoryview, count: int) -> None:
    if head[11] not in (1, 2):
        raise CodecError(f"GRIB: floating point of precision {head[11]}")
    _check_length(count * 32 * head[11], len(values))


def _check_jpeg2000(head: bytes, values: memoryview, count: int) -> None:
    """Check the image size of JPEG 2000 (ISO 15444-1, A.5.1): one component of all values."""
    _check_bits(head[19])
    if not head[19] or not count:
        return
    if bytes(values[:4]) != b"\xff\x4f\xff\x51" or len(values) < 42:
        raise CodecError("GRIB: the values are no JPEG 2000 code stream")
    width, height, left, top = struct.unpack_from(">IIII", values, 8)
    components = int.from_bytes(values[40:42], "big")
    if components != 1 or (width - left) * (height - top) != count or left > width or top > height:
        raise CodecError(f"GRIB: an image of {width} x {height} x {components} for {count} values")
    # The standard numbers tiles with 16 bits, and decoders allocate for each of them.
    tile = struct.unpack_from(">IIII", values, 24)
    if not tile[0] or not tile[1] or -(-width // tile[0]) * -(-height // tile[1]) > 65535:
        raise CodecError("GRIB: a JPEG 2000 image of too many tiles")


def _check_png(head: bytes, values: memoryview, count: int) -> None:
    """Check the whole of a PNG image: ecCodes does not survive one that is damaged.

    Source: ISO/IEC 15948, sections 5, 7 and 11.
    """
    _check_bits(head[19])
    if not head[19] or not count:
        return
    if bytes(values[:8]) != b"\x89PNG\r\n\x1a\n":
        raise CodecError("GRIB: the values are no PNG image")
    parts = _read_png_chunks(values)
    if len(parts.get(b"IHDR", b"")) != 13:
        raise CodecError("GRIB: a PNG image without a header")
    width, height, depth, colour, *methods = struct.unpack(">IIBBBBB", parts[b"IHDR"])
    samples = {0: 1, 2: 3, 6: 4}.get(colour, 0)
    if width * height != count or depth * samples != head[19] or any(methods):
        raise CodecError(f"GRIB: an image of {width} x {height} for {count} values")
    # Each row begins with a byte, its filter type, of which there are five.
    row = 1 + -(-width * head[19] // 8)
    inflate = zlib.decompressobj()
    try:
        rows = inflate.decompress(parts.get(b"IDAT", b""), row * height + 1)
    except zlib.error as error:
        raise CodecError(f"GRIB: a damaged PNG image: {error}") from error
    if len(rows) != row * height or not inflate.eof or max(rows[::row]) > 4:
        raise CodecError("GRIB: a damaged PNG image")


def _read_png_chunks(values: memoryview) -> dict[bytes, bytes]:
    """Return the chunks of a PNG image by type, those of one type joined."""
    chunks: dict[bytes, list[bytes]] = {}
    at = 8
    while b"IEND" not in chunks:
        if at + 12 > len(values):
            raise CodecError("GRIB: a PNG image that is cut off")
        length, kind = struct.unpack_from(">I4s", values, at)
        data = bytes(values[at + 8 : at + 8 + length])
        if kind not in (b"IHDR", b"IDAT", b"IEND"):
            raise CodecError(f"GRIB: a PNG image with a chunk {kind!r}")
        if zlib.crc32(kind + data) != int.from_bytes(
            values[at + 8 + length : at + 12 + length], "big"
        ):
            raise CodecError(f"GRIB: a damaged PNG image: chunk {kind!r}")
        chunks.setdefault(kind, []).append(data)
        at += 12 + length
    return {kind: b"".join(data) for kind, data in chunks.items()}


def _check_ccsds(head: bytes, values: memoryview, count: int) -> None:
    _check_bits(head[19])
    block, interval = head[22], int.from_bytes(head[23:25], "big")
    if head[19] and (block not in (8, 16, 32, 64) or not 1 <= interval <= 4096):
        raise CodecError(f"GRIB: CCSDS blocks of {block}, {interval} between references")


def _check_complex(head: bytes, values: memoryview, count: int) -> None:
    """Check the groups of complex packing (templates 5.2, 7.2)."""
    _check_groups(head, values, count, 0)


def _check_differences(head: bytes, values: memoryview, count: int) -> None:
    """Check the groups of complex packing with spatial differences (templates 5.3, 7.3)."""
    order, nbytes = head[47], head[48]
    if order not in (1, 2) or nbytes > 4:
        raise CodecError(f"GRIB: spatial differences of order {order}, in {nbytes} bytes")
    _check_groups(head, values, count, (order + 1) * nbytes)


def _check_spectral(head: bytes, values: memoryview, count: int) -> None:
    if len(head) < 24:
        raise CodecError("GRIB: section 5 (packing) is cut off")
    # The real part of the first coefficient is in section 5.
    _check_simple(head, values, max(count - 1, 0))


def _check_spectral_complex(head: bytes, values: memoryview, count: int) -> None:
    """Check the coefficients of which some are not packed (template 5.51)."""
    if len(head) < 35 or head[34] not in (1, 2):
        raise CodecError("GRIB: section 5 (packing) is cut off, or of no known precision")
    plain = int.from_bytes(head[30:34], "big")
    if plain > count:
        raise CodecError(f"GRIB: {plain} of {count} coefficients are not packed")
    _check_length(plain * 32 * head[34] + (count - plain) * head[19], len(values))


_COEFFICIENTS = {50: range(50, 60), 51: range(50, 60), 53: range(60, 70)}
"""Packings of spherical harmonics and of double Fourier series, and their grids."""

_BY_TRIAL = (1, 6, 61, 200, 50001, 50002)
"""Packings that ecCodes tries to unpack, and that are not checked before."""

_SPECTRAL = {50: _check_spectral, 51: _check_spectral_complex}
"""Checks that say that values are there, but not that they can be decoded without danger."""


def _check_groups(head: bytes, values: memoryview, count: int, at: int) -> None:
    """Check that groups have as many values as there are, and as many bits as follow."""
    bits, missing = head[19], head[22]
    (number,) = struct.unpack_from(">I", head, 31)
    least_width, width_bits = head[35], head[36]
    reference, step, last, length_bits = struct.unpack_from(">IBIB", head, 37)
    for width in (bits, width_bits, length_bits):
        _check_bits(width)
    if number > count or missing > 2:
        raise CodecError(f"GRIB: {number} groups of {count} values, missing ones in way {missing}")
    if not number:
        if count and bits:
            raise CodecError(f"GRIB: no groups for {count} values")
        return
    parts = []
    for width in (bits, width_bits, length_bits):
        nbytes = -(-number * width // 8)
        part = values[at : at + nbytes]
        _check_length(number * width, len(part))
        parts.append(part)
        at += nbytes
    # Templates 7.2 and 7.3: references, widths and lengths of all groups, then the values of each.
    widths = _unpack(parts[1], number, width_bits) + least_width
    lengths = _unpack(parts[2], number, length_bits) * step + reference
    lengths[-1] = last
    if int(widths.max()) > _MOST_BITS:
        raise CodecError(f"GRIB: a group has values of {int(widths.max())} bits")
    # None is longer than all together, so that sums do not overflow.
    if int(lengths.max()) > count or int(lengths.sum()) != count:
        raise CodecError(f"GRIB: groups of {int(lengths.sum())} values, not {count}")
    _check_length(int((widths * lengths).sum()), len(values) - at)


def _unpack(data: Buffer, count: int, width: int) -> NDArray[np.int64]:
    """Return numbers of `width` bits.

    Examples
    --------
    >>> _unpack(bytes([0b10100110]), 2, 3).tolist()
    [5, 1]
    """
    out = np.zeros(count, np.int64)
    bits = np.unpackbits(np.frombuffer(data, U1), count=count * width).reshape(count, width)
    for column in range(width):
        out = out * 2 + bits[:, column]
    return out


_GRIDS1 = {
    **dict.fromkeys((0, 4, 5, 50), 32), **dict.fromkeys((1, 3), 42), **dict.fromkeys((10, 14), 42),
    **dict.fromkeys((20, 24), 42), **dict.fromkeys((30, 34), 52), 90: 44,
}  # fmt: skip
"""Bytes that section 2 of edition 1 has at least, by the type of grid."""

_PACKINGS: dict[int, tuple[int, Callable[[bytes, memoryview, int], None]]] = {
    0: (21, _check_simple),
    2: (47, _check_complex),
    3: (49, _check_differences),
    4: (12, _check_ieee),
    40: (23, _check_jpeg2000),
    40000: (23, _check_jpeg2000),
    41: (21, _check_png),
    40010: (21, _check_png),
    42: (25, _check_ccsds),
}
"""By data representation template: the least length of section 5, and the check."""
