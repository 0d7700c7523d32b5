"""Transfer of an array's chunks to its copy: as stored bytes, or decoded and encoded again."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import ChunkGrid, SeparableGrid
from virtualzarr.array import Array
from virtualzarr.array.chunk_source import ListedChunks, LocatedChunks, ManifestChunks, StoreChunks
from virtualzarr.array.read.shards import ShardedChunks
from virtualzarr.codecs.sharding import find_sharding
from virtualzarr.errors import CodecError, SourceNotFoundError, UnsupportedError, error_context
from virtualzarr.rechunk.blocks import Blocks, Box, least_memory, plan_blocks, split_box
from virtualzarr.rechunk.claim import Claim
from virtualzarr.rechunk.node_plan import ArrayPlan, check_encodes
from virtualzarr.rechunk.stored_boxes import (
    Boxes,
    are_canonical,
    cells_with_data,
    group_into_boxes,
    has_one_pipeline,
    list_stored_cells,
    locate_cells,
)
from virtualzarr.stores.renewals import ask_again
from virtualzarr.stores.store import is_remote
from virtualzarr.stores.thread_pools import Task, run_shared, run_tasks

Int64 = NDArray[np.int64]

DEFAULT_MEMORY = 256 * 1024 * 1024
"""How much memory a copy takes where nothing is said."""

OBJECT_BYTES = 100
"""What an element of any length is taken to need in memory."""

SINGLE_THREAD_BYTES = 16 * 1024
"""Local chunks smaller than this are copied by one thread: others would wait for each other."""

MAX_BATCH = 1 << 14
"""So many chunks are prepared at a time."""

PROGRESS_STEP = 64 * 1024 * 1024
"""So many bytes are copied from one sign of progress to the next."""

Progress = Callable[[int], Any]


@dataclass
class TransferCounts:
    """What was done so far.

    Attributes
    ----------
    copied : int
        Chunks or shards that were copied as they are stored.
    repacked : int
        Chunks that went into or out of shards as they are stored.
    nbytes_copied : int
        Bytes of all these.
    nbytes_decoded : int
        Bytes of elements of everything else.
    """

    copied: int = 0
    repacked: int = 0
    nbytes_copied: int = 0
    nbytes_decoded: int = 0
    lock: Any = field(default_factory=threading.Lock, repr=False)

    def add(self, **numbers: int) -> None:
        """Count some more; by any thread."""
        with self.lock:
            for name, number in numbers.items():
                setattr(self, name, getattr(self, name) + number)


class ArrayTransfer:
    """The copying of one array, planned when it is made: what cannot be done is an error then.

    Parameters
    ----------
    source : Array
    target : Array
        In a store, without its documents.
    change : Change
    memory : int, optional
        Bytes that may be used; by default `DEFAULT_MEMORY`, or more where that is too little.
    write_empty_chunks : bool, optional

    Attributes
    ----------
    nbytes : int
        Bytes of elements that are to be copied.
    reads : float
        How often each chunk of the source is decoded, on average.

    Raises
    ------
    ValueError
        The memory does not suffice.
    """

    def __init__(
        self,
        source: Array,
        target: Array,
        change: ArrayPlan,
        memory: int | None,
        write_empty_chunks: bool | None,
    ) -> None:
        # Missing chunks are not touched, or else as good as those filled.
        # The plan holds for the metadata known now: were they read again, blocks could get other
        # shapes.
        policy = replace(source.cache_policy, metadata="never")
        self.source = source.replace(fill_missing=True, cache_policy=policy)
        self.target, self.change = target, change
        target.write_empty_chunks = bool(write_empty_chunks)
        self.remote = any(_is_remote(array) for array in (source, target))
        # A listing instead of a request for every cell: sparse arrays cost what they hold.
        stored = list_stored_cells(source)
        chunks, shape = source.chunk_source, source.grid.grid_shape
        if stored is not None and isinstance(chunks, StoreChunks) and math.prod(shape) < 2**62:
            self.source = self.source.replace(chunk_source=ListedChunks(chunks, shape, stored[0]))
        # Missing chunks have to be written with another value: then all cells are copied.
        if change.everything and not _is_complete(source, stored):
            stored = None
        decode = write_empty_chunks is False
        self.objects: tuple[Int64, Int64] | None = None
        self.boxes: Boxes | None = None
        self.blocks: Blocks | None = None
        self.repack = False
        self.nbytes, self.reads, self.best = 0, 1.0, 0
        self.cells: Int64 | None = None if stored is None else stored[0]
        self.memory = DEFAULT_MEMORY if memory is None else memory
        self.fixed = memory is not None
        self.claim: Claim | None = None
        self.document: bytes | None = None  # of the source, for workers
        # Of a part of the work: the boxes that it copies, and the stored chunks in each.
        self.chosen: list[tuple[Box, Int64 | None]] | None = None
        if not source.size:
            return
        if stored is not None and change.as_stored and not decode:
            stored = self._plan_objects(*stored)
        if stored is not None and not len(stored[0]):
            return
        if (
            stored is not None
            and change.inner_as_stored
            and not decode
            and has_one_pipeline(source)
        ):
            self._plan_shards(*stored)
        else:
            self._plan_blocks(stored)

    # -- plans -------------------------------------------------------------------------------

    def _plan_objects(self, cells: Int64, sizes: Int64) -> tuple[Int64, Int64]:
        """Take the chunks that are copied as they are stored; return the others."""
        # Chunks with decoders of their own would be read wrongly by the one declared pipeline.
        good = are_canonical(self.source, cells)
        self.objects = cells[good], sizes[good]
        self._reserve(int(sizes[good].max(initial=0)))
        self.nbytes += _element_bytes(self.source, cells[good])
        return cells[~good], sizes[~good]

    def _plan_shards(self, cells: Int64, sizes: Int64) -> None:
        """Plan to move the chunks within shards, or into them."""
        sharded = find_sharding(self.target.metadata.pipeline) is not None
        blocks = self.target.grid if sharded else self.source.grid
        assert isinstance(blocks, SeparableGrid)
        self.repack = True
        self.cells = cells
        self.boxes = group_into_boxes(self.source.grid, blocks, blocks, cells)
        volumes = (self.boxes.high - self.boxes.low).prod(axis=1) * self.itemsize
        self.sizes = np.add.reduceat(sizes[self.boxes.order], self.boxes.bounds[:-1])
        if not self.source.dtype.hasobject:
            # Of other shards only some chunks are needed; encoded they are hardly ever longer than
            # decoded.
            self.sizes = np.minimum(self.sizes, volumes)
        # Twice: the chunks, and the shard that they are put together into.
        self._reserve(2 * int(self.sizes.max(initial=0)))
        self.nbytes += int(volumes.sum())

    def _plan_blocks(self, stored: tuple[Int64, Int64] | None) -> None:
        """Plan to decode chunks and encode others."""
        grid, target = self.source._resolve_shards()[0].grid, self.target.grid
        for cut in (grid, target):
            if not isinstance(cut, SeparableGrid):
                raise UnsupportedError(f"cells of a {cut.name} grid are only copied as they are")
        assert isinstance(grid, SeparableGrid)
        assert isinstance(target, SeparableGrid)
        self._reserve(least_memory(grid, target, self.itemsize))
        check_encodes(self.target.metadata)
        self.blocks = plan_blocks(grid, target, self.itemsize, self.memory)
        self.reads, self.best = self.blocks.reads, self.blocks.best
        if stored is None:
            self.cells = None
            self.nbytes += self.source.size * self.itemsize
            return
        self.cells = stored[0]
        self.boxes = group_into_boxes(self.source.grid, self.blocks.grid, target, stored[0])
        self.nbytes += int((self.boxes.high - self.boxes.low).prod(axis=1).sum()) * self.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes that an element takes in memory."""
        dtype = self.source.dtype
        return OBJECT_BYTES if dtype.hasobject else dtype.itemsize

    def _reserve(self, least: int) -> None:
        """See to it that there is so much memory."""
        # A limit that was given is kept, by an error; the default grows to what one chunk takes.
        if least > self.memory:
            if self.fixed:
                raise ValueError(
                    f"memory: the chunks of /{self.source.path} cannot be copied with less than "
                    f"{least} bytes; {self.memory} are given"
                )
            self.memory = least

    # -- work --------------------------------------------------------------------------------

    def run(self, counts: TransferCounts, progress: Progress) -> None:
        """Copy everything; `progress` is told how many bytes of elements were copied."""
        if self.objects is not None:
            self._copy_objects(*self.objects, counts, progress)
        if self.repack:
            self._copy_shards(counts, progress)
        elif self.blocks is not None:
            self._copy_blocks(counts, progress)

    def _check_claim(self) -> None:
        if self.claim is not None and self.remote:
            self.claim.check()

    def _copy_objects(
        self, cells: Int64, sizes: Int64, counts: TransferCounts, progress: Progress
    ) -> None:
        """Copy chunks and shards as they are stored."""
        for first, last in split_batches(sizes, min(self.memory, PROGRESS_STEP)):
            located = locate_cells(self.source, cells[first:last])
            keys = _chunk_keys(self.target, cells[first:last])
            tasks = [partial(self._copy_object, located, i, keys[int(located.cell[i])], counts)
                     for i in range(len(located))]  # fmt: skip
            self._run(tasks, int(sizes[first:last].sum()))
            self._check_claim()
            progress(_element_bytes(self.source, cells[first:last]))

    def _copy_object(
        self, located: LocatedChunks, i: int, key: str, counts: TransferCounts
    ) -> None:
        data = self._read_stored(located, i)
        if data is not None:
            _target_store(self.target).set(key, data)
            counts.add(copied=1, nbytes_copied=len(data))

    def _read_stored(self, located: LocatedChunks, i: int) -> Any:
        """Return the bytes of a chunk, None where there is none any more."""
        offset, length = int(located.offset[i]), int(located.length[i])
        file = located.open_file(int(located.file[i]))

        def read() -> Any:
            check_missing = located.check_missing if located.recheck is None else located.recheck()
            try:
                return file.read(offset, None if length < 0 else offset + length)
            except SourceNotFoundError:
                if not located.may_be_missing or located.must_exist:
                    raise
                check_missing()
                return None

        with error_context(file=file.uri, variable=self.source.path):
            return ask_again(read)

    def _copy_shards(self, counts: TransferCounts, progress: Progress) -> None:
        """Copy chunks within shards as they are stored, into other shards or out of any."""
        assert self.boxes is not None
        for first, last in split_batches(2 * self.sizes, min(self.memory, PROGRESS_STEP)):
            boxes = [(tuple(low), tuple(high)) for low, high in
                     zip(self.boxes.low[first:last].tolist(),
                         self.boxes.high[first:last].tolist(), strict=True)]  # fmt: skip
            tasks = [partial(ask_again, partial(self._copy_shard, box, counts)) for box in boxes]
            self._run(tasks, int(self.sizes[first:last].sum()))
            self._check_claim()
            progress(sum(_box_size(box) for box in boxes) * self.itemsize)

    def _copy_shard(self, box: Box, counts: TransferCounts) -> None:
        metadata, chunks = self.source._resolve_shards()
        # On the grid of sub-chunks: only their bytes are fetched, by the index of the shard.
        projection = metadata.grid.project(_box_selection(box))
        located = chunks.locate(projection)
        if not len(located):
            return
        cells = projection.cells(located.cell)
        values: list[bytes | None] = [None] * len(located)

        def fetch(i: int) -> None:
            data = self._read_stored(located, i)
            values[i] = None if data is None else bytes(data)

        tasks: list[Task] = [partial(fetch, i) for i in range(len(located))]
        run_shared(tasks, remote=True) if self.remote else _run_in_turn(tasks)
        present = {i: data for i, data in enumerate(values) if data is not None}
        counts.add(repacked=len(present), nbytes_copied=sum(map(len, present.values())))
        store, codec = _target_store(self.target), find_sharding(self.target.metadata.pipeline)
        if codec is None:
            keys = _chunk_keys(self.target, cells)
            for i, data in present.items():
                store.set(keys[i], data)
        elif present:
            grid, chunk_source = self.target.grid, self.target.chunk_source
            assert isinstance(grid, SeparableGrid)
            touched = ShardedChunks(chunk_source, grid, codec).group_by_shard(cells)
            shard = codec.shard(tuple(grid.cell_shapes(touched.shards)[0].tolist()))
            parts = {int(touched.entry[i]): data for i, data in present.items()}
            # One shard, one write: a box is a whole shard of the target here.
            store.set(_chunk_keys(self.target, touched.shards)[0], shard.join(parts))

    def _copy_blocks(self, counts: TransferCounts, progress: Progress) -> None:
        """Decode chunks and encode others, block by block."""
        assert self.blocks is not None
        buffer = np.empty(0, self.source.dtype)
        for box, rows in self.iter_boxes():
            low, high = box
            shape = tuple(b - a for a, b in zip(low, high, strict=True))
            if self.source.dtype.hasobject or math.prod(shape) > buffer.size:
                buffer = np.empty(math.prod(shape), self.source.dtype)
            # The same memory again and again: fresh pages cost more than most codecs.
            block = buffer[: math.prod(shape)].reshape(shape)
            if self._read(box, block):
                self._check_claim()
                self._write(box, block, rows)
            counts.add(nbytes_decoded=block.size * self.itemsize)
            progress(block.size * self.itemsize)

    def iter_boxes(self) -> Iterator[tuple[Box, Int64 | None]]:
        """Yield the parts to copy, and the stored chunks in each, where those are known."""
        assert self.blocks is not None
        if self.chosen is not None:
            yield from self.chosen
            return
        if self.boxes is None:
            grid = self.blocks.grid
            for cell in product(*map(range, grid.grid_shape)):
                origin, extent = grid.cell_origin(cell), grid.cell_extent(cell)
                yield (origin, tuple(a + n for a, n in zip(origin, extent, strict=True))), None
            return
        assert self.cells is not None
        for i in range(len(self.boxes)):
            rows = self.boxes.order[self.boxes.bounds[i] : self.boxes.bounds[i + 1]]
            corners = self.boxes.low[i].tolist(), self.boxes.high[i].tolist()
            yield (tuple(corners[0]), tuple(corners[1])), self.cells[rows]

    def _read(self, box: Box, block: NDArray[Any]) -> bool:
        """Read a part of the source; return whether there is anything in it."""
        assert self.blocks is not None
        metadata, chunks = self.source._resolve_shards()
        assert isinstance(metadata.grid, SeparableGrid)
        sharded = metadata is not self.source.metadata and not self.change.everything
        if sharded and not len(chunks.locate(metadata.grid.project(_box_selection(box)))):
            return False  # of a shard there may be only some chunks
        for part in split_box(metadata.grid, box, self.blocks.at_once):
            self.source.read(_box_selection(part), out=_view_box(block, part, box))
        return True

    def _write(self, box: Box, block: NDArray[Any], cells: Int64 | None) -> None:
        """Write a block; chunks that hold nothing but missing ones stay missing."""
        assert self.blocks is not None
        target = self.target
        assert isinstance(target.grid, SeparableGrid)
        parts: Iterator[Box] = split_box(target.grid, box, self.blocks.at_once)
        # Chunks of nothing but the fill value are left out when they are written; without a fill
        # value they must be known to be missing in the source.
        elides = target.metadata.fill_value is not None and not target.write_empty_chunks
        if cells is not None and not elides:
            has_data = cells_with_data(self.source.grid, target.grid, box, cells)
            if not has_data.all():
                every = split_box(target.grid, box, 1)
                parts = (part for part, yes in zip(every, has_data.flat, strict=True) if yes)
        for part in parts:
            data = _view_box(block, part, box)
            target[_box_selection(part)] = data
            # Codecs that were kept may be lossy or broken: a copy that differs is an error. Codecs
            # that were asked for may lose something: that is their purpose.
            if self.change.check and not _is_identical(target.read(_box_selection(part)), data):
                raise CodecError(
                    "the codecs do not give back what they are given, so that the copy would "
                    "differ; give other codecs",
                    variable=self.source.path,
                    chunk=_chunk_name(target.grid, part),
                )

    def _run(self, works: Sequence[Task], nbytes: int) -> None:
        """Run pieces of work that are about so many bytes in all."""
        size = max(1, -(-len(works) * (1 << 20) // max(nbytes, 1)))
        # About 1 MiB for each task: threads that take tiny tasks mostly wait for the lock of the
        # queue.
        step = 1 if self.remote else min(size, len(works))
        tasks: list[Task] = [partial(_run_in_turn, works[i : i + step])
                             for i in range(0, len(works), max(1, step))]  # fmt: skip
        run_tasks(
            tasks, self.remote, nbytes > 1 << 20 and nbytes >= SINGLE_THREAD_BYTES * len(works)
        )


def _chunk_keys(array: Array, cells: Int64) -> list[str]:
    assert isinstance(array.chunk_source, StoreChunks)
    return array.chunk_source.keys(cells)


def _target_store(array: Array) -> Any:
    assert isinstance(array.chunk_source, StoreChunks)
    return array.chunk_source.store


def _is_remote(array: Array) -> bool:
    source = array.chunk_source
    if isinstance(source, ManifestChunks):
        return any("://" in row.uri for row in source.manifest.sources[:1])
    return is_remote(getattr(source, "store", None))


def _is_complete(array: Array, stored: tuple[Int64, Int64] | None) -> bool:
    """Tell whether nothing is missing of an array, of which these chunks are stored."""
    if stored is None or len(stored[0]) < math.prod(array.grid.grid_shape):
        return False
    return not array.metadata.pipeline.serializer.needs_fill  # of a shard chunks may be missing


def _element_bytes(array: Array, cells: Int64) -> int:
    """Return the bytes of the elements in some cells."""
    itemsize = OBJECT_BYTES if array.dtype.hasobject else array.dtype.itemsize
    grid = array.grid
    if not isinstance(grid, SeparableGrid):
        return sum(math.prod(grid.cell_extent(cell)) for cell in cells.tolist()) * itemsize
    return int(grid.cell_extents(cells).prod(axis=1, dtype=np.int64).sum()) * itemsize


def split_batches(sizes: Int64, limit: int) -> Iterator[tuple[int, int]]:
    """Cut a list into parts of at most so many bytes and chunks; any has one at least."""
    before = np.cumsum(sizes) - sizes
    cuts, first = [0], 0
    while first < len(sizes):
        # By sums of sizes: no loop over chunks, only over batches.
        end = int(np.searchsorted(before + sizes, before[first] + limit, side="right"))
        first = max(first + 1, min(end, first + MAX_BATCH))
        cuts.append(first)
    yield from pairwise(cuts)


def _box_selection(box: Box) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in zip(*box, strict=True))


def _view_box(block: NDArray[Any], part: Box, box: Box) -> NDArray[Any]:
    """Return a part of an array out of the block that has a box of it."""
    inside = [slice(a - c, b - c) for a, b, c in zip(*part, box[0], strict=True)]
    selection: Any = (*inside, ...)  # of a block without axes, too, a view
    return block[selection]


def _box_size(box: Box) -> int:
    return math.prod(b - a for a, b in zip(*box, strict=True))


def _chunk_name(grid: ChunkGrid, box: Box) -> str:
    assert isinstance(grid, SeparableGrid)
    return ".".join(str(axis.cell_of(i)) for axis, i in zip(grid.axes, box[0], strict=True)) or "0"


def _run_in_turn(tasks: Sequence[Task]) -> None:
    for task in tasks:
        task()


def _is_identical(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Tell whether two arrays are the same, to the bit but for the bytes between fields."""
    if a.dtype.hasobject:
        return bool(a.tolist() == b.tolist())
    if a.dtype.names is not None:
        return all(_is_identical(a[name], b[name]) for name in a.dtype.names)
    return bool(a.tobytes() == b.tobytes())
