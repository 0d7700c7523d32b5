"""Stored bytes of elements, viewed as one more axis of an array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from virtualzarr.array.array import Array
from virtualzarr.array.chunk_source import ManifestChunks, StoreChunks
from virtualzarr.array.fields import FieldView
from virtualzarr.array.read.output import resolve_fill
from virtualzarr.codecs import Codec, Pipeline, make
from virtualzarr.codecs.bytes import Bytes
from virtualzarr.codecs.core.base import BytesBytes
from virtualzarr.codecs.sharding import Sharding
from virtualzarr.codecs.transpose import Transpose
from virtualzarr.errors import UnsupportedError, error_context
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.nodes.array_document import ParsedDocument

NAME = "bytes"
"""Name of the field that replaces the data type."""


def view_as_bytes(array: Array) -> FieldView:
    """Return the bytes of an array's elements, after all codecs but that of the data type.

    Returns
    -------
    FieldView of uint8, shape (..., itemsize)
        In the byte order and with the padding that is stored.

    Raises
    ------
    UnsupportedError
        Elements have no bytes of their own: a codec makes something else of them, or they have
        different lengths.

    Examples
    --------
    >>> import virtualzarr as vz
    >>> a = vz.create_array({}, shape=(2,), dtype=">i2", zarr_format=2, fill_value=258)
    >>> view_as_bytes(a)[...].tolist()
    [[1, 2], [1, 2]]
    """
    chunks = array.chunk_source
    plain = isinstance(chunks, ManifestChunks) and not chunks.has_decoders
    if not plain and not isinstance(chunks, StoreChunks):
        raise UnsupportedError(
            "open_as_void: the array has references to chunks that decode in other ways than it "
            "declares",
            variable=array.path or "/",
        )
    with error_context(variable=array.path or "/"):
        metadata = _to_byte_metadata(array.metadata)
    return FieldView(_ByteArray(metadata, chunks, array.path, **array._settings), (NAME,))


class _ByteArray(Array):
    """An array whose elements are records of one field, their bytes."""

    def _change_metadata(self, changes: Callable[[ArrayMetadata], dict[str, Any]]) -> None:
        raise UnsupportedError("the bytes of elements have no metadata of their own to change")

    def _adopt(self, document: ParsedDocument) -> None:
        metadata = _to_byte_metadata(document[1])
        if metadata.dtype != self.metadata.dtype:
            raise UnsupportedError(
                "the data type has another size now; open the array again",
                variable=self.path or "/",
            )
        super()._adopt((document[0], metadata))


def _to_byte_metadata(metadata: ArrayMetadata) -> ArrayMetadata:
    """Return metadata whose elements are the bytes as stored."""
    pipeline, serializer = _without_order(metadata.pipeline)
    dtype = metadata.dtype
    if dtype.hasobject:
        raise UnsupportedError(f"open_as_void: elements of {dtype} have no fixed number of bytes")
    fill = np.empty(1, dtype)
    # The stored bytes of the fill value, too, in the serializer's byte order: missing chunks must
    # read as they would if they had been written.
    fill[0] = resolve_fill(metadata)
    stored = Pipeline([serializer]).for_block((1,), dtype).encode(fill)
    record = np.dtype([(NAME, "u1", (dtype.itemsize,))])
    return metadata.replace(
        dtype=record, pipeline=pipeline, fill_value=np.frombuffer(stored, record)[0]
    )


def _without_order(pipeline: Pipeline) -> tuple[Pipeline, Codec]:
    """Return codecs that leave the byte order alone, and the serializer that was replaced."""
    codecs: list[Codec] = []
    serializer: Codec | None = None
    for codec in pipeline.codecs:
        if isinstance(codec, Bytes):
            serializer = codec
            codec = make("bytes")
        elif isinstance(codec, Sharding):
            inner, serializer = _without_order(codec.pipeline)
            inner_codecs = inner.to_v3(len(codec.chunk_shape))
            codec = make(codec.name, **codec.configuration | {"codecs": inner_codecs})
        elif not isinstance(codec, Transpose | BytesBytes):
            raise UnsupportedError(
                f"open_as_void: the codec {codec.name} depends on the data type; the bytes of "
                "elements can only be had behind the codec bytes"
            )
        codecs.append(codec)
    assert serializer is not None
    return Pipeline(codecs), serializer
