"""Integers of compressed FITS images, shuffled or not."""

from __future__ import annotations

import numpy as np

from virtualzarr.codecs.core.base import Block, Buffer, ChunkSpec, as_u1
from virtualzarr.codecs.fits.read_only import ReadOnlyCodec


class Integers(ReadOnlyCodec):
    """Big-endian integers of 1, 2, 4 or 8 bytes: as many as a tile has bytes for each element.

    The only member, `shuffled`, says whether their first bytes come first, then their second, and
    so on. Tiles of one byte are unsigned.
    """

    members = frozenset({"shuffled"})

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return the integers."""
        flat = as_u1(data)
        width, remainder = divmod(flat.size, spec.size)
        if remainder or width not in (1, 2, 4, 8):
            raise self.size_error(flat.size, spec.nbytes)
        if width == 1:
            return self._as_block(flat, spec)
        if self.configuration["shuffled"]:
            flat = np.ascontiguousarray(flat.reshape(width, -1).T).reshape(-1)
        return self._as_block(flat.view(f">i{width}"), spec)
