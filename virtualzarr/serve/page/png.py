"""PNG pictures of numbers: a palette of colours, and hatching where there are none."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ANCHORS = (
    (0x44, 0x01, 0x54), (0x48, 0x28, 0x78), (0x3E, 0x4A, 0x89), (0x31, 0x68, 0x8E),
    (0x26, 0x82, 0x8E), (0x1F, 0x9E, 0x89), (0x35, 0xB7, 0x79), (0x6D, 0xCD, 0x59),
    (0xB4, 0xDE, 0x2C), (0xFD, 0xE7, 0x25),
)  # fmt: skip
"""Colours of viridis, evenly spaced: light grows with the value, also for the colour-blind."""

_DIVERGING = (
    (0x05, 0x30, 0x61), (0x21, 0x66, 0xAC), (0x43, 0x93, 0xC3), (0x92, 0xC5, 0xDE),
    (0xF7, 0xF7, 0xF7), (0xF4, 0xA5, 0x82), (0xD6, 0x60, 0x4D), (0xB2, 0x18, 0x2B),
    (0x67, 0x00, 0x1F),
)  # fmt: skip
"""Blue to red by way of white, for values on both sides of zero."""

_COLORS = 252
MISSING, UNREAD = 252, 254
"""Palette entries of values that are missing, and not read: two each, for hatching."""

_SPECIAL = ((0xEE, 0xEE, 0xEE), (0xC4, 0xC4, 0xC4), (0xFF, 0xFF, 0xFF), (0xE0, 0xC8, 0xC8))


def palette(diverging: bool) -> bytes:
    """Return 256 colours, three bytes each."""
    anchors = np.array(_DIVERGING if diverging else _ANCHORS, float)
    at = np.linspace(0, len(anchors) - 1, _COLORS)
    columns = [np.interp(at, np.arange(len(anchors)), anchors[:, i]) for i in range(3)]
    colors = np.rint(np.stack(columns, axis=1)).astype("u1")
    return colors.tobytes() + bytes(channel for color in _SPECIAL for channel in color)


def color_indices(
    values: NDArray[Any], low: float, high: float, unread: NDArray[np.bool_] | None = None
) -> NDArray[np.uint8]:
    """Return the palette entry of each value.

    Parameters
    ----------
    values : float array, shape (rows, columns)
        NaN where they are missing.
    unread : bool array, optional
    """
    half = high / 2 - low / 2
    with np.errstate(invalid="ignore", over="ignore"):
        # Halves first, as the difference of two large numbers may be infinite.
        scaled = (values / 2 - low / 2) / half if half > 0 else np.full(values.shape, 0.5)
        index = np.clip(np.nan_to_num(scaled, nan=0.0) * (_COLORS - 1), 0, _COLORS - 1)
    result = index.astype("u1")
    rows, columns = np.indices(values.shape)
    hatched = ((rows + columns) // 3 % 2).astype("u1")
    missing = np.isnan(values)
    result[missing] = (MISSING + hatched)[missing]
    if unread is not None:
        result[unread] = (UNREAD + hatched)[unread]
    return result


def encode_png(indices: NDArray[np.uint8], colors: bytes) -> bytes:
    """Return a PNG of palette entries.

    Examples
    --------
    >>> encode_png(np.zeros((2, 3), "u1"), palette(False))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    height, width = indices.shape
    # Each row begins with its filter: none.
    rows = np.zeros((height, width + 1), "u1")
    rows[:, 1:] = indices
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"PLTE", colors), (b"IDAT", zlib.compress(rows.tobytes(), 6))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*each) for each in [*chunks, (b"IEND", b"")])


def _chunk(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)
