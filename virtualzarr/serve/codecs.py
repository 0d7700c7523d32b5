"""Codecs of each face: which chains every client has, and what others are encoded with."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.core.base import Codec
from virtualzarr.codecs.core.libraries import find_imagecodecs
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.metadata.create.codecs import common_serializer

FaceName = Literal["v3", "v2", "native-grids"]
"""The faces of a dataset, as they are in URLs."""

FACES: tuple[FaceName, ...] = ("v3", "v2", "native-grids")

_COMPRESSORS = {"v3": {"gzip", "zstd", "blosc"}, "v2": {"zlib", "gzip", "blosc"}}


def zarr_format_of(face: FaceName) -> int:
    """Return the Zarr format of a face's documents."""
    return 2 if face == "v2" else 3


def is_in_every_client(metadata: ArrayMetadata, face: FaceName) -> bool:
    """Tell whether every client decodes an array's chunks as a face declares them."""
    serializer, *compressors = metadata.pipeline.codecs
    if serializer.name != "bytes" or len(compressors) > 1:
        return False
    # Some clients of v2 fail for big-endian elements; codecs of v3 say the order themselves.
    big = serializer.configuration.get("endian") == "big"
    if face == "v2" and (big or _has_big_endian_fields(metadata)):
        return False
    return all(_is_common(codec, face) for codec in compressors)


def _has_big_endian_fields(metadata: ArrayMetadata) -> bool:
    return metadata.dtype.names is not None and not metadata.dtype.isnative


def _is_common(codec: Codec, face: FaceName) -> bool:
    name = codec.name.removeprefix("numcodecs.") if face == "v2" else codec.name
    # Blosc is a format of several: snappy is left out of most builds.
    return name in _COMPRESSORS[face] and codec.configuration.get("cname") != "snappy"


def rewrapped_pipeline(metadata: ArrayMetadata) -> Pipeline | None:
    """Return the chain of v3 whose chunks are those of an array but for the head, or None.

    zlib and gzip are two heads and tails of the same deflate stream; v3 has gzip alone.
    """
    serializer, *compressors = metadata.pipeline.codecs
    if serializer.name != "bytes" or [codec.name for codec in compressors] != ["numcodecs.zlib"]:
        return None
    return Pipeline([serializer, make("gzip", level=1)])


def encoding_pipeline(metadata: ArrayMetadata, face: FaceName) -> Pipeline:
    """Return the chain with which a face encodes chunks."""
    serializer = common_serializer(metadata.dtype)
    # The server's time is worth more than the last percents of size. netCDF-C has no other of v2.
    if face == "v2":
        return Pipeline([serializer, make("numcodecs.zlib", level=1)])
    itemsize = metadata.itemsize
    if face == "v3" and metadata.dtype.kind in "iufc" and itemsize > 1:
        # As small as zstd of level 1, in a quarter of its time; but not for single bytes.
        blosc = make("blosc", cname="lz4", clevel=5, shuffle="shuffle", typesize=itemsize,
                     blocksize=0)  # fmt: skip
        return Pipeline([serializer, blosc])
    return Pipeline([serializer, make("zstd", level=1, checksum=False)])


def encode_block(metadata: ArrayMetadata, block: np.ndarray[Any, Any]) -> bytes:
    """Return a block as an array's codecs encode it; zlib streams by libdeflate, if it is there."""
    serializer, *compressors = metadata.pipeline.codecs
    plain, deflate = metadata.pipeline, None
    if [codec.name for codec in compressors] == ["numcodecs.zlib"]:
        deflate = find_imagecodecs("deflate_encode", "DEFLATE")
    if deflate is not None:
        plain = Pipeline([serializer])
    encoded = plain.for_block(block.shape, metadata.dtype, metadata.fill_value).encode(block)
    if deflate is not None:
        encoded = deflate(encoded, level=compressors[0].configuration["level"])
    return bytes(encoded)


def is_lossless(metadata: ArrayMetadata) -> bool:
    """Tell whether an array's codecs surely give back what they encode."""
    serializer, *compressors = metadata.pipeline.codecs
    names = {codec.name.removeprefix("numcodecs.") for codec in compressors}
    plain = serializer.name == "bytes" and not metadata.dtype.hasobject
    return plain and names <= {"gzip", "zstd", "zlib", "blosc"}
