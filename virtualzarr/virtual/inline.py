"""Inline arrays: coordinates and computed values, held in the manifest itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import RegularGrid, SeparableGrid
from virtualzarr.array.array import Array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.core.base import as_u1
from virtualzarr.errors import UnsupportedError
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.metadata import STRING, ArrayMetadata
from virtualzarr.metadata.dtypes import vlen_kind


def inline_array(
    values: NDArray[Any],
    dims: Sequence[str | None] | None = None,
    attributes: Mapping[str, Any] | None = None,
    path: str = "",
    dtype: np.dtype[Any] | None = None,
) -> Array:
    """Return a virtual array of one chunk, inline.

    Parameters
    ----------
    values : numpy.ndarray
        Numbers or text.
    dims : sequence of (str or None), optional
        Names of the dimensions.
    attributes : mapping, optional
    path : str
    dtype : dtype, optional
        `STRING` or `BYTES`, where values are objects.

    Raises
    ------
    UnsupportedError
        The values are objects of another kind.

    Examples
    --------
    >>> import numpy as np
    >>> inline_array(np.arange(3), ("x",), {"units": "m"}, "x")[1:]
    array([1, 2])
    """
    kind = None if dtype is None else vlen_kind(dtype)
    if kind is None and values.dtype.kind == "U":
        # numpy's fixed-length text takes four bytes a character; other readers expect vlen-utf8.
        values, kind, dtype = values.astype(object), str, STRING
    if kind is not None:
        codecs = [make("vlen-utf8" if kind is str else "vlen-bytes")]
    elif values.dtype.hasobject:
        raise UnsupportedError("objects have no bytes")
    else:
        codecs = [make("bytes", endian="little")]
    if kind is None or dtype is None:
        # The data type is native in memory; the bytes codec stores little-endian whatever it was.
        dtype = values.dtype.newbyteorder("=")
    pipeline = Pipeline(codecs)
    shape = values.shape
    # Chunk lengths of a regular grid are at least 1, also along an empty axis.
    edges = [max(1, n) for n in shape]
    data = bytes(pipeline.for_block(edges, dtype).encode(values)) if values.size else b""
    metadata = ArrayMetadata(
        shape,
        dtype,
        RegularGrid(shape, edges),
        pipeline,
        dimension_names=None if dims is None else tuple(dims),
        attributes=dict(attributes or {}),
    )
    manifest = (
        Manifest.inline(data, len(shape))
        if values.size
        else Manifest.missing(metadata.grid.grid_shape)
    )
    return Array.from_manifest(metadata, manifest, path)


def inline_like(values: NDArray[Any], model: Array, attributes: Mapping[str, Any]) -> Array:
    """Return an inline array with the chunks and codecs of another one.

    Parameters
    ----------
    values : numpy.ndarray
        Of the data type of `model`, with as many axes.
    model : Array
    attributes : mapping

    Raises
    ------
    UnsupportedError
        The codecs of `model` cannot encode.

    Examples
    --------
    >>> import numpy as np
    >>> import virtualzarr as vz
    >>> stored = vz.create_array({}, data=np.arange(4), chunks=(2,), compressors=["gzip"])
    >>> more = inline_like(np.arange(3), stored, {})
    >>> more.chunks, more[:].tolist(), more.metadata.pipeline == stored.metadata.pipeline
    ((2,), [0, 1, 2], True)
    """
    metadata = model.metadata
    axes = model.grid.axes if isinstance(model.grid, SeparableGrid) else ()
    edges = [axis.uniform or 0 for axis in axes]
    if len(edges) != values.ndim or 0 in edges:
        edges = [max(1, n) for n in values.shape]
    grid = RegularGrid(values.shape, edges)
    block = metadata.pipeline.for_block(grid.chunk_shape, metadata.dtype)
    fill = metadata.effective_fill
    sources = []
    for cell in np.ndindex(*grid.grid_shape):
        # Chunks at the end are stored with their full shape, too.
        chunk = np.full(grid.chunk_shape, fill, metadata.dtype)
        box = [slice(i, i + n) for i, n in zip(grid.cell_origin(cell), edges, strict=True)]
        part = values[tuple(box)]
        chunk[tuple(map(slice, part.shape))] = part
        sources.append(Source.inline(bytes(as_u1(block.encode(chunk)))))
    metadata = metadata.replace(shape=grid.shape, grid=grid, attributes=dict(attributes))
    source = np.arange(len(sources), dtype=np.int32).reshape(grid.grid_shape)
    manifest = Manifest(grid.grid_shape, Sources(sources), source, 0, -1)
    return Array.from_manifest(metadata, manifest, model.path)
