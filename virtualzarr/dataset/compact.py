"""Compaction: small chunks are folded into the read shape, some rows a commit.

References that have that shape already stay as they are. What other writers change meanwhile is
left to the next compaction.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grids import Axis, from_axes
from virtualzarr.array import Array
from virtualzarr.choices import Keep, check_choice
from virtualzarr.codecs.sharding import Sharding
from virtualzarr.dataset.late_rows import LateRegion, find_late
from virtualzarr.dataset.layers import mask_covered
from virtualzarr.dataset.own_chunks import Batch, ChunkWriter, Job
from virtualzarr.dataset.row_replacement import request_layer, request_replacement
from virtualzarr.dataset.segment import chunk_runs, list_other_runs
from virtualzarr.dataset.stretches import Stretch
from virtualzarr.dataset.upkeep import merge_due_layers
from virtualzarr.errors import CommitFailedError, MismatchError, UnsupportedError
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Manifest
from virtualzarr.virtual.rechunk import get_axes

if TYPE_CHECKING:
    from virtualzarr.dataset.dataset import Dataset

Region = tuple[int, int]
"""Positions of rows that are folded by one commit: the first, and the one behind the last."""


PACKED_BYTES = 4 << 20
"""Bytes of values of rows that are stored next to each other, in whole chunks."""


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
    rewritten : int
        How many of `rows` had been folded before, and were written again with late rows between
        them.
    waiting : int
        Late rows between folded ones that are left until there are more of them, as too much would
        be written again.
    """

    regions: int
    rows: int
    nbytes: int
    remaining: int
    rewritten: int = 0
    waiting: int = 0


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
    shards : mapping of str to int
        Lengths of shards by dimension; as of chunks where there is none.
    """

    dimension: str
    rows: int
    lengths: Mapping[str, int]
    shards: Mapping[str, int]

    @property
    def unit(self) -> int:
        """How many rows are folded together: those of a chunk, or of a shard."""
        return self.shards.get(self.dimension, self.rows)

    def shard_axes(self, array: Array, rows: int) -> list[Axis] | None:
        """Return which chunks of an array are stored together; None if each is by itself."""
        if not self.shards:
            return None
        axes = []
        for name, axis in zip(array.dims, self.axes(array, rows), strict=True):
            length = self.shards.get(str(name))
            if name == self.dimension:
                axes.append(_cut(rows, self.unit))
            elif length is None or axis.uniform is None:
                axes.append(axis)
            else:
                # A chunk may be longer than the axis, and then is as long as that.
                edge = axis.uniform
                count = min(max(length // edge, 1), axis.ncells)
                axes.append(Axis.bare(axis.extent, count * edge))
        return axes

    def divide_evenly(self, rows: int) -> ReadShape:
        """Return the chunks of some rows that are about as long as each other, and no longer."""
        count = -(-rows // self.rows)
        return replace(self, rows=-(-rows // count))

    def as_chunks(self) -> dict[str, int]:
        """Return all lengths by dimension."""
        return {self.dimension: self.rows, **self.lengths}

    def axes(self, array: Array, rows: int) -> list[Axis]:
        """Return the chunks of an array of some rows, the last one as short as need be."""
        axes = []
        for name, axis in zip(array.dims, get_axes(array), strict=True):
            if name == self.dimension:
                axes.append(_cut(rows, self.rows))
            elif name in self.lengths and axis.extent:
                axes.append(Axis.bare(axis.extent, min(self.lengths[str(name)], axis.extent)))
            else:
                axes.append(axis)
        return axes


def _cut(rows: int, length: int) -> Axis:
    """Return rows in chunks of a length, the last one as short as need be."""
    full, partial = divmod(rows, length)
    runs = [(length, full), (partial, min(partial, 1))]
    return Axis(rows, *zip(*[run for run in runs if run[1]], strict=True))


def compact(
    dataset: Dataset,
    chunks: int | Mapping[str, int],
    *,
    memory: int = 1 << 28,
    budget: int | None = None,
    message: str | None = None,
    keep: Keep = "new",
    shards: int | Mapping[str, int] | None = None,
    parallel: Any = None,
) -> CompactReport:
    """Fold chunks; see `Dataset.compact`."""
    check_choice("keep", keep, Keep)
    shape = _read_shape(dataset, chunks, shards)
    arrays = dataset.growing_arrays()
    row_nbytes = sum(_row_nbytes(array, shape.dimension) for array in arrays.values())
    step = max(memory // max(row_nbytes, 1) // shape.unit, 1) * shape.unit
    regions, rows, nbytes, remaining, rewritten = 0, 0, 0, 0, 0
    late = _find_late(dataset, arrays, shape) if keep == "new" and not shape.shards else []
    waiting = sum(region.late for region in late if not region.is_due)
    again = {(region.start, region.stop): region.rewritten for region in late if region.is_due}
    due = list(_find_regions(_list_rows(dataset, arrays, shape, keep), shape, step))
    due = sorted([*(part for part in due if not _is_inside(part, again)), *again])
    for number, (start, stop) in enumerate(due):
        if budget is not None and nbytes >= budget:
            remaining += sum(b - a for a, b in due[number:])
            break
        is_late = (start, stop) in again
        chosen = shape.divide_evenly(stop - start) if is_late else shape
        try:
            nbytes += _fold(
                dataset, (start, stop), chosen, memory, message, keep, shape.rows, parallel
            )
        except (MismatchError, CommitFailedError):
            # Another writer changed these rows meanwhile: the next compaction has them.
            remaining += stop - start
            continue
        regions, rows = regions + 1, rows + stop - start
        rewritten += again.get((start, stop), 0)
    if keep == "both" and regions:
        merge_due_layers(dataset)
    return CompactReport(regions, rows, nbytes, remaining, rewritten, waiting)


def _find_late(dataset: Dataset, arrays: Mapping[str, Array], shape: ReadShape) -> list[LateRegion]:
    """Return late rows between folded ones, with those that are to be folded with them."""
    stretches = [(each, _is_folded(each, arrays, shape)) for each in dataset.read_stretches()]
    return find_late(stretches, shape.rows, next(iter(arrays))) if arrays else []


def _is_inside(region: Region, others: Iterable[Region]) -> bool:
    return any(start <= region[0] and region[1] <= stop for start, stop in others)


def _read_shape(
    dataset: Dataset, chunks: int | Mapping[str, int], shards: int | Mapping[str, int] | None
) -> ReadShape:
    dimension = dataset.dimension
    lengths = _check_lengths(dataset, "chunks", chunks)
    if dimension not in lengths:
        raise ValueError(f"chunks must say how many rows along {dimension!r} a chunk has")
    together = {} if shards is None else _check_lengths(dataset, "shards", shards)
    for name, length in together.items():
        if name not in lengths or length % lengths[name]:
            raise ValueError(
                f"shards of {length} along {name!r} are not made of whole chunks: chunks must say "
                "of which length"
            )
    if together:
        sharded = [
            path
            for path, array in dataset.growing_arrays().items()
            if any(isinstance(codec, Sharding) for codec in array.metadata.pipeline.codecs)
        ]
        if sharded:
            raise UnsupportedError("the chunks are shards already", variable=sharded[0])
    rows = lengths.pop(dimension)
    return ReadShape(dimension, rows, lengths, together)


def _check_lengths(
    dataset: Dataset, parameter: str, lengths: int | Mapping[str, int]
) -> dict[str, int]:
    by_name = {dataset.dimension: lengths} if isinstance(lengths, int) else dict(lengths)
    names = sorted({str(n) for array in dataset.growing_arrays().values() for n in array.dims})
    if unknown := sorted(set(by_name) - {*names}):
        raise ValueError(f"{parameter}: no array has the dimensions {unknown}, but {names}")
    if wrong := {name: n for name, n in by_name.items() if type(n) is not int or n < 1}:
        raise ValueError(f"{parameter}: lengths are integers of at least 1, not {wrong}")
    return by_name


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
        # At the end, rows that do not fill a chunk, or a shard, wait for more. Between others they
        # never will: several stretches of them become one.
        end = stop - (stop - start) % shape.unit
        if number + 1 < len(groups) and (end > start or len(group) > 1):
            end = stop
        for low in range(start, end, step):
            yield low, min(low + step, end)


def _is_folded(stretch: Stretch, arrays: Mapping[str, Array], shape: ReadShape) -> bool:
    """Tell whether all arrays have the read shape in a stretch already, or had before rows were
    late.
    """
    entry, dimension = stretch.entry, shape.dimension
    count = entry.rows[dimension][1]
    if count < shape.rows:
        return False
    for path, array in arrays.items():
        growing, axes = array.dims.index(dimension), shape.axes(array, count)
        others = entry.grids.get(path) or list_other_runs(get_axes(array), growing)
        if others != list_other_runs(axes, growing):
            return False
        is_exact = entry.chunks_of(path) == chunk_runs(axes[growing])
        if not is_exact and entry.folded != shape.rows:
            return False
    return True


def _select_array(group: Group, path: str) -> Array:
    array = group[path]
    assert isinstance(array, Array)
    return array


def _find_pack(arrays: Collection[Array], shape: ReadShape) -> int:
    """Return how many rows are encoded one after the other, before others are."""
    nbytes = [_row_nbytes(array, shape.dimension) for array in arrays]
    # As long as stored chunks, which are not to be decoded more than once, of what is largest.
    largest = [*arrays][int(np.argmax(nbytes))]
    axis = get_axes(largest)[largest.dims.index(shape.dimension)]
    rows = max(PACKED_BYTES // max(sum(nbytes), 1), int(axis.edges.max(initial=1)), 1)
    return -(-rows // shape.unit) * shape.unit


def _list_jobs(
    arrays: Mapping[str, Array],
    documents: Mapping[str, Array],
    shape: ReadShape,
    count: int,
    memory: int,
    batches: Mapping[str, list[Batch]],
) -> Iterator[Job]:
    """Yield what is encoded of a region of some rows, and note the references of each array."""
    # By time, so that the objects of rows that go together are deleted together.
    pack = _find_pack(arrays.values(), shape)
    for low in range(0, count, pack):
        high = min(low + pack, count)
        for number, (path, array) in enumerate(arrays.items(), start=1):
            growing = array.dims.index(shape.dimension)
            rows = array.lazy[(slice(None),) * growing + (slice(low, high),)]
            axes = shape.axes(documents[path], high - low)
            shards = shape.shard_axes(documents[path], high - low)
            job = Job(rows, axes, memory, shards, ends_rows=number == len(arrays))
            batches[path].append(job.batch)
            yield job


def _fold(
    dataset: Dataset,
    region: Region,
    shape: ReadShape,
    memory: int,
    message: str | None,
    keep: Keep,
    folded: int,
    parallel: Any,
) -> int:
    """Fold the rows of a region in one commit; return the bytes of the chunks."""
    start, stop = region
    nbytes = 0

    def build(group: Group, writer: ChunkWriter) -> dict[str, Array]:
        nonlocal nbytes
        documents = dataset.growing_arrays()
        arrays = {path: _select_array(group, path) for path in documents}
        batches: dict[str, list[Batch]] = {path: [] for path in documents}
        jobs = _list_jobs(arrays, documents, shape, stop - start, memory, batches)
        writer.write(jobs, parallel)
        writer.finish()
        nbytes = writer.nbytes
        result = {}
        for path, array in arrays.items():
            growing = array.dims.index(shape.dimension)
            grid = from_axes(shape.axes(documents[path], stop - start))
            manifests = [writer.to_manifest(batch) for batch in batches[path]]
            result[path] = Array.from_manifest(
                array.metadata.replace(grid=grid), Manifest.concatenate(manifests, growing), path
            )
        return result

    ids = dataset.read_runs().slice(start, stop)
    if keep == "both":
        dataset.change(request_layer(ids, shape.as_chunks(), build), message)
    else:
        # Less than a chunk is no folded region: more rows may come beside it.
        length = folded if stop - start >= folded else 0
        dataset.change(request_replacement(ids, "compact", build, length), message)
    return nbytes
