"""Number formats of dtypes: kinds, bits, and special values.

numpy lacks the integers of less than 8 bits and the small floats of zarr-extensions; ml_dtypes has
them. Their dtypes are of kind "V" for numpy, which is why this table says what they are.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from virtualzarr.errors import MissingDependencyError

FLOAT_BITS = {16: 0x7E00, 32: 0x7FC00000, 64: 0x7FF8000000000000}


class NumberFormat(NamedTuple):
    """What a plain dtype counts with.

    Attributes
    ----------
    kind : {"b", "i", "u", "f", "c"}
        Boolean, signed or unsigned integer, float, complex.
    bits : int
        Bits of one component: the low ones, where its bytes have more.
    nan : int or None
        The bits of the NaN that documents call so; None where there is none.
    infinity : bool
        Whether there are infinities.
    """

    kind: str
    bits: int
    nan: int | None = None
    infinity: bool = False


# Source: zarr-extensions, data-types/*. The names are those of ml_dtypes.
NARROW: dict[str, NumberFormat] = {
    "int2": NumberFormat("i", 2),
    "int4": NumberFormat("i", 4),
    "uint2": NumberFormat("u", 2),
    "uint4": NumberFormat("u", 4),
    "bfloat16": NumberFormat("f", 16, 0x7FC0, True),
    "float8_e3m4": NumberFormat("f", 8, 0x78, True),
    "float8_e4m3": NumberFormat("f", 8, 0x7C, True),
    "float8_e4m3b11fnuz": NumberFormat("f", 8, 0x80),
    "float8_e4m3fn": NumberFormat("f", 8, 0x7F),
    "float8_e4m3fnuz": NumberFormat("f", 8, 0x80),
    "float8_e5m2": NumberFormat("f", 8, 0x7E, True),
    "float8_e5m2fnuz": NumberFormat("f", 8, 0x80),
    "float8_e8m0fnu": NumberFormat("f", 8, 0xFF),
    "float6_e2m3fn": NumberFormat("f", 6),
    "float6_e3m2fn": NumberFormat("f", 6),
    "float4_e2m1fn": NumberFormat("f", 4),
    "complex32": NumberFormat("c", 16, 0x7E00, True),
    "bcomplex32": NumberFormat("c", 16, 0x7FC0, True),
}


@lru_cache(maxsize=1024)
def number_format(dtype: np.dtype[Any]) -> NumberFormat | None:
    """Return what a plain dtype, in either byte order, counts with; None if it is no number.

    Examples
    --------
    >>> number_format(np.dtype("<f4")).bits, number_format(np.dtype("S4"))
    (32, None)
    """
    if is_narrow(dtype):
        return NARROW.get(dtype.name)
    kind, bits = dtype.kind, 8 * dtype.itemsize
    if kind == "b":
        return NumberFormat("b", 1)
    if kind in "iu":
        return NumberFormat(kind, bits)
    if kind == "c":
        bits //= 2
    if kind in "fc" and bits in FLOAT_BITS:
        return NumberFormat(kind, bits, FLOAT_BITS[bits], True)
    return None


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is one of ml_dtypes."""
    return dtype.type.__module__ == "ml_dtypes"


def narrow_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of ml_dtypes of that name.

    Raises
    ------
    MissingDependencyError
        The package is not installed, or too old.
    """
    try:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError) as error:
        version = "0.6" if "complex" in name else "0.5"
        raise MissingDependencyError(
            f"the data type {name} needs ml_dtypes {version} or newer; install virtualzarr[dtypes]"
        ) from error


def component(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the two halves of complex numbers; other dtypes as they are."""
    number = number_format(dtype)
    if number is None or number.kind != "c":
        return dtype
    if dtype.name == "bcomplex32":
        return narrow_dtype("bfloat16").newbyteorder(dtype.byteorder)
    return np.dtype(f"{dtype.byteorder}f{dtype.itemsize // 2}")


def limits(number: NumberFormat) -> tuple[int, int]:
    """Return the least and the greatest integer of that kind and size.

    Examples
    --------
    >>> limits(NumberFormat("i", 4)), limits(NumberFormat("u", 2))
    ((-8, 7), (0, 3))
    """
    if number.kind == "i":
        return -(1 << number.bits - 1), (1 << number.bits - 1) - 1
    return 0, (1 << number.bits) - 1


