"""Frame headers of JPEG streams."""

from __future__ import annotations

import struct


class JpegFrame:
    """What the frame header of a JPEG stream says (ITU-T T.81, section B.2.2).

    Parameters
    ----------
    process : int
        0 to 15, by the marker; 3 is lossless.
    bits, rows, columns, components : int
    sampling : bytes
        Of each component, how often it is sampled along columns and rows, in half a byte each.
    """

    def __init__(
        self, process: int, bits: int, rows: int, columns: int, components: int, sampling: bytes
    ) -> None:
        self.process, self.bits, self.components = process, bits, components
        self.rows, self.columns, self.sampling = rows, columns, sampling

    @property
    def nbytes(self) -> int:
        """Bytes of the decoded image."""
        return self.rows * self.columns * self.components * (1 if self.bits <= 8 else 2)


def read_jpeg_frame(data: bytes) -> JpegFrame | None:
    """Return the frame header of a JPEG stream; None if there is none before the first scan.

    Examples
    --------
    >>> read_jpeg_frame(bytes.fromhex("ffd8ffc0000b080010002001011100")).columns
    32
    """
    at = 0
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            at += 1
            continue
        marker = data[at + 1]
        if marker == 0xFF:  # fill bytes
            at += 1
            continue
        # Markers that stand alone: no length follows (B.1.1.4).
        if marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD9:
            at += 2
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            if at + 10 > len(data):
                return None
            bits, rows, columns, components = struct.unpack_from(">BHHB", data, at + 4)
            sampling = data[at + 11 : at + 10 + 3 * components : 3]
            return JpegFrame(marker - 0xC0, bits, rows, columns, components, sampling)
        if marker == 0xDA:
            return None
        at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
    return None
