"""The `bytes` codec: elements one after another in C order, little or big endian."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator
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
from virtualzarr.codecs.core.numbers import component, has_narrow_complex, used_bits
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
        unknown = set(self.configuration) - {"endian"}
        if unknown:
            raise self.invalid(f"unknown members {sorted(unknown)}")
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
        mask = used_bits(spec.dtype)
        if mask is not None and flat.size:
            flat = (flat.reshape(-1, mask.size) & mask).reshape(-1)
        if self._halved(stored):
            half = component(spec.dtype)
            return flat.view(component(stored)).astype(half).view(spec.dtype).reshape(spec.shape)
        return flat.view(stored).reshape(spec.shape)

    def encode(self, block: Block, spec: ChunkSpec) -> Buffer:
        """Return the bytes of the elements."""
        dtype = self.encode_dtype(spec.dtype)
        if not spec.size:
            return b""
        if self._halved(dtype):
            flat = np.ascontiguousarray(block, spec.dtype).reshape(-1).view(component(spec.dtype))
            return flat.astype(component(dtype)).view("u1")
        flat = np.ascontiguousarray(block, dtype).reshape(-1).view("u1")
        mask = used_bits(spec.dtype)
        return flat if mask is None else (flat.reshape(-1, mask.size) & mask).reshape(-1)

    def is_verbatim(self, dtype: np.dtype[Any]) -> bool:
        """Whether the bytes are the elements of a numpy dtype, every bit of them.

        Of integers and floats of less than 8 bits the upper bits of the byte mean nothing.
        """
        return used_bits(dtype) is None and not self._halved(self.encode_dtype(dtype))

    def _halved(self, stored: np.dtype[Any]) -> bool:
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


def has_order(dtype: np.dtype[Any]) -> bool:
    """Whether any part of an element has a byte order.

    Examples
    --------
    >>> has_order(np.dtype("u1")), has_order(np.dtype([("a", "u1"), ("b", "i2")]))
    (False, True)
    """
    if dtype.subdtype is not None:
        return has_order(dtype.subdtype[0])
    if dtype.fields is not None:
        return any(has_order(field[0]) for field in dtype.fields.values())
    # Those of ml_dtypes say that they have one even where there is but one byte.
    return dtype.byteorder != "|" and dtype.itemsize > 1 and not dtype.hasobject


def _orders(dtype: np.dtype[Any]) -> Iterator[str]:
    """Yield the byte orders of all fields that have one."""
    if dtype.subdtype is not None:
        yield from _orders(dtype.subdtype[0])
    elif dtype.fields is not None:
        for field in dtype.fields.values():
            yield from _orders(field[0])
    elif has_order(dtype):
        yield "little" if dtype == dtype.newbyteorder("<") else "big"


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a plain dtype in native byte order; a structured or object one as it is."""
    if dtype.names is not None or dtype.hasobject:
        return dtype
    return dtype.newbyteorder("=")


def _little(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a structured dtype with its native fields made little endian (big-endian hosts)."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((_little(base), shape))
    if dtype.names is None:
        return dtype.newbyteorder("<") if dtype.byteorder == "=" else dtype
    assert dtype.fields is not None
    return np.dtype(
        {
            "names": list(dtype.names),
            "formats": [_little(dtype.fields[name][0]) for name in dtype.names],
            "offsets": [dtype.fields[name][1] for name in dtype.names],
            "itemsize": dtype.itemsize,
        }
    )


def byte_positions(stored: np.dtype[Any], decoded: np.dtype[Any]) -> tuple[int, ...]:
    """Return, for each byte of a stored element, where it lies in the decoded element.

    Examples
    --------
    >>> byte_positions(np.dtype(">i4"), np.dtype("<i4"))
    (3, 2, 1, 0)
    """
    if stored.subdtype is not None and decoded.subdtype is not None:
        inner = byte_positions(stored.subdtype[0], decoded.subdtype[0])
        width = len(inner)
        return tuple(k + p for k in range(0, stored.itemsize, width) for p in inner)
    if stored.fields is not None and decoded.fields is not None:
        positions = list(range(stored.itemsize))
        for name, (part, offset, *_) in stored.fields.items():
            inner = byte_positions(part, decoded.fields[name][0])
            positions[offset : offset + part.itemsize] = [offset + p for p in inner]
        return tuple(positions)
    if stored == decoded:
        return tuple(range(stored.itemsize))
    unit = {"c": stored.itemsize // 2, "U": 4}.get(stored.kind, stored.itemsize)
    return tuple(k + unit - 1 - i for k in range(0, stored.itemsize, unit) for i in range(unit))
