"""Partial reads of shards of which cells are parts, or that only some chunks are.

An array whose chunks all are the shards that it declares is read on the grid of its sub-chunks (see
`shards`). There is none where cells are cut out of shards, or decoders say that they are shards:
then each shard of which little is selected is read as an array of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from grids import Projection, RegularGrid
from virtualzarr.array.chunk_source import LocatedChunks
from virtualzarr.array.read.output import is_all_slices, shift_selection
from virtualzarr.array.read.shards import resolve_shards
from virtualzarr.array.read.tasks import fill_missing_chunk
from virtualzarr.codecs.sharding import Sharding, find_sharding
from virtualzarr.config import config
from virtualzarr.errors import SourceNotFoundError, VirtualZarrError
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.stores.thread_pools import Task

if TYPE_CHECKING:
    from virtualzarr.array.read.request import ReadRequest


class Read(Protocol):
    """`engine.read`, within a task of another read."""

    def __call__(
        self,
        metadata: ArrayMetadata,
        chunk_source: Any,
        projection: Projection,
        *,
        variable: str,
        fill_missing: bool,
        out: NDArray[Any] | None,
    ) -> NDArray[Any]:
        """Read what a projection selects."""
        ...


@dataclass(frozen=True)
class PartialShard:
    """Reads the sub-chunks of a shard that hold a box of its elements.

    Parameters
    ----------
    request : ReadRequest
    i : int
        The number of the chunk.
    metadata : ArrayMetadata
        Of the shard as an array.
    box : tuple of slice
        Of the shard, around what is selected.
    select, out_sel : tuple
        What is selected in the box, and where it goes in the output.
    read : callable
    """

    request: ReadRequest
    i: int
    metadata: ArrayMetadata
    box: tuple[slice, ...]
    select: tuple[Any, ...]
    out_sel: tuple[Any, ...]
    read: Read

    def __call__(self) -> None:
        """Read them, and copy what is selected into the output."""
        output, is_whole = self.request.output, self._is_whole_box()
        out = output[(*self.out_sel, ...)] if is_whole else None
        try:
            metadata, chunks = resolve_shards(
                self.metadata, _OneChunk(self.request.located, self.i)
            )
            projection = metadata.grid.project(self.box)
            values = self.read(
                metadata, chunks, projection, variable=self.request.variable,
                fill_missing=self.request.fill_missing, out=out,
            )  # fmt: skip
        except SourceNotFoundError as error:
            error.chunk = None  # that of the sub-chunk, as its place in the shard
            fill = partial(output.__setitem__, (*self.out_sel, ...), self.request.fill)
            fill_missing_chunk(self.request, self.i, error, fill)
            return
        except Exception as error:
            if isinstance(error, VirtualZarrError):
                # That of the sub-chunk, as its place in the shard.
                error.chunk = None
            self.request.add_context(self.i, error)
            raise
        if not is_whole:
            output[self.out_sel] = values[self.select]

    def _is_whole_box(self) -> bool:
        """Tell whether all of the box is selected, for a part of the output that is a view."""
        pairs = zip(self.select, self.box, strict=True)
        return is_all_slices(self.out_sel) and all(
            isinstance(s, slice) and s == slice(0, b.stop - b.start, 1) for s, b in pairs
        )


class _OneChunk:
    """Chunk source of an array of one chunk, which is located already."""

    def __init__(self, located: LocatedChunks, i: int) -> None:
        self.located, self.i = located, i

    def locate(self, projection: Projection) -> LocatedChunks:
        """Return where the chunk is."""
        located, one = self.located, slice(self.i, self.i + 1)
        return LocatedChunks(
            np.zeros(1, np.int64), located.file[one], located.offset[one], located.length[one],
            located.open_file,
        )  # fmt: skip


def plan_partial_shards(
    request: ReadRequest, chunks: NDArray[np.int64], read: Read
) -> tuple[list[Task], NDArray[np.int64]]:
    """Return tasks that read parts of shards, and those of some chunks that are left.

    Left are small shards, and those of which at least half is needed; none if missing sub-chunks
    are to be an error, as a shard that is decoded as a whole fills them.
    """
    shards = [_find_shard(request, number) for number in range(len(request.block_codecs))]
    if not any(shards):
        return [], chunks
    is_shard = np.array([shard is not None for shard in shards])[request.codec_index[chunks]]
    if request.cached is not None:
        # A part of a block cannot be cached.
        is_shard &= ~request.cached.is_cacheable()[chunks]
    tasks, touched = [], []
    candidates = chunks[is_shard]
    parts = request.projection.parts(request.located.cell[candidates])
    for i, (chunk_sel, out_sel, _) in zip(candidates.tolist(), parts, strict=True):
        shard = shards[request.codec_index[i]]
        assert shard is not None
        if request.located.origin is not None:
            chunk_sel = shift_selection(chunk_sel, request.located.origin[i])
        box, select = _bound(chunk_sel)
        touched.append(_count_subchunks(box, shard.codec.chunk_shape) / shard.subchunks)
        tasks.append(PartialShard(request, i, shard.metadata, box, select, out_sel, read))
    # Several cells may be parts of one shard, which is then decoded for all of them at once.
    is_partial = 2 * _sum_of_shards(request, candidates, np.array(touched)) <= 1
    is_partial |= not request.fill_missing
    kept = np.setdiff1d(chunks, candidates[is_partial], assume_unique=True)
    return [task for task, chosen in zip(tasks, is_partial, strict=True) if chosen], kept


@dataclass(frozen=True)
class _Shard:
    """A shard as an array; `subchunks` is how many it has."""

    metadata: ArrayMetadata
    codec: Sharding
    subchunks: int


def _find_shard(request: ReadRequest, number: int) -> _Shard | None:
    """Return the shard that one of the block codecs decodes, None if that is none worth reading."""
    pipeline, shape = request.pipelines[number], request.block_codecs[number][1]
    codec = find_sharding(pipeline)
    smallest = config.partial_read_bytes if request.fill_missing else -1
    if codec is None or request.block_codecs[number][0].nbytes <= smallest:
        return None
    grid = RegularGrid(shape, shape)
    metadata = request.metadata.replace(shape=shape, grid=grid, pipeline=pipeline)
    pairs = zip(shape, codec.chunk_shape, strict=True)
    return _Shard(metadata, codec, math.prod(length // edge for length, edge in pairs))


def _bound(select: Sequence[Any]) -> tuple[tuple[slice, ...], tuple[Any, ...]]:
    """Return the box around a selection with positive steps, and the selection within it."""
    box, within = [], []
    for item in select:
        if isinstance(item, slice):
            indices = range(item.start, item.stop, item.step or 1)
            low, high = indices[0], indices[-1] + 1
            within.append(slice(0, high - low, indices.step))
        else:
            low, high = int(item.min()), int(item.max()) + 1
            within.append(item - low)
        box.append(slice(low, high))
    return tuple(box), tuple(within)


def _count_subchunks(box: Sequence[slice], edges: Sequence[int]) -> int:
    pairs = zip(box, edges, strict=True)
    return math.prod((s.stop - 1) // edge - s.start // edge + 1 for s, edge in pairs)


def _sum_of_shards(
    request: ReadRequest, chunks: NDArray[np.int64], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return for each chunk the sum of the values of all that are parts of its shard."""
    located = request.located
    columns = located.file[chunks], located.offset[chunks], request.codec_index[chunks]
    _, shard = np.unique(np.column_stack(columns), axis=0, return_inverse=True)
    shard = shard.reshape(-1)
    return np.asarray(np.bincount(shard, values)[shard])
