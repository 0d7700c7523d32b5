"""The grids that fields lie on: dimensions, the order of points, latitudes and longitudes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import RegularGrid
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.grib.base import to_rows
from virtualzarr.codecs.grib.grid import COORDINATES, compute_coordinates, grid_message
from virtualzarr.errors import SourceError, VirtualZarrError
from virtualzarr.formats.grib.index import Fields, Note, Steps
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

_AT_ONCE = 1 << 23
"""Points of a regular grid that are all looked at, before it is believed to be one."""

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
    dims : tuple of str
    shape : tuple of int
    order : str
        Of values, as `virtualzarr.codecs.grib.base.to_rows` takes it.
    located : str
        Order of the latitudes and longitudes that ecCodes gives; nothing where it gives none, or
        others than those of the points.
    attributes : dict
        Of variables on it.
    begin, end : int
        Where the bytes lie that describe it.
    data : bytes
        Those bytes.
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
        """Return the configuration of the codec of values, as far as it depends on the grid."""
        return _codec_options(self.order)

    def coordinates(self, source: Source, path: str) -> dict[str, Array]:
        """Return latitudes and longitudes for the group at a path, if they are known."""
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
        """Return an array that is calculated from the description when it is read."""
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
    # What tells grids apart: section 3; in edition 1 section 2, or the number of a known grid.
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
        sections = np.ascontiguousarray(raw).view(np.dtype((np.void, size)))[:, 0]
        _, firsts, kind_of = np.unique(sections, return_index=True, return_inverse=True)
        for kind, first in enumerate(rows[firsts].tolist()):
            alike = rows[kind_of.reshape(-1) == kind]
            start = int(fields.begin[first, 3] if edition == 2 else fields.start[first])
            stop = int(fields.end[first, 3 if edition == 2 else 2] or fields.end[first, 1])
            data = yield start, stop - start
            at = int(fields.begin[first, 1])
            product = yield at, int(fields.end[first, 1]) - at
            try:
                grids.append(describe(bytes(data), bytes(product), start, stop))
                numbers[alike] = len(grids) - 1
            except VirtualZarrError as error:
                for message_start in fields.start[alike].tolist():
                    note(f"message at byte {message_start}", type(error)(error.message))
    # Numbered in the order in which they are in the file.
    used, first = np.unique(numbers, return_index=True)
    order = [int(number) for number in used[np.argsort(first)] if number >= 0]
    renumbered = np.full(len(grids) + 1, -1)
    renumbered[order] = np.arange(len(order))
    return [grids[number] for number in order], renumbered[numbers]


def describe(data: bytes, product: bytes, begin: int, end: int) -> Grid:
    """Return the grid that some bytes of a file describe, and section 1 that belongs to it.

    Raises
    ------
    CodecError, SourceError, UnsupportedError
    """
    keys = read_grid_keys(grid_message(data, product))
    points = keys.pop("numberOfDataPoints")
    columns, rows = keys.get("Nx"), keys.get("Ny")
    order = "columns" if keys.get("jPointsAreConsecutive") else "rows"
    if keys.get("alternativeRowScanning"):
        order = f"alternating {order}"
    attributes = with_prefix({key: value for key, value in keys.items() if value != ""})
    if not (isinstance(columns, int) and isinstance(rows, int) and columns * rows == points):
        located = "rows" if keys["gridType"] in _LISTED else ""
        return Grid(("values",), (points,), "rows", located, attributes, begin, end, data)
    dims, shape = ("y", "x"), (rows, columns)
    if keys["gridType"] in _REGULAR and regular_lines(data, shape) is not None:
        dims = ("latitude", "longitude")
    return Grid(dims, shape, order, _find_point_order(keys), attributes, begin, end, data)


def _find_point_order(keys: Mapping[str, Any]) -> str:
    """Return in which order ecCodes gives the coordinates of points in rows and columns.

    It ignores that rows alternate; and of projected grids, it goes to the right and up from the
    first point in any case, which is wrong where the points go elsewhere.
    """
    grid = keys["gridType"]
    if grid in _PROJECTED:
        plain = not keys.get("iScansNegatively") and keys.get("jScansPositively")
        return "rows" if plain else ""
    if grid in _REGULAR or grid in _ROTATED:
        if not keys.get("jPointsAreConsecutive"):
            return "rows"
        return "columns" if grid.endswith("ll") else ""
    return ""


def _codec_options(order: str) -> dict[str, str]:
    return {} if order == "rows" else {"order": order}


@lru_cache(maxsize=32)
def regular_lines(
    data: bytes, shape: tuple[int, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return the latitudes of rows and the longitudes of columns; None if they have none."""
    if shape[0] * shape[1] > _AT_ONCE:
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
    """Return the latitudes and longitudes of grids with one column, and with one row."""
    return (
        compute_coordinates(_resize(data, shape[0], 1), "latitudes", shape[0]),
        compute_coordinates(_resize(data, 1, shape[1]), "longitudes", shape[1]),
    )


def _resize(data: bytes, rows: int, columns: int) -> bytes:
    """Return the description of a grid along latitudes with other numbers of rows and columns."""
    raw = bytearray(data)
    if data[:4] == b"GRIB":
        struct.pack_into(">HH", raw, 8 + int.from_bytes(data[8:11], "big") + 6, columns, rows)
    else:
        struct.pack_into(">I", raw, 6, rows * columns)
        struct.pack_into(">II", raw, 30, columns, rows)
    return bytes(raw)
