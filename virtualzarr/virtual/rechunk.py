"""Virtual rechunking: each cell of a new grid is a part of one stored block, without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import Axis, SeparableGrid, simplify
from virtualzarr.array.array import Array
from virtualzarr.codecs import Pipeline
from virtualzarr.codecs.sharding import Sharding
from virtualzarr.errors import UnsupportedError
from virtualzarr.manifest import Affine, Decoder, DecoderRows, Manifest
from virtualzarr.manifest.manifest import CANONICAL, MISSING
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.virtual.axis_slices import AxisSlices
from virtualzarr.virtual.contiguous import locate_parts, uncompressed_layout

Int64 = NDArray[np.int64]


def get_axes(array: Array) -> tuple[Axis, ...]:
    """Return the axes of an array whose grid cuts each on its own."""
    if not isinstance(array.grid, SeparableGrid):
        raise UnsupportedError(
            f"an array with the chunk grid {array.grid!r} cannot be cut", variable=array.path
        )
    return array.grid.axes


def apply_axis_slices(array: Array, pieces: Sequence[AxisSlices]) -> Array:
    """Return a virtual array whose cells are parts of those of another, without copying anything.

    Parameters
    ----------
    array : Array
        A virtual one.
    pieces : sequence of AxisSlices, one for each axis

    Returns
    -------
    Array
        A cell that is a part of a compressed block refers to all of the block, with a decoder that
        knows its shape and the origin of the part. Where blocks are uncompressed and the part lies
        in them in one piece, the reference is to the part alone.

    Raises
    ------
    UnsupportedError
        The grid is of a kind whose axes are not cut each on their own, or the array is not virtual.

    Notes
    -----
    Shards are decoded whole where a cell is only a part of one.
    """
    axes = get_axes(array)
    grid = simplify([piece.axis for piece in pieces])
    array = without_shards(array)
    manifest = _ManifestSlicer(array.metadata, array.manifest, axes, pieces).manifest()
    metadata = array.metadata.replace(shape=grid.shape, grid=grid)
    return array.replace(metadata, manifest)


def with_decoder(manifest: Manifest, pipeline: Pipeline) -> Manifest:
    """Return a manifest with a decoder for the chunks that the array's pipeline decodes."""
    rows = DecoderRows(manifest.decoders)
    row = rows.find(Decoder(pipeline))
    decoder: Any = np.int32(row)
    if manifest.decoder is not None:
        decoder = np.where(manifest.decoder == CANONICAL, decoder, manifest.decoder)
    return manifest.replace(decoders=rows.table, decoder=decoder)


def without_shards(array: Array) -> Array:
    """Return an array that declares the codecs within its shards, and leaves shards to decoders.

    Its cells may then have any shape. The manifest names every shard's decoder.
    """
    chain = list(array.metadata.pipeline.codecs)
    serializer = array.metadata.pipeline.serializer
    if not isinstance(serializer, Sharding):
        return array
    while isinstance(serializer, Sharding):
        chain = [*chain[: chain.index(serializer)], *serializer.pipeline.codecs]
        serializer = serializer.pipeline.serializer
    return array.replace(
        array.metadata.replace(pipeline=Pipeline(chain)),
        with_decoder(array.manifest, array.metadata.pipeline),
    )


def _list_edges(axis: Axis) -> Int64:
    """Return the edge of each cell."""
    edges, counts = axis.runs()
    return np.repeat(edges, counts)


