"""Bytes of a file that a recorded scan depends on, as one row, and which of them are compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from virtualzarr.formats.templates.recorder import REGION_BITS, Recorder

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

# Runs with smaller gaps are read together: bytes cost less than another call.
_GAP = 1024
# Zeros at the end of each row, which stand for the high bytes of short numbers.
_PADDING = 8


@dataclass(frozen=True)
class Pointer:
    """Where in a row the address of a region is; again for each that names the region."""

    region: int
    address: int
    at: tuple[int, ...]


@dataclass(frozen=True)
class Image:
    """The runs of bytes of a file that a scan depends on, one after the other in a row.

    Parameters
    ----------
    starts, lengths : int64 array
        Of the runs in the file.
    at : int64 array
        Where each run starts in the row.
    nuses : int64 array, shape (nbytes,)
        How often each byte of the row is looked at; 0 for one that only a checksum needs, or that
        lies between others.
    pointers : tuple of Pointer
        What names the regions, in order of their numbers.
    """

    starts: Ints
    lengths: Ints
    at: Ints
    nuses: Ints
    pointers: tuple[Pointer, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of a row, with zeros at its end."""
        return len(self.nuses)

    @classmethod
    def of(cls, recorder: Recorder) -> Image:
        """Return the image of what was recorded. Raises `ValueError` if that cannot be."""
        starts, stops, counts = _list_uses(recorder)
        # How often each range between two borders is looked at: a request counts once more where it
        # starts, and once less where it stops.
        borders, inverse = np.unique(np.concatenate([starts, stops]), return_inverse=True)
        steps = np.bincount(inverse, np.concatenate([counts, -counts]), len(borders))
        uses = np.cumsum(steps).astype(np.int64)[:-1]
        if (uses < 0).any():
            raise ValueError("bytes are declared that nobody asked for")
        low, high = borders[:-1], borders[1:]
        checks = np.array(recorder.checks, np.int64).reshape(-1, 3)
        needed = [low[uses > 0], checks[:, 0]], [high[uses > 0], checks[:, 0] + checks[:, 1]]
        # The last byte, that it is there.
        ends = np.array(recorder.ends, np.int64)
        needed = [*needed[0], ends - 1], [*needed[1], ends]
        others = np.array([(at, at + len(text)) for at, text in recorder.others], np.int64)
        others = others.reshape(-1, 2)
        needed = [*needed[0], others[:, 0]], [*needed[1], others[:, 1]]
        run_starts, run_stops = _merge(*map(np.concatenate, needed))
        lengths = run_stops - run_starts
        at = np.cumsum(lengths) - lengths
        nuses = np.zeros(int(lengths.sum()) + _PADDING, np.int64)
        image = cls(run_starts, lengths, at, nuses)
        some = uses > 0
        for start, length, count in zip(
            image.locate(low[some]).tolist(), (high - low)[some].tolist(), uses[some].tolist(),
            strict=True,
        ):  # fmt: skip
            nuses[start : start + length] = count
        return replace(image, pointers=tuple(image._list_pointers(recorder)))

    def _list_pointers(self, recorder: Recorder) -> Iterator[Pointer]:
        used = set((self.starts >> REGION_BITS).tolist())
        for address, region in recorder.regions.items():
            if region in used:
                at = self.locate(np.array(recorder.pointers[address]))
                if int(recorder.pointers[address][0]) >> REGION_BITS >= region:
                    raise ValueError("structures that name one another")
                yield Pointer(region, address, tuple(at.tolist()))

    def locate(self, addresses: Ints) -> Ints:
        """Return where bytes of the file are in the row."""
        run = np.searchsorted(self.starts, addresses, "right") - 1
        return self.at[run] + addresses - self.starts[run]

    def locate_numbers(self, addresses: Ints, width: int) -> Ints:
        """Return where the 8 bytes of little-endian numbers are in the row, shape (n, 8).

        The high bytes of numbers of fewer than 8 bytes are zeros.
        """
        index = np.full((len(addresses), 8), self.nbytes - 1)
        index[:, :width] = self.locate(addresses)[:, None] + np.arange(width)
        return index

    @property
    def parts(self) -> list[tuple[int, int, int, int]]:
        """For each run: where in the row its region's address is, -1 for none; how far from there
        the run starts in the file; where it starts and ends in the row.
        """
        positions = {0: -1} | {pointer.region: pointer.at[0] for pointer in self.pointers}
        starts = self.starts & ((1 << REGION_BITS) - 1)
        regions = [positions[region] for region in (self.starts >> REGION_BITS).tolist()]
        ends = self.at + self.lengths
        return list(zip(regions, starts.tolist(), self.at.tolist(), ends.tolist(), strict=True))


def read_numbers(rows: Bytes, index: Ints) -> Ints:
    """Return the numbers at places of rows of bytes, shape (rows, places)."""
    raw = np.ascontiguousarray(rows[:, index.reshape(-1)])
    return raw.view("<i8").astype(np.int64, copy=False)


def _list_uses(recorder: Recorder) -> tuple[Ints, Ints, Ints]:
    """Return starts, stops and counts of all that was declared."""
    single = np.array(recorder.uses, np.int64).reshape(-1, 3)
    parts: Sequence[tuple[Ints, Ints, Ints]] = [
        (single[:, 0], single[:, 1], single[:, 2]),
        *((starts, stops, np.full(len(starts), n)) for starts, stops, n in recorder.rows),
    ]
    starts, stops, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
    some = starts < stops
    return starts[some], stops[some], counts[some]


def _merge(starts: Ints, stops: Ints) -> tuple[Ints, Ints]:
    """Return runs that cover ranges, and small gaps between them."""
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], np.maximum.accumulate(stops[order])
    first = np.concatenate([[True], starts[1:] > stops[:-1] + _GAP])
    last = np.concatenate([first[1:], [True]])
    return starts[first], stops[last]
