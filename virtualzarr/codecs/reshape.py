"""The `reshape` codec of v3: the same elements, in the same order, in another shape."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import Block, ChunkSpec, Rearrangement


class Reshape(Rearrangement):
    """Each axis of the encoded array is a length, a list of axes to be joined, or -1 for the rest.

    Source: zarr-extensions, codecs/reshape.
    """

    in_v2 = False

    def validate(self) -> None:
        """Check the form of the shape."""
        shape = self.configuration.get("shape")
        if set(self.configuration) != {"shape"} or not isinstance(shape, list | tuple):
            raise self.invalid(f"expects the one member 'shape', a list, not {self.configuration}")
        joined: list[int] = []
        for part in shape:
            if isinstance(part, list | tuple):
                if not all(_is_index(axis) for axis in part):
                    raise self.invalid(f"shape: {part!r} is no list of axes")
                joined += part
            elif part != -1 and not (_is_index(part) and part > 0):
                raise self.invalid(f"shape: {part!r} is neither a length nor a list of axes nor -1")
        if joined != sorted(set(joined)):
            raise self.invalid(f"shape: the axes must be in order, each once, not {shape!r}")
        if sum(part == -1 for part in shape) > 1:
            raise self.invalid(f"shape: only one length can be left open, not {shape!r}")

    def _shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the encoded shape of a block."""
        parts = self.configuration["shape"]
        lengths: list[int] = []
        for part in parts:
            if not isinstance(part, list | tuple):
                lengths.append(part)
            elif part and part[-1] >= len(shape):
                raise self.invalid(f"there is no axis {part[-1]} in blocks of shape {shape}")
            else:
                lengths.append(math.prod(shape[axis] for axis in part))
        size = math.prod(shape)
        if -1 in lengths:
            product = math.prod(length for length in lengths if length != -1)
            if product and size % product == 0:
                lengths[lengths.index(-1)] = size // product
        if -1 in lengths or math.prod(lengths) != size:
            raise self.invalid(f"blocks of shape {shape} have no shape {parts}")
        # Joined axes must hold the same elements as the axis that replaces them: equal products
        # before and behind (codecs/reshape, shape).
        for i, part in enumerate(parts):
            if isinstance(part, list | tuple) and part:
                before = math.prod(lengths[:i]) == math.prod(shape[: part[0]])
                after = math.prod(lengths[i + 1 :]) == math.prod(shape[part[-1] + 1 :])
                if not (before and after):
                    raise self.invalid(f"axes {part} of blocks of shape {shape} do not lie there")
        return tuple(lengths)

    def encode_spec(self, spec: ChunkSpec) -> ChunkSpec:
        """Return the spec with the encoded shape."""
        return ChunkSpec(self._shape(spec.shape), spec.dtype)

    def decode(self, block: Block, spec: ChunkSpec) -> Block:
        """Return the block in its own shape."""
        return block.reshape(spec.shape)

    def encode(self, block: Block, spec: ChunkSpec) -> Block:
        """Return the block in the encoded shape."""
        return block.reshape(self._shape(spec.shape))

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable:
        """Return the shape."""
        return ("Reshape", repr(self.configuration["shape"]))


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