class _ManifestSlicer:
    """Slices the columns of a manifest.

    Numbers of one axis are arrays that broadcast along all others: a column with an entry for each
    cell is made only where it is needed.
    """

    def __init__(
        self,
        metadata: ArrayMetadata,
        manifest: Manifest,
        axes: tuple[Axis, ...],
        pieces: Sequence[AxisSlices],
    ) -> None:
        self.metadata, self.old, self.axes, self.pieces = metadata, manifest, axes, pieces
        self.ndim = len(axes)
        self.shape = tuple(piece.axis.ncells for piece in pieces)
        self.edges = []
        self.blocks = []
        self.starts = []
        self.fits = []
        # `fits` tells which cells are whole blocks: those refer to them as before, and need neither
        # origin nor decoder. Missing cells fit, as nothing of them is decoded.
        for i, (axis, piece) in enumerate(zip(axes, pieces, strict=True)):
            edge = _list_edges(piece.axis)
            if not len(piece.cell) or not axis.ncells:
                block = edge
            elif piece.is_contiguous:
                block = _list_edges(axis)[int(piece.cell[0]) : int(piece.cell[-1]) + 1]
            else:
                # Of missing cells (-1) any number will do: index 0 is one that exists.
                block = axis.edge(np.maximum(piece.cell, 0))
            self.edges.append(self._along(i, edge))
            self.blocks.append(self._along(i, block))
            self.starts.append(self._along(i, piece.start))
            self.fits.append((piece.start == 0) & (edge == block) | piece.is_missing)

    def _along(self, i: int, column: NDArray[Any]) -> NDArray[Any]:
        """Return numbers of axis `i` in a form that broadcasts along the others."""
        return column.reshape((-1,) + (1,) * (self.ndim - i - 1))

    def manifest(self) -> Manifest:
        """Return the new manifest."""
        if not self.old.ncells or 0 in self.shape:
            return Manifest.missing(self.shape)
        columns = {
            name: self._slice(getattr(self.old, name))
            for name in ("source", "offset", "length", "decoder", "origin")
        }
        if any(piece.is_missing.any() for piece in self.pieces):
            missing: Any = np.False_
            for i, piece in enumerate(self.pieces):
                missing = missing | self._along(i, piece.is_missing)
            columns["source"] = np.where(missing, np.int32(MISSING), columns["source"])
        sliced = Manifest(self.shape, self.old.sources, decoders=self.old.decoders, **columns)
        if not all(fits.all() for fits in self.fits):
            fits: Any = np.True_
            for i, along in enumerate(self.fits):
                fits = fits & self._along(i, along)
            # Whole along all axes or a part: only now does a column get an entry for each cell.
            part = ~fits & (sliced.source >= 0)
            if part.any():
                sliced = _PartialCells(self, sliced, part).manifest()
        return simplify_manifest(sliced)

    def _slice(self, column: Any) -> Any:
        """Return a column of the new cells."""
        if column is None:
            return None
        if isinstance(column, Affine):
            return self._slice_affine(column)
        strides = column.strides[: self.ndim]
        # Where a column is repeated along an axis, one plane of it is sliced, and repeated again.
        column = column[tuple(slice(0, 1) if step == 0 else slice(None) for step in strides)]
        for i, (piece, step) in enumerate(zip(self.pieces, strides, strict=True)):
            cells = np.maximum(piece.cell, 0)
            if not column.shape[i]:  # without cells, all new ones are missing
                column = np.repeat(np.zeros_like(column, shape=(1,) * column.ndim), len(cells), i)
            elif step == 0 or not len(cells):
                column = column[(slice(None),) * i + (slice(0, min(1, len(cells))),)]
            elif piece.is_contiguous:
                column = column[(slice(None),) * i + (slice(int(cells[0]), int(cells[-1]) + 1),)]
            else:
                column = column.take(cells, axis=i)
        return np.broadcast_to(column, self.shape + column.shape[self.ndim :])

    def _slice_affine(self, column: Affine) -> Any:
        if not all(piece.is_contiguous for piece in self.pieces):
            # Evenly spaced numbers stay so only in runs of cells that follow one another.
            return column[np.ix_(*(np.maximum(piece.cell, 0) for piece in self.pieces))]
        first = [int(piece.cell[0]) if len(piece.cell) else 0 for piece in self.pieces]
        base = column.base + sum(n * step for n, step in zip(first, column.strides, strict=True))
        return Affine(self.shape, base, column.strides)


