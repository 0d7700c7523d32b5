"""Stored columns: constant, affine, listed in the document, or a Zarr array read in blocks."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import RegularGrid
from grids.grouping import group_keys, rank_rows
from virtualzarr.array import Array
from virtualzarr.errors import BadReferenceError, MetadataError, OutOfMemoryError, error_context
from virtualzarr.manifest import Affine
from virtualzarr.metadata import (
    ArrayMetadata,
    loads_json,
    parse_array_v3,
)
from virtualzarr.metadata.json_documents import as_list, as_object, member, require, short
from virtualzarr.nodes.documents import join
from virtualzarr.references.native.chained import from_links
from virtualzarr.stores import FsspecStore, LocalStore, Store
from virtualzarr.stores.lru_cache import LRUCache
from virtualzarr.stores.read_only import unwrap

Int64 = NDArray[np.int64]
Bounds = tuple[int, int]

_MOST_CELLS = 1 << 22
"""Cells of a column's chunk from which on it is refused: far more than any writer makes."""

_MOST_BLOCKS = 4096
"""Blocks of a column that are loaded at a time."""

NAMES = ("source", "offset", "length", "decoder", "origin", "uri", "size", "mtime_ns", "etag")

KEPT = 64 * 1024 * 1024
"""Memory for blocks of columns used lately, shared by all arrays."""

LIMIT = 2**62
"""Offsets, lengths and strides may not be larger."""


def _nbytes(block: NDArray[Any]) -> int:
    # Texts lie elsewhere: a URL has about so many bytes.
    return block.nbytes * (20 if block.dtype.hasobject else 1) + 512


recent: LRUCache[Hashable, NDArray[Any]] = LRUCache(KEPT)
"""Blocks of columns, of all arrays."""


