"""The `bitround` codec of v3: fewer significant bits, so that what follows compresses better."""

from __future__ import annotations

from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import Block, ChunkSpec, Codec, Endian, LossyFilter
from virtualzarr.codecs.core.numbers import component, is_narrow, number_format
from virtualzarr.codecs.core.rounding import float_format
from virtualzarr.errors import UnsupportedError

_NARROW = ("bfloat16", "complex32", "bcomplex32")


class BitRound(LossyFilter):
    """Floats keep `keepbits` bits of their mantissa, integers that many from their highest on.

    Source: zarr-extensions, codecs/bitround. Rounded to the nearest, ties to even; decoding
    changes nothing. What would become infinite, or overflow, is rounded towards zero instead; NaN,
    NaT and infinities stay as they are. Of a negative integer it is the magnitude that is rounded.
    """

    def validate(self) -> None:
        """Check keepbits."""
        self.check_members(["keepbits"])
        keepbits = self.configuration["keepbits"]
        if isinstance(keepbits, bool) or not isinstance(keepbits, int) or keepbits < 1:
            raise self.invalid(f"keepbits must be an integer from 1 on, not {keepbits!r}")

    def resolve(self, spec: ChunkSpec) -> Codec:
        """Check the dtype."""
        dtype, number = spec.dtype, number_format(spec.dtype)
        supported = dtype.kind in "mM" or (number is not None and number.kind != "b")
        if not supported or (is_narrow(dtype) and dtype.name not in _NARROW):
            raise self.invalid(f"is not defined for {dtype}")
        return self

    def encode(self, block: Block, spec: ChunkSpec) -> Block:
        """Return the block rounded."""
        keepbits = self.configuration["keepbits"]
        flat = np.ascontiguousarray(block, spec.dtype).reshape(-1)
        part = component(spec.dtype)
        number = number_format(part)
        if number is None or number.kind in "iu":
            return _integers(flat, keepbits).reshape(spec.shape)
        return _floats(flat.view(part), keepbits).view(spec.dtype).reshape(spec.shape)

    def to_v2(self, spec: ChunkSpec, endian: Endian) -> dict[str, Any]:
        """Return the configuration of numcodecs' filter, which knows plain floats only."""
        if spec.dtype.kind != "f":
            raise UnsupportedError(f"codec bitround has no v2 form for {spec.dtype}")
        return {"id": "bitround", "keepbits": self.configuration["keepbits"]}


def _floats(values: Block, keepbits: int) -> Block:
    mantissa = float_format(values.dtype).precision - 1
    if keepbits >= mantissa:
        return values
    unsigned = np.dtype(f"u{values.dtype.itemsize}")
    words = values.view(unsigned)
    drop = mantissa - keepbits
    half = np.array((1 << drop - 1) - 1, unsigned)
    keep_mask = np.array(((1 << 8 * unsigned.itemsize) - 1) >> drop << drop, unsigned)
    exponent = _exponent_bits(unsigned.itemsize, mantissa)
    # Ties to even without a branch: half a unit less one, plus the bit that stays last.
    odd = (words >> np.array(drop, unsigned)) & np.array(1, unsigned)
    rounded = (words + odd + half) & keep_mask
    # Rounding up may carry into the exponent; all of its bits set would mean infinity.
    rounded = np.where((rounded & exponent) == exponent, words & keep_mask, rounded)
    return np.where((words & exponent) == exponent, words, rounded).view(values.dtype)


def _exponent_bits(itemsize: int, mantissa: int) -> Any:
    bits = (1 << 8 * itemsize - 1) - (1 << mantissa)
    return np.array(bits, f"u{itemsize}")


def _integers(values: Block, keepbits: int) -> Block:
    one = np.uint64(1)
    words = values.view(f"{'u' if values.dtype.kind == 'u' else 'i'}{values.dtype.itemsize}")
    negative = words < 0
    wide = words.astype("u8")
    size = np.where(negative, ~wide + one, wide)
    # frexp of float64 is exact below 2^53 only: the bit length is found by halves.
    upper, lower = size >> np.uint64(32), size & np.uint64(0xFFFFFFFF)
    length = np.where(upper > 0, np.frexp(upper.astype("f8"))[1] + 32,
                      np.frexp(lower.astype("f8"))[1])  # fmt: skip
    drop = np.maximum(length - keepbits, 0).astype("u8")
    half = np.where(drop > 0, (one << np.maximum(drop, one) - one) - one, np.uint64(0))
    odd = np.where(drop > 0, (size >> drop) & one, np.uint64(0))
    floor = size >> drop << drop
    rounded = (size + odd + half) >> drop << drop
    greatest = np.uint64(np.iinfo(words.dtype).max)
    overflow = (rounded > greatest + negative.astype("u8")) | (rounded < floor)
    rounded = np.where(overflow, floor, rounded)
    result = np.where(negative, ~rounded + one, rounded).astype(words.dtype).view(values.dtype)
    return np.where(np.isnat(values), values, result) if values.dtype.kind in "mM" else result
