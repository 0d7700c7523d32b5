"""Chunk manifests of virtual arrays: sources, columns of references, decoders."""

from virtualzarr.manifest.decoders import Decoder, DecoderRows, DecoderTable
from virtualzarr.manifest.manifest import Affine, Manifest, References
from virtualzarr.manifest.sources import Source, Sources

__all__ = [
    "Affine",
    "Decoder",
    "DecoderRows",
    "DecoderTable",
    "Manifest",
    "References",
    "Source",
    "Sources",
]
