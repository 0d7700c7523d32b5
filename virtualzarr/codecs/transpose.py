"""The `transpose` codec: axes in another order."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import Block, ChunkSpec, Codec, Rearrangement


class Transpose(Rearrangement):
    """Axis ``i`` of the encoded array is axis ``order[i]`` of the decoded one.

    Source: zarr-specs, codecs/transpose. The order ``"F"`` (all axes reversed) stands for v2's
    ``order: "F"`` until the number of dimensions is known; ``"C"`` changes nothing.
    """

    def validate(self) -> None:
        """Check that the order is a permutation."""
        self.check_members(["order"])
        order = self.configuration["order"]
        if order in ("C", "F"):
            return
        if not isinstance(order, (list, tuple)) or sorted(order) != list(range(len(order))):
            raise self.invalid(f"order must be a permutation of the axes, not {order!r}")
        # Plain integers: numpy's have no JSON form.
        self.configuration["order"] = [int(axis) for axis in order]

    def axes(self, ndim: int) -> tuple[int, ...]:
        """Return the order as axes."""
        order = self.configuration["order"]
        if order == "C":
            return tuple(range(ndim))
        if order == "F":
            return tuple(reversed(range(ndim)))
        if len(order) != ndim:
            raise self.invalid(f"order {order} does not fit {ndim} dimensions")
        return tuple(order)

    def resolve(self, spec: ChunkSpec) -> Codec:
        """Return the codec with its axes written out."""
        return Transpose(self.name, {"order": self.axes(len(spec.shape))})

    def encode_spec(self, spec: ChunkSpec) -> ChunkSpec:
        """Return the spec with its shape permuted."""
        return ChunkSpec(tuple(spec.shape[axis] for axis in self.axes(len(spec.shape))), spec.dtype)

    def decode(self, block: Block, spec: ChunkSpec) -> Block:
        """Return a view with the axes in the decoded order."""
        return block.transpose(inverse(self.axes(block.ndim)))

    def encode(self, block: Block, spec: ChunkSpec) -> Block:
        """Return a view with the axes in the encoded order."""
        return block.transpose(self.axes(block.ndim))

    def is_identity(self, spec: ChunkSpec) -> bool:
        """Whether the order is that of the array."""
        return self.axes(len(spec.shape)) == tuple(range(len(spec.shape)))

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable | None:
        """Return the order, None for the identity."""
        order = self.configuration["order"]
        if order == "C" or (order != "F" and order == sorted(order)):
            return None
        if order == "F" or order == sorted(order, reverse=True):
            return ("transpose", "F")
        return ("transpose", tuple(order))


def inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the permutation that undoes `axes`.

    Examples
    --------
    >>> inverse((2, 0, 1))
    (1, 2, 0)
    """
    return tuple(axes.index(axis) for axis in range(len(axes)))
