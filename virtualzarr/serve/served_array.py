"""Arrays of a face: which bytes each of their chunk keys is, found without reading any."""

from __future__ import annotations

import dataclasses
import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np

from grids import Axis, RegularGrid, SeparableGrid
from virtualzarr.array import Array
from virtualzarr.array.chunk_source import StoreChunks, open_source
from virtualzarr.codecs import Pipeline
from virtualzarr.codecs.checksums import Checksum
from virtualzarr.codecs.core.block import BlockCodec
from virtualzarr.errors import CodecError, PublishError, SourceChangedError
from virtualzarr.manifest import Manifest, Source
from virtualzarr.manifest.sources import Sources
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.references.canonical import make_canonical
from virtualzarr.references.materialize import encode_exactly, fill_block
from virtualzarr.references.virtual_store import manifest_of
from virtualzarr.serve.cells import MAX_ENCODED_CELL, find_overlapped, find_same_cell
from virtualzarr.serve.codecs import (
    compress_shuffled,
    encode_block,
    find_checksum,
    is_lossless,
    rewrap_head,
    shuffled_pipeline,
)
from virtualzarr.serve.source_reads import read_briefly, read_range
from virtualzarr.serve.tags import SourceTags, describe_encoding, digest, is_versioned, tag_cell
from virtualzarr.stores.files import ByteFile, is_url, take_fingerprint
from virtualzarr.stores.lru_cache import LRUCache
from virtualzarr.stores.scratch import ScratchBuffer
from virtualzarr.virtual.derived import split_chunks

PieceKind = Literal["passthrough", "rewrapped", "encoded", "fill"]

_OPEN_FILES = 1024

_decoded = ScratchBuffer(MAX_ENCODED_CELL)
"""Decoded cells, each until it is encoded."""

_FOUND = 4096
"""Cells of an array whose chunks stay found."""


@dataclass(frozen=True)
class Piece:
    """The bytes of one chunk, before any of them is read.

    Attributes
    ----------
    kind : str
    tag : str, optional
        Entity tag; None where only the bytes tell.
    cost : int
        Bytes of memory that `compute` takes.
    compute : callable
        Returns all bytes.
    nbytes : int, optional
        How many there are, where none is decoded.
    file : ByteFile, optional
        Where they lie, then, but for the head.
    offset : int
        In the file.
    head : bytes
        What comes before them.
    """

    kind: PieceKind
    tag: str | None
    cost: int
    compute: Callable[[], bytes]
    nbytes: int | None = None
    file: ByteFile | None = None
    offset: int = 0
    head: bytes = b""


@dataclass(frozen=True)
class Choice:
    """How an array is cut and encoded in a face; it does not change while the array grows.

    Attributes
    ----------
    lengths : tuple of int, optional
        Of the regular cells; None for those of the source.
    pipeline : Pipeline
    rewraps : bool
        Whether chunks of the source get the head of Blosc.
    """

    lengths: tuple[int, ...] | None
    pipeline: Pipeline
    rewraps: bool = False


class Stored:
    """References to the chunks of an array, ready to be handed out.

    Parameters
    ----------
    array : Array
    split : tuple of int, optional
        Lengths to which uncompressed blocks are cut.
    """

    def __init__(self, array: Array, split: tuple[int, ...] | None = None) -> None:
        chunks = array.chunk_source
        self.store_chunks = chunks if isinstance(chunks, StoreChunks) else None
        self.array = array
        try:
            references = manifest_of(array)
        except PublishError:
            # Where references cannot point, every chunk goes through the read engine.
            self.manifest: Manifest | None = None
            return
        manifest = _with_versions(references)
        # Read by the same references as are handed out: of the versions that tags are made of.
        if manifest is not references or not array.is_virtual:
            self.array = array.replace(chunk_source=manifest)
        if split is not None:
            self.array = split_chunks(self.array, split)
            manifest = self.array.manifest
        canonical = make_canonical(self.array.metadata, manifest)
        self.manifest = manifest
        self.canonical = canonical.manifest
        self.misread = canonical.misread
        self.tags = SourceTags(manifest)
        self._files: dict[int, ByteFile] = {}

    @property
    def axes(self) -> tuple[Axis, ...] | None:
        """The axes of the grid, where it cuts each on its own."""
        grid = self.array.grid
        return grid.axes if isinstance(grid, SeparableGrid) else None

    @cached_property
    def largest_block(self) -> int:
        """Elements of the longest chunk along each axis; 1 where axes are not cut on their own."""
        return math.prod(int(axis.runs()[0].max(initial=1)) for axis in self.axes or ())

    def is_misread(self, cell: tuple[int, ...]) -> bool:
        """Tell whether others would read a chunk wrong."""
        number = int(np.ravel_multi_index(cell, self.canonical.shape)) if cell else 0
        at = int(np.searchsorted(self.misread, number))
        return at < len(self.misread) and int(self.misread[at]) == number

    def is_as_declared(self, cell: tuple[int, ...]) -> bool:
        """Tell whether a chunk decodes by the array's codecs to exactly its cell."""
        manifest = self.manifest
        assert manifest is not None
        has_own = manifest.decoder is not None or manifest.origin is not None
        # Others misread all chunks of a codec that only this package has.
        return not has_own or not self.is_misread(cell)

    def locate(self, cell: tuple[int, ...]) -> tuple[ByteFile, int, int] | None:
        """Return file, offset and length of a chunk; None where there is none."""
        refs = self.canonical.take(tuple(np.array([i]) for i in cell))
        row = int(refs.source[0])
        if row < 0:
            return None
        source = self.canonical.sources[row]
        file = self._files.get(row)
        if file is None:
            if len(self._files) >= _OPEN_FILES:
                self._files.clear()
            file = self._files[row] = open_source(source)
        length = int(refs.length[0])
        return file, int(refs.offset[0]), source.find_size() if length < 0 else length

    def check_sources(self, spans: Sequence[tuple[int, int]]) -> None:
        """Raise `SourceChangedError` if local files of some cells are others than were opened.

        Those elsewhere are compared with every answer.
        """
        assert self.manifest is not None
        rows = np.unique(self.manifest.source[tuple(slice(*span) for span in spans)])
        for row in rows[rows >= 0].tolist():
            source = self.manifest.sources[row]
            if source.uri:  # else its bytes are in memory
                source.check_unchanged()


