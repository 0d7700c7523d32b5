"""The `packbits` codec of v3: elements of a few bits each, one right after another."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import ArrayBytes, Block, Buffer, ChunkSpec, Codec, Endian, as_u1
from virtualzarr.codecs.core.numbers import component, is_narrow, number_format
from virtualzarr.errors import UnsupportedError

_PADDINGS = ("none", "first_byte", "last_byte")
_STEP = 1 << 15  # elements unpacked to single bits at once: a multiple of 8


class PackBits(ArrayBytes):
    """Bits `first_bit` to `last_bit` of every component, the least significant first.

    Source: zarr-extensions, codecs/packbits. With `padding_encoding` a byte before or after the
    bits counts those that fill up the last byte. Bits left out are zero when read back, except
    for signed integers, which repeat the last bit. Unlike ``numcodecs.packbits``, which packs only
    booleans and the most significant bit first.
    """

    def validate(self) -> None:
        """Check the members."""
        self.check_members((), ["padding_encoding", "first_bit", "last_bit"])
        for key in ("first_bit", "last_bit"):
            value = self.configuration.get(key)
            if value is None:
                self.configuration.pop(key, None)
            elif isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise self.invalid(f"{key} must be an integer from 0 on, not {value!r}")
        if self._padding not in _PADDINGS:
            raise self.invalid(
                f"padding_encoding must be one of {_PADDINGS}, not {self._padding!r}"
            )

    @property
    def _padding(self) -> str:
        return self.configuration.get("padding_encoding", "none")

    def resolve(self, spec: ChunkSpec) -> Codec:
        """Check that the bits are those of the dtype."""
        self._bits(spec.dtype)
        return self

    def _bits(self, dtype: np.dtype[Any]) -> tuple[int, int]:
        """Return the first bit and the one after the last."""
        number = number_format(dtype)
        if number is None and dtype.kind not in "mM":
            raise self.invalid(f"packs numbers, the array is {dtype}")
        bits = 64 if number is None else number.bits
        first = self.configuration.get("first_bit", 0)
        last = self.configuration.get("last_bit", bits - 1)
        if not first <= last < bits:
            raise self.invalid(f"bits {first} to {last} are not among the {bits} bits of {dtype}")
        return first, last + 1

    def _sizes(self, spec: ChunkSpec) -> tuple[int, int]:
        """Return the bytes that the bits take, and the bits of padding in the last of them."""
        first, stop = self._bits(spec.dtype)
        components = spec.dtype.itemsize // component(spec.dtype).itemsize
        count = spec.size * components * (stop - first)
        size = -(-count // 8)
        return size, 8 * size - count

    def compute_encoded_size(self, spec: ChunkSpec) -> int:
        """Return the bytes of the packed elements."""
        return self._sizes(spec)[0] + (self._padding != "none")

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return the elements."""
        size, padding = self._sizes(spec)
        raw = as_u1(data)
        extra = int(self._padding != "none")
        if raw.size != size + extra:
            raise self.size_error(raw.size, size + extra)
        # A count that contradicts the shape means that the data are of another block
        # (codecs/packbits, padding_encoding).
        if extra:
            stored = raw[0 if self._padding == "first_byte" else -1]
            if stored != padding:
                raise self.error(f"counts {stored} bits of padding, the block needs {padding}")
            raw = raw[1:] if self._padding == "first_byte" else raw[:-1]
        part = component(spec.dtype)
        words = np.zeros(spec.nbytes // part.itemsize, f"<u{part.itemsize}")
        first, stop = self._bits(spec.dtype)
        width = stop - first
        # A bit takes a byte while it is moved, hence in steps; they end on whole bytes as each has
        # a multiple of 8 elements.
        for start in range(0, words.size, _STEP):
            piece = words[start : start + _STEP]
            packed = raw[start * width // 8 :]
            bits = np.unpackbits(packed, count=piece.size * width, bitorder="little")
            spread = np.zeros((piece.size, 8 * part.itemsize), "u1")
            spread[:, first:stop] = bits.reshape(-1, width)
            piece[:] = np.packbits(spread, bitorder="little").view(words.dtype)
        words = words.astype(f"u{part.itemsize}", copy=False)
        if _is_signed(part):
            words = _extend_sign(words, stop, part)
        return words.view(spec.dtype).reshape(spec.shape)

    def encode(self, block: Block, spec: ChunkSpec) -> Buffer:
        """Return the packed elements."""
        size, padding = self._sizes(spec)
        part = component(spec.dtype)
        flat = np.ascontiguousarray(block, spec.dtype).reshape(-1)
        words = flat.view(f"u{part.itemsize}").astype(f"<u{part.itemsize}", copy=False)
        first, stop = self._bits(spec.dtype)
        pieces: list[Block] = []
        for start in range(0, words.size, _STEP):
            raw = words[start : start + _STEP].view("u1").reshape(-1, part.itemsize)
            bits = np.unpackbits(raw, axis=1, bitorder="little")[:, first:stop]
            pieces.append(np.packbits(bits.reshape(-1), bitorder="little"))
        result = np.concatenate(pieces) if pieces else np.empty(0, "u1")
        assert result.size == size
        counted = np.array([padding], "u1")
        if self._padding == "first_byte":
            return np.concatenate([counted, result])
        return np.concatenate([result, counted]) if self._padding == "last_byte" else result

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable:
        """Return the bits and where the padding is counted."""
        return ("PackBits", *self._bits(dtype), self._padding)

    def to_v2(self, spec: ChunkSpec, endian: Endian) -> dict[str, Any]:
        """Raise UnsupportedError: the codec of this name in v2 is another."""
        raise UnsupportedError("codec packbits has no v2 form: the one of numcodecs is another")


def _is_signed(dtype: np.dtype[Any]) -> bool:
    number = number_format(dtype)
    return dtype.kind in "mM" if number is None else number.kind == "i"


def _extend_sign(words: Block, stop: int, dtype: np.dtype[Any]) -> Block:
    """Repeat the last bit in those above it; small integers have none above their own."""
    number = number_format(dtype)
    width = 8 * dtype.itemsize
    signed = words.view(f"i{dtype.itemsize}")
    unused = np.array(width - stop, signed.dtype)
    result = ((signed << unused) >> unused).view(words.dtype)
    if number is not None and is_narrow(dtype):
        result &= np.array((1 << number.bits) - 1, words.dtype)
    return result
