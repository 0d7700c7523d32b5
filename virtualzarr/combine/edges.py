"""Chunks at the far edge of an input, where the joined array goes on.

The last chunk along an axis is often stored at full size, past the end of the array. Once another
array follows, its cell is as long as the part inside, and the reference has to say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import Axis, ChunkGrid
from virtualzarr.codecs import Pipeline
from virtualzarr.combine.agree import axes_of
from virtualzarr.manifest import Decoder, Manifest
from virtualzarr.manifest.manifest import CANONICAL, MISSING


@dataclass(frozen=True)
class Cuts:
    """Which planes of cells of a joined array hold less than is stored.

    Attributes
    ----------
    axis : int
        The axis along which arrays were joined.
    cells : int64 array
        Cells along that axis.
    stored, kept : int64 arrays
        Length of each of these cells as stored, and as it is now.
    """

    axis: int
    cells: NDArray[np.int64]
    stored: NDArray[np.int64]
    kept: NDArray[np.int64]

    @classmethod
    def between(cls, grids: Sequence[ChunkGrid], axis: int) -> Cuts:
        """Find the cuts between arrays, none of them empty, that were joined."""
        found, end = [], 0
        for grid in grids[:-1]:
            along = axes_of(grid)[axis]
            last = along.ncells - 1
            if (stored := along.edge(last)) != (kept := along.length(last)):
                found.append((end + last, stored, kept))
            end += along.ncells
        columns = np.array(found, np.int64).reshape(-1, 3)
        return cls(axis, columns[:, 0], columns[:, 1], columns[:, 2])


def cut_cells(
    manifest: Manifest, grid: ChunkGrid, cuts: Cuts, pipeline: Pipeline, dtype: np.dtype[Any]
) -> Manifest:
    """Return a manifest in which the chunks of cut cells say what is stored.

    Parameters
    ----------
    manifest : Manifest
        Of the joined array.
    grid : ChunkGrid
        Of the joined array; only its axes other than the joined one matter.
    cuts : Cuts
    pipeline : Pipeline
        How chunks without a decoder decode.
    dtype : numpy dtype

    Returns
    -------
    Manifest
        Chunks longer than their cell have a decoder that knows the stored shape. Uncompressed
        chunks whose surplus lies at the end of their bytes become shorter instead, which any
        reader understands.
    """
    if not len(cuts.cells):
        return manifest
    return _Cutting(manifest, axes_of(grid), cuts, pipeline, dtype).apply()


class _Cutting:
    """Cut cells on their way to decoders or shorter lengths."""

    def __init__(
        self,
        manifest: Manifest,
        axes: tuple[Axis, ...],
        cuts: Cuts,
        pipeline: Pipeline,
        dtype: np.dtype[Any],
    ) -> None:
        self.manifest, self.axes, self.cuts = manifest, axes, cuts
        self.pipeline, self.dtype = pipeline, dtype
        self.planes: tuple[Any, ...] = (*(slice(None),) * cuts.axis, cuts.cells)
        self.decoders = {decoder: row for row, decoder in enumerate(manifest.decoders)}

    def apply(self) -> Manifest:
        """Return the manifest with what is changed in the planes."""
        shapes, shape_of = self._shapes()
        present = self._column("source", MISSING) >= 0
        rows = np.where(present, self._column("decoder", CANONICAL), np.int32(CANONICAL))
        lengths = self._column("length", 0)
        kept = self.cuts.kept.reshape([-1 if i == self.cuts.axis else 1 for i in range(rows.ndim)])
        kept = np.broadcast_to(kept, rows.shape)
        kind = (rows.astype(np.int64) + 1) * len(shapes) + shape_of
        new_rows, new_lengths = rows.copy(), lengths.copy()
        for k in np.unique(kind[present]).tolist():
            row, shape = k // len(shapes) - 1, shapes[k % len(shapes)]
            here = present & (kind == k)
            whole, each = self._plain_bytes(row, shape)
            plain = here & (lengths == whole) if each else np.zeros_like(here)
            new_lengths[plain] = kept[plain] * each
            if (here & ~plain).any():
                new_rows[here & ~plain] = self._decoder(row, shape)
        return self._changed(rows, new_rows, lengths, new_lengths)

    def _column(self, name: str, absent: int) -> NDArray[Any]:
        """Return a column's part in the planes."""
        column = getattr(self.manifest, name)
        if column is None:
            column = np.broadcast_to(np.int32(absent), self.manifest.shape)
        return np.asarray(column)[self.planes]

    def _shapes(self) -> tuple[list[tuple[int, ...]], NDArray[np.int64]]:
        """Return the distinct stored shapes in the planes, and which one each cell has."""
        shapes: list[tuple[int, ...]] = [()]
        which: Any = np.zeros((), np.int64)
        for i, axis in enumerate(self.axes):
            inverse: NDArray[np.int64]
            if i == self.cuts.axis:
                distinct, inverse = np.unique(self.cuts.stored, return_inverse=True)
                edges = distinct.tolist()
            elif axis.uniform is not None:
                edges, inverse = [axis.uniform], np.zeros(axis.ncells, np.int64)
            else:
                distinct, inverse = np.unique(
                    axis.edge(np.arange(axis.ncells)), return_inverse=True
                )
                edges = distinct.tolist()
            shapes = [(*shape, edge) for shape in shapes for edge in edges]
            which = np.add.outer(which * len(edges), inverse)
        return shapes, which

    def _plain_bytes(self, row: int, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the bytes of a block, and of one step along the axis, if the steps follow.

        That is so for uncompressed elements with only axes of length 1 stored before the cut one;
        otherwise the second is 0.
        """
        pipeline = self.pipeline
        if row >= 0:
            pipeline = self.manifest.decoders[row].pipeline
            if self.manifest.decoders[row].shape is not None:
                return 0, 0
        codec = pipeline.for_block(shape, self.dtype)
        if codec.raw is None:
            return 0, 0
        order = codec.raw[1]
        if any(shape[i] != 1 for i in order[: order.index(self.cuts.axis)]):
            return 0, 0
        return codec.nbytes, codec.nbytes // shape[self.cuts.axis]

    def _decoder(self, row: int, shape: tuple[int, ...]) -> int:
        """Return the row of the decoder that knows the stored shape."""
        decoder = Decoder(self.pipeline, shape)
        if row >= 0:
            known = self.manifest.decoders[row]
            decoder = known if known.shape is not None else Decoder(known.pipeline, shape)
        return self.decoders.setdefault(decoder, len(self.decoders))

    def _changed(
        self,
        rows: NDArray[Any],
        new_rows: NDArray[Any],
        lengths: NDArray[Any],
        new_lengths: NDArray[Any],
    ) -> Manifest:
        """Return the manifest with the columns that are changed in the planes."""
        manifest = self.manifest
        changes: dict[str, Any] = {}
        if (rows != new_rows).any():
            decoder = np.full(manifest.shape, CANONICAL, np.int32)
            if manifest.decoder is not None:
                decoder[...] = manifest.decoder
            decoder[self.planes] = new_rows
            changes = {"decoder": decoder, "decoders": tuple(self.decoders)}
        if (lengths != new_lengths).any():
            length = np.array(manifest.length)
            length[self.planes] = new_lengths
            changes["length"] = length
        return manifest.replace(**changes) if changes else manifest
