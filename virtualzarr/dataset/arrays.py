"""Arrays of one version of a dataset: chunks that are found through runs, entries and segments.

Nothing but the snapshot is needed to open them: it says how the rows of each array are chunked.
References are looked up in the segments that a selection needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import Axis, Projection, SeparableGrid, from_axes, refine, simplify
from virtualzarr.array import Array
from virtualzarr.array.chunk_source import LocatedChunks, ManifestChunks, open_source
from virtualzarr.array.read.layers import Layers
from virtualzarr.config import config
from virtualzarr.dataset.entry import Entry
from virtualzarr.dataset.named import Named
from virtualzarr.dataset.pieces import Piece, Stretch, find_pieces, find_stretches, to_axis
from virtualzarr.dataset.row_tables import Contents
from virtualzarr.dataset.segment import Segment
from virtualzarr.dataset.segment_opener import SegmentOpener
from virtualzarr.errors import MetadataError, SourceNotFoundError, VirtualZarrError
from virtualzarr.manifest import Decoder, Manifest, References
from virtualzarr.manifest.manifest import CANONICAL
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.references.native.parts import Part
from virtualzarr.stores.files import ByteFile
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
    pieces : sequence
        What the axis is made of; for an array that does not grow, the entry that has it.
    open_segment : callable
    """

    def __init__(
        self,
        metadata: ArrayMetadata,
        path: str,
        axis: int | None,
        pieces: Sequence[Piece],
        open_segment: SegmentOpener,
    ) -> None:
        self.metadata, self.path, self.axis = metadata, path, axis
        self.pieces, self.open_segment = tuple(pieces), open_segment
        self.ends = np.cumsum([piece.ncells for piece in pieces]) if axis is not None else None
        self._files: dict[int, ByteFile] = {}
        self.layers: Layers | None = None

    def __str__(self) -> str:
        count = len(self.pieces)
        grid = "x".join(map(str, self.metadata.grid.grid_shape))
        text = f"references of {grid or 1} cells in {count} piece{'s' * (count != 1)}"
        layers = 0 if self.layers is None else len(self.layers.others)
        return f"{text}, and {layers} layer{'s' * (layers != 1)}" if layers else text

    def __reduce__(self) -> tuple[Any, ...]:
        args = self.metadata, self.path, self.axis, self.pieces, self.open_segment
        return VersionChunks, args, {"layers": self.layers}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.layers = state["layers"]

    def without_layers(self) -> VersionChunks:
        """Return the chunks that all rows have."""
        return VersionChunks(self.metadata, self.path, self.axis, self.pieces, self.open_segment)

    def _part(self, number: int) -> Part | None:
        segment = self.open_segment(self.pieces[number].entry.segment)
        return segment.part(self.path, self.metadata.ndim)

    @property
    def has_decoders(self) -> bool:
        """Whether some chunks may decode otherwise than the array declares."""
        parts = (self._part(number) for number in range(len(self.pieces)))
        return any(part is not None and part.has_decoders for part in parts) or any(
            not self._is_whole(piece) for piece in self.pieces
        )

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
        for number, rows in self._by_piece(cells):
            part = self._part(number)
            if part is None:
                continue
            stored, inside = self._to_stored(number, cells[rows])
            refs = part.take(stored)
            refs, own_decoders = self._trim(
                number, cells[rows], stored, inside, refs, part.decoders
            )
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

    def _by_piece(self, cells: Int64) -> list[tuple[int, Int64]]:
        """Return which cells are in which piece."""
        if self.ends is None:
            return [(0, np.arange(len(cells)))] if self.pieces else []
        which = self.ends.searchsorted(cells[:, self.axis], side="right")
        return [(number, np.flatnonzero(which == number)) for number in np.unique(which).tolist()]

    def _is_whole(self, piece: Piece) -> bool:
        """Tell whether all cells of a piece are whole blocks."""
        if self.axis is None:
            return True
        return not (piece.skipped or piece.is_cut) and all(
            other.has_same_cells(stored)
            for i, (other, stored) in enumerate(zip(self._axes, piece.axes, strict=True))
            if i != self.axis
        )

    @property
    def _axes(self) -> tuple[Axis, ...]:
        grid = self.metadata.grid
        assert isinstance(grid, SeparableGrid)
        return grid.axes

    def _to_stored(self, number: int, cells: Int64) -> tuple[Int64, Int64]:
        """Return the stored cells that cells are parts of, and where in them they begin."""
        stored, inside = cells.copy(), np.zeros_like(cells)
        if self.axis is None or self.ends is None:
            return stored, inside
        piece = self.pieces[number]
        for i, (axis, other) in enumerate(zip(self._axes, piece.axes, strict=True)):
            if i == self.axis:
                stored[:, i] += piece.first - (int(self.ends[number]) - piece.ncells)
                inside[:, i] = np.where(stored[:, i] == piece.first, piece.skipped, 0)
            elif not axis.has_same_cells(other):
                starts = axis.start(cells[:, i])
                stored[:, i] = other.cell_of(starts)
                inside[:, i] = starts - other.start(stored[:, i])
        return stored, inside

    def _trim(
        self,
        number: int,
        cells: Int64,
        stored: Int64,
        inside: Int64,
        refs: References,
        decoders: Sequence[Decoder],
    ) -> tuple[References, list[Decoder]]:
        """Return references of cells that are parts of stored blocks, and decoders.

        Their blocks are longer than the cells, so that decoders must say how long, and the origin
        in the block moves to where the cell begins.
        """
        all_decoders, piece = list(decoders), self.pieces[number]
        if self._is_whole(piece):
            return refs, all_decoders
        shapes = np.column_stack([a.edge(stored[:, i]) for i, a in enumerate(piece.axes)])
        edges = np.column_stack([a.edge(cells[:, i]) for i, a in enumerate(self._axes)])
        rows = np.flatnonzero((inside != 0).any(axis=1) | (edges != shapes).any(axis=1))
        if not len(rows):
            return refs, all_decoders
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
            if which == CANONICAL or all_decoders[which].shape is None:
                pipeline = (
                    self.metadata.pipeline if which == CANONICAL else all_decoders[which].pipeline
                )
                row = numbers.setdefault((which, *shape), len(all_decoders))
                if row == len(all_decoders):
                    all_decoders.append(Decoder(pipeline, tuple(shape)))
            table.append(row)
        decoder[rows] = np.array(table, np.int32)[inverse.reshape(-1)]
        origin = inside.astype(np.int32)
        if refs.origin is not None:
            origin += refs.origin
        return References(refs.source, refs.offset, refs.length, decoder, origin), all_decoders

    def _file(self, row: int) -> ByteFile:
        file = self._files.get(row)
        if file is None:
            part = self._part(row >> _SHIFT)
            assert part is not None
            source = part.source(row & ((1 << _SHIFT) - 1))
            if source.uri:
                file = open_source(source)
            else:
                inline = part.store.file(part.heap_key)
                if inline is None:
                    raise MetadataError("inline bytes are missing", file=part.heap_key)
                file = inline
            if len(self._files) >= config.open_sources:
                self._files.clear()
            self._files[row] = file
        return file

    @cached_property
    def manifest(self) -> Manifest:  # type: ignore[override]
        """All references, in memory."""
        if self.axis is None:
            part = self._part(0) if self.pieces else None
            return self._load(part, self.metadata.grid.grid_shape)
        manifests = [self._load_piece(number) for number in range(len(self.pieces))]
        if not manifests:
            return Manifest.missing(self.metadata.grid.grid_shape)
        return manifests[0] if len(manifests) == 1 else Manifest.concatenate(manifests, self.axis)

    def _load(self, part: Part | None, shape: Sequence[int]) -> Manifest:
        return Manifest.missing(shape) if part is None else part.load([slice(n) for n in shape])

    def _load_piece(self, number: int) -> Manifest:
        piece, axis = self.pieces[number], self.axis
        assert axis is not None
        shape = [axis.ncells for axis in self._axes]
        shape[axis] = piece.ncells
        part = self._part(number)
        if part is None:
            return Manifest.missing(shape)
        box = [slice(other.ncells) for other in piece.axes]
        box[axis] = slice(piece.first, piece.last + 1)
        manifest = part.load(box)
        if self._is_whole(piece):
            return manifest
        lengths = piece.stored.edge(np.arange(piece.first, piece.last + 1))
        along = Axis(int(lengths.sum()), lengths)
        rows = AxisSlices.slice(along, piece.skipped, piece.skipped + piece.stop - piece.start)
        # Other rows follow: the last cell must not reach over them.
        end = Axis(rows.axis.extent, *rows.axis.runs(clipped=True))
        slices = [
            AxisSlices(rows.cell, rows.start, end)
            if i == axis
            else AxisSlices.refine(other, self._axes[i])
            for i, other in enumerate(piece.axes)
        ]
        stored = simplify([along if i == axis else other for i, other in enumerate(piece.axes)])
        metadata = self.metadata.replace(shape=stored.shape, grid=stored)
        return apply_axis_slices(Array.from_manifest(metadata, manifest), slices).manifest


