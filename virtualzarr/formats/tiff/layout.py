"""TIFF layout: axes of a series over pages, and of pages over strips or tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.errors import UnsupportedError

SAMPLE, DEPTH, LENGTH, WIDTH, CONTIG = range(5)
"""Axes of tifffile's `TiffPage.shaped`: planar samples, depth, rows, columns, chunky samples."""

Runs = int | list[list[int]]
"""Chunk lengths along one axis: one number, or runs of ``[length, count]``."""


@dataclass(frozen=True)
class Segments:
    """The strips or tiles of one page.

    Attributes
    ----------
    extents : tuple of int
        Length of the page along its five axes.
    edges : tuple of int
        Length of a stored strip or tile along them.
    tiled : bool
        Tiles are stored whole (TIFF 6.0, section 15); the last strip of a page has fewer rows.
    """

    extents: tuple[int, ...]
    edges: tuple[int, ...]
    tiled: bool

    @classmethod
    def of(cls, page: Any) -> Segments:
        """Return the segments of a tifffile page.

        Raises `UnsupportedError` if the page is empty, or its strips or tiles have no size.
        """
        samples, width = page.shaped[CONTIG], page.imagewidth
        strip = (1, 1, page.rowsperstrip, width, samples)
        tile = (1, page.tiledepth, page.tilelength, page.tilewidth, samples)
        extents = tuple(int(extent) for extent in page.shaped)
        edges = tuple(int(edge) for edge in (tile if page.is_tiled else strip))
        if min(extents) < 1 or min(edges) < 1:
            raise UnsupportedError(f"TIFF page of shape {extents} in segments of shape {edges}")
        return cls(extents, edges, bool(page.is_tiled))

    @property
    def counts(self) -> tuple[int, ...]:
        """Segments along each axis of the page."""
        return tuple(
            -(-extent // edge) for extent, edge in zip(self.extents, self.edges, strict=True)
        )

    @property
    def rows(self) -> NDArray[np.int64]:
        """Rows stored in each segment, from the top of the page to its bottom."""
        edge, extent = self.edges[LENGTH], self.extents[LENGTH]
        rows = np.full(self.counts[LENGTH], edge, np.int64)
        if not self.tiled:
            rows[-1] = extent - (len(rows) - 1) * edge
        return rows

    @property
    def at_edge(self) -> NDArray[np.bool_]:
        """Which tiles extend past the last row or column of the page."""
        past = np.zeros(self.counts[:CONTIG], bool)
        for axis in (LENGTH, WIDTH):
            if self.tiled and self.extents[axis] % self.edges[axis]:
                past[(slice(None),) * axis + (-1,)] = True
        return past.reshape(-1)

    def raw_bytes(self, row: int) -> NDArray[np.int64]:
        """Return the uncompressed bytes of each segment, given those of one of its rows."""
        each = (self.rows * self.edges[DEPTH] * row)[:, None]
        return np.broadcast_to(each, self.counts[:CONTIG]).reshape(-1)

    @property
    def runs(self) -> tuple[Runs, ...]:
        """Stored lengths along each axis of the page."""
        rows, edge = self.extents[LENGTH], self.edges[LENGTH]
        full_strips, remainder = divmod(rows, edge)
        if self.tiled or not remainder:
            return self.edges
        short: Runs = [[edge, full_strips], [remainder, 1]] if full_strips else remainder
        return (*self.edges[:LENGTH], short, *self.edges[LENGTH + 1 :])


@dataclass(frozen=True)
class Layout:
    """Mapping of the axes of a series to pages and axes of the page.

    Attributes
    ----------
    shape : tuple of int
        Shape of the series.
    lead : int
        Number of leading axes, which count pages.
    axes : tuple of (int or None)
        For each of the other axes, the page's axis; None for an inserted one of length 1.
    """

    shape: tuple[int, ...]
    lead: int
    axes: tuple[int | None, ...]

    @classmethod
    def of(cls, shape: Sequence[int], segments: Segments) -> Layout:
        """Match the axes of a series with those of its pages, from the last to the first.

        Raises `UnsupportedError` if the page's axes are not the last axes of the series.
        """
        extents, edges = segments.extents, segments.edges
        # An axis of length 1 in segments of length 1 may be left out of the series.
        open_axes = [axis for axis in range(5) if extents[axis] > 1 or edges[axis] > 1]
        axes: list[int | None] = []
        lead = len(shape)
        # Greedy from the fastest axis: tifffile squeezes axes of length 1 and inserts others by the
        # metadata of a series, so lengths are all there is to match by.
        while lead and (open_axes or shape[lead - 1] == 1):
            if open_axes and shape[lead - 1] == extents[open_axes[-1]]:
                axes.append(open_axes.pop())
            elif shape[lead - 1] == 1:
                axes.append(None)
            else:
                break
            lead -= 1
        if open_axes:
            raise UnsupportedError(
                f"TIFF series of shape {tuple(shape)} over pages of shape {extents}"
            )
        return cls(tuple(shape), lead, tuple(reversed(axes)))

    @property
    def npages(self) -> int:
        """Pages in the series."""
        return math.prod(self.shape[: self.lead])

    @property
    def row_axis(self) -> int | None:
        """Axis of the series along rows (the page's width), from the end; None if it is squeezed.

        Any axis of length 1 in its position serves pages of one column.
        """
        for index in range(len(self.axes) - 1, -1, -1):
            if self.axes[index] in (WIDTH, None):
                return index - len(self.axes)
            if self.axes[index] != CONTIG:
                break
        return None

    def chunks(self, runs: Sequence[Runs]) -> list[Runs]:
        """Return the series' chunk lengths, given the page's."""
        return [1] * self.lead + [1 if axis is None else runs[axis] for axis in self.axes]


def split_plane(shape: Sequence[int], segments: Segments) -> Segments:
    """Return the segments of a contiguous array: its pages, or planes if those do not fit."""
    try:
        Layout.of(shape, segments)
    except UnsupportedError:
        rows, width = (1, 1, *shape)[-2:]
        extents = (1, 1, rows, width, 1)
        return Segments(extents, extents, tiled=False)
    return segments


def raw_runs(segments: Segments, itemsize: int, target: int) -> tuple[Runs, ...]:
    """Choose chunks for a page whose bytes lie in one piece: about `target` bytes of whole rows.

    Parameters
    ----------
    itemsize : int
        Bytes of an element.
    target : int
        Most bytes of a chunk, unless a row has more.

    Examples
    --------
    >>> raw_runs(Segments((1, 1, 1000, 1024, 1), (1, 1, 7, 1024, 1), False), 2, 1 << 20)
    (1, 1, 500, 1024, 1)
    """
    extents = segments.extents
    if math.prod(extents) * itemsize <= target:
        return extents
    rows = extents[LENGTH]
    limit = max(1, target // (extents[WIDTH] * extents[CONTIG] * itemsize))
    if limit >= rows:
        edge = rows
    else:
        # A divisor makes a regular grid, which every Zarr reader can open. It is searched near the
        # limit only: small chunks would cost more than a rectilinear grid.
        edge = next((n for n in range(limit, limit // 4, -1) if rows % n == 0), limit)
    full_chunks, remainder = divmod(rows, edge)
    lengths: Runs = [[edge, full_chunks], [remainder, 1]] if remainder else edge
    return (1, 1, lengths, extents[WIDTH], extents[CONTIG])
