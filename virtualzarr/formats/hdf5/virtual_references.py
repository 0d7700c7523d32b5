"""References of virtual datasets, put together from those of their sources.

A mapping says which elements of the dataset are which elements of another. Where both selections
have equally many indices along each axis, it holds axis by axis: runs of indices that follow each
other in both. Cut where chunks end, such a run is a part of one chunk; all cuts of all mappings
together make the grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import RectilinearGrid, RegularGrid
from grids.grid import SeparableGrid
from virtualzarr.codecs import Pipeline
from virtualzarr.formats.hdf5.virtual_mappings import UNLIMITED, AxisSelection, Mapping
from virtualzarr.formats.hdf5.virtual_sources import VirtualSources
from virtualzarr.manifest import Decoder, Manifest, Sources
from virtualzarr.manifest.manifest import CANONICAL

_MAX_RUNS = 1 << 20
_MAX_CELLS = 1 << 24
# A chunk that is cut into more cells than this, on average, is read too often.
_CELLS_PER_CHUNK = 64

Runs = NDArray[np.int64]
"""Runs of one axis, one in each row: first index in the dataset, first in the source, length."""


class UnalignedError(Exception):
    """The dataset cannot be put together of references; the reason."""


def _list_runs(part: AxisSelection, extent: int) -> NDArray[np.int64]:
    """Return runs (first index, length) of a selection along one axis, within the extent."""
    start, stride, count, block = part
    if block == UNLIMITED:
        block = max(extent - start, 0)
    if count == UNLIMITED:
        count = -(-max(extent - start, 0) // stride)
    if count > _MAX_RUNS and stride != block:
        raise UnalignedError("a selection has too many blocks")
    # Blocks without gaps are one run, however many they are: unlimited selections often have
    # millions.
    if stride == block:
        count, block = 1, count * block
    first = start + stride * np.arange(count, dtype=np.int64)
    length = np.minimum(first + block, extent) - first
    return np.stack([first, length], axis=1)[length > 0]


def _pair_runs(inside: NDArray[np.int64], outside: NDArray[np.int64]) -> Runs:
    """Return the runs that follow each other in both selections, as far as both go."""
    # Elements correspond by their order in the selections. Where either has a gap, a run ends: cuts
    # are the union of the ends of both.
    ends = [np.cumsum(runs[:, 1]) for runs in (inside, outside)]
    total = min((int(end[-1]) if len(end) else 0) for end in ends)
    cuts = np.unique(np.concatenate([[0, total], *(end[end < total] for end in ends)]))
    begin, length = cuts[:-1], np.diff(cuts)
    places = []
    for runs, end in zip((inside, outside), ends, strict=True):
        run = np.searchsorted(end, begin, side="right")
        places.append(runs[run, 0] + begin - (end[run] - runs[run, 1]))
    return np.stack([*places, length], axis=1)


@dataclass(frozen=True)
class Piece:
    """A mapping whose source is known: runs along each axis that end where its chunks do."""

    values: Any
    runs: list[Runs]


def align_mappings(
    mappings: list[Mapping],
    shape: tuple[int, ...],
    sources: VirtualSources,
    element: Any,
    fill: bytes,
) -> list[Piece]:
    """Return the pieces of a virtual dataset; what is not there is left out, as HDF5 does.

    Raises `UnalignedError` if references cannot stand for it; `AccessError` if a source may not be
    reached.
    """
    result = []
    for mapping in mappings:
        values = sources.values(mapping)
        if values is None:
            continue
        if values.dtype != element.dtype or len(values.shape) != len(shape) + len(element.inner):
            raise UnalignedError("a source has another type")
        missing = values.manifest.nrefs < values.manifest.ncells
        # A missing chunk of the source reads as the source's fill value, in the manifest as this
        # dataset's.
        if missing and np.asarray(values.fill_value, values.dtype).tobytes() != fill:
            raise UnalignedError("chunks of a source are not stored, and its fill value is another")
        runs = _align_mapping(mapping, shape, values)
        if all(len(part) for part in runs):
            result.append(Piece(values, runs))
    return result


def _align_mapping(mapping: Mapping, shape: tuple[int, ...], values: Any) -> list[Runs]:
    """Return the runs along each axis, cut where chunks of the source end."""
    if mapping.inside.blocks is not None or mapping.outside.blocks is not None:
        raise UnalignedError("a selection is irregular")
    inside = mapping.inside.parts or select_all(shape)
    outside = mapping.outside.parts or select_all(values.shape[: len(shape)])
    if len(inside) != len(outside):
        raise UnalignedError("the selections have other numbers of axes")
    _check_separable(inside, outside, shape, values.shape)
    runs_by_axis = []
    for axis, extent in enumerate(shape):
        source_extent = values.shape[axis]
        runs = _pair_runs(
            _list_runs(inside[axis], extent), _list_runs(outside[axis], source_extent)
        )
        runs_by_axis.append(_cut_at_chunks(runs, values.grid.axes[axis]))
    return runs_by_axis + [
        _cut_at_chunks(np.array([[0, 0, n]]), values.grid.axes[axis])
        for axis, n in enumerate(values.shape[len(shape) :], len(shape))
    ]


def select_all(shape: tuple[int, ...]) -> tuple[AxisSelection, ...]:
    """Return the selection of all elements."""
    return tuple((0, 1, 1, n) for n in shape)


def _check_separable(inside: Any, outside: Any, shape: Any, theirs: Any) -> None:
    """Refuse selections of other lengths: elements then follow each other across rows."""
    for part, other, extent, extent2 in zip(inside, outside, shape, theirs, strict=False):
        endless = UNLIMITED in part[2:]
        if endless != (UNLIMITED in other[2:]):
            raise UnalignedError("only one of two selections is without end along an axis")
        if endless:
            continue
        if part[2] * part[3] != other[2] * other[3]:
            raise UnalignedError("the selections have other shapes")
        for (start, stride, count, block), n in ((part, extent), (other, extent2)):
            if start + stride * (count - 1) + block > n:
                raise UnalignedError("a selection reaches out of its dataset")


def _cut_at_chunks(runs: Runs, axis: Any) -> Runs:
    """Cut runs where cells of the source end."""
    # A reference decodes one chunk: runs are cut where another chunk of the source begins.
    starts = axis.start(np.arange(axis.ncells))
    cuts = []
    for first, other, length in runs.tolist():
        inner = starts[(starts > other) & (starts < other + length)] - other
        begin = np.concatenate([[0], inner])
        cuts.append(np.stack([first + begin, other + begin, np.diff([*begin, length])], axis=1))
        if len(cuts) > _MAX_RUNS:
            raise UnalignedError("a selection has too many blocks")
    return np.concatenate(cuts) if cuts else runs


def assemble(
    placed_pieces: list[Piece], shape: tuple[int, ...], pipeline: Pipeline
) -> tuple[SeparableGrid, Manifest, Pipeline]:
    """Return the grid and the references of all pieces.

    Raises `UnalignedError` if chunks would be cut into too many cells.
    """
    # The grid is separable: a cut that one piece needs goes through the whole axis, so that pieces
    # that do not line up multiply cells. The limit keeps that from growing without bound.
    cuts = [_collect_cuts(placed_pieces, axis, extent) for axis, extent in enumerate(shape)]
    cells = tuple(len(cut) - 1 for cut in cuts)
    chunks = sum(piece.values.manifest.ncells for piece in placed_pieces)
    if math.prod(cells) > min(_MAX_CELLS, _CELLS_PER_CHUNK * (chunks + 16)):
        raise UnalignedError(f"{chunks} chunks would be cut into {math.prod(cells)} cells")
    sources, remaps = Sources.merge([piece.values.manifest.sources for piece in placed_pieces])
    columns = _Columns(cells, placed_pieces[0].values.pipeline if placed_pieces else pipeline)
    for piece, remap in zip(placed_pieces, remaps, strict=True):
        columns.place(piece, cuts, remap)
    edges = [np.diff(cut) for cut in cuts]
    grid: SeparableGrid = RectilinearGrid(shape, [part.tolist() for part in edges])
    if all(len(set(part[:-1].tolist())) <= 1 and part[-1] <= part[0] for part in edges):
        regular = RegularGrid(shape, [int(part[0]) for part in edges])
        grid = regular if columns.fill(regular) else grid
    return grid, columns.manifest(sources, grid), columns.pipeline


def _collect_cuts(placed_pieces: list[Piece], axis: int, extent: int) -> NDArray[np.int64]:
    """Return where cells begin along an axis, and the extent."""
    parts = [np.array([0, extent])]
    for piece in placed_pieces:
        runs = piece.runs[axis]
        parts += [runs[:, 0], runs[:, 0] + runs[:, 2]]
    return np.unique(np.concatenate(parts))


class _Columns:
    """The columns of the manifest while pieces are placed."""

    def __init__(self, cells: tuple[int, ...], pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.source = np.full(cells, -1, np.int32)
        self.offset = np.zeros(cells, np.int64)
        self.length = np.zeros(cells, np.int64)
        self.decoder = np.full(cells, -1, np.int32)
        self.origin = np.zeros((*cells, len(cells)), np.int32)
        self.decoders: dict[Decoder, int] = {}

    def place(self, piece: Piece, cuts: list[NDArray[np.int64]], remap: NDArray[np.int32]) -> None:
        """Write the references of one piece."""
        manifest, grid = piece.values.manifest, piece.values.grid
        target_cells, source_cells, origins = [], [], []
        for axis, (cut, runs) in enumerate(zip(cuts, piece.runs, strict=True)):
            runs = runs[np.argsort(runs[:, 0])]
            # Cells of this axis that lie in a run of the piece, by binary search of their first
            # index.
            run = np.searchsorted(runs[:, 0], cut[:-1], side="right") - 1
            inside = (run >= 0) & (cut[:-1] < runs[run, 0] + runs[run, 2])
            run = run[inside]
            index = runs[run, 1] + cut[:-1][inside] - runs[run, 0]
            cell = np.asarray(grid.axes[axis].cell_of(index))
            target_cells.append(np.flatnonzero(inside))
            source_cells.append(cell)
            origins.append(index - np.asarray(grid.axes[axis].start(cell)))
        box, at = np.ix_(*target_cells), np.ix_(*source_cells)
        self.source[box] = remap[manifest.source[at]]
        self.offset[box] = np.asarray(manifest.offset)[at]
        self.length[box] = np.asarray(manifest.length)[at]
        for axis, origin in enumerate(np.ix_(*origins)):
            target = self.origin[..., axis]
            target[box] = origin
            if manifest.origin is not None:
                target[box] += manifest.origin[..., axis][at]
        self.decoder[box] = self._numbers(piece, source_cells)[()]

    def _numbers(self, piece: Piece, source_cells: list[NDArray[np.int64]]) -> NDArray[np.int32]:
        """Return the decoders of the source's cells, one for each edge length and pipeline."""
        manifest, grid = piece.values.manifest, piece.values.grid
        edges = [
            np.asarray(axis.edge(cell)) for axis, cell in zip(grid.axes, source_cells, strict=True)
        ]
        shapes = np.stack(np.broadcast_arrays(*np.ix_(*edges)), axis=-1)
        kinds = np.full(shapes.shape[:-1], -1, np.int64)
        if manifest.decoder is not None:
            kinds = manifest.decoder[np.ix_(*source_cells)].astype(np.int64)
        # Decoders differ in pipeline and in the shape they decode to; distinct rows are few, so
        # that Python only sees those.
        keys = np.concatenate([kinds[..., None], shapes], axis=-1).reshape(-1, shapes.shape[-1] + 1)
        distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
        numbers = []
        for kind, *edge in distinct.tolist():
            decoder_ = Decoder(piece.values.pipeline) if kind < 0 else manifest.decoders[kind]
            decoder = Decoder(decoder_.pipeline, decoder_.shape or tuple(edge))
            numbers.append(self.decoders.setdefault(decoder, len(self.decoders)))
        return np.array(numbers, np.int32)[inverse.reshape(-1)].reshape(kinds.shape)

    def fill(self, grid: SeparableGrid) -> bool:
        """Whether all blocks reach to the end of their cells, as declared."""
        edges = _get_chunk_lengths(grid)
        for decoder, number in self.decoders.items():
            assert decoder.shape is not None
            for axis, (edge, length) in enumerate(zip(edges, decoder.shape, strict=True)):
                stop = self.origin[..., axis] + edge
                if (stop[(self.decoder == number) & (self.source >= 0)] > length).any():
                    return False
        return True

    def manifest(self, sources: Sources, grid: SeparableGrid) -> Manifest:
        """Return the columns; chunks that are exactly their cell need no decoder."""
        plain = ~self.origin.any(axis=-1)
        for decoder, number in self.decoders.items():
            assert decoder.shape is not None
            if decoder.pipeline == self.pipeline:
                fits = plain & (self.decoder == number)
                for edge, length in zip(_get_chunk_lengths(grid), decoder.shape, strict=True):
                    fits &= edge == length
                self.decoder[fits] = CANONICAL
        self.decoder[self.source < 0] = CANONICAL
        # Without decoders and origins the manifest is one that every Zarr reader understands.
        needed = bool((self.decoder != CANONICAL).any())
        return Manifest(
            self.source.shape,
            sources,
            self.source,
            self.offset,
            self.length,
            tuple(self.decoders) if needed else (),
            self.decoder if needed else None,
            None if plain.all() else self.origin,
        )


def _get_chunk_lengths(grid: SeparableGrid) -> tuple[NDArray[np.int64], ...]:
    """Return the declared edges of cells, shaped to be broadcast along their axes."""
    return np.ix_(*(np.asarray(axis.edge(np.arange(axis.ncells))) for axis in grid.axes))
