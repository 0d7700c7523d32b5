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


def cut_cells(manifest: Manifest, grid: ChunkGrid, cuts: Cuts, pipeline: Pipeline) -> Manifest:
    """Return a manifest in which the chunks of cut cells have decoders that say what is stored.

    Parameters
    ----------
    manifest : Manifest
        Of the joined array.
    grid : ChunkGrid
        Of the joined array; only its axes other than the joined one matter.
    cuts : Cuts
    pipeline : Pipeline
        How chunks without a decoder decode.
    """
    if not len(cuts.cells):
        return manifest
    return _Cutting(manifest, axes_of(grid), cuts, pipeline).apply()


class _Cutting:
    """Cut cells on their way to decoders that know the stored shape."""

    def __init__(
        self, manifest: Manifest, axes: tuple[Axis, ...], cuts: Cuts, pipeline: Pipeline
    ) -> None:
        self.manifest, self.axes, self.cuts, self.pipeline = manifest, axes, cuts, pipeline
        self.planes: tuple[Any, ...] = (*(slice(None),) * cuts.axis, cuts.cells)
        self.decoders = {decoder: row for row, decoder in enumerate(manifest.decoders)}

    def apply(self) -> Manifest:
        """Return the manifest with what is changed in the planes."""
        shapes, shape_of = self._shapes()
        present = self._column("source", MISSING) >= 0
        rows = np.where(present, self._column("decoder", CANONICAL), np.int32(CANONICAL))
        kind = (rows.astype(np.int64) + 1) * len(shapes) + shape_of
        new_rows = rows.copy()
        for k in np.unique(kind[present]).tolist():
            row, shape = k // len(shapes) - 1, shapes[k % len(shapes)]
            new_rows[present & (kind == k)] = self._decoder(row, shape)
        if (rows == new_rows).all():
            return self.manifest
        decoder = np.full(self.manifest.shape, CANONICAL, np.int32)
        if self.manifest.decoder is not None:
            decoder[...] = self.manifest.decoder
        decoder[self.planes] = new_rows
        return self.manifest.replace(decoder=decoder, decoders=tuple(self.decoders))

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

    def _decoder(self, row: int, shape: tuple[int, ...]) -> int:
        """Return the row of the decoder that knows the stored shape."""
        decoder = Decoder(self.pipeline, shape)
        if row >= 0:
            known = self.manifest.decoders[row]
            decoder = known if known.shape is not None else Decoder(known.pipeline, shape)
        return self.decoders.setdefault(decoder, len(self.decoders))
