"""Tiles of compressed FITS images: the integers in them, and floats that were made integers.

Source: FITS standard 4.0, section 10. What other packages know, too (RICE_1, GZIP_1 of floats), is
decoded by their codecs.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs.core.base import (
    ArrayArray,
    ArrayBytes,
    Block,
    Buffer,
    ChunkSpec,
    Codec,
    as_u1,
)
from virtualzarr.errors import MissingDependencyError

_RANDOM = 10_000
_PLANES = 60
_ZERO = -2147483646
"""What SUBTRACTIVE_DITHER_2 stores for a zero."""


class ReadOnlyCodec(ArrayBytes):
    """What codecs of FITS have in common: they only decode, and nobody else knows them."""

    compressor = True
    in_v2 = False
    members: frozenset[str] = frozenset()

    def validate(self) -> None:
        """Check that just the members of the codec are there."""
        if set(self.configuration) != self.members:
            raise self.invalid(f"the members are {sorted(self.members)}")

    def is_portable(self, zarr_format: int) -> bool:
        """Return False: no other package knows this codec."""
        return False

    def _fitting(self, values: Block, spec: ChunkSpec) -> Block:
        """Return integers in the type of the block, which must hold them."""
        if values.size != spec.size:
            raise self.error(f"decoded {values.size} elements, the block needs {spec.size}")
        cast = values.astype(spec.dtype)
        if values.dtype.itemsize > spec.dtype.itemsize and (cast != values).any():
            raise self.error(f"a decoded number does not fit {spec.dtype}")
        return cast.reshape(spec.shape)


class Integers(ReadOnlyCodec):
    """Big-endian integers of 1, 2, 4 or 8 bytes: as many as a tile has bytes for each element.

    The only member, `shuffled`, says whether their first bytes come first, then their second, and
    so on. Tiles of one byte are unsigned.
    """

    members = frozenset({"shuffled"})

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return the integers."""
        flat = as_u1(data)
        width, rest = divmod(flat.size, spec.size)
        if rest or width not in (1, 2, 4, 8):
            raise self.size_error(flat.size, spec.nbytes)
        if width == 1:
            return self._fitting(flat, spec)
        if self.configuration["shuffled"]:
            flat = np.ascontiguousarray(flat.reshape(width, -1).T).reshape(-1)
        return self._fitting(flat.view(f">i{width}"), spec)


class Plio(ReadOnlyCodec):
    """IRAF's line lists of masks (PLIO_1): runs of one value, in instructions of 16 bits."""

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return the integers."""
        flat = as_u1(data)
        words = flat[: flat.size // 2 * 2].view(">i2").astype(np.int64)
        if words.size < 3:
            raise self.error("the line list is too short")
        # The header says how long the list is: in its third word, or in the fourth and fifth.
        first, count = 3, int(words[2])
        if count <= 0:
            if words.size < 7:
                raise self.error("the line list is too short")
            first, count = int(words[1]), (int(words[4]) << 15) + int(words[3])
        if not 3 <= first <= count <= words.size:
            raise self.error(f"the line list has {words.size} words, its header says {count}")
        values = _run_instructions(words[first:count], spec.size)
        if values is None:
            raise self.error(
                "the line list has unknown instructions, or goes on beyond "
                f"the {spec.size} elements of the block"
            )
        return self._fitting(values, spec)


# What the instructions of a line list do, by their code. The value is 1 at first.
_SET = 1
_LAST = 7
_STEP = np.array([0, 0, 1, -1, 0, 0, 1, -1, *[0] * 8])  # what is added to the value
_ZEROS = np.array([1, 0, 0, 0, 0, 1, 0, 0, *[0] * 8])  # as many zeros
_ENDS = np.array([0, 0, 0, 0, 0, 1, 0, 0, *[0] * 8])  # of which the last one is the value
_REPEATS = np.array([0, 0, 0, 0, 1, 0, 0, 0, *[0] * 8])  # as many times the value
_ONCE = np.array([0, 0, 0, 0, 0, 0, 1, 1, *[0] * 8])  # the value


def _run_instructions(words: NDArray[np.int64], size: int) -> NDArray[np.int64] | None:
    """Carry out the instructions of a line list; None if any is unknown, or beyond the end."""
    if not len(words):
        return np.zeros(size, np.int64)
    codes, numbers = words >> 12 & 15, words & 4095
    base: Any = 1
    sets = codes == _SET
    if sets.any():
        # The next word is for the upper bits: that is no instruction.
        sets = _every_other(sets)
        keep = np.append(True, ~sets[:-1])
        numbers = numbers + (np.append(words[1:], 0) << 12) * sets
        codes, numbers, sets = codes[keep], numbers[keep], sets[keep]
    if codes.max() > _LAST:
        return None
    sums = np.cumsum(_STEP[codes] * numbers)
    if sets.any():
        last = np.maximum.accumulate(np.where(sets, np.arange(len(codes)), -1))
        base = np.where(last >= 0, (numbers - sums)[last], base)
    values = sums + base
    ends = _ENDS[codes] * (numbers > 0)
    counts = np.empty((len(codes), 2), np.int64)
    counts[:, 0] = _ZEROS[codes] * numbers - ends
    counts[:, 1] = _REPEATS[codes] * numbers + _ONCE[codes] + ends
    missing = size - int(counts.sum())
    if missing < 0:
        return None
    pairs = np.zeros((len(values), 2), np.int64)
    pairs[:, 1] = values
    elements = np.repeat(pairs.reshape(-1), counts.reshape(-1))
    return np.append(elements, np.zeros(missing, np.int64)) if missing else elements


def _every_other(marks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the first, third, ... mark of each run of marks.

    Examples
    --------
    >>> _every_other(np.array([1, 1, 1, 0, 1, 1], bool)).astype(int)
    array([1, 0, 1, 0, 1, 0])
    """
    places = np.arange(len(marks))
    before = np.maximum.accumulate(np.where(marks, -1, places))
    return marks & ((places - before) % 2 == 1)


