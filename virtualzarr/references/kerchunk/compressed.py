"""Compression of reference files: by the end of their names when written, by content when read."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

ZSTD, GZIP = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"
"""What zstd frames and gzip members begin with."""

_ENDINGS = {".zst": "zstd", ".zstd": "zstd", ".gz": "gzip"}
_LEVEL = 3


def compression_of(uri: str) -> str | None:
    """Return the compression that a reference file has by its name, as fsspec calls it.

    Examples
    --------
    >>> compression_of("air.json.zst"), compression_of("air.json.gz"), compression_of("air.json")
    ('zstd', 'gzip', None)
    """
    return next((name for end, name in _ENDINGS.items() if uri.endswith(f".json{end}")), None)


def compress(pieces: Iterable[bytes], uri: str) -> Iterator[bytes]:
    """Yield pieces of a file as it is stored under a name."""
    engine = _make_engine(compression_of(uri))
    if engine is None:
        yield from pieces
        return
    for piece in pieces:
        if data := engine.compress(piece):
            yield data
    yield engine.flush()


def _make_engine(compression: str | None) -> Any:
    if compression is None:
        return None
    if compression == "gzip":
        return zlib.compressobj(wbits=31)  # with a header of gzip, which has no date then
    import zstandard

    # With a checksum, as a reference that changed would be another place.
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compressobj()


def decompress_head(head: bytes, most: int) -> bytes:
    """Return the beginning of what a file holds whose first bytes these are."""
    if head.startswith(GZIP):
        try:
            return zlib.decompressobj(31).decompress(head, most)
        except zlib.error:
            return b""
    if head.startswith(ZSTD):
        import zstandard

        try:
            with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(head)) as reader:
                return reader.read(most)
        except zstandard.ZstdError:
            return b""
    return head
