"""Coordinates of the points of GRIB grids, calculated by ecCodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs.core.base import Buffer
from virtualzarr.codecs.grib import message as messages
from virtualzarr.codecs.grib.base import _Grib
from virtualzarr.codecs.grib.check_grid import check_grid, check_grid1, is_plain_grid
from virtualzarr.codecs.grib.eccodes_library import read_coordinates
from virtualzarr.codecs.grib.worker import ask_worker
from virtualzarr.errors import CodecError

COORDINATES = ("latitudes", "longitudes")


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

    def _compute(self, data: Buffer, size: int) -> NDArray[np.float64]:
        return compute_coordinates(bytes(data), self.configuration["key"], size)


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
