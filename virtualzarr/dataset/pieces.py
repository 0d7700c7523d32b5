"""Pieces that growing arrays are made of: rows of segments, and the cells that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grids import Axis
from virtualzarr.dataset.entry import ChunkRuns, Entry
from virtualzarr.dataset.row_tables import Contents
from virtualzarr.dataset.runs import Runs
from virtualzarr.errors import MetadataError


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows that follow each other in a version and in one segment.

    Attributes
    ----------
    entry : Entry
    start, stop : int
        Which rows of the segment.
    """

    entry: Entry
    start: int
    stop: int


def find_stretches(state: Contents, dimension: str) -> list[Stretch]:
    """Return where the rows of a dimension lie, in their order.

    Raises
    ------
    MetadataError
        A row is in no segment.
    """
    runs: Runs = state.runs[dimension]
    entries = sorted(
        (entry for entry in state.entries if dimension in entry.rows),
        key=lambda entry: entry.rows[dimension][0],
    )
    first = np.array([entry.rows[dimension][0] for entry in entries], np.int64)
    stretches = []
    for low, count in runs.pairs:
        # Entries tile the ids in order: those that a run needs lie next to each other.
        at, high = int(np.searchsorted(first, low, "right")) - 1, low + count
        while low < high:
            entry = entries[at] if 0 <= at < len(entries) else None
            begin, size = entry.rows[dimension] if entry else (0, 0)
            if entry is None or not begin <= low < begin + size:
                raise MetadataError(f"row {low} of {dimension!r} is in no segment")
            stop = min(high, begin + size)
            stretches.append(Stretch(entry, low - begin, stop - begin))
            low, at = stop, at + 1
    return stretches


@dataclass(frozen=True, slots=True)
class Piece:
    """The cells of an array that a stretch makes.

    Attributes
    ----------
    axes : tuple of Axis
        How the segment's references of the array are chunked: all of its rows.
    axis : int
        The growing one.
    start, stop : int
        Which of the rows are in this version.
    """

    entry: Entry
    axes: tuple[Axis, ...]
    axis: int
    start: int
    stop: int

    @property
    def stored(self) -> Axis:
        """The growing axis, with all rows of the segment."""
        return self.axes[self.axis]

    @property
    def first(self) -> int:
        """The first stored cell."""
        return int(self.stored.cell_of(self.start))

    @property
    def last(self) -> int:
        """The last stored cell."""
        return int(self.stored.cell_of(self.stop - 1))

    @property
    def skipped(self) -> int:
        """Rows of the first stored cell that are not in this version."""
        return self.start - int(self.stored.start(self.first))

    @property
    def is_cut(self) -> bool:
        """Whether the last stored cell has rows that are not in this version."""
        return int(self.stored.start(self.last)) + int(self.stored.edge(self.last)) > self.stop

    @property
    def ncells(self) -> int:
        """How many cells there are."""
        return self.last - self.first + 1

    def runs(self) -> list[tuple[int, int]]:
        """Return chunk lengths in this version, with how often each comes."""
        if self.first == self.last:
            return [(self.stop - self.start, 1)]
        runs, position = [], 0
        for length, count in zip(
            self.stored.edges.tolist(), self.stored.counts.tolist(), strict=True
        ):
            low, high = max(self.first - position, 0), min(self.last + 1 - position, count)
            if low < high:
                runs.append((length, high - low))
            position += count
        if self.skipped:
            runs[:1] = [(runs[0][0] - self.skipped, 1), (runs[0][0], runs[0][1] - 1)]
        if self.is_cut:
            end = self.stop - int(self.stored.start(self.last))
            runs[-1:] = [(runs[-1][0], runs[-1][1] - 1), (end, 1)]
        return [run for run in runs if run[1]]


def find_pieces(
    stretches: Sequence[Stretch], path: str, dimension: str, axis: int, axes: tuple[Axis, ...]
) -> list[Piece]:
    """Return the pieces that an array is made of along a growing dimension.

    Parameters
    ----------
    axes : tuple of Axis
        Those of the array's document, of which `axis` is the growing one.
    """
    pieces = []
    for stretch in stretches:
        entry = stretch.entry
        count = entry.count(dimension)
        others = list(axes[:axis] + axes[axis + 1 :])
        if path in entry.grids:
            others = [
                to_axis(other.extent, runs)
                for other, runs in zip(others, entry.grids[path], strict=True)
            ]
        others.insert(axis, to_axis(count, entry.chunks_of(path) or ((count, 1),)))
        pieces.append(Piece(entry, tuple(others), axis, stretch.start, stretch.stop))
    return pieces


def to_axis(extent: int, runs: ChunkRuns) -> Axis:
    """Return an axis that is cut into runs of lengths."""
    lengths, counts = zip(*runs, strict=True)
    return Axis(extent, lengths, counts)
