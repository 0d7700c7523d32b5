"""Byte ranges across uncompressed blocks that follow one another in a file.

A cell that covers parts of several blocks is one range of bytes where their elements lie in the
file as they do in the array: each block begins where the one before it ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from grids import SeparableGrid
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline
from virtualzarr.manifest import Manifest
from virtualzarr.references.canonical import list_sizes
from virtualzarr.virtual.axis_slices import AxisSlices
from virtualzarr.virtual.contiguous import uncompressed_layout

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Cut:
    """Cells of a regular axis: parts of old cells, or across several of them.

    Attributes
    ----------
    slices : AxisSlices
        In which cells across several are missing.
    first, stop : int64 arrays
        The old cells that each new one touches.
    """

    slices: AxisSlices
    first: Ints
    stop: Ints


@dataclass(frozen=True)
class JoinedRanges:
    """Ranges across several blocks.

    Attributes
    ----------
    cells : int64 array
        C-order numbers of the new cells that have one.
    source, offset, length : arrays
        Where it is.
    """

    cells: Ints
    source: npt.NDArray[np.integer[Any]]
    offset: Ints
    length: int


def find_joining_axis(
    pipeline: Pipeline, dtype: np.dtype[Any], shape: Sequence[int]
) -> tuple[int, tuple[int, ...]] | None:
    """Return the slowest axis along which cells are longer than 1, and the faster ones.

    None if blocks are compressed, or cells have one element.
    """
    layout = uncompressed_layout(pipeline, dtype, len(shape))
    order = () if layout is None else layout[1]
    for position, axis in enumerate(order):
        if shape[axis] > 1:
            return axis, tuple(order[position + 1 :])
    return None


def join_ranges(
    array: Array, pipeline: Pipeline, shape: Sequence[int], cuts: Sequence[Cut]
) -> JoinedRanges | None:
    """Find the cells of a regular grid that are one range across several uncompressed blocks.

    Parameters
    ----------
    array : Array
        A virtual one, whose grid cuts each axis on its own.
    pipeline : Pipeline
        What is to be declared.
    shape : sequence of int
        Of the new cells.
    cuts : sequence of Cut, one for each axis

    Returns
    -------
    JoinedRanges or None
        None where there are no such cells.
    """
    joining = find_joining_axis(pipeline, array.metadata.dtype, shape)
    if joining is None or not cuts[joining[0]].slices.is_missing.any():
        return None
    axis, faster = joining
    row = math.prod(shape[other] for other in faster) * array.metadata.itemsize
    blocks = _Blocks.of(array, pipeline, shape, axis, faster, row)
    # How often, up to each block, one does not continue that before it: equal numbers, one piece.
    breaks = np.zeros(blocks.base.shape, np.int64)
    behind, before = _part(axis, slice(1, None)), _part(axis, slice(None, -1))
    breaks[behind] = ~blocks.continues(behind, before)
    breaks = breaks.cumsum(axis=axis)
    cut = cuts[axis]

    def pick(column: npt.NDArray[Any], along: Ints) -> npt.NDArray[Any]:
        """Return what the old cells say that new ones begin or end with."""
        for i, other in enumerate(cuts):
            column = column.take(along if i == axis else np.maximum(other.slices.cell, 0), axis=i)
        return column

    good: Mask = pick(breaks, cut.first) == pick(breaks, cut.stop - 1)
    good &= pick(blocks.good, cut.first)
    for i, other in enumerate(cuts):
        is_whole = other.slices.is_missing if i == axis else _is_whole(other)
        good &= is_whole.reshape((-1,) + (1,) * (len(cuts) - i - 1))
    start = cut.slices.axis.start(np.arange(cut.slices.axis.ncells)) * row
    offset = pick(blocks.base, cut.first) + start.reshape((-1,) + (1,) * (len(cuts) - axis - 1))
    length = shape[axis] * row
    # The last cell may end behind the array: whatever the file has there, if it has anything.
    good &= offset + length <= pick(np.maximum(blocks.stop, blocks.size), cut.stop - 1)
    cells = np.flatnonzero(good.reshape(-1))
    source = pick(blocks.source, cut.first)
    if not len(cells):
        return None
    return JoinedRanges(cells, source.reshape(-1)[cells], offset.reshape(-1)[cells], length)


def _part(axis: int, index: slice) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, index)


def _is_whole(cut: Cut) -> Mask:
    """Tell which new cells begin where an old one does."""
    is_whole: Mask = ~cut.slices.is_missing & (cut.slices.start == 0)
    return is_whole


@dataclass(frozen=True)
class _Blocks:
    """Uncompressed blocks, as columns of the shape of their grid.

    Attributes
    ----------
    good : bool array
        Whether a block is stored, uncompressed, and a cell but along the joining axis.
    source, base : arrays
        Its file, and where in that index 0 of the joining axis would be.
    stop, size : int64 arrays
        Where it ends, and how long the file is.
    """

    good: Mask
    source: npt.NDArray[np.integer[Any]]
    base: Ints
    stop: Ints
    size: Ints

    @classmethod
    def of(
        cls,
        array: Array,
        pipeline: Pipeline,
        shape: Sequence[int],
        axis: int,
        faster: Sequence[int],
        row: int,
    ) -> _Blocks:
        manifest, grid = array.manifest, array.grid
        assert isinstance(grid, SeparableGrid)
        source = np.asarray(manifest.source)
        offset = np.asarray(manifest.offset)
        good = (source >= 0) & _has_chain(array, pipeline)
        nbytes: Any = array.metadata.itemsize
        base = offset
        for i, each in enumerate(grid.axes):
            cells = np.arange(each.ncells)
            along = (-1,) + (1,) * (len(grid.axes) - i - 1)
            stored = stored_lengths(manifest, i, each.edge(cells).reshape(along))
            origin = 0 if manifest.origin is None else manifest.origin[..., i]
            nbytes = nbytes * stored
            # Where the file would have row 0 of the array, were all of it there: blocks that agree
            # in it lie behind each other.
            if i == axis:
                base = base - (each.start(cells).reshape(along) - origin) * row
            else:
                good = good & (origin == 0) & (stored == (shape[i] if i in faster else 1))
        length = np.asarray(manifest.length)
        good = good & ((length == nbytes) | (length == -1))
        return cls(
            np.broadcast_to(good, manifest.shape), source, np.broadcast_to(base, manifest.shape),
            np.broadcast_to(offset + nbytes, manifest.shape), list_sizes(manifest.sources)[source],
        )  # fmt: skip

    def continues(self, behind: tuple[slice, ...], before: tuple[slice, ...]) -> Mask:
        """Tell which blocks lie in their file just behind those before them in the array."""
        same: Mask = self.good[behind] & self.good[before]
        same &= self.source[behind] == self.source[before]
        same &= self.base[behind] == self.base[before]
        return same


def _has_chain(array: Array, pipeline: Pipeline) -> Mask:
    """Tell which chunks have a chain of codecs."""
    manifest, dtype = array.manifest, array.metadata.dtype
    key = pipeline.decoding_key(dtype)
    chains = [*(d.pipeline for d in manifest.decoders), array.metadata.pipeline]
    same = np.array([chain.decoding_key(dtype) == key for chain in chains])
    return np.asarray(same[-1 if manifest.decoder is None else np.asarray(manifest.decoder)])


def stored_lengths(manifest: Manifest, axis: int, edges: Ints) -> Ints:
    """Return how long blocks are along an axis; `edges` is the length of the cells."""
    shapes = [d.shape[axis] if d.shape is not None else 0 for d in manifest.decoders]
    if manifest.decoder is None or not any(shapes):
        return edges
    lengths = np.array([*shapes, 0], np.int64)[np.asarray(manifest.decoder)]
    return np.where(lengths > 0, lengths, edges)
