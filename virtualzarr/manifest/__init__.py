"""Where each chunk of a virtual array lies: sources, columns of references, decoders."""

from virtualzarr.manifest.manifest import Affine, Decoder, Manifest, References
from virtualzarr.manifest.sources import Source, Sources

__all__ = ["Affine", "Decoder", "Manifest", "References", "Source", "Sources"]
