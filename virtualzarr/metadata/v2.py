"""Zarr v2 array documents (`.zarray`, `.zattrs`), parsed and written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import grids
from virtualzarr.codecs import Pipeline
from virtualzarr.codecs.core.byte_order import native
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata import fill, repair
from virtualzarr.metadata.chunk_key_encoding import KeyEncoding
from virtualzarr.metadata.dtypes import BYTES, STRING
from virtualzarr.metadata.dtypes_v2 import dtype_from_v2, dtype_to_v2
from virtualzarr.metadata.json_documents import (
    as_lengths,
    as_list,
    as_object,
    member,
    require,
    require_format,
    short,
)
from virtualzarr.metadata.model import ArrayMetadata, has_codec

DIMENSIONS = "_ARRAY_DIMENSIONS"  # where xarray keeps dimension names in v2

_MEMBERS = (
    *("zarr_format", "shape", "chunks", "dtype", "compressor", "fill_value", "order", "filters"),
    "dimension_separator",
)


def parse_array_v2(
    zarray: Mapping[str, Any], zattrs: Mapping[str, Any] | None = None
) -> ArrayMetadata:
    """Read the v2 documents of an array: `.zarray`, and `.zattrs` where there is one.

    Source: Zarr v2 specification, array metadata.

    Raises
    ------
    MetadataError
        A document breaks the specification; the message names the member.
    UnsupportedError
        It needs something this package does not have, such as a codec; the message names it.
    """
    # In order of dependence, so that the first error names the member at fault: chunks are checked
    # against the shape, codecs against dtype and chunks, and base64 of the fill value has the byte
    # order of the stored dtype.
    with member(".zarray"):
        zarray = repair.missing_members(as_object(zarray))
        require_format(zarray, 2)
        require(zarray, *_MEMBERS[:5])
        with member("shape"):
            shape = as_lengths(zarray["shape"])
        with member("chunks"):
            chunks = repair.zero_chunks(zarray["chunks"], shape)
            grid = grids.RegularGrid(shape, as_lengths(chunks))
        with member("dtype"):
            stored = _resolve_vlen(dtype_from_v2(zarray["dtype"]), zarray["filters"])
        pipeline = _parse_pipeline(zarray, stored, grid.chunk_shape)
        with member("fill_value"):
            value = fill.fill_from_json(zarray["fill_value"], stored, 2)
    attributes, names = _split_names(parse_attributes(zattrs), len(shape))
    # v2 has the byte order in the dtype, v3 in a codec: the model has it in the pipeline, but for
    # structured dtypes, whose fields may differ in it.
    return ArrayMetadata(
        shape=shape,
        dtype=native(stored),
        grid=grid,
        pipeline=pipeline,
        fill_value=value,
        dimension_names=names,
        attributes=attributes,
        zarr_format=2,
        key_encoding=_parse_key_encoding(zarray),
        extra={name: zarray[name] for name in zarray if name not in _MEMBERS},
    )


def parse_attributes(zattrs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Read `.zattrs`, which need not be there."""
    with member(".zattrs"):
        return {} if zattrs is None else as_object(zattrs)


def _resolve_vlen(dtype: np.dtype, filters: Any) -> np.dtype:
    """Return a dtype of text or of byte strings by the filter that writes them.

    To numpy both are "|O", and so is anything else that Python can pickle.
    """
    if dtype.kind != "O":
        return dtype
    filters = filters if isinstance(filters, list | tuple) else ()
    ids = [f.get("id") for f in filters if isinstance(f, Mapping)]
    if "vlen-utf8" in ids or "categorize" in ids:
        return STRING
    return BYTES if "vlen-bytes" in ids else dtype


def _parse_pipeline(
    zarray: Mapping[str, Any], stored: np.dtype, chunk_shape: tuple[int, ...]
) -> Pipeline:
    order, compressor, filters = zarray["order"], zarray["compressor"], zarray["filters"]
    if order not in ("C", "F"):
        raise MetadataError(f"order: must be 'C' or 'F', not {short(order)}")
    with member("compressor"):
        if compressor is not None:
            _check_codec(compressor)
    with member("filters"):
        filters = [] if filters is None else as_list(filters)
        for i, codec in enumerate(filters):
            with member(f"[{i}]"):
                _check_codec(codec)
    with member("filters and compressor"):
        pipeline = Pipeline.from_v2(filters, compressor, order, stored, shape=chunk_shape)
    is_categorical = has_codec(pipeline, "numcodecs.categorize")
    if stored.hasobject and has_codec(pipeline, "bytes") and not is_categorical:
        raise MetadataError("filters: dtype '|O' needs an object codec here, such as vlen-utf8")
    return pipeline


