"""Metadata of a new array from the parameters of `create_array`."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from grids import ChunkGrid, ChunkLayout, SeparableGrid
from virtualzarr.codecs import Pipeline
from virtualzarr.codecs.core.byte_order import native
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.keywords import check_keywords, parameters_of
from virtualzarr.metadata import fill
from virtualzarr.metadata.chunk_key_encoding import KeyEncoding
from virtualzarr.metadata.create import codecs
from virtualzarr.metadata.create.grid import choose_grid
from virtualzarr.metadata.dimension_units import UNITS, dimension_units, format_unit
from virtualzarr.metadata.dtypes import BYTES, STRING
from virtualzarr.metadata.dtypes_v3 import dtype_from_v3
from virtualzarr.metadata.json_documents import member, short
from virtualzarr.metadata.model import ArrayMetadata


class _Zero:
    """Stands for the zero of whatever data type, and for "not a time" of times."""

    def __repr__(self) -> str:
        return "zero"


ZERO: Any = _Zero()
"""The default fill value: zero, false, empty, or not a time."""


class ArrayParams(TypedDict, total=False):
    """Keyword arguments that describe an array; see `virtualzarr.create_array`."""

    shape: Any
    dtype: Any
    chunks: Any
    shards: Any
    filters: Any
    compressors: Any
    serializer: Any
    codecs: Any
    fill_value: Any
    order: str | None
    zarr_format: int | None
    attributes: Mapping[str, Any] | None
    dimension_names: Sequence[str | None] | None
    dims: Sequence[str | None] | None
    dimension_units: Sequence[Any] | None
    chunk_key_encoding: Any
    dimension_separator: str | None
    layout: ChunkLayout | Mapping[str, Any] | None


_CODEC_PARTS = ("filters", "serializer", "compressors")
_DEFAULTS = dict.fromkeys(ArrayParams.__annotations__) | {
    **dict.fromkeys(("chunks", *_CODEC_PARTS), "auto"),
    "fill_value": ZERO,
}


def with_defaults(params: Mapping[str, Any]) -> ArrayParams:
    """Return parameters of an array with defaults for all that are missing.

    Raises
    ------
    TypeError
        There is no such parameter, or one was given by both of its names.

    Examples
    --------
    >>> with_defaults({"shape": (2, 3), "dims": ["y", "x"]})["dimension_names"]
    ['y', 'x']
    """
    check_keywords("create_array", params, parameters_of(ArrayParams))
    complete: Any = _DEFAULTS | dict(params)
    names = complete.pop("dims")
    if names is not None:
        if complete["dimension_names"] is not None:
            raise TypeError("dims and dimension_names are two names of one parameter")
        complete["dimension_names"] = names
    result: ArrayParams = complete
    return result


def build_attributes(params: ArrayParams, ndim: int) -> dict[str, Any]:
    """Return the attributes of an array as JSON values, units of dimensions among them."""
    attributes: dict[str, Any] = to_plain_json(params["attributes"] or {})
    if (units := params["dimension_units"]) is not None:
        with member("dimension_units"):
            attributes[UNITS] = [format_unit(to_plain_json(unit)) for unit in units]
        dimension_units(attributes, ndim)
    return attributes


def split_shards(shards: Any) -> tuple[Any, str]:
    """Return the chunks of the `shards` argument, and the place of the index: "start" or "end"."""
    # A mapping with a shape is as zarr-python has it; other mappings are grids.
    if isinstance(shards, Mapping) and "shape" in shards:
        return shards["shape"], shards.get("index_location", "end")
    return shards, "end"


def get_codec_params(params: ArrayParams) -> dict[str, Any]:
    """Return filters, serializer and compressors, which may be one list of `codecs`."""
    parts: dict[str, Any] = {name: params[name] for name in _CODEC_PARTS}  # type: ignore[literal-required]
    if params["codecs"] is None:
        return parts
    for name, value in parts.items():
        if not (isinstance(value, str) and value == "auto"):
            raise MetadataError(f"{name}: the codecs are given already, all of them")
    return codecs.split_codecs(params["codecs"])


def choose_inner_order(params: ArrayParams, ndim: int) -> tuple[int, ...] | None:
    """Return the order of axes of `order` or of the layout, None where neither has one."""
    order = params["order"]
    if order not in (None, "C", "F"):
        raise MetadataError(f"order: must be 'C' or 'F', not {short(order)}")
    preferred = ChunkLayout.from_params(params["layout"]).choose_order(ndim)
    axes = tuple(range(ndim))
    explicit = {None: None, "C": axes, "F": axes[::-1]}[order]
    if explicit is not None and preferred is not None and explicit != preferred:
        raise MetadataError(f"order: {order} is asked for, and also inner_order {preferred}")
    return preferred if explicit is None else explicit


def choose_key_encoding(encoding: Any, separator: str | None, zarr_format: int) -> KeyEncoding:
    """Return the key encoding of `chunk_key_encoding` and `dimension_separator`."""
    with member("chunk_key_encoding"):
        if encoding is None:
            encoding = KeyEncoding("v2" if zarr_format == 2 else "default")
        elif isinstance(encoding, Mapping) and "separator" in encoding:
            # zarr-python spells it flat, documents put the separator into a configuration.
            encoding = KeyEncoding(encoding.get("name", "default"), encoding["separator"])
        elif not isinstance(encoding, KeyEncoding):
            encoding = KeyEncoding.from_json(encoding)
    if zarr_format == 2 and encoding.name != "v2":
        raise UnsupportedError(f"chunk_key_encoding: Zarr v2 has only v2, not {encoding.name}")
    return encoding if separator is None else KeyEncoding(encoding.name, separator)


def create_array_metadata(params: ArrayParams) -> ArrayMetadata:
    """Return the metadata of a new array, with defaults for missing parameters.

    Raises
    ------
    MetadataError, UnsupportedError, CodecError
        Parameters are malformed, contradict each other, or have no form in the Zarr format; the
        message names the argument.

    Examples
    --------
    >>> metadata = create_array_metadata(ArrayParams(shape=(1000, 2000, 3000), dtype="u2"))
    >>> metadata.grid, metadata.pipeline.codecs
    (RegularGrid(shape=(1000, 2000, 3000), chunk_shape=(101, 101, 101)), \
(bytes(endian='little'), zstd(level=0, checksum=False)))
    """
    params = with_defaults(params)
    if params["shape"] is None or params["dtype"] is None:
        missing = "shape" if params["shape"] is None else "dtype"
        raise MetadataError(f"{missing}: needed for a new array; give it, or give data")
    zarr_format = 3 if params["zarr_format"] is None else params["zarr_format"]
    shape, stored = as_shape(params["shape"]), as_dtype(params["dtype"])
    # v2 stores the byte order in the dtype, v3 in the `bytes` codec; in memory elements are native.
    # Records keep the order of each field, which no single codec could give back.
    dtype = native(stored)
    # The grid before the codecs: shards are in it, and the sub-chunks that it chooses are a
    # parameter of the sharding codec. A codec that has its sub-chunks already decides the grid.
    with member("chunks"):
        grid, inner = choose_grid(
            shape,
            params["chunks"],
            split_shards(params["shards"])[0],
            params["layout"],
            zarr_format=zarr_format,
            inner=codecs.find_sub_chunk_shape(get_codec_params(params), len(shape)),
            each=_count_numbers(dtype),
        )
    build = _build_pipeline_v2 if zarr_format == 2 else _build_pipeline_v3
    pipeline = build(params, grid, stored, inner)
    names, value = params["dimension_names"], params["fill_value"]
    # None is null, which v2 has and v3 has not.
    if value is ZERO or (value is None and zarr_format == 3):
        value = fill.default_fill(dtype)
    metadata = ArrayMetadata(
        shape=shape,
        dtype=dtype,
        grid=grid,
        pipeline=pipeline,
        fill_value=value,
        dimension_names=None if names is None else tuple(names),
        attributes=build_attributes(params, len(shape)),
        zarr_format=zarr_format,
        key_encoding=choose_key_encoding(
            params["chunk_key_encoding"], params["dimension_separator"], zarr_format
        ),
    )
    _check_blocks(metadata)
    return metadata


def _count_numbers(dtype: np.dtype) -> int:
    """Return how many numbers the longest field of an element has."""
    # TensorStore opens one field as an array of its own and chooses chunks for that many elements.
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return math.prod(shape) * _count_numbers(base)
    return max((_count_numbers(dtype[name]) for name in dtype.names or ()), default=1)


def to_plain_json(value: Any) -> Any:
    """Return a value with numpy scalars and arrays as Python numbers and lists.

    Examples
    --------
    >>> to_plain_json({"scale": np.float64(0.5), "range": np.arange(2)})
    {'scale': 0.5, 'range': [0, 1]}
    """
    if isinstance(value, Mapping):
        return {key: to_plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_json(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value


def as_shape(value: Any) -> tuple[int, ...]:
    """Return the shape of one integer or several."""
    try:
        return (operator.index(value),)
    except TypeError:
        return tuple(value) if isinstance(value, list | tuple | np.ndarray) else value


def as_dtype(value: Any) -> np.dtype:
    """Return the dtype of a `dtype` argument, in its byte order.

    Parameters
    ----------
    value : dtype-like, str or mapping
        A dtype-like of numpy, or a v3 data type; `str` and ``"string"`` are strings of any length,
        `bytes` and ``"bytes"`` byte strings of any length.

    Examples
    --------
    >>> as_dtype(">i2"), as_dtype("float32"), as_dtype(str).metadata
    (dtype('>i2'), dtype('float32'), mappingproxy({'vlen': <class 'str'>}))
    """
    # Before numpy, for which `str` and "bytes" are fixed-length text of length 0. "T" is numpy's
    # StringDType.
    name = value if isinstance(value, str) else None
    if value is str or getattr(value, "char", None) == "T" or name in ("string", "str", "T"):
        return STRING
    if value is bytes or name == "bytes":
        return BYTES
    with member("dtype"):
        if isinstance(value, Mapping):
            return dtype_from_v3(value)
        try:
            dtype = np.dtype(value)
        except TypeError as error:
            if not isinstance(value, str):
                raise MetadataError(f"numpy does not know {short(value)}") from error
            return dtype_from_v3(value)
        if dtype.itemsize == 0 and dtype.names is None:
            raise MetadataError(f"{dtype} has elements of no length; give one, or say str or bytes")
    return dtype


def _build_pipeline_v3(
    params: ArrayParams, grid: ChunkGrid, stored: np.dtype, inner: tuple[int, ...] | None
) -> Pipeline:
    parts, order = get_codec_params(params), choose_inner_order(params, grid.ndim)
    has_sharding = codecs.find_sub_chunk_shape(parts, grid.ndim) is not None
    if has_sharding and inner is not None:
        parts = codecs.with_sub_chunks(parts, inner)
    pipeline = codecs.build_pipeline(native(stored), grid.ndim, inner_order=order, **parts)
    if inner is None or has_sharding:
        return pipeline
    return codecs.shard_pipeline(pipeline, inner, split_shards(params["shards"])[1])


def _build_pipeline_v2(
    params: ArrayParams, grid: ChunkGrid, stored: np.dtype, inner: tuple[int, ...] | None
) -> Pipeline:
    if params["codecs"] is not None:
        raise UnsupportedError("codecs: Zarr v2 has filters and a compressor; give those")
    chunk_shape = getattr(grid, "chunk_shape", None)
    if chunk_shape is None:
        raise UnsupportedError("chunks: Zarr v2 has only chunks of one shape; use zarr_format=3")
    order, explicit = choose_inner_order(params, grid.ndim), params["order"] is not None
    axes = tuple(range(grid.ndim))
    if order is None or not (explicit or ChunkLayout.from_params(params["layout"]).inner_order):
        # v2 has the orders C and F only: one that is only preferred gives way.
        order = axes if order not in (axes, axes[::-1]) else order
    letter, parts = codecs.as_memory_order(order), get_codec_params(params)
    return codecs.build_pipeline_v2(stored, chunk_shape, order=letter, **parts)


def _check_blocks(metadata: ArrayMetadata) -> None:
    """Raise for codecs that cannot encode the array's chunks, before there are any."""
    grid = metadata.grid
    if not isinstance(grid, SeparableGrid) or not all(len(axis.edges) for axis in grid.axes):
        return  # an axis of extent 0 may have no chunk length before something is appended
    edges = tuple(int(axis.edges[0]) for axis in grid.axes)
    metadata.pipeline.for_block(edges, metadata.dtype)
