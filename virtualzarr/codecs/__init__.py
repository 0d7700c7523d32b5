"""Codecs: array to array, array to bytes and bytes to bytes, their registry and pipelines.

To add one, subclass `ArrayArray`, `ArrayBytes` or `BytesBytes` (the contract, `core/base.py`) in a
module named as the codec, and name it in `core/registry.py`; other packages call `register`.
"""

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
