"""Arrays of one version of a dataset: chunks that are found through runs, entries and segments.

Where all chunks of an array have one length, nothing but the snapshot is needed to open it. Runs,
entries and references are looked up as a selection needs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import Axis, Projection, SeparableGrid, from_axes, refine, simplify
from virtualzarr.array import Array
from virtualzarr.array.chunk_source import LocatedChunks, ManifestChunks
from virtualzarr.array.read.layers import Layers
from virtualzarr.dataset.entry import ChunkRuns, Entry
from virtualzarr.dataset.named import Named
from virtualzarr.dataset.row_cells import CutCells, RowCells, UniformCells
from virtualzarr.dataset.row_finder import RowFinder
from virtualzarr.dataset.segment import Segment
from virtualzarr.dataset.segment_opener import SegmentOpener
from virtualzarr.dataset.stretches import Stretches
from virtualzarr.errors import SourceNotFoundError, VirtualZarrError, error_context
from virtualzarr.manifest import Decoder, Manifest, References
from virtualzarr.manifest.manifest import CANONICAL
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.references.native.parts import Part, check_count
from virtualzarr.stores.files import ByteFile, Location, Pin
from virtualzarr.virtual.axis_slices import AxisSlices
from virtualzarr.virtual.rechunk import apply_axis_slices

Int64 = NDArray[np.int64]
Opener = Callable[[Named], Segment]

_SHIFT = 32
"""A file is numbered by its entry, times two to the power of this, plus its row in the part."""


class VersionChunks(ManifestChunks):
    """Chunks of an array in one version of a dataset.

    Parameters
    ----------
    metadata : ArrayMetadata
        With the grid of the version.
    path : str
    axis : int, optional
        The axis of the growing dimension; None for an array that does not have it.
    rows : RowCells, optional
        The cells along that axis.
    open_segment : callable
    axes : sequence of Axis
        Those of the array's document, in which entries are chunked unless they say otherwise.
    fixed : Entry, optional
        The entry that has an array which does not grow.
    """

    def __init__(
        self,
        metadata: ArrayMetadata,
        path: str,
        axis: int | None,
        rows: RowCells | None,
        open_segment: SegmentOpener,
        axes: Sequence[Axis] = (),
        fixed: Entry | None = None,
    ) -> None:
        self.metadata, self.path, self.axis = metadata, path, axis
        self.rows, self.open_segment = rows, open_segment
        self.axes, self.fixed = tuple(axes), fixed
        self._files: dict[int, ByteFile] = {}
        self._pins: dict[int, Pin] = {}
        self.layers: Layers | None = None

    def __str__(self) -> str:
        grid = "x".join(map(str, self.metadata.grid.grid_shape))
        text = f"references of {grid or 1} cells"
        layers = 0 if self.layers is None else len(self.layers.others)
        return f"{text}, and {layers} layer{'s' * (layers != 1)}" if layers else text

    @property
    def _args(self) -> tuple[Any, ...]:
        rows = self.metadata, self.path, self.axis, self.rows
        return *rows, self.open_segment, self.axes, self.fixed

    def __reduce__(self) -> tuple[Any, ...]:
        return VersionChunks, self._args, {"layers": self.layers}

    @property
    def location(self) -> Location:
        """That of the dataset, and of what is known of the files that it refers to."""
        return self.open_segment.location

    def without_layers(self) -> VersionChunks:
        """Return the chunks that all rows have."""
        return VersionChunks(*self._args)

    @property
    def _entries(self) -> Sequence[Entry]:
        if self.rows is None:
            return [] if self.fixed is None else [self.fixed]
        return self.rows.entries

    def _part(self, entry: Entry) -> Part | None:
        return self.open_segment(entry.segment).part(self.path, self.metadata.ndim)

    @property
    def has_decoders(self) -> bool:
        """Whether some chunks may decode otherwise than the array declares."""
        if self.rows is None:
            return any(self._has_decoders(entry) for entry in self._entries)
        cells = self.rows.load()
        return not cells.is_whole or any(
            self._has_decoders(entry) or self._other_axes(entry) is not None
            for entry in cells.stretches.list_entries()
        )

    def _has_decoders(self, entry: Entry) -> bool:
        part = self._part(entry)
        return part is not None and part.has_decoders

    def explain_missing(self, error: SourceNotFoundError) -> VirtualZarrError:
        """Return the error that says why a file is missing: its version may have expired."""
        return self.open_segment.explain_missing(error)

    def locate(self, projection: Projection) -> LocatedChunks:
        """Find the chunks of the cells that a projection touches."""
        return self.find(projection.cells())

    def find(self, cells: Int64) -> LocatedChunks:
        """Find the chunks of some cells, given by their coordinates in the grid."""
        file = np.full(len(cells), -1, np.int64)
        offset, length = np.zeros(len(cells), np.int64), np.zeros(len(cells), np.int64)
        decoder = np.full(len(cells), CANONICAL, np.int32)
        origin = np.zeros((len(cells), self.metadata.ndim), np.int32)
        decoders: list[Decoder] = []
        # Entry by entry: each numbers sources and decoders by itself, so that its number goes into
        # the high bits of sources, and its decoders go after those of the entries before.
        for number, rows, places in self._find_stored(cells):
            part = self._part(self._entries[number])
            if part is None:
                continue
            refs, own_decoders = part.take(places.cells), list(part.decoders)
            if not places.is_whole:
                refs, own_decoders = self._trim(cells[rows], places, refs, own_decoders)
            is_stored = np.asarray(refs.source) >= 0
            file[rows] = np.where(is_stored, (number << _SHIFT) + refs.source.astype(np.int64), -1)
            offset[rows], length[rows] = refs.offset, refs.length
            if refs.decoder is not None:
                decoder[rows] = np.where(refs.decoder >= 0, refs.decoder + len(decoders), CANONICAL)
                decoders += own_decoders
            if refs.origin is not None:
                origin[rows] = refs.origin
        cell = np.flatnonzero(file != -1)
        is_plain = not decoders
        return LocatedChunks(
            cell, file[cell], offset[cell], length[cell], self._file, tuple(decoders),
            None if is_plain else decoder[cell], origin[cell] if origin.any() else None,
        )  # fmt: skip

    def _find_stored(self, cells: Int64) -> Iterator[tuple[int, Int64, _Places]]:
        """Yield numbers of entries, which of the cells are in each, and where."""
        if not len(cells):
            return
        if self.rows is None or self.axis is None:
            nothing = np.empty(0, np.int64)
            if self.fixed is not None:
                yield (
                    0,
                    np.arange(len(cells)),
                    _Places(cells, np.zeros_like(cells), (), nothing, True),
                )
            return
        # One lookup of all cells along the growing axis; the others are numbered by each entry, as
        # rows that were folded may be cut in other chunks than those beside them.
        located = self.rows.find(cells[:, self.axis])
        for number, rows in _group(located.number):
            stored, inside = cells[rows], np.zeros((len(rows), cells.shape[1]), np.int64)
            stored[:, self.axis], inside[:, self.axis] = located.cell[rows], located.inside[rows]
            other_axes = self._other_axes(self._entries[number])
            if other_axes is not None:
                for i, (axis, other) in enumerate(zip(self._axes, other_axes, strict=True)):
                    if i != self.axis:
                        starts = axis.start(cells[rows, i])
                        stored[:, i] = other.cell_of(starts)
                        inside[:, i] = starts - other.start(stored[:, i])
            is_whole = other_axes is None and self.rows.is_whole
            axes = other_axes or self._axes
            yield number, rows, _Places(stored, inside, axes, located.edge[rows], is_whole)

    @property
    def _axes(self) -> tuple[Axis, ...]:
        grid = self.metadata.grid
        assert isinstance(grid, SeparableGrid)
        return grid.axes

    def _other_axes(self, entry: Entry) -> tuple[Axis, ...] | None:
        """Return how an entry is chunked along axes that do not grow; None if as the version is."""
        axes = list_axes(entry, self.path, self.axes, self.axis)
        is_same = all(
            one.has_same_cells(other)
            for i, (one, other) in enumerate(zip(self._axes, axes, strict=True))
            if i != self.axis
        )
        return None if is_same else axes

    def _trim(
        self, cells: Int64, places: _Places, refs: References, decoders: list[Decoder]
    ) -> tuple[References, list[Decoder]]:
        """Return references of cells that are parts of stored blocks, and decoders.

        Their blocks are longer than the cells, so that decoders must say how long, and the origin
        in the block moves to where the cell begins.
        """
        inside = places.inside
        shapes = np.column_stack([a.edge(places.cells[:, i]) for i, a in enumerate(places.axes)])
        shapes[:, self.axis] = places.edge
        edges = np.column_stack([a.edge(cells[:, i]) for i, a in enumerate(self._axes)])
        rows = np.flatnonzero((inside != 0).any(axis=1) | (edges != shapes).any(axis=1))
        if not len(rows):
            return refs, decoders
        decoder = (
            np.full(len(cells), CANONICAL, np.int32)
            if refs.decoder is None
            else np.array(refs.decoder)
        )
        numbers: dict[tuple[int, ...], int] = {}
        # There are few distinct shapes: cells differ from others at the ends of axes only.
        distinct, inverse = np.unique(
            np.column_stack([decoder[rows], shapes[rows]]), axis=0, return_inverse=True
        )
        table = []
        for which, *shape in distinct.tolist():
            row = which
            if which == CANONICAL or decoders[which].shape is None:
                pipeline = (
                    self.metadata.pipeline if which == CANONICAL else decoders[which].pipeline
                )
                row = numbers.setdefault((which, *shape), len(decoders))
                if row == len(decoders):
                    decoders.append(Decoder(pipeline, tuple(shape)))
            table.append(row)
        decoder[rows] = np.array(table, np.int32)[inverse.reshape(-1)]
        origin = inside.astype(np.int32)
        if refs.origin is not None:
            origin += refs.origin
        return References(refs.source, refs.offset, refs.length, decoder, origin), decoders

    def _open_file(self, row: int) -> ByteFile:
        part = self._part(self._entries[row >> _SHIFT])
        assert part is not None
        return part.open_file(row & ((1 << _SHIFT) - 1))

    @cached_property
    def manifest(self) -> Manifest:  # type: ignore[override]
        """All references, in memory."""
        with error_context(variable=self.path):
            check_count(math.prod(self.metadata.grid.grid_shape))
        if self.rows is None or self.axis is None:
            part = None if self.fixed is None else self._part(self.fixed)
            shape = self.metadata.grid.grid_shape
            return Manifest.missing(shape) if part is None else part.load([slice(n) for n in shape])
        cells = self.rows.load()
        if not len(cells.stretches):
            return Manifest.missing(self.metadata.grid.grid_shape)
        numbers = cells.stretches.number
        lows, highs = cells.first, cells.first + cells.counts
        if not cells.is_in_order:
            # Where stretches of an entry lie apart, all that they have is loaded at once.
            numbers, which = np.unique(numbers, return_inverse=True)
            lows = np.full(len(numbers), np.iinfo(np.int64).max)
            np.minimum.at(lows, which, cells.first)
            highs = np.zeros(len(numbers), np.int64)
            np.maximum.at(highs, which, cells.first + cells.counts)
        manifests, lengths, loaded = [], [], []
        for number, low, high in zip(numbers.tolist(), lows.tolist(), highs.tolist(), strict=True):
            first = low - int(cells.first_cells[number])
            loaded.append(np.arange(low, high))
            lengths.append(np.asarray(cells.stored.edge(loaded[-1])))
            manifests.append(self._load(cells.entries[number], first, lengths[-1]))
        joined = Manifest.concatenate(manifests, self.axis) if len(manifests) > 1 else manifests[0]
        if cells.is_in_order and cells.is_whole:
            return joined
        stored, inside = cells.number_cells(np.arange(cells.axis.ncells))
        at = np.concatenate(loaded)
        order = np.argsort(at)
        slices = [AxisSlices.identity(axis) for axis in self._axes]
        slices[self.axis] = AxisSlices(order[at[order].searchsorted(stored)], inside, cells.axis)
        return self._slice(joined, self._axes, np.concatenate(lengths), slices)

    def _load(self, entry: Entry, first: int, lengths: Int64) -> Manifest:
        """Return references of some cells of an entry, in the version's cells along other axes."""
        assert self.axis is not None
        part, other_axes = self._part(entry), self._other_axes(entry)
        shape = [axis.ncells for axis in self._axes]
        shape[self.axis] = len(lengths)
        if part is None:
            return Manifest.missing(shape)
        box = [slice(axis.ncells) for axis in other_axes or self._axes]
        box[self.axis] = slice(first, first + len(lengths))
        manifest = part.load(box)
        if other_axes is None:
            return manifest
        pairs = zip(other_axes, self._axes, strict=True)
        slices = [AxisSlices.refine(other, axis) for other, axis in pairs]
        slices[self.axis] = AxisSlices.identity(Axis(int(lengths.sum()), lengths))
        return self._slice(manifest, other_axes, lengths, slices)

    def _slice(
        self,
        manifest: Manifest,
        axes: Sequence[Axis],
        lengths: Int64,
        slices: Sequence[AxisSlices],
    ) -> Manifest:
        """Return references of parts of cells, whose lengths along the growing axis are given."""
        assert self.axis is not None
        old = [*axes]
        old[self.axis] = Axis(int(lengths.sum()), lengths)
        grid = simplify(old)
        metadata = self.metadata.replace(shape=grid.shape, grid=grid)
        return apply_axis_slices(Array.from_manifest(metadata, manifest), slices).manifest


