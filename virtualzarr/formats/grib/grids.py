"""GRIB grids: dimensions, scanning order of points, latitudes and longitudes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import RegularGrid
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.grib.base import to_rows
from virtualzarr.codecs.grib.grid import COORDINATES, compute_coordinates, grid_message
from virtualzarr.codecs.grib.message import fix_date, fix_date1
from virtualzarr.config import config
from virtualzarr.errors import SourceError, VirtualZarrError
from virtualzarr.formats.grib.index import Fields, Note, Steps, note_all, unique_rows
from virtualzarr.formats.grib.keys import read_grid_keys, with_prefix
from virtualzarr.formats.paging import Gather
from virtualzarr.manifest import Manifest, Source
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.virtual.inline import inline_array

_REGULAR = ("regular_ll", "regular_gg")
_ROTATED = ("rotated_ll", "rotated_gg")
_PROJECTED = (
    "mercator", "lambert", "lambert_azimuthal_equal_area", "albers", "polar_stereographic",
)  # fmt: skip
_LISTED = ("reduced_gg", "reduced_ll", "reduced_rotated_gg", "healpix")

_MOST = 1 << 30

AXES = {
    "latitude": {
        "units": "degrees_north",
        "standard_name": "latitude",
        "long_name": "latitude",
    },
    "longitude": {
        "units": "degrees_east",
        "standard_name": "longitude",
        "long_name": "longitude",
    },
}


@dataclass(frozen=True)
class Grid:
    """One grid.

    Attributes
    ----------
    order : str
        Of values, as `virtualzarr.codecs.grib.base.to_rows` takes it.
    located : str
        Order of the latitudes and longitudes that ecCodes computes; empty where it has none, or
        wrong ones.
    attributes : dict
        Of variables on it.
    begin, end : int
        Byte range of the grid description in the file.
    data : bytes
        The grid description.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    order: str
    located: str
    attributes: dict[str, Any]
    begin: int
    end: int
    data: bytes = field(repr=False)

    @property
    def options(self) -> dict[str, str]:
        """Return the options of the value codec that depend on the grid."""
        return _codec_options(self.order)

    def coordinates(self, source: Source, path: str) -> dict[str, Array]:
        """Return latitude and longitude arrays for the group at a path; none if unknown."""
        prefix = f"{path}/" if path else ""
        if self.dims == ("latitude", "longitude"):
            lines = regular_lines(self.data, self.shape)
            assert lines is not None
            lines_by_name = {}
            for name, values in zip(self.dims, lines, strict=True):
                attributes: dict[str, Any] = dict(AXES[name])
                if name == "latitude" and values[0] > values[-1]:
                    attributes["stored_direction"] = "decreasing"
                lines_by_name[name] = inline_array(values, (name,), attributes, prefix + name)
            return lines_by_name
        if not self.located:
            return {}
        return {name: self._compute_when_read(source, name, prefix + name) for name in AXES}

    def _compute_when_read(self, source: Source, name: str, path: str) -> Array:
        """Return an array whose chunk is the grid description, decoded to coordinates on read."""
        # Coordinates of projected and reduced grids are two numbers a point, as large as the
        # fields: references stay small as they are computed by ecCodes only when somebody reads
        # them.
        metadata = ArrayMetadata(
            self.shape,
            np.dtype(np.float64),
            RegularGrid(self.shape, self.shape),
            Pipeline(
                [make("virtualzarr.grib_grid", key=f"{name}s", **_codec_options(self.located))]
            ),
            fill_value=np.nan,
            dimension_names=self.dims,
            attributes=dict(AXES[name]),
        )
        length = self.end - self.begin
        manifest = Manifest.single(source, self.begin, length, len(self.shape))
        return Array.from_manifest(metadata, manifest, path)


def read_grids(fields: Fields, note: Note) -> Steps:
    """Parse: return the grids of a file, and for each field the number of its grid, or -1."""
    numbers = np.full(len(fields), -1)
    grids: list[Grid] = []
    # A grid is identified by section 3; in edition 1 by section 2 (GDS) or, where that is missing,
    # by the number of a predefined grid in octet 7 of section 1, which begins 8 bytes into the
    # message. Equal bytes are one grid, so that ecCodes is called for distinct ones only.
    is_edition2, has_section2 = fields.edition == 2, fields.end[:, 2] > 0
    begin = np.choose(
        is_edition2 + 2 * (~is_edition2 & has_section2),
        (fields.start + 14, *fields.begin[:, [3, 2]].T),
    )
    end = np.choose(
        is_edition2 + 2 * (~is_edition2 & has_section2),
        (fields.start + 15, *fields.end[:, [3, 2]].T),
    )
    length = end - begin
    if int(length.sum()) > _MOST:
        raise SourceError(f"{int(length.sum())} bytes describe the grids in the file")
    for edition, size in sorted(set(zip(fields.edition.tolist(), length.tolist(), strict=True))):
        rows = np.flatnonzero((fields.edition == edition) & (length == size))
        raw = yield Gather(begin[rows], size)
        _, firsts, kind_of = unique_rows(raw)
        for kind, first in enumerate(rows[firsts].tolist()):
            alike = rows[kind_of == kind]
            start = int(fields.begin[first, 3] if edition == 2 else fields.start[first])
            stop = int(fields.end[first, 3 if edition == 2 else 2] or fields.end[first, 1])
            data = yield start, stop - start
            # With section 1, as ecCodes knows the tables of local definitions and predefined grids
            # by the centre.
            at = int(fields.begin[first, 1])
            product = yield at, int(fields.end[first, 1]) - at
            try:
                grid = describe(*_without_dates(bytes(data), bytes(product)))
                grids.append(replace(grid, begin=start, end=stop))
                numbers[alike] = len(grids) - 1
            except VirtualZarrError as error:
                note_all(fields.start[alike], note, error)
    # Renumbered by first use in the file, as groups of one grid each are named by this number.
    used, first = np.unique(numbers, return_index=True)
    order = [int(number) for number in used[np.argsort(first)] if number >= 0]
    renumbered = np.full(len(grids) + 1, -1)
    renumbered[order] = np.arange(len(order))
    return [grids[number] for number in order], renumbered[numbers]


