"""The `virtualzarr.truncate` codec: the first bytes of blocks stored longer than their cell."""

from __future__ import annotations

from typing import Any

from virtualzarr.codecs.core import base


class Truncate(base.BytesBytes):
    """Only the first bytes count, as many as the cell has.

    It stands directly behind the codec that makes bytes of elements. In a block whose leading axis,
    in the order in which it is stored, is longer than that of the cell, the cell's elements come
    first. Encoding changes nothing.

    The member `longest` of its configuration, optional, is the size of the longest block in bytes.

    Examples
    --------
    >>> import numpy as np
    >>> from virtualzarr.codecs import Pipeline, make
    >>> chain = Pipeline(["bytes", make("virtualzarr.truncate")])
    >>> chain.for_block((2,), np.dtype("u1")).decode(bytes([7, 8, 9]))
    array([7, 8], dtype=uint8)
    """

    decoding_fields = ()

    def validate(self) -> None:
        """Check that the longest block is of a size."""
        longest = self.configuration.get("longest", 0)
        if type(longest) is not int or not 0 <= longest <= base.UNSIZED_LIMIT:
            raise self.invalid(f"longest is a number of bytes, not {longest!r:.50}")

    @property
    def longest(self) -> int:
        """Bytes of the longest block."""
        return int(self.configuration.get("longest", 0))

    def decode_into(self, data: base.Buffer, out: base.Block) -> None:
        """Take the first bytes."""
        if base.nbytes_of(data) < out.size:
            raise self.size_error(base.nbytes_of(data), out.size)
        out[:] = base.as_u1(data)[: out.size]

    def encode(self, data: base.Buffer) -> base.Buffer:
        """Return the bytes as they are."""
        return data

    def to_v2(self, spec: base.ChunkSpec, endian: base.Endian) -> dict[str, Any]:
        """Return the configuration with the size of a cell, which v2 codecs are not told."""
        return {**super().to_v2(spec, endian), "nbytes": spec.nbytes}
