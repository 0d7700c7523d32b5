"""The `scale_offset` codec of v3: minus an offset, times a scale, in the array's own arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import ArrayArray, Block, ChunkSpec, Codec
from virtualzarr.codecs.core.numbers import is_narrow, limits, number_format, plain_integers
from virtualzarr.codecs.core.rounding import cast
from virtualzarr.codecs.core.scalars import number_from_json
from virtualzarr.errors import CodecError, MetadataError


class ScaleOffset(ArrayArray):
    """Stored is ``(x - offset) * scale``, read ``x / scale + offset``.

    Source: zarr-extensions, codecs/scale_offset. Every step has the array's dtype; a result that
    the dtype cannot hold is an error: an integer out of range or a quotient that is none, a float
    that overflows.
    """

    in_v2 = False

    def validate(self) -> None:
        """Check the members; their values depend on the dtype."""
        self.check_members((), ["offset", "scale"])

    def resolve(self, spec: ChunkSpec) -> Codec:
        """Check offset and scale with the dtype of the array."""
        number = number_format(spec.dtype)
        if number is None or number.kind not in "iuf":
            raise self.invalid(f"is not defined for {spec.dtype}")
        _, scale = self._parameters(spec.dtype)
        if scale == 0 or scale != scale or abs(float(scale)) == np.inf:
            raise self.invalid(f"a scale of {scale} cannot be undone")
        return self

    def _parameters(self, dtype: np.dtype[Any]) -> tuple[Any, Any]:
        """Return offset and scale as scalars of `dtype`; Python integers where it is integral."""
        number = number_format(dtype)
        values = []
        for key in ("offset", "scale"):
            try:
                value = number_from_json(self.configuration[key], dtype)
            except KeyError:
                # Not every float format has a zero: what is absent is not applied.
                value = int(key == "scale")
            except MetadataError as error:
                raise self.invalid(f"{key}: {error.message}") from error
            # Python's integers do not overflow, so that bounds can be checked before calculating.
            values.append(int(value) if number is not None and number.kind in "iu" else value)
        return values[0], values[1]

    def is_identity(self, spec: ChunkSpec) -> bool:
        """Whether nothing is configured."""
        return not self.configuration

    def decode(self, block: Block, spec: ChunkSpec) -> Block:
        """Return ``block / scale + offset``."""
        return self._apply(block, spec.dtype, (("scale", "/"), ("offset", "+")))

    def encode(self, block: Block, spec: ChunkSpec) -> Block:
        """Return ``(block - offset) * scale``."""
        block = np.asarray(block, spec.dtype)
        return self._apply(block, spec.dtype, (("offset", "-"), ("scale", "*")))

    def _apply(
        self, block: Block, dtype: np.dtype[Any], steps: tuple[tuple[str, str], ...]
    ) -> Block:
        offset, scale = self._parameters(dtype)
        number = number_format(dtype)
        assert number is not None
        integral = number.kind in "iu"
        if integral:
            block = plain_integers(block)
        for name, operation in steps:
            if name not in self.configuration or not block.size:
                continue
            value = offset if name == "offset" else scale
            if integral:
                block = self._apply_integer(block, operation, value, limits(number), dtype)
            else:
                block = self._apply_float(block, operation, value, dtype)
        return cast(block, dtype) if integral else block

    def _apply_integer(
        self, block: Block, operation: str, value: int, bounds: tuple[int, int], dtype: Any
    ) -> Block:
        """Calculate with integers: if the extremes fit, so does everything between."""
        low, high = int(block.min()), int(block.max())
        if operation == "/":
            divisor = np.array(value, block.dtype)
            if value == -1:  # numpy's remainder of the least integer by -1 is no number
                operation, value = "*", -1
            elif (block % divisor).any():
                raise self.error(f"the quotient by {value} is no integer of {dtype.name}")
            else:
                return block // divisor
        ends = [_calculate(end, operation, value) for end in (low, high)]
        if min(ends) < bounds[0] or max(ends) > bounds[1]:
            culprit = low if not bounds[0] <= ends[0] <= bounds[1] else high
            raise self.error(f"{culprit} {operation} {value} is not in the range of {dtype.name}")
        return _calculate(block, operation, np.array(value, block.dtype))

    def _apply_float(self, block: Block, operation: str, value: Any, dtype: np.dtype[Any]) -> Block:
        wide = is_narrow(dtype)  # float64 holds more than twice their bits: rounded but once
        with np.errstate(all="ignore"):
            operand = block.astype("f8") if wide else block
            result = _calculate(operand, operation, operand.dtype.type(value))
        # Infinities and NaN that were there before are values; new ones are overflow.
        overflow = ~np.isfinite(result) & np.isfinite(operand)
        if overflow.any():
            culprit = operand[overflow].reshape(-1)[0]
            raise self.error(f"{culprit} {operation} {value} is not in the range of {dtype.name}")
        if not wide:
            return result
        try:
            return cast(result, dtype)
        except CodecError as error:
            raise self.error(error.message) from error

    def check_fill(self, fill: Any, dtype: np.dtype[Any]) -> Any:
        """Return the fill value as it is stored."""
        spec = ChunkSpec((1,), dtype)
        self.resolve(spec)
        return self.encode(np.array([fill], dtype), spec)[0]


def _calculate(a: Any, operation: str, b: Any) -> Any:
    if operation == "+":
        return a + b
    if operation == "-":
        return a - b
    return a * b if operation == "*" else a / b
