"""Memory that a read fills: new or given by the caller, and what missing chunks put there."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import Projection
from virtualzarr.errors import OutOfMemoryError
from virtualzarr.metadata import ArrayMetadata, default_fill


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
    fill = default_fill(metadata.dtype) if metadata.fill_value is None else metadata.fill_value
    if not metadata.dtype.hasobject:
        return fill
    # Boxed: a list is one element, not several.
    box = np.empty((), object)
    box[()] = fill
    return box
