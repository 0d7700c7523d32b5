"""Codec pipelines of new arrays, from codecs in the notation of any library or Zarr format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from virtualzarr.codecs import Codec, Pipeline, codec_from_v2, codec_from_v3, make
from virtualzarr.codecs.core.base import ArrayArray, ArrayBytes, ChunkSpec
from virtualzarr.codecs.core.byte_order import has_order
from virtualzarr.codecs.sharding import INDEX_CODECS, Sharding
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata.create import shards
from virtualzarr.metadata.dtypes import vlen_kind
from virtualzarr.metadata.json_documents import as_object, member, short

DEFAULT_COMPRESSOR = make("zstd", level=0, checksum=False)
SHARDING = "sharding_indexed"


def as_codec(value: Any, zarr_format: int = 3) -> Codec:
    """Return the codec of any notation.

    Parameters
    ----------
    value : Codec, str, mapping, or a codec object of zarr-python or numcodecs
        A name alone stands for the default configuration; mappings are as in v3 documents
        (``name``) or as in v2 documents (``id``). A sharding codec may leave out any member.
    zarr_format : {2, 3}
        The format whose codec names a bare name is looked up in.

    Examples
    --------
    >>> as_codec({"name": "gzip", "configuration": {"level": 5}}), as_codec({"id": "lz4"})
    (gzip(level=5), numcodecs.lz4())
    """
    if isinstance(value, Codec):
        return value
    if isinstance(value, str) and value != SHARDING:
        return make(value) if zarr_format == 3 else codec_from_v2({"id": value})
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping):
        # zarr-python's codecs, some of which wrap numcodecs', and numcodecs' own.
        for method in ("to_dict", "get_config"):
            if callable(getattr(value, method, None)):
                return as_codec(getattr(value, method)())
        raise MetadataError(f"not a codec: {short(value)}")
    if value.get("name") == SHARDING and not set(value) - {"name", "configuration"}:
        return shards.ShardingRequest(SHARDING, as_object(value.get("configuration") or {}))
    return codec_from_v2(value) if "id" in value else codec_from_v3(value)


def as_list(value: Any) -> list[Any]:
    """Return the codecs of one argument, which may be None, one codec or several, as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def parse_codecs(value: Any, name: str, kind: str, default: Sequence[Codec]) -> list[Codec]:
    """Return the codecs of one argument, which must all be of one kind; "auto" is the default."""
    if isinstance(value, str) and value == "auto":
        return list(default)
    codecs = []
    for i, item in enumerate(as_list(value)):
        with member(f"{name}[{i}]"):
            codec = as_codec(item)
            if codec.kind != kind:
                raise MetadataError(f"codec {codec.name} is from {codec.kind.replace('_', ' to ')}")
        codecs.append(codec)
    return codecs


def build_pipeline(
    dtype: np.dtype,
    ndim: int,
    *,
    filters: Any = "auto",
    serializer: Any = "auto",
    compressors: Any = "auto",
    inner_order: tuple[int, ...] | None = None,
) -> Pipeline:
    """Return the v3 codecs of chunks; an inner order is that of the chunks within shards."""
    # Of the shape, codecs here only take the number of axes.
    return Pipeline(
        _build_chain(ChunkSpec((1,) * ndim, dtype), filters, serializer, compressors, inner_order)
    )


def _build_chain(
    spec: ChunkSpec,
    filters: Any,
    serializer: Any,
    compressors: Any,
    inner_order: tuple[int, ...] | None = None,
) -> list[Codec]:
    """Return the codecs of a chain, their open parameters chosen for arrays of `spec`."""
    # v3 core, "Codecs": array-to-array codecs, exactly one array-to-bytes codec, then
    # bytes-to-bytes ones. Each array-to-array codec may change shape and dtype, so the defaults of
    # those behind depend on the spec that it leaves.
    chain = list(parse_codecs(filters, "filters", "array_array", ()))
    axes = tuple(range(len(spec.shape)))
    if inner_order is not None and any(codec.name == "transpose" for codec in chain):
        if shards.find_axis_order(chain, len(axes)) != tuple(inner_order):
            raise MetadataError("filters: a transpose, and another order besides")
        inner_order = None
    elif inner_order not in (None, axes) and not _is_sharding(serializer):
        chain.append(make("transpose", order=list(inner_order)))
    for i, codec in enumerate(chain):
        assert isinstance(codec, ArrayArray)
        codec = chain[i] = codec.resolve(spec)
        spec = codec.encode_spec(spec)  # type: ignore[attr-defined]
    chosen = parse_codecs(serializer, "serializer", "array_bytes", [choose_serializer(spec.dtype)])
    if len(chosen) != 1:
        raise MetadataError("serializer: there must be exactly one codec from array to bytes")
    if chosen[0].name.startswith("vlen-") and not spec.dtype.hasobject:
        raise MetadataError(f"serializer: {chosen[0].name} is not for elements of {spec.dtype}")
    # It is the sub-chunks that are compressed, so that each can be read alone.
    default = [] if chosen[0].name == SHARDING else [DEFAULT_COMPRESSOR]
    last = parse_codecs(compressors, "compressors", "bytes_bytes", default)
    compress = isinstance(compressors, str)
    chain.append(_complete_serializer(chosen[0], spec, compress, inner_order))
    return [*chain, *(codec.resolve(spec) for codec in last)]


