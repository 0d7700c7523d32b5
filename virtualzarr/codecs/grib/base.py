"""Base of the codecs of GRIB: the order of points, and sections outside the chunk."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs.core.base import ArrayBytes, Block, Buffer, ChunkSpec
from virtualzarr.errors import CodecError

ORDERS = ("rows", "alternating rows", "columns", "alternating columns")


def to_rows(values: Block, shape: tuple[int, ...], order: str) -> Block:
    """Return values in the order in which a message has them as rows (j) of columns (i).

    Examples
    --------
    >>> to_rows(np.arange(6), (2, 3), "alternating rows").tolist()
    [[0, 1, 2], [5, 4, 3]]
    >>> to_rows(np.arange(6), (2, 3), "columns").tolist()
    [[0, 2, 4], [1, 3, 5]]
    """
    turned = order.endswith("columns")
    block = values.reshape((*shape[:-2], shape[-1], shape[-2]) if turned else shape)
    if order.startswith("alternating"):
        block = block.copy()
        block[..., 1::2, :] = block[..., 1::2, ::-1]
    return np.ascontiguousarray(block.swapaxes(-1, -2)) if turned else block


class _Grib(ArrayBytes):
    """What both codecs have: the order of points, and sections that lie elsewhere."""

    portable_formats = ()
    compressor = True
    members: tuple[str, ...] = ("before", "order")

    def validate(self) -> None:
        """Check the configuration."""
        self.check_members((), self.members)
        if self._order not in ORDERS:
            raise self.invalid(f"order is one of {ORDERS}")
        self._before  # noqa: B018

    @property
    def _order(self) -> str:
        order: str = self.configuration.get("order", "rows")
        return order

    @cached_property
    def _before(self) -> bytes:
        return self.decode_base64(self.configuration.get("before", ""), "before must be base64")

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Let ecCodes calculate."""
        try:
            return self._as_block(self._compute(data, spec.size), spec)
        except CodecError as error:
            raise self.error(error.message) from error

    def _compute(self, data: Buffer, size: int) -> NDArray[np.float64]:
        """Return the numbers of a message, or the coordinates of a grid."""
        raise NotImplementedError

    def _as_block(self, values: Block, spec: ChunkSpec) -> Block:
        """Return values in rows, as the array has them."""
        if values.size != spec.size:
            raise CodecError(f"decoded {values.size} points, the block needs {spec.size}")
        if values.dtype != spec.dtype:
            values = values.astype(spec.dtype)
        if len(spec.shape) < 2 or self._order == "rows":
            return values.reshape(spec.shape)
        return to_rows(values, spec.shape, self._order)
