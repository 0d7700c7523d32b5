"""The metadata of a new array, from what is asked for."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from grids import ChunkGrid, ChunkLayout, SeparableGrid
from virtualzarr.codecs import Pipeline
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.keywords import check_keywords, parameters_of
from virtualzarr.metadata import fill
from virtualzarr.metadata.create import codecs
from virtualzarr.metadata.create.grid import new_grid
from virtualzarr.metadata.dimension_units import UNITS, dimension_units, format_unit
from virtualzarr.metadata.dtypes import BYTES, STRING
from virtualzarr.metadata.dtypes_v3 import dtype_from_v3
from virtualzarr.metadata.json_documents import member, short
from virtualzarr.metadata.keys import KeyEncoding
from virtualzarr.metadata.model import ArrayMetadata


class _Zero:
    """Stands for the zero of whatever data type, and for "not a time" of times."""

    def __repr__(self) -> str:
        return "zero"


ZERO: Any = _Zero()
"""The fill value of arrays for which none is asked: zero, false, empty, or not a time."""


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
    """Return parameters of an array with all that were left out: chosen, or of no matter.

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


def new_attributes(params: ArrayParams, ndim: int) -> dict[str, Any]:
    """Return the attributes of an array as JSON values, units of dimensions among them."""
    attributes: dict[str, Any] = plain_json(params["attributes"] or {})
    if params["dimension_units"] is not None:
        with member("dimension_units"):
            attributes[UNITS] = [
                format_unit(plain_json(unit)) for unit in params["dimension_units"]
            ]
        dimension_units(attributes, ndim)
    return attributes


def split_shards(shards: Any) -> tuple[Any, str]:
    """Return how shards are cut, and where their index is, "start" or "end"."""
    # A mapping with a shape is as zarr-python has it; other mappings are grids.
    if isinstance(shards, Mapping) and "shape" in shards:
        return shards["shape"], shards.get("index_location", "end")
    return shards, "end"


def codec_parts(params: ArrayParams) -> dict[str, Any]:
    """Return filters, serializer and compressors, given one by one or as all codecs at once."""
    parts: dict[str, Any] = {name: params[name] for name in _CODEC_PARTS}  # type: ignore[literal-required]
    if params["codecs"] is None:
        return parts
    for name, value in parts.items():
        if not (isinstance(value, str) and value == "auto"):
            raise MetadataError(f"{name}: the codecs are given already, all of them")
    return codecs.split_codecs(params["codecs"])


def inner_order(params: ArrayParams, ndim: int) -> tuple[int, ...] | None:
    """Return the order of axes asked for, by `order` or by the layout."""
    order = params["order"]
    if order not in (None, "C", "F"):
        raise MetadataError(f"order: must be 'C' or 'F', not {short(order)}")
    preferred = ChunkLayout.from_params(params["layout"]).choose_order(ndim)
    axes = tuple(range(ndim))
    explicit = {None: None, "C": axes, "F": axes[::-1]}[order]
    if explicit is not None and preferred is not None and explicit != preferred:
        raise MetadataError(f"order: {order} is asked for, and also inner_order {preferred}")
    return preferred if explicit is None else explicit


def new_key_encoding(encoding: Any, separator: str | None, zarr_format: int) -> KeyEncoding:
    """Return how chunks are named, from `chunk_key_encoding` and `dimension_separator`."""
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


def new_array(params: ArrayParams) -> ArrayMetadata:
    """Return the metadata of a new array, with everything that is left open chosen.

    Raises
    ------
    MetadataError, UnsupportedError, CodecError
        What is asked for is malformed, contradicts itself, or cannot be had in the Zarr format;
        the message names the argument.

    Examples
    --------
    >>> metadata = new_array(ArrayParams(shape=(1000, 2000, 3000), dtype="u2"))
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
    keep_order = stored.names is not None or stored.hasobject
    dtype = stored if keep_order else stored.newbyteorder("=")
    with member("chunks"):
        grid, inner = new_grid(
            shape,
            params["chunks"],
            split_shards(params["shards"])[0],
            params["layout"],
            zarr_format=zarr_format,
            inner=codecs.sharding_in(codec_parts(params), len(shape)),
            each=_numbers(dtype),
        )
    pipeline = (_pipeline_v2 if zarr_format == 2 else _pipeline_v3)(params, grid, stored, inner)
    names, value = params["dimension_names"], params["fill_value"]
    if value is ZERO or (value is None and zarr_format == 3):
        value = fill.default_fill(dtype)
    metadata = ArrayMetadata(
        shape=shape,
        dtype=dtype,
        grid=grid,
        pipeline=pipeline,
        fill_value=value,
        dimension_names=None if names is None else tuple(names),
        attributes=new_attributes(params, len(shape)),
        zarr_format=zarr_format,
        key_encoding=new_key_encoding(
            params["chunk_key_encoding"], params["dimension_separator"], zarr_format
        ),
    )
    _check_blocks(metadata)
    return metadata


def _numbers(dtype: np.dtype) -> int:
    """Return how many numbers an element has in that of its fields that has most."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return math.prod(shape) * _numbers(base)
    return max((_numbers(dtype[name]) for name in dtype.names or ()), default=1)


