"""The `virtualzarr.tiff_gel` codec: intensities that gel scanners store as integers."""

from __future__ import annotations

import math

import numpy as np

from virtualzarr.codecs.core.base import Block, ChunkSpec, Codec, ElementCast


class TiffGel(ElementCast):
    """Integers that stand for floats of 32 bits (MD Gel, tags 33445 and 33446 of TIFF).

    Members of the configuration:

    * ``data_type``: numpy's name of the type of what is stored;
    * ``scale``: the number that each element, as a float of 32 bits, is multiplied by;
    * ``square``: whether it is squared before.

    Examples
    --------
    >>> from virtualzarr.codecs import Pipeline, make
    >>> gel = make("virtualzarr.tiff_gel", data_type="uint8", scale=0.5, square=True)
    >>> Pipeline([gel, "bytes"]).for_block((3,), np.dtype("f4")).decode(bytes([1, 2, 3]))
    array([0.5, 2. , 4.5], dtype=float32)
    """

    portable_formats = ()

    def validate(self) -> None:
        """Check the members."""
        self.check_members(["data_type", "scale", "square"])
        scale, square = self.configuration["scale"], self.configuration["square"]
        if not isinstance(scale, int | float) or not math.isfinite(scale) or square not in (0, 1):
            raise self.invalid("scale is a number, square is true or false")
        if self.dtype.kind not in "iu":
            raise self.invalid(f"{self.dtype} is no type of integers")

    def resolve(self, spec: ChunkSpec) -> Codec:
        """Check the type of what comes out."""
        if spec.dtype != np.float32:
            raise self.invalid(f"gives float32, not {spec.dtype}")
        return self

    def decode(self, block: Block, spec: ChunkSpec) -> Block:
        """Compute what tifffile does, operation by operation."""
        values = block.astype(np.float32)
        if self.configuration["square"]:
            # In float32 throughout: doubles would round otherwise than tifffile.
            values = values**2
        return values * float(self.configuration["scale"])
