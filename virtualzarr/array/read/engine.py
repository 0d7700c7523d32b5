"""The one read path: locate chunks, merge byte ranges, fetch, decode straight into the output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, pairwise, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import PointProjection, Projection, RegularGrid, SeparableGrid
from grids.projection import Part
from virtualzarr.array.chunk_source import ChunkSource, LocatedChunks
from virtualzarr.array.read.cached_blocks import CachedBlocks, CacheLookup
from virtualzarr.array.read.output import allocate, check_out, resolve_fill
from virtualzarr.array.read.partial import PartialRead, UncompressedBlock, plan_box, plan_points
from virtualzarr.array.read.prefetch import BatchDecode, plan_prefetch
from virtualzarr.array.read.strided import plan_strided_reads
from virtualzarr.array.read.tasks import CoalescedReads, PartialReads, fill_missing_chunk
from virtualzarr.array.thread_pools import Task, run_tasks
from virtualzarr.codecs import BlockCodec
from virtualzarr.config import config
from virtualzarr.errors import (
    BadReferenceError,
    ChunkNotFoundError,
    CodecError,
    OutOfMemoryError,
    SourceChangedError,
    SourceNotFoundError,
    VirtualZarrError,
)
from virtualzarr.limits import check_count
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.stores.coalesce import plan_reads
from virtualzarr.stores.files import Buffer

SPLIT_BYTES = 128 * 1024
"""Uncompressed blocks larger than this are read in pieces, and only the bytes needed."""

BATCH_BYTES = 1024 * 1024
"""A thread is given about this many decoded bytes at once: small chunks one by one are not worth
the switching."""

SMALL_CHUNK = 16 * 1024
"""Of chunks that are smaller than this, and a file each, it is the files that cost."""

MANY_CHUNKS, TINY_CHUNK = 1024, 4096
"""So many local uncompressed chunks of fewer bytes are not kept in memory for the next request."""

MAX_RETRIES = 100
"""How often a shard is read again that is replaced faster than it can be read."""


def read(
    metadata: ArrayMetadata,
    chunks: ChunkSource,
    projection: Projection,
    *,
    variable: str = "",
    fill_missing: bool = True,
    out: NDArray[Any] | None = None,
    keep: CacheLookup | None = None,
) -> NDArray[Any]:
    """Read what a projection selects.

    Parameters
    ----------
    out : array, optional
        Where to put it, and what is returned: chunks are decoded right into it, except for points
        spread over several axes of an array that is not contiguous.
    keep : Keep, optional
        Finds the decoded chunks that are in memory already, and keeps those that are not.

    Raises
    ------
    ValueError
        `out` has another shape or dtype, or cannot be written to.
    ChunkNotFoundError
        If a chunk is missing and `fill_missing` is false.
    SourceError, CodecError
        If bytes cannot be read or do not decode; the error names file, variable and chunk.
    UnsupportedError
        If these are more chunks than `config.limits.chunks_read`.
    """
    if out is not None:
        check_out(out, projection.shape, metadata.dtype)
    # Before the chunks are looked for, of which there may be as many.
    work = allocate(projection, metadata.dtype, variable) if out is None else None
    check_count("chunks_read", len(projection), "chunks of one read", variable or "/")
    try:
        located = chunks.locate(projection)
    except VirtualZarrError as error:
        error.at(variable=variable)
        raise
    except MemoryError as error:
        problem = f"there is no memory to look for the {len(projection)} chunks that are selected"
        raise OutOfMemoryError(problem, variable=variable) from error
    if not fill_missing and len(located) < len(projection):
        lost = np.setdiff1d(np.arange(len(projection)), located.cell)[:1]
        raise ChunkNotFoundError(
            "the chunk is missing", variable=variable, chunk=_format_cell(projection.cells(lost)[0])
        )
    fill = resolve_fill(metadata)
    if work is None:
        work = projection.spread(np.asarray(out))
    if len(located) < len(projection):
        np.copyto(work, fill, casting="unsafe")
    if len(located):
        request = ReadRequest(
            metadata, located, projection, work, fill, variable, fill_missing, keep
        )
        tasks = request.tasks()
        run_tasks(tasks, request.remote, request.cost > BATCH_BYTES, brief=request.brief)
    if out is None:
        return projection.finish(work)
    if not np.may_share_memory(work, out):
        out[...] = projection.finish(work)
    return out


@dataclass
class ReadRequest:
    """One read under way."""

    metadata: ArrayMetadata
    located: LocatedChunks
    projection: Projection
    work: NDArray[Any]
    fill: Any
    variable: str
    fill_missing: bool
    keep: CacheLookup | None = None
    tries: int = MAX_RETRIES
    kept: CachedBlocks | None = None

    def __post_init__(self) -> None:
        # The files of a store are all of one kind.
        files = self.located.file[: 1 if self.located.may_be_missing else None]
        if len(files) > 1:
            files = files[:1] if (files == files[0]).all() else np.unique(files)
        self.remote = any(self.located.open_file(row).remote for row in files.tolist())
        self.gap = config.remote_gap if self.remote else config.local_gap
        self.limit = config.remote_read if self.remote else config.local_read
        self.cost = 0
        self.codecs, self.kind = self._block_codecs()
        self._check_lengths()
        self._check_blocks()

    @property
    def brief(self) -> bool:
        """Whether less is decoded than files are opened for that."""
        return self.located.read_small is not None and self.cost < SMALL_CHUNK * len(self.located)

    def _block_codecs(self) -> tuple[list[tuple[BlockCodec, tuple[int, ...]]], NDArray[np.int64]]:
        """Return the distinct (codec, block shape) pairs, and which one each chunk needs."""
        located, grid, fill = self.located, self.metadata.grid, self.metadata.fill_value
        if located.decoder is None and isinstance(grid, RegularGrid):
            codec = self.metadata.pipeline.for_block(grid.chunk_shape, self.metadata.dtype, fill)
            return [(codec, grid.chunk_shape)], np.zeros(len(located), np.int64)
        rows = repeat(-1) if located.decoder is None else located.decoder.tolist()
        numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        stored = [decoder.shape for decoder in located.decoders] + [None]
        kind: Any
        if located.decoder is not None and isinstance(grid, RegularGrid):
            distinct, kind = np.unique(located.decoder, return_inverse=True)
            for row in distinct.tolist():
                numbers[row, stored[row] or grid.chunk_shape] = len(numbers)
        else:
            blocks = self.projection.block_shapes(located.cell)
            kind = [numbers.setdefault((row, stored[row] or block), len(numbers))
                    for row, block in zip(rows, blocks, strict=False)]  # fmt: skip
        codecs = []
        for row, block in numbers:
            pipeline = self.metadata.pipeline if row < 0 else located.decoders[row].pipeline
            codecs.append((pipeline.for_block(block, self.metadata.dtype, fill), block))
        return codecs, np.array(kind, dtype=np.int64)

    def _check_lengths(self) -> None:
        """Refuse absurd lengths before memory is taken for them."""
        self.most = [_max_encoded_length(codec) for codec, _ in self.codecs]
        alone = len(self.most) == 1
        limits = self.most[0] if alone else np.array(self.most, dtype=np.int64)[self.kind]
        absurd = self.located.length > limits
        if absurd.any():
            i = int(absurd.argmax())
            raise CodecError(
                f"the reference claims {self.located.length[i]} bytes for a block of "
                f"{self.codecs[self.kind[i]][0].nbytes}"
            ).at(**self.whereabouts(i))

    def _check_blocks(self) -> None:
        """Refuse cells that reach out of their blocks: numpy would repeat what there is."""
        located, grid = self.located, self.metadata.grid
        if located.decoder is None and located.origin is None:
            return
        if not len(located) or not isinstance(grid, SeparableGrid):
            return
        blocks = np.array([block for _, block in self.codecs], np.int64)[self.kind]
        ends = grid.cell_extents(self.projection.cells(located.cell))
        wrong = (ends > blocks).any(axis=1)
        if located.origin is not None:
            wrong = (ends + located.origin > blocks).any(axis=1) | (located.origin < 0).any(axis=1)
        if wrong.any():
            i = int(np.argmax(wrong))
            raise BadReferenceError(
                f"the cell reaches out of its block of shape {tuple(blocks[i].tolist())}"
            ).at(**self.whereabouts(i))

    def explain(self, i: int, error: Exception) -> None:
        """Add to an error where it happened."""
        if isinstance(error, VirtualZarrError):
            error.at(**self.whereabouts(i))
        else:
            error.add_note("while reading {file}, variable {variable}, chunk {chunk}".format(
                **self.whereabouts(i)))  # fmt: skip

    def whereabouts(self, i: int) -> dict[str, str]:
        """Return file, variable and chunk of a chunk, for errors."""
        cell = self.projection.cells(self.located.cell[i : i + 1])[0]
        uri = self.located.open_file(int(self.located.file[i])).uri
        return {"file": uri, "variable": self.variable, "chunk": _format_cell(cell)}

    def tasks(self) -> list[Task]:
        """Cut the request into pieces of work that can run side by side."""
        tasks: list[Task] = []
        if self.keep is None or self._is_raw_and_tiny():
            rest = np.arange(len(self.located))
        else:
            rest = self._not_kept(self.keep)
        if not len(rest):
            return tasks
        large = [codec.strided and codec.strided.nbytes > SPLIT_BYTES for codec, _ in self.codecs]
        if any(large):
            # Where the length is not known, only reading all of it tells whether it is right.
            split = np.array(large, bool)[self.kind] & (self.located.length >= 0)
            if self.kept is not None:
                split &= ~self.kept.is_cacheable()
            split = split[rest]
            if self.located.origin is not None:
                split &= ~np.isin(rest, self._wanted_whole(rest[split]))
            for i in rest[split].tolist():
                tasks += self._raw_tasks(i)
            rest = rest[~split]
        if self.kept is None:
            together, rest = plan_strided_reads(self, rest)
            tasks += together
        if not len(rest):
            return tasks
        located = self.located
        plan = plan_reads(located.file[rest], located.offset[rest], located.length[rest],
                          gap=self.gap, limit=self.limit, kind=self.kind[rest])  # fmt: skip
        again = self._same_as_next(rest[plan.order]) if plan.repeats else None
        if len(plan) == 1:
            return [*tasks, CoalescedReads(self, plan, rest, 0, 1, again)]
        sizes = np.array([min(codec.max_nbytes, 2**40) for codec, _ in self.codecs])[
            self.kind[rest]
        ]
        sizes = sizes[plan.order]
        if again is not None:
            sizes[again] = 0
        self.cost += int(sizes.sum())
        batches = [
            CoalescedReads(self, plan, rest, first, last, again)
            for first, last in self.batches(np.append(0, np.cumsum(sizes))[plan.first])
        ]
        unpack = self._unpacking() if located.read_small is not None and self.kept is None else None
        if unpack is None:
            return [*tasks, *batches]
        return [*tasks, *plan_prefetch(self, [batch.files for batch in batches], unpack)]

    def batches(self, bounds: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Group reads for one task each, given what is decoded before each of them, and at last."""
        return _group_by_bytes(bounds, alone=self.remote)

    def _is_raw_and_tiny(self) -> bool:
        """Whether there are many chunks here that are read faster than they are looked up."""
        return (
            not self.remote
            and len(self.located) >= MANY_CHUNKS
            and all(codec.strided and codec.max_nbytes < TINY_CHUNK for codec, _ in self.codecs)
        )

    def _unpacking(self) -> BatchDecode | None:
        """Return what undoes the last codec of many chunks; `codecs` then ends with the others."""
        pipeline, (codec, shape) = self.metadata.pipeline, self.codecs[0]
        decode = getattr(pipeline.codecs[-1], "decode_many", None)
        several = len(self.codecs) > 1 or self.located.decoder is not None
        if decode is None or several or codec.nbytes >= SMALL_CHUNK:
            return None
        others = pipeline.without(-1).for_block(shape, codec.dtype, self.fill)
        if others.encoded_size is None:
            return None
        self.codecs.append((others, shape))
        return partial(decode, size=others.encoded_size)

    def _same_as_next(self, chunks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell for each of some chunks whether the next is a part of the same stored block."""
        located = self.located
        columns = located.file, located.offset, located.length, self.kind
        again = np.zeros(len(chunks), bool)
        again[:-1] = np.logical_and.reduce([np.diff(column[chunks]) == 0 for column in columns])
        return again

    def _wanted_whole(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of some chunks whose block serves several, which want most of it.

        Such a block is read once, and not piece by piece for each of them.
        """
        located = self.located
        keys = self.kind[chunks], located.offset[chunks], located.file[chunks]
        chunks = chunks[np.lexsort(keys)]
        again = self._same_as_next(chunks)
        if not again.any():
            return chunks[:0]
        block = np.cumsum(np.append(False, ~again[:-1]))
        parts = self.projection.parts(located.cell[chunks])
        counts = (self.work[out_sel].size for _, out_sel, _ in parts)
        wanted = np.bincount(block, np.fromiter(counts, float, len(chunks)))
        sizes = np.array([math.prod(shape) for _, shape in self.codecs])[self.kind[chunks]]
        return chunks[(np.bincount(block)[block] > 1) & (2 * wanted[block] >= sizes)]

    def _not_kept(self, keep: CacheLookup) -> NDArray[np.int64]:
        """Put chunks that are in memory where they belong, and return all others."""
        self.kept = keep(self.located, [codec for codec, _ in self.codecs], self.kind)
        blocks = self.kept.get_all()
        lost = [i for i, block in enumerate(blocks) if block is None]
        if len(lost) == len(blocks):
            return np.array(lost, np.int64)
        hits: Sequence[int] = range(len(blocks))
        cells = self.located.cell
        if lost:
            hits = [i for i, block in enumerate(blocks) if block is not None]
            cells = cells[hits]
        parts = self.projection.parts(cells)
        for i, (chunk_sel, out_sel, _) in zip(hits, parts, strict=True):
            if self.located.origin is not None:
                chunk_sel = _shift_selection(chunk_sel, self.located.origin[i])
            self.work[out_sel] = blocks[i][chunk_sel]  # type: ignore[index]
        return np.array(lost, np.int64)

    def decoded(self, i: int, kind: int, data: Buffer) -> NDArray[Any] | None:
        """Return the block of a chunk, which serves others, too; None if there is little to do."""
        codec = self.codecs[kind][0]
        block = None if self.kept is None else self.kept.decode(i, codec, data)
        return codec.decode(data) if block is None and codec.raw is None else block

    def place(
        self, i: int, kind: int, data: Buffer, part: Part, block: NDArray[Any] | None = None
    ) -> None:
        """Decode a chunk, unless that was done, and put what is wanted of it where it belongs."""
        chunk_sel, out_sel, complete = part
        codec, shape = self.codecs[kind]
        if self.located.origin is not None:
            chunk_sel = _shift_selection(chunk_sel, self.located.origin[i])
        if block is None and self.kept is not None:
            block = self.kept.decode(i, codec, data)
        if block is not None:
            self.work[out_sel] = block[chunk_sel]
            return
        if not _is_all_slices(out_sel):
            self.work[out_sel] = codec.decode(data)[chunk_sel]
            return
        out = self.work[out_sel] if out_sel else self.work
        whole = complete and out.shape == shape and _is_all_slices(chunk_sel)
        codec.decode_into(data, out, None if whole else chunk_sel)

    def place_file(self, i: int, part: Part, data: Buffer | None) -> None:
        """Do the same for a chunk that is a file, and read it if it has not been read."""
        kind = int(self.kind[i])
        try:
            if data is None:
                row = int(self.located.file[i])
                data = self.located.open_file(row).read(0, None, self.most[kind])
            self.place(i, kind, data, part)
        except SourceNotFoundError as error:
            fill = partial(self.work.__setitem__, (*part[1], ...), self.fill)
            fill_missing_chunk(self, i, error, fill)
        except Exception as error:
            self.explain(i, error)
            raise

    def read_again(self, chunks: NDArray[np.int64], error: SourceChangedError) -> None:
        """Read chunks whose file was replaced after they had been located."""
        located = self.located
        if located.relocate is None or self.tries <= 0:
            raise error.at(**self.whereabouts(int(chunks[0])))
        cells = located.cell[chunks]
        fresh = replace(self, located=located.relocate(cells), tries=self.tries - 1)
        gone = np.setdiff1d(cells, fresh.located.cell)
        if len(gone) and not self.fill_missing:
            raise ChunkNotFoundError("the chunk is missing").at(
                variable=self.variable, chunk=_format_cell(self.projection.cells(gone[:1])[0])
            )
        for _, out_sel, _ in self.projection.parts(gone):
            self.work[(*out_sel, ...)] = self.fill
        if len(fresh.located):
            for task in fresh.tasks():
                task()

    def _raw_tasks(self, i: int) -> list[Task]:
        """Cut the reading of one uncompressed block into pieces."""
        codec, shape = self.codecs[self.kind[i]]
        layout = codec.strided
        assert layout is not None
        length = int(self.located.length[i])
        if length != layout.nbytes:
            raise CodecError(f"the chunk has {length} bytes, the block needs {layout.nbytes}").at(
                **self.whereabouts(i)
            )
        chunk_sel, out_sel, _ = next(iter(self.projection.parts(self.located.cell[i : i + 1])))
        if self.located.origin is not None:
            chunk_sel = _shift_selection(chunk_sel, self.located.origin[i])
        # Index arrays give no view of the output: such pieces go through a block of their own.
        out = self.work[out_sel] if out_sel else self.work
        finish = None if _is_all_slices(out_sel) else partial(self.work.__setitem__, out_sel, out)
        block = UncompressedBlock(layout.shape, layout.dtype)
        if isinstance(self.projection, PointProjection):
            points = [np.arange(*s.indices(n)) if isinstance(s, slice) else s
                      for s, n in zip(chunk_sel, shape, strict=True)]  # fmt: skip
            points = [np.arange(s.start, s.stop) if isinstance(s, slice) else s
                      for s in layout.to_stored(points)]  # fmt: skip
            pieces = plan_points(block, points, self.gap, self.limit)
            return [PartialReads(self, i, pieces, layout, out, finish)]
        out, select = layout.arrange_output(out, chunk_sel), layout.to_stored(chunk_sel)
        if finish is not None or not _is_all_slices(chunk_sel):
            flat = [s if isinstance(s, slice) else np.asarray(s).reshape(-1) for s in select]
            pieces = plan_box(block, flat, self.gap, self.limit)
            return [PartialReads(self, i, pieces, layout, out, finish)]
        bounds = tuple((s.start, s.stop, s.step) for s in select)
        groups, cost = _plan_slices(block, bounds, self.gap, self.limit, self.remote)
        self.cost += cost
        if self.located.relocate is not None:
            # All of it from one version of the file.
            groups = [list(chain.from_iterable(groups))]
        return [PartialReads(self, i, pieces, layout, out, None) for pieces in groups]


@lru_cache(maxsize=256)
def _plan_slices(
    block: UncompressedBlock,
    bounds: tuple[tuple[int, int, int], ...],
    gap: int,
    limit: int,
    remote: bool,
) -> tuple[list[list[PartialRead]], int]:
    """Return the pieces of a selection by slices, in groups for one task each, and their bytes.

    Most chunks that a request touches are cut alike.
    """
    pieces = plan_box(block, [slice(*bound) for bound in bounds], gap, limit)
    sizes = np.array([piece.stop - piece.start for piece in pieces], dtype=np.int64)
    groups = _group_by_bytes(np.append(0, np.cumsum(sizes)), alone=remote)
    return [pieces[first:last] for first, last in groups], int(sizes.sum())


def _max_encoded_length(codec: BlockCodec) -> int:
    """Return how many bytes a chunk of a block may have: codecs add little where they fail."""
    return 2**62 if codec.dtype.hasobject else min(8 * codec.max_nbytes + 2**24, 2**62)


def _shift_selection(chunk_sel: Sequence[Any], origin: NDArray[np.int32]) -> tuple[Any, ...]:
    """Move a selection within a cell to where the cell lies in its decoded block."""
    return tuple(
        slice(s.start + o, s.stop + o, s.step) if isinstance(s, slice) else s + o
        for s, o in zip(chunk_sel, origin.tolist(), strict=True)
    )


def _is_all_slices(selection: tuple[Any, ...]) -> bool:
    """Tell whether a selection is all slices: then it gives a view, in order, without repeats."""
    for item in selection:  # noqa: SIM110 - it is faster, and run for each chunk
        if type(item) is not slice:
            return False
    return True


def _group_by_bytes(bounds: NDArray[np.int64], *, alone: bool) -> list[tuple[int, int]]:
    """Group consecutive reads so that each group decodes to about BATCH_BYTES.

    Parameters
    ----------
    bounds : int array
        Bytes that are decoded before each read, and those of all.
    """
    if alone:
        return [(i, i + 1) for i in range(len(bounds) - 1)]
    edges = np.flatnonzero(np.diff(bounds[:-1] // BATCH_BYTES, prepend=-1))
    return list(pairwise([*edges.tolist(), len(bounds) - 1]))


def _format_cell(cell: NDArray[np.int64]) -> str:
    return ".".join(str(index) for index in cell.tolist()) or "0"
