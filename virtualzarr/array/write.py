"""Write path: cut values into chunks, merge them with what is stored, encode, store.

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
from virtualzarr.array.read.output import format_cell, is_all_slices
from virtualzarr.array.read.shards import ShardedChunks
from virtualzarr.codecs import BlockCodec
from virtualzarr.codecs.core.fill_value import full_block, is_filled
from virtualzarr.codecs.sharding import Shard, Sharding, find_innermost_sharding, find_sharding
from virtualzarr.config import config
from virtualzarr.errors import VirtualZarrError
from virtualzarr.metadata import ArrayMetadata, default_fill
from virtualzarr.stores.files import Buffer
from virtualzarr.stores.renewals import ask_again
from virtualzarr.stores.store import is_remote
from virtualzarr.stores.thread_pools import Task, run_shared, run_tasks

NUMBER_KINDS = frozenset("biufc")
Part = tuple[Any, Any, bool]


def writing_grid(metadata: ArrayMetadata) -> ChunkGrid:
    """Return the grid to project a selection on: of a sharded array, that of the smallest chunks
    within its shards."""
    codec = find_sharding(metadata.pipeline)
    if codec is None or not isinstance(metadata.grid, SeparableGrid):
        return metadata.grid
    return RegularGrid(metadata.shape, find_innermost_sharding(codec).chunk_shape)


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
    # All casts and broadcasts that may fail come before the first chunk is stored: a value that
    # does not fit must leave the array as it was.
    ndim = len(projection.shape)
    if fields is None:
        values = _as_values(value, metadata.dtype, ndim)
    else:
        part = fields.view(np.empty((), metadata.dtype))
        values = fields.to_records(_as_values(value, part.dtype, ndim + part.ndim), part)
    values = projection.spread(values)
    if not len(projection):
        return
    fill = metadata.fill_value
    request = _WriteRequest(
        metadata,
        chunks,
        projection,
        values,
        # v2 allows a null fill value: missing chunks then read as zero, but an all-zero chunk is
        # stored, as other readers may take a missing one for something else.
        fill=default_fill(metadata.dtype) if fill is None else fill,
        elide=fill is not None and not write_empty_chunks,
        # Broadcasting gives strides of 0 along every repeated axis: all 0 is a single element.
        is_constant=max(map(abs, values.strides), default=0) == 0,
        fields=fields,
        variable=variable,
    )
    codec = find_sharding(metadata.pipeline)
    if codec is not None and isinstance(metadata.grid, SeparableGrid):
        _write_shards(request, metadata.grid, codec)
    else:
        _write_cells(request)


def _as_values(value: Any, dtype: np.dtype[Any], ndim: int) -> NDArray[Any]:
    """Return a value as an array that casts chunk by chunk as numpy would assign it."""
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        values = np.asarray(value)
    else:
        # Python's numbers are checked against the dtype: 300 is no uint8.
        values = np.asarray(value, dtype=dtype)
    if values.dtype != dtype and not {values.dtype.kind, dtype.kind} <= NUMBER_KINDS:
        # A cast that may fail must do so before any chunk is written.
        cast = np.empty(values.shape, dtype)
        cast[...] = values
        values = cast
    # numpy's assignment ignores leading axes of length 1, broadcasting does not.
    while values.ndim > ndim and values.shape[0] == 1:
        values = values[0]
    return values


@dataclass
class _WriteRequest:
    """Encodes chunks of the values that are written.

    Attributes
    ----------
    fill : scalar
        What elements never written read as.
    elide : bool
        Whether chunks with nothing but the fill value are left out.
    is_constant : bool
        Whether all elements to be written are equal: chunks of a shape are then encoded once.
    fields : Fields, optional
        Which fields of each element are written.
    """

    metadata: ArrayMetadata
    chunks: StoreChunks
    projection: Projection
    values: NDArray[Any]
    fill: Any
    elide: bool
    is_constant: bool
    fields: FieldSelection | None
    variable: str
    encoded: dict[Any, bytes | None] = field(default_factory=dict)

    def codec(self, shape: tuple[int, ...]) -> BlockCodec:
        """Return the codec of chunks of a shape."""
        return self.metadata.pipeline.for_block(shape, self.metadata.dtype, self.fill)

    def is_replaced(self, part: Part) -> bool:
        """Tell whether nothing of the stored chunk is needed."""
        return part[2] and self.fields is None

    def encode_full(self, codec: BlockCodec, part: Part) -> bytes | None:
        """Encode a chunk that is replaced; None where there is nothing to store."""
        chunk_sel, value_sel, _ = part
        data = self.values[value_sel] if value_sel else self.values
        # Without index arrays, which may put elements in another order.
        plain = is_all_slices(chunk_sel)
        key = (codec, data.shape)
        if self.is_constant and plain and key in self.encoded:
            return self.encoded[key]
        if data.dtype != self.metadata.dtype:
            data = data.astype(self.metadata.dtype)
        # Looked at before encoding, as an absent chunk costs neither codec nor request. To the bit:
        # -0.0 and other NaNs than the fill value's are kept.
        if self.elide and is_filled(data, self.fill):
            result = None
        elif plain and data.shape == codec.shape:
            result = codec.encode(data)
        else:
            # At the array's end Zarr stores chunks in full shape; what lies past it is fill.
            block = full_block(codec.shape, self.fill, self.metadata.dtype)
            block[chunk_sel] = data
            result = codec.encode(block)
        if self.is_constant and plain:
            self.encoded[key] = result
        return result

    def encode_merged(self, codec: BlockCodec, part: Part, old: Buffer | None) -> bytes | None:
        """Encode a stored chunk with a part written; None where there is nothing to store."""
        chunk_sel, value_sel, _ = part
        if old is None:
            block = full_block(codec.shape, self.fill, self.metadata.dtype)
        else:
            block = codec.decode(old)
        data = self.values[value_sel] if value_sel else self.values
        if self.fields is None:
            block[chunk_sel] = data
        else:
            self.fields.view(block)[chunk_sel] = data["part"]
        if self.elide and is_filled(block, self.fill):
            return None
        return codec.encode(block)

    def update(
        self,
        key: str,
        change: Callable[[Buffer | None], bytes | None],
        encode_empty: Callable[[], bytes],
    ) -> None:
        """Change what is stored under a key, where nothing is if there never was."""
        chunks = self.chunks
        has_conditions = getattr(chunks.store, "has_conditions", False)

        def update() -> None:
            renewals = chunks.renewals

            def change_stored(old: Buffer | None) -> bytes | None:
                if old is None:
                    chunks.check_missing(renewals)
                new = change(old)
                if new is None and old is not None and has_conditions:
                    # A deletion has none: what others write meanwhile would go with it.
                    new = encode_empty()
                return new

            # The store holds the key's lock from reading to writing, against others that merge.
            chunks.store.update(key, change_stored)

        ask_again(update)

    def raise_at(self, error: VirtualZarrError, key: str, cell: NDArray[np.int64]) -> None:
        """Raise an error again, with file, variable and chunk."""
        uri = f"{self.chunks.store.uri}/{key}"
        raise error.at(
            file=uri, variable=self.variable, chunk=format_cell(cell)
        ) from error.__cause__

    def run(self, writes: Iterator[tuple[Task, int]]) -> None:
        """Run writes of chunks, given with the decoded bytes of each, in batches."""
        remote = is_remote(self.chunks.store)
        tasks: list[Task] = []
        batch: list[Task] = []
        size = total = chunks = 0
        for write_chunk, nbytes in writes:
            batch.append(write_chunk)
            size, total, chunks = size + nbytes, total + nbytes, chunks + 1
            # Requests are worth a thread each: they wait for the server.
            if remote or size >= config.batch_bytes:
                tasks.append(partial(_run_all, batch))
                batch, size = [], 0
        if batch:
            tasks.append(partial(_run_all, batch))
        small = config.tuning.small_chunk_bytes * chunks
        run_tasks(tasks, remote, total > config.batch_bytes, io_bound=total < small)


def _run_all(batch: list[Task]) -> None:
    for write_chunk in batch:
        write_chunk()


def _write_cells(request: _WriteRequest) -> None:
    """Write the cells of an array without shards."""
    projection, total = request.projection, len(request.projection)
    grid, itemsize = request.metadata.grid, request.metadata.itemsize
    step = config.tuning.write_cells
    for first in range(0, total, step):
        # Keys are strings of some 100 bytes a cell: a huge array would need more memory for the
        # names of its chunks than for their contents.
        slab: NDArray[np.int64] | None = None
        if total > step:
            slab = np.arange(first, min(first + step, total))
        cells = projection.cells(slab)
        keys = request.chunks.keys(cells)
        shapes: Iterator[tuple[int, ...]]
        if isinstance(grid, RegularGrid):
            shapes = repeat(grid.chunk_shape, len(keys))
        else:
            shapes = projection.block_shapes(slab)
        entries = zip(keys, cells, shapes, projection.parts(slab), strict=True)
        request.run(
            (partial(_write_cell, request, *entry), math.prod(entry[2]) * itemsize)
            for entry in entries
        )


def _write_cell(
    request: _WriteRequest, key: str, cell: NDArray[np.int64], shape: tuple[int, ...], part: Part
) -> None:
    store = request.chunks.store
    try:
        codec = request.codec(shape)
        if not request.is_replaced(part):
            request.update(
                key,
                partial(request.encode_merged, codec, part),
                lambda: codec.encode(full_block(shape, request.fill, request.metadata.dtype)),
            )
        elif (data := request.encode_full(codec, part)) is None:
            store.delete(key)
        else:
            store.set(key, data)
    except VirtualZarrError as error:
        request.raise_at(error, key, cell)


def _write_shards(request: _WriteRequest, grid: SeparableGrid, codec: Sharding) -> None:
    """Write an array of shards, of which each is stored once."""
    shards = ShardedChunks(request.chunks, grid, codec)
    projection, itemsize = request.projection, request.metadata.itemsize
    smallest = np.array(find_innermost_sharding(codec).chunk_shape, np.int64)
    # The projection is on the smallest chunks, also where shards lie within shards: `within` are
    # cells of the outermost sub-chunks, and `starts` what remains in them for the inner ones.
    starts = projection.cells() * smallest
    within, starts = np.divmod(starts, np.array(codec.chunk_shape, np.int64))
    cells, entry, order, bounds = shards.group_by_shard(within)
    keys = request.chunks.keys(cells)
    shapes = grid.cell_shapes(cells).tolist()
    # Sub-chunks wholly past the array's end are not counted: nothing of them need be kept.
    inside = (-(-grid.cell_extents(cells) // smallest)).prod(axis=1, dtype=np.int64).tolist()
    limits = bounds.tolist()

    def plan_writes() -> Iterator[tuple[Task, int]]:
        for i, key in enumerate(keys):
            members = order[limits[i] : limits[i + 1]]
            shard = codec.shard(tuple(shapes[i]))
            positions = _SubchunkPositions(members, entry[members], starts[members])
            shard_write = _ShardWrite(request, key, cells[i], shard, positions, inside[i])
            yield shard_write, len(members) * math.prod(smallest.tolist()) * itemsize

    writes, step = plan_writes(), config.tuning.write_cells
    while slab := list(islice(writes, step)):
        request.run(iter(slab))


class _SubchunkPositions(NamedTuple):
    """Where the smallest chunks that are written lie in a shard.

    Attributes
    ----------
    part : int64 array
        Which of the parts each is.
    entry : int64 array
        Index entry of the sub-chunk that it is, or that it lies in.
    start : int64 array, shape (chunks, ndim)
        Where it starts in a sub-chunk that is a shard itself.
    """

    part: NDArray[np.int64]
    entry: NDArray[np.int64]
    start: NDArray[np.int64]


@dataclass
class _ShardWrite:
    """Sub-chunks of one shard to be written."""

    request: _WriteRequest
    key: str
    cell: NDArray[np.int64]
    shard: Shard
    positions: _SubchunkPositions
    inside: int  # of the smallest chunks, those that hold elements of the array

    def __call__(self) -> None:
        store = self.request.chunks.store
        parts = list(self.request.projection.parts(self.positions.part))
        positions = self.positions._replace(part=np.arange(len(parts)))
        change = partial(_update_shard, self.request, self.shard, parts, positions)
        try:
            # A shard that is replaced as a whole is not read, which spares a request.
            if len(parts) < self.inside or not all(map(self.request.is_replaced, parts)):
                self.request.update(self.key, change, lambda: self.shard.join({}))
            elif (data := change(None)) is None:
                store.delete(self.key)
            else:
                store.set(self.key, data)
        except VirtualZarrError as error:
            self.request.raise_at(error, self.key, self.cell)


def _update_shard(
    request: _WriteRequest,
    shard: Shard,
    parts: list[Part],
    positions: _SubchunkPositions,
    old: Buffer | None,
) -> bytes | None:
    """Return a shard with some parts written; other sub-chunks keep their encoded bytes."""
    # Encoded bytes are moved as they are: sub-chunks not written are never decoded, so that they
    # stay the same to the byte, whatever codec settings another writer used.
    stored = {} if old is None else shard.split(old)
    inner = find_sharding(shard.codec.pipeline)
    if inner is None:
        changed = _encode_chunks(request, shard.codec, parts, positions, stored)
    else:
        changed = _encode_inner_shards(request, shard.codec, inner, parts, positions, stored)
    for entry, data in changed:
        if data is None:
            stored.pop(entry, None)
        else:
            stored[entry] = data
    return shard.join(stored) if stored else None


def _encode_chunks(
    request: _WriteRequest,
    outer: Sharding,
    parts: list[Part],
    positions: _SubchunkPositions,
    stored: Mapping[int, Buffer],
) -> Iterator[tuple[int, bytes | None]]:
    """Return the new bytes of sub-chunks by their entries."""
    codec = outer.pipeline.for_block(outer.chunk_shape, request.metadata.dtype, request.fill)
    chunk_parts = [parts[i] for i in positions.part.tolist()]
    entries = positions.entry.tolist()
    changed: list[bytes | None] = [None] * len(chunk_parts)

    def encode(first: int, last: int) -> None:
        for i in range(first, last):
            if request.is_replaced(chunk_parts[i]):
                changed[i] = request.encode_full(codec, chunk_parts[i])
            else:
                changed[i] = request.encode_merged(codec, chunk_parts[i], stored.get(entries[i]))

    # Several for each task: handing a small sub-chunk to a thread costs more than encoding it.
    step = max(1, config.batch_bytes // max(1, codec.nbytes))
    run_shared(
        [
            partial(encode, i, min(i + step, len(chunk_parts)))
            for i in range(0, len(chunk_parts), step)
        ]
    )
    return zip(entries, changed, strict=True)


def _encode_inner_shards(
    request: _WriteRequest,
    outer: Sharding,
    inner: Sharding,
    parts: list[Part],
    positions: _SubchunkPositions,
    stored: Mapping[int, Buffer],
) -> Iterator[tuple[int, bytes | None]]:
    """Return the new bytes of sub-chunks that are shards themselves, by their entries."""
    shard = inner.shard(outer.chunk_shape)
    cells, starts = np.divmod(positions.start, np.array(inner.chunk_shape, np.int64))
    entry = np.zeros(len(cells), np.int64)
    # Horner's scheme: index entries are in C order of the axes as the shard stores them.
    for axis, length in zip(inner.order, shard.counts, strict=True):
        entry = entry * length + cells[:, axis]
    # Once for each inner shard, however many of its chunks are written: it is encoded as one.
    order, bounds, entries = group_keys(positions.entry)
    count = math.prod(outer.chunk_shape) // math.prod(find_innermost_sharding(inner).chunk_shape)
    changed: list[bytes | None] = [None] * len(entries)

    def change(i: int) -> None:
        members = order[bounds[i] : bounds[i + 1]]
        within = _SubchunkPositions(positions.part[members], entry[members], starts[members])
        old = stored.get(int(entries[i]))
        if len(members) == count and all(
            request.is_replaced(parts[k]) for k in within.part.tolist()
        ):
            old = None
        changed[i] = _update_shard(request, shard, parts, within, old)

    run_shared([partial(change, i) for i in range(len(entries))])
    return zip(entries.tolist(), changed, strict=True)
