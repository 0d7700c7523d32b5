"""ecCodes: loading, message handles, values and coordinates."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs.core.base import Buffer
from virtualzarr.errors import CodecError, MissingDependencyError
from virtualzarr.stores.forks import ForkSafeLock


@cache
def library() -> Any:
    """Return ecCodes.

    Raises
    ------
    MissingDependencyError
    """
    try:
        import eccodes
    except (ImportError, RuntimeError) as error:  # RuntimeError: the binding without the library
        raise MissingDependencyError(
            "GRIB needs ecCodes: pip install 'virtualzarr[grib]'"
        ) from error
    return eccodes


@cache
def _guard() -> AbstractContextManager[Any]:
    """Return a lock for builds of ecCodes that are not safe for threads; nothing for others."""
    eccodes = library()
    # Wheels differ in how the library was built, and only it knows.
    features = eccodes.codes_get_features(eccodes.CODES_FEATURES_ENABLED).split()
    safe = {"ECCODES_THREADS", "ECCODES_OMP_THREADS"}.intersection(features)
    return contextlib.nullcontext() if safe else ForkSafeLock()


@contextmanager
def open_message(message: Buffer) -> Iterator[Any]:
    """Give a message to ecCodes and return its handle.

    Raises
    ------
    CodecError
        ecCodes finds something wrong with it, at once or within the block.
    """
    eccodes = library()
    with _guard():
        try:
            handle = eccodes.codes_new_from_message(message)
            try:
                yield handle
            finally:
                eccodes.codes_release(handle)
        except eccodes.CodesInternalError as error:
            raise CodecError(f"ecCodes: {error}") from error


def read_values(message: Buffer, size: int) -> NDArray[np.float64]:
    """Return the values of a message, which must be `size`, NaN where the bitmap has none.

    Raises
    ------
    CodecError
    """
    eccodes = library()
    with open_message(message) as handle:
        # No value is equal to it: what is missing cannot be mistaken, nor what is not.
        eccodes.codes_set_double(handle, "missingValue", float("nan"))
        points = eccodes.codes_get_size(handle, "values")
        if points != size:
            raise CodecError(f"the message has {points} points, the block needs {size}")
        return eccodes.codes_get_values(handle)


def read_coordinates(message: bytes, key: str, size: int) -> NDArray[np.float64]:
    """Return the latitudes or longitudes of the grid of a message; see `compute_coordinates`."""
    eccodes = library()
    with open_message(message) as handle:
        points = eccodes.codes_get_long(handle, "numberOfDataPoints")
        if points != size:
            raise CodecError(f"the grid has {points} points, the block needs {size}")
        return eccodes.codes_get_double_array(handle, key)
