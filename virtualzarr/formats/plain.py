"""Arrays that lie in a file in one piece: most old formats are that and a header."""

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
"""No axis, and no file, is longer."""

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
    """Return the virtual array of elements that lie one after another.

    Parameters
    ----------
    source : Source
    offset : int
        Where the first element begins.
    dtype : dtype-like
        As stored, with its byte order.
    shape : sequence of int
    axes : sequence of int, optional
        The array's axes in the order they are stored, slowest first; by default C order.
    path, dimension_names, attributes
        Of the array.
    unpacked : int, optional
        The file is compressed by gzip, has so many bytes without that, and these are what `offset`
        counts: all of it is one chunk.

    Raises
    ------
    SourceError
        The file ends before the last element.
    UnsupportedError
        Elements of such a type cannot be referenced.
    """
    dtype, shape = np.dtype(dtype), tuple(int(length) for length in shape)
    check_dtype(dtype)
    config.limits.check("element_bytes", dtype.itemsize, "bytes of an element")
    packed = unpacked is not None
    check_place(Source(source.uri, unpacked) if packed else source, offset, shape, dtype)
    native = dtype if dtype.names is not None else dtype.newbyteorder("=")
    names = None if dimension_names is None else tuple(dimension_names)
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
        behind = make("virtualzarr.byte_slice", start=offset, length=unpacked)
        pipeline = Pipeline([*metadata.pipeline.codecs, behind, make("gzip")])
        metadata, offset, nbytes = metadata.replace(pipeline=pipeline), 0, nbytes and source.size
    if nbytes:
        manifest = Manifest.single(source, offset, nbytes, len(shape))
    else:
        manifest = Manifest.missing(grid.grid_shape)
    return Array.from_manifest(metadata, manifest, path)


def plain_pipeline(dtype: np.dtype[Any], axes: Sequence[int] | None = None) -> Pipeline:
    """Return the codecs of elements that lie one after another.

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
    """Refuse elements that are no plain bytes, or that Zarr has no data type for.

    Raises
    ------
    UnsupportedError
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
    elif dtype.itemsize not in _FLOATS.get(dtype.kind, (dtype.itemsize,)):
        raise UnsupportedError(f"elements of type {dtype} (extended precision)")


def check_place(source: Source, offset: int, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
    """Refuse a shape that no file can have, or elements beyond the end of their file.

    Raises
    ------
    SourceError
    """
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
    """Return the axes of an array of order F as they are stored, slowest first."""
    return tuple(reversed(range(ndim)))
