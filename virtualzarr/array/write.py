"""The one write path: cut values into chunks, merge them with what is stored, encode, store.

A chunk that is covered whole is encoded and set; any other is read, changed and encoded again
within one `update` of the store, which is what keeps writers of other parts of it from losing
theirs. A sharded array is written through the grid of its sub-chunks: those that are not touched
keep their encoded bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grids import ChunkGrid, Projection, RegularGrid, SeparableGrid
from grids.grouping import group_keys
from virtualzarr.array.chunk_source import StoreChunks
from virtualzarr.array.fields import FieldSelection
from virtualzarr.array.read.shards import ShardedChunks
from virtualzarr.array.thread_pools import Task, run_shared, run_tasks
from virtualzarr.codecs import BlockCodec
from virtualzarr.codecs.core.fill_value import full_block, is_filled
from virtualzarr.codecs.sharding import Shard, Sharding, find_sharding, innermost_sharding
from virtualzarr.errors import VirtualZarrError
from virtualzarr.metadata import ArrayMetadata, zero_of
from virtualzarr.stores.files import Buffer

BATCH_BYTES = 1024 * 1024
"""A thread is given about this many decoded bytes at once."""

SMALL_CHUNK = 16 * 1024
"""Of chunks that are smaller than this, and a file each, it is the files that cost."""

CELLS_PER_SLAB = 1 << 16
"""Cells that are prepared at a time."""

NUMBER_KINDS = frozenset("biufc")
Part = tuple[Any, Any, bool]


def writing_grid(metadata: ArrayMetadata) -> ChunkGrid:
    """Return the grid to project a selection on: of a sharded array, that of the smallest chunks
    within its shards."""
    codec = find_sharding(metadata.pipeline)
    if codec is None or not isinstance(metadata.grid, SeparableGrid):
        return metadata.grid
    return RegularGrid(metadata.shape, innermost_sharding(codec).chunk_shape)


def write(
    metadata: ArrayMetadata,
    chunks: StoreChunks,
    projection: Projection,
    value: Any,
    *,
    fields: FieldSelection | None = None,
    variable: str = "",
    write_empty_chunks: bool = False,
) -> None:
    """Write a value where a projection on `writing_grid` selects.

    Parameters
    ----------
    value : array-like
        Broadcasts to the projection's shape; cast as numpy's assignment does.
    fields : Fields, optional
        What of each element is written, if not all of it: the axes of the value go on with its.
    write_empty_chunks : bool
        Whether chunks are stored that hold nothing but the fill value, to the bit. Others are
        deleted instead.

    Raises
    ------
    ValueError
        The value does not broadcast to the selection, or has no meaning in the array's dtype.
    SourceError, CodecError
        Bytes cannot be read, written, decoded or encoded; the error names file, variable and
        chunk. Other chunks may have been written.
    """
    ndim = len(projection.shape)
    if fields is None:
        values = _as_values(value, metadata.dtype, ndim)
    else:
        part = fields.of(np.empty((), metadata.dtype))
        values = fields.records(_as_values(value, part.dtype, ndim + part.ndim), part)
    work = projection.spread(values)
    if not len(projection):
        return
    fill = metadata.fill_value
    writing = _WriteRequest(
        metadata,
        chunks,
        projection,
        work,
        fill=zero_of(metadata.dtype) if fill is None else fill,
        elide=fill is not None and not write_empty_chunks,
        same=max(map(abs, work.strides), default=0) == 0,
        fields=fields,
        variable=variable,
    )
    codec = find_sharding(metadata.pipeline)
    if codec is not None and isinstance(metadata.grid, SeparableGrid):
        _write_shards(writing, metadata.grid, codec)
    else:
        _write_cells(writing)


def _as_values(value: Any, dtype: np.dtype[Any], ndim: int) -> NDArray[Any]:
    """Return a value as an array that can be cast chunk by chunk, as numpy would assign it."""
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        values = np.asarray(value)
    else:
        # Python's numbers are checked against the dtype: 300 is no uint8.
        values = np.asarray(value, dtype=dtype)
    if values.dtype != dtype and not {values.dtype.kind, dtype.kind} <= NUMBER_KINDS:
        # What may fail must do so before any chunk is written.
        cast = np.empty(values.shape, dtype)
        cast[...] = values
        values = cast
    while values.ndim > ndim and values.shape[0] == 1:
        values = values[0]
    return values


@dataclass
class _WriteRequest:
    """One write under way.

    Attributes
    ----------
    fill : scalar
        What elements are that were never written.
    elide : bool
        Whether chunks with nothing but the fill value are left out.
    same : bool
        Whether all elements to be written are the same: such chunks are encoded once.
    fields : Fields, optional
        What of each element is written.
    """

    metadata: ArrayMetadata
    chunks: StoreChunks
    projection: Projection
    work: NDArray[Any]
    fill: Any
    elide: bool
    same: bool
    fields: FieldSelection | None
    variable: str
    encoded: dict[Any, bytes | None] = field(default_factory=dict)

    def codec(self, shape: tuple[int, ...]) -> BlockCodec:
        """Return the codec of chunks of a shape."""
        return self.metadata.pipeline.for_block(shape, self.metadata.dtype, self.fill)

    def covers(self, part: Part) -> bool:
        """Tell whether nothing of a chunk need be kept."""
        return part[2] and self.fields is None

    def whole(self, codec: BlockCodec, part: Part) -> bytes | None:
        """Encode a chunk all of which is written; None where there is nothing to store."""
        inside, where, _ = part
        data = self.work[where] if where else self.work
        plain = all(type(s) is slice for s in inside)
        key = (codec, data.shape)
        if self.same and plain and key in self.encoded:
            return self.encoded[key]
        if data.dtype != self.metadata.dtype:
            data = data.astype(self.metadata.dtype)
        if self.elide and is_filled(data, self.fill):
            result = None
        elif plain and data.shape == codec.shape:
            result = codec.encode(data)
        else:
            block = full_block(codec.shape, self.fill, self.metadata.dtype)
            block[inside] = data
            result = codec.encode(block)
        if self.same and plain:
            self.encoded[key] = result
        return result

    def merged(self, codec: BlockCodec, part: Part, old: Buffer | None) -> bytes | None:
        """Encode a chunk a part of which is written; None where there is nothing to store."""
        inside, where, _ = part
        if old is None:
            block = full_block(codec.shape, self.fill, self.metadata.dtype)
        else:
            block = codec.decode(old)
        data = self.work[where] if where else self.work
        if self.fields is None:
            block[inside] = data
        else:
            self.fields.of(block)[inside] = data["part"]
        if self.elide and is_filled(block, self.fill):
            return None
        return codec.encode(block)

    def failed(self, error: VirtualZarrError, key: str, cell: NDArray[np.int64]) -> None:
        """Raise an error again, with the place where it happened."""
        name = ".".join(map(str, cell.tolist())) or "0"
        uri = f"{self.chunks.store.uri}/{key}"
        raise error.at(file=uri, variable=self.variable, chunk=name) from error.__cause__

    def run(self, works: Iterator[tuple[Callable[[], None], int]]) -> None:
        """Run pieces of work, given with the bytes each is about, some of them as one task."""
        remote = bool(getattr(self.chunks.store, "remote", False))
        tasks: list[Task] = []
        batch: list[Callable[[], None]] = []
        size = total = chunks = 0
        for work, nbytes in works:
            batch.append(work)
            size, total, chunks = size + nbytes, total + nbytes, chunks + 1
            if remote or size >= BATCH_BYTES:
                tasks.append(partial(_run_all, batch))
                batch, size = [], 0
        if batch:
            tasks.append(partial(_run_all, batch))
        run_tasks(tasks, remote, total > BATCH_BYTES, io_bound=total < SMALL_CHUNK * chunks)


def _run_all(works: list[Callable[[], None]]) -> None:
    for work in works:
        work()


def _write_cells(writing: _WriteRequest) -> None:
    """Write the cells of an array without shards."""
    projection, total = writing.projection, len(writing.projection)
    grid, itemsize = writing.metadata.grid, writing.metadata.itemsize
    for first in range(0, total, CELLS_PER_SLAB):
        chosen = (
            None
            if total <= CELLS_PER_SLAB
            else np.arange(first, min(first + CELLS_PER_SLAB, total))
        )
        cells = projection.cells(chosen)
        keys = writing.chunks.keys(cells)
        shapes: Iterator[tuple[int, ...]]
        if isinstance(grid, RegularGrid):
            shapes = repeat(grid.chunk_shape, len(keys))
        else:
            shapes = projection.block_shapes(chosen)
        entries = zip(keys, cells, shapes, projection.parts(chosen), strict=True)
        writing.run(
            (partial(_write_cell, writing, *entry), math.prod(entry[2]) * itemsize)
            for entry in entries
        )


def _write_cell(
    writing: _WriteRequest, key: str, cell: NDArray[np.int64], shape: tuple[int, ...], part: Part
) -> None:
    store = writing.chunks.store
    try:
        codec = writing.codec(shape)
        if not writing.covers(part):
            store.update(key, partial(writing.merged, codec, part))
        elif (data := writing.whole(codec, part)) is None:
            store.delete(key)
        else:
            store.set(key, data)
    except VirtualZarrError as error:
        writing.failed(error, key, cell)


def _write_shards(writing: _WriteRequest, grid: SeparableGrid, codec: Sharding) -> None:
    """Write an array of shards, of which each is stored once."""
    shards = ShardedChunks(writing.chunks, grid, codec)
    projection, itemsize = writing.projection, writing.metadata.itemsize
    smallest = np.array(innermost_sharding(codec).chunk_shape, np.int64)
    starts = projection.cells() * smallest
    within, starts = np.divmod(starts, np.array(codec.chunk_shape, np.int64))
    cells, entry, order, bounds = shards.touched(within)
    keys = writing.chunks.keys(cells)
    shapes = grid.cell_shapes(cells).tolist()
    inside = (-(-grid.cell_extents(cells) // smallest)).prod(axis=1, dtype=np.int64).tolist()
    limits = bounds.tolist()

    def works() -> Iterator[tuple[Callable[[], None], int]]:
        for i, key in enumerate(keys):
            members = order[limits[i] : limits[i + 1]]
            found = codec.shard(tuple(shapes[i]))
            places = _SubchunkPositions(members, entry[members], starts[members])
            work = _ShardWrite(writing, key, cells[i], found, places, inside[i])
            yield work, len(members) * math.prod(smallest.tolist()) * itemsize

    every = works()
    while some := list(islice(every, CELLS_PER_SLAB)):
        writing.run(iter(some))


class _SubchunkPositions(NamedTuple):
    """Where the smallest chunks that are written lie in a shard.

    Attributes
    ----------
    part : int64 array
        Which of the parts each is.
    entry : int64 array
        The place in the index of the sub-chunk that it is, or that it lies in.
    start : int64 array, shape (chunks, ndim)
        Where it starts in a sub-chunk that is a shard itself.
    """

    part: NDArray[np.int64]
    entry: NDArray[np.int64]
    start: NDArray[np.int64]


@dataclass
class _ShardWrite:
    """Sub-chunks of one shard to be written."""

    writing: _WriteRequest
    key: str
    cell: NDArray[np.int64]
    shard: Shard
    places: _SubchunkPositions
    inside: int  # of the smallest chunks, those that hold elements of the array

    def __call__(self) -> None:
        store = self.writing.chunks.store
        parts = list(self.writing.projection.parts(self.places.part))
        places = self.places._replace(part=np.arange(len(parts)))
        change = partial(_update_shard, self.writing, self.shard, parts, places)
        try:
            if len(parts) < self.inside or not all(map(self.writing.covers, parts)):
                store.update(self.key, change)
            elif (data := change(None)) is None:
                store.delete(self.key)
            else:
                store.set(self.key, data)
        except VirtualZarrError as error:
            self.writing.failed(error, self.key, self.cell)


def _update_shard(
    writing: _WriteRequest,
    shard: Shard,
    parts: list[Part],
    places: _SubchunkPositions,
    old: Buffer | None,
) -> bytes | None:
    """Return a shard with some parts written; what is not touched keeps its encoded bytes."""
    stored = {} if old is None else shard.split(old)
    inner = find_sharding(shard.codec.pipeline)
    if inner is None:
        changed = _encode_chunks(writing, shard.codec, parts, places, stored)
    else:
        changed = _encode_inner_shards(writing, shard.codec, inner, parts, places, stored)
    for entry, data in changed:
        if data is None:
            stored.pop(entry, None)
        else:
            stored[entry] = data
    return shard.join(stored) if stored else None


def _encode_chunks(
    writing: _WriteRequest,
    outer: Sharding,
    parts: list[Part],
    places: _SubchunkPositions,
    stored: Mapping[int, Buffer],
) -> Iterator[tuple[int, bytes | None]]:
    """Return the new bytes of sub-chunks by their entries."""
    codec = outer.pipeline.for_block(outer.chunk_shape, writing.metadata.dtype, writing.fill)
    mine = [parts[i] for i in places.part.tolist()]
    entries = places.entry.tolist()
    changed: list[bytes | None] = [None] * len(mine)

    def encode(first: int, last: int) -> None:
        for i in range(first, last):
            if writing.covers(mine[i]):
                changed[i] = writing.whole(codec, mine[i])
            else:
                changed[i] = writing.merged(codec, mine[i], stored.get(entries[i]))

    step = max(1, BATCH_BYTES // max(1, codec.nbytes))
    run_shared([partial(encode, i, min(i + step, len(mine))) for i in range(0, len(mine), step)])
    return zip(entries, changed, strict=True)


def _encode_inner_shards(
    writing: _WriteRequest,
    outer: Sharding,
    inner: Sharding,
    parts: list[Part],
    places: _SubchunkPositions,
    stored: Mapping[int, Buffer],
) -> Iterator[tuple[int, bytes | None]]:
    """Return the new bytes of sub-chunks that are shards themselves, by their entries."""
    shard = inner.shard(outer.chunk_shape)
    cells, starts = np.divmod(places.start, np.array(inner.chunk_shape, np.int64))
    entry = np.zeros(len(cells), np.int64)
    for axis, count in zip(inner.order, shard.counts, strict=True):
        entry = entry * count + cells[:, axis]
    order, bounds, entries = group_keys(places.entry)
    whole = math.prod(outer.chunk_shape) // math.prod(innermost_sharding(inner).chunk_shape)
    changed: list[bytes | None] = [None] * len(entries)

    def change(i: int) -> None:
        some = order[bounds[i] : bounds[i + 1]]
        within = _SubchunkPositions(places.part[some], entry[some], starts[some])
        old = stored.get(int(entries[i]))
        if len(some) == whole and all(writing.covers(parts[k]) for k in within.part.tolist()):
            old = None
        changed[i] = _update_shard(writing, shard, parts, within, old)

    run_shared([partial(change, i) for i in range(len(entries))])
    return zip(entries.tolist(), changed, strict=True)
