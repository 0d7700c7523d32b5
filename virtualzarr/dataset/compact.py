"""Compaction: small chunks are folded into the read shape, some rows a commit.

References that have that shape already stay as they are. What other writers change meanwhile is
left to the next compaction.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from grids import Axis, from_axes
from virtualzarr.array import Array
from virtualzarr.choices import Keep, check_choice
from virtualzarr.dataset.layers import mask_covered
from virtualzarr.dataset.own_chunks import ChunkWriter
from virtualzarr.dataset.row_replacement import request_layer, request_replacement
from virtualzarr.dataset.segment import chunk_runs, list_other_runs
from virtualzarr.dataset.stretches import Stretch
from virtualzarr.errors import CommitFailedError, MismatchError
from virtualzarr.hierarchy.group import Group
from virtualzarr.virtual.rechunk import get_axes

if TYPE_CHECKING:
    from virtualzarr.dataset.dataset import Dataset

Region = tuple[int, int]
"""Positions of rows that are folded by one commit: the first, and the one behind the last."""


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a compaction did.

    Attributes
    ----------
    regions : int
        How many commits it made.
    rows : int
        How many rows were folded.
    nbytes : int
        Bytes of the chunks that were written.
    remaining : int
        Rows that could be folded still: the budget was used up, or another writer changed them.
    """

    regions: int
    rows: int
    nbytes: int
    remaining: int


@dataclass(frozen=True, slots=True)
class ReadShape:
    """The chunks that a dataset is to have.

    Attributes
    ----------
    dimension : str
        The growing one.
    rows : int
        Chunk length along it.
    lengths : mapping of str to int
        Chunk lengths along other dimensions; as in the arrays' documents where there is none.
    """

    dimension: str
    rows: int
    lengths: Mapping[str, int]

    def as_chunks(self) -> dict[str, int]:
        """Return all lengths by dimension."""
        return {self.dimension: self.rows, **self.lengths}

    def axes(self, array: Array, rows: int) -> list[Axis]:
        """Return the chunks of an array of some rows, the last one as short as need be."""
        axes = []
        for name, axis in zip(array.dims, get_axes(array), strict=True):
            if name == self.dimension:
                whole, partial = divmod(rows, self.rows)
                runs = [(self.rows, whole), (partial, min(partial, 1))]
                axes.append(Axis(rows, *zip(*[run for run in runs if run[1]], strict=True)))
            elif name in self.lengths and axis.extent:
                axes.append(Axis.bare(axis.extent, min(self.lengths[str(name)], axis.extent)))
            else:
                axes.append(axis)
        return axes


