"""Descriptions of arrays for the page: ranges of coordinates, sources, stored chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grids import SeparableGrid
from virtualzarr.array import Array
from virtualzarr.combine.cf_time import as_datetimes
from virtualzarr.display.numbers import as_numbers
from virtualzarr.errors import VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Manifest

if TYPE_CHECKING:
    from virtualzarr.serve.page.view import View

STATES = ("missing", "virtual", "inline", "stored")
_COLORS = {"virtual": "#31688e", "inline": "#b5891d", "stored": "#3b9a5b"}

_SQUARES = 48
"""Squares of the picture of chunks along each side, at most."""


def find_coordinate(node: Group | Array, path: str, dim: str | None) -> Array | None:
    """Return the coordinate of a dimension of an array: beside the array, or in a group above."""
    if dim is None or not isinstance(node, Group) or "/" in dim:
        return None
    parents = path.split("/")[:-1]
    for count in range(len(parents), -1, -1):
        name = "/".join([*parents[:count], dim])
        if name in node and isinstance(coordinate := node[name], Array) and coordinate.ndim == 1:
            return coordinate
    return None


def choose_variable(arrays: Mapping[str, Array]) -> str | None:
    """Return the variable that is shown first: the largest of numbers."""
    numbers = [path for path, array in arrays.items() if array.dtype.kind in "biufcmM"]
    chosen = max(numbers, key=lambda path: (min(arrays[path].ndim, 2), arrays[path].nbytes),
                 default=None)  # fmt: skip
    return chosen if chosen is not None else next(iter(arrays), None)


def range_text(coordinate: Array) -> str:
    """Return the first and the last value of a coordinate, dates where it has times."""
    if not coordinate.size or coordinate.dtype.kind not in "biufmMSUT":
        return ""
    try:
        ends = coordinate.oindex[(np.array([0, len(coordinate) - 1]),)]
    except VirtualZarrError:
        return "cannot be read"
    attributes = coordinate.metadata.attributes
    first, last = (value_text(value, attributes) for value in _unpack(coordinate, ends))
    units = coordinate.metadata.attributes.get("units", "")
    is_plain = as_datetimes(np.zeros(1), coordinate.metadata.attributes) is None
    between = first if len(coordinate) == 1 else f"{first} … {last}"
    return f"{between} {units}" if isinstance(units, str) and units and is_plain else between


def coordinate_texts(
    node: Group | Array, path: str, dim: str | None, indices: Sequence[int]
) -> list[str]:
    """Return coordinates along a dimension, or the indices where there are none."""
    numbers = [str(i) for i in indices]
    coordinate = find_coordinate(node, path, dim)
    if coordinate is None or max(indices, default=0) >= coordinate.shape[0]:
        return numbers
    try:
        values = coordinate.oindex[(np.array(indices, "i8"),)]
    except VirtualZarrError:
        return numbers
    unpacked = _unpack(coordinate, values)
    return [value_text(value, coordinate.metadata.attributes) for value in unpacked]


def _unpack(array: Array, values: NDArray[Any]) -> NDArray[Any]:
    """Return values as they are meant, where the attributes say that they are packed."""
    packed = any(
        n in array.metadata.attributes for n in ("scale_factor", "add_offset", "_Unsigned")
    )
    return as_numbers(array, values) if packed and array.dtype.kind in "iuf" else values


def values_at(
    node: Group | Array, path: str, array: Array, view: View, at: Sequence[int]
) -> list[str]:
    """Return the coordinates of a position along the axes that have sliders."""
    axes = zip(view.others, at, strict=True)
    return [coordinate_texts(node, path, array.dims[axis], [i])[0] for axis, i in axes]


def value_text(value: Any, attributes: Mapping[str, Any]) -> str:
    """Return a value for people; a date if its unit says so.

    Examples
    --------
    >>> value_text(36.5, {"units": "hours since 2000-01-01"}), value_text(np.float32(0.1), {})
    ('2000-01-02 12:30', '0.1')
    """
    is_number = isinstance(value, int | float | np.integer | np.floating)
    if is_number and np.isfinite(value):
        dates = as_datetimes(np.array([value]), attributes)
        if dates is not None:
            return _date_text(dates[0])
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.floating | float):
        return f"{value:.7g}"
    return str(value)


def _date_text(date: datetime) -> str:
    """Return a date without the parts that are zero."""
    # Seconds are rounded: a tenth of a day as a float is not exact.
    date = date.replace(tzinfo=None) + timedelta(microseconds=500_000)
    text = date.isoformat(" ", "seconds")
    return text.removesuffix(":00").removesuffix(" 00:00")


@dataclass(frozen=True)
class Chunks:
    """Which chunks of an array there are.

    Attributes
    ----------
    counts : dict of int by state
    sources : int
        Files that chunks lie in.
    names : list of str
        Some of them.
    picture : str
        SVG, empty if there are no cells.
    """

    counts: dict[str, int]
    sources: int
    names: list[str]
    picture: str


def describe_chunks(array: Array, manifest: Manifest, in_store: bool) -> Chunks:
    """Return which chunks there are.

    Parameters
    ----------
    in_store : bool
        Whether those that lie in files are of a store, and not of other people's files.
    """
    inline = np.array([source.is_inline for source in manifest.sources] + [False])
    present = 3 if in_store else 1
    # The entry behind the last is for missing chunks, whose row is -1.
    kinds = np.where(inline, 2, present).astype("u1")
    kinds[-1] = 0
    states = kinds[np.asarray(manifest.source)]
    counts = np.bincount(states.reshape(-1), minlength=len(STATES)).tolist()
    names = [source.uri for source in manifest.sources if not source.is_inline]
    picture = _draw_states(array, states)
    return Chunks(dict(zip(STATES, counts, strict=True)), len(names), names[:10], picture)


def _draw_states(array: Array, states: NDArray[np.uint8]) -> str:
    """Draw the cells along the two axes that have most of them; of the others, the first."""
    grid = array.grid
    if not states.size or not states.ndim or not isinstance(grid, SeparableGrid):
        return ""
    # The two longest axes in their order; stable, so that the last ones win where all are alike.
    axes = sorted(np.argsort(states.shape, kind="stable")[-2:].tolist())
    index = tuple(slice(None) if axis in axes else 0 for axis in range(states.ndim))
    plane = states[index] if len(axes) == 2 else states[index][None, :]
    rows, columns = (_evenly(n) for n in plane.shape)
    squares = plane[np.ix_(rows, columns)]
    size = max(4, min(14, 560 // max(len(columns), 1)))
    rectangles = [
        f'<rect x="{x * size + 0.5}" y="{y * size + 0.5}" width="{size - 2}" '
        f'height="{size - 2}" {paint_of(STATES[state])}/>'
        for y, row in enumerate(squares.tolist())
        for x, state in enumerate(row)
    ]
    width, height = len(columns) * size, len(rows) * size
    names = [f"{array.dims[axis] or f'axis {axis}'}" for axis in axes]
    noun = "chunk" if plane.shape[1] == 1 else "chunks"
    across = f"{names[-1]} → ({plane.shape[1]:,} {noun})"
    down = f"{names[0]} ↓ ({plane.shape[0]:,}), " if len(axes) == 2 else ""
    label = escape(f"chunks: {down}{across}", quote=True)
    return (
        f'<svg class="cells" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{label}">{"".join(rectangles)}</svg>'
        f'<p class="note">{escape(down + across)}'
        f"{'; evenly chosen' if squares.shape != plane.shape else ''}</p>"
    )


def _evenly(count: int) -> NDArray[np.int64]:
    squares = min(count, _SQUARES)
    return np.arange(squares) * count // max(squares, 1)


def paint_of(state: str) -> str:
    """Return how a chunk is painted: what is missing has an outline, and no colour."""
    return f'fill="{_COLORS[state]}"' if state in _COLORS else 'fill="none" stroke="#8a8a8a"'
