"""Repairs of invalid documents in the wild: the only module that reads documents leniently.

Each function takes a member as stored and returns it as the specification has it, or unchanged.
Whatever it leaves broken, the strict parsers refuse. Drafts are read, too: spellings of the
examples of ZEP 6 that no Zarr format has.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from virtualzarr.codecs.core.numbers import number_format
from virtualzarr.metadata.dtypes_v2 import dtype_from_v2
from virtualzarr.metadata.dtypes_v3 import dtype_to_v3


def zero_chunks(chunks: Any, shape: Sequence[int], units: Any = ()) -> Any:
    """Read a chunk length 0 of an empty axis as 1 (or the inner chunk length), as zarr-python does.

    Old writers stored it for axes of length 0; no chunk can have been written under it.
    """
    if not isinstance(chunks, list | tuple) or len(chunks) != len(shape):
        return chunks
    return [
        (units[i] if i < len(units) else 1) if _is_zero(edge) and not shape[i] else edge
        for i, edge in enumerate(chunks)
    ]


def _is_zero(edge: Any) -> bool:
    return isinstance(edge, int) and edge == 0


def missing_members(zarray: Mapping[str, Any]) -> dict[str, Any]:
    """Add the v2 members that writers leave out: netcdf-c `fill_value`, others `filters`, too."""
    return {"fill_value": None, "filters": None, "order": "C", **zarray}


def null_members(document: Mapping[str, Any]) -> dict[str, Any]:
    """Drop optional v3 members that are null, which early writers stored for absent ones.

    That of a group's consolidated metadata was among them; in arrays it has no meaning.
    """
    optional = {"attributes", "dimension_names", "storage_transformers"}
    if document.get("node_type") == "group":
        optional.add("consolidated_metadata")
    return {k: v for k, v in document.items() if not (v is None and k in optional)}


def bare_tokens(value: Any) -> Any:
    """Spell the bare tokens NaN and Infinity, which are not JSON, as the strings they should be."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list | tuple):
        return [bare_tokens(item) for item in value]
    return value


def number_for_bool(value: Any, dtype: np.dtype) -> Any:
    """Read a fill value 0 or 1 of a bool array as a bool.

    Other languages write it in v2, and zarr-python 3.0 wrote what it was given in v3.
    """
    if dtype.kind == "b" and not isinstance(value, bool) and value in (0, 1):
        return bool(value)
    return value


def integral_float(value: Any, dtype: np.dtype) -> Any:
    """Read a v2 fill value such as 0.0 of an integer array as the integer it equals exactly."""
    # Beyond 2**53 a float stands for several integers: which was meant cannot be told.
    if dtype.kind in "iu" and isinstance(value, float) and value.is_integer():
        return int(value) if abs(value) < 2**53 else value
    return value


def zero_for_text(value: Any, dtype: np.dtype) -> Any:
    """Read a v2 fill value 0, zarr-python 2's default for any data type, or "" as zero bytes."""
    is_any_object = dtype.kind == "O" and "vlen" not in (dtype.metadata or {})
    if is_any_object or dtype.kind not in "SUVO" or number_format(dtype) is not None:
        return value
    zero = isinstance(value, int | float) and not isinstance(value, bool) and value == 0
    if dtype.kind == "V" and (zero or value == ""):
        return base64.b64encode(bytes(dtype.itemsize)).decode("ascii")
    return "" if zero else value


_WITH_CODECS = ("sharding_indexed", "n5_default")
_CHANGED = ("blosc", *_WITH_CODECS)


def missing_typesize(codecs: Any, itemsize: int) -> Any:
    """Add the `typesize` that v3 blosc codecs need for writing if they shuffle, also in shards.

    Stored buffers say it themselves, which is why zarr-python and others read without it.
    """
    if not isinstance(codecs, list | tuple):
        return codecs
    return [_with_typesize(codec, itemsize) for codec in codecs]


def _with_typesize(codec: Any, itemsize: int) -> Any:
    # The v3 spec of blosc requires `typesize` if it shuffles. Here rather than in the codec, which
    # does not see the data type; c-blosc takes up to 255 and treats more as 1.
    name = codec.get("name") if isinstance(codec, Mapping) else codec
    if name not in _CHANGED:
        return codec
    members = codec if isinstance(codec, Mapping) else {"name": codec}
    configuration = members.get("configuration") or {}
    if not isinstance(configuration, Mapping):
        return codec
    if name in _WITH_CODECS:
        if "codecs" not in configuration:
            return codec
        inside = missing_typesize(configuration["codecs"], itemsize)
        return {**members, "configuration": {**configuration, "codecs": inside}}
    if configuration.get("shuffle") == "noshuffle" or configuration.get("typesize") is not None:
        return codec
    typesize = itemsize if 1 <= itemsize <= 255 else 1
    return {**members, "configuration": {**configuration, "typesize": typesize}}


def lists_in_regular_grid(grid: Any) -> Any:
    """Read a regular grid with lists of edges as the rectilinear grid zarr-python 3.2 meant."""
    if not isinstance(grid, Mapping) or grid.get("name") != "regular":
        return grid
    configuration = grid.get("configuration")
    edges = configuration.get("chunk_shape") if isinstance(configuration, Mapping) else None
    if not isinstance(edges, list) or not any(isinstance(edge, list) for edge in edges):
        return grid
    return {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": edges}}


def plain_edges(grid: Any) -> Any:
    """Read the edges true and 4.0 of a rectilinear grid, which pass some validators, as 1 and 4."""
    if not isinstance(grid, Mapping) or grid.get("name") != "rectilinear":
        return grid
    configuration = grid.get("configuration")
    if not isinstance(configuration, Mapping):
        return grid
    edges = _plain(configuration.get("chunk_shapes"))
    return {**grid, "configuration": {**configuration, "chunk_shapes": edges}}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if value is True or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value


_BYTE_ORDERS = {"<": "little", ">": "big"}


def empty_filters(document: Mapping[str, Any]) -> dict[str, Any]:
    """Read the v2 filters `{}` as none."""
    if document.get("filters") == {}:
        return {**document, "filters": None}
    return dict(document)


def early_names(document: Mapping[str, Any]) -> dict[str, Any]:
    """Read a v3 data type in v2's spelling, such as `|u1`, and the codec name `GZip`.

    Documents of that age also lack the codec that turns elements into bytes: it is inserted with
    the byte order of the data type.
    """
    # Early drafts of v3 had v2's data types, with a byte order; final v3 has it in that codec.
    data_type = document.get("data_type")
    if not isinstance(data_type, str) or data_type[:1] not in ("|", "<", ">"):
        return dict(document)
    stored = dtype_from_v2(data_type)
    codecs = document.get("codecs")
    if isinstance(codecs, list | tuple):
        codecs = [_lower(codec) for codec in codecs]
        if not any(codec.get("name") == "bytes" for codec in codecs if isinstance(codec, dict)):
            endian = _BYTE_ORDERS.get(data_type[0])
            configuration = {"configuration": {"endian": endian}} if endian else {}
            codecs.insert(0, {"name": "bytes", **configuration})
    return {**document, "data_type": dtype_to_v3(stored.newbyteorder("=")), "codecs": codecs}


def _lower(codec: Any) -> Any:
    if isinstance(codec, Mapping) and isinstance(codec.get("name"), str):
        return {**codec, "name": codec["name"].lower()}
    return codec
