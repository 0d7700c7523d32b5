"""Columns of a chunk index: offset, length and filter mask of each cell of the grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.config import config
from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.hdf5.btree_v2 import is_less

# A grid is kept densely: large ones need at least one chunk in this many cells.
CELLS_PER_CHUNK = 64
# Larger addresses and lengths could overflow when they are added.
MAX_NUMBER = 1 << 62


@dataclass(slots=True)
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
    def empty(cls, shape: int | tuple[int, ...]) -> ChunkIndex:
        """Return columns without a chunk."""
        offset, length = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        return cls(np.full(shape, -1, dtype=np.int32), offset, length)

    def reshape(self, shape: tuple[int, ...]) -> ChunkIndex:
        """Return the columns in another shape."""
        if self.source.shape == shape:
            return self
        return ChunkIndex(
            self.source.reshape(shape),
            self.offset.reshape(shape),
            self.length.reshape(shape),
            None if self.mask is None else self.mask.reshape(shape),
        )


@dataclass(frozen=True)
class Grids:
    """How many chunks a dataset has along each axis, now and at most.

    Parameters
    ----------
    most : tuple of int or None
        None for an axis that grows without end.
    """

    now: tuple[int, ...]
    most: tuple[int | None, ...]

    @classmethod
    @lru_cache(1024)
    def of(
        cls, shape: tuple[int, ...], limits: tuple[int | None, ...], chunk: tuple[int, ...]
    ) -> Grids:
        """Count the chunks."""
        now = tuple([-(-n // edge) for n, edge in zip(shape, chunk, strict=True)])
        most = [None if n is None else -(-n // e) for n, e in zip(limits, chunk, strict=True)]
        return cls(now, tuple(most))

    @property
    def cells(self) -> int:
        """Number of cells of the present grid."""
        return math.prod(self.now)


@dataclass(slots=True)
class Chunks:
    """Chunks in some order.

    Parameters
    ----------
    address : int64 array
        Negative where none is stored.
    size : int64 array or int
        Bytes.
    mask : uint32 array or int
    """

    address: NDArray[np.int64]
    size: NDArray[np.int64] | int
    mask: NDArray[np.uint32] | int


@dataclass(slots=True)
class SmallIndex:
    """A few chunks: size, mask, corner (the last number means nothing) and address of each."""

    records: list[tuple[int, ...]]
    chunk: tuple[int, ...]


@dataclass(slots=True)
class NumberedChunks:
    """Chunks that an index numbers: through the largest grid there can be, one axis first.

    Parameters
    ----------
    runs : list of (int, Chunks)
        Chunks whose numbers follow each other, and the first of these numbers.
    axis : int
        The axis that changes slowest.
    """

    runs: list[tuple[int, Chunks]]
    axis: int = 0


class ColumnBuilder:
    """Puts chunks into the columns of a grid, some at a time; addresses stay addresses.

    Raises `UnsupportedError` if the grid is large and will be almost empty.

    Parameters
    ----------
    most : int
        No more chunks than this will come.
    """

    def __init__(self, grids: Grids, most: int) -> None:
        check_sparsity(most, grids.cells)
        self.grids = grids
        # Where nothing will come, the grid may have any size.
        self._columns = ChunkIndex.empty(grids.cells if most else 0)
        self._count = 0

    def add(self, cells: NDArray[Any], chunks: Chunks, ascending: bool = False) -> None:
        """Add chunks by their cells, which are not negative.

        Raises `SourceError` if a cell is one that the dataset cannot have, or they are not
        `ascending` but must be.
        """
        grids, columns = self.grids, self._columns
        # One axis after the other: numpy is slow along a last axis of a few numbers.
        if any(bool((cells[:, axis] >= n).any()) for axis, n in enumerate(grids.now)):
            if ascending and not is_less(cells[:-1], cells[1:]).all():
                raise SourceError("the keys of a B-tree are out of order")
            cells, chunks = _drop_beyond_extent(cells, chunks, grids)
        if not len(cells):
            return
        cell_rows = _flatten_cells(cells, grids.now)
        # Within the grid, the order of cells is that of their numbers: one comparison, not one for
        # each axis.
        if (
            ascending
            and not isinstance(cell_rows, slice)
            and (cell_rows[1:] <= cell_rows[:-1]).any()
        ):
            raise SourceError("the keys of a B-tree are out of order")
        # Scattered in any order: a cell that is named twice shows when the columns are counted in
        # `build`.
        columns.source[cell_rows] = 0
        columns.offset[cell_rows] = chunks.address
        columns.length[cell_rows] = chunks.size
        self._count += len(cells)
        if np.any(chunks.mask):
            if columns.mask is None:
                columns.mask = np.zeros(grids.cells, dtype=np.uint32)
            columns.mask[cell_rows] = chunks.mask

    def build(self) -> ChunkIndex | None:
        """Return the columns, None if no chunk came.

        Raises `SourceError` if a cell was named twice; `UnsupportedError` as for the class.
        """
        if not self._count:
            return None
        if np.count_nonzero(self._columns.source == 0) != self._count:
            raise SourceError("the chunk index names a chunk twice")
        check_sparsity(self._count, self.grids.cells)
        return self._columns.reshape(self.grids.now)


def _flatten_cells(cells: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.int64] | slice:
    """Return where cells are in columns: a slice if they follow each other, as they often do."""
    flat = cells[:, 0].astype(np.int64)
    for axis in range(1, len(shape)):
        flat *= shape[axis]
        flat += cells[:, axis]
    first, last = int(flat[0]), int(flat[-1])
    # A slice is assigned many times faster than an index array, and indexes list chunks in order.
    if last - first == len(flat) - 1 and bool((np.diff(flat) == 1).all()):
        return slice(first, last + 1)
    return flat


def to_columns(
    chunks: ChunkIndex | NumberedChunks | SmallIndex | None, grids: Grids, size: int, base: int
) -> ChunkIndex | None:
    """Return what an index holds as columns of the present grid; None if that is nothing.

    Raises `SourceError` if a chunk lies outside the file or the grid, or is named twice;
    `UnsupportedError` if the grid is large and almost empty.

    Parameters
    ----------
    size : int
        Bytes of the file after address 0; all chunks must lie within.
    base : int
        Byte of the file that is address 0.
    """
    if isinstance(chunks, SmallIndex):
        few = _fill_grid(chunks, grids, size, base)
        if few is not None:
            return few
        chunks = _place_small(chunks, grids)
    elif isinstance(chunks, NumberedChunks):
        chunks = _reshape_dense(chunks, grids) or _place_sparse(chunks, grids)
    return None if chunks is None else _check_and_rebase(chunks, size, base)


def _fill_grid(chunks: SmallIndex, grids: Grids, size: int, base: int) -> ChunkIndex | None:
    """Place chunks that fill the grid, in its order; None where they do not."""
    now, records = grids.now, chunks.records
    if not records or len(records) != math.prod(now):
        return None
    # Compared with the corners of a full grid in C order, which proves that each is there once.
    lengths, masks, *corners, _, addresses = zip(*records, strict=True)
    if corners != _list_corners(now, chunks.chunk) or max(map(add, addresses, lengths)) > size:
        return None
    offset, length, mask = np.array((addresses, lengths, masks), np.int64).reshape(3, *now)
    if base:
        offset += base
    skipped = mask.astype(np.uint32) if any(masks) else None
    return ChunkIndex(np.zeros(now, np.int32), offset, length, skipped)


@lru_cache(1024)
def _list_corners(now: tuple[int, ...], chunk: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the first elements of chunks along each axis; grids are small here."""
    positions = product(*[range(0, n * edge, edge) for n, edge in zip(now, chunk, strict=True)])
    return list(zip(*positions, strict=True))


