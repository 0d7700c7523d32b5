"""Stored schemas and batches: bytes that make them again, without pickles.

Both are a header, as JSON, and the bytes of numbers and inline values behind it. Nothing that is
read is believed to be of any type: arrays go through the documents of Zarr, columns through the
checks of `Manifest`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array.file_layout import FileLayout
from virtualzarr.batches.batch import AttributeColumn, Batch
from virtualzarr.batches.schema import ArraySchema, ChunkColumns, Schema
from virtualzarr.codecs import Pipeline
from virtualzarr.errors import UnsupportedError
from virtualzarr.manifest import Affine, Decoder, Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.metadata.attributes import from_exact_json, to_exact_json
from virtualzarr.metadata.node_documents import from_documents, to_documents

_MAX_DECODERS = 10_000
_MAX_UNPACKED = 1 << 30
_SOURCE = ("uri", "size", "mtime_ns", "etag", "not_after_ns", "digest")
_COLUMNS = ("source", "offset", "length", "decoder", "origin")


class _Writer:
    """A header that names what is in the bytes behind it."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._end = 0

    def put(self, data: bytes) -> list[int]:
        self._parts.append(data)
        self._end += len(data)
        return [self._end - len(data), self._end]

    def put_numbers(self, values: NDArray[Any]) -> dict[str, Any]:
        dtype = values.dtype.newbyteorder("<")
        span = self.put(values.astype(dtype).tobytes())
        return {"dtype": dtype.str, "shape": list(values.shape), "at": span}

    def finish(self, header: Any) -> bytes:
        text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
        return zlib.compress(b"".join([len(text).to_bytes(8, "little"), text, *self._parts]), 1)


class _Reader:
    def __init__(self, data: bytes) -> None:
        decompressor = zlib.decompressobj()
        plain = decompressor.decompress(data, _MAX_UNPACKED)
        if not decompressor.eof:
            raise ValueError("it is cut off, or too large")
        size = int.from_bytes(plain[:8], "little")
        self.header = json.loads(plain[8 : 8 + size])
        self._rest = memoryview(plain)[8 + size :]

    def get(self, span: Sequence[int]) -> memoryview:
        start, stop = span
        if not 0 <= start <= stop <= len(self._rest):
            raise ValueError("numbers lie behind the end")
        return self._rest[start:stop]

    def get_numbers(self, entry: Mapping[str, Any]) -> NDArray[Any]:
        dtype = np.dtype(entry["dtype"])
        if dtype.kind != "i":
            raise ValueError("numbers are no integers")
        values = np.frombuffer(self.get(entry["at"]), dtype).reshape(entry["shape"])
        return values.astype(dtype.newbyteorder("="))


def dump_schema(schema: Schema) -> bytes:
    """Return a schema as bytes.

    Raises
    ------
    UnsupportedError
        It has something that has no form in documents of Zarr, or sources that hold more than what
        names a file.
    """
    writer = _Writer()
    return writer.finish(_dump_group(schema, writer))


def load_schema(data: bytes, storage_options: Mapping[str, Any] | None = None) -> Schema:
    """Return the schema that bytes of `dump_schema` are of.

    Raises `ValueError`, `KeyError` or an error of this package if they are damaged.
    """
    reader = _Reader(data)
    return _load_group(reader.header, reader, storage_options)


def _dump_group(schema: Schema, writer: _Writer) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, member in schema.members.items():
        if isinstance(member, Schema):
            members[name] = _dump_group(member, writer)
        else:
            members[name] = _dump_array(*member, writer)
    attributes = _dump_attributes(schema)
    node = {"path": schema.path, "attributes": attributes, "skipped": schema.skipped}
    return {**node, "members": members}


def _load_group(node: Any, reader: _Reader, options: Mapping[str, Any] | None) -> Schema:
    schema = Schema(node["path"], _load_attributes(node), node["skipped"])
    for name, member in node["members"].items():
        if "array" in member:
            array = _load_array(member, reader, options)
            schema.members[name] = array, Schema(array.path, _load_attributes(member), {})
        else:
            schema.members[name] = _load_group(member, reader, options)
    return schema


def _dump_attributes(schema: Schema) -> dict[str, Any]:
    return {name: to_exact_json(value) for name, value in schema.attributes.items()}


def _load_attributes(node: Any) -> dict[str, Any]:
    return {name: from_exact_json(value) for name, value in node["attributes"].items()}


def _dump_array(array: ArraySchema, node: Schema, writer: _Writer) -> dict[str, Any]:
    metadata, columns = array.metadata, array.columns
    return {
        "path": array.path,
        "attributes": _dump_attributes(node),
        "array": to_documents(metadata),
        # Zarr v3 has a fill value always: zero where a scan found none.
        "has_fill": metadata.fill_value is not None,
        "manifest": _dump_manifest(array.manifest, writer),
        "layout": _dump_layout(array.layout),
        "columns": None if columns is None else {
            "start": columns.start, "stop": columns.stop, "has_lengths": columns.has_lengths,
            "cells": None if columns.cells is None else writer.put_numbers(columns.cells),
        },
    }  # fmt: skip


def _load_array(
    node: Mapping[str, Any], reader: _Reader, options: Mapping[str, Any] | None
) -> ArraySchema:
    metadata = from_documents(node["array"])
    if not isinstance(metadata, ArrayMetadata):
        raise ValueError("an array is a group")
    if not node["has_fill"]:
        metadata = metadata.replace(fill_value=None)
    columns = node["columns"]
    if columns is not None:
        cells = None if columns["cells"] is None else reader.get_numbers(columns["cells"])
        columns = ChunkColumns(columns["start"], columns["stop"], cells, columns["has_lengths"])
    manifest = _load_manifest(node["manifest"], reader, options)
    return ArraySchema(node["path"], metadata, manifest, _load_layout(node["layout"]), columns)


