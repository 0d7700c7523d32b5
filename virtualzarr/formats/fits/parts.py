"""The values of one part of a FITS file: an image, or a binary table."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from grids import RegularGrid
from virtualzarr.array import Array
from virtualzarr.codecs import Codec, Pipeline, make
from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.fits.header import Cards, integer
from virtualzarr.formats.plain import check_place, plain_array, plain_pipeline
from virtualzarr.manifest import Affine, Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata, TypedFloat

_TYPES = {8: "u1", 16: ">i2", 32: ">i4", 64: ">i8", -32: ">f4", -64: ">f8"}
_COLUMNS = {"L": "S1", "B": "u1", "I": ">i2", "J": ">i4", "K": ">i8", "E": ">f4", "D": ">f8",
            "C": ">c8", "M": ">c16"}  # fmt: skip
_AXES = ("x", "y", "z")


def lengths(cards: Cards) -> list[int]:
    """Return the lengths of the axes, the fastest first."""
    count = integer(cards, "NAXIS", most=999)
    return [integer(cards, f"NAXIS{number}") for number in range(1, count + 1)]


def item_dtype(cards: Cards) -> np.dtype[Any]:
    """Return the type of the elements as they are stored."""
    bits = integer(cards, "BITPIX")
    if bits not in _TYPES:
        raise SourceError(f"the FITS header says {bits} for BITPIX")
    return np.dtype(_TYPES[bits])


def image(cards: Cards, source: Source, offset: int, path: str) -> Array:
    """Return an image as it is stored, with attributes that say how to scale it.

    Unsigned integers, and signed bytes, which FITS has by an offset only, are what they mean.
    """
    shape, dtype = tuple(reversed(lengths(cards))), item_dtype(cards)
    names = [_AXES[axis] if axis < 3 else f"axis{axis + 1}" for axis in range(len(shape))]
    attributes: dict[str, Any] = {}
    if isinstance(cards.get("BUNIT"), str):
        attributes["units"] = cards["BUNIT"]
    meant = _meant(cards, dtype)
    if meant is None:
        attributes |= _scaling(cards, dtype)
        return plain_array(
            source, offset, dtype, shape, path=path,
            dimension_names=names[::-1], attributes=attributes,
        )  # fmt: skip
    check_place(source, offset, shape, dtype)
    grid = RegularGrid(shape, [1] * (len(shape) - 2) + [max(n, 1) for n in shape[-2:]])
    codecs = [_shift(dtype, meant), *plain_pipeline(dtype).codecs]
    metadata = ArrayMetadata(
        shape=shape,
        dtype=meant,
        grid=grid,
        pipeline=Pipeline(codecs),
        fill_value=meant.type(0),
        dimension_names=tuple(names[::-1]),
        attributes=attributes,
    )
    return Array.virtual(metadata, _planes(grid, source, offset, dtype.itemsize), path)


def _planes(grid: RegularGrid, source: Source, offset: int, itemsize: int) -> Manifest:
    """Return references to the planes of an image: each is decoded as a whole."""
    cells, shape = grid.grid_shape, grid.shape
    if 0 in shape:
        return Manifest.missing(cells)
    plane = math.prod(shape[-2:]) * itemsize
    strides = [plane * math.prod(cells[axis + 1 :]) for axis in range(len(cells))]
    return Manifest(cells, Sources([source]), 0, Affine(cells, offset, strides), plane)


def _meant(cards: Cards, dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return the type that integers with an offset are meant as, if they are.

    Source: FITS standard 4.0, section 5.2.5.
    """
    scale, zero, size = cards.get("BSCALE", 1), cards.get("BZERO", 0), dtype.itemsize
    if scale != 1 or dtype.kind not in "iu":
        return None
    if dtype.kind == "u":
        return np.dtype("i1") if zero == -128 else None
    return np.dtype(f"u{size}") if zero == 2 ** (8 * size - 1) else None


def _shift(dtype: np.dtype[Any], meant: np.dtype[Any]) -> Codec:
    stored, zero = (
        dtype.newbyteorder("="),
        -128 if dtype.kind == "u" else 2 ** (8 * dtype.itemsize - 1),
    )
    if dtype.itemsize < 8:
        # What other readers know, too; it calculates with float64, which holds all of these.
        little = {"dtype": meant.newbyteorder("<").str, "astype": stored.newbyteorder("<").str}
        return make("numcodecs.fixedscaleoffset", offset=zero, scale=1, **little)
    return make(
        "virtualzarr.unpack",
        data_type=stored.name, view=meant.name, calculated=meant.name, add_offset=zero,
    )  # fmt: skip


