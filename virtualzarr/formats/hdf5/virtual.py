"""Virtual datasets: the references of the datasets that they are made of, put together.

A mapping says which elements of the dataset are which elements of another. Where both selections
have equally many indices along each axis, it holds axis by axis: runs of indices that follow each
other in both. Cut where chunks end, such a run is a part of one chunk; all cuts of all mappings
together make the grid.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import RectilinearGrid, RegularGrid
from grids.grid import SeparableGrid
from virtualzarr.codecs import Pipeline
from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.surroundings import Surroundings
from virtualzarr.manifest import Decoder, Manifest, Sources
from virtualzarr.manifest.manifest import CANONICAL

_UNLIMITED = (1 << 64) - 1
_MAX_MAPPINGS = 100_000
_MAX_RUNS = 1 << 20
_MAX_CELLS = 1 << 24
# A chunk that is cut into more cells than this, on average, is read too often.
_CELLS_PER_CHUNK = 64
_PLACE = re.compile(rb"%(.)", re.DOTALL)

Runs = NDArray[np.int64]
"""Runs of one axis, one in each row: first index in the dataset, first in the source, length."""


class Unaligned(Exception):
    """The dataset cannot be put together of references; the reason."""


@dataclass(frozen=True)
class Mapping:
    """Where a part of the dataset lies.

    Parameters
    ----------
    file, dataset : bytes
        Names as stored, with the number of a block put in.
    inside : list of (start, stride, count, block)
        Selection in the virtual dataset, for each axis. A count or block may be without end.
    outside : list of (start, stride, count, block), optional
        In the source; None for all of it.
    """

    file: bytes
    dataset: bytes
    inside: list[tuple[int, int, int, int]]
    outside: list[tuple[int, int, int, int]] | None


def mappings(dcpl: Any, shape: tuple[int, ...]) -> Iterator[Mapping]:
    """Yield the mappings of a virtual dataset, patterns with ``%b`` as one for each block.

    Raises
    ------
    Unaligned
        If a selection is no regular one.
    """
    for index in range(dcpl.get_virtual_count()):
        file, dataset = dcpl.get_virtual_filename(index), dcpl.get_virtual_dsetname(index)
        file, dataset = (s.encode() if isinstance(s, str) else s for s in (file, dataset))
        inside = _selection(dcpl.get_virtual_vspace(index), shape)
        outside = _selection(dcpl.get_virtual_srcspace(index), None)
        if inside is None:
            raise Unaligned("a selection is irregular")
        names = file + b"\0" + dataset
        endless = [axis for axis, part in enumerate(inside) if _UNLIMITED in part[2:]]
        if b"b" not in _PLACE.findall(names) or not endless:
            yield Mapping(_filled(file, None), _filled(dataset, None), inside, outside)
            continue
        axis = endless[0]
        start, stride, _, block = inside[axis]
        if block == _UNLIMITED:
            raise Unaligned("a pattern of names goes with a block without end")
        for number, first in enumerate(range(start, shape[axis], stride)):
            if number > _MAX_MAPPINGS:
                raise Unaligned("a pattern stands for too many names")
            part = [*inside[:axis], (first, 1, 1, block), *inside[axis + 1 :]]
            yield Mapping(_filled(file, number), _filled(dataset, number), part, outside)


def _filled(name: bytes, number: int | None) -> bytes:
    """Return a name with a block's number for ``%b``, and ``%`` for ``%%``."""

    def put(found: re.Match[bytes]) -> bytes:
        if found[1] == b"b" and number is not None:
            return str(number).encode()
        return b"%" if found[1] == b"%" else found[0]

    return _PLACE.sub(put, name)


def _selection(space: Any, shape: tuple[int, ...] | None) -> list[tuple[int, int, int, int]] | None:
    """Return start, stride, count and block for each axis; None for everything."""
    from h5py import h5s

    kind = space.get_select_type()
    if kind == h5s.SEL_ALL:
        return None if shape is None else [(0, 1, 1, n) for n in shape]
    if kind != h5s.SEL_HYPERSLABS or not space.is_regular_hyperslab():
        raise Unaligned("a selection is irregular")
    return [tuple(map(int, part)) for part in zip(*space.get_regular_hyperslab(), strict=True)]  # type: ignore[misc]


