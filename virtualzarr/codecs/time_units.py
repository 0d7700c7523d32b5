"""The `virtualzarr.time` codec: times of one unit and epoch, decoded to another unit and epoch."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import Block, ChunkSpec, Codec, ElementCast
from virtualzarr.codecs.core.netcdf_fill import NETCDF_FILL
from virtualzarr.codecs.core.scalars import equal_scalars
from virtualzarr.errors import CodecError

# Those of all data types: blocks may have been widened.
_NETCDF_FILL = tuple(NETCDF_FILL.values())
NAT = np.iinfo(np.int64).min
"""What a missing time is."""


class TimeUnits(ElementCast):
    """Decodes ``stored * factor + shift`` to int64, exactly or with an error.

    Members are `data_type`, the dtype of what is stored; the integers `factor` and `shift`;
    `masks`, stored numbers that mean no time, as NaN does; `least`, the first result for which
    calendars agree; and `fill`, the stored fill value, which means no time if it has no place in
    the other unit. Floats are multiplied as such, and the
    product cut to an integer, as xarray decodes times to nanoseconds. For reading only.
    """

    def validate(self) -> None:
        """Check the members."""
        fields = self.configuration
        self.check_members(["data_type", "factor", "shift"], ["masks", "least", "fill"])
        for name in ("factor", "shift", "least"):
            value = fields.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, int):
                raise self.invalid(f"{name} must be an integer, not {value!r}")
        if fields["factor"] < 1:
            raise self.invalid(f"factor must be positive, not {fields['factor']}")
        if not isinstance(fields.get("masks", []), list | tuple):
            raise self.invalid(f"masks must be a list, not {fields['masks']!r}")
        if self.get_dtype("data_type").kind not in "iuf":
            raise self.invalid(f"data_type must be a dtype of numbers, not {fields['data_type']!r}")

    def resolve(self, spec: ChunkSpec) -> Codec:
        """Check that the array is one of int64."""
        if spec.dtype != np.int64:
            raise self.invalid(f"decodes to int64, the array is {spec.dtype}")
        return self

    def decode(self, block: Block, spec: ChunkSpec) -> Block:
        """Return the times in the other unit."""
        fields = self.configuration
        absent = np.zeros(block.shape, bool) if block.dtype.kind != "f" else np.isnan(block)
        if block.dtype == np.int64:
            absent |= block == NAT
        for mask in equal_scalars(fields.get("masks", ()), block.dtype):
            absent |= block == mask
        for fill in self._no_times:
            absent |= block == fill
        present = ~absent
        result = np.full(block.shape, NAT, np.int64)
        result[present] = self._convert(block[present])
        return result

    @property
    def fill_is_no_time(self) -> bool:
        """Whether the stored fill value has no place in the other unit."""
        return self.configuration.get("fill", 0) in self._no_times

    @cached_property
    def _no_times(self) -> list[Any]:
        """Fill values, of the array and of netCDF, that have no place in the other unit.

        Blocks hold them where nothing was ever written, also past the ends of arrays.
        """
        dtype, fills = self.get_dtype("data_type"), []
        for fill in equal_scalars((self.configuration.get("fill", 0), *_NETCDF_FILL), dtype):
            try:
                self._convert(np.array([fill]))
            except CodecError:
                fills.append(fill)
        return fills

    def _convert(self, values: Block) -> Block:
        if not values.size:
            return values.astype(np.int64)
        factor, shift = self.configuration["factor"], self.configuration["shift"]
        if values.dtype.kind == "f":
            # As xarray does it, so that both give the same nanoseconds for fractions of days.
            product = values.astype(np.float64) * np.int64(factor)
            if not (np.abs(product) < 2.0**63).all():
                raise self.error("a time does not fit into 64 bits")
            values, factor = product.astype(np.int64), 1
        # Only the extremes, as Python integers, which do not overflow: the function rises
        # everywhere.
        ends = [int(end) * factor + shift for end in (values.min(), values.max())]
        if min(ends) <= NAT or max(ends) > np.iinfo(np.int64).max:
            raise self.error("a time does not fit into 64 bits")
        # Whatever overflows on the way comes back: the result fits.
        words = values.astype(np.int64).view(np.uint64)
        words = words * np.uint64(factor % 2**64) + np.uint64(shift % 2**64)
        result = words.view(np.int64)
        earliest = self.configuration.get("least")
        if earliest is not None and (result < earliest).any():
            raise self.error("a time before 1582-10-15, where the calendars differ")
        return result

    def encode_fill(self, fill: Any, spec: ChunkSpec) -> Any:
        """Return the fill value of what is stored."""
        return self.configuration.get("fill", 0)
