"""Chunk indexes by h5py (`H5Dchunk_iter`): the fallback."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.hdf5.indexes.columns import ChunkIndex, Grids, check_sparsity
from virtualzarr.formats.hdf5.layout_message import Layout

_BATCH = 4096

_coordinates, _mask, _offset, _size = (itemgetter(k) for k in range(4))


def read_chunk_index(dsid: Any, layout: Layout) -> ChunkIndex | None:
    """Read the chunk index of a chunked dataset.

    Raises `UnsupportedError` if the layout is not known, HDF5 reports this index wrongly, or the
    grid is large and almost empty; `SourceError` if the index contradicts itself.

    Parameters
    ----------
    dsid : h5py.h5d.DatasetID

    Returns
    -------
    ChunkIndex or None
        None when no chunk was ever written.
    """
    space = dsid.get_space()
    limits = _limits(space)
    _refuse_misreported(layout, limits)
    grids = Grids.of(space.get_simple_extent_dims(), limits, layout.chunk)
    stored = dsid.get_num_chunks()
    check_sparsity(stored, grids.cells)
    if not stored:
        return None
    collector = _Collector(grids, layout.chunk)
    collector.run(dsid)
    return collector.result()


def _limits(space: Any) -> tuple[int | None, ...]:
    """Return how far each axis can grow, None where without end."""
    from h5py import h5s

    limits = space.get_simple_extent_dims(True)
    return tuple([None if n in (h5s.UNLIMITED, -1) else n for n in limits])


def _refuse_misreported(layout: Layout, limits: tuple[int | None, ...]) -> None:
    """Refuse chunks that HDF5 places wrongly when it lists them, or does not say enough about.

    The entries of an extensible array are numbered with the unlimited axis first; `H5Dchunk_iter`
    undoes that wrongly unless this axis is the first anyway (HDF5 1.14.6, 2.0.0).
    """
    if not layout.index:
        raise UnsupportedError("the layout is not known, so that chunks may have other filters")
    if layout.index == "extensible array" and limits[0] is not None:
        raise UnsupportedError(
            "the HDF5 library misreports the chunks of an extensible array whose unlimited axis "
            "is not the first; rewrite the dataset with `h5repack --low=0 --high=1`"
        )


class _Collector:
    """Takes the records of `chunk_iter` and fills columns, a batch at a time.

    The callback is the `send` of a generator: it costs less than any Python function, and the
    records of a batch are the only Python objects alive at once.
    """

    def __init__(self, grids: Grids, chunk_shape: tuple[int, ...]) -> None:
        self.grids = grids
        self.chunk_shape = chunk_shape
        self.placed = 0
        self.columns = ChunkIndex.empty(grids.cells)

    def run(self, dsid: Any) -> None:
        # One call for each of millions of chunks: entering a Python frame for it would dominate.
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
        count, rank = len(batch), len(self.chunk_shape)
        flat = _column(chain.from_iterable(map(_coordinates, batch)), count * rank)
        corners = flat.reshape(count, rank)
        cells = corners // self.chunk_shape
        # The library reports corners as stored; a damaged index may put one between cells.
        if not np.array_equal(cells * self.chunk_shape, corners):
            raise SourceError("the chunk index names a place where no chunk can be")
        values = [_column(map(part, batch), count) for part in (_mask, _offset, _size)]
        inside = (cells < self.grids.now).all(axis=1)
        if not inside.all():  # entries of chunks beyond the dataset's present extent
            self._check_limits(cells)
            cells = cells[inside]
            values = [column[inside] for column in values]
        self._scatter(np.ravel_multi_index(tuple(cells.T), self.grids.now), *values)

    def _check_limits(self, cells: NDArray[np.int64]) -> None:
        for axis, most in enumerate(self.grids.most):
            if most is not None and (cells[:, axis] >= most).any():
                raise SourceError("the chunk index names a chunk that the dataset cannot have")

    def _scatter(self, cells: Any, mask: Any, offset: Any, length: Any) -> None:
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
        if not self.placed:
            return None
        if np.count_nonzero(self.columns.source == 0) != self.placed:
            raise SourceError("the chunk index names a chunk twice")
        return self.columns.reshape(self.grids.now)


def _column(values: Iterable[int], count: int) -> NDArray[np.int64]:
    return np.fromiter(values, dtype=np.int64, count=count)