def _scaling(cards: Cards, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return BSCALE, BZERO and BLANK as the attributes of the CF conventions.

    Their types make xarray calculate as astropy does: with float32 for 16 bits and less.
    """
    scale, zero, blank = (cards.get(name) for name in ("BSCALE", "BZERO", "BLANK"))
    found: dict[str, Any] = {}
    if dtype.kind in "iu" and type(blank) is int:
        limits = np.iinfo(dtype)
        if limits.min <= blank <= limits.max:
            found["_FillValue"] = blank
    scale, zero = 1 if scale is None else scale, 0 if zero is None else zero
    if not all(isinstance(number, int | float) for number in (scale, zero)):
        raise SourceError(f"the FITS header says {scale!r} for BSCALE and {zero!r} for BZERO")
    narrow = dtype.itemsize <= 2 or dtype == np.dtype(">f4")
    number = np.float32 if narrow else np.float64
    with np.errstate(over="ignore"):
        if scale != 1 or zero != 0:
            found["scale_factor"] = TypedFloat.of(number(scale))
        if zero != 0:
            found["add_offset"] = TypedFloat.of(number(zero))
    return found


def table(cards: Cards, source: Source, offset: int, path: str) -> Array:
    """Return a binary table as a structured array, as it is stored.

    Source: FITS standard 4.0, section 7.3.
    """
    if cards.get("ZIMAGE") is True:
        raise UnsupportedError(
            f"tile-compressed FITS images ({cards.get('ZCMPTYPE', 'unknown')}); decompress them "
            "(funpack)"
        )
    width, rows = lengths(cards)[:2] if integer(cards, "NAXIS", most=999) == 2 else (0, 0)
    dtype = _row_dtype(cards, width)
    return plain_array(source, offset, dtype, (rows,), path=path, dimension_names=("row",))


def _row_dtype(cards: Cards, width: int) -> np.dtype[Any]:
    names: list[str] = []
    formats: list[Any] = []
    offsets: list[int] = []
    at = 0
    for number in range(1, integer(cards, "TFIELDS", most=999) + 1):
        column = np.dtype(_column(cards, number))
        name = cards.get(f"TTYPE{number}")
        if not isinstance(name, str) or not name or name in names:
            name = f"col{number}"
        if column.itemsize:
            names.append(name)
            formats.append(column)
            offsets.append(at)
        at += column.itemsize
    if at > width or not names:
        raise SourceError(f"a FITS table of {len(names)} columns of {at} bytes in rows of {width}")
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": width})


def _column(cards: Cards, number: int) -> Any:
    """Return the type of a column."""
    text = cards.get(f"TFORM{number}")
    match = re.fullmatch(r"([0-9]{0,9})([A-Z])(.*)", text.strip()) if type(text) is str else None
    if match is None:
        raise SourceError(f"the FITS header says {text!r} for TFORM{number}")
    count, letter = int(match[1] or 1), match[2]
    if letter in "PQ" and count:
        name = cards.get(f"TTYPE{number}", number)
        raise UnsupportedError(f"variable-length arrays, in the column {name!r} of the FITS table")
    shape = _column_shape(cards.get(f"TDIM{number}"))
    if letter == "X":
        return ("u1", (-(-count // 8),))
    if letter == "A":
        if shape and math.prod(shape) <= count and shape[-1]:
            return (f"S{shape[-1]}", shape[:-1]) if math.prod(shape) == count else f"S{count}"
        return f"S{count}" if count else ("u1", (0,))
    if letter not in _COLUMNS and letter not in "PQ":
        raise SourceError(f"the FITS header says {text!r} for TFORM{number}")
    kind = _COLUMNS.get(letter, "u1")
    if shape and math.prod(shape) == count:
        return (kind, shape)
    return kind if count == 1 else (kind, (count,))


def _column_shape(text: Any) -> tuple[int, ...]:
    """Return the shape that TDIM gives, slowest axis first."""
    if not isinstance(text, str) or not re.fullmatch(r"\s*\([0-9, ]{1,200}\)\s*", text):
        return ()
    parts = [part.strip() for part in text.strip(" ()").split(",")]
    return tuple(int(part) for part in reversed(parts)) if all(map(str.isdigit, parts)) else ()
