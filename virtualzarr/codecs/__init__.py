"""How bytes become blocks of elements and back: codecs, their registry, and pipelines of them."""

from virtualzarr.codecs.base import ArrayArray, ArrayBytes, BytesBytes, Codec, Spec
from virtualzarr.codecs.block import BlockCodec
from virtualzarr.codecs.pipeline import Pipeline
from virtualzarr.codecs.registry import codec_from_v2, codec_from_v3, make, register

__all__ = [
    "ArrayArray",
    "ArrayBytes",
    "BlockCodec",
    "BytesBytes",
    "Codec",
    "Pipeline",
    "Spec",
    "codec_from_v2",
    "codec_from_v3",
    "make",
    "register",
]
