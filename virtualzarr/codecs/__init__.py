"""How bytes become blocks of elements and back: codecs, their registry, and pipelines of them."""

from virtualzarr.codecs.core.base import ArrayArray, ArrayBytes, BytesBytes, ChunkSpec, Codec
from virtualzarr.codecs.core.block import BlockCodec
from virtualzarr.codecs.core.pipeline import Pipeline
from virtualzarr.codecs.core.registry import codec_from_v2, codec_from_v3, make, register

__all__ = [
    "ArrayArray",
    "ArrayBytes",
    "BlockCodec",
    "BytesBytes",
    "ChunkSpec",
    "Codec",
    "Pipeline",
    "codec_from_v2",
    "codec_from_v3",
    "make",
    "register",
]
