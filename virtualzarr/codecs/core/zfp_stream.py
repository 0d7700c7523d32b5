"""ZFP streams: their header, and decoding that stays within their bytes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from virtualzarr.codecs.core.base import Block, Buffer, Codec, as_u1, nbytes_of
from virtualzarr.codecs.core.libraries import require_imagecodecs
from virtualzarr.codecs.core.scratch import allocate

TYPES = ("<i4", "<i8", "<f4", "<f8")
_MAGIC = int.from_bytes(b"zfp\x05", "little")
_SHORT, _LONG = 12, 64  # bits of the mode: it is long if the first 12 are all set
_MODE = 32 + 52  # bits before it: magic, type and shape
_SHAPE_BITS = 48  # bits of the edges in all
_RATES = 2048  # short modes below this are fixed rates: so many bits a block, less one
_EMPTY_BLOCK = 16  # bytes that a block of zeros takes at most


class Header(NamedTuple):
    """What the header of a ZFP stream says.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    length : int
        Bits of the header.
    minbits : int
        Bits that each block of 4 elements along each axis takes at least.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    length: int
    minbits: int


def read_header(raw: bytes) -> Header | None:
    """Return what a full header says; None if there is none.

    Source: the ZFP library, `zfp_field_metadata` and `zfp_stream_mode`.
    """
    bits = int.from_bytes(raw[:19], "little")
    if raw[:3] != b"zfp" or len(raw) < 12:
        return None
    # 52 bits behind the magic: two of the type, two of the rank, 48 shared by the lengths less one.
    meta = bits >> 32
    ndim = (meta >> 2 & 3) + 1
    width = _SHAPE_BITS // ndim
    edges = [(meta >> 4 + width * k & (1 << width) - 1) + 1 for k in range(ndim)]
    size, minbits = read_mode(bits >> _MODE)
    return Header(tuple(edges[::-1]), np.dtype(TYPES[meta & 3]), _MODE + size, minbits)


def read_mode(bits: int) -> tuple[int, int]:
    """Return how many bits a mode has, and how many each block takes at least."""
    # Twelve set bits mark a long mode, whose next 15 bits are `minbits` less one.
    short = bits & (1 << _SHORT) - 1
    if short == (1 << _SHORT) - 1:
        return _LONG, (bits >> _SHORT & 0x7FFF) + 1
    return _SHORT, short + 1 if short < _RATES else 1


def write_header(shape: tuple[int, ...], dtype: np.dtype[Any], mode: int) -> int:
    """Return the bits of a full header as a number; the mode comes last."""
    width = _SHAPE_BITS // len(shape)
    meta = TYPES.index(dtype.newbyteorder("<").str) | len(shape) - 1 << 2
    for k, edge in enumerate(reversed(shape)):
        meta |= edge - 1 << 4 + width * k
    return _MAGIC | meta << 32 | mode << _MODE


def pad_stream(codec: Codec, data: Buffer, header: Header) -> bytes:
    """Return a stream with the zeros behind it that the decoder may read.

    It does not know where the data end: cut off ones go on as blocks of zeros.

    Raises
    ------
    CodecError
        The data are too few for blocks of the size that the header announces.
    """
    blocks = math.prod(-(-edge // 4) for edge in header.shape)
    # At a fixed rate every block takes so many bits, so that a short stream is known before
    # decoding.
    if blocks * header.minbits > 8 * nbytes_of(data):
        raise codec.error(
            f"{nbytes_of(data)} bytes, cut off: {blocks} blocks of {header.minbits} bits or more"
        )
    block = 4 ** len(header.shape) * header.dtype.itemsize
    padding = blocks * max(_EMPTY_BLOCK, header.minbits // 8 + 1)
    return b"".join((data, bytes(padding + 2 * block + 1024)))


def decode_without_header(
    codec: Codec, data: Buffer, header: int, max_nbytes: int | None = None
) -> Block:
    """Return the array of a stream that lacks its header, which is given as a number.

    Parameters
    ----------
    max_nbytes : int, optional
        The bytes that the array may have.
    """
    fields = read_header(header.to_bytes(19, "little"))
    assert fields is not None
    need = math.prod(fields.shape) * fields.dtype.itemsize
    # The shape comes from the file's parameters: checked before memory is taken for it.
    if max_nbytes is not None and need > max_nbytes:
        raise codec.size_error(need, max_nbytes)
    if fields.length % 8 == 0:
        stream = header.to_bytes(fields.length // 8, "little") + bytes(as_u1(data))
    else:  # the stream goes on at the next bit, not byte
        number = header | int.from_bytes(as_u1(data), "little") << fields.length
        stream = number.to_bytes(nbytes_of(data) + 19, "little")
    return decode_stream(codec, stream, fields)


def decode_stream(codec: Codec, stream: Buffer, header: Header) -> Block:
    """Return the array of a stream with its header."""
    padded = pad_stream(codec, stream, header)
    out = allocate(header.shape, header.dtype)
    try:
        require_imagecodecs(codec.name).zfp_decode(padded, out=out)
    except (RuntimeError, ValueError, TypeError) as error:
        raise codec.error(error) from error
    return out


# By number, as versions of imagecodecs have different names for the modes.
FIXED_RATE, FIXED_PRECISION, FIXED_ACCURACY, REVERSIBLE = range(2, 6)
MODE_NUMBERS = {
    "fixed_rate": FIXED_RATE,
    "fixed_precision": FIXED_PRECISION,
    "fixed_accuracy": FIXED_ACCURACY,
    "reversible": REVERSIBLE,
    "r": FIXED_RATE,
    "p": FIXED_PRECISION,
    "a": FIXED_ACCURACY,
    "R": REVERSIBLE,
}
"""Names of modes in metadata: those of the codec `zfp`, and the letters of imagecodecs."""


def encode_stream(codec: Codec, block: Block, mode: int, level: Any) -> bytes:
    """Return the stream of an array, with its header."""
    try:
        return bytes(
            require_imagecodecs(codec.name).zfp_encode(block, level, mode=mode, header=True)
        )
    except (RuntimeError, ValueError, TypeError, OverflowError) as error:
        raise codec.error(f"cannot compress ({error})") from error
