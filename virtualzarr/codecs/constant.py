"""The `virtualzarr.constant` codec: one stored element, repeated over the block."""

from __future__ import annotations

from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import ArrayBytes, Block, Buffer, ChunkSpec, as_u1, nbytes_of
from virtualzarr.codecs.core.byte_order import native
from virtualzarr.codecs.core.numbers import clear_padding
from virtualzarr.errors import UnsupportedError


class Constant(ArrayBytes):
    """The bytes are one element, little-endian; every element of the block is equal to it.

    For reading only: an array has it for chunks that were never written in an input of another
    fill value.
    """

    in_v2 = False

    def validate(self) -> None:
        """Check that nothing is configured."""
        self.check_members()

    def compute_encoded_size(self, spec: ChunkSpec) -> int | None:
        """Return the bytes of one element."""
        return spec.dtype.itemsize

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return the block, which takes the memory of one element."""
        if spec.dtype.hasobject:
            raise UnsupportedError(f"codec {self.name} is not for elements of type {spec.dtype}")
        if nbytes_of(data) != spec.dtype.itemsize:
            raise self.size_error(nbytes_of(data), spec.dtype.itemsize)
        stored = spec.dtype.newbyteorder("<")
        element = np.ndarray((), stored, as_u1(data).copy()).astype(spec.dtype)
        return np.broadcast_to(element, spec.shape)


def constant_bytes(value: Any, dtype: np.dtype[Any]) -> bytes:
    """Return what a constant block of some element is stored as."""
    element = np.empty((), native(dtype))
    element[()] = value
    return clear_padding(element.astype(dtype.newbyteorder("<"))).tobytes()
