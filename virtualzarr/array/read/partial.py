"""Partial reads of uncompressed blocks: only the bytes needed, in reads of bounded size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.stores.coalesce import plan_reads
from virtualzarr.stores.files import ByteFile
from virtualzarr.stores.thread_pools import group_by_bytes

Index = slice | NDArray[np.int64]


@dataclass(frozen=True)
class UncompressedBlock:
    """Block of elements that are stored in memory layout, in C order of `shape`.

    Attributes
    ----------
    shape : tuple of int
        In the order the axes are stored.
    dtype : numpy dtype
        As stored, in either byte order.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis."""
        counts = [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        return tuple(count * self.dtype.itemsize for count in counts)


@dataclass(frozen=True, slots=True)
class PartialRead:
    """One read: bytes ``start:stop`` of the block hold the elements of ``out[target]``.

    `strided` gives shape and strides of the elements in the bytes; or `gather` their positions.
    """

    start: int
    stop: int
    target: Any
    strided: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    gather: NDArray[np.int64] | None = None

    def run(
        self,
        file: ByteFile,
        offset: int,
        dtype: np.dtype[Any],
        out: NDArray[Any],
        undo: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
    ) -> None:
        """Read bytes of a block that begins at `offset`, and copy their elements, after `undo`."""
        start, stop = offset + self.start, offset + self.stop
        if self.strided is None:
            data = file.read(start, stop)
            elements = np.frombuffer(data, dtype)[self.gather]
            out[self.target] = elements if undo is None else undo(elements)
            return
        view = out[self.target] if self.target else out
        verbatim = undo is None and view.dtype == dtype
        if verbatim and view.flags.c_contiguous and view.nbytes == stop - start:
            # No gaps and the output's layout: one system call, without a copy of our own.
            file.read_into(start, view.reshape(-1).view(np.uint8).data)
            return
        shape, strides = self.strided
        data = file.read(start, stop)
        # `np.ndarray` checks that the strides stay inside of the bytes; `as_strided` does not.
        elements = np.ndarray(shape, dtype, buffer=data, strides=strides)
        view[...] = elements if undo is None else undo(elements)


def plan_box(
    block: UncompressedBlock, select: Sequence[Index], gap: int, limit: int
) -> list[PartialRead]:
    """Plan the reads of an orthogonal selection of a block.

    Parameters
    ----------
    select : sequence of slice or 1-D int array, one for each stored axis
        Slices have non-negative bounds and positive steps.
    gap : int
        Unneeded runs of at most this many bytes are read along.
    limit : int
        No read is longer than about twice as many bytes.
    """
    indices = [
        np.arange(s.start, s.stop, s.step or 1) if isinstance(s, slice) else s for s in select
    ]
    if any(len(index) == 0 for index in indices):
        return []
    plain = all(isinstance(s, slice) for s in select)
    strides, size = block.strides, block.dtype.itemsize
    # The leading axes are cut into single indices, one axis into runs, the rest is left whole.
    axis = 0
    while axis < len(indices) and (
        _span(block, indices, axis + 1) > limit or _has_gaps(block, indices, axis + 1, gap)
    ):
        axis += 1
    if axis == len(indices):
        # Nothing but single elements.
        lead, runs = indices, [slice(None)]
        inner: list[NDArray[np.int64]] = []
    else:
        lead, inner = indices[:axis], indices[axis + 1 :]
        runs = _split_runs(
            indices[axis], strides[axis], _span(block, indices, axis + 1), gap, limit
        )
    corners = _byte_offsets(lead, strides[:axis]).reshape(-1)
    leading = [
        tuple(slice(i, i + 1) for i in position)
        for position in np.ndindex(*(len(index) for index in lead))
    ]
    reads = []
    for run in runs:
        # All elements of a run lie between its lowest and highest corner, as strides are positive.
        parts = [indices[axis][run], *inner] if axis < len(indices) else []
        low = [int(part.min()) for part in parts]
        first = _dot(low, strides[axis:])
        last = _dot([int(part.max()) for part in parts], strides[axis:]) + size
        inner_target = (run, *(slice(0, len(part)) for part in inner)) if parts else ()
        if plain:
            shape = (1,) * len(lead) + tuple(len(part) for part in parts)
            steps = [int(part[1] - part[0]) if len(part) > 1 else 1 for part in parts]
            by = [step * stride for step, stride in zip(steps, strides[axis:], strict=True)]
            strided = (shape, (size,) * len(lead) + tuple(by))
            reads += [
                PartialRead(corner + first, corner + last, target + inner_target, strided)
                for corner, target in zip(corners.tolist(), leading, strict=True)
            ]
        else:
            # Index arrays need positions by element: offsets count from the first byte read, and
            # are multiples of the element size, as all strides are.
            offsets = [part - least for part, least in zip(parts, low, strict=True)]
            gather = _byte_offsets(offsets, strides[axis:]) // size
            gather = gather.reshape((1,) * len(lead) + gather.shape)
            reads += [
                PartialRead(
                    corner + first,
                    corner + last,
                    _open_mesh(target + inner_target, indices),
                    None,
                    gather,
                )
                for corner, target in zip(corners.tolist(), leading, strict=True)
            ]
    return reads


def _split_runs(index: NDArray, stride: int, within: int, gap: int, limit: int) -> list[Any]:
    """Cut the indices along one axis where long gaps are, and where reads grow too long."""
    # Stable, so that repeated indices keep the order in which they are to come out.
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    new = np.diff(ordered) * stride - within > gap
    # Counted from the first index, so that a run is cut every `limit` bytes, wherever it begins.
    new |= np.diff((ordered - ordered[0]) * stride // limit) > 0
    edges = [0, *(np.flatnonzero(new) + 1).tolist(), len(index)]
    if (order[1:] > order[:-1]).all():
        return [slice(first, last) for first, last in pairwise(edges)]
    return [order[first:last] for first, last in pairwise(edges)]


def _byte_offsets(indices: Sequence[NDArray], strides: Sequence[int]) -> NDArray[np.int64]:
    """Return the distance in bytes of every combination of indices."""
    return np.asarray(_dot(np.ix_(*indices), strides) if indices else 0, dtype=np.int64)


def _open_mesh(target: tuple[Any, ...], indices: list[NDArray]) -> tuple[Any, ...]:
    return np.ix_(*(np.arange(len(i))[t] for i, t in zip(indices, target, strict=True)))


def _span(block: UncompressedBlock, indices: list[NDArray], axis: int) -> int:
    """Bytes from the first to the last selected element along the axes from `axis` on."""
    reach = [int(index.max() - index.min()) for index in indices[axis:]]
    return block.dtype.itemsize + _dot(reach, block.strides[axis:])


def _has_gaps(block: UncompressedBlock, indices: list[NDArray], axis: int, gap: int) -> bool:
    """Tell whether the selection along the axes from `axis` on leaves out long runs of bytes."""
    return any(
        len(indices[d]) > 1
        and int(np.diff(np.sort(indices[d])).max()) * block.strides[d]
        - _span(block, indices, d + 1) > gap
        for d in range(axis, len(indices))
    )  # fmt: skip


@lru_cache(maxsize=256)
def plan_slices(
    block: UncompressedBlock,
    bounds: tuple[tuple[int, int, int], ...],
    gap: int,
    limit: int,
    remote: bool,
) -> tuple[list[list[PartialRead]], int]:
    """Return the pieces of a selection by slices, in groups for one task each, and their bytes.

    Cached, since most chunks that a request touches are cut alike.
    """
    pieces = plan_box(block, [slice(*bound) for bound in bounds], gap, limit)
    # Running sums, from 0 on: what `group_by_bytes` cuts into tasks of about one size.
    sizes = np.array([piece.stop - piece.start for piece in pieces], dtype=np.int64)
    groups = group_by_bytes(np.append(0, np.cumsum(sizes)), alone=remote)
    return [pieces[first:last] for first, last in groups], int(sizes.sum())


def plan_points(
    block: UncompressedBlock, points: Sequence[NDArray], gap: int, limit: int
) -> list[PartialRead]:
    """Plan the reads of a coordinate selection: one index array for each stored axis."""
    size = block.dtype.itemsize
    offsets = np.asarray(_dot(points, block.strides)).reshape(-1)
    # Each point is a range of one element, so that coalescing bridges gaps as for whole chunks.
    plan = plan_reads(
        np.zeros_like(offsets), offsets, np.full_like(offsets, size), gap=gap, limit=limit
    )
    reads = []
    for i in range(len(plan)):
        chosen = plan.order[plan.first[i] : plan.first[i + 1]]
        start, stop = int(plan.start[i]), int(plan.stop[i])
        gather = (offsets[chosen] - start) // size
        reads.append(PartialRead(start, stop, chosen, None, gather))
    return reads


def _dot(numbers: Sequence[Any], strides: Sequence[int]) -> Any:
    return sum(number * stride for number, stride in zip(numbers, strides, strict=True))
