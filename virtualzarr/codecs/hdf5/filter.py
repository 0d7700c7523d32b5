"""Base of codecs that hold the parameters of an HDF5 filter as HDF5 stores them."""

from __future__ import annotations

from typing import Any

from virtualzarr.codecs.core.base import BytesBytes


class Filter(BytesBytes):
    """A filter with a list of parameters."""

    needed = 0

    def validate(self) -> None:
        """Check that there are enough parameters."""
        values = self.configuration.get("parameters")
        if set(self.configuration) != {"parameters"} or not isinstance(values, list | tuple):
            raise self.invalid("the only member is a list of parameters")
        if len(values) < self.needed or not all(_is_u4(value) for value in values):
            raise self.invalid(f"needs {self.needed} unsigned 32-bit parameters, not {values!r}")
        self.configuration["parameters"] = list(values)
        self.check(self.configuration["parameters"])

    def check(self, values: list[int]) -> None:
        """Check the values of the parameters."""


def _is_u4(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32