def _without_dates(data: bytes, product: bytes) -> tuple[bytes, bytes]:
    """Return a grid description and a section 1 without what is other in each file.

    No grid depends on it, and equal ones are described once.
    """
    if data[:4] != b"GRIB":
        return data, fix_date(product)
    # The length of the message stands before section 1.
    return data[:4] + bytes(3) + data[7:8] + fix_date1(product) + data[8 + len(product) :], b""


@lru_cache(maxsize=64)
def describe(data: bytes, product: bytes) -> Grid:
    """Return the grid described by a grid section and the section 1 of the same message.

    It lies nowhere yet.

    Raises `CodecError` or `SourceError` or `UnsupportedError`.
    """
    keys = read_grid_keys(grid_message(data, product))
    points = keys.pop("numberOfDataPoints")
    columns, rows = keys.get("Nx"), keys.get("Ny")
    order = "columns" if keys.get("jPointsAreConsecutive") else "rows"
    if keys.get("alternativeRowScanning"):
        order = f"alternating {order}"
    attributes = with_prefix({key: value for key, value in keys.items() if value != ""})
    # Reduced grids have a "missing" number of columns; HEALPix and spectral fields have none. They
    # stay one-dimensional, in the order of the file, as cfgrib has them.
    if not (isinstance(columns, int) and isinstance(rows, int) and columns * rows == points):
        located = "rows" if keys["gridType"] in _LISTED else ""
        return Grid(("values",), (points,), "rows", located, attributes, 0, 0, data)
    dims, shape = ("y", "x"), (rows, columns)
    # The type alone is not enough: regular Gaussian latitudes, or rounding of first and last
    # points, must come out as one latitude a row, which is verified with the points of ecCodes.
    if keys["gridType"] in _REGULAR and regular_lines(data, shape) is not None:
        dims = ("latitude", "longitude")
    return Grid(dims, shape, order, _find_point_order(keys), attributes, 0, 0, data)


def _find_point_order(keys: Mapping[str, Any]) -> str:
    """Return the order of the coordinates that ecCodes computes for a grid of rows and columns.

    It ignores alternating rows (boustrophedonic scanning); and it computes projected grids as if
    they scanned to the right and up, which is wrong for other scanning modes.
    """
    grid = keys["gridType"]
    if grid in _PROJECTED:
        plain = not keys.get("iScansNegatively") and keys.get("jScansPositively")
        return "rows" if plain else ""
    if grid in _REGULAR or grid in _ROTATED:
        if not keys.get("jPointsAreConsecutive"):
            return "rows"
        # Of Gaussian grids by columns, the coordinates of ecCodes are not those of the points.
        return "columns" if grid.endswith("ll") else ""
    return ""


def _codec_options(order: str) -> dict[str, str]:
    return {} if order == "rows" else {"order": order}


@lru_cache(maxsize=32)
def regular_lines(
    data: bytes, shape: tuple[int, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return latitudes by row and longitudes by column; None if points do not share them."""
    if shape[0] * shape[1] > config.tuning.grib_compared_points:
        return _lines_of_large(data, shape)
    computed = [compute_coordinates(data, key, shape[0] * shape[1]) for key in COORDINATES]
    for order in ("rows", "columns"):
        latitudes, longitudes = (to_rows(values, shape, order) for values in computed)
        if (latitudes == latitudes[:, :1]).all() and (longitudes == longitudes[:1]).all():
            return latitudes[:, 0].copy(), longitudes[0].copy()
    return None


def _lines_of_large(
    data: bytes, shape: tuple[int, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return latitudes of the grid reduced to one column, and longitudes reduced to one row."""
    return (
        # Two coordinates for each of many millions of points would take gigabytes just to keep one
        # row and one column of them.
        compute_coordinates(_resize(data, shape[0], 1), "latitudes", shape[0]),
        compute_coordinates(_resize(data, 1, shape[1]), "longitudes", shape[1]),
    )


def _resize(data: bytes, rows: int, columns: int) -> bytes:
    """Return a latitude-longitude grid description with other numbers of rows and columns."""
    raw = bytearray(data)
    if data[:4] == b"GRIB":
        # Ni and Nj: octets 7-10 of section 2 of edition 1, which follows section 1 of that length;
        # octets 31-38 of section 3 of edition 2, whose octets 7-10 are the number of points.
        struct.pack_into(">HH", raw, 8 + int.from_bytes(data[8:11], "big") + 6, columns, rows)
    else:
        struct.pack_into(">I", raw, 6, rows * columns)
        struct.pack_into(">II", raw, 30, columns, rows)
    return bytes(raw)
