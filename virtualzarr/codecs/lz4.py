"""The `numcodecs.lz4` codec: one LZ4 block behind its decoded size."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from virtualzarr.codecs.core.base import Block, Buffer, as_view, nbytes_of
from virtualzarr.codecs.core.libraries import find_imagecodecs
from virtualzarr.codecs.core.streams import SizedStream


class Lz4(SizedStream):
    """numcodecs' LZ4: the size in four little-endian bytes, then one LZ4 block."""

    @cached_property
    def _fast(self) -> Callable[..., Any] | None:
        return find_imagecodecs("lz4_decode", "LZ4")

    def read_size(self, data: Buffer) -> int:
        """Return the size in the head."""
        if nbytes_of(data) < 4:
            raise self.error(f"{nbytes_of(data)} bytes are too few for the header")
        return int.from_bytes(as_view(data)[:4], "little")

    def decode_into(self, data: Buffer, out: Block) -> None:
        """Decompress straight into `out`."""
        announced = self.read_size(data)
        if announced != out.size:
            raise self.size_error(announced, out.size)
        try:
            if self._fast is not None:
                got = self._fast(as_view(data)[4:], out=out).size
            else:
                import numcodecs.lz4

                got = out.size
                numcodecs.lz4.decompress(data, out)
        except (RuntimeError, ValueError) as error:
            raise self.error(f"the data are corrupt or truncated ({error})") from error
        if got != out.size:
            raise self.size_error(got, out.size)

    def encode(self, data: Buffer) -> Buffer:
        """Compress with numcodecs."""
        import numcodecs.lz4

        return numcodecs.lz4.compress(data, int(self.configuration.get("acceleration", 1)))