def build_arrays(
    state: Contents,
    documents: Mapping[str, ArrayMetadata],
    dimension: str,
    open_segment: SegmentOpener,
    stretches: Sequence[Stretch] | None = None,
) -> dict[str, Array]:
    """Return the arrays of a version by path, or of some of its rows."""
    if stretches is None:
        stretches = find_stretches(state, dimension) if dimension in state.runs else []
    axes: dict[tuple[Any, ...], Axis] = {}
    return {
        path: build_array(path, metadata, dimension, stretches, axes, open_segment)
        if dimension in (metadata.dimension_names or ())
        else _build_static_array(path, metadata, state, open_segment)
        for path, metadata in documents.items()
    }


def _build_static_array(
    path: str, metadata: ArrayMetadata, state: Contents, open_segment: SegmentOpener
) -> Array:
    entry = _entry_of(state, path, open_segment)
    piece = [] if entry is None else [Piece(entry, (Axis(1, [1]),), 0, 0, 1)]
    return Array(metadata, VersionChunks(metadata, path, None, piece, open_segment), path)


def build_array(
    path: str,
    metadata: ArrayMetadata,
    dimension: str,
    stretches: Sequence[Stretch],
    axes: dict[tuple[Any, ...], Axis],
    open_segment: SegmentOpener,
) -> Array:
    """Return an array that grows, with some rows.

    Parameters
    ----------
    metadata : ArrayMetadata
        As its document has them.
    axes : dict
        Growing axes that arrays with the same chunks share; this one's is added.
    """
    axis, grid = (metadata.dimension_names or ()).index(dimension), metadata.grid
    assert isinstance(grid, SeparableGrid)
    pieces = find_pieces(stretches, path, dimension, axis, grid.axes)
    key = tuple(stretch.entry.chunks_of(path) for stretch in stretches)
    along = axes.get(key)
    if along is None:
        runs = [run for piece in pieces for run in piece.runs()] or [(1, 1)]
        along = axes[key] = to_axis(sum(s.stop - s.start for s in stretches), tuple(runs))
    # Pieces that are chunked in different ways along another axis are cut into common cells.
    new_axes = [
        along if i == axis else _refine([piece.axes[i] for piece in pieces] or [other])
        for i, other in enumerate(grid.axes)
    ]
    new = simplify(new_axes)
    metadata = metadata.replace(shape=new.shape, grid=new)
    return Array(metadata, VersionChunks(metadata, path, axis, pieces, open_segment), path)


def _refine(axes: Sequence[Axis]) -> Axis:
    """Return the axis into whose cells those of all others can be cut."""
    distinct = dict.fromkeys(axes)
    if len(distinct) == 1:
        return axes[0]
    return refine([from_axes([axis]) for axis in distinct]).axes[0]


def _entry_of(state: Contents, path: str, open_segment: Opener) -> Entry | None:
    """Return the newest entry that has an array which does not grow."""
    for entry in reversed(state.entries):
        if entry.is_static and path in open_segment(entry.segment).paths:
            return entry
    return None
