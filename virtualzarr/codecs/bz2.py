"""The `numcodecs.bz2` codec: bzip2 streams."""

from __future__ import annotations

import bz2
from typing import Any

from virtualzarr.codecs.core.base import Buffer
from virtualzarr.codecs.core.streams import ConcatenatedStreams


class Bz2(ConcatenatedStreams):
    """bzip2."""

    decoding_fields = ()
    errors = (OSError, ValueError)

    def create_decompressor(self) -> Any:
        """Return a bzip2 decompressor."""
        return bz2.BZ2Decompressor()

    def encode(self, data: Buffer) -> Buffer:
        """Compress as one stream."""
        return bz2.compress(data, self.configuration.get("level", 1))