def _is_sharding(serializer: Any) -> bool:
    items = [] if isinstance(serializer, str) and serializer == "auto" else as_list(serializer)
    return any(as_codec(item).name == SHARDING for item in items)


def _complete_serializer(
    codec: Codec, spec: ChunkSpec, compress: bool, inner_order: tuple[int, ...] | None
) -> Codec:
    """Return an array-to-bytes codec with its byte order, or with its chains within shards."""

    def complete(codecs: Any, spec: ChunkSpec, within: bool) -> list[Codec]:
        # Compressors outside of the shards that are explicit are all that was wanted.
        default = "auto" if codecs is None and compress else ()
        parts = split_codecs(as_list(codecs))
        parts["compressors"] = parts["compressors"] or default
        return _build_chain(spec, **parts, inner_order=inner_order if within else None)

    if isinstance(codec, shards.ShardingRequest):
        return codec.complete(spec, complete)
    if codec.name == SHARDING and inner_order not in (None, tuple(range(len(spec.shape)))):
        raise MetadataError("order: give the sub-chunks of the sharding codec a transpose instead")
    # A structured dtype without `endian` keeps the byte order of each field.
    if codec.name == "bytes" and not codec.configuration and spec.dtype.names is None:
        return choose_serializer(spec.dtype)
    return codec.resolve(spec)


def choose_serializer(dtype: np.dtype) -> Codec:
    """Return the default array-to-bytes codec, little-endian where elements have a byte order."""
    if vlen_kind(dtype) is None:
        if dtype.hasobject:
            raise UnsupportedError("dtype: Python objects; say str or bytes for their elements")
        if not has_order(dtype):
            return make("bytes")
    return common_serializer(dtype)


def common_serializer(dtype: np.dtype) -> Codec:
    """Return the array-to-bytes codec that readers of both formats have, its order spelled out."""
    kind = vlen_kind(dtype)
    if kind is None:
        return make("bytes", endian="little")
    return make("vlen-utf8" if kind is str else "vlen-bytes")


def split_codecs(codecs: Any) -> dict[str, Any]:
    """Return a list of all v3 codecs as filters, serializer and compressors."""
    parts: dict[str, list[Codec]] = {"array_array": [], "array_bytes": [], "bytes_bytes": []}
    for i, item in enumerate(as_list(codecs)):
        with member(f"codecs[{i}]"):
            codec = as_codec(item)
            parts[codec.kind].append(codec)
    return {
        "filters": parts["array_array"],
        "serializer": parts["array_bytes"] or "auto",
        "compressors": parts["bytes_bytes"],
    }


def shard_pipeline(pipeline: Pipeline, chunk_shape: Sequence[int], index_location: str) -> Pipeline:
    """Return the codecs of shards whose sub-chunks have the codecs of a pipeline."""
    codec = make(
        SHARDING,
        chunk_shape=list(chunk_shape),
        codecs=pipeline.to_v3(len(chunk_shape)),
        index_codecs=list(INDEX_CODECS),
        index_location=index_location,
    )
    return Pipeline([codec])


def find_sub_chunk_shape(parts: Mapping[str, Any], ndim: int) -> tuple[int, ...] | None:
    """Return the sub-chunk shape of the serializer in the array's axes, if it is a sharding codec.

    It is 0 along all axes where it is to be chosen.
    """
    # Filters come before the serializer: behind a transpose its axes are in another order.
    serializer = parts["serializer"]
    for item in () if isinstance(serializer, str) else as_list(serializer):
        codec = as_codec(item)
        if isinstance(codec, shards.ShardingRequest | Sharding):
            if codec.chunk_shape is None:
                return (0,) * ndim
            filters = parse_codecs(parts["filters"], "filters", "array_array", ())
            return shards.to_array_axes(filters, codec.chunk_shape)
    return None


