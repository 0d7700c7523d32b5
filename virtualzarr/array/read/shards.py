"""Sharded reads: sub-chunks located by the indexes of their shards, on the inner grid."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grids import BoxProjection, ChunkGrid, Projection, RegularGrid, SeparableGrid
from grids.grouping import group_keys, rank_rows
from grids.selection import Box, Strided, resolve
from virtualzarr.array.chunk_source import ChunkSource, LocatedChunks
from virtualzarr.array.read.cache_policy import ALWAYS_REVALIDATE, CachePolicy
from virtualzarr.array.read.chunk_cache import (
    FileCache,
    PinnedFile,
    SourceVersion,
    is_settled,
    resolve_cache,
    stat_version,
)
from virtualzarr.array.thread_pools import get_pool
from virtualzarr.codecs.core.base import Buffer, as_view
from virtualzarr.codecs.sharding import Index, Shard, Sharding, find_sharding
from virtualzarr.config import config
from virtualzarr.errors import SourceChangedError, SourceNotFoundError, VirtualZarrError
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.stores import invalidation
from virtualzarr.stores.files import (
    ByteFile,
    FetchedFile,
    Fingerprint,
    InlineFile,
    LocalFile,
    RemoteFile,
)
from virtualzarr.stores.read_only import unwrap

MAX_RETRIES = 100
"""Retries for a shard that is replaced while its index is read."""
Int64 = NDArray[np.int64]


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
        shape = grid.chunk_shape if isinstance(grid, RegularGrid) else (2**62,)
        self._shard_nbytes = math.prod(shape) * itemsize
        self._layout = lru_cache(maxsize=256)(partial(_shard_layout, grid, codec))

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

    def _relocate(self, projection: Projection, positions: Int64) -> LocatedChunks:
        """Find sub-chunks again whose file was replaced."""
        return self._locate_with_retries(projection, positions, math.inf)

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
        # Of small shards, one sub-chunk may be worth fetching all: the way for several does that.
        if len(cells) == 1 and not (to_read and self._has_small_shards()):
            return self._locate_one(projection, cells[0].tolist(), chunk_numbers, since)
        grouped = self.group_by_shard(cells)
        located = self._locate_shards(_project_cells(self.grid, grouped.shards), since)
        # Missing shards are left out of `located`, or have no index: their sub-chunks keep the
        # offset -1.
        shapes = self.grid.cell_shapes(grouped.shards[located.cell]).tolist()
        shards = [self.codec.shard(shape) for shape in shapes]
        limits = self._limit_whole(grouped, located, shapes) if to_read else {}
        reader = _IndexReader(located, shards, since, limits)
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
        # A sub-chunk without entry was never written.
        stored = np.flatnonzero(offset >= 0)
        ranges = Index(offset[stored], length[stored])
        return self._make_located(projection, reader, chunk_numbers[stored], row[stored], ranges)

    def _has_small_shards(self) -> bool:
        is_remote = getattr(unwrap(getattr(self.shards, "store", None)), "remote", False)
        return bool(is_remote) and self._shard_nbytes <= config.remote_gap

    def _limit_whole(
        self, grouped: GroupedSubchunks, located: LocatedChunks, shapes: list[list[int]]
    ) -> dict[int, int]:
        """Return the shards that are worth fetching whole, and how long they may be encoded.

        That saves the round trip for the index. At least half of such a shard is wanted, or what is
        not takes less time than a round trip; and all of them together may be in memory at once.
        """
        # Blocks of a chunk cache are those of versions of files, which bytes in memory have not.
        if not located.may_be_missing or resolve_cache(self.cache_policy) is not None:
            return {}
        limits: dict[int, int] = {}
        total, entry_size = 0, math.prod(self.codec.chunk_shape) * self.itemsize
        for j, (group, shape) in enumerate(zip(located.cell.tolist(), shapes, strict=True)):
            nbytes = math.prod(shape) * self.itemsize
            selected_bytes = len(grouped.members(group)) * entry_size
            complete = not located.offset[j] and located.length[j] < 0
            most = max(2 * selected_bytes, selected_bytes + config.remote_gap)
            if not complete or not 0 < nbytes <= min(config.remote_read, most):
                continue
            total += nbytes
            if total > config.stream_bytes:
                break
            limits[j] = 8 * nbytes + 2**24
        return limits

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
        reader = _IndexReader(located, [layout.shard] * len(located), since)
        index = reader.read_index(0) if len(located) else None
        if index is None or index.offset[entry] < 0:
            return self._make_located(projection, reader, empty, empty, Index(empty, empty))
        single = slice(entry, entry + 1)
        ranges = Index(index.offset[single], index.length[single])
        return self._make_located(projection, reader, position, np.zeros(1, np.int64), ranges)

    def _make_located(
        self, projection: Projection, reader: _IndexReader, cell: Int64, row: Int64, ranges: Index
    ) -> LocatedChunks:
        shards = reader.located
        return LocatedChunks(
            cell,
            shards.file[row],
            shards.offset[row] + ranges.offset,
            ranges.length,
            reader.file,
            may_be_missing=shards.may_be_missing,
            # Only files of a store may be replaced by a writer; those a manifest refers to are
            # pinned by their fingerprints, and a change of them is an error.
            relocate=partial(self._relocate, projection) if shards.may_be_missing else None,
        )


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


@dataclass
class _IndexReader:
    """Reads the indexes of some located shards."""

    located: LocatedChunks
    shards: list[Shard]
    since: float
    limits: Mapping[int, int] = field(default_factory=dict)  # of shards that are fetched whole

    def __post_init__(self) -> None:
        self._files: dict[int, ByteFile] = {}
        self._tick = invalidation.next_tick()

    def file(self, row: int) -> ByteFile:
        """Return a file pinned to the version whose indexes were read."""
        file = self._files.get(row)
        if file is None:
            file = self._files[row] = _pin_version(self.located.open_file(row), self.since)
        return file

    def read_all(self, alone: bool) -> list[Index | None]:
        """Return the index of each shard, None for those never written.

        Parameters
        ----------
        alone : bool
            Whether this thread reads alone: one of the pool must not wait for others of it.
        """
        count = len(self.shards)
        if count > 1 and not alone and self.located.open_file(int(self.located.file[0])).remote:
            return list(get_pool(remote=True).map(self.read_index, range(count)))
        return [self.read_index(j) for j in range(count)]

    def read_index(self, j: int, tries: int = MAX_RETRIES) -> Index | None:
        """Return the index of one of the shards, None if that was never written."""
        located, shard = self.located, self.shards[j]
        row = int(located.file[j])
        try:
            extent = int(located.offset[j]), int(located.length[j])
            fetch = partial(self._fetch_whole, row, j) if j in self.limits else None
            return _read_index(self.file(row), *extent, shard, self.since, self._tick, fetch)
        except SourceChangedError as error:
            # A shard within a shard is located again with its outer one.
            if not located.may_be_missing or not tries or located.relocate is not None:
                error.at(file=located.open_file(row).uri)
                raise
            self._files.pop(row, None)
            self.since, self._tick = math.inf, invalidation.next_tick()
            return self.read_index(j, tries - 1)
        except SourceNotFoundError as error:
            if located.may_be_missing:
                return None
            error.at(file=located.open_file(row).uri)
            raise
        except VirtualZarrError as error:
            error.at(file=located.open_file(row).uri)
            raise

    def _fetch_whole(self, row: int, j: int) -> ByteFile:
        """Return a file, in memory if another request is not needed to know its length."""
        file = self.file(row)
        if isinstance(file, RemoteFile) and file.connection.knows_lengths:
            data = file.read(0, None, self.limits[j])
            file = self._files[row] = FetchedFile(bytes(data), file.uri)
        return file


def _pin_version(file: ByteFile, since: float) -> ByteFile:
    """Return a local file pinned to its version now, or to one that was checked lately enough."""
    if not isinstance(file, LocalFile) or file.fingerprint is not None:
        return file
    last = shard_indexes.last_version(file.uri, None, since)
    if last is None:
        checked_at = time.monotonic()
        try:
            version = stat_version(file.uri)
        except FileNotFoundError as error:
            file.read(0, 0)  # its error is the better one, where anything else is wrong
            raise SourceNotFoundError("there was no such file", file=file.uri) from error
        shard_indexes.revalidate(SourceVersion(file.uri, None, version, checked_at))
        last = version, checked_at
    return PinnedFile(file.uri, *last)


def _read_index(
    file: ByteFile,
    offset: int,
    length: int,
    shard: Shard,
    since: float,
    tick: int,
    fetch: Callable[[], ByteFile] | None = None,
) -> Index:
    """Return the index of the shard in a range of bytes; a length of -1 is to the end.

    Unless it is cached, it is read from the file that `fetch` returns, if that is given.
    """
    version = _index_version(file, since)
    key = offset, length, shard
    if version is not None and (cached := shard_indexes.get_of(version, key)) is not None:
        return cached
    file = file if fetch is None else fetch()
    size = _bytes_after(file, offset) if length < 0 else length
    # Checked first: a range that began before the shard would read another chunk's bytes as the
    # index.
    if size is not None and size < shard.index_size:
        raise shard.too_short_error(size)
    if shard.codec.at_start:
        data = file.read(offset, offset + shard.index_size)
    elif size is not None:
        data = file.read(offset + size - shard.index_size, offset + size)
    else:
        data = _read_tail(file, offset, shard)
    index = shard.read_index(data, size)
    if version is not None:
        if shard_indexes.limit != config.shard_index_bytes:
            shard_indexes.limit = config.shard_index_bytes
        nbytes = index.offset.nbytes + index.length.nbytes
        shard_indexes.put_of(version, key, index, nbytes, tick)
    return index


def _index_version(file: ByteFile, since: float) -> SourceVersion | None:
    """Return the version that indexes in a file are cached with, or None if they are not."""
    if not isinstance(file, LocalFile | RemoteFile):
        return None
    checked_at, fingerprint = time.monotonic(), file.fingerprint
    if isinstance(file, PinnedFile):
        # File systems stamp times in ticks of some milliseconds: a file changed twice within one
        # looks unchanged, so that a fresh version proves nothing under "always".
        usable = file.version.settled or since < math.inf
        pinned = SourceVersion(file.uri, None, file.version, file.checked_at)
        return pinned if usable and config.verify_sources else None
    connection: Hashable = fingerprint
    if isinstance(file, RemoteFile):
        connection = file.connection._fs, fingerprint
    if fingerprint is not None and config.verify_sources and _is_distinct(fingerprint):
        # Sub-chunks that the index locates are read from this very version, or not at all.
        version = SourceVersion(file.uri, connection, fingerprint, checked_at)
        shard_indexes.revalidate(version)
        return version
    if since == math.inf:
        return None
    last = shard_indexes.last_version(file.uri, connection, since)
    if last is None:
        shard_indexes.revalidate(SourceVersion(file.uri, connection, None, checked_at))
    return SourceVersion(file.uri, connection, *(last or (None, checked_at)))


def _is_distinct(fingerprint: Fingerprint) -> bool:
    """Tell whether no other version of a file has the same fingerprint."""
    return (
        fingerprint.etag is not None
        if fingerprint.mtime_ns is None
        else is_settled(fingerprint.mtime_ns)
    )


def _bytes_after(file: ByteFile, offset: int) -> int | None:
    """Return how many bytes there are from an offset on, if no request is needed to know."""
    if isinstance(file, InlineFile):
        return file.data.nbytes - offset
    fingerprint = getattr(file, "fingerprint", None)
    return (
        None if fingerprint is None or fingerprint.size is None else int(fingerprint.size) - offset
    )


def _read_tail(file: ByteFile, offset: int, shard: Shard) -> Buffer:
    """Return the index at the end of a file of unknown size."""
    # HTTP's suffix ranges (`bytes=-n`) read from the end of a file without asking for its size.
    tail = None if offset else getattr(file, "tail", None)
    data = as_view(tail(shard.index_size) if tail else file.read(offset, None))
    if len(data) < shard.index_size:
        raise shard.too_short_error(len(data))
    return data[len(data) - shard.index_size :]


shard_indexes: FileCache[Index] = FileCache(config.shard_index_bytes)
"""LRU cache of shard indexes, for all arrays, of `config.shard_index_bytes`."""