def _dump_manifest(manifest: Manifest, writer: _Writer) -> dict[str, Any]:
    if len(manifest.decoders) > _MAX_DECODERS:
        raise UnsupportedError("the references have too many decoders to be stored")
    columns = {name: _dump_column(getattr(manifest, name), writer) for name in _COLUMNS}
    decoders = [
        {"codecs": _dump_pipeline(one.pipeline), "shape": one.shape} for one in manifest.decoders
    ]
    sources = [_dump_source(source, writer) for source in manifest.sources]
    return {**columns, "shape": manifest.shape, "decoders": decoders, "sources": sources}


def _load_manifest(
    node: Mapping[str, Any], reader: _Reader, options: Mapping[str, Any] | None
) -> Manifest:
    shape = tuple(node["shape"])
    columns = {name: _load_column(node[name], shape, reader) for name in _COLUMNS}
    decoders = [
        Decoder(Pipeline(one["codecs"]), None if one["shape"] is None else tuple(one["shape"]))
        for one in node["decoders"]
    ]
    sources = Sources(_load_source(one, reader, options) for one in node["sources"])
    return Manifest(shape, sources, decoders=decoders, **columns)


def _dump_column(column: Any, writer: _Writer) -> Any:
    if column is None:
        return None
    if isinstance(column, Affine):
        return {"base": column.base, "strides": column.strides}
    # An axis with stride 0 repeats one number.
    few = column[tuple(slice(0, 1) if s == 0 else slice(None) for s in column.strides)]
    return writer.put_numbers(np.asarray(few))


def _load_column(node: Any, shape: tuple[int, ...], reader: _Reader) -> Any:
    if node is None:
        return None
    if "base" in node:
        return Affine(shape, node["base"], node["strides"])
    return reader.get_numbers(node)


def _dump_pipeline(pipeline: Pipeline) -> list[dict[str, Any]]:
    return [codec.to_v3() for codec in pipeline.codecs]


def _dump_source(source: Source, writer: _Writer) -> dict[str, Any]:
    if source.data is not None:
        return {"inline": writer.put(source.data)}
    _check_plain(source)
    return {name: getattr(source, name) for name in _SOURCE}


def _check_plain(source: Source) -> None:
    if source.checksums is not None or source.redirects is not None:
        raise UnsupportedError("a source has more than what names it", file=source.uri)


def _load_source(
    node: Mapping[str, Any], reader: _Reader, options: Mapping[str, Any] | None
) -> Source:
    if "inline" in node:
        return Source.inline(bytes(reader.get(node["inline"])))
    return Source(storage_options=options, **node)


def _dump_layout(layout: FileLayout | None) -> dict[str, Any] | None:
    if layout is None:
        return None
    pipeline = None if layout.pipeline is None else _dump_pipeline(layout.pipeline)
    return {**vars(layout), "pipeline": pipeline, "labels": dict(layout.labels)}


def _load_layout(node: Mapping[str, Any] | None) -> FileLayout | None:
    if node is None:
        return None
    chunks, pipeline = node["chunks"], node["pipeline"]
    return FileLayout(
        None if chunks is None else tuple(chunks), None if pipeline is None else Pipeline(pipeline),
        tuple(node["unlimited"]), node["labels"], node["type_name"],
    )  # fmt: skip


def dump_batch(batch: Batch) -> bytes:
    """Return the rows of a batch as bytes, without its schema.

    Errors are those of `dump_schema`.
    """
    writer = _Writer()
    for source in batch.sources:
        if source is not None:
            if source.data is not None:
                raise UnsupportedError("a file of a batch is bytes in memory")
            _check_plain(source)
    lengths = batch.lengths if batch.lengths.strides[0] else batch.lengths[:1]
    # Addresses of files that are written alike lie close together: differences of rows compress.
    first, differences = batch.addresses[:1], np.diff(batch.addresses, axis=0)
    header = {
        "sources": [
            None if source is None else [getattr(source, name) for name in _SOURCE]
            for source in batch.sources
        ],
        "first": writer.put_numbers(first),
        "rest": writer.put_numbers(differences),
        "lengths": writer.put_numbers(lengths),
        "attributes": [
            [path, name, list(map(to_exact_json, column.values)), column.codes.tolist()]
            for (path, name), column in batch.attributes.items()
        ],
    }
    return writer.finish(header)


def load_batch(
    schema: Schema, data: bytes, storage_options: Mapping[str, Any] | None = None
) -> Batch:
    """Return the batch that bytes of `dump_batch` are of.

    Raises `ValueError` or `KeyError` if they are damaged.
    """
    reader = _Reader(data)
    header = reader.header
    differences = reader.get_numbers(header["rest"])
    addresses = np.cumsum(
        np.concatenate([reader.get_numbers(header["first"]), differences]), axis=0
    )
    lengths = np.broadcast_to(reader.get_numbers(header["lengths"]), addresses.shape)
    attributes = {
        (path, name): AttributeColumn(list(map(from_exact_json, values)), np.array(codes, np.int32))
        for path, name, values, codes in header["attributes"]
    }
    sources = [
        None if values is None
        else Source(storage_options=storage_options, **dict(zip(_SOURCE, values, strict=True)))
        for values in header["sources"]
    ]  # fmt: skip
    if len(sources) != len(addresses):
        raise ValueError("there are not as many files as rows")
    return Batch(schema, sources, addresses, lengths, attributes)
