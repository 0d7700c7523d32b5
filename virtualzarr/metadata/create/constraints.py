"""Whether an array is as asked for, and in what it differs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import grids
from grids import ChunkGrid, ChunkLayout, SeparableGrid
from virtualzarr.codecs import Codec, Pipeline, codec_from_v2
from virtualzarr.codecs.core.base import ChunkSpec
from virtualzarr.codecs.sharding import Sharding
from virtualzarr.codecs.transpose import Transpose
from virtualzarr.metadata import fill
from virtualzarr.metadata.create import codecs
from virtualzarr.metadata.create.array import (
    ZERO,
    ArrayParams,
    as_dtype,
    as_shape,
    codec_parts,
    inner_order,
    new_attributes,
    new_key_encoding,
    split_shards,
    with_defaults,
)
from virtualzarr.metadata.create.grid import is_auto
from virtualzarr.metadata.create.shards import ShardingRequest, order_of_axes
from virtualzarr.metadata.dtypes import vlen_kind
from virtualzarr.metadata.json_documents import is_same_json, short
from virtualzarr.metadata.model import ArrayMetadata

Difference = tuple[str, Any, Any]


def differences(metadata: ArrayMetadata, params: ArrayParams) -> list[str]:
    """Return in what an array is not as asked for, a text for each member.

    Only what is said counts: of attributes those given, of a layout its shapes and its order (the
    numbers of elements and the aspect ratios only help to choose shapes). What is only preferred
    (`soft`, -1 in a layout) is not checked.

    Examples
    --------
    >>> from virtualzarr.metadata.create import new_array
    >>> metadata = new_array(ArrayParams(shape=(4, 6), dtype="i4"))
    >>> differences(metadata, ArrayParams(dtype="i4", chunks=2))
    ['chunks: (2, 2) is asked for, but it is (4, 6)']
    """
    params = with_defaults(params)
    found = list(_basic(metadata, params))
    if params["shape"] is None or len(as_shape(params["shape"])) == metadata.ndim:
        found += _chunking(metadata, params)
        found += _coding(metadata, params)
    found += _attributes(metadata, params)
    return [
        f"{name}: {_text(asked)} is asked for, but it is {_text(stored)}"
        for name, asked, stored in found
    ]


def _text(value: Any) -> str:
    if isinstance(value, np.dtype):
        kind = vlen_kind(value)
        return str(value) if kind is None else "string" if kind is str else "bytes"
    return short(value.item() if isinstance(value, np.generic) else value)


def _basic(metadata: ArrayMetadata, params: ArrayParams) -> Iterator[Difference]:
    if params["zarr_format"] not in (None, metadata.zarr_format):
        yield "zarr_format", params["zarr_format"], metadata.zarr_format
    if params["shape"] is not None and as_shape(params["shape"]) != metadata.shape:
        yield "shape", as_shape(params["shape"]), metadata.shape
    dtype = metadata.dtype
    if params["dtype"] is not None:
        asked = as_dtype(params["dtype"])
        asked = asked if asked.names or asked.hasobject else asked.newbyteorder("=")
        if (asked, vlen_kind(asked)) != (dtype, vlen_kind(dtype)):
            yield "dtype", asked, dtype
            return  # the fill value cannot be compared
    if params["fill_value"] is not ZERO:
        value = fill.to_scalar(params["fill_value"], dtype)
        if not fill.is_same_fill(value, metadata.fill_value):
            yield "fill_value", value, metadata.fill_value
    names = params["dimension_names"]
    if names is not None and tuple(names) != metadata.dimension_names:
        yield "dimension_names", tuple(names), metadata.dimension_names
    if params["chunk_key_encoding"] is not None or params["dimension_separator"] is not None:
        encoding = new_key_encoding(
            params["chunk_key_encoding"], params["dimension_separator"], metadata.zarr_format
        )
        if encoding != metadata.key_encoding:
            yield "chunk_key_encoding", encoding, metadata.key_encoding


def _attributes(metadata: ArrayMetadata, params: ArrayParams) -> Iterator[Difference]:
    for name, value in new_attributes(params, metadata.ndim).items():
        stored = metadata.attributes.get(name)
        if name not in metadata.attributes or not is_same_json(value, stored):
            yield f"attribute {name!r}", value, stored


def _chunking(metadata: ArrayMetadata, params: ArrayParams) -> Iterator[Difference]:
    outer = metadata.grid
    shape = codecs.sharding_in(codecs.split_codecs(metadata.pipeline.codecs), metadata.ndim)
    inner = outer if shape is None else grids.RegularGrid(metadata.shape, shape)
    # Whoever gives a sharding codec gives the shape of shards as `chunks`.
    given = codecs.sharding_in(codec_parts(params), metadata.ndim) is not None
    yield from _cut("chunks", params["chunks"], outer if given else inner)
    if params["shards"] is False and shape is not None:
        yield "shards", None, _edges(outer)
    elif params["shards"] is not None and params["shards"] is not False:
        if shape is None:
            yield "shards", split_shards(params["shards"])[0], None
        else:
            yield from _cut("shards", split_shards(params["shards"])[0], outer)
    layout = ChunkLayout.from_params(params["layout"])
    for name, grid in (("read_chunk_shape", inner), ("write_chunk_shape", outer)):
        for asked in (getattr(layout, name), layout.chunk_shape):
            edges = _edges(grid)
            if asked is None or (
                len(asked) == len(edges)
                and all(a in (None, 0, -1, b) for a, b in zip(asked, edges, strict=True))
            ):
                continue
            yield name, tuple(asked), edges


def _cut(name: str, asked: Any, grid: ChunkGrid) -> Iterator[Difference]:
    """Compare a `chunks` argument with a grid."""
    if asked is None or is_auto(asked):
        return
    edges = _edges(grid)
    if isinstance(asked, list | tuple) and len(asked) == len(edges):
        asked = [b if is_auto(a) else a for a, b in zip(asked, edges, strict=True)]
    wanted = grids.parse(None if asked is False else asked, grid.shape)
    if wanted != grid and _edges(wanted) != edges:
        yield name, _edges(wanted), edges


def _edges(grid: ChunkGrid) -> Any:
    """Return the edges of a grid as users write them."""
    if isinstance(grid, SeparableGrid):
        uniform = [axis.uniform for axis in grid.axes]
        if None not in uniform:
            return tuple(int(edge) for edge in uniform if edge is not None)
    return tuple(getattr(grid, "chunk_shapes", ())) or grid


def _coding(metadata: ArrayMetadata, params: ArrayParams) -> Iterator[Difference]:
    """Compare codecs, those of the chunks within shards where there are shards."""
    pipeline, parts = metadata.pipeline, codec_parts(params)
    order = inner_order(params, metadata.ndim)
    if order is not None:
        stored_order = _order_within(pipeline, metadata.ndim)
        if order != stored_order:
            yield "order of axes", order, stored_order
        pipeline = codecs.without_transposes(pipeline)
    if codecs.sharding_in(parts, metadata.ndim) is None:
        pipeline = codecs.within_shards(pipeline)
    stored = codecs.split_codecs(pipeline.codecs)
    if metadata.zarr_format == 2:
        stored = _parts_v2(metadata)
    for name, given in parts.items():
        if isinstance(given, str) and given == "auto":
            continue
        if name == "serializer" and metadata.zarr_format == 2:
            yield name, given, None  # v2 has none
            continue
        asked = [codecs.as_codec(codec, metadata.zarr_format) for codec in codecs.as_list(given)]
        same = len(asked) == len(stored[name])
        if not (same and all(map(_same_codec, asked, stored[name]))):
            yield name, asked, stored[name]


def _order_within(pipeline: Pipeline, ndim: int) -> tuple[int, ...]:
    """Return the order in which the elements of the smallest chunks are stored."""
    axes = order_of_axes(pipeline.codecs, ndim)
    if isinstance(pipeline.serializer, Sharding):
        inside = _order_within(pipeline.serializer.pipeline, ndim)
        axes = tuple(axes[axis] for axis in inside)
    return axes


def _parts_v2(metadata: ArrayMetadata) -> dict[str, list[Codec]]:
    """Return the codecs as a v2 document has them."""
    shape = getattr(metadata.grid, "chunk_shape")  # noqa: B009
    form = metadata.pipeline.to_v2(metadata.dtype, metadata.ndim, shape=shape)
    return {
        "filters": [codec_from_v2(config) for config in form["filters"] or ()],
        "compressors": [codec_from_v2(form["compressor"])] if form["compressor"] else [],
    }


def _same_codec(asked: Codec, stored: Codec) -> bool:
    """Tell whether a codec is the one asked for, in all that is said of it."""
    if isinstance(asked, ShardingRequest) and isinstance(stored, Sharding):
        return _same_sharding(asked, stored)
    if isinstance(asked, Transpose) and isinstance(stored, Transpose):
        ndim = len(stored.configuration["order"])  # or the letter of both, whatever the axes
        return asked == stored or asked.resolve(ChunkSpec((1,) * ndim, np.dtype("u1"))) == stored
    return asked.name == stored.name and all(
        stored.configuration.get(member) == value for member, value in asked.configuration.items()
    )


def _same_sharding(asked: ShardingRequest, stored: Sharding) -> bool:
    if asked.chunk_shape not in (None, stored.chunk_shape):
        return False
    given = asked.configuration
    location = given.get("index_location")
    if location is not None and location != stored.configuration["index_location"]:
        return False
    chains = {"codecs": stored.pipeline, "index_codecs": stored.index_pipeline}
    return all(
        _same_chain(codecs.split_codecs(given[name]), codecs.split_codecs(pipeline.codecs))
        for name, pipeline in chains.items()
        if name in given
    )


def _same_chain(asked: dict[str, Any], stored: dict[str, Any]) -> bool:
    return all(
        len(given) == len(stored[name]) and all(map(_same_codec, given, stored[name]))
        for name, given in asked.items()
        if not isinstance(given, str)
    )
