"""The `virtualzarr.byte_slice` codec: a block within more bytes, as behind a file's header."""

from __future__ import annotations

from virtualzarr.codecs.core.base import Block, Buffer, BytesBytes, as_u1, nbytes_of

_LIMIT = 1 << 62


class ByteSlice(BytesBytes):
    """Of `length` bytes those from `start` on, as many as the block has. For reading only.

    Examples
    --------
    >>> import numpy as np
    >>> from virtualzarr.codecs import Pipeline, make
    >>> chain = Pipeline(["bytes", make("virtualzarr.byte_slice", start=1, length=5)])
    >>> chain.for_block((2,), np.dtype("u1")).decode(bytes([6, 7, 8, 9, 10]))
    array([7, 8], dtype=uint8)
    """

    def validate(self) -> None:
        """Check the members."""
        self.check_members(["start", "length"])
        for name, value in self.configuration.items():
            if type(value) is not int or not 0 <= value <= _LIMIT:
                raise self.invalid(f"{name} is a number of bytes, not {value!r:.50}")

    def compute_encoded_size(self, size: int | None) -> int | None:
        """Return the bytes that the block lies in."""
        length = int(self.configuration["length"])
        if size is not None and self.configuration["start"] + size > length:
            raise self.size_error(length, self.configuration["start"] + size)
        return length

    def decode_into(self, data: Buffer, out: Block) -> None:
        """Take the bytes of the block."""
        start, length = self.configuration["start"], self.configuration["length"]
        if nbytes_of(data) != length or start + out.size > length:
            raise self.size_error(nbytes_of(data), max(length, start + out.size))
        out[:] = as_u1(data)[start : start + out.size]