class _PartialCells:
    """References of cells that are parts of blocks: shorter ranges, or decoders and origins."""

    def __init__(self, slicer: _ManifestSlicer, taken: Manifest, part: NDArray[np.bool_]) -> None:
        self.slicer, self.taken, self.part = slicer, taken, np.broadcast_to(part, slicer.shape)
        self.metadata = slicer.metadata
        self.decoder_rows = DecoderRows(taken.decoders)
        self.rows = taken.decoder
        self.shaped = any(decoder.shape is not None for decoder in taken.decoders)

    def manifest(self) -> Manifest:
        """Return the manifest."""
        offset, length = self.taken.offset, self.taken.length
        origin = self._origins()
        remaining = self.part
        ranged = np.zeros((), bool)  # parts that have become byte ranges of their own
        # Byte ranges first: other readers understand them, and they read less than a whole block.
        for layout, of_layout in self._layouts():
            ranges = locate_parts(layout, self.slicer.edges, origin, self._blocks())
            length = np.asarray(length)
            # A chunk of another length than its block is damaged: reading the block tells so.
            exact = (length == ranges.block_nbytes) | (length == -1)
            fits = ranges.contiguous & of_layout & self.part & exact
            if fits.any():
                offset = np.asarray(offset) + np.where(fits, ranges.first, 0)
                length = np.where(fits, ranges.nbytes, length)
                ranged, remaining = ranged | fits, remaining & ~fits
        decoder = self._decoders(remaining, np.broadcast_to(ranged, self.slicer.shape))
        return self.taken.replace(
            offset=offset,
            length=length,
            decoders=self.decoder_rows.table,
            decoder=decoder,
            origin=self._corners(origin, remaining),
        )

    def _corners(self, origin: list[Any], remaining: NDArray[np.bool_]) -> NDArray[Any] | None:
        """Return the origin column: new in all parts, but zero unless they are in `remaining`."""
        if self.taken.origin is None and not any(start.any() for start in self.slicer.starts):
            return None
        # A range begins at its own first element, so that its origin is zero.
        corners = np.stack(
            [
                np.broadcast_to(np.where(remaining, column, 0), self.slicer.shape)
                for column in origin
            ],
            -1,
        )
        if self.taken.origin is None:
            return corners
        return np.where(self.part[..., None], corners, self.taken.origin)

    def _origins(self) -> list[Any]:
        """Return, by axis, where in its block each cell begins."""
        if self.taken.origin is None:
            return self.slicer.starts
        return [self.taken.origin[..., i] + start for i, start in enumerate(self.slicer.starts)]

    def _blocks(self) -> list[Any]:
        """Return, by axis, the length of the block that each cell is a part of."""
        if not self.shaped:
            return self.slicer.blocks
        blocks: list[Any] = []
        for i, block in enumerate(self.slicer.blocks):
            shapes = [0 if d.shape is None else d.shape[i] for d in self.taken.decoders]
            stored = np.array([*shapes, 0], np.int64)[self.rows]
            blocks.append(np.where(stored > 0, stored, block))
        return blocks

    def _layouts(self) -> list[tuple[Any, Any]]:
        """Return the different layouts of uncompressed blocks, and which cells have them."""
        dtype, ndim = self.metadata.dtype, self.slicer.ndim
        pipelines = [*(d.pipeline for d in self.taken.decoders), self.metadata.pipeline]
        if self.rows is None:
            layout = uncompressed_layout(self.metadata.pipeline, dtype, ndim)
            return [] if layout is None else [(layout, np.True_)]
        layouts = [uncompressed_layout(pipeline, dtype, ndim) for pipeline in pipelines]
        distinct = {layout for layout in layouts if layout is not None}
        return [
            (layout, np.array([other == layout for other in layouts])[self.rows])
            for layout in distinct
        ]

    def _decoders(
        self, remaining: NDArray[np.bool_], ranged: NDArray[np.bool_]
    ) -> NDArray[np.int32]:
        """Return the decoder column: with block shapes in `remaining`, without where `ranged`."""
        decoder = np.full(self.slicer.shape, CANONICAL, np.int32)
        if self.rows is not None:
            decoder[...] = self.rows
            declared = self.metadata.pipeline.decoding_key(self.metadata.dtype)
            plain = [self._row_without_shape(d.pipeline, declared) for d in self.taken.decoders]
            decoder[ranged] = np.array([*plain, CANONICAL], np.int32)[self.rows[ranged]]
            unshaped = np.array([d.shape is None for d in self.taken.decoders] + [True])
            remaining = remaining & unshaped[self.rows]
        cells = np.nonzero(remaining)
        if not len(cells[0]):
            return decoder
        shapes = []
        # The decoder and the block's length along each axis, as digits of one number for each cell:
        # there are few different ones, so that decoders are made for those alone.
        key: Any = decoder[cells].astype(np.int64) + 1
        for i, block in enumerate(self.slicer.blocks):
            distinct, inverse = np.unique(block, return_inverse=True)
            shapes.append(distinct)
            key = key * len(distinct) + inverse.reshape(-1)[cells[i]]
        kinds, inverse = _unique_inverse(key)
        sizes = (len(self.taken.decoders) + 1, *map(len, shapes))
        rows = []
        for row, *digits in zip(*(n.tolist() for n in np.unravel_index(kinds, sizes)), strict=True):
            shape = tuple(int(edges[digit]) for edges, digit in zip(shapes, digits, strict=True))
            pipeline = self.taken.decoders[row - 1].pipeline if row else self.metadata.pipeline
            rows.append(self.decoder_rows.find(Decoder(pipeline, shape)))
        decoder[cells] = np.array(rows, np.int32)[inverse]
        return decoder

    def _row_without_shape(self, pipeline: Pipeline, declared: Any) -> int:
        """Return the decoder of blocks of one cell each."""
        if pipeline.decoding_key(self.metadata.dtype) == declared:
            return CANONICAL
        return self.decoder_rows.find(Decoder(pipeline))