def _place_small(chunks: SmallIndex, grids: Grids) -> ChunkIndex | None:
    """Place chunks that do not fill the grid, or of which something is wrong."""
    records = chunks.records
    try:
        table = np.array(records, np.int64).reshape(len(records), len(grids.now) + 4)
    except OverflowError as error:
        raise SourceError("the chunk index holds an address or a place that cannot be") from error
    size, masks, address = table[:, 0], table[:, 1], table[:, -1]
    builder = ColumnBuilder(grids, len(records))
    builder.add(
        corners_to_cells(table[:, 2:-2], chunks.chunk),
        Chunks(address, size, masks.astype(np.uint32)),
    )
    return builder.build()


def corners_to_cells(corners: NDArray[np.int64], chunk: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the cells of chunks by their first elements.

    Raises `SourceError` if no chunk can start there.
    """
    cells = corners // chunk
    if len(corners) and (int(corners.min()) < 0 or not np.array_equal(cells * chunk, corners)):
        raise SourceError("the chunk index names a place where no chunk can be")
    return cells


def check_sparsity(stored: int, cells: int) -> None:
    """Refuse a grid that is too large for the few chunks in it.

    Raises `UnsupportedError`.
    """
    if stored and cells > max(config.limits.sparse_cells, CELLS_PER_CHUNK * stored):
        raise UnsupportedError(
            f"only {stored} of {cells} chunks are stored; a grid that large and that empty is "
            "not supported (virtualzarr.config.limits.sparse_cells)"
        )


def _drop_beyond_extent(
    cells: NDArray[Any], chunks: Chunks, grids: Grids
) -> tuple[NDArray[Any], Chunks]:
    """Leave out chunks beyond the dataset's present extent, which it may have had."""
    # Chunks past the present extent are legal after a dataset shrank; past its limits they are not.
    for axis, most in enumerate(grids.most):
        if most is not None and (cells[:, axis] >= most).any():
            raise SourceError("the chunk index names a chunk that the dataset cannot have")
    inside = np.all(cells < np.array(grids.now), axis=1)
    return cells[inside], _select_chunks(chunks, inside)


def _select_chunks(chunks: Chunks, which: NDArray[np.bool_]) -> Chunks:
    size = chunks.size if isinstance(chunks.size, int) else chunks.size[which]
    mask = chunks.mask if isinstance(chunks.mask, int) else chunks.mask[which]
    return Chunks(chunks.address[which], size, mask)


def _order_axes(chunks: NumberedChunks, grids: Grids) -> tuple[list[int], list[int]]:
    """Return the axes as chunks are numbered, and the lengths of all but the first."""
    axes = [chunks.axis, *(k for k in range(len(grids.now)) if k != chunks.axis)]
    inner = [grids.most[k] for k in axes[1:]]
    if None in inner:
        raise SourceError("the chunk index is of a kind that this dataset cannot have")
    return axes, [int(n) for n in inner if n is not None]


def _reshape_dense(numbered: NumberedChunks, grids: Grids) -> ChunkIndex | None:
    """Take numbered chunks as one array; None where that would be large and almost empty."""
    axes, inner = _order_axes(numbered, grids)
    outer = grids.now[numbered.axis]
    # Chunks are numbered through the largest grid that the limits allow (section VII): of the axes
    # but the slowest, more cells may be numbered than the present extent has.
    count = outer * math.prod(inner)
    nstored = sum(len(chunks.address) for _, chunks in numbered.runs)
    if count > max(config.limits.sparse_cells, CELLS_PER_CHUNK * nstored):
        return None
    chunks = _join_runs(numbered.runs, count)

    def placed(column: NDArray[Any]) -> NDArray[Any]:
        cut = column.reshape(outer, *inner)[tuple([slice(grids.now[k]) for k in axes])]
        return np.moveaxis(cut, 0, numbered.axis)

    address = placed(chunks.address)
    size = np.broadcast_to(chunks.size, count) if isinstance(chunks.size, int) else chunks.size
    mask = None if isinstance(chunks.mask, int) else placed(chunks.mask).astype(np.uint32)
    source = np.where(address < 0, np.int32(-1), np.int32(0))
    return ChunkIndex(source, address, placed(size), mask)


def _join_runs(runs: list[tuple[int, Chunks]], count: int) -> Chunks:
    """Return the chunks numbered from 0 to `count`."""
    if len(runs) == 1 and runs[0][0] == 0 and len(runs[0][1].address) >= count:
        chunks = runs[0][1]
        size = chunks.size if isinstance(chunks.size, int) else chunks.size[:count]
        mask = chunks.mask if isinstance(chunks.mask, int) else chunks.mask[:count]
        return Chunks(chunks.address[:count], size, mask)
    address = np.full(count, -1, dtype=np.int64)
    size = _allocate_column([chunks.size for _, chunks in runs], count)
    mask = _allocate_column([chunks.mask for _, chunks in runs], count)
    while runs:  # each is forgotten when it is joined
        start, chunks = runs.pop()
        stop = min(start + len(chunks.address), count)
        for column, part in ((address, chunks.address), (size, chunks.size), (mask, chunks.mask)):
            if start < stop and not isinstance(column, int):
                column[start:stop] = part if isinstance(part, int) else part[: stop - start]
    return Chunks(address, size, mask)


def _allocate_column(columns: list[Any], count: int) -> Any:
    """Return a column to join others in; a number that all of them share stays a number."""
    first = columns[0] if columns else 0
    if all(isinstance(column, int) and column == first for column in columns):
        return first
    return np.zeros(count, dtype=np.int64)


def _place_sparse(numbered: NumberedChunks, grids: Grids) -> ChunkIndex | None:
    """Place numbered chunks one run after the other."""
    axes, inner = _order_axes(numbered, grids)
    last = max((start + len(chunks.address) for start, chunks in numbered.runs), default=0)
    if last >= MAX_NUMBER or math.prod(inner) >= MAX_NUMBER:
        raise UnsupportedError("the grid of chunks has more cells than can be numbered")
    stored = [chunks.address >= 0 for _, chunks in numbered.runs]
    builder = ColumnBuilder(grids, sum(map(np.count_nonzero, stored)))
    for (start, chunks), which in zip(numbered.runs, stored, strict=True):
        # Only stored chunks are numbered: the largest grid may have 2**60 cells.
        numbers = np.flatnonzero(which) + start
        cells = np.empty((len(numbers), len(axes)), dtype=np.int64)
        for axis, length in zip(axes[:0:-1], inner[::-1], strict=True):
            numbers, cells[:, axis] = np.divmod(numbers, length)
        cells[:, numbered.axis] = numbers
        builder.add(cells, _select_chunks(chunks, which))
    return builder.build()


def _check_and_rebase(columns: ChunkIndex, size: int, base: int) -> ChunkIndex | None:
    """Check that chunks lie within the file, and turn addresses to bytes of the file."""
    address, length, source = columns.offset, columns.length, columns.source
    if not address.size or int(source.max()) < 0:
        return None
    # Checked before they are added: the sum of two numbers near 2**63 would overflow to a small
    # one.
    if int(address.max()) >= MAX_NUMBER or int(length.max()) >= MAX_NUMBER:
        raise SourceError("a chunk lies outside the file")
    if int(address.max()) + int(length.max()) > size:
        ends = np.where(source == 0, address + length, 0)
        if int(ends.max()) > size:
            raise SourceError(f"a chunk ends at byte {int(ends.max())} of a file of {size}")
    missing = source < 0 if int(source.min()) < 0 else None
    if missing is not None:
        address, length = np.where(missing, 0, address), np.where(missing, 0, length)
    if int(length.min()) < 0 or int(address.min()) < 0:
        raise SourceError("the chunk index holds an address or a length that cannot be")
    if base:
        address = address + (base if missing is None else np.where(missing, 0, base))
    columns.offset = np.ascontiguousarray(address)
    columns.length = np.ascontiguousarray(length)
    columns.source = np.ascontiguousarray(source)
    return columns
