"""Codecs of each face: which chains every client has, and what others are encoded with."""

from __future__ import annotations

import struct
from typing import Any, Literal

import numpy as np

from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.blosc import MAX_TYPESIZE
from virtualzarr.codecs.checksums import SIZE as CHECKSUM_SIZE
from virtualzarr.codecs.checksums import Checksum
from virtualzarr.codecs.core.base import Codec
from virtualzarr.codecs.core.libraries import find_imagecodecs
from virtualzarr.codecs.core.scratch import scratch
from virtualzarr.codecs.shuffle import HEAD as BLOSC_HEAD
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.metadata.create.codecs import common_serializer
from virtualzarr.references.portable import without_gaps

FaceName = Literal["v3", "v2", "native-grids"]
"""The faces of a dataset, as they are in URLs."""

FACES: tuple[FaceName, ...] = ("v3", "v2", "native-grids")

_BLOSC_FORMATS = {"numcodecs.zlib": ("zlib", 3), "zstd": ("zstd", 4), "numcodecs.zstd": ("zstd", 4)}
"""Names and numbers in Blosc of compressors whose streams are those of a codec."""

_LZ4 = 1

_MAX_BLOCK = (2**31 - 1 - 4 * MAX_TYPESIZE) // 3
"""Bytes of a block of Blosc, at most."""

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
    """Return the chain of v3 whose chunks are those of an array behind a head, or None.

    A Blosc buffer of one block is a head and then what its compressor gives for shuffled bytes. So
    are the chunks of most HDF5 files, which few clients have the codecs for, but for the head and
    the checksum that some have at the end.
    """
    serializer, *compressors = _without_checksum(metadata.pipeline)
    size = 1
    if compressors and compressors[0].name == "numcodecs.shuffle":
        size = compressors.pop(0).configuration.get("elementsize", 4) or 1
    names = [codec.name for codec in compressors]
    if serializer.name != "bytes" or len(names) != 1 or names[0] not in _BLOSC_FORMATS:
        return None
    # One byte of the head has the element size. Gaps of structs are nothing that others know of.
    if size > MAX_TYPESIZE or without_gaps(metadata.dtype) != metadata.dtype:
        return None
    cname, _ = _BLOSC_FORMATS[names[0]]
    shuffle = "shuffle" if size > 1 else "noshuffle"
    blosc = make("blosc", cname=cname, clevel=1, shuffle=shuffle, typesize=size, blocksize=0)
    return Pipeline([serializer, blosc])


def find_checksum(pipeline: Pipeline) -> Checksum | None:
    """Return the codec that puts a checksum behind all that others encode, or None."""
    last = pipeline.codecs[-1]
    return last if isinstance(last, Checksum) and not last.at_start else None


def _without_checksum(pipeline: Pipeline) -> list[Codec]:
    return list(pipeline.codecs[:-1] if find_checksum(pipeline) else pipeline.codecs)


def rewrap_head(metadata: ArrayMetadata, stored: Pipeline, nbytes: int, decoded: int) -> bytes:
    """Return what makes a stored chunk the chunk of a face; nothing where no head does.

    Parameters
    ----------
    metadata : ArrayMetadata
        As the face declares it, with the chain of `rewrapped_pipeline`.
    stored : Pipeline
        Of the source.
    nbytes : int
        Of the stored chunk.
    decoded : int
        Bytes of the cell. Readers refuse what gives more or fewer.
    """
    if find_checksum(stored) is not None:
        nbytes -= CHECKSUM_SIZE
    _, number = _BLOSC_FORMATS[_without_checksum(stored)[-1].name]
    return _one_block_head(metadata, number, nbytes, decoded)


def _one_block_head(metadata: ArrayMetadata, number: int, nbytes: int, decoded: int) -> bytes:
    # Blosc takes a block of as many bytes as it decodes to for one that is not compressed, and
    # buffers are never longer than their content and a head without the rest of ours. C-Blosc2
    # takes one of no bytes for zeros.
    if nbytes <= 0 or nbytes + BLOSC_HEAD >= decoded or decoded > _MAX_BLOCK:
        return b""
    size = metadata.pipeline.codecs[-1].configuration["typesize"]
    # c-blosc, README_CHUNK_FORMAT: of the flags, 1 is shuffled, 16 is not split by bytes.
    flags = number << 5 | 16 | (size > 1)
    return struct.pack(
        "<4B5I", 2, 1, flags, size, decoded, decoded, BLOSC_HEAD + nbytes, BLOSC_HEAD - 4, nbytes
    )


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


def shuffled_pipeline(metadata: ArrayMetadata, stored: ArrayMetadata) -> Pipeline | None:
    """Return the chain that gives the shuffled bytes of stored chunks, or None.

    Which is where a face shuffles elements in the same way, and then compresses them by LZ4: then
    nothing has to be shuffled back before.
    """
    serializer, *compressors = stored.pipeline.codecs
    own, *rest = metadata.pipeline.codecs
    if len(compressors) < 2 or compressors[0].name != "numcodecs.shuffle" or len(rest) != 1:
        return None
    fields = rest[0].configuration
    alike = (serializer.name, serializer.configuration) == (own.name, own.configuration)
    size = compressors[0].configuration.get("elementsize", 4)
    settings = {"cname": "lz4", "shuffle": "shuffle", "typesize": size}
    if not alike or rest[0].name != "blosc" or stored.dtype != metadata.dtype:
        return None
    if size != metadata.itemsize or not settings.items() <= fields.items():
        return None
    return Pipeline([make("bytes"), *compressors[1:]])


def compress_shuffled(metadata: ArrayMetadata, block: np.ndarray[Any, Any]) -> bytes | None:
    """Return shuffled bytes as a Blosc buffer of one block; None if LZ4 makes them no smaller."""
    encode = find_imagecodecs("lz4_encode", "LZ4")
    if encode is None:
        return None
    # c-blosc, get_accel: how much LZ4 leaves out at each level.
    level = 10 - metadata.pipeline.codecs[-1].configuration["clevel"]
    packed = encode(block, level=level, out=scratch(block.size + block.size // 128 + 64))
    head = _one_block_head(metadata, _LZ4, len(packed), block.size)
    return b"".join([head, packed]) if head else None


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
