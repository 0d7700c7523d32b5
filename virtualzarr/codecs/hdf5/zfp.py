"""The HDF5 filter ZFP (32013): a stream whose header is in the filter's parameters."""

from __future__ import annotations

import numpy as np

from virtualzarr.codecs.core.base import U1, Buffer
from virtualzarr.codecs.core.zfp_stream import decode_without_header, read_header
from virtualzarr.codecs.hdf5.filter import Filter


class Zfp(Filter):
    """HDF5 filter 32013 (``virtualzarr.hdf5_zfp``): ZFP without its header.

    Parameters, as H5Z-ZFP keeps them: its version, and the header of the stream, four bytes in
    each. The header has 32 bits of magic, 52 bits of type and shape, and the mode: 12 bits, with
    52 more if they are all set.
    """

    needed = 4
    compressor = True

    def check(self, values: list[int]) -> None:
        """Check that the header is one."""
        if read_header(self._header) is None:
            raise self.invalid("the parameters hold no header of ZFP")

    @property
    def _header(self) -> bytes:
        return np.array(self.configuration["parameters"][1:], "<u4").tobytes()

    def decode(self, data: Buffer, size: int | None, limit: int) -> Buffer:
        """Return the elements' bytes, little-endian."""
        header = read_header(self._header)
        assert header is not None
        bits = int.from_bytes(self._header, "little") & (1 << header.length) - 1
        out = decode_without_header(self, data, bits, limit if size is None else size)
        return out.reshape(-1).view(U1)
