"""The `numcodecs.lzma` codec: LZMA streams in xz, lzma or raw containers."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import Buffer, as_hashable
from virtualzarr.codecs.core.streams import ConcatenatedStreams

_MEMORY = 1 << 28  # what an LZMA dictionary may take


class Lzma(ConcatenatedStreams):
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

    def create_decompressor(self) -> Any:
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
