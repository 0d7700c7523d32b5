"""Columns as they are stored: each in the form that takes fewest bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import RegularGrid
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.config import config
from virtualzarr.manifest import Affine
from virtualzarr.metadata import STRING, ArrayMetadata, array_to_v3, dumps_json
from virtualzarr.nodes.documents import join
from virtualzarr.references.native.chained import to_links
from virtualzarr.references.native.columns import LIMIT
from virtualzarr.stores import Store

Int64 = NDArray[np.int64]

_INTEGERS = ("i1", "i2", "i4", "i8")


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


def find_affine(values: Any) -> Any:
    """Return a column that is evenly spaced along each axis as `Affine`, any other as it is.

    Parameters
    ----------
    values : int array or Affine
        Numbers from -1 to 2^62. Short columns and constants stay as they are.

    Examples
    --------
    >>> find_affine(5 + 10 * np.arange(300).reshape(3, 100)).strides
    (1000, 10)
    """
    if isinstance(values, Affine) or values.size <= config.tuning.listed_values:
        return values
    corner = (0,) * values.ndim
    base = int(values[corner])
    nexts = (tuple(int(i == axis and n > 1) for i in range(values.ndim))
             for axis, n in enumerate(values.shape))  # fmt: skip
    affine = Affine(values.shape, base, [int(values[cell]) - base for cell in nexts])
    low, high = affine.bounds()
    # The last cell tells nearly all others apart, and the bounds that sums do not wrap around.
    last = base + sum((n - 1) * s for n, s in zip(affine.shape, affine.strides, strict=True))
    is_possible = int(values[tuple(n - 1 for n in values.shape)]) == last
    if not is_possible or low == high or low < -1 or high > LIMIT:
        return values
    chunks = chunk_shape(values.shape)
    for start in product(*(range(0, n, c) for n, c in zip(values.shape, chunks, strict=True))):
        box = tuple(slice(a, a + c) for a, c in zip(start, chunks, strict=True))
        if not np.array_equal(affine[box], values[box]):
            return values
    return affine


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
    _write_numbers(store, path, values, dtype, is_delta)
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
    _write_numbers(store, path, links, dtype, False)
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


def _find_bounds(values: NDArray[Any]) -> tuple[int, int]:
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
    grid = RegularGrid(column.shape, (min(4096, len(values)),))
    metadata = ArrayMetadata(column.shape, STRING, grid, pipeline, "")
    _write_blocks(store, path, column.astype(STRING), metadata)
    store.set(join(path, "zarr.json"), dumps_json(array_to_v3(metadata), indent=None))
    return {"array": path.rsplit("/", 1)[-1]}


def _write_numbers(
    store: Store, path: str, values: NDArray[Any], dtype: np.dtype[Any], is_delta: bool
) -> None:
    metadata, document = _describe(values.shape, chunk_shape(values.shape), dtype, is_delta)
    if metadata.grid.grid_shape == (1,) * values.ndim:
        # Commits have columns of one block, by the dozen.
        block = metadata.pipeline.for_block(values.shape, dtype)
        data = block.encode(np.ascontiguousarray(values, dtype))
        store.set(join(path, metadata.key_encoding.key((0,) * values.ndim)), data)
    else:
        _write_blocks(store, path, values, metadata)
    store.set(join(path, "zarr.json"), document)


@lru_cache(256)
def _describe(
    shape: tuple[int, ...], chunks: tuple[int, ...], dtype: np.dtype[Any], is_delta: bool
) -> tuple[ArrayMetadata, bytes]:
    """Return the metadata of a column, and its document."""
    grid = RegularGrid(shape, chunks)
    metadata = ArrayMetadata(shape, dtype, grid, _pipeline(dtype, is_delta), 0)
    return metadata, dumps_json(array_to_v3(metadata), indent=None)


def _write_blocks(store: Store, path: str, values: Any, metadata: ArrayMetadata) -> None:
    array = Array.from_store(metadata, store, path)
    array.write_empty_chunks = True
    array[...] = values
