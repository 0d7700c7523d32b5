"""Where the chunks of one HDF5 dataset lie, as columns."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.hdf5.header import ChunkLayout

_BATCH = 4096
# A grid is kept densely. One that is nearly empty and larger than this is refused.
_DENSE_CELLS = 1 << 24
_CELLS_PER_CHUNK = 64

_coordinates, _mask, _offset, _size = (itemgetter(k) for k in range(4))


@dataclass
class ChunkIndex:
    """The stored chunks of a dataset, one entry for each cell of its grid.

    Parameters
    ----------
    source : int32 array
        0 where a chunk is stored, -1 where none is.
    offset, length : int64 array
        First byte in the file (the user block counted) and number of bytes.
    mask : uint32 array, optional
        Bit *i* says that filter *i* was skipped. None when no filter was skipped anywhere.
    """

    source: NDArray[np.int32]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    mask: NDArray[np.uint32] | None = None

    @classmethod
    def empty(cls, cells: int) -> ChunkIndex:
        """Return flat columns without a chunk."""
        offset, length = np.zeros(cells, dtype=np.int64), np.zeros(cells, dtype=np.int64)
        return cls(np.full(cells, -1, dtype=np.int32), offset, length)

    def reshaped(self, shape: tuple[int, ...]) -> ChunkIndex:
        """Return the columns in another shape."""
        return ChunkIndex(
            self.source.reshape(shape),
            self.offset.reshape(shape),
            self.length.reshape(shape),
            None if self.mask is None else self.mask.reshape(shape),
        )


def read_chunk_index(
    dsid: Any, space: Any, chunk_shape: tuple[int, ...], layout: ChunkLayout
) -> ChunkIndex | None:
    """Read the chunk index of a chunked dataset.

    Parameters
    ----------
    dsid : h5py.h5d.DatasetID
    space : h5py.h5s.SpaceID
        Its dataspace.
    chunk_shape : tuple of int
    layout : ChunkLayout

    Returns
    -------
    ChunkIndex or None
        None when no chunk was ever written.

    Raises
    ------
    UnsupportedError
        If HDF5 reports this index wrongly, or the grid is large and almost empty.
    SourceError
        If the index contradicts itself.
    """
    shape, limits = space.get_simple_extent_dims(), _limits(space)
    _refuse_misreported(layout, limits)
    grid = tuple([-(-n // c) for n, c in zip(shape, chunk_shape, strict=True)])
    if math.prod(grid) > _DENSE_CELLS and _is_empty(dsid, grid):
        return None
    collector = _Collector(grid, chunk_shape, limits)
    collector.run(dsid)
    return collector.result()


def _limits(space: Any) -> tuple[int | None, ...]:
    """Return how far each axis can grow, None where without end."""
    from h5py import h5s

    limits = space.get_simple_extent_dims(True)
    return tuple([None if n in (h5s.UNLIMITED, -1) else n for n in limits])


def _refuse_misreported(layout: ChunkLayout, limits: tuple[int | None, ...]) -> None:
    """Refuse the index whose chunks HDF5 places wrongly when it lists them.

    The entries of an extensible array are numbered with the unlimited axis first; `H5Dchunk_iter`
    undoes that wrongly unless this axis is the first anyway (HDF5 1.14.6, 2.0.0).
    """
    if layout.index == "extensible array" and limits[0] is not None:
        raise UnsupportedError(
            "the HDF5 library misreports the chunks of an extensible array whose unlimited axis "
            "is not the first; rewrite the dataset with `h5repack --low=0 --high=1`"
        )


def _is_empty(dsid: Any, grid: tuple[int, ...]) -> bool:
    """Whether no chunk is stored; a large grid with few chunks is refused."""
    cells, stored = math.prod(grid), dsid.get_num_chunks()
    if stored and cells > _CELLS_PER_CHUNK * stored:
        raise UnsupportedError(
            f"only {stored} of {cells} chunks are stored; a grid that large and that empty is "
            "not supported"
        )
    return not stored


class _Collector:
    """Takes the records of `chunk_iter` and fills columns, a batch at a time.

    The callback is the `send` of a generator: it costs less than any Python function, and the
    records of a batch are the only Python objects alive at once.
    """

    def __init__(
        self, grid: tuple[int, ...], chunk_shape: tuple[int, ...], limits: tuple[int | None, ...]
    ) -> None:
        self.grid = grid
        self.chunk_shape = chunk_shape
        self.limits = limits
        self.placed = 0
        self.columns: ChunkIndex | None = None

    def run(self, dsid: Any) -> None:
        batch: list[Any] = []
        receiver = self._receive(batch)
        next(receiver)
        dsid.chunk_iter(receiver.send)
        receiver.close()
        self._place(batch)

    def _receive(self, batch: list[Any]) -> Generator[None, Any, None]:
        append = batch.append
        while True:
            for _ in range(_BATCH):
                append((yield))
            self._place(batch)
            batch.clear()

    def _place(self, batch: list[Any]) -> None:
        """Write the records of a batch to the columns."""
        if not batch:
            return
        count, rank = len(batch), len(self.grid)
        flat = _column(chain.from_iterable(map(_coordinates, batch)), count * rank)
        corners = flat.reshape(count, rank)
        cells = corners // self.chunk_shape
        if not np.array_equal(cells * self.chunk_shape, corners):
            raise SourceError("the chunk index names a place where no chunk can be")
        values = [_column(map(part, batch), count) for part in (_mask, _offset, _size)]
        inside = (cells < self.grid).all(axis=1)
        if not inside.all():  # entries of chunks beyond the dataset's present extent
            self._check_limits(corners)
            cells = cells[inside]
            values = [column[inside] for column in values]
        self._scatter(np.ravel_multi_index(tuple(cells.T), self.grid), *values)

    def _check_limits(self, corners: NDArray[np.int64]) -> None:
        for axis, limit in enumerate(self.limits):
            if limit is not None and (corners[:, axis] >= limit).any():
                raise SourceError("the chunk index names a chunk that the dataset cannot have")

    def _scatter(self, cells: Any, mask: Any, offset: Any, length: Any) -> None:
        if self.columns is None:
            self.columns = ChunkIndex.empty(math.prod(self.grid))
        columns = self.columns
        if (columns.source[cells] == 0).any():
            raise SourceError("the chunk index names a chunk twice")
        columns.source[cells] = 0
        columns.offset[cells] = offset
        columns.length[cells] = length
        self.placed += len(cells)
        if mask.any():
            if columns.mask is None:
                columns.mask = np.zeros(len(columns.source), dtype=np.uint32)
            columns.mask[cells] = mask

    def result(self) -> ChunkIndex | None:
        if self.columns is None or not self.placed:
            return None
        if np.count_nonzero(self.columns.source == 0) != self.placed:
            raise SourceError("the chunk index names a chunk twice")
        return self.columns.reshaped(self.grid)


def _column(values: Iterable[int], count: int) -> NDArray[np.int64]:
    return np.fromiter(values, dtype=np.int64, count=count)
