"""Byte orders of dtypes, nested ones included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


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
        # Equal to its little-endian form: that holds for native ones on little-endian hosts, too.
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
    # Complex numbers are swapped by halves, text by characters of four bytes.
    unit = {"c": stored.itemsize // 2, "U": 4}.get(stored.kind, stored.itemsize)
    return tuple(k + unit - 1 - i for k in range(0, stored.itemsize, unit) for i in range(unit))
