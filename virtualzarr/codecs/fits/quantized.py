"""Floats of compressed FITS images that were quantized to integers, dithered or not."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs.core.base import ArrayArray, Block, ChunkSpec, Codec

_RANDOM = 10_000
_ZERO = -2147483646
"""What SUBTRACTIVE_DITHER_2 stores for a zero."""


class Quantized(ArrayArray):
    """Floats that were stored as integers: ``stored * scale + zero``.

    Members are `data_type`, the type of the integers; `scale` and `zero`; `blank`, optional, which
    stands for NaN; `dither`, 0, 1 or 2 as in SUBTRACTIVE_DITHER_1; and `seed`, from 1 on, the
    number of the tile plus ZDITHER0 less 1. It calculates with float64. For reading only.
    """

    portable_formats = ()
    in_v2 = False

    def validate(self) -> None:
        """Check the members."""
        fields = self.configuration
        self.check_members(["data_type", "scale", "zero", "dither"], ["blank", "seed"])
        if fields["data_type"] not in ("uint8", "int16", "int32", "int64"):
            raise self.invalid(f"there are no integers of type {fields['data_type']!r}")
        for name in ("scale", "zero"):
            if not isinstance(fields[name], int | float):
                raise self.invalid(f"{name} must be a number, not {fields[name]!r}")
        if fields["dither"] not in (0, 1, 2):
            raise self.invalid(f"dither must be 0, 1 or 2, not {fields['dither']!r}")
        seed = fields.get("seed")
        if fields["dither"] and (not isinstance(seed, int) or seed < 1):
            raise self.invalid(f"seed must be a positive integer, not {seed!r}")

    def encode_spec(self, spec: ChunkSpec) -> ChunkSpec:
        """Return the spec of the integers."""
        return ChunkSpec(spec.shape, np.dtype(self.configuration["data_type"]))

    def resolve(self, spec: ChunkSpec) -> Codec:
        """Check that the array has floats."""
        if spec.dtype.kind != "f":
            raise self.invalid(f"makes floats, not {spec.dtype}")
        return self

    def encode_fill(self, fill: Any, spec: ChunkSpec) -> Any:
        """Return a number: nothing that is missing is in a tile."""
        return 0

    def decode(self, block: Block, spec: ChunkSpec) -> Block:
        """Return the floats."""
        fields = self.configuration
        dither, blank = fields["dither"], fields.get("blank")
        stored = block.reshape(-1)
        with np.errstate(all="ignore"):
            values = stored.astype(np.float64)
            if dither:
                # Subtractive dithering (10.2): the random number that was added before rounding is
                # taken off.
                values -= _random_sequence(fields["seed"], stored.size)
                values += 0.5
            values *= fields["scale"]
            values += fields["zero"]
            values = values.astype(spec.dtype, copy=False)
        if dither == 2 and stored.dtype.itemsize >= 4:
            values[stored == _ZERO] = 0.0
        if blank is not None:
            values[stored == blank] = np.nan
        return values.reshape(spec.shape)


@lru_cache(1)
def _random_numbers() -> NDArray[np.float64]:
    """Return the random numbers of FITS standard 4.0, appendix I: they have single precision."""
    numbers = np.empty(_RANDOM, np.float64)
    seed = 1
    for i in range(_RANDOM):
        seed = 16807 * seed % 2147483647
        numbers[i] = seed
    return (numbers / 2147483647.0).astype(np.float32).astype(np.float64)


def _random_sequence(seed: int, size: int) -> NDArray[np.float64]:
    """Return the random numbers for the elements of a tile."""
    numbers = _random_numbers()
    row = (seed - 1) % _RANDOM
    first = int(np.float32(numbers[row]) * np.float32(500))
    if first + size <= _RANDOM:
        return numbers[first : first + size]
    parts: list[NDArray[np.float64]] = []
    # At the end of the list the next seed's start is taken, as the standard's appendix I has it.
    while size > 0:
        first = int(np.float32(numbers[row]) * np.float32(500))
        parts.append(numbers[first : first + size])
        size -= len(parts[-1])
        row = (row + 1) % _RANDOM
    return np.concatenate(parts)
