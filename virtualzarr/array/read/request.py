"""Read requests: chunks that are located, and the cheapest way to read each of them.

`plan_tasks` copies what is cached, and makes tasks of the rest: `PartialReads` of large
uncompressed blocks and `PartialShard` of shards, strided reads of many small blocks,
`CoalescedReads` of all others, prefetched where they are small files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import Projection, RegularGrid, SeparableGrid
from grids.projection import Part
from virtualzarr.array.chunk_source import LocatedChunks
from virtualzarr.array.read.cached_blocks import CachedBlocks, CacheLookup
from virtualzarr.array.read.output import (
    format_cell,
    is_all_slices,
    plan_touching,
    shift_selection,
)
from virtualzarr.array.read.partial_shards import plan_partial_shards
from virtualzarr.array.read.prefetch import plan_prefetch
from virtualzarr.array.read.streaming import run_streamed
from virtualzarr.array.read.strided import plan_strided_reads
from virtualzarr.array.read.tasks import CoalescedReads, fill_missing_chunk, plan_partial_reads
from virtualzarr.codecs import BlockCodec
from virtualzarr.codecs.core.pipeline import BatchDecoder
from virtualzarr.codecs.sharding import find_sharding
from virtualzarr.config import config
from virtualzarr.errors import (
    BadReferenceError,
    ChunkNotFoundError,
    CodecError,
    SourceError,
    SourceNotFoundError,
    VirtualZarrError,
    format_place,
)
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.nodes.vanished import confirm_missing
from virtualzarr.stores.coalesce import plan_reads
from virtualzarr.stores.files import Buffer
from virtualzarr.stores.invalidation import notify_change
from virtualzarr.stores.thread_pools import Task, group_by_bytes, run_shared, run_tasks

MANY_CHUNKS, TINY_CHUNK = 1024, 4096
"""From this many chunks below this size on, reading uncompressed local ones beats the cache."""

MAX_RETRIES = 100
"""How often shards are read that are replaced meanwhile."""


@dataclass
class ReadRequest:
    """Reads located chunks into the output; `i` is the number of a chunk in `located`."""

    metadata: ArrayMetadata
    located: LocatedChunks
    projection: Projection
    output: NDArray[Any]
    fill: Any
    variable: str
    fill_missing: bool
    cache_lookup: CacheLookup | None = None
    is_nested: bool = False
    read_nested: Callable[..., NDArray[Any]] | None = None  # reads what a part of a shard is
    cached: CachedBlocks | None = None
    replaced: dict[int, SourceError] = field(default_factory=dict)  # by number of the file
    missing: list[int] = field(default_factory=list)  # cells that were filled; one of local files
    # Not handed to requests anew: it goes with the last of `block_codecs`, which each has its own.
    batch_decoder: BatchDecoder | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        # The files of a store are all of one kind.
        files = self.located.file[: 1 if self.located.may_be_missing else None]
        if len(files) > 1:
            files = files[:1] if (files == files[0]).all() else np.unique(files)
        self.remote = any(self.located.open_file(row).remote for row in files.tolist())
        self.gap = config.remote_gap if self.remote else config.local_gap
        self.limit = config.remote_read if self.remote else config.local_read
        self.decoded_nbytes = 0
        self.block_codecs, self.codec_index = self._block_codecs()
        self._check_lengths()
        self._check_blocks()

    @property
    def is_io_bound(self) -> bool:
        """Whether opening files costs more than decoding what is in them."""
        small = config.tuning.small_chunk_bytes * len(self.located)
        return self.located.read_small is not None and self.decoded_nbytes < small

    def _block_codecs(self) -> tuple[list[tuple[BlockCodec, tuple[int, ...]]], NDArray[np.int64]]:
        """Return the distinct (codec, block shape) pairs, and which one each chunk needs.

        Their pipelines are kept as `pipelines`.
        """
        located, grid, fill = self.located, self.metadata.grid, self.metadata.fill_value
        # By far the commonest: one codec for all, found without looking at a single chunk.
        if located.decoder is None and isinstance(grid, RegularGrid):
            self.pipelines = [self.metadata.pipeline]
            codec = self.pipelines[0].for_block(grid.chunk_shape, self.metadata.dtype, fill)
            return [(codec, grid.chunk_shape)], np.zeros(len(located), np.int64)
        rows = repeat(-1) if located.decoder is None else located.decoder.tolist()
        numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        # With None at the end, where row -1, the array's own pipeline, finds it.
        stored = [decoder.shape for decoder in located.decoders] + [None]
        codec_index: Any
        if located.decoder is not None and isinstance(grid, RegularGrid):
            distinct, codec_index = np.unique(located.decoder, return_inverse=True)
            for row in distinct.tolist():
                numbers[row, stored[row] or grid.chunk_shape] = len(numbers)
        else:
            # Grids with listed edges have few distinct block shapes: a codec is bound to each once.
            blocks = self.projection.block_shapes(located.cell)
            codec_index = [numbers.setdefault((row, stored[row] or block), len(numbers))
                           for row, block in zip(rows, blocks, strict=False)]  # fmt: skip
        self.pipelines = [
            self.metadata.pipeline if row < 0 else located.decoders[row].pipeline
            for row, _ in numbers
        ]
        pairs = zip(self.pipelines, numbers, strict=True)
        codecs = [(pipeline.for_block(block, self.metadata.dtype, fill), block)
                  for pipeline, (_, block) in pairs]  # fmt: skip
        return codecs, np.array(codec_index, dtype=np.int64)

    def _check_lengths(self) -> None:
        """Refuse absurd lengths before memory is taken for them."""
        self.max_lengths = [_max_encoded_length(codec) for codec, _ in self.block_codecs]
        limits: Any = self.max_lengths[0]
        if len(self.max_lengths) > 1:
            limits = np.array(self.max_lengths, dtype=np.int64)[self.codec_index]
        absurd = self.located.length > limits
        if absurd.any():
            i = int(absurd.argmax())
            raise CodecError(
                f"the reference claims {self.located.length[i]} bytes for a block of "
                f"{self.block_codecs[self.codec_index[i]][0].nbytes}"
            ).at(**self.chunk_context(i))

    def _check_blocks(self) -> None:
        """Refuse cells that reach out of their blocks: numpy would repeat what there is."""
        located, grid = self.located, self.metadata.grid
        if located.decoder is None and located.origin is None:
            return
        if not len(located) or not isinstance(grid, SeparableGrid):
            return
        # Slices past a block's end are cut short by numpy, and a result of length 1 broadcasts: it
        # would fill the rest of the cell with repeats instead of failing.
        blocks = np.array([block for _, block in self.block_codecs], np.int64)[self.codec_index]
        ends = grid.cell_extents(self.projection.cells(located.cell))
        wrong = (ends > blocks).any(axis=1)
        if located.origin is not None:
            wrong = (ends + located.origin > blocks).any(axis=1) | (located.origin < 0).any(axis=1)
        if wrong.any():
            i = int(np.argmax(wrong))
            raise BadReferenceError(
                f"the cell reaches out of its block of shape {tuple(blocks[i].tolist())}"
            ).at(**self.chunk_context(i))

    def add_context(self, i: int, error: Exception) -> None:
        """Add file, variable and chunk to an error."""
        if isinstance(error, VirtualZarrError):
            error.at(**self.chunk_context(i))
        else:
            error.add_note(f"while reading {format_place(**self.chunk_context(i))}")

    def chunk_context(self, i: int) -> dict[str, str]:
        """Return file, variable and chunk of a chunk, for errors."""
        cell = self.projection.cells(self.located.cell[i : i + 1])[0]
        uri = self.located.open_file(int(self.located.file[i])).uri
        return {"file": uri, "variable": self.variable, "chunk": format_cell(cell)}

    def run(self, *, is_new: bool = False) -> None:
        """Read all chunks, those of files that are replaced meanwhile again.

        Parameters
        ----------
        is_new : bool
            Whether the output is new memory, of which all will be written.
        """
        request = self
        for _ in range(MAX_RETRIES):
            if len(request.located):
                tasks = request.plan_tasks()
                if request.is_nested:
                    run_shared(tasks, request.remote)
                    tasks = []
                large = request.decoded_nbytes > config.batch_bytes
                if request.remote:
                    is_new = is_new and request is self and request.cached is None
                    preparations = plan_touching(request.output) if is_new else []
                    tasks = run_streamed(tasks, preparations)
                run_tasks(tasks, request.remote, large, io_bound=request.is_io_bound)
            if not request.replaced:
                return
            row, error = next(iter(request.replaced.items()))
            request = request._locate_replaced()
        raise error.at(file=self.located.open_file(row).uri, variable=self.variable)

    def plan_tasks(self) -> list[Task]:
        """Copy cached chunks into the output, and return tasks that read all others.

        The cheapest way comes first, and each takes the chunks that it fits out of `remaining`.
        """
        tasks: list[Task] = []
        if self.cache_lookup is None or self._is_faster_uncached() or self._must_find_subchunks():
            remaining = np.arange(len(self.located))
        else:
            remaining = self._copy_cached(self.cache_lookup)
        if not len(remaining):
            return tasks
        codecs = [codec for codec, _ in self.block_codecs]
        large = [
            codec.strided and codec.strided.nbytes > config.partial_read_bytes for codec in codecs
        ]
        if any(large):
            # Where the length is not known, only reading all of it tells whether it is right.
            split = np.array(large, bool)[self.codec_index] & (self.located.length >= 0)
            if self.cached is not None:
                # A part of a block cannot be cached.
                split &= ~self.cached.is_cacheable()
            split = split[remaining]
            if self.located.origin is not None:
                split &= ~np.isin(remaining, self._find_shared_blocks(remaining[split]))
            for i in remaining[split].tolist():
                tasks += plan_partial_reads(self, i)
            remaining = remaining[~split]
        assert self.read_nested is not None
        shards, remaining = plan_partial_shards(self, remaining, self.read_nested)
        tasks += shards
        if self.cached is None:
            # Only without a cache, since strided reads never form the single blocks it would hold.
            strided, remaining = plan_strided_reads(self, remaining)
            tasks += strided
        return [*tasks, *self._plan_coalesced_reads(remaining)] if len(remaining) else tasks

    def _plan_coalesced_reads(self, chunks: NDArray[np.int64]) -> list[Task]:
        """Return tasks that fetch coalesced byte ranges and decode the chunks in them."""
        located, codec_index = self.located, self.codec_index[chunks]
        ranges = located.file[chunks], located.offset[chunks], located.length[chunks]
        # Equal ranges with different codecs are different blocks: by their `kind`, they do not
        # count as one that several chunks share.
        plan = plan_reads(*ranges, gap=self.gap, limit=self.limit, kind=codec_index)
        shared = self._shares_block_with_next(chunks[plan.order]) if plan.repeats else None
        are_small_files = located.read_small is not None
        if self.cached is None and shared is None and (are_small_files or len(plan) < len(chunks)):
            self.batch_decoder = self._batch_decoder()
        if len(plan) == 1:
            return [CoalescedReads(self, plan, chunks, 0, 1, shared)]
        # Bounded, so that the sum of absurd sizes does not overflow.
        max_nbytes = [min(codec.max_nbytes, 2**40) for codec, _ in self.block_codecs]
        sizes = np.array(max_nbytes)[codec_index][plan.order]
        if shared is not None:
            # A block shared by several chunks is decoded once: only the last of them counts.
            sizes[shared] = 0
        self.decoded_nbytes += int(sizes.sum())
        batches = [
            CoalescedReads(self, plan, chunks, first, last, shared)
            for first, last in self.group_reads(np.append(0, np.cumsum(sizes))[plan.first])
        ]
        if not are_small_files or self.batch_decoder is None:
            return [*batches]
        files = [batch.iter_files for batch in batches]
        return plan_prefetch(self, files, self.batch_decoder.decode_last)

    def group_reads(self, bounds: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Group reads for one task each, given the bytes decoded before each read, and in all."""
        return group_by_bytes(bounds, alone=self.remote)

    def _is_faster_uncached(self) -> bool:
        """Whether there are many chunks that are read faster than they are looked up."""
        if self.remote or len(self.located) < MANY_CHUNKS:
            return False
        return all(
            codec.strided and codec.max_nbytes < TINY_CHUNK for codec, _ in self.block_codecs
        )

    def _must_find_subchunks(self) -> bool:
        """Whether there are shards in which missing sub-chunks are an error: blocks fill them."""
        return not self.fill_missing and any(map(find_sharding, self.pipelines))

    def _batch_decoder(self) -> BatchDecoder | None:
        """Return what decodes the last codec of many chunks at once, or None if nothing does.

        The last of `block_codecs` then decodes the other codecs.
        """
        codec, shape = self.block_codecs[0]
        if len(self.block_codecs) > 1 or self.located.decoder is not None:
            return None
        # Large files are decoded as they are read.
        is_large = codec.nbytes >= config.tuning.small_chunk_bytes
        if is_large and self.located.read_small is not None:
            return None
        decoder = self.metadata.pipeline.batch_decoder(shape, codec.dtype, self.fill)
        if decoder is not None:
            self.block_codecs.append((decoder.others, shape))
        return decoder

    def decode_in_batches(
        self, codec_index: Sequence[int], chunks: Sequence[Buffer]
    ) -> Iterator[tuple[int, Buffer]]:
        """Yield what is to be decoded of each chunk, and the number of the codec that does it."""
        if self.batch_decoder is None:
            return zip(codec_index, chunks, strict=True)
        steps = zip(codec_index, self.batch_decoder.decode(chunks), strict=True)
        return ((-1 if is_begun else codec, chunk) for codec, (is_begun, chunk) in steps)

    def _shares_block_with_next(self, chunks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell for each of some chunks whether the next is a part of the same stored block."""
        located = self.located
        columns = located.file, located.offset, located.length, self.codec_index
        shared = np.zeros(len(chunks), bool)
        shared[:-1] = np.logical_and.reduce([np.diff(column[chunks]) == 0 for column in columns])
        return shared

    def _find_shared_blocks(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of some chunks that share their block, of which they select at least half.

        Such a block is read once, and not piece by piece for each of them.
        """
        located = self.located
        # `lexsort` takes its last key first: by file, then offset, then codec.
        keys = self.codec_index[chunks], located.offset[chunks], located.file[chunks]
        chunks = chunks[np.lexsort(keys)]
        shared = self._shares_block_with_next(chunks)
        if not shared.any():
            return chunks[:0]
        # Sorted, chunks of one block follow one another: a new block begins where none is shared.
        block = np.cumsum(np.append(False, ~shared[:-1]))
        parts = self.projection.parts(located.cell[chunks])
        counts = (self.output[out_sel].size for _, out_sel, _ in parts)
        selected = np.bincount(block, np.fromiter(counts, float, len(chunks)))
        shapes = [math.prod(shape) for _, shape in self.block_codecs]
        sizes = np.array(shapes)[self.codec_index[chunks]]
        return chunks[(np.bincount(block)[block] > 1) & (2 * selected[block] >= sizes)]

    def _copy_cached(self, cache_lookup: CacheLookup) -> NDArray[np.int64]:
        """Copy chunks that are cached into the output, and return all others."""
        codecs = [codec for codec, _ in self.block_codecs]
        self.cached = cache_lookup(self.located, codecs, self.codec_index)
        blocks = self.cached.get_all()
        misses = [i for i, block in enumerate(blocks) if block is None]
        if len(misses) == len(blocks):
            return np.array(misses, np.int64)
        hits: Sequence[int] = range(len(blocks))
        cells = self.located.cell
        if misses:
            hits = [i for i, block in enumerate(blocks) if block is not None]
            cells = cells[hits]
        parts = self.projection.parts(cells)
        for i, (chunk_sel, out_sel, _) in zip(hits, parts, strict=True):
            if self.located.origin is not None:
                chunk_sel = shift_selection(chunk_sel, self.located.origin[i])
            self.output[out_sel] = blocks[i][chunk_sel]  # type: ignore[index]
        return np.array(misses, np.int64)

    def decode_shared_block(self, i: int, codec_index: int, data: Buffer) -> NDArray[Any] | None:
        """Return the block that several chunks share; None if each decodes its part as cheaply."""
        codec = self.block_codecs[codec_index][0]
        block = None if self.cached is None else self.cached.decode(i, codec, data)
        return codec.decode(data) if block is None and codec.raw is None else block

    def decode_into_output(
        self, i: int, codec_index: int, data: Buffer, part: Part, block: NDArray[Any] | None = None
    ) -> None:
        """Decode the selected part of a chunk into the output, or copy it from its `block`."""
        chunk_sel, out_sel, complete = part
        codec, shape = self.block_codecs[codec_index]
        if self.located.origin is not None:
            chunk_sel = shift_selection(chunk_sel, self.located.origin[i])
        if block is None and self.cached is not None:
            block = self.cached.decode(i, codec, data)
        if block is not None:
            self.output[out_sel] = block[chunk_sel]
            return
        # Index arrays give a copy of the output, into which decoding would be lost.
        if not is_all_slices(out_sel):
            self.output[out_sel] = codec.decode(data)[chunk_sel]
            return
        out = self.output[out_sel] if out_sel else self.output
        is_full = complete and out.shape == shape and is_all_slices(chunk_sel)
        codec.decode_into(data, out, None if is_full else chunk_sel)

    def read_file_into_output(self, i: int, part: Part, data: Buffer | None) -> None:
        """Decode a chunk that is a file of its own, fetched first if `data` is None."""
        codec_index = int(self.codec_index[i])
        try:
            if data is None:
                row = int(self.located.file[i])
                data = self.located.open_file(row).read(0, None, self.max_lengths[codec_index])
            self.decode_into_output(i, codec_index, data, part)
        except SourceNotFoundError as error:
            fill = partial(self.output.__setitem__, (*part[1], ...), self.fill)
            fill_missing_chunk(self, i, error, fill)
        except Exception as error:
            self.add_context(i, error)
            raise

    def confirm_missing(self) -> None:
        """Check that chunks that are missing are not there, and read those that are."""
        rows = np.flatnonzero(np.isin(self.located.cell, self.missing)).tolist()
        check, recheck = self.located.check_missing, self.located.recheck
        confirm_missing(check, recheck, rows, self._read_again)

    def _read_again(self, rows: Sequence[int]) -> bool:
        located = self.located.to_ask_again(np.array(rows))
        fresh = replace(self, located=located, missing=[], replaced={}, cached=None)
        fresh.run()
        return bool(fresh.missing)

    def note_replaced(self, i: int, error: SourceError) -> None:
        """Note that the file of a chunk was replaced, or deleted, after it had been located.

        Raises the error where chunks cannot be located again.
        """
        if self.located.relocate is None:
            raise error.at(**self.chunk_context(i))
        row = int(self.located.file[i])
        self.replaced[row] = error
        # What is kept of the old one is not to be used for others that read it by a laxer bound.
        notify_change(self.located.open_file(row).uri)

    def _locate_replaced(self) -> ReadRequest:
        """Return a request for all chunks of files that were replaced, located anew.

        Chunks that were read before the file was replaced are among them, and those that the old
        one lacks: all of one file are of one version.
        """
        located = self.located
        assert located.relocate is not None
        cells, anew = located.relocate(located.cell[np.isin(located.file, [*self.replaced])])
        # A fresh request, since lengths, codecs and files of the old one describe the replaced
        # file.
        fresh = replace(self, located=anew, replaced={}, cached=None)
        gone = np.setdiff1d(cells, anew.cell)
        if len(gone) and not self.fill_missing:
            raise ChunkNotFoundError("the chunk is missing").at(
                variable=self.variable, chunk=format_cell(self.projection.cells(gone[:1])[0])
            )
        for _, out_sel, _ in self.projection.parts(gone):
            self.output[(*out_sel, ...)] = self.fill
        return fresh


def _max_encoded_length(codec: BlockCodec) -> int:
    """Return how many bytes an encoded block may have, generously."""
    # Incompressible data grow by little: beyond this, the reference is wrong.
    return 2**62 if codec.dtype.hasobject else min(8 * codec.max_nbytes + 2**24, 2**62)