@dataclass(frozen=True, slots=True)
class _Places:
    """Where cells of a version are in one entry.

    Attributes
    ----------
    cells, inside : int64 arrays, shape (cells, ndim)
        The stored cells, and where in them those of the version begin.
    axes : sequence of Axis
        How the entry is chunked along axes that do not grow.
    edge : int64 array
        The stored chunk lengths along the growing one, of an array that has it.
    is_whole : bool
        Whether all are known to be whole stored cells.
    """

    cells: Int64
    inside: Int64
    axes: Sequence[Axis]
    edge: Int64
    is_whole: bool


def _group(numbers: Int64) -> Iterator[tuple[int, Int64]]:
    """Yield each number with where it is."""
    if (numbers == numbers[0]).all():
        yield int(numbers[0]), np.arange(len(numbers))
        return
    order = np.argsort(numbers, kind="stable")
    begins = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    for part in np.split(order, begins[1:]):
        yield int(numbers[part[0]]), part


def list_axes(
    entry: Entry, path: str, axes: tuple[Axis, ...], growing: int | None
) -> tuple[Axis, ...]:
    """Return how an entry is chunked, given the axes of the array's document.

    The growing axis is left as it is.
    """
    if growing is None or path not in entry.grids:
        return axes
    others = iter(entry.grids[path])
    return tuple(
        axis if i == growing else _to_axis(axis.extent, next(others)) for i, axis in enumerate(axes)
    )


