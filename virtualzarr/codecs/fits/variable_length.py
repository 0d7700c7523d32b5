"""Arrays of variable length in FITS tables."""

from __future__ import annotations

import numpy as np

from virtualzarr.codecs.core.base import Block, Buffer, ChunkSpec, as_u1
from virtualzarr.codecs.fits.read_only import ReadOnlyCodec


class Cell(ReadOnlyCodec):
    """One array of variable length, all elements of a chunk of one cell.

    Source: FITS standard 4.0, section 7.3.5. Members are `data_type`, as stored; `text`, optional,
    for characters, which end at the first NUL; and `scale` and `zero`, optional: elements are then
    float64, or unsigned where just their offset says so.
    """

    def validate(self) -> None:
        """Check the members."""
        fields = self.configuration
        self.check_members(["data_type"], ["text", "scale", "zero"])
        self._dtype = self.get_dtype("data_type")
        if self._dtype.hasobject or not self._dtype.itemsize:
            raise self.invalid(f"there are no elements of type {self._dtype}")
        for name in ("scale", "zero"):
            if not isinstance(fields.get(name, 0), int | float):
                raise self.invalid(f"{name} must be a number, not {fields[name]!r}")

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return the array as the only element of an array of objects."""
        flat = as_u1(data)
        if spec.size != 1 or flat.size % self._dtype.itemsize:
            raise self.error(f"{flat.size} bytes are no array of {self._dtype} of one cell")
        cell = np.empty(1, object)
        if self.configuration.get("text"):
            cell[0] = flat.tobytes().split(b"\0")[0].rstrip(b" ").decode("latin-1")
        else:
            cell[0] = self._apply_scale(flat.view(self._dtype))
        return cell.reshape(spec.shape)

    def _apply_scale(self, stored: Block) -> Block:
        fields = self.configuration
        values = stored.astype(stored.dtype.newbyteorder("="))
        scale, zero = fields.get("scale", 1), fields.get("zero", 0)
        if scale == 1 and zero == 0:
            return values
        size = values.dtype.itemsize
        if scale == 1 and values.dtype.kind == "i" and zero == 2 ** (8 * size - 1):
            # The standard's convention for unsigned integers: flipping the top bit is exact.
            return values.view(f"u{size}") ^ np.array(zero, f"u{size}")
        with np.errstate(all="ignore"):
            return values.astype(np.float64) * scale + zero
