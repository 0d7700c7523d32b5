"""Chunks that are written to a dataset itself: encoded, verified, stored, and referred to."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grids import Axis, from_axes
from virtualzarr.array import Array
from virtualzarr.array.cut_array import cut_box
from virtualzarr.array.executors import map_in_order
from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.checksums import Checksum
from virtualzarr.codecs.core.fill_value import full_block, is_filled
from virtualzarr.codecs.core.numbers import clear_padding
from virtualzarr.codecs.sharding import Sharding
from virtualzarr.dataset.segment import DATA
from virtualzarr.dataset.snapshot import Named
from virtualzarr.errors import UnsupportedError
from virtualzarr.manifest import Decoder, Manifest, Source, Sources
from virtualzarr.manifest.manifest import CANONICAL
from virtualzarr.metadata import ArrayMetadata, default_fill
from virtualzarr.rechunk.blocks import least_memory, plan_blocks

Cell = tuple[int, ...]
Box = tuple[slice, ...]

_CHECKED = {"gzip", "zlib", "numcodecs.gzip", "numcodecs.zlib"}
"""Formats of compressed data that end with a checksum, which is compared."""

SMALLEST_OBJECT = 1 << 20
"""Bytes from which on other rows go to another object."""

LARGEST_OBJECT = 64 << 20
"""Bytes from which on chunks go to another object."""


class ChunkWriter:
    """Encodes chunks and stores them in objects of a dataset.

    Parameters
    ----------
    put : callable
        Stores an object of a kind.
    folder : str
        Path or URL of the dataset.

    Attributes
    ----------
    data : list of Named
        The objects that were stored.
    nbytes : int
        Bytes in them.
    """

    def __init__(self, put: Callable[[str, bytes], Named], folder: str) -> None:
        self._put, self._folder = put, folder
        self.data: list[Named] = []
        self.nbytes = 0
        self._waiting: list[bytes] = []
        self._size = 0

    def write(self, jobs: Iterable[Job], parallel: Any = None) -> None:
        """Encode arrays in chunks of other lengths, in order.

        Parameters
        ----------
        jobs : iterable of Job
            After each that is the last of its rows, what is in memory is stored if it is enough
            for an object.
        parallel : concurrent.futures.Executor or dask.distributed.Client, optional
            Whose workers read and encode; the chunks are stored by this process.

        Raises
        ------
        UnsupportedError
            A chunk does not decode to the values that it was encoded from.
        """
        blocks = (block for job in jobs for block in job.split())
        # Jobs of blocks that are under way; a worker needs nothing of these.
        owners: deque[tuple[Job, bool]] = deque()

        def take() -> Iterator[_Block]:
            for job, block, is_last in blocks:
                owners.append((job, is_last))
                yield block

        for parts in map_in_order(_encode_block, take(), parallel, name=lambda block: block.path):
            job, is_last = owners.popleft()
            for part in parts:
                self._add_part(job, part)
            if is_last and job.ends_rows and self.waiting >= SMALLEST_OBJECT:
                self.finish()

    def _add_part(self, job: Job, part: _Part) -> None:
        """Store the chunks of a part, as a shard if they are one."""
        if job.shards is not None and part.chunks and part.shape is not None:
            shard_shape = _shape_of(job.shards, part.cell)
            self._add_shard(job.batch, part.chunks, part.first, part.shape, shard_shape)
            return
        for chunk, data in part.chunks.items():
            job.batch.add(chunk, *self.add(data))

    def _add_shard(
        self, batch: Batch, chunks: dict[Cell, bytes], first: Cell, shape: Cell, shard_shape: Cell
    ) -> None:
        """Store chunks as a shard, with its index at the end, and refer to each of them."""
        codec = Sharding("sharding_indexed", {"chunk_shape": list(shape), "codecs": batch.pipeline})
        shard = codec.shard(shard_shape)
        numbers = {
            cell: int(np.ravel_multi_index(np.subtract(cell, first).tolist(), shard.counts))
            for cell in chunks
        }
        data = shard.join({number: chunks[cell] for cell, number in numbers.items()})
        index = shard.read_index(shard.slice_index(memoryview(data)), len(data))
        source, start, _ = self.add(data)
        for cell, number in numbers.items():
            batch.add(cell, source, start + int(index.offset[number]), int(index.length[number]))

    @property
    def waiting(self) -> int:
        """Bytes that are in memory still."""
        return self._size

    def finish(self) -> None:
        """Store what is still in memory."""
        if self._waiting:
            self.data.append(self._put(DATA, b"".join(self._waiting)))
            self._waiting, self._size = [], 0

    def add(self, data: bytes) -> tuple[int, int, int]:
        """Store a chunk: number of its object, offset and length in it."""
        if self._size >= LARGEST_OBJECT:
            self.finish()
        where = len(self.data), self._size, len(data)
        self._waiting.append(data)
        self._size += len(data)
        self.nbytes += len(data)
        return where

    def sources(self, others: Iterable[Source] = ()) -> Sources:
        """Return the objects as sources, after some others."""
        written = (Source(f"{self._folder}/{named.name}", size=named.size) for named in self.data)
        return Sources([*others, *written])

    def to_manifest(self, batch: Batch) -> Manifest:
        """Return the references of an array, once `finish` was called."""
        decoders: dict[str, Any] = {}
        if batch.pipeline is not batch.metadata.pipeline:
            decoders["decoders"] = (Decoder(batch.pipeline),)
            decoders["decoder"] = np.where(batch.source < 0, CANONICAL, 0).astype(np.int32)
        return Manifest(
            batch.source.shape, self.sources(), batch.source, batch.offset, batch.length, **decoders
        )


class Batch:
    """The references of one array."""

    def __init__(self, metadata: ArrayMetadata) -> None:
        self.metadata, self.pipeline = metadata, with_checksum(metadata.pipeline)
        shape = metadata.grid.grid_shape
        self.source = np.full(shape, -1, np.int32)
        self.offset, self.length = np.zeros(shape, np.int64), np.zeros(shape, np.int64)

    def add(self, cell: Cell, source: int, offset: int, length: int) -> None:
        """Refer to a chunk."""
        self.source[cell], self.offset[cell], self.length[cell] = source, offset, length


class Job:
    """An array that is to be encoded in chunks of other lengths.

    Parameters
    ----------
    source : Array
        What is encoded, read block by block.
    axes : sequence of Axis
        The new chunks.
    memory : int
        How many bytes a block of values may have, at least what the chunks need.
    shards : sequence of Axis, optional
        Chunks that are stored together, as a shard of Zarr v3 where they fill it.
    ends_rows : bool
        Whether other rows follow.

    Attributes
    ----------
    batch : Batch
        The references, once everything is written.
    """

    def __init__(
        self,
        source: Array,
        axes: Sequence[Axis],
        memory: int,
        shards: Sequence[Axis] | None = None,
        ends_rows: bool = False,
    ) -> None:
        self.source, self.axes, self.memory, self.shards = source, axes, memory, shards
        self.ends_rows = ends_rows
        self.batch = Batch(source.metadata.replace(grid=from_axes(axes)))

    def split(self) -> Iterator[tuple[Job, _Block, bool]]:
        """Yield blocks that fit in memory, each with the job, and whether it is the last one."""
        source, metadata = self.source, self.source.metadata
        written = from_axes(self.axes if self.shards is None else self.shards)
        itemsize = max(metadata.dtype.itemsize, 1)
        old = source.grid
        need = least_memory(old, written, itemsize)  # type: ignore[arg-type]
        blocks = plan_blocks(old, written, itemsize, max(self.memory, need))  # type: ignore[arg-type]
        bare = self.batch.metadata.with_attributes({})
        count = math.prod(blocks.grid.grid_shape)
        for number, cell in enumerate(np.ndindex(blocks.grid.grid_shape), start=1):
            box = _box_of(blocks.grid.axes, cell)
            cut = cut_box(source, [part.start for part in box], [part.stop for part in box])
            block = _Block(cut, bare, self.axes, written.axes, box)
            yield self, block, number == count


@dataclass(frozen=True)
class _Block:
    """Elements that are read together, and in which chunks and shards they are written."""

    source: Array
    metadata: ArrayMetadata
    axes: Sequence[Axis]
    written: Sequence[Axis]
    box: Box

    @property
    def path(self) -> str:
        return self.source.path


class _Part(NamedTuple):
    """The chunks of one chunk or shard that is written, and their shape if all have the same."""

    cell: Cell
    first: Cell
    chunks: dict[Cell, bytes]
    shape: Cell | None


def _encode_block(block: _Block) -> list[_Part]:
    """Read and encode a block, in whatever process this is."""
    pipeline, path = with_checksum(block.metadata.pipeline), block.path
    base = [each.start for each in block.box]
    values = np.asarray(block.source[block.box])
    values = values.reshape([part.stop - part.start for part in block.box])
    parts = []
    for cell in _list_cells(block.written, block.box):
        cells = [*_list_cells(block.axes, _box_of(block.written, cell))]
        chunks, shapes = {}, set()
        for chunk in cells:
            shape = _shape_of(block.axes, chunk)
            some = values[_box_of(block.axes, chunk, base)]
            data = encode_chunk(pipeline, block.metadata, some, shape, path)
            shapes.add(shape)
            if data is not None:
                chunks[chunk] = data
        parts.append(_Part(cell, cells[0], chunks, shapes.pop() if len(shapes) == 1 else None))
    return parts


def with_checksum(pipeline: Pipeline) -> Pipeline:
    """Return a pipeline with a checksum of what it encodes; those that have one as they are.

    The last codec of a shard is not followed by others: its sub-chunks could not be read alone.
    """
    codec = pipeline.codecs[-1]
    is_checked = codec.name in _CHECKED or codec.configuration.get("checksum")
    if is_checked or isinstance(codec, Checksum | Sharding):
        return pipeline
    return Pipeline([*pipeline.codecs, make("crc32c")])


def encode_chunk(
    pipeline: Pipeline,
    metadata: ArrayMetadata,
    values: NDArray[Any],
    shape: tuple[int, ...],
    path: str,
) -> bytes | None:
    """Return values as a chunk of a shape, None if they are all the fill value.

    Raises
    ------
    UnsupportedError
        The chunk does not decode to these values.
    """
    fill = default_fill(metadata.dtype) if metadata.fill_value is None else metadata.fill_value
    block = values
    if values.shape != shape:
        block = full_block(shape, fill, metadata.dtype)
        block[tuple(slice(n) for n in values.shape)] = values
    if metadata.fill_value is not None and is_filled(block, fill):
        return None
    codec = pipeline.for_block(shape, metadata.dtype, fill)
    data = codec.encode(block)
    if not _is_same(codec.decode(data), block):
        raise UnsupportedError(
            "its codecs do not give the values back that they are given, so that chunks cannot be "
            "written anew",
            variable=path,
        )
    return data


def _is_same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Tell whether values are the same to the bit."""
    if b.dtype.hasobject or b.dtype.kind == "T":
        return a.shape == b.shape and bool((a == b).all())
    native = a.astype(b.dtype, copy=False)
    return native.shape == b.shape and clear_padding(native).tobytes() == clear_padding(b).tobytes()


def _shape_of(axes: Sequence[Axis], cell: Cell) -> tuple[int, ...]:
    return tuple(axis.edge(n) for axis, n in zip(axes, cell, strict=True))


def _list_cells(axes: Sequence[Axis], box: Box) -> Iterator[Cell]:
    """Yield the cells of a box that begins and ends where cells do."""
    first = [axis.cell_of(part.start) for axis, part in zip(axes, box, strict=True)]
    last = [axis.cell_of(part.stop - 1) for axis, part in zip(axes, box, strict=True)]
    for steps in np.ndindex(*(b - a + 1 for a, b in zip(first, last, strict=True))):
        yield tuple(a + step for a, step in zip(first, steps, strict=True))


def _box_of(axes: Sequence[Axis], cell: Sequence[int], base: Sequence[int] | None = None) -> Box:
    """Return the elements of a cell, relative to others."""
    starts = [axis.start(int(n)) for axis, n in zip(axes, cell, strict=True)]
    lengths = [axis.length(int(n)) for axis, n in zip(axes, cell, strict=True)]
    offsets = base or [0] * len(starts)
    return tuple(
        slice(start - offset, start - offset + length)
        for start, length, offset in zip(starts, lengths, offsets, strict=True)
    )
