"""Strided layouts: uncompressed elements at even distances, for partial reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs.core.base import ArrayArray, Block, ChunkSpec
from virtualzarr.codecs.pick import Pick
from virtualzarr.codecs.transpose import Transpose

Index = slice | NDArray[np.int64]


@dataclass(frozen=True)
class StridedLayout:
    """Where the elements of a block are among those that are stored, uncompressed.

    Attributes
    ----------
    dtype : numpy.dtype
        As stored, in either byte order.
    shape : tuple of int
        Of what is stored, in the order of its axes.
    axes : tuple of (axis or None, start, step)
        For each stored axis, the axis of the block that runs along it, from which index and by
        which step; or None for an axis of which the block has just the index `start`.
    undo : tuple of (codec, dtype)
        What is done to each element after it is read, first things first, and the dtype it gives.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    axes: tuple[tuple[int | None, int, int], ...]
    undo: tuple[tuple[ArrayArray, np.dtype[Any]], ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all that is stored."""
        return math.prod(self.shape) * self.dtype.itemsize

    def to_stored(self, select: Sequence[Index]) -> list[Index]:
        """Return which stored elements a selection of the block is, along each stored axis.

        Slices have positive steps and stay slices with positive steps: where elements are stored
        in reverse, what `arrange_output` returns is reversed, too.
        """
        return [
            slice(start, start + 1) if axis is None else _compose_index(select[axis], start, step)
            for axis, start, step in self.axes
        ]

    def arrange_output(self, out: Block, select: Sequence[Index]) -> Block:
        """Return a view of the output for a selection, with the axes of what is stored."""
        axes = [axis for axis, _, _ in self.axes if axis is not None]
        view = out.transpose(axes)
        for stored_axis, (axis, _, step) in enumerate(self.axes):
            if axis is None:
                view = np.expand_dims(view, stored_axis)
            elif step < 0 and isinstance(select[axis], slice):
                view = np.flip(view, stored_axis)
        return view

    def take(self, elements: Block, select: Sequence[slice]) -> Block:
        """Return the selected part of each of many blocks, stored along a first axis."""
        part = self.decode(elements[(slice(None), *self.to_stored(select))])
        # Stored slices always go forward; where the block counts backwards, the result is reversed.
        forward, backward = slice(None), slice(None, None, -1)
        along = (0 if axis is None else backward if step < 0 else forward
                 for axis, _, step in self.axes)  # fmt: skip
        axes = [axis for axis, _, _ in self.axes if axis is not None]
        return part[(forward, *along)].transpose(0, *(1 + axes.index(i) for i in range(len(axes))))

    def decode(self, elements: Block) -> Block:
        """Return elements as those of the block, which may have any shape."""
        if not self.undo:
            return elements
        # Codecs of arrays expect native elements, whatever the byte order of the file.
        elements = elements.astype(elements.dtype.newbyteorder("="))
        for codec, dtype in self.undo:
            elements = codec.decode(elements, ChunkSpec(elements.shape, dtype))
        return elements


def _compose_index(select: Index, start: int, step: int) -> Index:
    if not isinstance(select, slice):
        return start + step * select
    first, by = select.start, select.step or 1
    # The last element that is taken, not the stop: with a negative step it becomes the first.
    last = first + (select.stop - 1 - first) // by * by
    ends = sorted((start + step * first, start + step * last))
    return slice(ends[0], ends[1] + 1, abs(step) * by)


def find_strided_layout(
    filters: Sequence[tuple[ArrayArray, ChunkSpec]], dtype: np.dtype[Any], shape: tuple[int, ...]
) -> StridedLayout | None:
    """Return the strided layout of blocks behind a chain of array-to-array codecs.

    Parameters
    ----------
    filters : sequence of (codec, spec)
        With the spec of what goes in.
    dtype, shape
        Of what is stored.

    Returns
    -------
    StridedLayout or None
        None if a codec does more than choose, order or convert single elements.
    """
    ndim = len(filters[0][1].shape) if filters else len(shape)
    axes: list[tuple[int | None, int, int]] = [(axis, 0, 1) for axis in range(ndim)]
    undo = []
    for codec, spec in filters:
        # Axes are followed from the block to what is stored, as `encode` would move them.
        if isinstance(codec, Transpose):
            axes = [axes[axis] for axis in codec.axes(len(spec.shape))]
        elif isinstance(codec, Pick):
            picked_axis, index = codec.configuration["axis"], codec.configuration["index"]
            if codec.step is None:
                axes.insert(picked_axis, (None, index, 1))
            else:
                axis, start, step = axes[picked_axis]
                axes[picked_axis] = (axis, index + codec.step * start, codec.step * step)
        elif codec.elementwise:
            undo.append((codec, spec.dtype))
        else:
            return None
    return StridedLayout(dtype, shape, tuple(axes), tuple(undo[::-1]))
