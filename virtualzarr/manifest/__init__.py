"""Chunk manifests of virtual arrays: sources, columns of references, decoders."""

from virtualzarr.manifest.decoders import Decoder, DecoderTable
from virtualzarr.manifest.manifest import Affine, Manifest, References
from virtualzarr.manifest.sources import Source, Sources

__all__ = ["Affine", "Decoder", "DecoderTable", "Manifest", "References", "Source", "Sources"]
