"""bzip2 and LZMA streams and base64 text, by the standard library."""

from __future__ import annotations

import base64
import binascii
import bz2
import lzma
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import Buffer, BytesBytes, as_hashable, as_u1, as_view, nbytes_of

_LIMIT = 1 << 62  # more than there can be, and less than the libraries' integers
_MEMORY = 1 << 28  # what an LZMA dictionary may take


class _Streams(BytesBytes):
    """One stream after another; what follows the first and is no stream is ignored."""

    compressor = True
    errors: tuple[type[Exception], ...]

    def decompressor(self) -> Any:
        """Return a decompressor for one stream."""
        raise NotImplementedError

    def decode(self, data: Buffer, size: int | None, limit: int) -> Buffer:
        """Decompress at most the bytes allowed."""
        limit = min(limit if size is None else size, _LIMIT)
        rest: Any = data
        parts: list[bytes] = []
        total = 0
        while not parts or nbytes_of(rest):
            stream = self.decompressor()
            try:
                part = stream.decompress(rest, limit + 1 - total)
            except self.errors as error:
                if parts:
                    break
                raise self.error(f"the stream is corrupt ({error})") from error
            parts.append(part)
            total += len(part)
            if total > limit:
                raise self.error(f"decodes to more than the {limit} bytes the block allows")
            if not stream.eof:
                raise self.error(f"the stream is truncated ({nbytes_of(data)} bytes gave {total})")
            rest = stream.unused_data
        if size is not None and total != size:
            raise self.size_error(total, size)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Bz2(_Streams):
    """bzip2."""

    decoding_fields = ()
    errors = (OSError, ValueError)

    def decompressor(self) -> Any:
        """Return a bzip2 decompressor."""
        return bz2.BZ2Decompressor()

    def encode(self, data: Buffer) -> Buffer:
        """Compress as one stream."""
        return bz2.compress(data, self.configuration.get("level", 1))


class Lzma(_Streams):
    """LZMA in the container `format` names (numcodecs' default: xz)."""

    errors = (lzma.LZMAError, ValueError, EOFError)

    def validate(self) -> None:
        """Check the format, which says how to decode."""
        container = self.configuration.get("format")
        if container is not None and not isinstance(container, int):
            raise self.invalid(f"format must be an integer, not {container!r}")

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable:
        """Return the filters of a raw stream; other containers describe themselves."""
        raw = self._format() == lzma.FORMAT_RAW
        return ("Lzma", as_hashable(self.configuration.get("filters")) if raw else None)

    def _format(self) -> int:
        return int(self.configuration.get("format") or lzma.FORMAT_XZ)

    def decompressor(self) -> Any:
        """Return a decompressor for the format."""
        raw = self._format() == lzma.FORMAT_RAW
        try:
            return lzma.LZMADecompressor(
                lzma.FORMAT_RAW if raw else lzma.FORMAT_AUTO,
                memlimit=None if raw else _MEMORY,
                filters=self.configuration.get("filters") if raw else None,
            )
        except (lzma.LZMAError, ValueError, TypeError) as error:
            raise self.invalid(f"cannot be used: {error}") from error

    def encode(self, data: Buffer) -> Buffer:
        """Compress as one stream."""
        check = self.configuration.get("check")
        compress: Callable[..., bytes] = lzma.compress
        return compress(
            data,
            format=self._format(),
            check=-1 if check is None else check,
            preset=self.configuration.get("preset"),
            filters=self.configuration.get("filters"),
        )


class Base64(BytesBytes):
    """Base64 text (RFC 4648)."""

    decoding_fields = ()

    def is_portable(self, zarr_format: int) -> bool:
        """Return False for v3, in which nobody else has a codec of this name."""
        return zarr_format == 2

    def compute_encoded_size(self, size: int | None) -> int | None:
        """Return four characters for each three bytes begun."""
        return None if size is None else -(-size // 3) * 4

    def decode(self, data: Buffer, size: int | None, limit: int) -> Buffer:
        """Return the bytes, at most those allowed."""
        allowed = limit if size is None else size
        length = nbytes_of(data) // 4 * 3
        if length - 2 > allowed:
            raise self.size_error(length, allowed)
        try:
            return base64.b64decode(bytes(as_u1(data)), validate=True)
        except binascii.Error as error:
            raise self.error(f"the text is not base64 ({error})") from error

    def encode(self, data: Buffer) -> Buffer:
        """Return the text."""
        return base64.standard_b64encode(as_view(data))
