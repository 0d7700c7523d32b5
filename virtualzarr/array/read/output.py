"""Memory that a read fills: new or given by the caller, and what missing chunks put there.

Selections within chunks are as the read engine applies them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import Projection
from virtualzarr.errors import OutOfMemoryError
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.stores.thread_pools import Task

_PAGE, _TOUCHED_AT_ONCE, _MOST_TOUCHED = 4096, 4 << 20, 256 << 20
"""Bytes of the smallest pages, of what takes half a millisecond, and of what is soon used."""


def allocate(projection: Projection, dtype: np.dtype[Any], variable: str) -> NDArray[Any]:
    """Return memory for what a projection selects."""
    try:
        # Not zeroed: chunks or the fill value overwrite every element, and untouched pages are free
        # until then.
        return np.empty(projection.work_shape, dtype)
    except (MemoryError, ValueError) as error:  # ValueError: more than can be addressed
        size = math.prod(projection.work_shape) * dtype.itemsize
        raise OutOfMemoryError(
            f"there is no memory for the {size} bytes that are selected", variable=variable
        ) from error


def plan_touching(output: NDArray[Any]) -> list[Task]:
    """Return tasks that write to each page of a new array, a few megabytes each.

    The system gives memory, and clears it, only as that is written to: a tenth of the time that
    reading takes, in which nothing else may have to be done yet. What is in the array is lost.
    """
    if output.nbytes < _TOUCHED_AT_ONCE or output.dtype.hasobject:
        return []
    data = output.reshape(-1).view(np.uint8)[:_MOST_TOUCHED]
    starts = range(0, len(data), _TOUCHED_AT_ONCE)
    return [partial(data[i : i + _TOUCHED_AT_ONCE : _PAGE].fill, 0) for i in starts]


def check_out(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Refuse to read into an array that does not take the result as it is."""
    if not isinstance(out, np.ndarray):
        raise ValueError(f"out must be a numpy array, not {type(out).__name__}")
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}, the selection {shape}")
    if out.dtype != dtype:
        raise ValueError(f"out has dtype {out.dtype}, the array {dtype}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
    repeated = any(n > 1 and not step for n, step in zip(shape, out.strides, strict=True))
    if out.size and repeated:
        raise ValueError("elements of out share memory, so that they cannot differ")


def resolve_fill(metadata: ArrayMetadata) -> Any:
    """Return what missing chunks read as; zero where the metadata leave it open."""
    fill = metadata.effective_fill
    if not metadata.dtype.hasobject:
        return fill
    # Boxed: a list is one element, not several.
    box = np.empty((), object)
    box[()] = fill
    return box


def shift_selection(chunk_sel: Sequence[Any], origin: NDArray[np.int32]) -> tuple[Any, ...]:
    """Shift a selection within a cell by the origin of the cell in its decoded block."""
    return tuple(
        slice(s.start + o, s.stop + o, s.step) if isinstance(s, slice) else s + o
        for s, o in zip(chunk_sel, origin.tolist(), strict=True)
    )


def is_all_slices(selection: tuple[Any, ...]) -> bool:
    """Tell whether a selection is all slices: it gives a view, in order, without repeats."""
    for item in selection:  # noqa: SIM110 - it is faster, and run for each chunk
        if type(item) is not slice:
            return False
    return True


def format_cell(cell: NDArray[np.int64]) -> str:
    """Return the name of a chunk for error messages: its indices in the grid, with dots."""
    return ".".join(str(index) for index in cell.tolist()) or "0"
