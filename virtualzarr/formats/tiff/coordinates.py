"""GeoTIFF coordinates of pixel centres (OGC 19-008r4, section 7.3 and annex C)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.formats.tiff.attributes import geo_keys, tag_value
from virtualzarr.virtual.inline import inline_array

_SCALE, _TIEPOINT, _TRANSFORMATION = 33550, 33922, 34264
_GEOGRAPHIC, _POINT = 2, 2
"""Values of GTModelTypeGeoKey and GTRasterTypeGeoKey."""


def page_coordinates(
    page: Any, columns: int | None = None, rows: int | None = None
) -> dict[str, NDArray[np.float64]]:
    """Return the coordinates of the centres of a page's columns and rows, as ``x`` and ``y``.

    There are none if the page has no georeference, or one by which coordinates of columns depend
    on the row: rotated images, and those with several tie points.

    Parameters
    ----------
    page : tifffile.TiffPage
    columns, rows : int, optional
        Those of a lower resolution, whose pixels cover the same area.
    """
    axes = _axes(page)
    if axes is None:
        return {}
    # PixelIsPoint: the tie point is the centre of a pixel; PixelIsArea (the default): its corner.
    centre = 0.0 if _key(page, "GTRasterTypeGeoKey") == _POINT else 0.5
    coordinates = {}
    for name, full_count, count in (("x", page.imagewidth, columns), ("y", page.imagelength, rows)):
        step, origin = axes[name]
        if count and count != full_count:
            # Overviews cover the same area with fewer, larger pixels; a PixelIsPoint origin is the
            # centre of the first full pixel, so its area begins half a full step before.
            corner = origin + (centre - 0.5) * step
            coarse = step * full_count / count
            coordinates[name] = (np.arange(count, dtype=np.float64) + 0.5) * coarse + corner
        else:
            coordinates[name] = (np.arange(full_count, dtype=np.float64) + centre) * step + origin
    return coordinates


def coordinate_arrays(
    images: Iterable[tuple[Array, Mapping[str, NDArray[np.float64]], Any]], path: str
) -> dict[str, Array]:
    """Return coordinate variables for arrays that lie in one group.

    Parameters
    ----------
    images : iterable of (Array, coordinates, tifffile.TiffPage)
        Coordinates by axis, and the page with the georeference.
    path : str
        Of the group.

    Returns
    -------
    dict
        By the names of the dimensions.
    """
    arrays: dict[str, Array] = {}
    for array, coordinates, page in images:
        geographic = _key(page, "GTModelTypeGeoKey") == _GEOGRAPHIC
        for name in array.dims:
            axis = (name or "")[:1]
            if name is not None and name not in arrays and axis in coordinates:
                full_path = f"{path}/{name}" if path else name
                attributes = _cf_attributes(axis, geographic)
                arrays[name] = inline_array(coordinates[axis], (name,), attributes, full_path)
    return arrays


def _axes(page: Any) -> dict[str, tuple[float, float]] | None:
    """Return (step, origin) by axis; None without a georeference that is separable by axis."""
    if not page.is_geotiff:
        return None
    matrix = _numbers(page, _TRANSFORMATION, 16)
    if matrix is not None:
        # Row-major 4x4: x = m0*i + m1*j + m2*k + m3 and y = m4*i + m5*j + m6*k + m7. With cross
        # terms coordinates would be two-dimensional.
        if any(matrix[index] for index in (1, 2, 4, 6)):
            return None
        axes = {"x": (matrix[0], matrix[3]), "y": (matrix[5], matrix[7])}
    else:
        scale, tie = _numbers(page, _SCALE, 3), _numbers(page, _TIEPOINT, 6)
        if scale is None or tie is None:
            return None
        axes = {
            # Tie point (i, j, k, x, y, z); rows count downwards, so y falls by its scale.
            "x": (scale[0], tie[3] - tie[0] * scale[0]),
            "y": (-scale[1], tie[4] + tie[1] * scale[1]),
        }
    numbers = [number for pair in axes.values() for number in pair]
    usable = np.isfinite(numbers).all() and axes["x"][0] and axes["y"][0]
    return axes if usable else None


def _numbers(page: Any, code: int, count: int) -> tuple[float, ...] | None:
    """Return a tag's numbers if there are exactly `count`."""
    value = tag_value(page, code)
    if not isinstance(value, (tuple, list, np.ndarray)) or len(value) != count:
        return None
    return tuple(float(number) for number in value)


def _key(page: Any, name: str) -> int | None:
    """Return a GeoTIFF key that is a number."""
    value = geo_keys(page).get(name)
    return int(value) if isinstance(value, int) else None


def _cf_attributes(name: str, geographic: bool) -> dict[str, str]:
    """Return CF attributes of a coordinate."""
    if not geographic:
        return {"axis": name.upper(), "standard_name": f"projection_{name}_coordinate"}
    if name == "x":
        return {"axis": "X", "standard_name": "longitude", "units": "degrees_east"}
    return {"axis": "Y", "standard_name": "latitude", "units": "degrees_north"}
