"""FITS images as arrays, and BSCALE, BZERO and BLANK of any image."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from grids import RegularGrid
from virtualzarr.array import Array
from virtualzarr.codecs import Codec, Pipeline, make
from virtualzarr.errors import SourceError
from virtualzarr.formats.fits.header import Cards, integer
from virtualzarr.formats.plain import check_place, plain_array, plain_pipeline
from virtualzarr.manifest import Affine, Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata, TypedFloat

_TYPES = {8: "u1", 16: ">i2", 32: ">i4", 64: ">i8", -32: ">f4", -64: ">f8"}
_AXES = ("x", "y", "z")


def lengths(cards: Cards) -> list[int]:
    """Return NAXIS1, NAXIS2, ...: axis lengths, the fastest first."""
    count = integer(cards, "NAXIS", most=999)
    return [integer(cards, f"NAXIS{number}") for number in range(1, count + 1)]


def item_dtype(cards: Cards, keyword: str = "BITPIX") -> np.dtype[Any]:
    """Return the stored dtype, which is big-endian."""
    bits = integer(cards, keyword)
    if bits not in _TYPES:
        raise SourceError(f"the FITS header says {bits} for {keyword}")
    return np.dtype(_TYPES[bits])


def axis_names(ndim: int) -> tuple[str, ...]:
    """Return names for the axes of an image, the slowest first.

    Examples
    --------
    >>> axis_names(4)
    ('axis4', 'z', 'y', 'x')
    """
    return tuple(_AXES[axis] if axis < 3 else f"axis{axis + 1}" for axis in range(ndim))[::-1]


def image(cards: Cards, source: Source, offset: int, path: str) -> Array:
    """Return an image as stored, with scaling as CF attributes."""
    shape, dtype = tuple(reversed(lengths(cards))), item_dtype(cards)
    names = axis_names(len(shape))
    logical_dtype, shift, attributes = parse_scaling(cards, dtype)
    if shift is None:
        return plain_array(
            source, offset, dtype, shape, path=path, dimension_names=names, attributes=attributes
        )
    check_place(source, offset, shape, dtype)
    # The offset of unsigned integers needs a codec that decodes whole chunks: planes, so that a
    # slice of a cube does not decode all of it.
    grid = RegularGrid(shape, [1] * (len(shape) - 2) + [max(n, 1) for n in shape[-2:]])
    metadata = ArrayMetadata(
        shape=shape,
        dtype=logical_dtype,
        grid=grid,
        pipeline=Pipeline([shift, *plain_pipeline(dtype).codecs]),
        fill_value=logical_dtype.type(0),
        dimension_names=names,
        attributes=attributes,
    )
    return Array.from_manifest(metadata, _planes(grid, source, offset, dtype.itemsize), path)


def _planes(grid: RegularGrid, source: Source, offset: int, itemsize: int) -> Manifest:
    """Return references to the planes of an image."""
    cells, shape = grid.grid_shape, grid.shape
    if 0 in shape:
        return Manifest.missing(cells)
    plane = math.prod(shape[-2:]) * itemsize
    # Affine in the index of the plane: no column of offsets is stored for cubes of many planes.
    strides = [plane * math.prod(cells[axis + 1 :]) for axis in range(len(cells))]
    return Manifest(cells, Sources([source]), 0, Affine(cells, offset, strides), plane)


def parse_scaling(
    cards: Cards, dtype: np.dtype[Any], blank: str = "BLANK"
) -> tuple[np.dtype[Any], Codec | None, dict[str, Any]]:
    """Return the logical dtype of an image, the codec to it, and CF attributes for other scaling.

    Unsigned integers, and signed bytes, which FITS stores with an offset, are decoded by the codec.

    Parameters
    ----------
    cards, dtype
        The header, and the stored dtype.
    blank : str
        Keyword to use if BLANK is missing: ZBLANK of compressed images.

    Returns
    -------
    dtype : numpy dtype
        Of the array.
    shift : Codec or None
        Adds the offset to stored integers.
    attributes : dict
        CF attributes for units and any other scaling.
    """
    attributes: dict[str, Any] = {}
    if isinstance(cards.get("BUNIT"), str):
        attributes["units"] = cards["BUNIT"]
    logical_dtype = offset_integer_dtype(cards.get("BSCALE", 1), cards.get("BZERO", 0), dtype)
    if logical_dtype is not None:
        return logical_dtype, make_offset_codec(dtype, logical_dtype), attributes
    attributes |= _cf_scaling(cards, dtype, cards.get("BLANK", cards.get(blank)))
    return dtype.newbyteorder("="), None, attributes


def offset_integer_dtype(scale: Any, zero: Any, dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return the dtype of offset integers (BZERO of half the range); None for any others.

    Source: FITS standard 4.0, section 5.2.5.
    """
    size = dtype.itemsize
    if scale != 1 or dtype.kind not in "iu":
        return None
    if dtype.kind == "u":
        return np.dtype("i1") if zero == -128 else None
    return np.dtype(f"u{size}") if zero == 2 ** (8 * size - 1) else None


def make_offset_codec(dtype: np.dtype[Any], logical_dtype: np.dtype[Any]) -> Codec:
    """Return the codec that adds the offset of `offset_integer_dtype`."""
    stored = dtype.newbyteorder("=")
    zero = -128 if dtype.kind == "u" else 2 ** (8 * dtype.itemsize - 1)
    if dtype.itemsize < 8:
        # A codec that other Zarr readers have, too. It computes with float64, which is exact below
        # 2**53 only: 64-bit integers need the one after.
        little = {
            "dtype": logical_dtype.newbyteorder("<").str,
            "astype": stored.newbyteorder("<").str,
        }
        return make("numcodecs.fixedscaleoffset", offset=zero, scale=1, **little)
    return make(
        "virtualzarr.unpack",
        data_type=stored.name, view=logical_dtype.name, calculated=logical_dtype.name,
        add_offset=zero,
    )  # fmt: skip


def _cf_scaling(cards: Cards, dtype: np.dtype[Any], blank: Any) -> dict[str, Any]:
    """Return BSCALE, BZERO and BLANK as CF attributes.

    Their types make xarray compute as astropy does: in float32 for 16 bits and less.
    """
    scale, zero = (cards.get(name) for name in ("BSCALE", "BZERO"))
    attributes: dict[str, Any] = {}
    if dtype.kind in "iu" and type(blank) is int:
        # A BLANK that the type cannot hold marks no element; as _FillValue it
        # would be an error in xarray.
        limits = np.iinfo(dtype)
        if limits.min <= blank <= limits.max:
            attributes["_FillValue"] = blank
    scale, zero = 1 if scale is None else scale, 0 if zero is None else zero
    if not all(isinstance(number, int | float) for number in (scale, zero)):
        raise SourceError(f"the FITS header says {scale!r} for BSCALE and {zero!r} for BZERO")
    narrow = dtype.itemsize <= 2 or dtype.newbyteorder("=") == np.dtype("f4")
    number = np.float32 if narrow else np.float64
    with np.errstate(over="ignore"):
        if scale != 1 or zero != 0:
            attributes["scale_factor"] = TypedFloat.from_numpy(number(scale))
        if zero != 0:
            attributes["add_offset"] = TypedFloat.from_numpy(number(zero))
    return attributes
