"""The HDF5 filter JPEG-LS (32018), as fcidecomp writes it."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from virtualzarr.codecs.bridges.stream_ends import has_jpeg_end
from virtualzarr.codecs.core.base import U1, Buffer, as_u1, nbytes_of
from virtualzarr.codecs.core.libraries import call_imagecodecs
from virtualzarr.codecs.hdf5.filter import Filter

# Of a JPEG-LS frame: bits of a sample, lines, samples in a line, components.
_FRAME = struct.Struct(">BHHB")


class JpegLs(Filter):
    """HDF5 filter 32018 (``virtualzarr.hdf5_jpegls``): JPEG-LS, as fcidecomp has it.

    Each chunk is an image with all that is needed to decode it; the parameters are not used.
    Components that are scans of their own, as the filter writes them, become planes; those of an
    image whose scan holds all of them stay side by side in each pixel.
    """

    compressor = True
    decoding_fields = ()

    def decode(self, data: Buffer, size: int | None, limit: int) -> Buffer:
        """Return the samples' bytes."""
        raw = bytes(as_u1(data))
        frame = self._frame(raw)
        need, allowed = frame.nbytes, limit if size is None else size
        if need > allowed:
            raise self.size_error(need, allowed)
        # Without it the decoder may search for long.
        if not has_jpeg_end(raw):
            raise self.error(f"{len(raw)} bytes, cut off: the image has no end")
        out = call_imagecodecs(self, "jpegls_decode", raw)
        if nbytes_of(out) != need:
            raise self.size_error(nbytes_of(out), need)
        if frame.planes:  # imagecodecs puts components last in any case
            out = np.moveaxis(out, -1, 0)
        return np.ascontiguousarray(out).reshape(-1).view(U1)

    def _frame(self, raw: bytes) -> _Frame:
        """Return what the headers say (ISO/IEC 14495-1, C.2.2 and C.2.3)."""
        at, nbytes, components = 2, None, 0
        while raw[:2] == b"\xff\xd8" and at + 10 <= len(raw) and raw[at] == 0xFF:
            # SOF55: bits, lines, samples and components tell the size before anything is decoded.
            if raw[at + 1] == 0xF7:
                bits, height, width, components = _FRAME.unpack_from(raw, at + 4)
                nbytes = height * width * components * (2 if bits > 8 else 1)
            if raw[at + 1] == 0xDA and nbytes is not None:
                mode = raw[at + 6 + 2 * raw[at + 4] :][:1]
                if components > 1 and mode not in (b"\0", b"\2"):
                    raise self.error("its components take turns line by line")
                return _Frame(nbytes, components > 1 and mode == b"\0")
            at += 2 + int.from_bytes(raw[at + 2 : at + 4], "big")
        if nbytes is None:
            raise self.error("the data are no JPEG-LS image")
        return _Frame(nbytes, False)


class _Frame(NamedTuple):
    """Of a JPEG-LS image: bytes of all samples, and whether each component is a scan of its own."""

    nbytes: int
    planes: bool