def compact(
    dataset: Dataset,
    chunks: int | Mapping[str, int],
    *,
    memory: int = 1 << 28,
    budget: int | None = None,
    message: str | None = None,
    keep: Keep = "new",
) -> CompactReport:
    """Fold chunks; see `Dataset.compact`."""
    check_choice("keep", keep, Keep)
    shape = _read_shape(dataset, chunks)
    arrays = dataset.growing_arrays()
    row_nbytes = sum(_row_nbytes(array, shape.dimension) for array in arrays.values())
    step = max(memory // max(row_nbytes, 1) // shape.rows, 1) * shape.rows
    regions, rows, nbytes, lost = 0, 0, 0, 0
    due = list(_find_regions(_list_rows(dataset, arrays, shape, keep), shape, step))
    for number, (start, stop) in enumerate(due):
        if budget is not None and nbytes >= budget:
            lost += sum(b - a for a, b in due[number:])
            break
        try:
            nbytes += _fold(dataset, (start, stop), shape, memory, message, keep)
        except (MismatchError, CommitFailedError):
            lost += stop - start
            continue
        regions, rows = regions + 1, rows + stop - start
    return CompactReport(regions, rows, nbytes, lost)


def _read_shape(dataset: Dataset, chunks: int | Mapping[str, int]) -> ReadShape:
    dimension = dataset.dimension
    lengths = {dimension: chunks} if isinstance(chunks, int) else dict(chunks)
    if dimension not in lengths:
        raise ValueError(f"chunks must say how many rows along {dimension!r} a chunk has")
    names = sorted({str(n) for array in dataset.growing_arrays().values() for n in array.dims})
    if unknown := sorted(set(lengths) - {*names}):
        raise ValueError(f"no array has the dimensions {unknown}, but {names}")
    if wrong := {name: n for name, n in lengths.items() if type(n) is not int or n < 1}:
        raise ValueError(f"chunk lengths are integers of at least 1, not {wrong}")
    rows = lengths.pop(dimension)
    return ReadShape(dimension, rows, lengths)


def _row_nbytes(array: Array, dimension: str) -> int:
    axis = array.dims.index(dimension)
    others = [n for i, n in enumerate(array.shape) if i != axis]
    return int(np.prod(others, dtype=np.int64)) * max(array.dtype.itemsize, 1)


def _list_rows(
    dataset: Dataset, arrays: Mapping[str, Array], shape: ReadShape, keep: Keep
) -> Iterator[tuple[int, bool]]:
    """Yield rows that lie together: how many, and whether they have the read shape already."""
    stretches = dataset.read_stretches()
    covered = mask_covered([], 0)
    if keep == "both":
        rows = sum(stretch.stop - stretch.start for stretch in stretches)
        covered = mask_covered(dataset.find_layer(shape.as_chunks()), rows)
    position = 0
    for stretch in stretches:
        count = stretch.stop - stretch.start
        if keep == "new" or _is_folded(stretch, arrays, shape):
            yield count, _is_folded(stretch, arrays, shape)
        else:
            # Row by row, as rows without a layer are read alone.
            for is_covered in covered[position : position + count].tolist():
                yield 1, is_covered
        position += count


def _find_regions(
    rows: Iterable[tuple[int, bool]], shape: ReadShape, step: int
) -> Iterator[Region]:
    """Yield rows that are to be folded, as many as memory suffices for."""
    position = 0
    groups = [(done, [*group]) for done, group in itertools.groupby(rows, lambda item: item[1])]
    for number, (is_folded, group) in enumerate(groups):
        start, stop = position, position + sum(count for count, _ in group)
        position = stop
        if is_folded:
            continue
        # At the end, rows that do not fill a chunk wait for more. Between others they never will:
        # several stretches of them become one.
        whole = stop - (stop - start) % shape.rows
        if number + 1 < len(groups) and (whole > start or len(group) > 1):
            whole = stop
        for low in range(start, whole, step):
            yield low, min(low + step, whole)


def _is_folded(stretch: Stretch, arrays: Mapping[str, Array], shape: ReadShape) -> bool:
    """Tell whether all arrays have the read shape in a stretch already."""
    entry, dimension = stretch.entry, shape.dimension
    count = entry.rows[dimension][1]
    if count < shape.rows:
        return False
    for path, array in arrays.items():
        growing, axes = array.dims.index(dimension), shape.axes(array, count)
        others = entry.grids.get(path) or list_other_runs(get_axes(array), growing)
        if others != list_other_runs(axes, growing):
            return False
        if entry.chunks_of(path) != chunk_runs(axes[growing]):
            return False
    return True


def _fold(
    dataset: Dataset,
    region: Region,
    shape: ReadShape,
    memory: int,
    message: str | None,
    keep: Keep,
) -> int:
    """Fold the rows of a region in one commit; return the bytes of the chunks."""
    start, stop = region
    nbytes = 0

    def build(group: Group, writer: ChunkWriter) -> dict[str, Array]:
        nonlocal nbytes
        encoded = {}
        for path, document in dataset.growing_arrays().items():
            array, axes = group[path], shape.axes(document, stop - start)
            assert isinstance(array, Array)
            encoded[path] = (array, from_axes(axes), writer.encode(array, axes, memory))
        writer.finish()
        nbytes = writer.nbytes
        return {
            path: Array.from_manifest(array.metadata.replace(grid=grid), references(), path)
            for path, (array, grid, references) in encoded.items()
        }

    ids = dataset.read_runs().slice(start, stop)
    if keep == "both":
        dataset.change(request_layer(ids, shape.as_chunks(), build), message)
    else:
        dataset.change(request_replacement(ids, "compact", build), message)
    return nbytes
