"""The `cast_value` codec of v3: the same numbers in another dtype."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import Block, ChunkSpec, Codec, ElementCast
from virtualzarr.codecs.core.numbers import NARROW, narrow_dtype, number_format
from virtualzarr.codecs.core.rounding import OUT_OF_RANGE, ROUNDINGS, cast
from virtualzarr.codecs.core.scalars import number_from_json
from virtualzarr.errors import CodecError, MetadataError

_PLAIN = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
_PLAIN += ["float16", "float32", "float64"]


class CastValue(ElementCast):
    """Numbers are cast to `data_type` for storing, and back.

    Source: zarr-extensions, codecs/cast_value. Exact values stay; others are rounded as `rounding`
    says; what is out of range is an error, or clamped or wrapped as `out_of_range` says. Values in
    `scalar_map` are mapped before anything else; NaN there means every NaN.
    """

    portable_formats = ()
    # zarr-python has it from 3.2 on, and only where another package is installed.

    def validate(self) -> None:
        """Check the members."""
        fields = self.configuration
        self.check_members(["data_type"], ["rounding", "out_of_range", "scalar_map"])
        # What depends on the array's dtype, as the numbers of the map do, is checked by `resolve`.
        target = number_format(self.dtype)
        assert target is not None
        if self._rounding not in ROUNDINGS:
            raise self.invalid(f"rounding must be one of {ROUNDINGS}, not {self._rounding!r}")
        beyond = fields.get("out_of_range")
        if beyond not in (None, *OUT_OF_RANGE):
            raise self.invalid(f"out_of_range must be one of {OUT_OF_RANGE}, not {beyond!r}")
        if beyond == "wrap" and target.kind == "f":
            raise self.invalid(f"out_of_range: wrap is for integers, not {self.dtype.name}")
        maps = fields.get("scalar_map")
        if maps is None:
            return
        if not isinstance(maps, dict) or set(maps) - {"encode", "decode"}:
            raise self.invalid(f"scalar_map must be an object with encode and decode, not {maps!r}")
        for pairs in maps.values():
            if not isinstance(pairs, list | tuple):
                raise self.invalid(f"scalar_map: must be lists of pairs, not {pairs!r}")
            for pair in pairs:
                if not isinstance(pair, list | tuple) or len(pair) != 2:
                    raise self.invalid(f"scalar_map: {pair!r} is not a pair")

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of what is stored."""
        name = self.configuration["data_type"]
        if isinstance(name, dict) and not name.get("configuration"):
            name = name.get("name")
        if name in _PLAIN:
            return np.dtype(name)
        if not isinstance(name, str) or name not in NARROW or NARROW[name].kind == "c":
            raise self.invalid(f"data_type must be one of integers or floats, not {name!r}")
        return narrow_dtype(name)

    @property
    def _rounding(self) -> str:
        return self.configuration.get("rounding", "nearest-even")

    def resolve(self, spec: ChunkSpec) -> Codec:
        """Check the dtype of the array and, with it, the map."""
        number = number_format(spec.dtype)
        if number is None or number.kind not in "iuf":
            raise self.invalid(f"casts integers and floats, the array is {spec.dtype}")
        self._map("encode", spec.dtype, self.dtype)
        self._map("decode", self.dtype, spec.dtype)
        return self

    def _map(self, way: str, source: np.dtype[Any], target: np.dtype[Any]) -> list[tuple[Any, Any]]:
        pairs = (self.configuration.get("scalar_map") or {}).get(way, ())
        try:
            return [(_scalar(a, source), _scalar(b, target)) for a, b in pairs]
        except MetadataError as error:
            raise self.invalid(f"scalar_map: {way}: {error.message}") from error

    def is_identity(self, spec: ChunkSpec) -> bool:
        """Whether there is nothing to cast or map when decoding."""
        pairs = (self.configuration.get("scalar_map") or {}).get("decode")
        return spec.dtype == self.dtype and not pairs

    def decode(self, block: Block, spec: ChunkSpec) -> Block:
        """Return the numbers in the array's dtype."""
        return self._cast(block, spec.dtype, self._map("decode", self.dtype, spec.dtype))

    def encode(self, block: Block, spec: ChunkSpec) -> Block:
        """Return the numbers in the stored dtype."""
        block = np.asarray(block, spec.dtype)
        return self._cast(block, self.dtype, self._map("encode", spec.dtype, self.dtype))

    def _cast(self, block: Block, dtype: np.dtype[Any], pairs: list[tuple[Any, Any]]) -> Block:
        number = number_format(dtype)
        beyond = self.configuration.get("out_of_range")
        # Wrapping is for the integers of one side; back to floats there is nothing to wrap.
        if number is not None and number.kind == "f" and beyond == "wrap":
            beyond = None
        matches = []
        for key, value in pairs[::-1]:  # the first of several pairs is to win
            same = np.isnan(block) if key != key else block == key
            matches.append((same, value))
        if matches:
            mapped = np.logical_or.reduce([same for same, _ in matches])
            block = np.where(mapped, np.ones((), block.dtype), block)
        try:
            result = cast(block, dtype, self._rounding, beyond)
        except CodecError as error:
            raise self.error(error.message) from error
        for same, value in matches:
            result = np.where(same, value, result)
        return result

    def check_fill(self, fill: Any, dtype: np.dtype[Any]) -> Any:
        """Return the fill value as it is stored; raise `CodecError` if it does not come back."""
        spec = ChunkSpec((1,), dtype)
        self.resolve(spec)
        block = np.array([fill], dtype)
        stored = self.encode(block, spec)
        # A fill value that comes back as another would turn chunks that are not stored into other
        # numbers.
        back = self.decode(stored, spec)
        if not (back == block).all() and not (back != back).all():
            raise self.invalid(f"makes {back[0]} of the fill value {block[0]}")
        return stored[0]

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable:
        """Return the configuration, without what only encoding uses."""
        maps = (self.configuration.get("scalar_map") or {}).get("decode", ())
        beyond = self.configuration.get("out_of_range")
        return ("CastValue", self.dtype.name, self._rounding, beyond, repr(list(maps)))


def _scalar(value: Any, dtype: np.dtype[Any]) -> Any:
    # An example of the specification spells it so, and so do its followers.
    return number_from_json("Infinity" if value == "+Infinity" else value, dtype)
