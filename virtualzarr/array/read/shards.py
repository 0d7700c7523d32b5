"""Sharded reads: sub-chunks located by the indexes of their shards, on the inner grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grids import Axis, BoxProjection, ChunkGrid, Mode, Projection, RegularGrid, SeparableGrid
from grids.grouping import group_keys, rank_rows
from grids.selection import Box, Indexed, Strided, resolve
from virtualzarr.array.chunk_source import ChunkSource, LocatedChunks
from virtualzarr.array.read.cache_policy import ALWAYS_REVALIDATE, CachePolicy
from virtualzarr.array.read.chunk_cache import resolve_cache
from virtualzarr.array.read.shard_indexes import MAX_RETRIES, ShardFetch, ShardIndexReader
from virtualzarr.codecs.sharding import Index, Shard, Sharding, find_sharding
from virtualzarr.config import config
from virtualzarr.errors import SourceChangedError
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.stores.read_only import unwrap
from virtualzarr.stores.store import is_remote

Int64 = NDArray[np.int64]

_MANY_SHARDS = 4
"""From so many on, as much comes side by side as if each was requested in pieces."""


def resolve_shards(
    metadata: ArrayMetadata, chunks: ChunkSource, cache_policy: CachePolicy = ALWAYS_REVALIDATE
) -> tuple[ArrayMetadata, ChunkSource]:
    """Return the metadata and chunk source to read by: of a sharded array, of its sub-chunks.

    That needs sharding to be the only codec, but for transposes before it: others would have to
    decode the whole shard first.
    """
    while True:
        codec, grid = find_sharding(metadata.pipeline), metadata.grid
        if codec is None or not isinstance(grid, SeparableGrid) or _has_decoders(chunks):
            return metadata, chunks
        # A loop, since a shard's inner codecs may be sharding again.
        chunks = ShardedChunks(chunks, grid, codec, cache_policy, metadata.dtype.itemsize)
        inner = RegularGrid(metadata.shape, codec.chunk_shape)
        metadata = metadata.replace(grid=inner, pipeline=codec.pipeline)


def elements_of_blocks(grid: ChunkGrid, selection: Any) -> tuple[slice, ...]:
    """Return the elements that a selection of blocks selects, to be read by another grid."""
    assert isinstance(grid, SeparableGrid)
    box = resolve(selection, grid.axes, "block")
    assert isinstance(box, Box)
    ranges = [item for item in box.items if isinstance(item, Strided)]
    return tuple(slice(item.start, item.start + item.count) for item in ranges)


def project_whole_shards(
    metadata: ArrayMetadata, chunks: ChunkSource, selection: Any, mode: Mode
) -> Projection | None:
    """Project a selection of whole remote shards, each of which is to be read as a chunk.

    It is one request then, and decoded while others come; their sub-chunks are located only when
    the indexes of all are there. None where the selection cuts shards, or pieces of each in
    several requests come sooner.
    """
    grid, is_shard = metadata.grid, metadata.pipeline.serializer.needs_fill
    if not is_shard or not isinstance(grid, RegularGrid) or metadata.dtype.hasobject:
        return None
    if not _is_remote(chunks) or _has_decoders(chunks):
        return None
    box = resolve(selection, grid.axes, mode)
    if not isinstance(box, Box) or not all(map(_is_of_whole_cells, grid.axes, box.items)):
        return None
    projection = BoxProjection(grid.axes, box)
    nbytes = math.prod(grid.chunk_shape) * metadata.dtype.itemsize
    count = min(len(projection), _MANY_SHARDS)
    # Of several, whole ones come sooner by the round for their indexes, where the wire is the bound
    # and not the server's rate for one connection.
    is_small = nbytes <= config.remote_read * (count if count == 1 else 2 * count)
    return projection if is_small else None


def _is_of_whole_cells(axis: Axis, item: Strided | Indexed) -> bool:
    """Tell whether a selection along an axis has some cells, and all of each."""
    if not isinstance(item, Strided) or item.step != 1 or not item.count:
        return False
    first, stop = axis.cell_of(item.start), item.start + item.count
    last = axis.cell_of(stop - 1)
    return axis.start(first) == item.start and stop == min(
        axis.start(last) + axis.edge(last), axis.extent
    )


def _is_remote(chunks: ChunkSource) -> bool:
    return is_remote(unwrap(getattr(chunks, "store", None)))


def _has_decoders(chunks: ChunkSource) -> bool:
    """Tell whether some chunks are not shards as the array declares them."""
    return bool(getattr(chunks, "has_decoders", False))


class GroupedSubchunks(NamedTuple):
    """Some sub-chunks, grouped by the shards that they are in.

    Attributes
    ----------
    shards : int64 array, shape (shards, ndim)
        The cells of the shards, in C order.
    entry : int64 array
        For each sub-chunk, its entry in the index of its shard.
    order, bounds : int64 arrays
        Sub-chunks ``order[bounds[i]:bounds[i + 1]]`` are in shard `i`.
    """

    shards: Int64
    entry: Int64
    order: Int64
    bounds: Int64

    def members(self, shard: int) -> Int64:
        """Return which sub-chunks are in a shard."""
        return self.order[self.bounds[shard] : self.bounds[shard + 1]]


class ShardedChunks:
    """Chunk source of the sub-chunks of shards.

    Parameters
    ----------
    shards : ChunkSource
        Locates the shards.
    grid : SeparableGrid
        How the array is cut into shards; all edges are multiples of the sub-chunks'.
    codec : Sharding
    cache_policy : CachePolicy
        When cached indexes are revalidated.
    itemsize : int
        Bytes of an element, by which it is told how long a shard may be; 0 if that is not known.
    """

    def __init__(
        self,
        shards: ChunkSource,
        grid: SeparableGrid,
        codec: Sharding,
        cache_policy: CachePolicy = ALWAYS_REVALIDATE,
        itemsize: int = 0,
    ) -> None:
        self.itemsize = itemsize
        self.shards = shards
        self.grid = grid
        self.codec = codec
        self.cache_policy = cache_policy
        self._layout = lru_cache(maxsize=256)(partial(_shard_layout, grid, codec))
        self._sample: Index | None = None  # of a remote shard: others mostly are like it

    def locate(self, projection: Projection) -> LocatedChunks:
        """Find the sub-chunks that a projection touches, by the indexes of their shards."""
        return self._locate_with_retries(projection, None, self.cache_policy.data_valid_since())

    def locate_to_read(self, projection: Projection) -> LocatedChunks:
        """Find sub-chunks that are to be read: remote shards may be fetched whole for that."""
        since = self.cache_policy.data_valid_since()
        return self._locate_with_retries(projection, None, since, to_read=True)

    def _locate_with_retries(
        self, projection: Projection, positions: Int64 | None, since: float, to_read: bool = False
    ) -> LocatedChunks:
        """Find sub-chunks, again if shards within shards are replaced meanwhile."""
        for tries in range(MAX_RETRIES):
            try:
                return self._locate(projection, positions, since, to_read)
            except SourceChangedError:
                if not isinstance(self.shards, ShardedChunks) or tries == MAX_RETRIES - 1:
                    raise
                # The index in the cache is of another version: have all of them checked.
                since = math.inf
        raise AssertionError

    def _relocate(self, projection: Projection, positions: Int64) -> tuple[Int64, LocatedChunks]:
        """Find all sub-chunks again that are in the files of some, which were replaced."""
        file = self._rank_of_file(projection.cells())
        positions = np.flatnonzero(np.isin(file, file[positions]))
        return positions, self._locate_with_retries(projection, positions, math.inf)

    def _rank_of_file(self, cells: Int64) -> Int64:
        """Return a number for each sub-chunk that is equal for those in one file."""
        cuts = zip(self.grid.axes, self.codec.chunk_shape, cells.T, strict=True)
        shard = np.empty_like(cells)
        for i, (axis, edge, along) in enumerate(cuts):
            shard[:, i] = axis.cell_of(along * edge)
        if isinstance(self.shards, ShardedChunks):
            return self.shards._rank_of_file(shard)
        return _rank(shard, self.grid.grid_shape)

    def _locate_shards(self, projection: Projection, since: float) -> LocatedChunks:
        """Find the shards that a projection on their grid touches."""
        if isinstance(self.shards, ShardedChunks):
            return self.shards._locate(projection, None, since)
        return self.shards.locate(projection)

    def group_by_shard(self, cells: Int64) -> GroupedSubchunks:
        """Group sub-chunks, given by their cells, by the shards that they are in."""
        shard = np.empty_like(cells)
        entry = np.zeros(len(cells), np.int64)
        for i in self.codec.order:
            axis, edge = self.grid.axes[i], self.codec.chunk_shape[i]
            start = cells[:, i] * edge
            shard[:, i] = along = axis.cell_of(start)
            # Entries are in C order of the shard's axes as they are stored (Horner's scheme).
            entry *= axis.edge(along) // edge
            entry += (start - axis.start(along)) // edge
        order, bounds, _ = group_keys(_rank(shard, self.grid.grid_shape))
        return GroupedSubchunks(shard[order[bounds[:-1]]], entry, order, bounds)

    def _locate(
        self, projection: Projection, positions: Int64 | None, since: float, to_read: bool = False
    ) -> LocatedChunks:
        cells = projection.cells(positions)
        chunk_numbers = np.arange(len(cells)) if positions is None else positions
        # Of remote shards, more than the index may be worth fetching: that is for several.
        may_guess = to_read and _is_remote(self.shards)
        if len(cells) == 1 and not may_guess:
            return self._locate_one(projection, cells[0].tolist(), chunk_numbers, since)
        grouped = self.group_by_shard(cells)
        touched = _project_cells(self.grid, grouped.shards)
        located = self._locate_shards(touched, since)
        # Missing shards are left out of `located`, or have no index: their sub-chunks keep the
        # offset -1.
        shapes = self.grid.cell_shapes(grouped.shards[located.cell]).tolist()
        shards = [self.codec.shard(shape) for shape in shapes]
        fetches = self._plan_fetches(grouped, located, shards) if may_guess else {}
        reader = ShardIndexReader(touched, located, shards, since, fetches)
        indexes = reader.read_all(alone=positions is not None)
        offset, length = np.full(len(cells), -1), np.zeros(len(cells), np.int64)
        row = np.zeros(len(cells), np.int64)
        for j, (group, index) in enumerate(zip(located.cell.tolist(), indexes, strict=True)):
            if index is None:
                continue
            members = grouped.members(group)
            entry = grouped.entry[members]
            offset[members] = index.offset[entry]
            length[members] = index.length[entry]
            row[members] = j
            self._sample = index
        # A sub-chunk without entry was never written.
        stored = np.flatnonzero(offset >= 0)
        ranges = Index(offset[stored], length[stored])
        return self._make_located(projection, reader, chunk_numbers[stored], row[stored], ranges)

    def _plan_fetches(
        self, grouped: GroupedSubchunks, located: LocatedChunks, shards: list[Shard]
    ) -> dict[int, ShardFetch]:
        """Return the shards of which more is worth fetching than the index, and how much.

        That saves a round trip. At least half of what is fetched is wanted, or what is not takes
        less time than a round trip; and all of it together may be in memory at once. A shard is
        fetched whole, or its end at which the index lies, with what is wanted beside that.
        """
        # Blocks of a chunk cache are those of versions of files, which bytes in memory have not.
        if not located.may_be_missing or resolve_cache(self.cache_policy) is not None:
            return {}
        fetches: dict[int, ShardFetch] = {}
        total, entry_size = 0, math.prod(self.codec.chunk_shape) * self.itemsize
        for j, (group, shard) in enumerate(zip(located.cell.tolist(), shards, strict=True)):
            entry = grouped.entry[grouped.members(group)]
            if located.offset[j] or located.length[j] >= 0 or not entry_size:
                continue
            nbytes, most = shard.entries * entry_size, _most_bytes(len(entry) * entry_size)
            if is_part := nbytes > most:
                nbytes, selected_bytes = self._estimate_end(entry, shard, entry_size)
                most = _most_bytes(selected_bytes)
            if nbytes > most or total + nbytes > config.stream_bytes:
                continue
            total += nbytes
            # Encoded, sub-chunks may be longer than they are decoded, or than those of others.
            spare = nbytes // 8 + 64 if is_part else 7 * nbytes + 2**24
            fetches[j] = ShardFetch(nbytes + spare, not is_part)
        return fetches

    def _estimate_end(self, entry: Int64, shard: Shard, entry_size: int) -> tuple[int, int]:
        """Return how many bytes beside the index hold some entries, and how many are theirs.

        Where nothing tells yet how long sub-chunks are, and in which order they lie (zarr-python's
        is not that of the index), none are promised to be theirs.
        """
        sample, at_start = self._sample, self.codec.at_start
        if sample is None or len(sample.offset) != shard.entries:
            count = int(entry.max()) + 1 if at_start else shard.entries - int(entry.min())
            return count * entry_size, 0
        stops, entry = sample.offset + sample.length, entry[sample.offset[entry] >= 0]
        if not len(entry):
            return 0, 0
        begin, end = int(sample.offset[entry].min()), int(stops[entry].max())
        nbytes = max(end - shard.index_size, 0) if at_start else int(stops.max()) - begin
        return nbytes, int(sample.length[entry].sum())

    def _locate_one(
        self, projection: Projection, cell: list[int], position: Int64, since: float
    ) -> LocatedChunks:
        """Find one sub-chunk: the commonest request, where every microsecond shows."""
        cuts = zip(self.grid.axes, cell, self.codec.chunk_shape, strict=True)
        layout = self._layout(*[axis.cell_of(i * edge) for axis, i, edge in cuts])
        entry = 0
        for i in self.codec.order:
            entry = entry * layout.counts[i] + cell[i] - layout.first[i]
        located, empty = self._locate_shards(layout.projection, since), position[:0]
        shards = [layout.shard] * len(located)
        reader = ShardIndexReader(layout.projection, located, shards, since)
        index = reader.read_first() if len(located) else None
        if index is None or index.offset[entry] < 0:
            return self._make_located(projection, reader, empty, empty, Index(empty, empty))
        single = slice(entry, entry + 1)
        ranges = Index(index.offset[single], index.length[single])
        return self._make_located(projection, reader, position, np.zeros(1, np.int64), ranges)

    def _make_located(
        self,
        projection: Projection,
        reader: ShardIndexReader,
        cell: Int64,
        row: Int64,
        ranges: Index,
    ) -> LocatedChunks:
        shards = reader.located
        return LocatedChunks(
            cell,
            shards.file[row],
            shards.offset[row] + ranges.offset,
            ranges.length,
            reader.file,
            may_be_missing=shards.may_be_missing,
            check_missing=shards.check_missing,
            # Only files of a store may be replaced by a writer; those a manifest refers to are
            # pinned by their fingerprints, and a change of them is an error.
            relocate=partial(self._relocate, projection) if shards.may_be_missing else None,
        )


def _most_bytes(selected_bytes: int) -> int:
    """Return how many bytes may be fetched for some of them, rather than wait for an index."""
    most = max(2 * selected_bytes, selected_bytes + config.remote_gap)
    return min(config.remote_read, most)


def _rank(cells: Int64, grid_shape: tuple[int, ...]) -> Int64:
    if not grid_shape:
        return np.zeros(len(cells), np.int64)
    return rank_rows(list(cells.T), list(grid_shape))


def _project_cells(grid: SeparableGrid, cells: Int64) -> Projection:
    """Return a projection that touches some cells, which must be distinct and in C order."""
    origins = grid.cell_origins(cells)
    if len(cells) == 1:
        return _project_cell(grid, origins[0].tolist())
    return grid.project(tuple(origins.T), "coordinate")


def _project_cell(grid: SeparableGrid, origin: Sequence[int]) -> Projection:
    """Return a projection that touches the cell with some origin."""
    items = tuple([Strided(start, 1, 1) for start in origin])
    return BoxProjection(grid.axes, Box(items, (1,) * len(items), None))


class _ShardLayout(NamedTuple):
    """Sub-chunks of one shard: how many there are along each axis, and the first of them."""

    projection: Projection
    shard: Shard
    counts: list[int]
    first: list[int]


def _shard_layout(grid: SeparableGrid, codec: Sharding, *cell: int) -> _ShardLayout:
    shape, origin, edges = grid.cell_shape(cell), grid.cell_origin(cell), codec.chunk_shape
    return _ShardLayout(
        _project_cell(grid, origin),
        codec.shard(shape),
        [length // edge for length, edge in zip(shape, edges, strict=True)],
        [start // edge for start, edge in zip(origin, edges, strict=True)],
    )
