"""Virtual arrays over bytes in memory, made from numpy arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import grids
from virtualzarr import Array, Manifest
from virtualzarr.codecs import Pipeline, make
from virtualzarr.manifest import Source, Sources
from virtualzarr.metadata import ArrayMetadata

RAW = Pipeline([make("bytes", endian="little")])
BIG = Pipeline([make("bytes", endian="big")])
ZLIB = Pipeline([make("bytes", endian="little"), make("numcodecs.zlib", level=1)])
SHUFFLED = Pipeline(
    [
        make("bytes", endian="little"),
        make("numcodecs.shuffle", elementsize=4),
        make("numcodecs.zlib", level=4),
    ]
)


def virtual_array(
    values: np.ndarray,
    chunks: Any = None,
    *,
    pipeline: Pipeline = RAW,
    missing: Sequence[tuple[int, ...]] = (),
    file: str | None = None,
    fill_value: Any = 0,
    dims: Sequence[str | None] | None = None,
    attrs: dict[str, Any] | None = None,
    path: str = "x",
    zarr_format: int = 3,
) -> Array:
    """Encode `values` chunk by chunk into one heap, the chunks in reversed order.

    Chunks reach past the edge of the array as their grid says; what lies there is not the fill
    value. With `file`, the references point into that file, which is written. Cells in `missing`
    have no chunk: `values` there must be the fill value.
    """
    grid = grids.parse(values.shape if chunks is None else chunks, values.shape)
    shape = grid.grid_shape
    source = np.zeros(shape, np.int32)
    offset, length = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    heap = b"head"
    for cell in reversed(list(np.ndindex(shape))):
        if cell in missing:
            source[cell] = -1
            continue
        block = np.full(grid.cell_shape(cell), "?" if values.dtype == object else 77, values.dtype)
        inside = grid.cell_extent(cell)
        where = tuple(slice(o, o + n) for o, n in zip(grid.cell_origin(cell), inside, strict=True))
        block[tuple(slice(n) for n in inside)] = values[where]
        data = bytes(pipeline.for_block(block.shape, values.dtype).encode(block))
        offset[cell], length[cell] = len(heap), len(data)
        heap += data
    where_from = Source.inline(heap)
    if file is not None:
        with open(file, "wb") as out:
            out.write(heap)
        where_from = Source.from_file(file)
    metadata = ArrayMetadata(
        values.shape,
        values.dtype,
        grid,
        pipeline,
        fill_value=fill_value,
        dimension_names=dims,
        attributes=attrs or {},
        zarr_format=zarr_format,
    )
    manifest = Manifest(shape, Sources([where_from]), source, offset, length)
    return Array.from_manifest(metadata, manifest, path)


def numbers(shape: tuple[int, ...], dtype: Any = "i4", start: int = 1) -> np.ndarray:
    """Return distinct values."""
    return (np.arange(math.prod(shape)) + start).reshape(shape).astype(dtype)
