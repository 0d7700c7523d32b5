"""Blocks that are a part of what is stored, or are repeated: an axis taken away, thinned or added.

Decoding only. With these codecs in front of its pipeline, a stored block serves as a cell of an
array with other axes.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import ArrayArray, Block, ChunkSpec, Codec


class _View(ArrayArray):
    """What all have in common: the elements are those that are stored."""

    in_v2 = False

    def encode_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype."""
        return dtype

    def check_fill(self, fill: Any, dtype: np.dtype[Any]) -> Any:
        """Return the fill value."""
        return fill

    def encode_fill(self, fill: Any, spec: ChunkSpec) -> Any:
        """Return the fill value."""
        return fill

    def resolve(self, spec: ChunkSpec) -> Codec:
        """Check that the block has the axis."""
        self.encode_spec(spec)
        return self

    def _integers(self, members: Mapping[str, int]) -> None:
        """Check that just these members are there, each an integer of at least its least value."""
        if set(self.configuration) != set(members):
            raise self.invalid(f"expects {sorted(members)}, not {sorted(self.configuration)}")
        for name, least in members.items():
            value = self.configuration[name]
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
                raise self.invalid(f"{name} must be an integer of at least {least}, not {value!r}")
            self.configuration[name] = operator.index(value)


class Pick(_View):
    """The stored block has one axis more: place `axis`, `length` long, of which `index` is taken.

    With a member `step`, the axis stays: decoded element ``i`` along it is the stored element
    ``index + i * step``; the step may be negative.
    """

    def validate(self) -> None:
        """Check that the index lies within the stored axis."""
        steps = {"step": -(2**62)} if "step" in self.configuration else {}
        self._integers({"axis": 0, "index": 0, "length": 1, **steps})
        if self.configuration["index"] >= self.configuration["length"]:
            raise self.invalid(f"no index {self.configuration['index']} on an axis so short")
        if self.step == 0:
            raise self.invalid("step must not be 0")

    @property
    def step(self) -> int | None:
        """The step, None if the axis is taken away."""
        return self.configuration.get("step")

    def encode_spec(self, spec: ChunkSpec) -> ChunkSpec:
        """Return the spec with the whole axis."""
        axis, index, length = (self.configuration[key] for key in ("axis", "index", "length"))
        shape = list(spec.shape)
        if axis >= len(shape) + (self.step is None):
            raise self.invalid(f"a block of {len(shape)} axes has no axis {axis}")
        if self.step is None:
            shape.insert(axis, length)
        else:
            last = index + self.step * (max(shape[axis], 1) - 1)
            if not 0 <= last < length:
                raise self.invalid(f"index {last} does not lie on a stored axis of {length}")
            shape[axis] = length
        return spec._replace(shape=tuple(shape))

    def decode(self, block: Block, spec: ChunkSpec) -> Block:
        """Return the part, a view."""
        axis, index, step = self.configuration["axis"], self.configuration["index"], self.step
        if step is None:
            return block[(slice(None),) * axis + (index,)]
        stop = index + step * spec.shape[axis]
        part = slice(index, stop if stop >= 0 else None, step)
        return block[(slice(None),) * axis + (part if spec.shape[axis] else slice(0),)]


class Repeat(_View):
    """The stored block has one axis less: it is the same at every index of `axis`."""

    def validate(self) -> None:
        """Check the axis."""
        self._integers({"axis": 0})

    def encode_spec(self, spec: ChunkSpec) -> ChunkSpec:
        """Return the spec without the axis."""
        axis = self.configuration["axis"]
        if axis >= len(spec.shape):
            raise self.invalid(f"a block of {len(spec.shape)} axes has no axis {axis}")
        return spec._replace(shape=spec.shape[:axis] + spec.shape[axis + 1 :])

    def decode(self, block: Block, spec: ChunkSpec) -> Block:
        """Return the repeated block, which takes no more memory than one."""
        return np.broadcast_to(np.expand_dims(block, self.configuration["axis"]), spec.shape)
