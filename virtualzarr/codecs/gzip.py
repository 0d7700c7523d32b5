"""The `gzip` codec: gzip members (RFC 1952)."""

from __future__ import annotations

import gzip
import io
import zlib
from functools import cached_property
from typing import Any

from virtualzarr.codecs.core.base import Block, Buffer, nbytes_of
from virtualzarr.codecs.core.libraries import find_imagecodecs
from virtualzarr.codecs.core.streams import DeflateStreams


class Gzip(DeflateStreams):
    """One or more gzip members; source: zarr-specs, codecs/gzip, and RFC 1952."""

    @cached_property
    def _fast(self) -> tuple[Any, Any]:
        return (
            find_imagecodecs("gzip_decode", "DEFLATE"),
            find_imagecodecs("deflate_crc32", "DEFLATE"),
        )

    def inflate_fast(self, data: Buffer, out: Block) -> bool:
        """Fill `out` by libdeflate, if `data` are one member that gives just as many bytes."""
        gunzip, crc = self._fast
        if gunzip is None:
            return False
        try:
            if gunzip(data, out=out).size != out.size:
                return False
        except (RuntimeError, ValueError):
            return False
        # libdeflate stops after the first member and does not look further. It found the checksum
        # and size of these very bytes there (RFC 1952, section 2.3.1): if they are nowhere before
        # the end of the data, that is where it stopped.
        trailer = crc(out).to_bytes(4, "little") + (out.size & 0xFFFFFFFF).to_bytes(4, "little")
        return bytes(data).find(trailer) == nbytes_of(data) - len(trailer)

    def inflate(self, data: Buffer, limit: int) -> bytes:
        """Inflate all members by the standard library, at most `limit` bytes."""
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
                result = stream.read(limit + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise self.error(f"the stream is corrupt or truncated ({error})") from error
        if len(result) > limit:
            raise self.error(f"decodes to more than the {limit} bytes the block allows")
        return result

    def encode(self, data: Buffer) -> Buffer:
        """Compress as one member without a time stamp: equal blocks give equal bytes."""
        return gzip.compress(data, self.configuration["level"], mtime=0)

    def to_v3(self) -> dict[str, Any]:
        """Return the v3 form; the core codec has no level -1, zlib's word for 6."""
        document = super().to_v3()
        if self.name == "gzip" and self.configuration["level"] == -1:
            document["configuration"]["level"] = 6
        return document
