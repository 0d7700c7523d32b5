"""The `zfp` codec: ZFP streams without header."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from virtualzarr.codecs.core import zfp_stream
from virtualzarr.codecs.core.base import ArrayBytes, Block, Buffer, ChunkSpec
from virtualzarr.errors import UnsupportedError

_MIN_EXP = -16495
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
            integral = name not in ("rate", "tolerance")
            value = fields[name]
            # True is an int of Python, but not a rate; the bound is that of the C library's
            # integers.
            number = isinstance(value, int if integral else int | float) and value is not True
            if not number or not (abs(value) < 2**31) or (value < 0 and name != "minexp"):
                raise self.invalid(f"{name} must be a number that ZFP has, not {value!r}")

    def _shape(self, spec: ChunkSpec) -> tuple[int, ...]:
        if len(spec.shape) > 4 or not spec.size:
            raise self.invalid(f"compresses blocks of one to four dimensions, not {spec.shape}")
        if f"{spec.dtype.kind}{spec.dtype.itemsize}" not in _NATIVE:
            raise self.invalid(f"cannot hold {spec.dtype}, only {' '.join(_NATIVE)}")
        if max(spec.shape, default=1) > 1 << zfp_stream._SHAPE_BITS // max(len(spec.shape), 1):
            raise self.invalid(f"blocks of {spec.shape} are larger than ZFP has")
        return spec.shape or (1,)

    def _mode(self, dtype: np.dtype[Any], ndim: int) -> int:
        """Return the mode as headers have it."""
        fields = self.configuration
        if fields["mode"] == "expert":
            minbits, maxbits, maxprec, minexp = (fields[name] for name in _EXPERT)
            # Fields of the long mode, from the lowest bit on (`zfp_stream_mode` of the ZFP
            # library).
            parts = [
                ((1 << zfp_stream._SHORT) - 1, zfp_stream._SHORT),
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
        return _mode_of(self.name, zfp_stream.MODE_NUMBERS[mode], level, dtype.str, ndim)

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return the block."""
        shape = self._shape(spec)
        native = np.dtype(_NATIVE[f"{spec.dtype.kind}{spec.dtype.itemsize}"])
        header = zfp_stream.write_header(shape, native, self._mode(native, len(shape)))
        return _demote(zfp_stream.decode_without_header(self, data, header), spec.dtype).reshape(
            spec.shape
        )

    def encode(self, block: Block, spec: ChunkSpec) -> Buffer:
        """Compress, and drop the header that imagecodecs writes."""
        if self.configuration["mode"] == "expert":
            raise UnsupportedError(f"codec {self.name}: encoding in expert mode is not supported")
        shape = self._shape(spec)
        numbers = self._promote(np.ascontiguousarray(block).reshape(shape), spec.dtype)
        mode = self.configuration["mode"]
        level = self.configuration.get(_MODES[mode])
        stream = zfp_stream.encode_stream(self, numbers, zfp_stream.MODE_NUMBERS[mode], level)
        header = zfp_stream.read_header(stream)
        assert header is not None
        body = int.from_bytes(stream, "little") >> header.length
        words = -(-(8 * len(stream) - header.length) // 64)  # the library writes whole ones
        return body.to_bytes(8 * words, "little")

    def _promote(self, block: Block, dtype: np.dtype[Any]) -> Block:
        """Return the numbers as ones of a type that ZFP has."""
        native = np.dtype(_NATIVE[f"{dtype.kind}{dtype.itemsize}"])
        bits = 8 * dtype.itemsize
        if dtype.kind in "iu" and bits < 32:
            half = 1 << bits - 1 if dtype.kind == "u" else 0
            # As `zfp_promote` does: small integers use the upper bits, where lossy modes lose
            # least.
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
        # Lossy decoding may leave the range by a little; wrapping would turn 255 into 0.
        return np.clip((block >> 31 - bits) + half, limits.min, limits.max).astype(dtype)
    if dtype.kind == "u":
        return np.maximum(block, 0).astype(dtype)
    with np.errstate(over="ignore"):
        return block.astype(dtype, copy=False)


@lru_cache(maxsize=256)
def _mode_of(name: str, mode: int, level: Any, dtype: str, ndim: int) -> int:
    """Return a mode as the library writes it: it depends on type and dimensions, not on data."""
    # The library computes precision from a tolerance; asking it keeps us equal to its versions.
    codec = Zfp(name, {"mode": "reversible"})
    stream = zfp_stream.encode_stream(codec, np.zeros((1,) * ndim, dtype), mode, level)
    header = zfp_stream.read_header(stream)
    assert header is not None
    bits = int.from_bytes(stream[:19], "little") & (1 << header.length) - 1
    return bits >> zfp_stream._MODE