_lock = threading.Lock()  # cfitsio's decoder of HCOMPRESS keeps its state in global variables


class HCompress(ReadOnlyCodec):
    """HCOMPRESS_1: a wavelet transform, undone by cfitsio's code in astropy.

    The only member is `smooth`.
    """

    members = frozenset({"smooth"})

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return the integers."""
        decompress, failure = _hdecompress()
        rows, columns = self._edges(spec)
        raw = bytes(as_u1(data))
        scale = self._checked(raw, rows, columns)
        # It does not know where the data end: zeros follow, more than it can ask for.
        planes = max(raw[22:25])
        padded = raw + bytes((planes + 4) * (rows + 16) * (columns + 16) // 2)
        smooth = int(self.configuration["smooth"])
        try:
            with _lock:
                found = decompress(padded, rows, columns, scale, smooth, 8)
        except (ValueError, failure) as error:
            raise self.error(f"cfitsio cannot decode: {error}") from error
        return self._fitting(np.frombuffer(found, "i4"), spec)

    def _edges(self, spec: ChunkSpec) -> tuple[int, int]:
        edges = [length for length in spec.shape if length != 1]
        if len(edges) != 2:
            raise self.error(f"HCOMPRESS_1 has images, not blocks of shape {spec.shape}")
        return edges[0], edges[1]

    def _checked(self, raw: bytes, rows: int, columns: int) -> int:
        """Check what the stream says of itself; return the scale."""
        if len(raw) < 25 or raw[:2] != b"\xdd\x99":
            raise self.error("it does not begin as a stream of HCOMPRESS does")
        first, second, scale = struct.unpack_from(">3i", raw, 2)
        if (first, second) != (rows, columns):
            raise self.error(
                f"the stream has an image of {first} x {second}, the block is {rows} x {columns}"
            )
        if max(raw[22:25]) > _PLANES:
            raise self.error(f"the stream has {max(raw[22:25])} bit planes")
        return scale


@lru_cache(1)
def _hdecompress() -> tuple[Callable[..., bytes], type[Exception]]:
    """Return cfitsio's decoder, and what it raises."""
    try:
        from astropy.io.fits.hdu.compressed import _compression
    except ImportError as error:
        raise MissingDependencyError(
            "HCOMPRESS_1 images of FITS are decoded by astropy (6.1 or later): "
            "pip install 'virtualzarr[fits]'"
        ) from error
    return _compression.decompress_hcompress_1_c, _compression.CfitsioException


class Quantized(ArrayArray):
    """Floats that were stored as integers: ``stored * scale + zero``.

    Members are `data_type`, the type of the integers; `scale` and `zero`; `blank`, optional, which
    stands for NaN; `dither`, 0, 1 or 2 as in SUBTRACTIVE_DITHER_1; and `seed`, from 1 on, the
    number of the tile plus ZDITHER0 less 1. It calculates with float64. For reading only.
    """

    in_v2 = False

    def validate(self) -> None:
        """Check the members."""
        fields = self.configuration
        needed = {"data_type", "scale", "zero", "dither"}
        if not needed <= set(fields) <= needed | {"blank", "seed"}:
            raise self.invalid(f"needs {sorted(needed)}, and knows blank and seed")
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

    def is_portable(self, zarr_format: int) -> bool:
        """Return False: no other package knows this codec."""
        return False

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
    for place in range(_RANDOM):
        seed = 16807 * seed % 2147483647
        numbers[place] = seed
    return (numbers / 2147483647.0).astype(np.float32).astype(np.float64)


def _random_sequence(seed: int, size: int) -> NDArray[np.float64]:
    """Return the random numbers for the elements of a tile."""
    numbers = _random_numbers()
    row = (seed - 1) % _RANDOM
    first = int(np.float32(numbers[row]) * np.float32(500))
    if first + size <= _RANDOM:
        return numbers[first : first + size]
    parts: list[NDArray[np.float64]] = []
    while size > 0:
        first = int(np.float32(numbers[row]) * np.float32(500))
        parts.append(numbers[first : first + size])
        size -= len(parts[-1])
        row = (row + 1) % _RANDOM
    return np.concatenate(parts)