def _to_axis(extent: int, runs: ChunkRuns) -> Axis:
    lengths, counts = zip(*runs, strict=True)
    return Axis(extent, lengths, counts)


def build_arrays(
    rows: RowFinder | Stretches,
    fixed: Sequence[Entry],
    documents: Mapping[str, ArrayMetadata],
    dimension: str,
    open_segment: SegmentOpener,
) -> dict[str, Array]:
    """Return the arrays of a version by path, or of some of its rows.

    Parameters
    ----------
    rows : RowFinder or Stretches
        Those of the growing dimension.
    fixed : sequence of Entry
        Those that may have arrays which do not grow, the newest one last.
    """
    cut: dict[Any, CutCells] = {}
    arrays = {}
    for path, metadata in documents.items():
        names = metadata.dimension_names or ()
        if dimension not in names:
            entry = _find_fixed(fixed, path, open_segment)
            chunks = VersionChunks(metadata, path, None, None, open_segment, fixed=entry)
            arrays[path] = Array(metadata, chunks, path)
            continue
        length = rows.find_chunk_length(path) if isinstance(rows, RowFinder) else None
        cells: RowCells
        if length is None:
            cells = _cut_cells(path, rows.load(), dimension, cut)
        else:
            cells = UniformCells(path, rows, len(rows), length, dimension)
        arrays[path] = build_array(path, metadata, dimension, cells, open_segment)
    return arrays


