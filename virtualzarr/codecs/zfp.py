"""ZFP: the header of its streams, decoding that stays within them, and the codec `zfp` of v3."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from virtualzarr.codecs.bridges.imagecodecs import library
from virtualzarr.codecs.core.base import (
    ArrayBytes,
    Block,
    Buffer,
    ChunkSpec,
    Codec,
    as_u1,
    nbytes_of,
)
from virtualzarr.codecs.core.scratch import allocate
from virtualzarr.errors import UnsupportedError

TYPES = ("<i4", "<i8", "<f4", "<f8")
_MAGIC = int.from_bytes(b"zfp\x05", "little")
_SHORT, _LONG = 12, 64  # bits of the mode: it is long if the first 12 are all set
_MODE = 32 + 52  # bits before it: magic, type and shape
_SHAPE_BITS = 48  # bits of the edges in all
_RATES = 2048  # short modes below this are fixed rates: so many bits a block, less one
_MIN_EXP = -16495
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
    meta = bits >> 32
    ndim = (meta >> 2 & 3) + 1
    width = _SHAPE_BITS // ndim
    edges = [(meta >> 4 + width * k & (1 << width) - 1) + 1 for k in range(ndim)]
    size, minbits = read_mode(bits >> _MODE)
    return Header(tuple(edges[::-1]), np.dtype(TYPES[meta & 3]), _MODE + size, minbits)


def read_mode(bits: int) -> tuple[int, int]:
    """Return how many bits a mode has, and how many each block takes at least."""
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
    if blocks * header.minbits > 8 * nbytes_of(data):
        raise codec.error(
            f"{nbytes_of(data)} bytes, cut off: {blocks} blocks of {header.minbits} bits or more"
        )
    block = 4 ** len(header.shape) * header.dtype.itemsize
    rest = blocks * max(_EMPTY_BLOCK, header.minbits // 8 + 1)
    return b"".join((data, bytes(rest + 2 * block + 1024)))


def decode_without_header(
    codec: Codec, data: Buffer, header: int, room: int | None = None
) -> Block:
    """Return the array of a stream that lacks its header, which is given as a number.

    Parameters
    ----------
    room : int, optional
        The bytes that the array may have.
    """
    said = read_header(header.to_bytes(19, "little"))
    assert said is not None
    need = math.prod(said.shape) * said.dtype.itemsize
    if room is not None and need > room:
        raise codec.size_error(need, room)
    if said.length % 8 == 0:
        stream = header.to_bytes(said.length // 8, "little") + bytes(as_u1(data))
    else:  # the stream goes on at the next bit, not byte
        number = header | int.from_bytes(as_u1(data), "little") << said.length
        stream = number.to_bytes(nbytes_of(data) + 19, "little")
    return decode_stream(codec, stream, said)


def decode_stream(codec: Codec, stream: Buffer, header: Header) -> Block:
    """Return the array of a stream with its header."""
    room = pad_stream(codec, stream, header)
    out = allocate(header.shape, header.dtype)
    try:
        library(codec.name).zfp_decode(room, out=out)
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

# The member of the configuration that says how much.
_MODES = {
    "fixed_rate": "rate",
    "fixed_precision": "precision",
    "fixed_accuracy": "tolerance",
    "reversible": "",
}
_EXPERT = ("minbits", "maxbits", "maxprec", "minexp")


class Zfp(ArrayBytes):
    """A ZFP stream without header.

    Source: zarr-extensions, codecs/zfp. Integers of 8 and 16 bits are shifted up to 32 bits,
    unsigned ones of 32 and 64 bits are signed ones that are not negative, as in zarrs. In expert
    mode there is no encoder.
    """

    in_v2: ClassVar[bool] = False

    def validate(self) -> None:
        """Check the mode and its parameters."""
        fields = self.configuration
        mode = fields.get("mode")
        if mode not in (*_MODES, "expert"):
            raise self.invalid(f"mode must be one of {', '.join(_MODES)} and expert, not {mode!r}")
        names = _EXPERT if mode == "expert" else tuple(filter(None, [_MODES[mode]]))
        if set(fields) != {"mode", *names}:
            raise self.invalid(f"mode {mode} has the members {list(names)}, not {sorted(fields)}")
        for name in names:
            whole = name not in ("rate", "tolerance")
            value = fields[name]
            number = isinstance(value, int if whole else int | float) and value is not True
            if not number or not (abs(value) < 2**31) or (value < 0 and name != "minexp"):
                raise self.invalid(f"{name} must be a number that ZFP has, not {value!r}")

    def _shape(self, spec: ChunkSpec) -> tuple[int, ...]:
        if len(spec.shape) > 4 or not spec.size:
            raise self.invalid(f"compresses blocks of one to four dimensions, not {spec.shape}")
        if f"{spec.dtype.kind}{spec.dtype.itemsize}" not in _NATIVE:
            raise self.invalid(f"cannot hold {spec.dtype}, only {' '.join(_NATIVE)}")
        if max(spec.shape, default=1) > 1 << _SHAPE_BITS // max(len(spec.shape), 1):
            raise self.invalid(f"blocks of {spec.shape} are larger than ZFP has")
        return spec.shape or (1,)

    def _mode(self, dtype: np.dtype[Any], ndim: int) -> int:
        """Return the mode as headers have it."""
        fields = self.configuration
        if fields["mode"] == "expert":
            minbits, maxbits, maxprec, minexp = (fields[name] for name in _EXPERT)
            parts = [
                ((1 << _SHORT) - 1, _SHORT),
                (min(max(minbits, 1), 0x8000) - 1, 15),
                (min(max(maxbits, 1), 0x8000) - 1, 15),
                (min(max(maxprec, 1), 0x80) - 1, 7),
                (min(max(minexp - _MIN_EXP, 0), 0x7FFF), 15),
            ]
            mode = shift = 0
            for value, width in parts:
                mode |= value << shift
                shift += width
            return mode
        mode = fields["mode"]
        level = fields.get(_MODES[mode])
        return _mode_of(self.name, MODE_NUMBERS[mode], level, dtype.str, ndim)

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return the block."""
        shape = self._shape(spec)
        native = np.dtype(_NATIVE[f"{spec.dtype.kind}{spec.dtype.itemsize}"])
        header = write_header(shape, native, self._mode(native, len(shape)))
        return _demote(decode_without_header(self, data, header), spec.dtype).reshape(spec.shape)

    def encode(self, block: Block, spec: ChunkSpec) -> Buffer:
        """Compress, and drop the header that imagecodecs writes."""
        if self.configuration["mode"] == "expert":
            raise UnsupportedError(f"codec {self.name}: encoding in expert mode is not supported")
        shape = self._shape(spec)
        numbers = self._promoted(np.ascontiguousarray(block).reshape(shape), spec.dtype)
        mode = self.configuration["mode"]
        level = self.configuration.get(_MODES[mode])
        stream = encode_stream(self, numbers, MODE_NUMBERS[mode], level)
        header = read_header(stream)
        assert header is not None
        rest = int.from_bytes(stream, "little") >> header.length
        words = -(-(8 * len(stream) - header.length) // 64)  # the library writes whole ones
        return rest.to_bytes(8 * words, "little")

    def _promoted(self, block: Block, dtype: np.dtype[Any]) -> Block:
        """Return the numbers as ones of a type that ZFP has."""
        native = np.dtype(_NATIVE[f"{dtype.kind}{dtype.itemsize}"])
        bits = 8 * dtype.itemsize
        if dtype.kind in "iu" and bits < 32:
            half = 1 << bits - 1 if dtype.kind == "u" else 0
            return (block.astype("i4") - half) << 31 - bits
        if dtype.kind == "u" and (block > np.iinfo(native).max).any():
            raise self.error(f"cannot compress {dtype} numbers above {np.iinfo(native).max}")
        return block.astype(native)


_NATIVE = {
    **dict.fromkeys(("i1", "i2", "i4", "u1", "u2", "u4"), "i4"),
    **{"i8": "i8", "u8": "i8", "f2": "f4", "f4": "f4", "f8": "f8"},
}


def _demote(block: Block, dtype: np.dtype[Any]) -> Block:
    bits = 8 * dtype.itemsize
    if dtype.kind in "iu" and bits < 32:
        half = 1 << bits - 1 if dtype.kind == "u" else 0
        limits = np.iinfo(dtype)
        return np.clip((block >> 31 - bits) + half, limits.min, limits.max).astype(dtype)
    if dtype.kind == "u":
        return np.maximum(block, 0).astype(dtype)
    with np.errstate(over="ignore"):
        return block.astype(dtype, copy=False)


def encode_stream(codec: Codec, block: Block, mode: int, level: Any) -> bytes:
    """Return the stream of an array, with its header."""
    try:
        return bytes(library(codec.name).zfp_encode(block, level, mode=mode, header=True))
    except (RuntimeError, ValueError, TypeError, OverflowError) as error:
        raise codec.error(f"cannot compress ({error})") from error


@lru_cache(maxsize=256)
def _mode_of(name: str, mode: int, level: Any, dtype: str, ndim: int) -> int:
    """Return a mode as the library writes it: it depends on type and dimensions, not on data."""
    codec = Zfp(name, {"mode": "reversible"})
    stream = encode_stream(codec, np.zeros((1,) * ndim, dtype), mode, level)
    header = read_header(stream)
    assert header is not None
    bits = int.from_bytes(stream[:19], "little") & (1 << header.length) - 1
    return bits >> _MODE