def _indices(part: tuple[int, int, int, int], extent: int) -> NDArray[np.int64]:
    """Return runs (first index, length) of a selection along one axis, within the extent."""
    start, stride, count, block = part
    if block == _UNLIMITED:
        block = max(extent - start, 0)
    if count == _UNLIMITED:
        count = -(-max(extent - start, 0) // stride)
    if count > _MAX_RUNS and stride != block:
        raise Unaligned("a selection has too many blocks")
    if stride == block:
        count, block = 1, count * block
    first = start + stride * np.arange(count, dtype=np.int64)
    length = np.minimum(first + block, extent) - first
    return np.stack([first, length], axis=1)[length > 0]


def _paired(inside: NDArray[np.int64], outside: NDArray[np.int64]) -> Runs:
    """Return the runs that follow each other in both selections, as far as both go."""
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


def pieces(
    dcpl: Any, shape: tuple[int, ...], near: Surroundings, element: Any, fill: bytes
) -> list[Piece]:
    """Return the pieces of a virtual dataset; what is not there is left out, as HDF5 does.

    Raises
    ------
    Unaligned
        If references cannot stand for it.
    AccessError
        If a source may not be reached.
    """
    opened: dict[tuple[bytes, bytes], Any] = {}
    found = []
    for mapping in mappings(dcpl, shape):
        key = mapping.file, mapping.dataset
        if key not in opened:
            if len(opened) > _MAX_MAPPINGS:
                raise Unaligned("too many sources")
            opened[key] = _values(mapping, near)
        values = opened[key]
        if values is None:
            continue
        if values.dtype != element.dtype or len(values.shape) != len(shape) + len(element.inner):
            raise Unaligned("a source has another type")
        missing = values.manifest.nrefs < values.manifest.ncells
        if missing and np.asarray(values.fill_value, values.dtype).tobytes() != fill:
            raise Unaligned("chunks of a source are not stored, and its fill value is another")
        runs = _runs(mapping, shape, values)
        if all(len(part) for part in runs):
            found.append(Piece(values, runs))
    return found


def _values(mapping: Mapping, near: Surroundings) -> Any:
    """Return the values of a source; None where there is none."""
    from virtualzarr.formats.hdf5.dataset import read_values

    def read(place: Surroundings) -> Any:
        address = place.file.find(mapping.dataset)
        if address is None:
            return None  # HDF5 takes it for not yet written
        name = mapping.dataset.decode("utf-8", "backslashreplace")
        return read_values(place.file.describe(address, name, mapping.dataset), place)

    if mapping.file == b".":
        return read(near.within(near.file))
    source = near.beside(mapping.file.decode("utf-8", "surrogateescape"), "HDF5_VDS_PREFIX")
    if source is None:
        return None
    try:
        with near.open(source.uri) as file:
            return read(near.within(file))
    except SourceError as error:
        raise Unaligned(f"a source cannot be opened: {error.message}") from error


def _runs(mapping: Mapping, shape: tuple[int, ...], values: Any) -> list[Runs]:
    """Return the runs along each axis, cut where chunks of the source end."""
    outside = mapping.outside or [(0, 1, 1, n) for n in values.shape[: len(shape)]]
    found = []
    for axis, extent in enumerate(shape):
        theirs = values.shape[axis]
        runs = _paired(_indices(mapping.inside[axis], extent), _indices(outside[axis], theirs))
        found.append(_cut(runs, values.grid.axes[axis]))
    _check_separable(mapping, outside, shape, values.shape)
    return found + [
        _cut(np.array([[0, 0, n]]), values.grid.axes[axis])
        for axis, n in enumerate(values.shape[len(shape) :], len(shape))
    ]


def _check_separable(mapping: Mapping, outside: Any, shape: Any, theirs: Any) -> None:
    """Refuse selections of other lengths: elements then follow each other across rows."""
    for part, other, extent, extent2 in zip(mapping.inside, outside, shape, theirs, strict=False):
        endless = _UNLIMITED in part[2:]
        if endless != (_UNLIMITED in other[2:]):
            raise Unaligned("only one of two selections is without end along an axis")
        if endless:
            continue
        if part[2] * part[3] != other[2] * other[3]:
            raise Unaligned("the selections have other shapes")
        for (start, stride, count, block), n in ((part, extent), (other, extent2)):
            if start + stride * (count - 1) + block > n:
                raise Unaligned("a selection reaches out of its dataset")


def _cut(runs: Runs, axis: Any) -> Runs:
    """Cut runs where cells of the source end."""
    starts = axis.start(np.arange(axis.ncells))
    cuts = []
    for first, other, length in runs.tolist():
        inner = starts[(starts > other) & (starts < other + length)] - other
        begin = np.concatenate([[0], inner])
        cuts.append(np.stack([first + begin, other + begin, np.diff([*begin, length])], axis=1))
        if len(cuts) > _MAX_RUNS:
            raise Unaligned("a selection has too many blocks")
    return np.concatenate(cuts) if cuts else runs


def assemble(
    found: list[Piece], shape: tuple[int, ...], pipeline: Pipeline
) -> tuple[SeparableGrid, Manifest, Pipeline]:
    """Return the grid and the references of all pieces.

    Raises
    ------
    Unaligned
        If chunks would be cut into too many cells.
    """
    cuts = [_cuts(found, axis, extent) for axis, extent in enumerate(shape)]
    cells = tuple(len(cut) - 1 for cut in cuts)
    chunks = sum(piece.values.manifest.ncells for piece in found)
    if math.prod(cells) > min(_MAX_CELLS, _CELLS_PER_CHUNK * (chunks + 16)):
        raise Unaligned(f"{chunks} chunks would be cut into {math.prod(cells)} cells")
    sources, remaps = Sources.merge([piece.values.manifest.sources for piece in found])
    columns = _Columns(cells, found[0].values.pipeline if found else pipeline)
    for piece, remap in zip(found, remaps, strict=True):
        columns.place(piece, cuts, remap)
    edges = [np.diff(cut) for cut in cuts]
    grid: SeparableGrid = RectilinearGrid(shape, [part.tolist() for part in edges])
    if all(len(set(part[:-1].tolist())) <= 1 and part[-1] <= part[0] for part in edges):
        regular = RegularGrid(shape, [int(part[0]) for part in edges])
        grid = regular if columns.fill(regular) else grid
    return grid, columns.manifest(sources, grid), columns.pipeline


def _cuts(found: list[Piece], axis: int, extent: int) -> NDArray[np.int64]:
    """Return where cells begin along an axis, and the extent."""
    parts = [np.array([0, extent])]
    for piece in found:
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
        here, there, origins = [], [], []
        for axis, (cut, runs) in enumerate(zip(cuts, piece.runs, strict=True)):
            runs = runs[np.argsort(runs[:, 0])]
            run = np.searchsorted(runs[:, 0], cut[:-1], side="right") - 1
            inside = (run >= 0) & (cut[:-1] < runs[run, 0] + runs[run, 2])
            run = run[inside]
            index = runs[run, 1] + cut[:-1][inside] - runs[run, 0]
            cell = np.asarray(grid.axes[axis].cell_of(index))
            here.append(np.flatnonzero(inside))
            there.append(cell)
            origins.append(index - np.asarray(grid.axes[axis].start(cell)))
        box, at = np.ix_(*here), np.ix_(*there)
        self.source[box] = remap[manifest.source[at]]
        self.offset[box] = np.asarray(manifest.offset)[at]
        self.length[box] = np.asarray(manifest.length)[at]
        for axis, origin in enumerate(np.ix_(*origins)):
            target = self.origin[..., axis]
            target[box] = origin
            if manifest.origin is not None:
                target[box] += manifest.origin[..., axis][at]
        self.decoder[box] = self._numbers(piece, there)[()]

    def _numbers(self, piece: Piece, there: list[NDArray[np.int64]]) -> NDArray[np.int32]:
        """Return the decoders of the source's cells, one for each edge length and pipeline."""
        manifest, grid = piece.values.manifest, piece.values.grid
        edges = [np.asarray(axis.edge(cell)) for axis, cell in zip(grid.axes, there, strict=True)]
        shapes = np.stack(np.broadcast_arrays(*np.ix_(*edges)), axis=-1)
        kinds = np.full(shapes.shape[:-1], -1, np.int64)
        if manifest.decoder is not None:
            kinds = manifest.decoder[np.ix_(*there)].astype(np.int64)
        keys = np.concatenate([kinds[..., None], shapes], axis=-1).reshape(-1, shapes.shape[-1] + 1)
        distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
        numbers = []
        for kind, *edge in distinct.tolist():
            own = Decoder(piece.values.pipeline) if kind < 0 else manifest.decoders[kind]
            decoder = Decoder(own.pipeline, own.shape or tuple(edge))
            numbers.append(self.decoders.setdefault(decoder, len(self.decoders)))
        return np.array(numbers, np.int32)[inverse.reshape(-1)].reshape(kinds.shape)

    def fill(self, grid: SeparableGrid) -> bool:
        """Whether all blocks reach to the end of their cells, as declared."""
        edges = _edges(grid)
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
                for edge, length in zip(_edges(grid), decoder.shape, strict=True):
                    fits &= edge == length
                self.decoder[fits] = CANONICAL
        self.decoder[self.source < 0] = CANONICAL
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


def _edges(grid: SeparableGrid) -> tuple[NDArray[np.int64], ...]:
    """Return the declared edges of cells, shaped to be broadcast along their axes."""
    return np.ix_(*(np.asarray(axis.edge(np.arange(axis.ncells))) for axis in grid.axes))
