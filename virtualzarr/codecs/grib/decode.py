"""Fields and grids of GRIB messages, decoded by ECMWF's ecCodes.

Other packages do not know these codecs.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs.core.base import ArrayBytes, Block, Buffer, ChunkSpec, as_view
from virtualzarr.codecs.grib import message as messages
from virtualzarr.codecs.grib.check_grid import check_grid, check_grid1, is_plain_grid
from virtualzarr.codecs.grib.check_message import check_packing, check_packing1
from virtualzarr.codecs.grib.worker import ask_worker
from virtualzarr.errors import CodecError, MissingDependencyError

ORDERS = ("rows", "alternating rows", "columns", "alternating columns")
COORDINATES = ("latitudes", "longitudes")


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
    features = eccodes.codes_get_features(eccodes.CODES_FEATURES_ENABLED).split()
    safe = {"ECCODES_THREADS", "ECCODES_OMP_THREADS"}.intersection(features)
    return contextlib.nullcontext() if safe else threading.RLock()


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


def to_rows(values: Block, shape: tuple[int, ...], order: str) -> Block:
    """Return values in the order in which a message has them as rows (j) of columns (i).

    Examples
    --------
    >>> in_rows(np.arange(6), (2, 3), "alternating rows").tolist()
    [[0, 1, 2], [5, 4, 3]]
    >>> in_rows(np.arange(6), (2, 3), "columns").tolist()
    [[0, 2, 4], [1, 3, 5]]
    """
    turned = order.endswith("columns")
    block = values.reshape((*shape[:-2], shape[-1], shape[-2]) if turned else shape)
    if order.startswith("alternating"):
        block = block.copy()
        block[..., 1::2, :] = block[..., 1::2, ::-1]
    return np.ascontiguousarray(block.swapaxes(-1, -2)) if turned else block


class _Grib(ArrayBytes):
    """What both codecs have: the order of points, and sections that lie elsewhere."""

    compressor = True
    members: tuple[str, ...] = ("before", "order")

    def validate(self) -> None:
        """Check the configuration."""
        if not set(self.members).issuperset(self.configuration):
            raise self.invalid(f"the members are {', '.join(self.members)}")
        if self._order not in ORDERS:
            raise self.invalid(f"order is one of {ORDERS}")
        self._before  # noqa: B018

    @property
    def _order(self) -> str:
        order: str = self.configuration.get("order", "rows")
        return order

    @cached_property
    def _before(self) -> bytes:
        try:
            return base64.b64decode(self.configuration.get("before", ""), validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise self.invalid("before must be base64") from error

    def is_portable(self, zarr_format: int) -> bool:
        """Return False: no other package knows this codec."""
        return False

    def _finished(self, values: Block, spec: ChunkSpec) -> Block:
        """Return values in rows, as the array has them."""
        if values.size != spec.size:
            raise self.error(f"decoded {values.size} points, the block needs {spec.size}")
        if values.dtype != spec.dtype:
            values = values.astype(spec.dtype)
        if len(spec.shape) < 2 or self._order == "rows":
            return values.reshape(spec.shape)
        return to_rows(values, spec.shape, self._order)


class Field(_Grib):
    """The values of one field (``virtualzarr.grib``), NaN where the bitmap says there is none.

    The bytes are a message, or that part of a message of several fields that ends with the field's
    values. Members of the configuration, all optional:

    * ``before``: base64 of a byte, the discipline, and of sections of the message that are the
      field's, but lie before the bytes;
    * ``order``: how the points follow each other: in ``"rows"``, as nearly everywhere, in
      ``"columns"``, or in ``"alternating rows"`` or ``"alternating columns"``, of which every
      second runs backwards.
    """

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Let ecCodes decode."""
        data = as_view(data)
        try:
            if data[:4] == b"GRIB" and data[7:8] == b"\x01":
                checked = check_packing1(messages.sections1(data), spec.size)
            else:
                discipline, sections = messages.field_sections(data, self._before)
                checked = check_packing(sections, spec.size)
                if not messages.is_single(data):
                    data = messages.message(discipline, sections)
            values = (
                read_values(data, spec.size) if checked else ask_worker(data, "values", spec.size)
            )
        except CodecError as error:
            raise self.error(error.message) from error
        return self._finished(values, spec)


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
        found = eccodes.codes_get_size(handle, "values")
        if found != size:
            raise CodecError(f"the message has {found} points, the block needs {size}")
        return eccodes.codes_get_values(handle)


class Grid(_Grib):
    """Coordinates of the points of a grid (``virtualzarr.grib_grid``), in degrees.

    The bytes are section 3 of a message of edition 2, or the beginning of a message of edition 1,
    up to its section 2. Members of the configuration: ``key``, which is ``"latitudes"`` or
    ``"longitudes"``, and ``order``, as for the values.
    """

    members = ("key", "order")

    def validate(self) -> None:
        """Check the configuration."""
        super().validate()
        if self.configuration.get("key") not in COORDINATES:
            raise self.invalid(f"key is one of {COORDINATES}")

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Let ecCodes calculate."""
        try:
            values = compute_coordinates(bytes(data), self.configuration["key"], spec.size)
        except CodecError as error:
            raise self.error(error.message) from error
        return self._finished(values, spec)


def compute_coordinates(data: bytes, key: str, size: int) -> NDArray[np.float64]:
    """Return the latitudes or longitudes of the points of a grid, which must be `size`.

    Parameters
    ----------
    data : bytes
        As `Grid` has them.
    key : str
        One of `COORDINATES`.
    size : int

    Raises
    ------
    CodecError
    """
    message, plain = grid_message(data), is_plain_grid(data)
    return read_coordinates(message, key, size) if plain else ask_worker(message, key, size)


def read_coordinates(message: bytes, key: str, size: int) -> NDArray[np.float64]:
    """Return the latitudes or longitudes of the grid of a message; see `compute_coordinates`."""
    eccodes = library()
    with open_message(message) as handle:
        points = eccodes.codes_get_long(handle, "numberOfDataPoints")
        if points != size:
            raise CodecError(f"the grid has {points} points, the block needs {size}")
        return eccodes.codes_get_double_array(handle, key)


def grid_message(data: bytes, product: bytes = b"") -> bytes:
    """Return a message without values, but with a grid, and with a section 1 if that is given.

    Raises
    ------
    CodecError
        The bytes are none, or what they claim would take ecCodes any amount of time or memory.
    """
    if data[:4] == b"GRIB":
        product = data[8 : 8 + int.from_bytes(data[8:11], "big")]
        if len(product) < messages.MIN_LENGTH1[1]:
            raise CodecError("GRIB: section 1 is cut off")
        grid = data[8 + len(product) :] if product[7] & 128 else None
        if grid is not None:
            check_grid1(grid)
        return messages.without_values1(product, grid)
    sections = messages.walk(data, 0)
    if len(sections) != 1 or sections[0].number != 3:
        raise CodecError("GRIB: the bytes are no section 3 (grid)")
    check_grid(data)
    return messages.without_values(0, {1: product or _IDENTIFICATION, 3: data})


_IDENTIFICATION = messages.section(1, bytes.fromhex("0000 0000 02 00 00 07d0 01 01 00 00 00 00 00"))
