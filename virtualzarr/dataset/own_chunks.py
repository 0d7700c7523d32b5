"""Chunks that are written to a dataset itself: encoded, verified, stored, and referred to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import Axis, from_axes
from virtualzarr.array import Array
from virtualzarr.codecs.core.fill_value import full_block, is_filled
from virtualzarr.dataset.segment import DATA
from virtualzarr.dataset.snapshot import Named
from virtualzarr.errors import UnsupportedError
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata, default_fill
from virtualzarr.rechunk.blocks import least_memory, plan_blocks

LARGEST_OBJECT = 64 << 20
"""Bytes from which on chunks go to another object."""


class ChunkWriter:
    """Encodes chunks and stores them in objects of a dataset.

    Parameters
    ----------
    put : callable
        Stores an object of a kind.
    folder : str
        Path or URL of the dataset.

    Attributes
    ----------
    data : list of Named
        The objects that were stored.
    nbytes : int
        Bytes in them.
    """

    def __init__(self, put: Callable[[str, bytes], Named], folder: str) -> None:
        self._put, self._folder = put, folder
        self.data: list[Named] = []
        self.nbytes = 0
        self._waiting: list[bytes] = []
        self._size = 0

    def encode(self, source: Array, axes: Sequence[Axis], memory: int) -> Callable[[], Manifest]:
        """Encode an array in chunks of other lengths.

        Parameters
        ----------
        source : Array
            What is encoded, read block by block.
        axes : sequence of Axis
            The new chunks.
        memory : int
            How many bytes a block of values may have, at least what the chunks need.

        Returns
        -------
        callable
            Returns the references, once `finish` was called.

        Raises
        ------
        UnsupportedError
            A chunk does not decode to the values that it was encoded from.
        """
        metadata, target = source.metadata, from_axes(axes)
        batch = _Batch(target.grid_shape)
        itemsize = max(metadata.dtype.itemsize, 1)
        old = source.grid
        need = least_memory(old, target, itemsize)  # type: ignore[arg-type]
        blocks = plan_blocks(old, target, itemsize, max(memory, need))  # type: ignore[arg-type]
        for number in np.ndindex(blocks.grid.grid_shape):
            box = _box_of(blocks.grid.axes, number)
            block = np.asarray(source[box]).reshape([part.stop - part.start for part in box])
            # Blocks are whole chunks of the target: their first and last cells bound them.
            first = [axis.cell_of(part.start) for axis, part in zip(axes, box, strict=True)]
            last = [axis.cell_of(part.stop - 1) for axis, part in zip(axes, box, strict=True)]
            for steps in np.ndindex(*(b - a + 1 for a, b in zip(first, last, strict=True))):
                cell = tuple(a + step for a, step in zip(first, steps, strict=True))
                inside = _box_of(axes, cell, [part.start for part in box])
                shape = tuple(axis.edge(n) for axis, n in zip(axes, cell, strict=True))
                data = encode_chunk(metadata, block[inside], shape, source.path)
                if data is not None:
                    batch.add(cell, *self.add(data))
        return lambda: self._to_manifest(batch)

    def finish(self) -> None:
        """Store what is still in memory."""
        if self._waiting:
            self.data.append(self._put(DATA, b"".join(self._waiting)))
            self._waiting, self._size = [], 0

    def add(self, data: bytes) -> tuple[int, int, int]:
        """Store a chunk: number of its object, offset and length in it."""
        if self._size >= LARGEST_OBJECT:
            self.finish()
        where = len(self.data), self._size, len(data)
        self._waiting.append(data)
        self._size += len(data)
        self.nbytes += len(data)
        return where

    def sources(self, others: Iterable[Source] = ()) -> Sources:
        """Return the objects as sources, after some others."""
        own = (Source(f"{self._folder}/{named.name}", size=named.size) for named in self.data)
        return Sources([*others, *own])

    def _to_manifest(self, batch: _Batch) -> Manifest:
        shape = batch.source.shape
        return Manifest(shape, self.sources(), batch.source, batch.offset, batch.length)


class _Batch:
    """The references of one array."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.source = np.full(shape, -1, np.int32)
        self.offset, self.length = np.zeros(shape, np.int64), np.zeros(shape, np.int64)

    def add(self, cell: tuple[int, ...], source: int, offset: int, length: int) -> None:
        self.source[cell], self.offset[cell], self.length[cell] = source, offset, length


def encode_chunk(
    metadata: ArrayMetadata, values: NDArray[Any], shape: tuple[int, ...], path: str
) -> bytes | None:
    """Return values as a chunk of a shape, None if they are all the fill value.

    Raises
    ------
    UnsupportedError
        The chunk does not decode to these values.
    """
    fill = default_fill(metadata.dtype) if metadata.fill_value is None else metadata.fill_value
    block = values
    if values.shape != shape:
        block = full_block(shape, fill, metadata.dtype)
        block[tuple(slice(n) for n in values.shape)] = values
    if metadata.fill_value is not None and is_filled(block, fill):
        return None
    codec = metadata.pipeline.for_block(shape, metadata.dtype, fill)
    data = codec.encode(block)
    if not _is_same(codec.decode(data), block):
        raise UnsupportedError(
            "its codecs do not give the values back that they are given, so that chunks cannot be "
            "written anew",
            variable=path,
        )
    return data


def _is_same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Tell whether values are the same to the bit."""
    if b.dtype.hasobject or b.dtype.kind == "T":
        return a.shape == b.shape and bool((a == b).all())
    native = a.astype(b.dtype, copy=False)
    return native.shape == b.shape and native.tobytes() == b.tobytes()


def _box_of(
    axes: Sequence[Axis], cell: Sequence[int], base: Sequence[int] | None = None
) -> tuple[slice, ...]:
    """Return the elements of a cell, relative to others."""
    starts = [axis.start(int(n)) for axis, n in zip(axes, cell, strict=True)]
    lengths = [axis.length(int(n)) for axis, n in zip(axes, cell, strict=True)]
    offsets = base or [0] * len(starts)
    return tuple(
        slice(start - offset, start - offset + length)
        for start, length, offset in zip(starts, lengths, offsets, strict=True)
    )
