"""Small arrays that hold their values themselves: coordinates, and what was computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import RegularGrid
from virtualzarr.array.array import Array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import UnsupportedError
from virtualzarr.manifest import Manifest
from virtualzarr.metadata import STRING, ArrayMetadata
from virtualzarr.metadata.dtypes import vlen_kind


def inline_array(
    values: NDArray[Any],
    dims: Sequence[str | None] | None = None,
    attributes: Mapping[str, Any] | None = None,
    path: str = "",
    dtype: np.dtype[Any] | None = None,
) -> Array:
    """Return a virtual array of one chunk, which it holds itself.

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
        values, kind, dtype = values.astype(object), str, STRING
    if kind is not None:
        codecs = [make("vlen-utf8" if kind is str else "vlen-bytes")]
    elif values.dtype.hasobject:
        raise UnsupportedError("objects have no bytes")
    else:
        codecs = [make("bytes", endian="little")]
    if kind is None or dtype is None:
        dtype = values.dtype.newbyteorder("=")
    pipeline = Pipeline(codecs)
    shape = values.shape
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
    return Array.virtual(metadata, manifest, path)
