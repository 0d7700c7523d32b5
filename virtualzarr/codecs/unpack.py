"""The `virtualzarr.unpack` codec: masks, scale and offset of the CF conventions undone."""

from __future__ import annotations

from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import Block, ChunkSpec, Codec, ElementCast
from virtualzarr.codecs.core.scalars import equal_scalars

_OPTIONAL = ("view", "masks", "scale_factor", "add_offset", "factors", "fill")


class Unpack(ElementCast):
    """Decodes ``stored * scale_factor + add_offset``, and NaN where `masks` has the stored number.

    Source: CF conventions 1.11, sections 2.5.1 and 8.1. Members are `data_type`, the dtype of what
    is stored; `view`, the dtype it is looked at as (``_Unsigned``); `masks`; `calculated`, the
    dtype of the results; `factors`, that of the scale and offset, if it is another, in which each
    step is calculated before it is rounded; and `fill`, the stored fill value. For reading only.
    """

    def validate(self) -> None:
        """Check the members."""
        fields = self.configuration
        self.check_members(["data_type", "calculated"], _OPTIONAL)
        for name in ("data_type", "view", "calculated", "factors"):
            if name in fields and self.get_dtype(name).kind not in "iufc":
                raise self.invalid(f"{name} must be a dtype of numbers, not {fields[name]!r}")
        if "view" in fields and self.get_dtype("view").itemsize != self.dtype.itemsize:
            raise self.invalid("view must be as wide as data_type")
        if not isinstance(fields.get("masks", []), list | tuple):
            raise self.invalid(f"masks must be a list, not {fields['masks']!r}")
        if fields.get("masks") and self.get_dtype("calculated").kind not in "fc":
            raise self.invalid("masked numbers become NaN, for which calculated must be a float")

    def resolve(self, spec: ChunkSpec) -> Codec:
        """Check that the array's dtype holds what is calculated."""
        if not np.can_cast(self.get_dtype("calculated"), spec.dtype, "same_kind"):
            raise self.invalid(
                f"calculates {self.get_dtype('calculated')}, the array is {spec.dtype}"
            )
        return self

    def decode(self, block: Block, spec: ChunkSpec) -> Block:
        """Return the unpacked numbers."""
        fields = self.configuration
        # _Unsigned of the netCDF users' guide: the bits are kept, their sign is read otherwise.
        if "view" in fields:
            block = block.view(self.get_dtype("view"))
        calculated = self.get_dtype("calculated")
        factors = self.get_dtype("factors") if "factors" in fields else calculated
        masked = [block == mask for mask in equal_scalars(fields.get("masks", ()), block.dtype)]
        with np.errstate(all="ignore"):
            # Masks are compared before unpacking (CF, section 8.1), as stored numbers.
            values = block.astype(calculated)
            if "scale_factor" in fields:
                values *= factors.type(fields["scale_factor"])
            if "add_offset" in fields:
                values += factors.type(fields["add_offset"])
            if masked:
                values[np.logical_or.reduce(masked)] = np.nan
            return values.astype(spec.dtype, copy=False)

    def encode_fill(self, fill: Any, spec: ChunkSpec) -> Any:
        """Return the fill value of what is stored."""
        return self.configuration.get("fill", 0)
