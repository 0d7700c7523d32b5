"""Reading parts of uncompressed blocks: only the bytes needed, in bounded pieces."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.stores.files import ByteFile
from virtualzarr.stores.planning import plan_reads

Index = slice | NDArray[np.int64]


@dataclass(frozen=True)
class RawBlock:
    """Elements that lie in a file as they are, in C order of `shape`.

    Attributes
    ----------
    file : ByteFile
    offset : int
        First byte of the block.
    shape : tuple of int
        In the order the axes are stored.
    dtype : numpy dtype
        As stored, in either byte order.
    """

    file: ByteFile
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis."""
        counts = [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        return tuple(count * self.dtype.itemsize for count in counts)


@dataclass(frozen=True)
class Piece:
    """One read: bytes ``start:stop`` of the file hold the elements that go to ``out[target]``.

    `lattice` gives shape and strides of the elements in the bytes; or `gather` their positions.
    """

    block: RawBlock
    start: int
    stop: int
    target: Any
    lattice: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    gather: NDArray[np.int64] | None = None

    def run(self, out: NDArray[Any]) -> None:
        """Read the bytes and place them."""
        dtype, nbytes = self.block.dtype, self.stop - self.start
        if self.lattice is not None:
            view = out[self.target] if self.target else out
            dense = view.nbytes == nbytes and view.dtype == dtype and not dtype.hasobject
            if dense and view.flags.c_contiguous and _is_c_order(*self.lattice, dtype.itemsize):
                self.block.file.read_into(self.start, view.reshape(-1).view(np.uint8).data)
                return
            data = self.block.file.read(self.start, self.stop)
            shape, strides = self.lattice
            view[...] = np.ndarray(shape, dtype, buffer=data, strides=strides)
            return
        data = self.block.file.read(self.start, self.stop)
        out[self.target] = np.frombuffer(data, dtype)[self.gather]


def _is_c_order(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    expected = itemsize
    for count, stride in zip(reversed(shape), reversed(strides), strict=True):
        if count != 1 and stride != expected:
            return False
        expected *= count
    return True


def split_box(block: RawBlock, select: Sequence[Index], gap: int, limit: int) -> Iterator[Piece]:
    """Cut an orthogonal selection of a block into pieces.

    Parameters
    ----------
    select : sequence of slice or 1-D int array, one for each stored axis
        Slices have non-negative bounds and positive steps.
    gap : int
        Unneeded runs of at most this many bytes are read along.
    limit : int
        No piece is longer than about this many bytes.
    """
    indices = [
        np.arange(s.start, s.stop, s.step or 1) if isinstance(s, slice) else s for s in select
    ]
    if any(len(index) == 0 for index in indices):
        return
    plain = all(isinstance(s, slice) for s in select)
    whole = [slice(0, len(index)) for index in indices]
    for chosen in _cut(block, indices, whole, 0, gap, limit):
        parts = [index[c] for index, c in zip(indices, chosen, strict=True)]
        low = [int(part.min()) for part in parts]
        high = [int(part.max()) for part in parts]
        start = block.offset + _dot(low, block.strides)
        stop = block.offset + _dot(high, block.strides) + block.dtype.itemsize
        if plain:
            shape = tuple(len(part) for part in parts)
            strides = tuple(
                int(part[1] - part[0]) * stride if len(part) > 1 else stride
                for part, stride in zip(parts, block.strides, strict=True)
            )
            yield Piece(block, start, stop, tuple(chosen), lattice=(shape, strides))
        else:
            steps = np.ix_(*[part - first for part, first in zip(parts, low, strict=True)])
            gather = _dot(steps, block.strides) // block.dtype.itemsize
            everywhere = [np.arange(len(i))[c] for i, c in zip(indices, chosen, strict=True)]
            yield Piece(block, start, stop, np.ix_(*everywhere), gather=gather)


def _cut(
    block: RawBlock, indices: list[NDArray], chosen: list[Any], axis: int, gap: int, limit: int
) -> Iterator[list[Any]]:
    """Yield selections within `indices`, each of which is worth one read."""
    if axis == len(indices):
        yield chosen
        return
    order = np.argsort(indices[axis], kind="stable")
    ordered, stride = indices[axis][order], block.strides[axis]
    within = _span(block, indices, axis + 1)
    new = np.ones(len(order), bool)
    if within <= limit and not _has_gaps(block, indices, axis + 1, gap):
        new[1:] = np.diff(ordered) * stride - within > gap
        new[1:] |= np.diff((ordered - ordered[0]) * stride // limit) > 0
    edges = np.append(np.flatnonzero(new), len(order))
    in_order = bool((order[1:] > order[:-1]).all())
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        part = slice(first, last) if in_order else order[first:last]
        narrowed = [*chosen[:axis], part, *chosen[axis + 1 :]]
        if last - first == 1:
            # A single index: the axes behind it may be cut as well.
            yield from _cut(block, indices, narrowed, axis + 1, gap, limit)
        else:
            yield narrowed


def _span(block: RawBlock, indices: list[NDArray], axis: int) -> int:
    """Bytes from the first to the last selected element along the axes from `axis` on."""
    reach = [int(index.max() - index.min()) for index in indices[axis:]]
    return block.dtype.itemsize + _dot(reach, block.strides[axis:])


def _has_gaps(block: RawBlock, indices: list[NDArray], axis: int, gap: int) -> bool:
    """Tell whether the selection along the axes from `axis` on leaves out long runs of bytes."""
    return any(
        len(indices[d]) > 1
        and int(np.diff(np.sort(indices[d])).max()) * block.strides[d]
        - _span(block, indices, d + 1) > gap
        for d in range(axis, len(indices))
    )  # fmt: skip


def split_points(
    block: RawBlock, points: Sequence[NDArray], gap: int, limit: int
) -> Iterator[Piece]:
    """Cut a coordinate selection of a block (one index array for each stored axis) into pieces."""
    size = block.dtype.itemsize
    where = np.asarray(_dot(points, block.strides)).reshape(-1)
    plan = plan_reads(np.zeros_like(where), where, np.full_like(where, size), gap=gap, limit=limit)
    for i in range(len(plan)):
        chosen = plan.order[plan.first[i] : plan.first[i + 1]]
        start, stop = int(plan.start[i]), int(plan.stop[i])
        gather = (where[chosen] - start) // size
        yield Piece(block, block.offset + start, block.offset + stop, chosen, gather=gather)


def _dot(numbers: Sequence[Any], strides: Sequence[int]) -> Any:
    return sum(number * stride for number, stride in zip(numbers, strides, strict=True))
