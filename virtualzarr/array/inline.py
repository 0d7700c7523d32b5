"""Small arrays that hold their values themselves: coordinates, and what was computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from grids import RegularGrid
from virtualzarr.array.array import Array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.manifest import Manifest
from virtualzarr.metadata import STRING, ArrayMetadata


def inline_array(
    values: NDArray[Any], dims: Sequence[str | None], attributes: Mapping[str, Any], path: str
) -> Array:
    """Return a virtual array of one chunk, which it holds itself.

    Parameters
    ----------
    values : numpy.ndarray
        Numbers or text.
    dims : sequence of (str or None)
        Names of the dimensions.
    attributes : mapping
    path : str

    Examples
    --------
    >>> import numpy as np
    >>> inline_array(np.arange(3), ("x",), {"units": "m"}, "x")[1:]
    array([1, 2])
    """
    dtype, codecs = values.dtype.newbyteorder("="), [make("bytes", endian="little")]
    if dtype.kind == "U":
        values, dtype, codecs = values.astype(object), STRING, [make("vlen-utf8")]
    pipeline = Pipeline(codecs)
    shape = values.shape
    edges = [max(1, n) for n in shape]
    data = bytes(pipeline.for_block(edges, dtype).encode(values)) if values.size else b""
    metadata = ArrayMetadata(
        shape,
        dtype,
        RegularGrid(shape, edges),
        pipeline,
        dimension_names=tuple(dims),
        attributes=dict(attributes),
    )
    manifest = (
        Manifest.inline(data, len(shape))
        if values.size
        else Manifest.missing(metadata.grid.grid_shape)
    )
    return Array.virtual(metadata, manifest, path)
