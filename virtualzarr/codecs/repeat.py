"""The `virtualzarr.repeat` codec: a stored block repeated along a new axis."""

from __future__ import annotations

import numpy as np

from virtualzarr.codecs.core.base import Block, ChunkSpec, Rearrangement


class Repeat(Rearrangement):
    """The stored block has one axis less: it is the same at every index of `axis`."""

    in_v2 = False

    def validate(self) -> None:
        """Check the axis."""
        self.check_integers({"axis": 0})

    def encode_spec(self, spec: ChunkSpec) -> ChunkSpec:
        """Return the spec without the axis."""
        axis = self.configuration["axis"]
        if axis >= len(spec.shape):
            raise self.invalid(f"a block of {len(spec.shape)} axes has no axis {axis}")
        return spec._replace(shape=spec.shape[:axis] + spec.shape[axis + 1 :])

    def decode(self, block: Block, spec: ChunkSpec) -> Block:
        """Return the repeated block, which takes no more memory than one."""
        return np.broadcast_to(np.expand_dims(block, self.configuration["axis"]), spec.shape)