def _check_codec(value: Any) -> None:
    if not isinstance(as_object(value).get("id"), str):
        raise MetadataError(f"id: must be a string, not {short(value.get('id'))}")


def _parse_key_encoding(zarray: Mapping[str, Any]) -> KeyEncoding:
    separator = zarray.get("dimension_separator", ".")
    if separator not in (".", "/"):
        raise MetadataError(
            f".zarray: dimension_separator: must be '.' or '/', not {short(separator)}"
        )
    return KeyEncoding("v2", separator)


def _split_names(
    attributes: dict[str, Any], ndim: int
) -> tuple[dict[str, Any], tuple[str, ...] | None]:
    """Split dimension names from the attributes; a value that cannot be names stays there."""
    # `_ARRAY_DIMENSIONS` is a convention of xarray, not of the v2 spec: a wrong one is no error,
    # and is written back as it was.
    names = attributes.get(DIMENSIONS)
    if not isinstance(names, list) or len(names) != ndim:
        return attributes, None
    if not all(isinstance(name, str) for name in names):
        return attributes, None
    return {k: v for k, v in attributes.items() if k != DIMENSIONS}, tuple(names)


def array_to_v2(metadata: ArrayMetadata) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the v2 documents `.zarray` and `.zattrs` of an array.

    Raises
    ------
    UnsupportedError
        v2 has no form for the array; the message says why.
    """
    chunk_shape = _get_chunk_shape(metadata.grid)
    # v2 keys have no prefix "c/": a document alone does not rename the chunks that are stored.
    if metadata.key_encoding.name != "v2":
        raise UnsupportedError(
            "dimension_separator: the chunk keys are those of the v3 encoding 'default'; "
            "call as_format(2) first where no chunks are stored under them"
        )
    # The codecs decide the stored dtype: `bytes` its byte order, `transpose` the member `order`.
    with member("codecs"):
        form = metadata.pipeline.to_v2(metadata.dtype, metadata.ndim, shape=chunk_shape)
    stored = np.dtype(form["dtype"])
    with member("dtype"):
        dtype = dtype_to_v2(stored)
    with member("fill_value"):
        value = fill.fill_to_json(metadata.fill_value, stored, 2)
    zarray = {
        "shape": list(metadata.shape),
        "chunks": list(chunk_shape),
        "dtype": dtype,
        "fill_value": value,
        "order": form["order"],
        # v2 spec: null, not [], where there are none.
        "filters": form["filters"] or None,
        "dimension_separator": metadata.key_encoding.separator,
        "compressor": form["compressor"],
        "zarr_format": 2,
        **(metadata.extra if metadata.zarr_format == 2 else {}),
    }
    return zarray, _attributes_v2(metadata)


def _get_chunk_shape(grid: grids.ChunkGrid) -> tuple[int, ...]:
    """Return the chunk shape of a grid with chunks of one shape, whatever its name."""
    if isinstance(grid, grids.RegularGrid):
        return grid.chunk_shape
    edges = [axis.uniform for axis in grid.axes] if isinstance(grid, grids.SeparableGrid) else [0]
    if not all(edges):
        raise UnsupportedError(f"chunks: v2 has only chunks of one shape, not {short(grid)}")
    return tuple(int(edge) for edge in edges if edge)


def _attributes_v2(metadata: ArrayMetadata) -> dict[str, Any]:
    attributes, names = dict(metadata.attributes), metadata.dimension_names
    if names is None:
        return attributes
    if None in names:
        raise UnsupportedError(
            f"dimension_names: {names} has an unnamed dimension, which {DIMENSIONS} cannot hold; "
            "name all of them, or none"
        )
    attributes.pop(DIMENSIONS, None)
    return attributes | {DIMENSIONS: list(names)}
