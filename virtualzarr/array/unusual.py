"""What is unusual about chunks: why other readers could not have them as they are."""

from __future__ import annotations

import numpy as np

from virtualzarr.manifest import Manifest
from virtualzarr.metadata import ArrayMetadata


def unusual_chunks(metadata: ArrayMetadata, manifest: Manifest) -> dict[str, int]:
    """Count the chunks that other readers of the array's metadata would read wrong, by reason."""
    if manifest.decoder is None:
        return {}
    rows = manifest.decoder[manifest.source >= 0]
    counts = np.bincount(rows + 1, minlength=len(manifest.decoders) + 1)[1:].tolist()
    reasons: dict[str, int] = {}
    own = metadata.pipeline.decoding_key(metadata.dtype)
    for decoder, count in zip(manifest.decoders, counts, strict=True):
        parts = []
        if decoder.pipeline.decoding_key(metadata.dtype) != own:
            names = " → ".join(codec.name for codec in decoder.pipeline.codecs)
            parts.append(f"decoded by {names}")
        if decoder.shape is not None:
            parts.append("parts of larger blocks")
        if count and parts:
            reason = ", ".join(parts)
            reasons[reason] = reasons.get(reason, 0) + count
    return reasons
