"""The wavelet compression HCOMPRESS_1 of FITS images."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from virtualzarr.codecs.core.base import Block, Buffer, ChunkSpec, as_u1
from virtualzarr.codecs.fits.read_only import ReadOnlyCodec
from virtualzarr.errors import import_optional
from virtualzarr.stores.forks import ForkSafeLock

_PLANES = 60
_lock = ForkSafeLock()  # cfitsio's decoder of HCOMPRESS keeps its state in global variables


class HCompress(ReadOnlyCodec):
    """HCOMPRESS_1: a wavelet transform, undone by cfitsio's code in astropy.

    The only member is `smooth`.
    """

    members = frozenset({"smooth"})

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return the integers."""
        decompress, failure = _hdecompress()
        rows, columns = self._edges(spec)
        raw = bytes(as_u1(data))
        scale = self._read_scale(raw, rows, columns)
        # It does not know where the data end: zeros follow, more than it can ask for.
        planes = max(raw[22:25])
        padded = raw + bytes((planes + 4) * (rows + 16) * (columns + 16) // 2)
        smooth = int(self.configuration["smooth"])
        try:
            with _lock:
                decoded = decompress(padded, rows, columns, scale, smooth, 8)
        except (ValueError, failure) as error:
            raise self.error(f"cfitsio cannot decode: {error}") from error
        return self._as_block(np.frombuffer(decoded, "i4"), spec)

    def _edges(self, spec: ChunkSpec) -> tuple[int, int]:
        edges = [length for length in spec.shape if length != 1]
        if len(edges) != 2:
            raise self.error(f"HCOMPRESS_1 has images, not blocks of shape {spec.shape}")
        return edges[0], edges[1]

    def _read_scale(self, raw: bytes, rows: int, columns: int) -> int:
        """Check what the stream says of itself; return the scale."""
        if len(raw) < 25 or raw[:2] != b"\xdd\x99":
            raise self.error("it does not begin as a stream of HCOMPRESS does")
        first, second, scale = struct.unpack_from(">3i", raw, 2)
        if (first, second) != (rows, columns):
            raise self.error(
                f"the stream has an image of {first} x {second}, the block is {rows} x {columns}"
            )
        # Bit planes shift integers of 64 bits: more is undefined in C.
        if max(raw[22:25]) > _PLANES:
            raise self.error(f"the stream has {max(raw[22:25])} bit planes")
        return scale


@lru_cache(1)
def _hdecompress() -> tuple[Callable[..., bytes], type[Exception]]:
    """Return cfitsio's decoder, and what it raises."""
    _compression = import_optional(
        "astropy.io.fits.hdu.compressed._compression",
        "HCOMPRESS_1 images of FITS are decoded by astropy (6.1 or later): "
        "pip install 'virtualzarr[fits]'",
    )
    return _compression.decompress_hcompress_1_c, _compression.CfitsioException
