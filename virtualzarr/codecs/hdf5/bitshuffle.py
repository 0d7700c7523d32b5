"""The HDF5 filter bitshuffle (32008), with or without LZ4 or Zstandard."""

from __future__ import annotations

from virtualzarr.codecs.core.base import Buffer, as_u1
from virtualzarr.codecs.core.libraries import call_imagecodecs
from virtualzarr.codecs.hdf5.filter import Filter


class Bitshuffle(Filter):
    """HDF5 filter 32008 (``virtualzarr.hdf5_bitshuffle``): bits of equal weight together.

    Parameters: version, version, bytes of an element, elements of a block (0: as many as make
    8 kB), compressor (0 none, 2 LZ4, 3 Zstandard). Source: bitshuffle's own `bshuf_h5filter`.
    Compressed chunks begin with their decoded size (8 bytes) and the bytes of a block (4), both
    big-endian; each block with its encoded size. Elements that make no group of 8 follow raw.
    """

    needed = 3
    compressor = True

    def check(self, values: list[int]) -> None:
        """Check element size and compressor."""
        if not 1 <= values[2] <= 1 << 16:
            raise self.invalid(f"elements of {values[2]} bytes")
        if self._compressor not in (0, 2, 3):
            raise self.invalid(f"compressor {self._compressor} is not known")

    @property
    def _compressor(self) -> int:
        values = self.configuration["parameters"]
        return int(values[4]) if len(values) > 4 else 0

    def decode(self, data: Buffer, size: int | None, limit: int) -> Buffer:
        """Return the elements' bytes."""
        raw = bytes(as_u1(data))
        itemsize = self.configuration["parameters"][2]
        if self._compressor:
            return self._blocks(raw, itemsize, limit if size is None else size)
        values = self.configuration["parameters"]
        count = values[3] if len(values) > 3 else 0
        end = len(raw) - len(raw) % itemsize
        return self._unshuffle(raw[:end], itemsize, count) + raw[end:]

    def _blocks(self, raw: bytes, itemsize: int, limit: int) -> bytes:
        total, step = int.from_bytes(raw[:8], "big"), int.from_bytes(raw[8:12], "big")
        if len(raw) < 12 or total > limit:
            raise self.size_error(total, limit)
        # Bits are shuffled in groups of 8 elements; a block of none would never end.
        if step % (8 * itemsize) or (not step and total >= 8 * itemsize):
            raise self.error(f"blocks of {step} bytes")
        parts: list[bytes] = []
        start, remaining = 12, total
        while remaining >= 8 * itemsize:
            # The last block is shorter, and what makes no group of 8 elements follows as it is.
            count = min(step, remaining - remaining % (8 * itemsize))
            stop = start + 4 + int.from_bytes(raw[start : start + 4], "big")
            if stop > len(raw):
                raise self.error("the data are truncated")
            block = self._decompress(raw[start + 4 : stop], count)
            parts.append(self._unshuffle(block, itemsize, count // itemsize))
            start, remaining = stop, remaining - count
        if start + remaining > len(raw):
            raise self.error("the data are truncated")
        parts.append(raw[start : start + remaining])
        return b"".join(parts)

    def _decompress(self, block: bytes, size: int) -> bytes:
        function = "lz4_decode" if self._compressor == 2 else "zstd_decode"
        out = bytes(call_imagecodecs(self, function, block, out=size))
        if len(out) != size:
            raise self.size_error(len(out), size)
        return out

    def _unshuffle(self, block: bytes, itemsize: int, count: int) -> bytes:
        options = {"itemsize": itemsize, "blocksize": count}
        return bytes(call_imagecodecs(self, "bitshuffle_decode", block, **options))