def _unique_inverse(keys: Int64) -> tuple[Int64, Int64]:
    """Return what np.unique does, without sorting where numbers are small."""
    top = int(keys.max()) + 1
    if top > 4 * len(keys) + 1024:
        return np.unique(keys, return_inverse=True)
    # Counting is linear in the cells; sorting millions of them would dominate a slice.
    distinct = np.flatnonzero(np.bincount(keys, minlength=top))
    position = np.zeros(top, np.int64)
    position[distinct] = np.arange(len(distinct))
    return distinct, position[keys]


def with_planes(manifest: Manifest, planes: Manifest, axis: int, cells: Int64) -> Manifest:
    """Return a manifest with other references in some planes across an axis.

    Parameters
    ----------
    manifest : Manifest
    planes : Manifest
        Into the same sources: as many cells along `axis` as there are in `cells`.
    axis : int
    cells : int64 array
    """
    # Decoders of both, without repeats: rows of `planes` are numbered anew in the common table.
    rows_of = DecoderRows(manifest.decoders)
    rows = [rows_of.find(decoder) for decoder in planes.decoders]
    where: Any = (*(slice(None),) * axis, cells)
    decoder = planes.decoder
    if decoder is not None:
        decoder = np.array([*rows, CANONICAL], np.int32)[decoder]

    def replace_planes(old: Any, new: Any, empty: int, *corner: int) -> Any:
        """Return a column with the planes in it; None is a column of `empty`."""
        if old is None and new is None:
            return None
        new = np.int32(empty) if new is None else np.asarray(new)
        if old is not None and np.array_equal(np.asarray(old)[where], new):
            return old
        # Written out only where a plane differs: affine columns otherwise stay without memory.
        column = np.full((*manifest.shape, *corner), empty, new.dtype)
        if old is not None:
            column[...] = np.asarray(old)
        column[where] = new
        return column

    return manifest.replace(
        offset=replace_planes(manifest.offset, planes.offset, 0),
        length=replace_planes(manifest.length, planes.length, 0),
        decoders=rows_of.table,
        decoder=replace_planes(manifest.decoder, decoder, CANONICAL),
        origin=replace_planes(manifest.origin, planes.origin, 0, manifest.ndim),
    )


def simplify_manifest(manifest: Manifest) -> Manifest:
    """Return a manifest without unused decoders, and without columns that hold defaults only."""
    changes: dict[str, Any] = {}
    missing = manifest.source < 0
    if manifest.origin is not None:
        origin = np.where(missing[..., None], 0, manifest.origin)
        changes["origin"] = origin if origin.any() else None
    if manifest.decoder is not None:
        decoder = np.where(missing, CANONICAL, manifest.decoder)
        count = len(manifest.decoders)
        # Missing chunks are never decoded: a decoder that only they name may go.
        used = np.bincount(decoder.reshape(-1) + 1, minlength=count + 1)[1:] > 0
        number = np.append(np.cumsum(used) - 1, CANONICAL).astype(np.int32)
        changes["decoders"] = tuple(compress(manifest.decoders, used.tolist()))
        changes["decoder"] = number[decoder] if used.any() else None
    return manifest.replace(**changes) if changes else manifest
