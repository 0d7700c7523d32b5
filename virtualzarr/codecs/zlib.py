"""The `numcodecs.zlib` codec: zlib streams (RFC 1950)."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cached_property
from typing import Any

from virtualzarr.codecs.core.base import Block, Buffer, nbytes_of
from virtualzarr.codecs.core.libraries import find_imagecodecs
from virtualzarr.codecs.core.streams import MAX_LENGTH, DeflateStreams


class Zlib(DeflateStreams):
    """A zlib stream (RFC 1950). Bytes after its end are ignored, as zlib and HDF5 do."""

    @cached_property
    def _fast(self) -> Callable[..., Any] | None:
        return find_imagecodecs("deflate_decode", "DEFLATE")

    def inflate_fast(self, data: Buffer, out: Block) -> bool:
        """Fill `out` by libdeflate, if the stream gives just as many bytes."""
        try:
            return self._fast is not None and self._fast(data, out=out).size == out.size
        except (RuntimeError, ValueError):
            return False

    def inflate(self, data: Buffer, limit: int) -> bytes:
        """Inflate by zlib, at most `limit` bytes."""
        stream = zlib.decompressobj()
        try:
            # One byte more than allowed: without it, a longer stream would look complete.
            result = stream.decompress(data, min(limit, MAX_LENGTH) + 1)
        except zlib.error as error:
            raise self.error(f"the stream is corrupt ({error})") from error
        if len(result) > limit:
            raise self.error(f"decodes to more than the {limit} bytes the block allows")
        if not stream.eof:
            raise self.error(
                f"the stream is truncated ({nbytes_of(data)} bytes gave {len(result)})"
            )
        return result

    def encode(self, data: Buffer) -> Buffer:
        """Deflate with zlib, so that the bytes are those of other Zarr writers."""
        return zlib.compress(data, self.configuration["level"])
