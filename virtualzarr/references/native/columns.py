"""Stored columns: constant, affine, listed in the document, or a Zarr array read in blocks."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import RegularGrid
from grids.grouping import group_keys, rank_rows
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.config import config
from virtualzarr.errors import BadReferenceError, MetadataError, error_context
from virtualzarr.manifest import Affine
from virtualzarr.metadata import (
    STRING,
    ArrayMetadata,
    array_to_v3,
    dumps_json,
    loads_json,
    parse_array_v3,
)
from virtualzarr.metadata.json_documents import as_list, as_object, member, require, short
from virtualzarr.nodes.documents import join
from virtualzarr.references.native.chained import from_links, to_links
from virtualzarr.stores import FsspecStore, LocalStore, Store
from virtualzarr.stores.lru_cache import LRUCache
from virtualzarr.stores.read_only import unwrap

Int64 = NDArray[np.int64]
Bounds = tuple[int, int]

_MOST_CELLS = 1 << 22
"""Cells of a column's chunk from which on it is refused: far more than any writer makes."""

NAMES = ("source", "offset", "length", "decoder", "origin", "uri", "size", "mtime_ns", "etag")

KEPT = 64 * 1024 * 1024
"""Memory for blocks of columns used lately, shared by all arrays."""

_INTEGERS = ("i1", "i2", "i4", "i8")

LIMIT = 2**62
"""Offsets, lengths and strides may not be larger."""


def chunk_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the chunk shape of columns over some cells: whole rows as far as there is room.

    Examples
    --------
    >>> chunk_shape((1000, 100, 100)), chunk_shape((10**8,)), chunk_shape(())
    ((6, 100, 100), (65536,), ())
    """
    chunks, room = [], config.tuning.column_cells
    # Whole rows, as reads and appends go along the first axis mostly.
    for count in reversed(shape):
        chunks.append(max(1, min(count, room)))
        room //= chunks[-1]
    return tuple(reversed(chunks))


# -- writing ------------------------------------------------------------------------------------


def save_numbers(store: Store, path: str, values: Any) -> dict[str, Any]:
    """Store a column of integers, and return what a part's document says of it.

    Parameters
    ----------
    path : str
        Where the column is stored, if it needs an array: its last part is named in the document.
    values : int array or Affine
    """
    if isinstance(values, Affine):
        return {"affine": {"base": values.base, "strides": list(values.strides)}}
    if not values.size:
        return {"constant": 0}
    low, high = _find_bounds(values)
    if low == high:
        return {"constant": low}
    if values.size <= config.tuning.listed_values:
        return {"values": values.reshape(-1).tolist()}
    dtype = _find_dtype(low, high)
    name = path.rsplit("/", 1)[-1]
    is_delta = name in ("source", "offset")  # numbers that mostly rise
    if values.size >= config.tuning.measured_values:
        first = values[tuple(map(slice, chunk_shape(values.shape)))]
        is_delta = _measure(first, True) < _measure(first, False)
    _write(store, path, values, dtype, _pipeline(dtype, is_delta))
    return {"array": name}


def save_offsets(store: Store, path: str, offset: Any, length: Any) -> dict[str, Any]:
    """Store the column of offsets as `save_numbers` does, or chained if that takes fewer bytes.

    Parameters
    ----------
    path : str
    offset, length : int array or Affine
    """
    chunks = chunk_shape(offset.shape)
    first = tuple(map(slice, chunks))
    if not (_is_large(offset) and _is_large(length)) or not _is_chain(offset[first], length[first]):
        return save_numbers(store, path, offset)
    links = to_links(offset, length, chunks)
    dtype = _find_dtype(int(links.min()), int(links.max()))
    _write(store, path, links, dtype, _pipeline(dtype, False))
    return {"chained": path.rsplit("/", 1)[-1]}


def _is_chain(offset: Int64, length: Int64) -> bool:
    """Tell whether links take fewer bytes than offsets, of the cells of one chunk."""
    links = to_links(offset, length, offset.shape)
    return _measure(links, False) < min(_measure(offset, is_delta) for is_delta in (True, False))


def _is_large(values: Any) -> bool:
    """Tell whether `save_numbers` stores a column as an array that is worth measuring."""
    tuning = config.tuning
    least = max(tuning.listed_values + 1, tuning.measured_values)
    if isinstance(values, Affine) or values.size < least:
        return False
    low, high = _find_bounds(values)
    return low < high


def _find_bounds(values: NDArray[Any]) -> Bounds:
    # Of broadcast columns, each number is looked at once: an axis with stride 0 repeats one.
    distinct = values[tuple(slice(0, 1) if s == 0 else slice(None) for s in values.strides)]
    return int(distinct.min()), int(distinct.max())


def _find_dtype(low: int, high: int) -> np.dtype[Any]:
    """Return the narrowest type that holds all: less to shuffle, to compress, and to cache."""
    return next(d for d in map(np.dtype, _INTEGERS)
                if np.iinfo(d).min <= low and high <= np.iinfo(d).max)  # fmt: skip


def _pipeline(dtype: np.dtype[Any], is_delta: bool) -> Pipeline:
    codecs = [make("bytes", endian="little"),
              make("numcodecs.shuffle", elementsize=dtype.itemsize),
              make("zstd", level=1, checksum=True)]  # fmt: skip
    return Pipeline([make("numcodecs.delta", dtype=dtype.str), *codecs] if is_delta else codecs)


def _measure(values: Int64, is_delta: bool) -> int:
    """Return how many bytes some numbers take."""
    dtype = _find_dtype(int(values.min()), int(values.max()))
    block = np.ascontiguousarray(values.astype(dtype))
    return len(_pipeline(dtype, is_delta).for_block(block.shape, dtype).encode(block))


def save_texts(store: Store, path: str, values: Sequence[str]) -> dict[str, Any]:
    """Store a column of texts, and return what a part's document says of it."""
    if not len(values) or all(value == values[0] for value in values):
        return {"constant": values[0] if len(values) else ""}
    if len(values) <= config.tuning.listed_values:
        return {"values": list(values)}
    column = np.empty(len(values), object)
    column[:] = values
    pipeline = Pipeline([make("vlen-utf8"), make("zstd", level=3, checksum=True)])
    _write(store, path, column.astype(STRING), STRING, pipeline, 4096)
    return {"array": path.rsplit("/", 1)[-1]}