def with_sub_chunks(parts: Mapping[str, Any], chunk_shape: Sequence[int]) -> dict[str, Any]:
    """Return codecs with a sub-chunk shape, in the array's axes, set in the sharding codec."""
    filters = parse_codecs(parts["filters"], "filters", "array_array", ())
    shape = list(shards.to_stored_axes(filters, chunk_shape))
    serializer = [as_codec(item) for item in as_list(parts["serializer"])]
    for i, codec in enumerate(serializer):
        if isinstance(codec, shards.ShardingRequest) and codec.chunk_shape is None:
            members = codec.configuration | {"chunk_shape": shape}
            serializer[i] = shards.ShardingRequest(SHARDING, members)
    return {**parts, "serializer": serializer}


def get_inner_pipeline(pipeline: Pipeline) -> Pipeline:
    """Return the codecs of the chunks within shards, or the pipeline itself without shards."""
    for codec in pipeline.codecs:
        if codec.name == "sharding_indexed":
            return Pipeline.from_v3(codec.configuration["codecs"])
    return pipeline


def without_transposes(pipeline: Pipeline) -> Pipeline:
    """Return the codecs without the transposes of the chunks within the innermost shards.

    Without shards these are the ones of the array's chunks.
    """
    *before, last = pipeline.codecs[: pipeline.codecs.index(pipeline.serializer) + 1]
    after = pipeline.codecs[len(before) + 1 :]
    if isinstance(last, Sharding):
        inside = without_transposes(last.pipeline)
        last = Sharding(last.name, last.configuration | {"codecs": inside})
        return Pipeline([*before, last, *after])
    return Pipeline([*(codec for codec in before if codec.name != "transpose"), last, *after])


def as_memory_order(axes: Sequence[int]) -> str:
    """Return the letter of v2 for an order of axes: C or F."""
    count = len(axes)
    if tuple(axes) == tuple(range(count)):
        return "C"
    if tuple(axes) == tuple(reversed(range(count))):
        return "F"
    raise UnsupportedError(f"inner_order: Zarr v2 has only C and F order, not {tuple(axes)}")


def build_pipeline_v2(
    stored: np.dtype,
    chunk_shape: tuple[int, ...],
    *,
    filters: Any = "auto",
    serializer: Any = "auto",
    compressors: Any = "auto",
    order: str = "C",
) -> Pipeline:
    """Return the codecs of a v2 array; `stored` is the dtype with its byte order."""
    if not (isinstance(serializer, str) and serializer == "auto"):
        raise UnsupportedError("serializer: Zarr v2 has none; give filters, or use zarr_format=3")
    # v2 has no serializer: the order is in `dtype`, and text needs an object codec as first filter.
    spec = ChunkSpec(chunk_shape, stored if stored.names else stored.newbyteorder("="))
    if isinstance(filters, str) and filters == "auto":
        filters = [choose_serializer(stored)] if stored.hasobject else []
    with member("filters"):
        configs = [_to_v2_config(codec, spec) for codec in as_list(filters)]
    with member("compressors"):
        last = [_to_v2_config(codec, spec) for codec in _auto(compressors, [DEFAULT_COMPRESSOR])]
        if len(last) > 1:
            raise UnsupportedError("Zarr v2 has one compressor; the others may be filters")
    with member("filters and compressors"):
        return Pipeline.from_v2(
            configs, last[0] if last else None, order, stored, shape=chunk_shape
        )


def _auto(value: Any, default: list[Codec]) -> list[Any]:
    return default if isinstance(value, str) and value == "auto" else as_list(value)


def _to_v2_config(value: Any, spec: ChunkSpec) -> Mapping[str, Any]:
    """Return the v2 form of a codec in any notation."""
    if callable(getattr(value, "get_config", None)):
        value = value.get_config()
    if isinstance(value, Mapping) and "id" in value:
        return value
    codec = as_codec(value, 2).resolve(spec)
    if isinstance(codec, ArrayBytes) and codec.name == "bytes":
        raise UnsupportedError("codec bytes: in Zarr v2 the byte order belongs to the dtype")
    return codec.to_v2(spec, "<")