def plain_json(value: Any) -> Any:
    """Return a value with numpy's numbers and arrays as Python's.

    Examples
    --------
    >>> plain_json({"scale": np.float64(0.5), "range": np.arange(2)})
    {'scale': 0.5, 'range': [0, 1]}
    """
    if isinstance(value, Mapping):
        return {key: plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value


def as_shape(value: Any) -> tuple[int, ...]:
    """Return a shape from integers, or from one."""
    try:
        return (operator.index(value),)
    except TypeError:
        return tuple(value) if isinstance(value, list | tuple | np.ndarray) else value


def as_dtype(value: Any) -> np.dtype:
    """Return the dtype that a user means, in the byte order given.

    Parameters
    ----------
    value : dtype-like, str or mapping
        What numpy takes, or a v3 data type; `str` and ``"string"`` are strings of any length,
        `bytes` and ``"bytes"`` byte strings of any length.

    Examples
    --------
    >>> as_dtype(">i2"), as_dtype("float32"), as_dtype(str).metadata
    (dtype('>i2'), dtype('float32'), mappingproxy({'vlen': <class 'str'>}))
    """
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


def _pipeline_v3(
    params: ArrayParams, grid: ChunkGrid, stored: np.dtype, inner: tuple[int, ...] | None
) -> Pipeline:
    dtype = stored if stored.names or stored.hasobject else stored.newbyteorder("=")
    parts, order = codec_parts(params), inner_order(params, grid.ndim)
    given = codecs.sharding_in(parts, grid.ndim) is not None
    if given and inner is not None:
        parts = codecs.with_sub_chunks(parts, inner)
    pipeline = codecs.new_pipeline(dtype, grid.ndim, inner_order=order, **parts)
    if inner is None or given:
        return pipeline
    return codecs.sharded(pipeline, inner, split_shards(params["shards"])[1])


def _pipeline_v2(
    params: ArrayParams, grid: ChunkGrid, stored: np.dtype, inner: tuple[int, ...] | None
) -> Pipeline:
    if params["codecs"] is not None:
        raise UnsupportedError("codecs: Zarr v2 has filters and a compressor; give those")
    chunk_shape = getattr(grid, "chunk_shape", None)
    if chunk_shape is None:
        raise UnsupportedError("chunks: Zarr v2 has only chunks of one shape; use zarr_format=3")
    order, explicit = inner_order(params, grid.ndim), params["order"] is not None
    if order is None or not (explicit or ChunkLayout.from_params(params["layout"]).inner_order):
        # v2 has the orders C and F only: one that is only preferred gives way.
        order = tuple(range(grid.ndim)) if order not in _orders(grid.ndim) else order
    memory_order = codecs.memory_order(order)
    return codecs.new_pipeline_v2(stored, chunk_shape, order=memory_order, **codec_parts(params))


def _orders(ndim: int) -> tuple[tuple[int, ...], ...]:
    axes = tuple(range(ndim))
    return axes, axes[::-1]


def _check_blocks(metadata: ArrayMetadata) -> None:
    """Refuse codecs that cannot encode the array's chunks, before there are any."""
    grid = metadata.grid
    if not isinstance(grid, SeparableGrid) or not all(len(axis.edges) for axis in grid.axes):
        return  # or no edge is known before something is appended
    edges = tuple(int(axis.edges[0]) for axis in grid.axes)
    metadata.pipeline.for_block(edges, metadata.dtype)