def _write(
    store: Store, path: str, values: Any, dtype: Any, pipeline: Pipeline, rows: int | None = None
) -> None:
    chunks = chunk_shape(values.shape) if rows is None else (min(rows, len(values)),)
    metadata = ArrayMetadata(
        values.shape, dtype, RegularGrid(values.shape, chunks), pipeline,
        "" if dtype is STRING else 0,
    )  # fmt: skip
    array = Array.from_store(metadata, store, path)
    array.write_empty_chunks = True
    array[...] = values
    store.set(join(path, "zarr.json"), dumps_json(array_to_v3(metadata), indent=None))


# -- reading ------------------------------------------------------------------------------------


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
        if self.lengths is not None:
            return self._load_blocks(box)
        return self._with_bounds(self.array.read(tuple(box)))

    def _load_blocks(self, box: Sequence[slice]) -> Int64:
        """Return a box of a chained column, whose blocks are decoded one after the other."""
        ranges = [range(n)[part] for n, part in zip(self.shape, box, strict=True)]
        out = np.empty([len(r) for r in ranges], np.int64)
        numbers = [
            range(r.start // c, -(-r.stop // c) if r else r.start // c)
            for r, c in zip(ranges, self.array.chunks, strict=True)
        ]
        for index in product(*numbers):
            block = self._block(index)
            pairs = [
                _intersect(r, i * c, n)
                for r, i, c, n in zip(ranges, index, self.array.chunks, block.shape, strict=True)
            ]
            out[tuple(place for place, _ in pairs)] = block[tuple(part for _, part in pairs)]
        return out

    def _clip(self, block: NDArray[Any], index: tuple[int, ...]) -> NDArray[Any]:
        """Return the cells of a block that are not beyond the end of the column."""
        return block[tuple(
            slice(n - i * c) for n, i, c in zip(self.shape, index, block.shape, strict=True)
        )]  # fmt: skip


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
