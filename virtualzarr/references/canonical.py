"""Canonical references: those that foreign readers can use, made so without reading a byte."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from grids import SeparableGrid
from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.checksums import Checksum
from virtualzarr.errors import PublishError
from virtualzarr.manifest import Affine, Manifest, Source
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.references.portable import NO_PLUGINS, TRUNCATE, private_codec
from virtualzarr.stores.files import take_fingerprint
from virtualzarr.virtual.contiguous import locate_parts, uncompressed_layout

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_CHECKSUM = 4
"""Bytes of a checksum."""


@dataclass(frozen=True)
class Canonical:
    """A manifest fit for foreign readers, but for some cells.

    Attributes
    ----------
    misread : int64 array
        C-order numbers of the cells whose chunks foreign readers would read wrong.
    reasons : dict of str to int
        Why, and for how many of them.
    longest : int
        Bytes of the longest block of which only the first count; 0 where there is none.
    """

    manifest: Manifest
    misread: Ints
    reasons: dict[str, int] = field(default_factory=dict)
    longest: int = 0


def make_canonical(
    metadata: ArrayMetadata, manifest: Manifest, plugins: frozenset[str] = NO_PLUGINS
) -> Canonical:
    """Make as many references canonical as can be without copying.

    A chunk that decodes as the array declares, to exactly its cell, is canonical whatever its
    decoder is called. So is the part of an uncompressed chunk that is contiguous in it: a shorter
    range of bytes; and one that ends where the array does, if the file goes on behind it for as
    long as its cell. Where readers have the plug-in that truncates, so is the beginning of any
    chunk, in the order in which it is stored: `with_truncation` says so in the metadata.
    """
    manifest = _with_lengths(manifest)
    # A codec that only this package has misreads every chunk: all of them need copies, and no
    # reference is worth a look.
    reason = private_codec(metadata, plugins)
    if reason is not None:
        misread = np.flatnonzero(_flat(manifest.source, manifest) >= 0)
        return Canonical(manifest, misread, {reason: len(misread)} if len(misread) else {})
    # Without decoders every chunk decodes as the array declares, to exactly its cell: the usual
    # case costs nothing.
    if manifest.decoder is None and manifest.origin is None:
        return Canonical(manifest, np.zeros(0, np.int64))
    # Only cells with a decoder or an origin of their own are judged one by one.
    misread = np.flatnonzero(~np.asarray(manifest.canonical).reshape(-1))
    if not len(misread):
        return Canonical(manifest.replace(decoders=(), decoder=None, origin=None), misread)
    return _Canonicalizer(metadata, manifest, misread, plugins).result()


def with_truncation(metadata: ArrayMetadata, longest: int) -> ArrayMetadata:
    """The metadata of an array of whose blocks only the first bytes count."""
    codecs = list(metadata.pipeline.codecs)
    previous = next((c.configuration.get("longest", 0) for c in codecs if c.name == TRUNCATE), 0)
    codecs = [codec for codec in codecs if codec.name != TRUNCATE]
    # Truncation cuts the decompressed bytes before they become elements: it stands right after
    # the serializer, and is undone after all compressors.
    position = next(i for i, codec in enumerate(codecs) if codec.kind == "array_bytes") + 1
    codecs.insert(position, make(TRUNCATE, longest=max(longest, previous)))
    return metadata.replace(pipeline=Pipeline(codecs))


def _with_lengths(manifest: Manifest) -> Manifest:
    """Give a length to what goes from some offset to the end of its file, which JSON cannot say."""
    if isinstance(manifest.length, Affine) or manifest.length.min(initial=0) >= 0:
        return manifest
    # kerchunk's [url, offset, length] has no way to leave the length open; [url] alone means the
    # whole file.
    open_ended = (np.asarray(manifest.length) < 0) & (np.asarray(manifest.offset) > 0)
    open_ended &= np.asarray(manifest.source) >= 0
    if not open_ended.any():
        return manifest
    source = np.asarray(manifest.source)
    length, offset = np.array(np.asarray(manifest.length)), np.asarray(manifest.offset)
    # By files, not by references: a file is asked for its size once at most.
    for row in np.unique(source[open_ended]).tolist():
        file = manifest.sources[row]
        size = file.size
        if size is None:
            size = take_fingerprint(file.location).size
        cells = open_ended & (source == row)
        if size is None or (offset[cells] > size).any():
            raise PublishError("a chunk begins behind the end of its file", file=file.uri)
        length[cells] = size - offset[cells]
    return manifest.replace(length=length)


def list_sizes(sources: Iterable[Source]) -> Ints:
    """Return the sizes of sources, -1 where they are not known, and -1 for missing chunks."""
    sizes = [
        -1 if size is None else size
        for source in sources
        for size in [source.size if source.data is None else len(source.data)]
    ]
    return np.array([*sizes, -1], np.int64)


def _flat(column: Any, manifest: Manifest) -> npt.NDArray[Any]:
    return np.asarray(column).reshape(-1) if manifest.shape else np.asarray(column).reshape(1)


class _Canonicalizer:
    """The cells of one manifest that are not canonical as they stand."""

    def __init__(
        self, metadata: ArrayMetadata, manifest: Manifest, misread: Ints, plugins: frozenset[str]
    ) -> None:
        self.metadata, self.manifest, self.misread = metadata, manifest, misread
        self.truncates, self.longest = TRUNCATE in plugins, 0
        # The columns hold just the cells in question, so that what follows is numpy on as few
        # rows as possible.
        cells = np.unravel_index(misread, manifest.shape) if manifest.shape else ()
        refs = manifest.take(tuple(cells))
        self.offset, self.length = refs.offset.copy(), refs.length.copy()
        self.decoder = np.full(len(misread), -1) if refs.decoder is None else refs.decoder
        ndim = metadata.ndim
        self.origin = np.zeros((len(misread), ndim), np.int64)
        if refs.origin is not None:
            self.origin[...] = refs.origin
        grid = metadata.grid
        # Cell shapes at the end of the grid differ: chunks there are stored whole, though the
        # cell is clipped only on reading.
        self.cell = (
            grid.cell_shapes(np.stack(cells, axis=1))
            if isinstance(grid, SeparableGrid) and ndim
            else np.zeros((len(misread), ndim), np.int64)
        )
        self.valid = self._valid(cells)
        self.sizes = list_sizes(manifest.sources)[refs.source]
        self.good = np.zeros(len(misread), bool)
        self.reasons: dict[str, int] = {}

    def _valid(self, cells: Sequence[Ints]) -> Ints:
        """Return how much of each cell lies within the array, axis by axis."""
        grid = self.metadata.grid
        if not isinstance(grid, SeparableGrid) or not len(cells):
            return self.cell
        left = [axis.extent - axis.start(c) for axis, c in zip(grid.axes, cells, strict=True)]
        return np.minimum(self.cell, np.stack(left, axis=1))

    def result(self) -> Canonical:
        # Decoders are few, cells are many: pipelines are compared once for each decoder.
        for number in np.unique(self.decoder).tolist():
            rows = np.flatnonzero(self.decoder == number)
            pipeline, shape = self.metadata.pipeline, None
            if number >= 0:
                pipeline = self.manifest.decoders[number].pipeline
                shape = self.manifest.decoders[number].shape
            self._judge(rows, pipeline, shape)
        misread = self.misread[~self.good]
        return Canonical(self._manifest(misread), misread, self.reasons, self.longest)

    def _judge(self, rows: Ints, pipeline: Pipeline, shape: tuple[int, ...] | None) -> None:
        """Find out which cells of one decoder are canonical, or can be."""
        checksum = pipeline.codecs[-1]
        if isinstance(checksum, Checksum) and not checksum.at_start:
            # What comes before a checksum is a chunk as the array declares it: a shorter range.
            encoded = Pipeline(pipeline.codecs[:-1])
            if self._key(encoded) == self._key(self.metadata.pipeline):
                # A chunk that is all of a file has no known length, and so no shorter range.
                is_long = self.length[rows] >= _CHECKSUM
                self._count(
                    "stored with a checksum that cannot be left out",
                    int(np.count_nonzero(~is_long)),
                )
                rows = rows[is_long]
                self.length[rows] -= _CHECKSUM
                self._judge_encoded(rows, encoded, shape)
                self.length[rows[~self.good[rows]]] += _CHECKSUM
                return
        self._judge_encoded(rows, pipeline, shape)

    def _judge_encoded(self, rows: Ints, pipeline: Pipeline, shape: tuple[int, ...] | None) -> None:
        cell = self.cell[rows]
        stored = cell if shape is None else np.broadcast_to(np.array(shape, np.int64), cell.shape)
        # Compared by decoding key, not by name or level: gzip 1 and gzip 9 decode alike.
        if self._key(pipeline) != self._key(self.metadata.pipeline):
            self._count("stored with other codecs than the array's", len(rows))
            return
        cut = [c.configuration.get("longest", 1) for c in pipeline.codecs if c.name == TRUNCATE]
        self.longest = max([self.longest, *cut])
        # Exact: the block is the cell, from its first element on.
        exact = (stored == cell).all(axis=1) & ~self.origin[rows].any(axis=1)
        self.good[rows[exact]] = True
        others = rows[~exact]
        if not len(others):
            return
        inside = self._contiguous(others, stored[~exact], pipeline)
        if self.truncates:
            inside |= self._beginning(others, stored[~exact], ~inside)
        self.good[others[inside]] = True
        self._count("stored as a part of a larger block", int(np.count_nonzero(~inside)))

    def _key(self, pipeline: Pipeline) -> Hashable:
        codecs = [codec for codec in pipeline.codecs if codec.name != TRUNCATE]
        if self.truncates and len(codecs) < len(pipeline.codecs):
            # Of a block that is no longer than its cell, all of it is the beginning.
            pipeline = Pipeline(codecs)
        return pipeline.decoding_key(self.metadata.dtype)

    def _count(self, reason: str, count: int) -> None:
        if count:
            self.reasons[reason] = self.reasons.get(reason, 0) + count

    def _contiguous(self, rows: Ints, stored: Ints, pipeline: Pipeline) -> Mask:
        """Shorten the ranges of cells that lie in one piece of an uncompressed block."""
        # Only uncompressed elements have an address within their block.
        layout = uncompressed_layout(pipeline, self.metadata.dtype, self.metadata.ndim)
        if layout is None:
            return np.zeros(len(rows), bool)
        parts = locate_parts(
            layout, self.cell[rows].T, self.origin[rows].T, stored.T, self.valid[rows].T
        )
        good = np.array(np.broadcast_to(parts.contiguous, len(rows)))
        # What lies past the end of the array may be any bytes, but there must be some.
        stop = parts.first + parts.nbytes
        good &= (stop <= parts.block_nbytes) | (self.offset[rows] + stop <= self.sizes[rows])
        # A block of another length than its shape says is not what it seems; it is left to be
        # copied.
        good &= (self.length[rows] == parts.block_nbytes) | (self.length[rows] == -1)
        # The part of the block that is the cell: a shorter range, which any reader takes for a
        # chunk.
        self.offset[rows[good]] += np.broadcast_to(parts.first, len(rows))[good]
        self.length[rows[good]] = np.broadcast_to(parts.nbytes, len(rows))[good]
        return good

    def _beginning(self, rows: Ints, stored: Ints, candidates: Mask) -> Mask:
        """Find cells that are the first elements of their block, in the order they are stored."""
        codecs = self.metadata.pipeline.codecs
        # Compressed or not does not matter here: the codec cuts after decompression.
        plain = Pipeline([codec for codec in codecs if codec.kind != "bytes_bytes"])
        layout = uncompressed_layout(plain, self.metadata.dtype, self.metadata.ndim)
        if layout is None:
            return np.zeros(len(rows), bool)
        dtype, (leading, *others) = layout[0], layout[1]
        cell = self.cell[rows]
        good: Mask = candidates & ~self.origin[rows].any(axis=1)
        # A beginning is contiguous only if it is shorter along the slowest axis alone.
        good &= (cell[:, others] == stored[:, others]).all(axis=1)
        good &= cell[:, leading] <= stored[:, leading]
        if good.any():
            longest = int(stored[good].prod(axis=1).max()) * dtype.itemsize
            self.longest = max(self.longest, longest)
        return good

    def _manifest(self, misread: Ints) -> Manifest:
        manifest, shape = self.manifest, self.manifest.shape
        offset, length = (
            np.array(_flat(column, manifest)) for column in (manifest.offset, manifest.length)
        )
        offset[self.misread], length[self.misread] = self.offset, self.length
        # With nothing left to copy, decoders and origins say nothing any more.
        changes: dict[str, Any] = {
            "offset": offset.reshape(shape), "length": length.reshape(shape),
        }  # fmt: skip
        if not len(misread):
            changes |= {"decoders": (), "decoder": None, "origin": None}
        return manifest.replace(**changes)
