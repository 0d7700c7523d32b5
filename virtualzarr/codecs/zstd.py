"""The `zstd` codec: Zstandard frames, decoded with one context per thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

from virtualzarr.codecs.core.base import Block, Buffer, BytesBytes, ChunkSpec, Endian, as_view
from virtualzarr.codecs.core.libraries import find_imagecodecs, import_whole
from virtualzarr.errors import MissingDependencyError

_UNKNOWN = -1
_LARGE = 1 << 18  # from this size on, not copying is worth a longer start


@lru_cache(maxsize=1)
def _library() -> Any:
    """Return the package zstandard, or None."""
    return import_whole("zstandard")


class _Local(threading.local):
    def __init__(self) -> None:
        self.context = _library().ZstdDecompressor()
        self.compressors: dict[tuple[int, bool], Any] = {}

    def compressor(self, level: int, checksum: bool) -> Any:
        """Return the one for some settings: it costs more to make than to use on a few kB."""
        compressor = self.compressors.get((level, checksum))
        if compressor is None:
            compressor = _library().ZstdCompressor(level=level, write_checksum=checksum)
            self.compressors[level, checksum] = compressor
        return compressor


@lru_cache(maxsize=1)
def _local() -> _Local:
    return _Local()


def _is_skippable(data: memoryview) -> bool:
    return len(data) >= 8 and 0x184D2A50 <= int.from_bytes(data[:4], "little") <= 0x184D2A5F


def _header_length(descriptor: int) -> int:
    """Return where the first block of a frame begins (RFC 8878, section 3.1.1.1)."""
    single = descriptor >> 5 & 1
    size = (single, 2, 4, 8)[descriptor >> 6]
    return 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3] + size


_HEADERS = [_header_length(descriptor) for descriptor in range(256)]


def _is_one_block(data: Buffer) -> bool:
    """Tell whether data are a frame with one block that is not a byte repeated, and end with it."""
    length = len(data)
    if length < 24:
        return False
    descriptor = data[4]
    at = _HEADERS[descriptor]
    block = data[at] | data[at + 1] << 8 | data[at + 2] << 16
    # Its last bit but two would make it a repeated byte; a checksum follows where there is one.
    return block & 3 == 1 and at + 3 + (block >> 3) + (descriptor & 4) == length


class Zstd(BytesBytes):
    """One or more zstd frames (RFC 8878), with or without their content size.

    Nothing is allocated on the word of a frame header that promises more than the block needs.
    """

    decoding_fields = ()
    compressor = True

    def validate(self) -> None:
        """Check level and checksum."""
        level = self.configuration.get("level", 0)
        if not isinstance(level, int) or not -131072 <= level <= 22:
            raise self.invalid(f"level must be an integer from -131072 to 22, not {level!r}")

    @cached_property
    def _in_place(self) -> Callable[..., Any] | None:
        """The decoder that writes into given memory, but takes longer to get ready."""
        return find_imagecodecs("zstd_decode", "ZSTD")

    def fills_memory(self, size: int) -> bool:
        """Tell whether imagecodecs is used: it takes longer to start, and does not copy."""
        is_large = size >= _LARGE and self._in_place is not None
        return is_large or _library() is None

    def decode(self, data: Buffer, size: int | None, limit: int) -> Buffer:
        """Decompress at most the bytes allowed."""
        if size is None:
            if _library() is None:
                raise MissingDependencyError(
                    "zstd data of unknown size need the package zstandard: install it"
                )
            return self._decode_frames(data, limit)
        if self.fills_memory(size):
            return super().decode(data, size, limit)
        return self._decompress(data, size)

    def decode_into(self, data: Buffer, out: Block) -> None:
        """Decompress into `out`: large blocks without an intermediate copy."""
        if _library() is None:
            self._decode_by_imagecodecs(data, out)
            return
        if self.fills_memory(out.size):
            assert self._in_place is not None
            try:
                if self._in_place(data, out=out).size == out.size:
                    return
            except (RuntimeError, ValueError):
                pass  # corrupt: frame by frame it will show how
        as_view(out)[:] = self._decompress(data, out.size)

    def _decompress(self, data: Buffer, size: int) -> bytes:
        """Return the bytes of one or more frames, which must be so many."""
        library = _library()
        try:
            stated = library.frame_content_size(data)
            if stated == size or (stated == _UNKNOWN and size):
                result: bytes = _local().context.decompress(data, size, allow_extra_data=False)
                if len(result) == size:
                    return result
        except library.ZstdError:
            pass  # more than one frame, or corrupt: frame by frame it will show
        result = self._decode_frames(data, size)
        if len(result) != size:
            raise self.size_error(len(result), size)
        return result

    def decode_many(self, chunks: Sequence[Buffer], size: int) -> Sequence[Buffer] | None:
        """Decompress many frames of one size in one go; None: one by one it will show why not."""
        library = _library()
        # The library divides by the number of frames.
        if library is None or not chunks or not all(map(_is_one_block, chunks)):
            return None
        # The C library takes native 64-bit sizes, and fails on a frame that is not of its size.
        sizes = size.to_bytes(8, sys.byteorder) * len(chunks)
        try:
            many: Sequence[Buffer] = _local().context.multi_decompress_to_buffer(
                chunks, decompressed_sizes=sizes, threads=0
            )
        except (AttributeError, library.ZstdError):
            return None
        return many

    def _decode_by_imagecodecs(self, data: Buffer, out: Block) -> None:
        """Decompress into `out` with imagecodecs; numcodecs does not tell how much it wrote."""
        if self._in_place is None:
            raise MissingDependencyError("zstd data need the package zstandard: install it")
        try:
            got = self._in_place(data, out=out).size
        except (RuntimeError, ValueError) as error:
            raise self.error(f"the stream does not decode ({error})") from error
        if got != out.size:
            raise self.size_error(got, out.size)

    def _decode_frames(self, data: Buffer, limit: int) -> bytes:
        """Decompress frame after frame, never more than `limit` bytes."""
        library = _library()
        remaining = as_view(data)
        parts: list[bytes] = []
        total = 0
        try:
            while len(remaining):
                length = self._frame_length(remaining)
                if not _is_skippable(remaining):
                    part = self._decode_frame(remaining[:length], limit - total)
                    parts.append(part)
                    total += len(part)
                remaining = remaining[length:]
        except library.ZstdError as error:
            raise self.error(f"the stream is corrupt or truncated ({error})") from error
        if not parts:
            raise self.error("the stream is empty")
        return b"".join(parts)

    def _decode_frame(self, frame: memoryview, capacity: int) -> bytes:
        """Decompress one whole frame to at most `capacity` bytes."""
        size = _library().frame_content_size(frame)
        if size > capacity:
            raise self.error(f"a frame holds {size} bytes, the block has room for {capacity}")
        if size == _UNKNOWN:
            return self._read_stream(frame, capacity)
        return _local().context.decompress(frame, allow_extra_data=False)

    def _read_stream(self, frame: memoryview, limit: int) -> bytes:
        """Decompress a frame that does not state its size, piece by piece."""
        reader = _local().context.stream_reader(frame)
        parts = []
        while piece := reader.read(min(limit + 1, 1 << 20)):
            parts.append(piece)
            limit -= len(piece)
            if limit < 0:
                raise self.error(f"decodes to {-limit} bytes or more than the block has room for")
        return b"".join(parts)

    def _frame_length(self, data: memoryview) -> int:
        """Return the length of the frame `data` begins with (RFC 8878, section 3.1)."""
        library = _library()
        if _is_skippable(data):
            end = 8 + int.from_bytes(data[4:8], "little")
        else:
            parameters = library.get_frame_parameters(data)
            end = library.frame_header_size(data)
            last = False
            # Block headers of three bytes (RFC 8878, section 3.1.1.2): last flag, type, size. A run
            # (type 1) has one byte whatever its size.
            while not last and end + 3 <= len(data):
                header = int.from_bytes(data[end : end + 3], "little")
                last = bool(header & 1)
                end += 3 + (1 if header >> 1 & 3 == 1 else header >> 3)
            end += 4 * parameters.has_checksum
            if not last:
                raise self.error(f"the stream is truncated ({len(data)} bytes)")
        if end > len(data):
            raise self.error(f"the stream is truncated ({len(data)} bytes)")
        return end

    def to_v3(self) -> dict[str, Any]:
        """Return the v3 form; the core codec has both members."""
        fields = {"level": 0, "checksum": False, **self.configuration}
        return {"name": self.name, "configuration": fields}

    def to_v2(self, spec: ChunkSpec, endian: Endian) -> dict[str, Any]:
        """Return the v2 form; readers that do not know `checksum` see it only when it is true."""
        fields = {"level": self.configuration.get("level", 0)}
        if self.configuration.get("checksum"):
            fields["checksum"] = True
        return {"id": self.v2_id, **fields}

    def encode(self, data: Buffer) -> Buffer:
        """Compress as one frame that states its size."""
        level = self.configuration.get("level", 0)
        checksum = bool(self.configuration.get("checksum", False))
        library = _library()
        if library is None:
            from numcodecs import zstd

            return zstd.compress(data, level, checksum)
        return _local().compressor(level, checksum).compress(data)
