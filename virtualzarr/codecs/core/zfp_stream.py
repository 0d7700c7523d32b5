"""ZFP streams: their header, and decoding that stays within their bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from virtualzarr.codecs.core.base import Block, Buffer, Codec, as_u1, as_view, nbytes_of
from virtualzarr.codecs.core.libraries import require_imagecodecs
from virtualzarr.codecs.core.scratch import allocate

TYPES = ("<i4", "<i8", "<f4", "<f8")
_MAGIC = int.from_bytes(b"zfp\x05", "little")
_SHORT, _LONG = 12, 64  # bits of the mode: it is long if the first 12 are all set
_MODE = 32 + 52  # bits before it: magic, type and shape
_SHAPE_BITS = 48  # bits of the edges in all
_RATES = 2048  # short modes below this are fixed rates: so many bits a block, less one
_MODE_BYTES = 19  # bytes that hold the longest header
_EMPTY_BLOCK = 16  # bytes that a block of zeros takes at most
_SPARE = 1024  # bytes that a block may take beyond twice its elements
_ZEROS = 8  # zero bits before the mark behind the data
# Fewer bits than two blocks that begin with a one: more would pass for the zeros before it.
_MARK = 0xFFFF << _ZEROS
# Writers fill words of 64 bits with zeros: the last of the stream, and that behind a cut header.
_BLOCKS_BEHIND = 2 * 64 + _ZEROS


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
    is_fixed : bool
        Whether each block takes just these bits.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    length: int
    minbits: int
    is_fixed: bool


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
    size, minbits, is_fixed = read_mode(bits >> _MODE)
    dtype = np.dtype(TYPES[meta & 3])
    return Header(tuple(edges[::-1]), dtype, _MODE + size, minbits, is_fixed)


def read_short_header(raw: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Header:
    """Return what a header without type and shape says, which imagecodecs calls none."""
    size, minbits, is_fixed = read_mode(int.from_bytes(raw[:12], "little") >> 32)
    return Header(shape, dtype, 32 + size, minbits, is_fixed)


def read_mode(bits: int) -> tuple[int, int, bool]:
    """Return the bits of a mode, those each block takes at least, and if all take as many."""
    # Twelve set bits mark a long mode, whose next 15 bits are `minbits` less one, and the 15 behind
    # these `maxbits` less one.
    short = bits & (1 << _SHORT) - 1
    if short == (1 << _SHORT) - 1:
        minbits, maxbits = (bits >> _SHORT & 0x7FFF) + 1, (bits >> _SHORT + 15 & 0x7FFF) + 1
        return _LONG, minbits, minbits == maxbits
    is_fixed = short < _RATES
    return _SHORT, short + 1 if is_fixed else 1, is_fixed


def write_header(shape: tuple[int, ...], dtype: np.dtype[Any], mode: int) -> int:
    """Return the bits of a full header as a number; the mode comes last."""
    width = _SHAPE_BITS // len(shape)
    meta = TYPES.index(dtype.newbyteorder("<").str) | len(shape) - 1 << 2
    for k, edge in enumerate(reversed(shape)):
        meta |= edge - 1 << 4 + width * k
    return _MAGIC | meta << 32 | mode << _MODE


def decode_whole(
    codec: Codec,
    stream: Buffer,
    header: Header,
    decode: Callable[[bytes, tuple[int, ...]], Block],
    end: int | None = None,
) -> Block:
    """Return the array of a stream, or say that it is cut off.

    The library does not know where the data end, nor does it tell how far it read. At a fixed rate
    the length follows from the shape. Else what the array is must not depend on what lies behind
    the data.

    Parameters
    ----------
    codec : Codec
        For errors.
    stream : buffer
    header : Header
    decode : callable
        Takes the stream with more bytes behind it, and a shape, and returns an array of it.
    end : int, optional
        Bits of the stream that are data; the others of the last byte are 0.

    Raises
    ------
    CodecError
        The data are too few.
    """
    end = 8 * nbytes_of(stream) if end is None else end
    blocks = math.prod(-(-edge // 4) for edge in header.shape)
    if header.length + blocks * header.minbits > end:
        raise codec.error(
            f"{nbytes_of(stream)} bytes, cut off: {blocks} blocks of {header.minbits} bits or more"
        )
    if header.is_fixed:
        return decode(_pad(stream, header, blocks, end), header.shape)
    axis, layers = _find_longer(header, blocks)
    if layers:
        block = _decode_longer(stream, header, decode, end, (axis, layers))
        if block is not None:
            return block
    first = decode(_pad(stream, header, blocks, end), header.shape)
    longest = 2 * _block_nbytes(header) + _SPARE
    second = decode(_pad(stream, header, blocks, end, (1 << 8 * longest) - 1), header.shape)
    if not np.array_equal(first.reshape(-1).view("u1"), second.reshape(-1).view("u1")):
        raise codec.error(f"{nbytes_of(stream)} bytes, cut off: {blocks} blocks go on behind them")
    return first


def _block_nbytes(header: Header) -> int:
    return 4 ** len(header.shape) * header.dtype.itemsize


def _pad(stream: Buffer, header: Header, blocks: int, end: int, more: int = 0) -> bytes:
    """Return a stream with the bits of `more` behind its data, and the zeros that may be read."""
    # Data that are cut off go on as blocks of zeros.
    zeros = blocks * max(_EMPTY_BLOCK, header.minbits // 8 + 1)
    zeros += 2 * _block_nbytes(header) + _SPARE
    start = end // 8
    behind = more << end % 8
    if start < nbytes_of(stream):  # the last byte is not full
        behind |= as_u1(stream)[start].item()
    tail = behind.to_bytes(-(-behind.bit_length() // 8), "little")
    return b"".join((as_view(stream)[:start], tail, bytes(zeros)))


def _find_longer(header: Header, blocks: int) -> tuple[int, int]:
    """Return an axis, and by how many blocks it can grow at little cost; 0 if it cannot."""
    # Only of floats is a zero bit a whole block, of zeros.
    if header.dtype.kind != "f" or header.minbits > 1:
        return 0, 0
    axis = next((i for i, edge in enumerate(header.shape) if edge > 1), len(header.shape) - 1)
    length = -(-header.shape[axis] // 4)
    layers = -(-_BLOCKS_BEHIND // (blocks // length))
    longest = 1 << _SHAPE_BITS // len(header.shape)
    fits = 4 * (length + layers) <= longest and 2 * layers <= length
    return axis, layers if fits else 0


def _decode_longer(
    stream: Buffer,
    header: Header,
    decode: Callable[[bytes, tuple[int, ...]], Block],
    end: int,
    longer: tuple[int, int],
) -> Block | None:
    """Return the array if a mark behind the data proves that they are whole, else None.

    Decoding twice would take twice the time. A few blocks more are decoded instead: from the end of
    whole data on, each zero bit is a block of zeros, and the first bit of the mark one that is not.
    """
    (axis, layers), shape = longer, header.shape
    length = -(-shape[axis] // 4)
    grown = (*shape[:axis], 4 * (length + layers), *shape[axis + 1 :])
    blocks = math.prod(-(-edge // 4) for edge in grown)
    out = decode(_pad(stream, header, blocks, end, _MARK), grown)
    before = (slice(None),) * axis
    remaining = out[(*before, slice(4 * length, None))]
    # The first block with an element that is not 0, by its number in the stream.
    is_set = np.argwhere(remaining.view(f"u{remaining.itemsize}"))
    places = tuple((is_set // 4).T)
    numbers = np.ravel_multi_index(places, [-(-edge // 4) for edge in remaining.shape])
    # Data that end behind their last byte leave fewer zero bits before the mark.
    if not numbers.size or numbers.min() < _ZEROS:
        return None
    return out[(*before, slice(shape[axis]))]


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
    end = fields.length + 8 * nbytes_of(data)
    if fields.length % 8 == 0:
        stream = header.to_bytes(fields.length // 8, "little") + bytes(as_u1(data))
    else:  # the stream goes on at the next bit, not byte
        number = header | int.from_bytes(as_u1(data), "little") << fields.length
        stream = number.to_bytes(-(-end // 8), "little")
    return decode_stream(codec, stream, fields, end)


def decode_stream(codec: Codec, stream: Buffer, header: Header, end: int | None = None) -> Block:
    """Return the array of a stream with its header, of which `end` bits are data (default all)."""
    function = require_imagecodecs(codec.name).zfp_decode

    def decode(padded: bytes, shape: tuple[int, ...]) -> Block:
        out = allocate(shape, header.dtype)
        try:
            function(_set_shape(padded, header, shape), out=out)
        except (RuntimeError, ValueError, TypeError) as error:
            raise codec.error(error) from error
        return out

    return decode_whole(codec, stream, header, decode, end)


def _set_shape(stream: bytes, header: Header, shape: tuple[int, ...]) -> bytes:
    """Return a stream whose header states another shape."""
    if shape == header.shape:
        return stream
    head = int.from_bytes(stream[:_MODE_BYTES], "little")
    bits = write_header(shape, header.dtype, head >> _MODE)
    return bits.to_bytes(_MODE_BYTES, "little") + stream[_MODE_BYTES:]


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
