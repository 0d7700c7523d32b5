"""Contiguous arrays in a file: one uncompressed chunk behind a header."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grids import RegularGrid
from virtualzarr.array import Array
from virtualzarr.codecs import Codec, Pipeline, make
from virtualzarr.config import config
from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.manifest import Manifest, Source
from virtualzarr.metadata import ArrayMetadata

LIMIT = 2**62
"""Upper limit of axis lengths and bytes: sums of a few stay within int64."""

_FLOATS = {"f": (2, 4, 8), "c": (8, 16)}


def plain_array(
    source: Source,
    offset: int,
    dtype: Any,
    shape: Sequence[int],
    *,
    axes: Sequence[int] | None = None,
    path: str = "",
    dimension_names: Sequence[str | None] | None = None,
    attributes: Mapping[str, Any] | None = None,
    unpacked: int | None = None,
) -> Array:
    """Return the virtual array of contiguous elements.

    Raises `SourceError` if the file ends before the last element; `UnsupportedError` if elements of
    this type cannot be referenced.

    Parameters
    ----------
    offset : int
        Where the first element begins.
    dtype : dtype-like
        As stored, with its byte order.
    axes : sequence of int, optional
        The array's axes in the order they are stored, slowest first; by default C order.
    path, dimension_names, attributes
        Of the array.
    unpacked : int, optional
        Decompressed bytes of a file that is compressed by gzip as a whole, which is then the only
        chunk; `offset` counts decompressed bytes.
    """
    dtype, shape = np.dtype(dtype), tuple(int(length) for length in shape)
    check_dtype(dtype)
    config.limits.check("element_bytes", dtype.itemsize, "bytes of an element")
    packed = unpacked is not None
    check_place(Source(source.uri, unpacked) if packed else source, offset, shape, dtype)
    # The byte order is that of the bytes codec; only structured types, whose fields may differ in
    # it, keep it in the data type.
    native = dtype if dtype.names is not None else dtype.newbyteorder("=")
    names = None if dimension_names is None else tuple(dimension_names)
    # One chunk; readers split it with partial reads, as it has no compression.
    grid = RegularGrid(shape, [max(length, 1) for length in shape])
    nbytes = math.prod(shape) * dtype.itemsize
    metadata = ArrayMetadata(
        shape=shape,
        dtype=native,
        grid=grid,
        pipeline=plain_pipeline(dtype, axes),
        fill_value=np.zeros((), native)[()],
        dimension_names=names,
        attributes=dict(attributes or {}),
    )
    if unpacked is not None:
        # gzip is a stream without random access: the chunk is the whole file, and the header is
        # sliced off behind it.
        behind = make("virtualzarr.byte_slice", start=offset, length=unpacked)
        pipeline = Pipeline([*metadata.pipeline.codecs, behind, make("gzip")])
        metadata, offset, nbytes = metadata.replace(pipeline=pipeline), 0, nbytes and source.size
    if nbytes:
        manifest = Manifest.single(source, offset, nbytes, len(shape))
    else:
        manifest = Manifest.missing(grid.grid_shape)
    return Array.from_manifest(metadata, manifest, path)


def plain_pipeline(dtype: np.dtype[Any], axes: Sequence[int] | None = None) -> Pipeline:
    """Return the codecs of uncompressed elements.

    Examples
    --------
    >>> plain_pipeline(np.dtype(">f4"), (1, 0))
    Pipeline([transpose(order=[1, 0]), bytes(endian='big')])
    """
    codecs: list[Codec] = []
    if axes is not None and list(axes) != sorted(axes):
        codecs.append(make("transpose", order=list(axes)))
    if dtype.names is not None or dtype.byteorder == "|":
        # Fields of structured elements keep their own byte order.
        codecs.append(make("bytes"))
    else:
        big = dtype.newbyteorder(">") == dtype
        codecs.append(make("bytes", endian="big" if big else "little"))
    return Pipeline(codecs)


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Raise for elements that are no plain bytes, or that Zarr has no data type for.

    Raises `UnsupportedError`.
    """
    if dtype.hasobject:
        raise UnsupportedError("Python objects (pickles) cannot be referenced")
    if dtype.names is not None:
        for name in dtype.names:
            check_dtype(dtype[name])
    elif dtype.subdtype is not None:
        check_dtype(dtype.subdtype[0])
    elif dtype.itemsize == 0:
        raise UnsupportedError(f"elements of type {dtype}, which take no bytes")
    # Extended precision has padding and a layout that depend on the platform.
    elif dtype.itemsize not in _FLOATS.get(dtype.kind, (dtype.itemsize,)):
        raise UnsupportedError(f"elements of type {dtype} (extended precision)")


def check_place(source: Source, offset: int, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
    """Raise for a shape that no file can have, or elements beyond the end of their file.

    Raises `SourceError`.
    """
    # A length of 0 must not hide absurd other ones, of which grids and strides are computed.
    lengths = [max(length, 1) for length in shape]
    if min(shape, default=0) < 0 or math.prod(lengths) * dtype.itemsize > LIMIT:
        raise SourceError(f"no array of type {dtype} has the shape {tuple(shape)}")
    end = offset + math.prod(shape) * dtype.itemsize
    if offset < 0 or (source.size is not None and end > source.size):
        raise SourceError(
            f"the elements lie at bytes {offset} to {end}, but the file ends at {source.size}; it "
            "is truncated or damaged",
            file=source.uri,
        )


def fortran(ndim: int) -> tuple[int, ...]:
    """Return the axes of an array in Fortran order as they are stored, slowest first."""
    return tuple(reversed(range(ndim)))
