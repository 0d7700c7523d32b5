"""The `bytes` codec: elements in C order, little or big endian."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import (
    ArrayBytes,
    Block,
    Buffer,
    ChunkSpec,
    Endian,
    as_u1,
    nbytes_of,
)
from virtualzarr.codecs.core.byte_order import _little, _orders, has_order
from virtualzarr.codecs.core.numbers import clear_padding, component, has_narrow_complex, used_bits
from virtualzarr.errors import CodecError, UnsupportedError

_ORDERS: dict[str, Endian] = {"little": "<", "big": ">"}


class Bytes(ArrayBytes):
    """Elements as they lie in memory, in C order.

    Source: zarr-specs, codecs/bytes. `endian` may be absent only where it means nothing. A
    structured dtype without `endian` keeps the byte order of each field, little where the field
    is native.
    """

    def validate(self) -> None:
        """Check that endian is known."""
        self.check_members((), ["endian"])
        endian = self.configuration.get("endian")
        if endian is None:
            self.configuration.pop("endian", None)
        elif endian not in _ORDERS:
            raise self.invalid(f"endian must be 'little' or 'big', not {endian!r}")

    def encode_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of the elements as they are stored."""
        if dtype.hasobject:
            raise UnsupportedError(
                f"the bytes codec cannot hold elements of type {dtype}; an object codec such as "
                "vlen-utf8 is needed"
            )
        endian = self.configuration.get("endian")
        # newbyteorder on a dtype without order would make unequal what is equal.
        if endian is not None:
            return dtype.newbyteorder(_ORDERS[endian]) if has_order(dtype) else dtype
        if dtype.names is None and has_order(dtype):
            raise CodecError(f"bytes: endian is missing, and {dtype} elements need it")
        return dtype if sys.byteorder == "little" or not has_order(dtype) else _little(dtype)

    def compute_encoded_size(self, spec: ChunkSpec) -> int:
        """Return the bytes of the elements."""
        return spec.nbytes

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return a view of the data in the stored dtype."""
        if nbytes_of(data) != spec.nbytes:
            raise self.size_error(nbytes_of(data), spec.nbytes)
        flat, stored = as_u1(data), self.encode_dtype(spec.dtype)
        # Bits above small integers are padding (zarr-extensions, data-types), which writers leave
        # as they like.
        mask = used_bits(spec.dtype)
        if mask is not None and flat.size:
            flat = (flat.reshape(-1, mask.size) & mask).reshape(-1)
        if self._swaps_halves(stored):
            half = component(spec.dtype)
            return flat.view(component(stored)).astype(half).view(spec.dtype).reshape(spec.shape)
        return flat.view(stored).reshape(spec.shape)

    def encode(self, block: Block, spec: ChunkSpec) -> Buffer:
        """Return the bytes of the elements."""
        dtype = self.encode_dtype(spec.dtype)
        if not spec.size:
            return b""
        if self._swaps_halves(dtype):
            flat = np.ascontiguousarray(block, spec.dtype).reshape(-1).view(component(spec.dtype))
            return flat.astype(component(dtype)).view("u1")
        # Bytes between fields are whatever was in memory: secrets perhaps, and others each time.
        return clear_padding(np.ascontiguousarray(block, dtype)).reshape(-1).view("u1")

    def is_verbatim(self, dtype: np.dtype[Any]) -> bool:
        """Whether the bytes are the elements of a numpy dtype, every bit of them.

        Of integers and floats of less than 8 bits the upper bits of the byte mean nothing.
        """
        return used_bits(dtype) is None and not self._swaps_halves(self.encode_dtype(dtype))

    def _swaps_halves(self, stored: np.dtype[Any]) -> bool:
        """Whether numpy would swap the bytes of whole complex numbers instead of their halves."""
        if not has_narrow_complex(stored) or stored == stored.newbyteorder("="):
            return False
        if stored.fields is not None:
            raise UnsupportedError(f"fields of {stored} in the other byte order")
        return True

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable:
        """Return the byte order, where it means something."""
        if not has_order(dtype) or dtype.hasobject:
            return ("bytes", None)
        endian = self.configuration.get("endian")
        if endian is None and dtype.names is not None:
            orders = set(_orders(self.encode_dtype(dtype)))
            endian = orders.pop() if len(orders) == 1 else str(dtype)
        return ("bytes", endian)
