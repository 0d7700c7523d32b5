"""Sharded arrays read through their inner grid: where the sub-chunks of shards lie."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grids import ChunkGrid, Projection, RegularGrid, SeparableGrid
from grids.grouping import grouped, rank
from grids.selection import Box, Strided, resolve
from virtualzarr.array.chunks import Chunks, Located, ManifestChunks
from virtualzarr.array.pools import pool
from virtualzarr.codecs.base import Buffer, view_of
from virtualzarr.codecs.sharding import Index, Shard, Sharding, only_sharding
from virtualzarr.config import config
from virtualzarr.errors import SourceChangedError, SourceNotFoundError, VirtualZarrError
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.stores.files import (
    ByteFile,
    FileFacts,
    InlineFile,
    LocalFile,
    file_facts,
)

SETTLED_NS = 2_000_000_000
"""A file changed less than this long ago may change again without its time telling."""

TRIES = 100
"""How often an index is read again that is replaced faster than it can be read."""

Int64 = NDArray[np.int64]


def readable(metadata: ArrayMetadata, chunks: Chunks) -> tuple[ArrayMetadata, Chunks]:
    """Return an array as it is best read: a sharded one as the array of its sub-chunks.

    That needs sharding to be the only codec, but for transposes before it: others would have to
    decode the whole shard first.
    """
    while True:
        codec, grid = only_sharding(metadata.pipeline), metadata.grid
        if codec is None or not isinstance(grid, SeparableGrid) or _decodes_apart(chunks):
            return metadata, chunks
        chunks = ShardedChunks(chunks, grid, codec)
        inner = RegularGrid(metadata.shape, codec.chunk_shape)
        metadata = metadata.replace(grid=inner, pipeline=codec.pipeline)


def elements_of_blocks(grid: ChunkGrid, selection: Any) -> tuple[slice, ...]:
    """Return the elements that a selection of blocks selects, to be read by another grid."""
    assert isinstance(grid, SeparableGrid)
    box = resolve(selection, grid.axes, "block")
    assert isinstance(box, Box)
    ranges = [item for item in box.items if isinstance(item, Strided)]
    return tuple(slice(item.start, item.start + item.count) for item in ranges)


def _decodes_apart(chunks: Chunks) -> bool:
    """Tell whether some chunks are not shards as the array declares them."""
    if not isinstance(chunks, ManifestChunks):
        return False
    return chunks.manifest.decoder is not None or chunks.manifest.origin is not None


class Touched(NamedTuple):
    """Some sub-chunks, grouped by the shards that they are in.

    Attributes
    ----------
    shards : int64 array, shape (shards, ndim)
        The cells of the shards, in C order.
    entry : int64 array
        For each sub-chunk, its place in the index of its shard.
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
    """The sub-chunks of the shards that other chunks are.

    Parameters
    ----------
    shards : Chunks
        Where the shards are found.
    grid : SeparableGrid
        How the array is cut into shards; all edges are multiples of the sub-chunks'.
    codec : Sharding
    """

    def __init__(self, shards: Chunks, grid: SeparableGrid, codec: Sharding) -> None:
        self.shards = shards
        self.grid = grid
        self.codec = codec

    def locate(self, projection: Projection) -> Located:
        """Find the sub-chunks that a projection touches, by the indexes of their shards."""
        return self._locate(projection, None)

    def touched(self, cells: Int64) -> Touched:
        """Group sub-chunks, given by their cells, by the shards that they are in."""
        shard = np.empty_like(cells)
        entry = np.zeros(len(cells), np.int64)
        for i in self.codec.order:
            axis, edge = self.grid.axes[i], self.codec.chunk_shape[i]
            start = cells[:, i] * edge
            shard[:, i] = found = axis.cell_of(start)
            entry *= axis.edge(found) // edge
            entry += (start - axis.start(found)) // edge
        order, bounds, _ = grouped(_rank(shard, self.grid.grid_shape))
        return Touched(shard[order[bounds[:-1]]], entry, order, bounds)

    def _locate(self, projection: Projection, positions: Int64 | None) -> Located:
        cells = projection.cells(positions)
        where = np.arange(len(cells)) if positions is None else positions
        if len(cells) == 1:
            return self._locate_one(projection, cells[0].tolist(), where)
        touched = self.touched(cells)
        located = self.shards.locate(_projection(self.grid, touched.shards))
        shapes = self.grid.cell_shapes(touched.shards[located.cell]).tolist()
        reader = _Reader(located, [self.codec.shard(shape) for shape in shapes])
        indexes = reader.indexes(alone=positions is not None)
        offset, length = np.full(len(cells), -1), np.zeros(len(cells), np.int64)
        row = np.zeros(len(cells), np.int64)
        for j, (group, index) in enumerate(zip(located.cell.tolist(), indexes, strict=True)):
            if index is None:
                continue
            members = touched.members(group)
            entry = touched.entry[members]
            offset[members] = index.offset[entry]
            length[members] = index.length[entry]
            row[members] = j
        found = np.flatnonzero(offset >= 0)
        return self._located(
            projection, reader, where[found], row[found], Index(offset[found], length[found])
        )

    def _locate_one(self, projection: Projection, cell: list[int], where: Int64) -> Located:
        """Do the same for one sub-chunk: the commonest request, where every microsecond shows."""
        entry, shape, origin = 0, [0] * len(cell), [slice(0)] * len(cell)
        for i in self.codec.order:
            axis, edge = self.grid.axes[i], self.codec.chunk_shape[i]
            at = cell[i] * edge
            found = axis.cell_of(at)
            length, start = axis.edge(found), axis.start(found)
            entry = entry * (length // edge) + (at - start) // edge
            shape[i] = length
            origin[i] = slice(start, start + 1)
        located = self.shards.locate(self.grid.project(tuple(origin)))
        reader = _Reader(located, [self.codec.shard(shape)] * len(located))
        index = reader.index(0) if len(located) else None
        if index is None or index.offset[entry] < 0:
            nothing = where[:0]
            return self._located(projection, reader, nothing, nothing, Index(nothing, nothing))
        one = slice(entry, entry + 1)
        here = Index(index.offset[one], index.length[one])
        return self._located(projection, reader, where, np.zeros(1, np.int64), here)

    def _located(
        self, projection: Projection, reader: _Reader, where: Int64, row: Int64, place: Index
    ) -> Located:
        shards = reader.located
        return Located(
            where,
            shards.file[row],
            shards.offset[row] + place.offset,
            place.length,
            reader.file,
            may_be_absent=shards.may_be_absent,
            again=partial(self._locate, projection) if shards.may_be_absent else None,
        )


def _rank(cells: Int64, grid_shape: tuple[int, ...]) -> Int64:
    if not grid_shape:
        return np.zeros(len(cells), np.int64)
    return rank(list(cells.T), list(grid_shape))


def _projection(grid: SeparableGrid, cells: Int64) -> Projection:
    """Return a projection that touches some cells, which are distinct and in C order."""
    origins = grid.cell_origins(cells)
    if len(cells) == 1:
        return grid.project(tuple(slice(i, i + 1) for i in origins[0].tolist()))
    return grid.project(tuple(origins.T), "coordinate")


@dataclass
class _Reader:
    """Reads the indexes of some located shards."""

    located: Located
    shards: list[Shard]

    def __post_init__(self) -> None:
        self._files: dict[int, ByteFile] = {}

    def file(self, row: int) -> ByteFile:
        """Return a file that is sure to be the one whose indexes were read."""
        file = self._files.get(row)
        if file is None:
            file = self._files[row] = _pinned(self.located.files(row))
        return file

    def indexes(self, alone: bool) -> list[Index | None]:
        """Return the index of each shard, None for those not there.

        Parameters
        ----------
        alone : bool
            Whether only this thread may read: it is one of those that would be waited for.
        """
        count = len(self.shards)
        if count > 1 and not alone and self.located.files(int(self.located.file[0])).remote:
            return list(pool(remote=True).map(self.index, range(count)))
        return [self.index(j) for j in range(count)]

    def index(self, j: int, tries: int = TRIES) -> Index | None:
        """Return the index of one of the shards, None if that is not there."""
        located, shard = self.located, self.shards[j]
        row = int(located.file[j])
        try:
            return _read_index(
                self.file(row), int(located.offset[j]), int(located.length[j]), shard
            )
        except SourceChangedError as error:
            if not located.may_be_absent or not tries:
                error.at(file=located.files(row).uri)
                raise
            del self._files[row]
            return self.index(j, tries - 1)
        except SourceNotFoundError as error:
            if located.may_be_absent:
                return None
            error.at(file=located.files(row).uri)
            raise
        except VirtualZarrError as error:
            error.at(file=located.files(row).uri)
            raise


def _pinned(file: ByteFile) -> ByteFile:
    """Return a local file as it is now: reading from another version of it will be an error."""
    if not isinstance(file, LocalFile) or file.facts is not None:
        return file
    try:
        return LocalFile(file.uri, file_facts(file.uri))
    except SourceNotFoundError:
        file.read(0, 0)  # it knows better what is wrong, if anything is
        raise


def _read_index(file: ByteFile, offset: int, length: int, shard: Shard) -> Index:
    """Return the index of the shard in some bytes of a file; a length of -1 is all the rest."""
    key = _cache_key(file, offset, length, shard)
    index = None if key is None else indexes.get(key)
    if index is not None:
        return index
    size = _size(file, offset) if length < 0 else length
    if size is not None and size < shard.index_size:
        raise shard.too_short(size)
    if shard.codec.at_start:
        data = file.read(offset, offset + shard.index_size)
    elif size is not None:
        data = file.read(offset + size - shard.index_size, offset + size)
    else:
        data = _tail(file, offset, shard)
    index = shard.read_index(data, size)
    if key is not None:
        indexes.put(key, index)
    return index


def _size(file: ByteFile, offset: int) -> int | None:
    """Return how many bytes there are from an offset on, if that is known without asking."""
    if isinstance(file, InlineFile):
        return file.data.nbytes - offset
    facts = getattr(file, "facts", None)
    return None if facts is None or facts.size is None else int(facts.size) - offset


def _tail(file: ByteFile, offset: int, shard: Shard) -> Buffer:
    """Return the index at the end of a file of unknown size."""
    tail = None if offset else getattr(file, "tail", None)
    data = view_of(tail(shard.index_size) if tail else file.read(offset, None))
    if len(data) < shard.index_size:
        raise shard.too_short(len(data))
    return data[len(data) - shard.index_size :]


def _cache_key(file: ByteFile, offset: int, length: int, shard: Shard) -> Hashable | None:
    """Return what tells the index apart, if the file's facts tell one version from another."""
    facts = getattr(file, "facts", None)
    if facts in (None, FileFacts(None)) or not config.verify_sources:
        return None
    if facts.mtime_ns is not None and time.time_ns() - facts.mtime_ns < SETTLED_NS:
        return None
    return (file.uri, facts, offset, length, shard)


class IndexCache:
    """Indexes of shards read lately, up to `config.shard_index_bytes`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.indexes: OrderedDict[Hashable, Index] = OrderedDict()
        self.nbytes = 0

    def get(self, key: Hashable) -> Index | None:
        """Return an index, which then counts as used last."""
        with self._lock:
            index = self.indexes.get(key)
            if index is not None:
                self.indexes.move_to_end(key)
            return index

    def put(self, key: Hashable, index: Index) -> None:
        """Keep an index, and drop those not used for longest to make room."""
        with self._lock:
            if key in self.indexes:
                return
            self.indexes[key] = index
            self.nbytes += _nbytes(index)
            while self.nbytes > config.shard_index_bytes and self.indexes:
                self.nbytes -= _nbytes(self.indexes.popitem(last=False)[1])

    def clear(self) -> None:
        """Forget all indexes."""
        self.__init__()  # type: ignore[misc]


def _nbytes(index: Index) -> int:
    return index.offset.nbytes + index.length.nbytes + 512


indexes = IndexCache()

if hasattr(os, "register_at_fork"):
    # A lock that another thread holds while the process forks is never released in the child.
    os.register_at_fork(after_in_child=indexes.clear)
