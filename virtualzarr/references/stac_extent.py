"""Extents in space and time for STAC, from coordinates: exact, or not known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.combine.cf_time import as_datetimes
from virtualzarr.display.numbers import as_numbers

MOST = 1 << 24
"""Values of a coordinate that are read, at most."""

WGS84 = 4326

_NORTH = frozenset(
    ["degrees_north", "degree_north", "degree_n", "degrees_n", "degreen", "degreesn"]
)
_EAST = frozenset(["degrees_east", "degree_east", "degree_e", "degrees_e", "degreee", "degreese"])
_PROJECTED = {"projection_x_coordinate": "x", "projection_y_coordinate": "y"}


@dataclass(frozen=True)
class Axis:
    """A coordinate, and what it is one of.

    Attributes
    ----------
    name : str
        Path of the array.
    kind : {"time", "x", "y", "other"}
    low, high : datetime or float
    is_degrees : bool
        Whether it has longitudes or latitudes.
    """

    name: str
    kind: str
    low: Any
    high: Any
    is_degrees: bool = False


def find_axes(arrays: Mapping[str, Array]) -> Iterator[Axis]:
    """Yield the coordinates of a hierarchy with their extents, those that can be had exactly.

    Those with bounds reach as far as these do; those of GeoTIFF whose pixels are areas, to their
    edges.
    """
    edges = _have_areas(arrays)
    for path, array in arrays.items():
        if array.ndim != 1 or array.dims != (path.rpartition("/")[2],) or not array.size:
            continue
        kind, is_degrees = _classify(array)
        extent = _extent(arrays, path, array, kind)
        if extent is None:
            continue
        low, high = extent
        if edges and kind in ("x", "y") and len(array) > 1:
            half = (high - low) / (len(array) - 1) / 2
            low, high = low - half, high + half
        yield Axis(path, kind, low, high, is_degrees)


def _classify(array: Array) -> tuple[str, bool]:
    attributes = array.metadata.attributes
    units, standard = attributes.get("units"), attributes.get("standard_name")
    word = units.strip().lower() if isinstance(units, str) else ""
    if standard == "latitude" or word in _NORTH:
        return "y", True
    if standard == "longitude" or word in _EAST:
        return "x", True
    if isinstance(standard, str) and standard in _PROJECTED:
        return _PROJECTED[standard], False
    is_time = array.dtype.kind == "M" or as_datetimes(np.zeros(1), attributes) is not None
    return ("time" if is_time else "other"), False


def _extent(
    arrays: Mapping[str, Array], path: str, array: Array, kind: str
) -> tuple[Any, Any] | None:
    """Return the least and greatest value of a coordinate; None if that is not exact."""
    attributes, source = array.metadata.attributes, array
    if isinstance(bounds := attributes.get("bounds"), str):
        other = arrays.get(path.rpartition("/")[0] + "/" * ("/" in path) + bounds)
        if other is not None and other.shape[:1] == array.shape and other.ndim == 2:
            source = other
    if source.size > MOST or source.dtype.kind not in "iufM":
        return None
    if source.dtype.kind == "M":
        return _dates(np.asarray(source[...]))
    values = as_numbers(source, source[...])
    if not np.isfinite(values).all():
        return None
    ends = np.array([values.min(), values.max()])
    if kind != "time":
        return float(ends[0]), float(ends[1])
    # Bounds have the units of their coordinate where they have none.
    dates = as_datetimes(ends, {**attributes, **_time_attributes(source)})
    return None if dates is None else (dates[0], dates[1])


def _time_attributes(array: Array) -> dict[str, Any]:
    attributes = array.metadata.attributes
    return {name: attributes[name] for name in ("units", "calendar") if name in attributes}


def _dates(values: NDArray[Any]) -> tuple[datetime, datetime] | None:
    if np.isnat(values).any():
        return None
    ends = np.array([values.min(), values.max()]).astype("M8[us]").astype("i8")
    dates = as_datetimes(ends, {"units": "microseconds since 1970-01-01"})
    return None if dates is None else (dates[0], dates[1])


def _geo_keys(arrays: Mapping[str, Array]) -> list[Mapping[str, Any]]:
    keys = (array.metadata.attributes.get("GeoTIFF") for array in arrays.values())
    return [each for each in keys if isinstance(each, Mapping)]


def _have_areas(arrays: Mapping[str, Array]) -> bool:
    """Tell whether all pixels of GeoTIFF files are areas, and there are some."""
    keys = _geo_keys(arrays)
    return bool(keys) and all(each.get("GTRasterTypeGeoKey") == 1 for each in keys)


def find_crs(arrays: Mapping[str, Array]) -> int | None:
    """Return the EPSG code that GeoTIFF files name; None if there are several, or another kind."""
    codes = {
        each.get("ProjectedCSTypeGeoKey", each.get("GeographicTypeGeoKey"))
        for each in _geo_keys(arrays)
    }
    code = next(iter(codes)) if len(codes) == 1 else None
    # 32767 stands for one that the file describes itself.
    return int(code) if isinstance(code, int) and 1024 <= code < 32767 else None


def merge_times(axes: list[Axis]) -> tuple[datetime, datetime] | None:
    """Return from when to when all coordinates of time reach."""
    times = [axis for axis in axes if axis.kind == "time"]
    if not times:
        return None
    return min(axis.low for axis in times), max(axis.high for axis in times)


def merge_degrees(
    axes: list[Axis], arrays: Mapping[str, Array]
) -> tuple[float, float, float, float] | None:
    """Return west, south, east and north in degrees of WGS 84; west is greater across 180°."""
    north = [axis for axis in axes if axis.kind == "y" and axis.is_degrees]
    east = [axis for axis in axes if axis.kind == "x" and axis.is_degrees]
    if not north or not east:
        return None
    # Degrees of another datum lie elsewhere, by up to some hundred metres.
    if _geo_keys(arrays) and find_crs(arrays) != WGS84:
        return None
    south, top = min(axis.low for axis in north), max(axis.high for axis in north)
    sides = wrap_longitudes([(axis.low, axis.high) for axis in east])
    if sides is None or south < -90 or top > 90:
        return None
    return sides[0], south, sides[1], top


def wrap_longitudes(extents: list[tuple[float, float]]) -> tuple[float, float] | None:
    """Return longitudes from -180 to 180; None if several extents are counted differently.

    Examples
    --------
    >>> wrap_longitudes([(190.0, 350.0)]), wrap_longitudes([(100.0, 250.0)])
    ((-170.0, -10.0), (100.0, -110.0))
    >>> wrap_longitudes([(0.0, 360.0)])
    (-180.0, 180.0)
    """
    low, high = min(west for west, _ in extents), max(east for _, east in extents)
    if low >= -180 and high <= 180:
        return low, high
    if len(set(extents)) > 1 or low < -360 or high > 720 or high - low > 360:
        return None
    if high - low == 360:
        return -180.0, 180.0
    turns = np.floor((np.array([low, high]) + 180) / 360)
    west, east = (float(v) for v in np.array([low, high]) - 360 * turns)
    # The eastern end is 180 rather than -180.
    return west, (180.0 if east == -180 else east)