def _cut_cells(
    path: str, stretches: Stretches, dimension: str, others: dict[Any, CutCells]
) -> CutCells:
    """Return the cells of an array; those of arrays that are chunked alike are shared."""
    key = tuple(entry.chunks_of(path) for entry in stretches.entries)
    if key not in others:
        others[key] = CutCells(path, stretches, dimension)
    return others[key]


def build_array(
    path: str, metadata: ArrayMetadata, dimension: str, cells: RowCells, open_segment: SegmentOpener
) -> Array:
    """Return an array that grows, with some rows; its document has the metadata."""
    axis, grid = (metadata.dimension_names or ()).index(dimension), metadata.grid
    assert isinstance(grid, SeparableGrid)
    new_axes = [*grid.axes]
    if isinstance(cells, CutCells):
        # Entries that are chunked in different ways along another axis are cut into common cells.
        used = cells.stretches.list_entries()
        listed = {list_axes(entry, path, grid.axes, axis) for entry in used} or {grid.axes}
        new_axes = [_refine([axes[i] for axes in listed]) for i in range(len(grid.axes))]
    new_axes[axis] = cells.axis
    new = simplify(new_axes)
    metadata = metadata.replace(shape=new.shape, grid=new)
    return Array(
        metadata, VersionChunks(metadata, path, axis, cells, open_segment, grid.axes), path
    )


def _refine(axes: Sequence[Axis]) -> Axis:
    """Return the axis into whose cells those of all others can be cut."""
    distinct = dict.fromkeys(axes)
    if len(distinct) == 1:
        return axes[0]
    return refine([from_axes([axis]) for axis in distinct]).axes[0]


def _find_fixed(fixed: Sequence[Entry], path: str, open_segment: Opener) -> Entry | None:
    """Return the newest entry that has an array which does not grow."""
    for entry in reversed(fixed):
        if entry.is_static and path in open_segment(entry.segment).paths:
            return entry
    return None
