"""Deflate streams: zlib and gzip, decoded by the fastest library at hand."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

from virtualzarr.codecs.core.base import Block, Buffer, BytesBytes, as_view, nbytes_of

_LIMIT = 1 << 62  # more than there can be, and less than zlib's integers


@lru_cache(maxsize=1)
def _library() -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., int]] | None:
    """Return libdeflate's decoders and its crc32 where imagecodecs has them."""
    try:
        import imagecodecs
    except ImportError:
        return None
    if not imagecodecs.DEFLATE.available:
        return None
    return imagecodecs.deflate_decode, imagecodecs.gzip_decode, imagecodecs.deflate_crc32


class Zlib(BytesBytes):
    """A zlib stream (RFC 1950). Bytes after its end are ignored, as zlib and HDF5 do."""

    decoding_fields = ()
    compressor = True

    def __init__(self, name: str, configuration: Any = None) -> None:
        super().__init__(name, {"level": 1, **(configuration or {})})

    @cached_property
    def _fast(self) -> Callable[..., Any] | None:
        library = _library()
        return None if library is None else library[0]

    def validate(self) -> None:
        """Check the level."""
        _check_level(self)

    def decode(self, data: Buffer, size: int | None, limit: int) -> Buffer:
        """Inflate at most the bytes allowed."""
        if size is not None:
            return super().decode(data, size, limit)
        return self._inflate(data, limit)

    def decode_into(self, data: Buffer, out: Block) -> None:
        """Inflate straight into `out`."""
        if self._fast is not None:
            try:
                if self._fast(data, out=out).size == out.size:
                    return
            except (RuntimeError, ValueError):
                pass  # zlib decides, and words the error
        result = self._inflate(data, out.size)
        if len(result) != out.size:
            raise self.size_error(len(result), out.size)
        as_view(out)[:] = result

    def _inflate(self, data: Buffer, limit: int) -> bytes:
        stream = zlib.decompressobj()
        try:
            result = stream.decompress(data, min(limit, _LIMIT) + 1)
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


def _check_level(codec: BytesBytes) -> None:
    level = codec.configuration.get("level")
    if not isinstance(level, int) or not -1 <= level <= 9:
        raise codec.invalid(f"level must be an integer from 0 to 9, not {level!r}")


class Gzip(BytesBytes):
    """One or more gzip members (RFC 1952)."""

    decoding_fields = ()
    compressor = True

    def __init__(self, name: str, configuration: Any = None) -> None:
        super().__init__(name, {"level": 1, **(configuration or {})})

    @cached_property
    def _fast(self) -> tuple[Callable[..., Any], Callable[..., int]] | None:
        library = _library()
        return None if library is None else library[1:]

    def validate(self) -> None:
        """Check the level."""
        _check_level(self)

    def decode(self, data: Buffer, size: int | None, limit: int) -> Buffer:
        """Inflate at most the bytes allowed."""
        if size is not None:
            return super().decode(data, size, limit)
        return self._gunzip(data, limit)

    def decode_into(self, data: Buffer, out: Block) -> None:
        """Inflate straight into `out`.

        The fast decoder stops after the first member and does not look further, so its result
        counts only if the data end with the checksum and size of these very bytes.
        """
        if self._fast is not None:
            gunzip, crc = self._fast
            try:
                done = gunzip(data, out=out).size == out.size
            except (RuntimeError, ValueError):
                done = False  # the standard library decides, and words the error
            if done:
                trailer = crc(out).to_bytes(4, "little") + (out.size & 0xFFFFFFFF).to_bytes(
                    4, "little"
                )
                if bytes(data[-8:]) == trailer:
                    return
        result = self._gunzip(data, out.size)
        if len(result) != out.size:
            raise self.size_error(len(result), out.size)
        as_view(out)[:] = result

    def to_v3(self) -> dict[str, Any]:
        """Return the v3 form; the core codec has no level -1, zlib's word for 6."""
        document = super().to_v3()
        if self.name == "gzip" and self.configuration["level"] == -1:
            document["configuration"]["level"] = 6
        return document

    def _gunzip(self, data: Buffer, limit: int) -> bytes:
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
                result = stream.read(limit + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise self.error(f"the stream is corrupt or truncated ({error})") from error
        if len(result) > limit:
            raise self.error(f"decodes to more than the {limit} bytes the block allows")
        return result

    def encode(self, data: Buffer) -> Buffer:
        """Compress as one member without a time stamp."""
        return gzip.compress(data, self.configuration["level"], mtime=0)
