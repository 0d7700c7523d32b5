"""Zarr v3 array documents (`zarr.json`), parsed and written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import grids
from virtualzarr.codecs import Pipeline, codec_from_v3
from virtualzarr.codecs.core.base import ArrayArray
from virtualzarr.codecs.core.byte_order import has_order
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata import fill, json_documents, repair
from virtualzarr.metadata.chunk_key_encoding import KeyEncoding
from virtualzarr.metadata.dtypes import list_leaves
from virtualzarr.metadata.dtypes_v3 import dtype_from_v3, dtype_to_v3
from virtualzarr.metadata.model import ArrayMetadata
from virtualzarr.metadata.storage_transformers import check_transformers, transformers_from_v3

_ARRAY_MEMBERS = (
    *("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding"),
    *("fill_value", "codecs", "attributes", "storage_transformers", "dimension_names"),
)


def parse_array_v3(document: Mapping[str, Any]) -> ArrayMetadata:
    """Read the v3 document of an array.

    Source: Zarr v3 core specification, array metadata.

    Raises
    ------
    MetadataError
        The document breaks the specification; the message names the member.
    UnsupportedError
        It needs something this package does not have, such as a data type; the message names it.
    """
    # In order of dependence: an unknown storage transformer changes what all other members mean,
    # the repair of zero chunk lengths needs the codecs, and base64 of the fill value their order.
    with json_documents.member("zarr.json"):
        document = repair.null_members(json_documents.as_object(document))
        transformers = transformers_from_v3(document.get("storage_transformers", []))
        members = (*_ARRAY_MEMBERS, *(transformer["name"] for transformer in transformers))
        check_node(document, "array", members)
        json_documents.require(document, *_ARRAY_MEMBERS[2:8])
        with json_documents.member("shape"):
            shape = json_documents.as_lengths(document["shape"])
        with json_documents.member("data_type"):
            dtype = dtype_from_v3(document["data_type"])
        with json_documents.member("codecs"):
            pipeline = _parse_pipeline(repair.missing_typesize(document["codecs"], dtype.itemsize))
            codecs = pipeline.to_v3(len(shape))
            _check_endian(codecs, document["data_type"], _find_stored_dtype(pipeline, dtype))
        with json_documents.member("chunk_grid"):
            grid = _parse_grid(document["chunk_grid"], shape, codecs)
        with json_documents.member("chunk_key_encoding"):
            _check_understood(document["chunk_key_encoding"])
            key_encoding = KeyEncoding.from_json(document["chunk_key_encoding"])
        with json_documents.member("fill_value"):
            value = repair.number_for_bool(document["fill_value"], dtype)
            serializer = _find_configuration(codecs, "bytes") or {}
            value = fill.fill_from_json(value, dtype, 3, endian=serializer.get("endian"))
        with json_documents.member("attributes"):
            attributes = json_documents.as_object(document.get("attributes", {}))
        metadata = ArrayMetadata(
            shape=shape,
            dtype=dtype,
            grid=grid,
            pipeline=pipeline,
            fill_value=value,
            dimension_names=_dimension_names(document),
            attributes=attributes,
            zarr_format=3,
            key_encoding=key_encoding,
            extra={name: document[name] for name in document if name not in members},
            storage_transformers=transformers,
        )
        check_transformers(metadata)
        return metadata


def check_node(document: Mapping[str, Any], node_type: str, members: tuple[str, ...]) -> None:
    """Check the kind of node, and that a document has no members that must be understood."""
    json_documents.require_format(document, 3)
    json_documents.require(document, "node_type")
    if document["node_type"] != node_type:
        raise MetadataError(
            f"node_type: must be {node_type!r}, not {json_documents.short(document['node_type'])}"
        )
    # v3 core, "Extension points": only an object that says so may be ignored by readers.
    for name, value in document.items():
        optional = isinstance(value, Mapping) and value.get("must_understand") is False
        if name not in members and not optional:
            raise UnsupportedError(
                f"{name}: an unknown member that does not say must_understand: false"
            )


def _check_understood(value: Any) -> None:
    """Raise for `must_understand: false` where the specification does not allow it."""
    if isinstance(value, Mapping) and value.get("must_understand", True) is not True:
        raise MetadataError("must_understand: must be true here")


def _parse_grid(
    value: Any, shape: tuple[int, ...], codecs: list[dict[str, Any]]
) -> grids.ChunkGrid:
    _check_understood(value)
    if isinstance(value, str):
        value = {"name": value}
    value = {k: v for k, v in json_documents.as_object(value).items() if k != "must_understand"}
    configuration = value.get("configuration")
    if value.get("name") == "regular" and isinstance(configuration, Mapping):
        inner = (_find_configuration(codecs, "sharding_indexed") or {}).get("chunk_shape", [])
        chunk_shape = repair.zero_chunks(configuration.get("chunk_shape"), shape, inner)
        value["configuration"] = {**configuration, "chunk_shape": chunk_shape}
    value = repair.plain_edges(repair.lists_in_regular_grid(value))
    return grids.from_json(value, shape)


def _parse_pipeline(value: Any) -> Pipeline:
    codecs = []
    for i, codec in enumerate(json_documents.as_list(value)):
        with json_documents.member(f"[{i}]"):
            codecs.append(codec_from_v3(codec))
    return Pipeline(tuple(codecs))


def _find_configuration(codecs: list[dict[str, Any]], name: str) -> Mapping[str, Any] | None:
    """Return the configuration of the first codec of that name, looking into shards."""
    for codec in codecs:
        configuration: Mapping[str, Any] = codec.get("configuration", {})
        if codec["name"] == name:
            return configuration
        if codec["name"] == "sharding_indexed":
            return _find_configuration(configuration["codecs"], name)
    return None


def _find_stored_dtype(pipeline: Pipeline, dtype: np.dtype) -> np.dtype:
    """Return the dtype of elements after the array-to-array codecs, which `bytes` encodes."""
    for codec in pipeline.codecs:
        if isinstance(codec, ArrayArray):
            dtype = codec.encode_dtype(dtype)
    return dtype


def _check_endian(codecs: list[dict[str, Any]], data_type: Any, dtype: np.dtype) -> None:
    """Raise for a `bytes` codec without byte order where elements have more than one byte.

    v3 core, "bytes": `endian` is required for those. To guess it could give wrong numbers.
    """
    name = data_type.get("name") if isinstance(data_type, Mapping) else data_type
    if name == "structured":  # zarr-python up to 3.1 left it out and meant little
        return
    configuration = _find_configuration(codecs, "bytes")
    ordered = any(has_order(leaf) for leaf in list_leaves(dtype))
    if configuration is not None and ordered and "endian" not in configuration:
        raise MetadataError(
            f"bytes: endian: missing, and elements of {json_documents.short(name)} need it"
        )


def _dimension_names(document: Mapping[str, Any]) -> tuple[Any, ...] | None:
    if "dimension_names" not in document:
        return None
    with json_documents.member("dimension_names"):
        return tuple(json_documents.as_list(document["dimension_names"]))


def array_to_v3(metadata: ArrayMetadata) -> dict[str, Any]:
    """Return the v3 document of an array.

    A fill value of None is written as zero, which is what it reads as.

    Raises
    ------
    UnsupportedError
        v3 has no form for the array; the message says why.
    """
    # v2 allows null as fill value, v3 does not: zero, as zarr-python reads null.
    dtype, codecs = _struct_order(metadata)
    with json_documents.member("data_type"):
        data_type = dtype_to_v3(dtype)
    value = fill.default_fill(dtype) if metadata.fill_value is None else metadata.fill_value
    with json_documents.member("fill_value"):
        fill_value = fill.fill_to_json(value, dtype, 3)
    document: dict[str, Any] = {
        "shape": list(metadata.shape),
        "data_type": data_type,
        "chunk_grid": metadata.grid.to_json(),
        "chunk_key_encoding": metadata.key_encoding.to_json(),
        "fill_value": fill_value,
        "codecs": codecs,
        "attributes": dict(metadata.attributes),
    }
    if metadata.dimension_names is not None:
        document["dimension_names"] = list(metadata.dimension_names)
    document |= {"zarr_format": 3, "node_type": "array"}
    document["storage_transformers"] = [dict(entry) for entry in metadata.storage_transformers]
    # Readers that pass over transformers they do not know, as zarr-python does in groups, refuse
    # members that they do not know.
    document |= {t["name"]: {"must_understand": True} for t in metadata.storage_transformers}
    return document | optional_members(metadata.extra)


def _struct_order(metadata: ArrayMetadata) -> tuple[np.dtype, list[dict[str, Any]]]:
    """Return dtype and codecs; where all fields have one byte order, the codec has it instead."""
    dtype, codecs = metadata.dtype, metadata.pipeline.to_v3(metadata.ndim)
    if dtype.names is None:
        return dtype, codecs
    # v3 data types have no byte order, not even those of fields: `bytes` has one for all. A native
    # dtype and its order in the codec say the same as the v2 dtype did.
    native = "little" if np.dtype("=i2").str[0] == "<" else "big"
    orders = {
        native if leaf.isnative else {"little": "big", "big": "little"}[native]
        for leaf in list_leaves(dtype)
        if has_order(leaf)
    }
    serializer = _find_configuration(codecs, "bytes")
    if serializer is None or serializer.get("endian") is not None or not orders:
        return dtype.newbyteorder("="), codecs
    if len(orders) > 1:
        raise UnsupportedError("data_type: fields of both byte orders; v3 has one for all")
    return dtype.newbyteorder("="), _with_endian(codecs, orders.pop())


def _with_endian(codecs: list[dict[str, Any]], endian: str) -> list[dict[str, Any]]:
    result = []
    for codec in codecs:
        configuration = dict(codec.get("configuration", {}))
        if codec["name"] == "bytes":
            configuration["endian"] = endian
        elif codec["name"] == "sharding_indexed":
            configuration["codecs"] = _with_endian(configuration["codecs"], endian)
        result.append({**codec, "configuration": configuration} if configuration else codec)
    return result


def optional_members(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the extra members that a v3 document may have: v2 allows any, v3 only some."""
    return {
        name: value
        for name, value in extra.items()
        if isinstance(value, Mapping) and value.get("must_understand") is False
    }
