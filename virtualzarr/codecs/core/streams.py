"""Bases of compressors whose data are streams that mark their own end."""

from __future__ import annotations

from typing import Any

from virtualzarr.codecs.core.base import Block, Buffer, BytesBytes, as_view, nbytes_of
from virtualzarr.codecs.core.scratch import allocate

# More bytes than there can be, but fewer than the integers of the C libraries overflow at.
MAX_LENGTH = 1 << 62


class DeflateStreams(BytesBytes):
    """Base of zlib and gzip: a level, and a bounded decoder that the fast one falls back to."""

    decoding_fields = ()
    compressor = True

    def __init__(self, name: str, configuration: Any = None) -> None:
        super().__init__(name, {"level": 1, **(configuration or {})})

    def validate(self) -> None:
        """Check the level."""
        level = self.configuration.get("level")
        if not isinstance(level, int) or not -1 <= level <= 9:
            raise self.invalid(f"level must be an integer from 0 to 9, not {level!r}")

    def decode(self, data: Buffer, size: int | None, limit: int) -> Buffer:
        """Inflate at most the bytes allowed."""
        if size is not None:
            return super().decode(data, size, limit)
        return self.inflate(data, limit)

    def decode_into(self, data: Buffer, out: Block) -> None:
        """Inflate straight into `out`."""
        if self.inflate_fast(data, out):
            return
        # libdeflate neither takes streams in parts nor says what is wrong: zlib decides.
        result = self.inflate(data, out.size)
        if len(result) != out.size:
            raise self.size_error(len(result), out.size)
        as_view(out)[:] = result

    def inflate_fast(self, data: Buffer, out: Block) -> bool:
        """Fill `out` by libdeflate; return False where the result is not certain."""
        raise NotImplementedError

    def inflate(self, data: Buffer, limit: int) -> bytes:
        """Inflate by the standard library, at most `limit` bytes."""
        raise NotImplementedError


class SizedStream(BytesBytes):
    """Base of Blosc and LZ4: a head that states the decoded size, and one stream."""

    decoding_fields = ()
    compressor = True

    def read_size(self, data: Buffer) -> int:
        """Return the decoded size that the head states."""
        raise NotImplementedError

    def decode(self, data: Buffer, size: int | None, limit: int) -> Buffer:
        """Decompress what the head states, if it is allowed."""
        stated, allowed = self.read_size(as_view(data)), limit if size is None else size
        if stated > allowed or (stated != allowed and size is not None):
            raise self.size_error(stated, allowed)
        out = allocate((stated,), "u1")
        self.decode_into(data, out)
        return out


class ConcatenatedStreams(BytesBytes):
    """Base of bzip2 and LZMA: one stream after another; anything else after one is ignored."""

    compressor = True
    errors: tuple[type[Exception], ...]

    def create_decompressor(self) -> Any:
        """Return a decompressor of one stream, as those of the standard library are."""
        raise NotImplementedError

    def decode(self, data: Buffer, size: int | None, limit: int) -> Buffer:
        """Decompress at most the bytes allowed."""
        limit = min(limit if size is None else size, MAX_LENGTH)
        remaining: Any = data
        parts: list[bytes] = []
        total = 0
        while not parts or nbytes_of(remaining):
            stream = self.create_decompressor()
            try:
                # One byte more than allowed tells a stream that is too long from one that fits,
                # and a small input that claims gigabytes never gets memory for them.
                part = stream.decompress(remaining, limit + 1 - total)
            except self.errors as error:
                if parts:  # padding behind the last stream, which the command line tools skip, too
                    break
                raise self.error(f"the stream is corrupt ({error})") from error
            parts.append(part)
            total += len(part)
            if total > limit:
                raise self.error(f"decodes to more than the {limit} bytes the block allows")
            if not stream.eof:
                raise self.error(f"the stream is truncated ({nbytes_of(data)} bytes gave {total})")
            remaining = stream.unused_data
        if size is not None and total != size:
            raise self.size_error(total, size)
        return parts[0] if len(parts) == 1 else b"".join(parts)
