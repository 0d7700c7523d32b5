"""Checks of GRIB grids, before ecCodes calculates their points.

With wrong numbers it reads beyond its tables, takes any amount of time, or ends the process.
"""

from __future__ import annotations

import struct

from virtualzarr.codecs.grib.message import MAX_POINTS, point_count
from virtualzarr.errors import CodecError

_MISSING, _MISSING1 = (1 << 32) - 1, (1 << 16) - 1
_MOST_LATITUDES = 1 << 14

_ALONG_LATITUDES = (0, 1, 2, 3, 40, 41, 42, 43)
_GAUSSIAN, _GAUSSIAN1 = (40, 41, 42, 43), (4, 14, 24, 34)
_PLAIN, _PLAIN1 = (0, 1, 10, 20, 30, 40), (0, 1, 3, 4, 5, 10)
"""Types of grids in rows and columns whose points are calculated without tables of their own."""


def is_plain_grid(data: bytes) -> bool:
    """Whether a grid that was checked is of a type that ecCodes is safe with.

    Parameters
    ----------
    data : bytes
        Section 3 of edition 2, or the beginning of a message of edition 1, up to its section 2.
    """
    if data[:4] != b"GRIB":
        template = int.from_bytes(data[12:14], "big")
        if template not in _PLAIN or data[30:34] == b"\xff" * 4:
            return False
        # Octets 35, 47 and 56 of templates 3.0 to 3.40, counted from one.
        rows, first, last = struct.unpack_from(">I8xI5xI", data, 34)
        number = int.from_bytes(data[67:71], "big")
        latitude = (first & 0x7FFFFFFF) * _unit(data)
        return template != 40 or (first ^ last == 1 << 31 and _is_global(rows, number, latitude))
    grid = data[8 + int.from_bytes(data[8:11], "big") :]
    if not data[15] & 128 or grid[5] not in _PLAIN1 or grid[6:8] == b"\xff" * 2:
        return False
    rows, number = (int.from_bytes(grid[at : at + 2], "big") for at in (8, 25))
    first, last = (int.from_bytes(grid[at : at + 3], "big") for at in (10, 17))
    latitude = (first & 0x7FFFFF) / 1000
    return grid[5] != 4 or (first ^ last == 1 << 23 and _is_global(rows, number, latitude))


def _is_global(rows: int, number: int, latitude: float) -> bool:
    """Whether a Gaussian grid is of all latitudes, if its last is opposite to its first.

    Of others, ecCodes looks for the first latitude, and reads on from there in a table of all.
    """
    return rows == 2 * number and 90 - 1.2 * 90 / max(number, 1) < latitude < 90


def check_grid(grid: bytes) -> None:
    """Check section 3 of edition 2.

    Raises
    ------
    CodecError
    """
    points, template = point_count(grid), int.from_bytes(grid[12:14], "big")
    if points > MAX_POINTS:
        raise CodecError(f"GRIB: the grid claims {points} points")
    if template in (*_ALONG_LATITUDES, *_PLAIN):
        if len(grid) < (72 if template in _ALONG_LATITUDES else 65):
            raise CodecError("GRIB: section 3 (grid) is cut off")
        columns, rows = struct.unpack_from(">II", grid, 30)
        if _MISSING not in (columns, rows) and columns * rows != points:
            raise CodecError(f"GRIB: a grid of {columns} x {rows}, which claims {points} points")
    if template in _ALONG_LATITUDES:
        _check_angles(grid)
    if template in _GAUSSIAN:
        _check_gaussian(rows, int.from_bytes(grid[67:71], "big"))


def check_grid1(grid: bytes) -> None:
    """Check section 2 of edition 1.

    Raises
    ------
    CodecError
    """
    columns, rows = struct.unpack_from(">HH", grid.ljust(32, b"\0"), 6)
    if grid[5] in _PLAIN1 and _MISSING1 not in (columns, rows) and columns * rows > MAX_POINTS:
        raise CodecError(f"GRIB: a grid of {columns} x {rows}")
    if grid[5] in _GAUSSIAN1:
        _check_gaussian(rows, int.from_bytes(grid[25:27], "big"))
    # Octets 4 and 5: how many vertical coordinates there are, of 4 bytes each, and in which octet
    # they begin, behind the 32 of any grid. ecCodes reads them wherever that is.
    levels, start = grid[3], grid[4]
    if levels and (start < 33 or start - 1 + 4 * levels > len(grid)):
        raise CodecError(f"GRIB: section 2 has no place for {levels} vertical coordinates")


def _check_angles(grid: bytes) -> None:
    """Check the angles of a grid along latitudes: ecCodes reduces them turn by turn."""
    angles, unit = struct.unpack_from(">IIxIII", grid, 46), _unit(grid)
    if max((angle & 0x7FFFFFFF for angle in angles if angle != _MISSING), default=0) * unit > 3000:
        raise CodecError("GRIB: a grid along latitudes has angles of more than 3000 degrees")


def _unit(grid: bytes) -> float:
    """Return the degrees of a unit of angle."""
    basic, parts = struct.unpack_from(">II", grid, 38)
    return (basic if 0 < basic < _MISSING else 1) / (parts if 0 < parts < _MISSING else 10**6)


def _check_gaussian(rows: int, number: int) -> None:
    """Check how many latitudes there are: of those of the whole earth, no more than all."""
    if number > _MOST_LATITUDES or rows > 2 * number:
        raise CodecError(f"GRIB: a Gaussian grid of {rows} rows, of {number} on each hemisphere")