def _with_versions(manifest: Manifest) -> Manifest:
    """Return a manifest whose local sources have fingerprints, taken now where they have none."""
    rows = [_with_version(source) for source in manifest.sources]
    changed = any(new is not old for new, old in zip(rows, manifest.sources, strict=True))
    return manifest.replace(sources=Sources(rows)) if changed else manifest


def _with_version(source: Source) -> Source:
    if is_versioned(source) or is_url(source.uri):
        return source
    # One that is not there is an error when it is read, and of no concern to other chunks.
    if not os.path.exists(source.uri):
        return source
    taken = take_fingerprint(source.location)
    if source.size is not None and source.size != taken.size:
        return source
    return dataclasses.replace(source, size=taken.size, mtime_ns=taken.mtime_ns)


class ServedArray:
    """An array as a face has it.

    Parameters
    ----------
    array : Array
        As it was opened.
    metadata : ArrayMetadata
        As the face declares it.
    choice : Choice
    stored : callable
        Returns the references, which faces share.
    fills : bool
        Whether missing chunks are served as chunks of fill values.
    """

    def __init__(
        self,
        array: Array,
        metadata: ArrayMetadata,
        choice: Choice,
        stored: Callable[[], Stored],
        fills: bool,
    ) -> None:
        self.array, self.metadata, self.choice, self.fills = array, metadata, choice, fills
        self._make_stored = stored
        self._stored: Stored | None = None
        self._lock = threading.Lock()
        self._found: LRUCache[tuple[int, ...], Piece] = LRUCache(_FOUND)
        self._described: dict[str, bytes] = {}
        self._same_codecs: bool | None = None
        self._shuffled: dict[int, BlockCodec | None] = {}

    @property
    def is_ready(self) -> bool:
        """Whether references are in memory, so that `find` takes no time."""
        return self._stored is not None

    @property
    def may_look(self) -> bool:
        """Whether `find` may look into a store, for chunks that have come."""
        return self._stored is not None and self._stored.store_chunks is not None

    @property
    def undecodable(self) -> bytes:
        """A chunk that is no cell, whatever the codecs: of too few bytes, or of too many."""
        grid = self.metadata.grid
        is_one = math.prod(grid.cell_shape((0,) * grid.ndim)) * self.metadata.itemsize == 1
        return bytes(3 if is_one else 1)

    def prepare(self) -> Stored:
        """Load the references; the first time this takes a while."""
        with self._lock:
            if self._stored is None:
                self._stored = self._make_stored()
            return self._stored

    def recall(self, cell: tuple[int, ...]) -> Piece | None:
        """Return the chunk of a cell that was found before, or None."""
        piece: Piece | None = self._found.get(cell)
        return piece

    def find(self, cell: tuple[int, ...]) -> Piece | None:
        """Return the chunk of a cell, or None where there is none."""
        piece = self._find(cell)
        # References do not change; that nothing is stored is looked at each time.
        if piece is not None and piece.kind != "fill":
            self._found.put(cell, piece)
        return piece

    def _find(self, cell: tuple[int, ...]) -> Piece | None:
        grid = self.metadata.grid
        if len(cell) != grid.ndim or any(
            i >= n for i, n in zip(cell, grid.grid_shape, strict=True)
        ):
            return None
        stored = self._stored or self.prepare()
        axes = stored.axes
        if stored.manifest is None or axes is None:
            return self._encode(stored, cell, None, ())
        lengths = grid.cell_shape(cell)
        spans = find_overlapped_of(axes, grid, cell)
        same = cell if self.choice.lengths is None else find_same_cell(axes, lengths, cell)
        passing = None if same is None else self._find_passing(stored, same, cell, spans)
        if passing is not None:
            return passing
        if not _has_any(stored.manifest, spans):
            return self._find_missing(stored, spans)
        return self._encode(stored, cell, self._tag(stored, cell, spans, "encoded"), spans, same)

    def _find_passing(
        self,
        stored: Stored,
        same: tuple[int, ...],
        cell: tuple[int, ...],
        spans: Sequence[tuple[int, int]],
    ) -> Piece | None:
        """Return a chunk that passes as it is, or with another head."""
        passes = self._passes(stored)
        if not (passes or self.choice.rewraps) or stored.is_misread(same):
            return None
        span = stored.locate(same)
        if span is None:
            return None
        file, offset, length = span
        kind: PieceKind = "passthrough" if passes else "rewrapped"
        head = b"" if passes else self._rewrap_head(stored, length)
        if not (passes or head):
            return None
        tag = self._tag(stored, cell, spans, kind)
        checksum = None if passes else find_checksum(stored.array.metadata.pipeline)
        if checksum is not None:
            read = partial(self._read_checked, stored, cell, span, head, checksum)
            return Piece(kind, tag, 2 * length, read)
        # By range, and not in memory as a whole: a stored chunk may be of any size.
        return Piece(
            kind,
            tag,
            min(length, 1 << 20),
            lambda: head + read_range(file, offset, offset + length),
            len(head) + length,
            file,
            offset,
            head,
        )

    def _read_checked(
        self,
        stored: Stored,
        cell: tuple[int, ...],
        found: tuple[ByteFile, int, int],
        head: bytes,
        checksum: Checksum,
    ) -> bytes:
        """Return a chunk behind another head, without the checksum at its end, which holds."""
        file, offset, length = found
        try:
            data = checksum.decode(read_briefly(file, offset, offset + length), None, length)
        except CodecError:
            # The read engine says what is wrong, and where.
            return self._encode_block(self._read(stored, cell))
        return b"".join([head, data])

    def _rewrap_head(self, stored: Stored, length: int) -> bytes:
        grid = self.metadata.grid
        decoded = math.prod(grid.cell_shape((0,) * grid.ndim)) * self.metadata.itemsize
        return rewrap_head(self.metadata, stored.array.metadata.pipeline, length, decoded)

    def _passes(self, stored: Stored) -> bool:
        """Tell whether the face declares the codecs that chunks are stored with."""
        if self._same_codecs is None:
            own, declared = stored.array.metadata, self.metadata
            key = own.pipeline.decoding_key(own.dtype)
            self._same_codecs = key == declared.pipeline.decoding_key(declared.dtype)
        return self._same_codecs

    def _tag(
        self, stored: Stored, cell: tuple[int, ...], spans: Sequence[tuple[int, int]], kind: str
    ) -> str | None:
        assert stored.manifest is not None
        assert stored.axes is not None
        grid = self.metadata.grid
        origin, shape = grid.cell_origin(cell), grid.cell_shape(cell)
        box = [(o, o + n) for o, n in zip(origin, shape, strict=True)]
        encoding = self._described.get(kind)
        if encoding is None:
            encoding = self._described[kind] = describe_encoding(self.metadata, kind)
        return tag_cell(
            encoding, stored.manifest, stored.axes, box, spans, stored.tags, kind == "encoded"
        )

    def _find_missing(self, stored: Stored, spans: Sequence[tuple[int, int]]) -> Piece | None:
        """Return the chunk of a cell of which nothing is stored."""
        if stored.store_chunks is not None:
            self._check_still_missing(stored.store_chunks, spans)
        if not self.fills:
            return None
        shape = self.metadata.grid.cell_shape((0,) * self.metadata.ndim)
        tag = digest(describe_encoding(self.metadata, "fill"), repr(shape).encode())
        cost = 3 * math.prod(shape) * self.metadata.itemsize
        return Piece(
            "fill", tag, cost, lambda: self._encode_block(fill_block(self.metadata, shape))
        )

    def _check_still_missing(self, chunks: StoreChunks, spans: Sequence[tuple[int, int]]) -> None:
        """Raise an error if a chunk of a stored array has come since the array was opened."""
        cells = np.stack([a.reshape(-1) for a in np.meshgrid(
            *(np.arange(*span) for span in spans), indexing="ij")], axis=1,
        ) if spans else np.zeros((1, 0), np.int64)  # fmt: skip
        for key in chunks.keys(cells):
            if chunks.store.get(key, (0, 1)) is not None:
                raise SourceChangedError(
                    "the chunk was written after the array was opened; start the server again",
                    variable=self.array.path,
                )

    def _encode(
        self,
        stored: Stored,
        cell: tuple[int, ...],
        tag: str | None,
        spans: Sequence[tuple[int, int]],
        same: tuple[int, ...] | None = None,
    ) -> Piece:
        itemsize = 8 * 8 if self.metadata.dtype.hasobject else self.metadata.itemsize
        nbytes = math.prod(self.metadata.grid.cell_shape(cell)) * itemsize
        # A stored block is decoded whole where the cell is a part of it.
        largest = max(nbytes, stored.largest_block * itemsize)

        def compute() -> bytes:
            shuffled = None if same is None else self._encode_shuffled(stored, same, cell)
            if shuffled is not None:
                return shuffled
            block = self._read(stored, cell)
            # Opening has compared fingerprints before; of several blocks, each may be of another.
            if tag is not None:
                stored.check_sources(spans)
            return self._encode_block(block)

        return Piece("encoded", tag, 2 * nbytes + 2 * largest, compute)

    def _encode_shuffled(
        self, stored: Stored, same: tuple[int, ...], cell: tuple[int, ...]
    ) -> bytes | None:
        """Encode a stored chunk from its shuffled bytes, if that is all it takes; else None."""
        grid = self.metadata.grid
        nbytes = math.prod(grid.cell_shape(cell)) * self.metadata.itemsize
        decoder = self._find_shuffled(stored, nbytes)
        if decoder is None or not stored.is_as_declared(same):
            return None
        span = stored.locate(same)
        # What lies past the end of the array is made by the face. A chunk that is much longer than
        # what it decodes to is for the read engine to judge.
        is_whole = grid.cell_extent(cell) == grid.cell_shape(cell)
        if span is None or not is_whole or span[2] > 2 * nbytes:
            return None
        file, offset, length = span
        block = _decoded.take(nbytes)
        try:
            data = read_briefly(file, offset, offset + length)
            decoder.decode_into(data, block)
        except CodecError:
            return None  # The read engine says what is wrong, and where.
        return compress_shuffled(self.metadata, block)

    def _find_shuffled(self, stored: Stored, nbytes: int) -> BlockCodec | None:
        """Return what gives the shuffled bytes of chunks of a size; None where nothing does."""
        if nbytes not in self._shuffled:
            pipeline = shuffled_pipeline(self.metadata, stored.array.metadata)
            self._shuffled[nbytes] = (
                None if pipeline is None else pipeline.for_block((nbytes,), np.dtype("u1"))
            )
        return self._shuffled[nbytes]

    def _read(self, stored: Stored, cell: tuple[int, ...]) -> np.ndarray[Any, Any]:
        grid, dtype = self.metadata.grid, self.metadata.dtype
        origin, extent = grid.cell_origin(cell), grid.cell_extent(cell)
        where = tuple(slice(o, o + n) for o, n in zip(origin, extent, strict=True))
        shape = grid.cell_shape(cell)
        if extent != shape:
            block = fill_block(self.metadata, shape)
            block[tuple(slice(n) for n in extent)] = stored.array.read(where)
        elif stored.array.dtype == dtype and dtype.isbuiltin == 1 and not dtype.hasobject:
            flat = _decoded.take(math.prod(shape) * dtype.itemsize)
            block = stored.array.read(where, out=flat.view(dtype).reshape(shape))
        else:
            block = np.asarray(stored.array.read(where), dtype)
        return block

    def _encode_block(self, block: np.ndarray[Any, Any]) -> bytes:
        metadata = self.metadata
        if is_lossless(metadata):
            return encode_block(metadata, block)
        # Decoded again and compared: what a codec does not give back is an error and no chunk.
        return encode_exactly(metadata, block)


def find_overlapped_of(
    axes: Sequence[Axis], grid: Any, cell: tuple[int, ...]
) -> list[tuple[int, int]]:
    """Return the stored cells that a cell of a face overlaps."""
    if isinstance(grid, RegularGrid):
        return find_overlapped(axes, grid.chunk_shape, cell)
    return [(i, i + 1) for i in cell]


def _has_any(manifest: Manifest, spans: Sequence[tuple[int, int]]) -> bool:
    if all(stop - first == 1 for first, stop in spans):
        return bool(manifest.source[tuple([first for first, _ in spans])] >= 0)
    box = tuple(slice(*span) for span in spans)
    return bool((np.asarray(manifest.source[box]) >= 0).any())
