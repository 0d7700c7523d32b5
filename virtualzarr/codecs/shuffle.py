"""The `numcodecs.shuffle` codec: first bytes of all elements, then all second bytes, etc."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import U1, Block, Buffer, BytesBytes, ChunkSpec, Codec, as_u1
from virtualzarr.codecs.core.libraries import find_imagecodecs

_LOOPED = 64  # up to this element size, one strided copy per byte is the fastest
HEAD = 24
"""Bytes before shuffled ones that make them a Blosc buffer."""


def blosc_head(size: int, elementsize: int) -> Block:
    """Return what makes `size` shuffled bytes a Blosc buffer of one block that is not compressed.

    Source: c-blosc, README_CHUNK_FORMAT: versions, flags (shuffled, not split, LZ4), element size,
    bytes, bytes of a block and of the buffer; where the block begins, and its compressed size,
    which is that of its bytes where they are just copied.
    """
    versions_and_flags = bytes((2, 1, 0x31, elementsize))
    numbers = (size, size, HEAD + size, HEAD - 4, size)
    return np.frombuffer(
        versions_and_flags + b"".join(n.to_bytes(4, "little") for n in numbers), U1
    )


@cache
def unshuffler() -> Callable[[Block, Block], None] | None:
    """Return Blosc's decoder: with vector instructions it is five times as fast as numpy here."""
    decode = find_imagecodecs("blosc_decode", "BLOSC")
    if decode is None:
        return None

    def unshuffle(data: Block, out: Block) -> None:
        decode(data, out=out, numthreads=1)

    return unshuffle


class Shuffle(BytesBytes):
    """The byte shuffle of numcodecs and of HDF5 (filter 2).

    Bytes after the last whole element stay as they are, at the end, as HDF5 leaves them.
    """

    def validate(self) -> None:
        """Check the element size."""
        size = self.configuration.get("elementsize")
        if size is not None and (not isinstance(size, int) or size < 0):
            raise self.invalid(f"elementsize must be a positive integer, not {size!r}")

    @property
    def elementsize(self) -> int:
        """Bytes per element; numcodecs' default is 4, and 0 means 1."""
        size = self.configuration.get("elementsize")
        return 4 if size is None else max(int(size), 1)

    def resolve(self, spec: ChunkSpec) -> Codec:
        """Return the codec with the element size of the array where none is given."""
        if self.configuration.get("elementsize") is not None:
            return self
        return Shuffle(self.name, {"elementsize": spec.dtype.itemsize})

    def compute_encoded_size(self, size: int | None) -> int | None:
        """Return the same size."""
        return size

    def decode(self, data: Buffer, size: int | None, limit: int) -> Buffer:
        """Return the elements' bytes."""
        source = as_u1(data)
        if size is not None and source.size != size:
            raise self.size_error(source.size, size)
        out = np.empty(source.size, U1)
        self._move(source, out, unshuffle=True)
        return out

    def decode_into(self, data: Buffer, out: Block) -> None:
        """Write the elements' bytes to `out`."""
        source = as_u1(data)
        if source.size != out.size:
            raise self.size_error(source.size, out.size)
        self._move(source, out, unshuffle=True)

    def encode(self, data: Buffer) -> Buffer:
        """Return the shuffled bytes."""
        source = as_u1(data)
        out = np.empty(source.size, U1)
        self._move(source, out, unshuffle=False)
        return out

    def _move(self, source: Block, out: Block, *, unshuffle: bool) -> None:
        width = self.elementsize
        end = source.size - source.size % width
        target = out[:end].reshape((-1, width) if unshuffle else (width, -1))
        planes = source[:end].reshape((width, -1) if unshuffle else (-1, width))
        # Strided copies of single bytes win while their number is small.
        if width > _LOOPED:
            target[...] = planes.T
        elif unshuffle:
            for k in range(width):
                target[:, k] = planes[k]
        else:
            for k in range(width):
                target[k] = planes[:, k]
        out[end:] = source[end:]

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable | None:
        """Return the element size, None where nothing is shuffled."""
        size = self.configuration.get("elementsize")
        size = dtype.itemsize if size is None else self.elementsize
        return None if size == 1 else ("shuffle", size)
