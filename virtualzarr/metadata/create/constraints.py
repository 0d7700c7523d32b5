"""Comparison of a stored array with the parameters of `create_array` or `open_array`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import grids
from grids import ChunkGrid, ChunkLayout, SeparableGrid
from virtualzarr.codecs import Codec, Pipeline, codec_from_v2
from virtualzarr.codecs.core.base import ChunkSpec
from virtualzarr.codecs.core.byte_order import native
from virtualzarr.codecs.sharding import Sharding
from virtualzarr.codecs.transpose import Transpose
from virtualzarr.metadata import fill
from virtualzarr.metadata.create import array, codecs
from virtualzarr.metadata.create.grid import is_auto
from virtualzarr.metadata.create.shards import ShardingRequest, find_axis_order
from virtualzarr.metadata.dtypes import vlen_kind
from virtualzarr.metadata.json_documents import is_same_json, short
from virtualzarr.metadata.model import ArrayMetadata

Difference = tuple[str, Any, Any]


def find_differences(metadata: ArrayMetadata, params: array.ArrayParams) -> list[str]:
    """Return the differences of an array from parameters, a text for each member.

    Only explicit parameters count: of attributes those listed, of a layout its shapes and its
    order (the numbers of elements and the aspect ratios only help to choose shapes). Preferences
    (`soft`, -1 in a layout) are not checked.

    Examples
    --------
    >>> from virtualzarr.metadata.create import ArrayParams, create_array_metadata
    >>> metadata = create_array_metadata(ArrayParams(shape=(4, 6), dtype="i4"))
    >>> find_differences(metadata, ArrayParams(dtype="i4", chunks=2))
    ['chunks: (2, 2) is asked for, but it is (4, 6)']
    """
    params = array.with_defaults(params)
    differences = list(_compare_members(metadata, params))
    if params["shape"] is None or len(array.as_shape(params["shape"])) == metadata.ndim:
        differences += _compare_chunks(metadata, params)
        differences += _compare_codecs(metadata, params)
    differences += _compare_attributes(metadata, params)
    return [
        f"{name}: {_format(expected)} is asked for, but it is {_format(stored)}"
        for name, expected, stored in differences
    ]


def _format(value: Any) -> str:
    if isinstance(value, np.dtype):
        kind = vlen_kind(value)
        return str(value) if kind is None else "string" if kind is str else "bytes"
    return short(value.item() if isinstance(value, np.generic) else value)


def _compare_members(metadata: ArrayMetadata, params: array.ArrayParams) -> Iterator[Difference]:
    if params["zarr_format"] not in (None, metadata.zarr_format):
        yield "zarr_format", params["zarr_format"], metadata.zarr_format
    if params["shape"] is not None and array.as_shape(params["shape"]) != metadata.shape:
        yield "shape", array.as_shape(params["shape"]), metadata.shape
    dtype = metadata.dtype
    if params["dtype"] is not None:
        expected = native(array.as_dtype(params["dtype"]))
        if (expected, vlen_kind(expected)) != (dtype, vlen_kind(dtype)):
            yield "dtype", expected, dtype
            return  # the fill value cannot be compared
    if params["fill_value"] is not array.ZERO:
        value = fill.to_scalar(params["fill_value"], dtype)
        if not fill.is_same_fill(value, metadata.fill_value):
            yield "fill_value", value, metadata.fill_value
    names = params["dimension_names"]
    if names is not None and tuple(names) != metadata.dimension_names:
        yield "dimension_names", tuple(names), metadata.dimension_names
    if params["chunk_key_encoding"] is not None or params["dimension_separator"] is not None:
        encoding = array.choose_key_encoding(
            params["chunk_key_encoding"], params["dimension_separator"], metadata.zarr_format
        )
        if encoding != metadata.key_encoding:
            yield "chunk_key_encoding", encoding, metadata.key_encoding


def _compare_attributes(metadata: ArrayMetadata, params: array.ArrayParams) -> Iterator[Difference]:
    for name, value in array.build_attributes(params, metadata.ndim).items():
        stored = metadata.attributes.get(name)
        if name not in metadata.attributes or not is_same_json(value, stored):
            yield f"attribute {name!r}", value, stored


def _compare_chunks(metadata: ArrayMetadata, params: array.ArrayParams) -> Iterator[Difference]:
    outer = metadata.grid
    parts = codecs.split_codecs(metadata.pipeline.codecs)
    shape = codecs.find_sub_chunk_shape(parts, metadata.ndim)
    inner = outer if shape is None else grids.RegularGrid(metadata.shape, shape)
    # With an explicit sharding codec `chunks` is the shape of shards, as in v3 documents; without
    # one it is that of the sub-chunks, which is what users of zarr-python mean by chunks.
    has_sharding = (
        codecs.find_sub_chunk_shape(array.get_codec_params(params), metadata.ndim) is not None
    )
    yield from _compare_grid("chunks", params["chunks"], outer if has_sharding else inner)
    if params["shards"] is False and shape is not None:
        yield "shards", None, _get_chunk_shape(outer)
    elif params["shards"] is not None and params["shards"] is not False:
        if shape is None:
            yield "shards", array.split_shards(params["shards"])[0], None
        else:
            yield from _compare_grid("shards", array.split_shards(params["shards"])[0], outer)
    layout = ChunkLayout.from_params(params["layout"])
    for name, grid in (("read_chunk_shape", inner), ("write_chunk_shape", outer)):
        for expected in (getattr(layout, name), layout.chunk_shape):
            edges = _get_chunk_shape(grid)
            if expected is None or (
                len(expected) == len(edges)
                and all(a in (None, 0, -1, b) for a, b in zip(expected, edges, strict=True))
            ):
                continue
            yield name, tuple(expected), edges


def _compare_grid(name: str, expected: Any, grid: ChunkGrid) -> Iterator[Difference]:
    """Compare a `chunks` argument with a grid."""
    if expected is None or is_auto(expected):
        return
    edges = _get_chunk_shape(grid)
    if isinstance(expected, list | tuple) and len(expected) == len(edges):
        expected = [b if is_auto(a) else a for a, b in zip(expected, edges, strict=True)]
    parsed = grids.parse(None if expected is False else expected, grid.shape)
    if parsed != grid and _get_chunk_shape(parsed) != edges:
        yield name, _get_chunk_shape(parsed), edges


def _get_chunk_shape(grid: ChunkGrid) -> Any:
    """Return the chunk shape of a regular grid, else the chunk lengths as users write them."""
    if isinstance(grid, SeparableGrid):
        uniform = [axis.uniform for axis in grid.axes]
        if None not in uniform:
            return tuple(int(edge) for edge in uniform if edge is not None)
    return tuple(getattr(grid, "chunk_shapes", ())) or grid


def _compare_codecs(metadata: ArrayMetadata, params: array.ArrayParams) -> Iterator[Difference]:
    """Compare codecs, those of the chunks within shards where there are shards."""
    pipeline, parts = metadata.pipeline, array.get_codec_params(params)
    order = array.choose_inner_order(params, metadata.ndim)
    if order is not None:
        stored_order = _find_order(pipeline, metadata.ndim)
        if order != stored_order:
            yield "order of axes", order, stored_order
        pipeline = codecs.without_transposes(pipeline)
    if codecs.find_sub_chunk_shape(parts, metadata.ndim) is None:
        pipeline = codecs.get_inner_pipeline(pipeline)
    stored = codecs.split_codecs(pipeline.codecs)
    if metadata.zarr_format == 2:
        stored = _split_codecs_v2(metadata)
    for name, value in parts.items():
        if isinstance(value, str) and value == "auto":
            continue
        if name == "serializer" and metadata.zarr_format == 2:
            yield name, value, None  # v2 has none
            continue
        expected = [codecs.as_codec(codec, metadata.zarr_format) for codec in codecs.as_list(value)]
        same = len(expected) == len(stored[name])
        if not (same and all(map(_is_same_codec, expected, stored[name]))):
            yield name, expected, stored[name]


def _find_order(pipeline: Pipeline, ndim: int) -> tuple[int, ...]:
    """Return the order of axes in which the elements of the innermost chunks are stored."""
    axes = find_axis_order(pipeline.codecs, ndim)
    if isinstance(pipeline.serializer, Sharding):
        inside = _find_order(pipeline.serializer.pipeline, ndim)
        axes = tuple(axes[axis] for axis in inside)
    return axes


def _split_codecs_v2(metadata: ArrayMetadata) -> dict[str, list[Codec]]:
    """Return the codecs as a v2 document has them."""
    shape = getattr(metadata.grid, "chunk_shape")  # noqa: B009
    form = metadata.pipeline.to_v2(metadata.dtype, metadata.ndim, shape=shape)
    return {
        "filters": [codec_from_v2(config) for config in form["filters"] or ()],
        "compressors": [codec_from_v2(form["compressor"])] if form["compressor"] else [],
    }


def _is_same_codec(expected: Codec, stored: Codec) -> bool:
    """Tell whether a stored codec has the name and all explicit parameters of another."""
    if isinstance(expected, ShardingRequest) and isinstance(stored, Sharding):
        return _is_same_sharding(expected, stored)
    if isinstance(expected, Transpose) and isinstance(stored, Transpose):
        # Orders may be the letters C and F, which only a number of axes turns into axes.
        spec = ChunkSpec((1,) * len(stored.configuration["order"]), np.dtype("u1"))
        return expected == stored or expected.resolve(spec) == stored
    members = stored.configuration
    return expected.name == stored.name and all(
        members.get(name) == value for name, value in expected.configuration.items()
    )


def _is_same_sharding(expected: ShardingRequest, stored: Sharding) -> bool:
    if expected.chunk_shape not in (None, stored.chunk_shape):
        return False
    configuration = expected.configuration
    location = configuration.get("index_location")
    if location is not None and location != stored.configuration["index_location"]:
        return False
    chains = {"codecs": stored.pipeline, "index_codecs": stored.index_pipeline}
    split = codecs.split_codecs
    return all(
        _is_same_chain(split(configuration[name]), split(pipeline.codecs))
        for name, pipeline in chains.items()
        if name in configuration
    )


def _is_same_chain(expected: dict[str, Any], stored: dict[str, Any]) -> bool:
    return all(
        len(codecs) == len(stored[name]) and all(map(_is_same_codec, codecs, stored[name]))
        for name, codecs in expected.items()
        if not isinstance(codecs, str)
    )