class Cells:
    """Some cells, grouped by the blocks of the columns that they are in."""

    def __init__(self, cells: Int64, shape: Sequence[int], chunks: Sequence[int]) -> None:
        self.cells = cells
        edges = np.array(chunks, np.int64)
        blocks = cells // edges
        self.inside = tuple((cells - blocks * edges).T)
        self.groups: list[tuple[tuple[int, ...], Any]]
        # Cells of one read mostly lie in one block: no sort then.
        if len(cells) == 1 or not len(edges) or (blocks == blocks[0]).all():
            self.groups = [(tuple(blocks[0].tolist()), slice(None))]
            return
        counts = [-(-n // c) for n, c in zip(shape, chunks, strict=True)]
        order, bounds, _ = group_keys(rank_rows(list(blocks.T), counts))
        self.groups = [
            (tuple(blocks[order[first]].tolist()), order[first:last])
            for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        ]


class Column:
    """One column of a part.

    Raises `MetadataError` if the document breaks its specification; `BadReferenceError` if numbers
    are out of bounds.

    Parameters
    ----------
    value : mapping
        What the part's document says of it.
    folder : str
        Path of the part in the store.
    shape : tuple of int
        Cells along each axis.
    bounds : (int, int) or None
        Lowest and highest number there may be; None for a column of texts.
    corner : tuple of int
        Shape of the entry of each cell.
    lengths : Column, optional
        The column of lengths, for offsets, which may be chained.
    """

    def __init__(
        self,
        value: Any,
        store: Store,
        folder: str,
        shape: tuple[int, ...],
        bounds: Bounds | None,
        corner: tuple[int, ...] = (),
        lengths: Column | None = None,
    ) -> None:
        value = as_object(value)
        if len(value) != 1:
            raise MetadataError("must have one member: constant, affine, values or array")
        ((kind, content),) = value.items()
        self.store, self.folder, self.bounds = store, folder, bounds
        self.shape, self.corner, self.ndim = (*shape, *corner), corner, len(shape)
        self.constant: Any = None
        self.affine: Affine | None = None
        self.values: NDArray[Any] | None = None
        self.name = ""
        self.lengths: Column | None = None
        self._array: Array | None = None
        self._chunks: tuple[int, ...] | None = None
        self._owner: Hashable = None
        # A document is hostile until proven otherwise: every number is checked against its
        # bounds, at once or when its block is read.
        with member(kind):
            if kind == "constant":
                self.constant = _constant(content, bounds)
            elif kind == "affine" and bounds is not None and not corner:
                self.affine = _affine(content, shape)
                # Of an affine column the corners are its extremes: none of its cells needs to be
                # looked at.
                if 0 not in shape:
                    self._check(*self.affine.bounds())
            elif kind == "values":
                self.values = self._with_bounds(_parse_values(content, self.shape, bounds))
            elif kind == "array":
                if content not in NAMES:
                    raise MetadataError(f"{short(content)} is not the name of a column")
                self.name = content
            elif kind == "chained" and lengths is not None:
                if content != "offset" or not lengths.name:
                    raise MetadataError("must be the column of offsets, beside stored lengths")
                self.name, self.lengths = content, lengths
            else:
                raise MetadataError("must be constant, affine, values or array")
        if self.constant is not None and bounds is not None and 0 not in shape:
            self._check(self.constant, self.constant)

    def _check(self, low: int, high: int) -> None:
        assert self.bounds is not None
        if low < self.bounds[0] or high > self.bounds[1]:
            raise BadReferenceError(
                f"numbers from {low} to {high}; allowed are {self.bounds[0]} to {self.bounds[1]}",
                file=f"{self.store.uri}/{join(self.folder, self.name)}",
            )

    @property
    def array(self) -> Array:
        """The stored array, whose document is read when it is first asked for."""
        if self._array is None:
            path = join(self.folder, self.name)
            file = f"{self.store.uri}/{path}"
            data = self.store.get(join(path, "zarr.json"))
            if data is None:
                raise MetadataError("the column is missing", file=file)
            with member(self.name):
                metadata = _parse_document(bytes(data))
            # A column must be no manifest array itself, or a document could send us round in
            # circles.
            numbers, grid = metadata.dtype.kind in "iu", metadata.grid
            if metadata.storage_transformers or not isinstance(grid, RegularGrid):
                raise MetadataError("a column is a plain array on a regular grid", file=file)
            if metadata.shape != self.shape or numbers != (self.bounds is not None):
                raise MetadataError(
                    f"the column has shape {metadata.shape} and data type {metadata.dtype}; it "
                    f"must have {self.shape} {'integers' if self.bounds else 'texts'}",
                    file=file,
                )
            uncut = all(c >= n for c, n in zip(grid.chunk_shape[self.ndim :], self.corner,
                                                strict=True))  # fmt: skip
            # A hostile document must not make us take more memory than columns ever need.
            if math.prod(grid.chunk_shape) > _MOST_CELLS or not uncut:
                raise MetadataError("the column's chunks are too large, or cut corners", file=file)
            if self.lengths is not None and self.lengths.array.chunks != grid.chunk_shape:
                raise MetadataError("the chunks of offsets are not those of lengths", file=file)
            self._array = Array.from_store(metadata, self.store, path)
            self._array.fill_missing = False
            store = unwrap(self.store)
            shared = isinstance(store, LocalStore | FsspecStore)
            self._owner = (type(store), store.uri) if shared else object()
        return self._array

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """Cells along each axis of a chunk of the stored array; None for other columns."""
        if self._chunks is None and self.name:
            self._chunks = self.array.chunks[: self.ndim]
        return self._chunks

    def take(self, cells: Int64, groupings: Mapping[tuple[int, ...], Cells]) -> NDArray[Any]:
        """Return the column's entries of some cells.

        Parameters
        ----------
        cells : int64 array, shape (cells, axes)
        groupings : mapping
            The same, grouped, by chunk shape.
        """
        # Calculated, listed, constant or stored: each without reading more than the blocks of
        # these cells.
        if self.affine is not None:
            strides = np.array(self.affine.strides, np.int64)
            return np.asarray(cells @ strides + self.affine.base, np.int64)
        if self.values is not None:
            return self.values[tuple(cells.T)]
        if self.chunks is None:
            dtype: Any = object if self.bounds is None else np.int64
            return np.broadcast_to(np.array(self.constant, dtype), (len(cells), *self.corner))
        grouping = groupings[self.chunks]
        if len(grouping.groups) == 1:
            return self._block(grouping.groups[0][0])[grouping.inside]
        out: NDArray[Any] | None = None
        for block_index, members in grouping.groups:
            block = self._block(block_index)
            if out is None:
                out = np.empty((len(cells), *self.corner), block.dtype)
            out[members] = block[tuple(index[members] for index in grouping.inside)]
        assert out is not None
        return out

    def _block(self, index: tuple[int, ...]) -> NDArray[Any]:
        array = self.array
        key = (self._owner, array.path, index)
        # The LRU cache holds decoded blocks, after their check, for all arrays of the process.
        block = recent.get(key)
        if block is None:
            block = self._read_block((*index, *(0,) * len(self.corner)))
            if self.lengths is not None:
                block = self._clip(from_links(block, self.lengths._block(index)), index)
            self._with_bounds(block)
            recent.put(key, block, _nbytes(block))
        return block

    def _read_block(self, index: tuple[int, ...]) -> NDArray[Any]:
        """Return a block as the array would, by one look-up where there are no shards."""
        array, metadata = self.array, self.array.metadata
        data = self.store.get(join(array.path, metadata.key_encoding.key(index)))
        if data is None or self.bounds is None or metadata.pipeline.serializer.needs_fill:
            return array.read(index, mode="block")
        grid = metadata.grid
        assert isinstance(grid, RegularGrid)
        with error_context(file=f"{self.store.uri}/{array.path}"):
            return metadata.pipeline.for_block(grid.chunk_shape, metadata.dtype).decode(data)

    def _with_bounds(self, values: NDArray[Any]) -> NDArray[Any]:
        if self.bounds is not None and values.size:
            self._check(int(values.min()), int(values.max()))
        return values

    def load(self, box: Sequence[slice] = ()) -> Any:
        """Return all of the column, or a box of it: a constant, or an array, or evenly spaced."""
        if self.affine is not None:
            ranges = [range(n)[part] for n, part in zip(self.shape, box, strict=True)]
            starts = zip(ranges, self.affine.strides, strict=True)
            base = self.affine.base + sum(r.start * stride for r, stride in starts)
            return Affine([len(r) for r in ranges], base, self.affine.strides)
        if self.values is not None:
            return self.values[tuple(box)]
        if not self.name:
            return self.constant
        if self.array.chunks == self.shape:
            # A copy: the block is shared with others.
            return self._block((0,) * self.ndim)[tuple(box)].copy()
        ranges = [range(n)[part] for n, part in zip(self.shape, box, strict=False)]
        out: NDArray[Any] | None = None
        # A document of a line may claim any number of cells: before memory is used for more of
        # them, the chunks that have been asked for were there.
        for part in _split(ranges, self.array.chunks):
            read = self.array.read if self.lengths is None else self._read_blocks
            values = self._with_bounds(read(tuple(slice(r.start, r.stop) for r in part)))
            if part == ranges:
                return values
            if out is None:
                out = self._allocate([len(r) for r in ranges], values.dtype)
            places = zip(part, ranges, strict=True)
            out[tuple(slice(p.start - r.start, p.stop - r.start) for p, r in places)] = values
        return out

    def _allocate(self, counts: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
        try:
            return np.empty((*counts, *self.corner), dtype)
        except (MemoryError, ValueError) as error:
            problem = f"there is no memory for a column of {math.prod(counts)} cells"
            raise OutOfMemoryError(problem, file=f"{self.store.uri}/{self.folder}") from error

    def _read_blocks(self, box: Sequence[slice]) -> Int64:
        """Return a box of a chained column, whose blocks are decoded one after the other."""
        ranges, chunks = [range(part.start, part.stop) for part in box], self.array.chunks
        out = np.empty([len(r) for r in ranges], np.int64)
        for index in product(*map(_find_blocks, ranges, chunks)):
            block = self._block(index)
            pairs = [
                _intersect(r, i * c, n)
                for r, i, c, n in zip(ranges, index, chunks, block.shape, strict=True)
            ]
            out[tuple(place for place, _ in pairs)] = block[tuple(part for _, part in pairs)]
        return out

    def _clip(self, block: NDArray[Any], index: tuple[int, ...]) -> NDArray[Any]:
        """Return the cells of a block that are not beyond the end of the column."""
        return block[tuple(
            slice(n - i * c) for n, i, c in zip(self.shape, index, block.shape, strict=True)
        )]  # fmt: skip


def _find_blocks(cells: range, chunk: int) -> range:
    """Return which blocks along an axis some cells are in."""
    return range(cells.start // chunk, -(-cells.stop // chunk) if cells else cells.start // chunk)


def _split(ranges: list[range], chunks: Sequence[int]) -> Iterator[list[range]]:
    """Yield parts of a box that touch few blocks each, all of it if that does."""
    blocks = [_find_blocks(r, chunk) for r, chunk in zip(ranges, chunks, strict=False)]
    if math.prod(map(len, blocks)) <= _MOST_BLOCKS:
        yield ranges
        return
    axis = max(range(len(blocks)), key=lambda i: len(blocks[i]))
    cells, middle = ranges[axis], chunks[axis] * blocks[axis][len(blocks[axis]) // 2]
    for half in (range(cells.start, middle), range(middle, cells.stop)):
        yield from _split([*ranges[:axis], half, *ranges[axis + 1 :]], chunks)


def _intersect(cells: range, start: int, count: int) -> tuple[slice, slice]:
    """Return which of some cells are in a block, and where there."""
    low, high = max(cells.start, start), min(cells.stop, start + count)
    return slice(low - cells.start, high - cells.start), slice(low - start, high - start)


@lru_cache(256)
def _parse_document(data: bytes) -> ArrayMetadata:
    # Columns of arrays with the same cells mostly have the same document.
    return parse_array_v3(loads_json(data))


def _constant(value: Any, bounds: Bounds | None) -> Any:
    if bounds is None and not isinstance(value, str):
        raise MetadataError(f"must be a text, not {short(value)}")
    if bounds is not None and type(value) is not int:
        raise MetadataError(f"must be an integer, not {short(value)}")
    return value


def _parse_values(value: Any, shape: tuple[int, ...], bounds: Bounds | None) -> NDArray[Any]:
    value = as_list(value)
    if len(value) != math.prod(shape):
        raise MetadataError(f"{len(value)} entries; the column has {math.prod(shape)}")
    for entry in value:
        _constant(entry, bounds)
        if bounds is not None and not -(2**63) <= entry < 2**63:
            raise MetadataError(f"{short(entry)} is no 64-bit integer")
    return np.array(value, object if bounds is None else np.int64).reshape(shape)


def _affine(value: Any, shape: tuple[int, ...]) -> Affine:
    value = as_object(value)
    require(value, "base", "strides")
    numbers = [value["base"], *as_list(value["strides"])]
    if not all(type(n) is int and abs(n) <= LIMIT for n in numbers):
        raise MetadataError("base and strides must be integers of at most 2^62")
    if len(numbers) != len(shape) + 1:
        raise MetadataError(f"{len(numbers) - 1} strides for {len(shape)} axes")
    return Affine(shape, numbers[0], numbers[1:])