def plain_integers(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return integers of ml_dtypes as those of numpy; others as they are."""
    number = number_format(block.dtype)
    if number is None or not is_narrow(block.dtype) or number.kind not in "iu":
        return block
    # Shifted up and down: the shift back repeats the sign bit of signed ones.
    unused = 8 - number.bits
    return (block.view(f"{number.kind}1") << unused) >> unused


@lru_cache(maxsize=256)
def used_bits(dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
    """Return, for each byte of an element, the bits that mean something; None where all do.

    Examples
    --------
    >>> used_bits(np.dtype("i4")) is None
    True
    """
    # Subarrays and fields are looked into: one small integer among them makes bits meaningless.
    if dtype.subdtype is not None:
        base = used_bits(dtype.subdtype[0])
        return None if base is None else np.tile(base, dtype.itemsize // base.size)
    if dtype.fields is not None:
        parts = [(used_bits(part), offset) for part, offset, *_ in dtype.fields.values()]
        if all(part is None for part, _ in parts):
            return None
        mask = np.full(dtype.itemsize, 0xFF, "u1")
        for part, offset in parts:
            if part is not None:
                mask[offset : offset + part.size] = part
        return mask
    number = number_format(dtype)
    if number is None or not 1 < number.bits < 8:
        return None
    return np.array([(1 << number.bits) - 1], "u1")


# An extended double of x87 has ten bytes, of the twelve or sixteen that numpy gives it.
_X87_MANTISSA, _X87_BYTES = 63, 10


@lru_cache(maxsize=256)
def value_bits(dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
    """Return, for each byte of an element, the bits that its value is made of; None where all are.

    Other than in `used_bits`, bytes between and behind fields are none of them: in memory these
    are whatever was there before.

    Examples
    --------
    >>> value_bits(np.dtype("u1,<u2", align=True))
    array([255,   0, 255, 255], dtype=uint8)
    >>> value_bits(np.dtype("u1,<u2")) is None
    True
    """
    if dtype.subdtype is not None:
        base = value_bits(dtype.subdtype[0])
        return None if base is None else np.tile(base, dtype.itemsize // base.size)
    if dtype.fields is None:
        # By type: characters of ml_dtypes are those of others, too.
        is_extended = dtype.type in (np.longdouble, np.clongdouble)
        return _x87_bits(dtype) if is_extended else used_bits(dtype)
    mask = np.zeros(dtype.itemsize, "u1")
    for part, offset, *_ in dtype.fields.values():
        bits = value_bits(part)
        # Fields may overlap, as a union has them.
        mask[offset : offset + part.itemsize] |= np.uint8(0xFF) if bits is None else bits
    return None if (mask == 0xFF).all() else mask


def _x87_bits(dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
    if np.finfo(dtype).nmant != _X87_MANTISSA:
        return None
    size = np.dtype(np.longdouble).itemsize
    mask = np.where(np.arange(size) < _X87_BYTES, 0xFF, 0).astype("u1")
    mask = mask if dtype.newbyteorder("<") == dtype else mask[::-1]
    return np.tile(mask, dtype.itemsize // size)


def clear_padding(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return values with zeros where an element has bits that are none of its value.

    Examples
    --------
    >>> padded = np.full(4, 255, "u1").view(np.dtype("u1,<u2", align=True))
    >>> clear_padding(padded).view("u1")
    array([255,   0, 255, 255], dtype=uint8)
    """
    mask = None if values.dtype.hasobject else value_bits(values.dtype)
    if mask is None or not values.size:
        return values
    flat = np.ascontiguousarray(values).reshape(-1).view("u1").reshape(-1, mask.size) & mask
    return flat.view(values.dtype).reshape(values.shape)


def has_narrow_complex(dtype: np.dtype[Any]) -> bool:
    """Whether elements are, or contain, complex numbers of ml_dtypes."""
    if dtype.subdtype is not None:
        return has_narrow_complex(dtype.subdtype[0])
    if dtype.fields is not None:
        return any(has_narrow_complex(part) for part, *_ in dtype.fields.values())
    number = number_format(dtype)
    return number is not None and number.kind == "c" and is_narrow(dtype)
