"""Ends of image streams, which decoders of imagecodecs do not miss when data are cut off."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from virtualzarr.codecs.core.base import Buffer, as_view
from virtualzarr.codecs.tiff.jpeg_frame import read_jpeg_frame

# A marker of JPEG that is no stuffed byte, fill byte or restart (ITU-T T.81, B.1.1.2; in JPEG-LS,
# the byte behind 0xFF is below 0x80 in scans).
_MARKER = re.compile(rb"\xff([\x80-\xcf\xd8-\xfe])")
JPEG_END = b"\xff\xd9"
_QOI_HEAD, _QOI_END = 14, bytes(7) + b"\1"
_LZW_END, _LZW_BITS = 257, 0x1FF  # the code in its lowest width
# Offset and length of the image, and of its alpha plane (ITU-T T.832, A.2).
_JPEGXR_PARTS = ((0xBCC0, 0xBCC1), (0xBCC2, 0xBCC3))


def has_jpeg_end(data: Buffer) -> bool:
    """Whether a stream of JPEG, JPEG-LS or lossless JPEG has its last marker.

    Examples
    --------
    >>> has_jpeg_end(bytes.fromhex("ffd8ffda0002ff00ffd9"))
    True
    >>> has_jpeg_end(bytes.fromhex("ffd8ffe00004ffd9ffda0002ff00"))
    False
    """
    view = as_view(data)
    # Segments may hold images of their own, but none of them is where a stream with a scan ends.
    if view[-2:] == JPEG_END:
        return True
    at = 0
    while match := _MARKER.search(view, at):
        marker = match[1][0]
        if marker == JPEG_END[1]:
            return True
        at = match.end()
        if marker != 0xD8:  # all others are followed by their length
            at += int.from_bytes(view[at : at + 2], "big")
    return False


def is_progressive(stream: bytes) -> bool:
    """Whether the frame of a JPEG stream has several scans of the same samples."""
    frame = read_jpeg_frame(stream)
    return frame is not None and frame.process & 3 == 2


def has_jpegxr_end(data: Buffer) -> bool:
    """Whether all that a JPEG XR container says it holds is there; one that says nothing has."""
    view = as_view(data)
    start = int.from_bytes(view[4:8], "little")
    count = int.from_bytes(view[start : start + 2], "little")
    fields = np.frombuffer(
        view[start + 2 : start + 2 + 12 * count][: len(view[start + 2 :]) // 12 * 12],
        np.dtype([("tag", "<u2"), ("type", "<u2"), ("count", "<u4"), ("value", "<u4")]),
    )
    values = dict(zip(fields["tag"].tolist(), fields["value"].tolist(), strict=True))
    ends = [0]
    for offset, length in _JPEGXR_PARTS:
        begin, nbytes = values.get(offset, 0), values.get(length, 0)
        # Of the alpha plane, jxrlib writes where it ends in place of its length.
        is_end = length == _JPEGXR_PARTS[1][1] and nbytes > begin
        ends.append(nbytes if is_end else begin + nbytes)
    return len(fields) == count and max(ends) <= len(view)


def has_qoi_end(data: Buffer) -> bool:
    """Whether a stream of QOI has its last bytes, which no encoder writes before."""
    return bytes(as_view(data)).rfind(_QOI_END) >= _QOI_HEAD


def has_lzw_end(data: Buffer) -> bool:
    """Whether a stream of LZW ends with the code that says so, and less than a byte of zeros."""
    last = int.from_bytes(as_view(data)[-3:], "big")
    zeros = (last & -last).bit_length() - 1
    return 0 <= zeros < 8 and last >> zeros & _LZW_BITS == _LZW_END


IMAGE_ENDS: dict[str, Callable[[Buffer], bool]] = {
    "jpegls": has_jpeg_end,
    "ljpeg": has_jpeg_end,
    "jpegxr": has_jpegxr_end,
    "qoi": has_qoi_end,
}
"""By the name within imagecodecs, whether a stream has its end."""
