"""Offsets and byte counts of TIFF strips and tiles as columns of references."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.tiff.layout import Layout, Runs, Segments
from virtualzarr.manifest import Affine, Source, Sources

Column = NDArray[np.int64]
_LARGE = 1 << 30
"""Bytes of a tile that are accepted for pages of any size."""


def segment_columns(pages: Sequence[Any], ncells: int) -> tuple[Column, Column]:
    """Return offsets and lengths of the segments of pages, page after page.

    Raises `SourceError` if a page lists fewer segments, or impossible offsets.

    Parameters
    ----------
    pages : sequence of (tifffile.TiffPage, TiffFrame or None)
        None for a page that was never written.
    ncells : int
        Strips or tiles that each page must have.

    Returns
    -------
    offset, length : int64 arrays of shape (pages, ncells)
        Both are 0 for a segment that was never written.
    """
    offset = _column(pages, ncells, "dataoffsets")
    length = _column(pages, ncells, "databytecounts")
    missing = (offset <= 0) | (length <= 0)
    if missing.any():
        offset[missing] = length[missing] = 0
    return offset, length


def _column(pages: Sequence[Any], ncells: int, name: str) -> Column:
    """Return `ncells` numbers for each page."""
    lists = [None if page is None else getattr(page, name) for page in pages]
    for index, numbers in enumerate(lists):
        if numbers is not None and len(numbers) < ncells:
            raise SourceError(
                f"page {index} of the TIFF series lists {len(numbers)} {name[4:]} of {ncells} "
                "strips or tiles"
            )
    # Allocated only after every page was seen to list as many: the size of the grid, which tags
    # claim, may be a lie. Surplus entries are ignored, as tifffile does.
    nothing = (0,) * ncells
    filled = (nothing if numbers is None else numbers[:ncells] for numbers in lists)
    try:
        column = np.fromiter(chain.from_iterable(filled), np.int64, len(pages) * ncells)
    except OverflowError as error:
        raise SourceError(f"{name[4:]} of strips or tiles that no file can have") from error
    return column.reshape(len(pages), ncells)


def page_bases(pages: Sequence[Any]) -> Column:
    """Return the offsets of contiguous pages; 0 for a missing page.

    Raises `SourceError` if a page was never written, or its strips are in another order than those
    of other pages, which tifffile does not check.
    """
    count = max(len(page.dataoffsets) for page in pages if page is not None)
    offset = _column(pages, count, "dataoffsets")
    present = np.array([page is not None for page in pages])
    if (offset[present] <= 0).any():
        raise SourceError("a TIFF page without data, which tifffile does not read")
    within = offset[present] - offset[present, :1]
    if (within != within[0]).any():
        raise SourceError("TIFF pages in one piece whose strips lie in different orders")
    return offset[:, 0].copy()


def raw_columns(
    bases: Column, layout: Layout, runs: Sequence[Runs], itemsize: int
) -> tuple[Column | Affine, Column]:
    """Return offsets and lengths of the chunks of contiguous pages.

    Parameters
    ----------
    bases : int64 array of shape (pages,)
        Where each page begins.
    runs : sequence
        Chunk lengths along the axes of the page.
    itemsize : int
        Bytes of an element.

    Returns
    -------
    offset, length
        Columns that broadcast to the grid's shape.
    """
    spec = layout.chunks(runs)[layout.lead :]
    shape = layout.shape[layout.lead :]
    edges = [run if isinstance(run, int) else run[0][0] for run in spec]
    counts = [-(-n // edge) for n, edge in zip(shape, edges, strict=True)]
    strides = [edge * itemsize * math.prod(shape[axis + 1 :]) for axis, edge in enumerate(edges)]
    # Broadcast along each axis whose last chunk is shorter: at most two distinct lengths an axis,
    # and no array of the size of the grid.
    length = np.array(math.prod(edges) * itemsize, np.int64)
    for axis, (n, edge, count) in enumerate(zip(shape, edges, counts, strict=True)):
        if n % edge:
            last_length = length // edge * (n % edge)
            along = np.where(np.arange(count) < count - 1, length, last_length)
            length = along.reshape((count,) + (1,) * (len(shape) - axis - 1))
    lead = layout.shape[: layout.lead]
    # Pages at a constant distance, as most writers lay them out, make offsets affine in the index,
    # without a column in memory.
    steps = np.unique(np.diff(bases))
    if len(steps) <= 1:
        step = int(steps[0]) if len(steps) else 0
        outer = [step * math.prod(lead[axis + 1 :]) for axis in range(len(lead))]
        return Affine((*lead, *counts), int(bases[0]), (*outer, *strides)), length
    within = np.asarray(Affine(counts, 0, strides))
    return bases.reshape(lead + (1,) * len(counts)) + within, length


def clip_raw(length: Column, needed: Column) -> Column:
    """Clip the lengths of uncompressed segments to the bytes of their elements.

    Raises `UnsupportedError` if a segment is too short.

    Parameters
    ----------
    length : int64 array
        As the file says; 0 where the segment is missing.
    needed : int64 array
        Bytes of the elements.
    """
    # Byte counts of uncompressed strips may include padding, which the codecs would take for
    # elements.
    needed = np.broadcast_to(needed, length.shape)
    short = (length < needed) & (length > 0)
    if short.any():
        index = tuple(int(i[0]) for i in np.nonzero(short))
        raise UnsupportedError(
            f"uncompressed TIFF strip or tile of {length[index]} bytes, whose elements take "
            f"{needed[index]}"
        )
    return np.minimum(length, needed)


def check_size(segments: Segments, itemsize: int) -> None:
    """Check that tiles are not absurdly larger than their page, as decoding takes memory for them.

    Raises `SourceError`.
    """
    nbytes = math.prod(segments.edges) * itemsize
    if nbytes > _LARGE and nbytes > 4 * math.prod(segments.extents) * itemsize:
        raise SourceError(
            f"TIFF tiles of shape {segments.edges} in a page of shape {segments.extents}"
        )


def check_extent(start: int, nbytes: int, source: Source) -> None:
    """Check that some bytes do not reach beyond the end of their file.

    Raises `SourceError`.
    """
    if start + nbytes > (source.size or 0):
        raise SourceError(
            f"the elements lie at bytes {start} to {start + nbytes}, but the file ends at "
            f"{source.size}; it is truncated or damaged"
        )


def check_within(
    offset: Column, length: Column, source: NDArray[np.int32], sources: Sources
) -> None:
    """Check that no reference reaches beyond the end of its file.

    Raises `SourceError`.
    """
    sizes = np.array([source.size or 0 for source in sources] + [np.iinfo(np.int64).max])
    size = sizes[source]  # the last one is that of missing pages, whose row is -1
    beyond = offset > size - length
    if beyond.any():
        index = tuple(int(i[0]) for i in np.nonzero(beyond))
        start, stop, end = (
            int(np.broadcast_to(column, beyond.shape)[index])
            for column in (offset, offset + length, size)
        )
        raise SourceError(
            f"a strip or tile lies at bytes {start} to {stop}, but the file ends at {end}; it is "
            "truncated or damaged"
        )
