"""The `virtualzarr.pick` codec: one index, or every n-th, of a stored axis."""

from __future__ import annotations

from virtualzarr.codecs.core.base import Block, ChunkSpec, Rearrangement


class Pick(Rearrangement):
    """The stored block has one axis more: place `axis`, `length` long, of which `index` is taken.

    With a member `step`, the axis stays: decoded element ``i`` along it is the stored element
    ``index + i * step``; the step may be negative.
    """

    in_v2 = False

    def validate(self) -> None:
        """Check that the index lies within the stored axis."""
        steps = {"step": -(2**62)} if "step" in self.configuration else {}
        self.check_integers({"axis": 0, "index": 0, "length": 1, **steps})
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
        # A negative stop would count from the end of the axis.
        stop = index + step * spec.shape[axis]
        part = slice(index, stop if stop >= 0 else None, step)
        return block[(slice(None),) * axis + (part if spec.shape[axis] else slice(0),)]
