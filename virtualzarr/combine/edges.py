"""Chunks at the far edge of an array, when the array no longer ends there.

The last chunk along an axis is often stored at full size, past the end of the array. Once another
array follows, its cell is as long as the part inside, and the reference has to say so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import Axis, ChunkGrid
from virtualzarr.codecs import Pipeline
from virtualzarr.combine.agree import axes_of
from virtualzarr.manifest import Decoder, Manifest
from virtualzarr.manifest.manifest import CANONICAL, MISSING


def cut_last_cells(
    manifest: Manifest, grid: ChunkGrid, axis: int, pipeline: Pipeline, dtype: np.dtype[Any]
) -> Manifest:
    """Return a manifest for the grid whose last cells along an axis end with the array.

    Parameters
    ----------
    manifest : Manifest
    grid : ChunkGrid
        As the manifest's chunks are stored: the last cells may be longer than the array.
    axis : int
        The axis along which the last cells are cut.
    pipeline : Pipeline
        How the array's chunks decode.
    dtype : numpy dtype

    Returns
    -------
    Manifest
        Chunks longer than their cell have a decoder that knows the stored shape. Uncompressed
        chunks whose surplus lies at the end of their bytes become shorter instead, which any
        reader understands.
    """
    axes = axes_of(grid)
    last = axes[axis].ncells - 1
    if last < 0 or axes[axis].edge(last) == axes[axis].length(last):
        return manifest
    return _Cut(manifest, axes, axis, pipeline, dtype).apply()


class _Cut:
    """The last cells along one axis, on their way to becoming shorter."""

    def __init__(
        self,
        manifest: Manifest,
        axes: tuple[Axis, ...],
        axis: int,
        pipeline: Pipeline,
        dtype: np.dtype[Any],
    ) -> None:
        self.manifest, self.axes, self.axis = manifest, axes, axis
        self.pipeline, self.dtype = pipeline, dtype
        self.last = axes[axis].ncells - 1
        self.plane: tuple[slice | int, ...] = (*(slice(None),) * axis, self.last)
        self.decoders = {decoder: row for row, decoder in enumerate(manifest.decoders)}

    def apply(self) -> Manifest:
        """Return the manifest with decoders, or shorter lengths, in the plane."""
        shapes, shape_of = self._shapes()
        row_of = self._column("decoder", CANONICAL)
        lengths = self._column("length", 0)
        kind = (row_of.astype(np.int64) + 1) * len(shapes) + shape_of
        present = self._column("source", MISSING) >= 0
        new_rows, new_lengths = np.where(present, row_of, CANONICAL), lengths.copy()
        for k in np.unique(kind[present]).tolist():
            row, shape = k // len(shapes) - 1, shapes[k % len(shapes)]
            here = present & (kind == k)
            cut = self._cut_length(row, shape, lengths[here])
            if cut is None:
                new_rows[here] = self._decoder(row, shape)
            else:
                new_lengths[here] = cut
        return self._changed(new_rows, lengths, new_lengths)

    def _column(self, name: str, absent: int) -> NDArray[Any]:
        """Return a column's part in the plane."""
        column = getattr(self.manifest, name)
        whole = [slice(None)] * self.manifest.ndim
        whole[self.axis] = slice(self.last, self.last + 1)
        if column is None:
            column = np.broadcast_to(np.int32(absent), self.manifest.shape)
        return np.squeeze(np.asarray(column[tuple(whole)]), self.axis)

    def _shapes(self) -> tuple[list[tuple[int, ...]], NDArray[np.int64]]:
        """Return the distinct stored shapes in the plane, and which one each cell has."""
        shapes: list[tuple[int, ...]] = [()]
        which: Any = np.zeros((), np.int64)
        for i, axis in enumerate(self.axes):
            inverse: NDArray[np.int64]
            if i == self.axis:
                edges, inverse = [axis.edge(self.last)], np.zeros((), np.int64)
            elif axis.uniform is not None:
                edges, inverse = [axis.uniform], np.zeros(axis.ncells, np.int64)
            else:
                each = axis.edge(np.arange(axis.ncells))
                distinct, inverse = np.unique(each, return_inverse=True)
                edges = distinct.tolist()
            shapes = [(*shape, edge) for shape in shapes for edge in edges]
            which = np.add.outer(which * len(edges), inverse)
        return shapes, which

    def _cut_length(
        self, row: int, shape: tuple[int, ...], lengths: NDArray[np.int64]
    ) -> int | None:
        """Return the bytes of the part inside of the array, if that part comes first and plain.

        That is so for uncompressed elements with only axes of length 1 stored before the cut one.
        """
        pipeline = self.pipeline
        if row >= 0:
            pipeline = self.manifest.decoders[row].pipeline
            if self.manifest.decoders[row].shape is not None:
                return None
        codec = pipeline.for_block(shape, self.dtype)
        if codec.raw is None or not codec.nbytes or (lengths != codec.nbytes).any():
            return None
        order = codec.raw[1]
        if any(shape[i] != 1 for i in order[: order.index(self.axis)]):
            return None
        return codec.nbytes // shape[self.axis] * self.axes[self.axis].length(self.last)

    def _decoder(self, row: int, shape: tuple[int, ...]) -> int:
        """Return the row of the decoder that knows the stored shape."""
        decoder = Decoder(self.pipeline, shape)
        if row >= 0:
            known = self.manifest.decoders[row]
            decoder = known if known.shape is not None else Decoder(known.pipeline, shape)
        return self.decoders.setdefault(decoder, len(self.decoders))

    def _changed(
        self, rows: NDArray[Any], lengths: NDArray[Any], new_lengths: NDArray[Any]
    ) -> Manifest:
        """Return the manifest with the columns changed in the plane."""
        manifest = self.manifest
        changes: dict[str, Any] = {}
        if manifest.decoder is not None or (rows != CANONICAL).any():
            decoder = np.full(manifest.shape, CANONICAL, np.int32)
            if manifest.decoder is not None:
                decoder[...] = manifest.decoder
            decoder[self.plane] = rows
            changes = {"decoder": decoder, "decoders": tuple(self.decoders)}
        if (lengths != new_lengths).any():
            length = np.array(manifest.length)
            length[self.plane] = new_lengths
            changes["length"] = length
        return manifest.replace(**changes) if changes else manifest
