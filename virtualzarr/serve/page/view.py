"""View of an array: which of its axes make a picture, and which level of a pyramid is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from virtualzarr.array import Array
from virtualzarr.errors import VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.serve.page.describe import find_coordinate

PIXELS = 640
"""Of the longer side of a picture, at most."""

_VERTICAL = frozenset(["lat", "latitude", "nav_lat", "rlat", "y", "row", "rows", "yc", "northing"])
_HORIZONTAL = frozenset(
    ["lon", "longitude", "nav_lon", "rlon", "x", "col", "cols", "column", "columns", "xc",
     "easting"]
)  # fmt: skip

_SAMPLES = 4
"""A last axis that is not longer, of an image, has colours."""


@dataclass(frozen=True)
class View:
    """An array as it is drawn.

    Attributes
    ----------
    array : Array
        What is read.
    axes : tuple of int
        Of the rows and the columns; of an array with one axis, that.
    shape : tuple of int
        Of the array that was asked for.
    level : str
        Path of the array, where it is another level of a pyramid than was asked for.
    upwards : bool
        Whether the coordinate of the rows grows, so that the last row is on top.
    """

    array: Array
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    level: str = ""
    upwards: bool = False

    @property
    def others(self) -> tuple[int, ...]:
        """The axes that have sliders."""
        return tuple(axis for axis in range(len(self.shape)) if axis not in self.axes)

    def locate(self, at: Sequence[int]) -> dict[int, int]:
        """Return indices into what is read, by axis, of a position in what was asked for.

        Raises
        ------
        IndexError
            There is no such position.
        """
        others = self.others
        lengths = [self.shape[axis] for axis in others]
        if len(at) != len(lengths) or any(not 0 <= i < n for i, n in zip(at, lengths, strict=True)):
            raise IndexError(f"give {len(lengths)} positions within {tuple(lengths)}")
        return {
            axis: i * self.array.shape[axis] // n
            for axis, i, n in zip(others, at, lengths, strict=True)
        }


def make_view(node: Group | Array, path: str, array: Array) -> View:
    """Return how an array of a hierarchy is drawn.

    Parameters
    ----------
    node : Group or Array
        The root.
    path : str
        Of the array in it.
    """
    axes = choose_axes(array)
    level, drawn = fit_level(node, path, array, axes)
    return View(drawn, axes, array.shape, level, _grows_upwards(node, path, array, axes))


def choose_axes(array: Array) -> tuple[int, ...]:
    """Return the axes of the rows and columns: those with names of a plane, else the last two.

    Examples
    --------
    >>> import virtualzarr as vz
    >>> names = ("lat", "lon", "time")
    >>> choose_axes(vz.create_array({}, shape=(4, 5, 6), dtype="u1", dimension_names=names))
    (0, 1)
    >>> choose_axes(vz.create_array({}, shape=(400, 500, 3), dtype="u1"))
    (0, 1)
    """
    if array.ndim < 2:
        return tuple(range(array.ndim))
    names = [(name or "").lower() for name in array.dims]
    rows = [axis for axis, name in enumerate(names) if name in _VERTICAL]
    columns = [axis for axis, name in enumerate(names) if name in _HORIZONTAL]
    if len(rows) == len(columns) == 1:
        return rows[0], columns[0]
    # Colours of an image come last; a picture of them would be some pixels wide.
    last = array.ndim - 1
    if array.ndim > 2 and array.shape[-1] <= _SAMPLES < min(array.shape[-3:-1]):
        last -= 1
    return last - 1, last


def fit_level(
    node: Group | Array, path: str, array: Array, axes: Sequence[int]
) -> tuple[str, Array]:
    """Return the coarsest level of a pyramid that still has all pixels of a picture.

    Returns
    -------
    str
        Its path; empty if it is the array itself.
    Array
    """
    best, chosen = "", array
    for other in _levels(node, path):
        try:
            level = node[other] if isinstance(node, Group) else array
        except (VirtualZarrError, KeyError):
            continue  # A level that is not there, or damaged, is none to choose.
        if not isinstance(level, Array) or level.ndim != array.ndim or 0 in level.shape:
            continue
        long, short = (max(each.shape[axis] for axis in axes) for each in (chosen, level))
        # Never one that is finer than what was asked for.
        if PIXELS <= short < long:
            best, chosen = other, level
    return best, chosen


def _levels(node: Group | Array, path: str) -> Iterator[str]:
    """Yield the paths of all levels of the pyramid that an array is in (OME-Zarr; GeoZarr)."""
    if not isinstance(node, Group):
        return
    parents = path.split("/")[:-1]
    for count in range(len(parents), -1, -1):
        above = "/".join(parents[:count])
        group = node[above] if above else node
        if not isinstance(group, Group):
            continue
        below = path[len(above) :].lstrip("/")
        for levels in _pyramids(group.attributes):
            # A level is an array, or a group that has the array under its name.
            level_path = next((p for p in levels if below == p or below.startswith(f"{p}/")), None)
            if level_path is not None:
                inner = below[len(level_path) :]
                yield from (f"{above}/{level}{inner}".lstrip("/") for level in levels)
                return


def _pyramids(attributes: Mapping[str, Any]) -> Iterator[list[str]]:
    ome = attributes.get("ome")
    scales = (ome if isinstance(ome, Mapping) else attributes).get("multiscales")
    if isinstance(scales, Mapping):
        scales = [scales]
    for scale in scales if isinstance(scales, list) else []:
        if not isinstance(scale, Mapping):
            continue
        listed = scale.get("datasets", scale.get("layout"))
        if not isinstance(listed, list):
            continue
        entries = [each for each in listed if isinstance(each, Mapping)]
        paths = [each.get("path", each.get("asset")) for each in entries]
        yield [path.strip("/") for path in paths if isinstance(path, str) and path.strip("/")]


def _grows_upwards(node: Group | Array, path: str, array: Array, axes: Sequence[int]) -> bool:
    """Tell whether the coordinate of the rows grows with them, as latitudes may or may not."""
    if len(axes) < 2 or (array.dims[axes[0]] or "").lower() not in _VERTICAL:
        return False
    coordinate = find_coordinate(node, path, array.dims[axes[0]])
    if coordinate is None or coordinate.dtype.kind not in "iuf" or len(coordinate) < 2:
        return False
    try:
        ends = coordinate.oindex[(np.array([0, len(coordinate) - 1]),)]
    except VirtualZarrError:
        return False  # The picture is as it is stored.
    return bool(ends[1] > ends[0])
