"""Coordinates of the rows of one segment: searched by the bounds of blocks, of which few are read.

Source: ``specs/dataset.md``, *Entries and segments*.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.errors import MetadataError
from virtualzarr.stores.lru_cache import LRUCache

_CHECKSUM = np.dtype("<u4")

_MOST_BYTES = 1 << 20
"""Blocks that are kept with an open segment, at most: one search after the other asks for them."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of coordinates that are stored one after the other.

    Attributes
    ----------
    rows : int
        In each of them; the last one may have fewer.
    count : int
        Rows in all.
    checksums : uint32 array, shape (blocks,)
        CRC-32 of their bytes.
    least, greatest : array, shape (blocks,)
        What lies in each of them.
    """

    rows: int
    count: int
    checksums: NDArray[np.uint32]
    least: NDArray[Any]
    greatest: NDArray[Any]

    @classmethod
    def describe(cls, values: NDArray[Any], rows: int) -> Blocks:
        """Return the blocks of some coordinates, which are contiguous, one row at least."""
        starts = np.arange(0, len(values), rows)
        sums = [zlib.crc32(values[start : start + rows].data) for start in starts.tolist()]
        least, greatest = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
        return cls(rows, len(values), np.array(sums, _CHECKSUM), least, greatest)

    def to_bytes(self) -> bytes:
        """Return what is stored of them, besides how many rows each has."""
        return b"".join(column.tobytes() for column in (self.checksums, self.least, self.greatest))

    @classmethod
    def from_bytes(cls, data: bytes, rows: int, nbytes: int, dtype: np.dtype[Any]) -> Blocks:
        """Return the blocks of coordinates that take so many bytes.

        Raises
        ------
        MetadataError
            These are not what was stored.
        """
        count, remainder = divmod(nbytes, dtype.itemsize)
        blocks = -(-count // rows) if type(rows) is int and rows > 0 else -1
        if remainder or len(data) != blocks * (_CHECKSUM.itemsize + 2 * dtype.itemsize):
            raise MetadataError("blocks of coordinates do not fit their rows")
        at = blocks * _CHECKSUM.itemsize
        bounds = np.frombuffer(data, dtype, 2 * blocks, at).reshape(2, blocks)
        return cls(rows, count, np.frombuffer(data, _CHECKSUM, blocks), *bounds)

    def narrow(self, value: Any, side: str, start: int, stop: int) -> tuple[int, int]:
        """Return rows among which a value belongs, of increasing ones from `start` to `stop`."""
        first, last = start // self.rows, -(-stop // self.rows)
        least, greatest = self.least[first:last], self.greatest[first:last]
        # A block that is cut may have rows of other places: its bounds say less, and nothing wrong.
        before = greatest < value if side == "left" else greatest <= value
        after = least >= value if side == "left" else least > value
        low = int(np.flatnonzero(before)[-1]) + 1 if before.any() else 0
        high = low + int(np.argmax(after[low:])) if after[low:].any() else last - first
        low, high = (first + low) * self.rows, (first + high) * self.rows
        return min(max(low, start), stop), min(max(high, start), stop)


class SegmentCoordinates:
    """Coordinates of the rows of a segment, of which what is asked for is read.

    Parameters
    ----------
    read : callable
        Reads those of the rows from one to another, whose numbers it is given.
    blocks : Blocks, optional
        Without them, all rows that are searched are read.
    """

    def __init__(
        self, read: Callable[[int, int], NDArray[Any]], blocks: Blocks | None = None
    ) -> None:
        self.read, self._blocks = read, blocks

    @classmethod
    def of(cls, values: NDArray[Any], rows: int | None = None) -> SegmentCoordinates:
        """Return coordinates that are in memory, maybe as blocks of so many rows.

        Examples
        --------
        >>> coordinates = SegmentCoordinates.of(np.array([1, 3, 5, 7, 9]), 2)
        >>> coordinates.search(6, "left", 1, 5), np.array(coordinates.find_bounds(1, 5))
        (2, array([3, 9]))
        """
        blocks = Blocks.describe(values, rows) if rows and len(values) else None
        return cls(lambda start, stop: values[start:stop], blocks)

    def search(self, value: Any, side: str, start: int, stop: int) -> int:
        """Return how many of the rows from `start` to `stop`, which increase, come before a value.

        Where there are blocks, this reads none to three of them: one that is cut at each end, and
        one between, if the value lies within their bounds.

        Parameters
        ----------
        side : {"left", "right"}
            Whether a row of the same value comes after it, or before.
        """
        low, high = start, stop
        if self._blocks is not None:
            low, high = self._blocks.narrow(value, side, start, stop)
        if low == high:
            return low - start
        at = np.searchsorted(self.read(low, high), value, side)  # type: ignore[call-overload]
        return low - start + int(at)

    def find_bounds(self, start: int, stop: int) -> tuple[Any, Any]:
        """Return the least and the greatest of the rows from one to another: at least one.

        Where there are blocks, this reads two of them at most.
        """
        parts, blocks = [(start, stop)], self._blocks
        least, greatest = [], []
        if blocks is not None:
            first, last = -(-start // blocks.rows), stop // blocks.rows
            if first < last:
                least, greatest = [blocks.least[first:last]], [blocks.greatest[first:last]]
                parts = [(start, first * blocks.rows), (last * blocks.rows, stop)]
        values = [self.read(low, high) for low, high in parts if low < high]
        low, high = np.concatenate([*least, *values]), np.concatenate([*greatest, *values])
        return low.min(), high.max()


class BlockReader:
    """Reads rows by the blocks that they lie in, and keeps those that were read last.

    Parameters
    ----------
    blocks : Blocks
    read : callable
        Reads some bytes of those of all rows.
    file : str
        For messages.
    """

    def __init__(self, blocks: Blocks, read: Callable[[int, int], bytes], file: str) -> None:
        self._blocks, self._read, self._file = blocks, read, file
        self._recent: LRUCache[tuple[int, int], NDArray[Any]] = LRUCache(_MOST_BYTES)

    def __call__(self, start: int, stop: int) -> NDArray[Any]:
        """Return the coordinates of the rows from one to another.

        Raises
        ------
        MetadataError
            A block is damaged.
        """
        rows = self._blocks.rows
        first, last = start // rows, -(-stop // rows)
        values = self._recent.get((first, last))
        if values is None:
            values = self._read_blocks(first, last)
            self._recent.put((first, last), values, values.nbytes)
        return values[start - first * rows : stop - first * rows]

    def _read_blocks(self, first: int, last: int) -> NDArray[Any]:
        blocks, dtype = self._blocks, self._blocks.least.dtype
        width, stop = blocks.rows * dtype.itemsize, min(last * blocks.rows, blocks.count)
        data = self._read(first * width, stop * dtype.itemsize)
        view = memoryview(data)
        for number, checksum in enumerate(blocks.checksums[first:last].tolist()):
            if zlib.crc32(view[number * width : (number + 1) * width]) != checksum:
                raise MetadataError("a block of coordinates is damaged", file=self._file)
        # As many bytes as rows have: those that are lacking have no checksum that they fit.
        return np.frombuffer(data, dtype, stop - first * blocks.rows)
