"""Picture of a variable: a slice, coloured or as a line, within bounds of what is read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import SeparableGrid
from virtualzarr.array import Array
from virtualzarr.errors import VirtualZarrError
from virtualzarr.metadata.portable import as_exact_mask, get_mask
from virtualzarr.serve.page.png import color_indices, encode_png, palette

PIXELS = 640
"""Of the longer side of a picture, at most."""

MAX_CHUNKS, MAX_BYTES = 64, 64 << 20
"""What is read for a picture, at most: chunks, and their decoded bytes."""


class NoPictureError(VirtualZarrError):
    """There is no picture of an array; the message names nothing but that."""


@dataclass(frozen=True)
class Picture:
    """A picture and what is to be said of it.

    Attributes
    ----------
    media_type : str
    data : bytes
    caption : str
    low, high : float or None
        Values of the first and last colour.
    diverging : bool
    width, height : int
    """

    media_type: str
    data: bytes
    caption: str
    low: float | None = None
    high: float | None = None
    diverging: bool = False
    width: int = 0
    height: int = 0


def draw(array: Array, at: Sequence[int] = ()) -> Picture:
    """Draw an array: along its last two axes, or its only one.

    Parameters
    ----------
    array : Array
    at : sequence of int
        Where along all axes but the last two.

    Raises
    ------
    NoPictureError
        The elements are no numbers, or there are none.
    IndexError
        `at` is no place.
    """
    if array.dtype.kind not in "biufcmM":
        raise NoPictureError("there is no picture of values that are no numbers")
    if not array.size or not array.ndim:
        raise NoPictureError("there is no picture of a single value, or of none")
    leading = max(array.ndim - 2, 0)
    if len(at) != leading or any(
        not 0 <= i < n for i, n in zip(at, array.shape[:leading], strict=True)
    ):
        raise IndexError(f"give {leading} places within {array.shape[:leading]}")
    return _draw_line(array) if array.ndim == 1 else _draw_plane(array, tuple(at))


def _draw_plane(array: Array, at: tuple[int, ...]) -> Picture:
    rows, columns = array.shape[-2:]
    scale = max(rows, columns) / PIXELS
    height, width = (max(1, min(n, math.ceil(n / max(scale, 1)))) for n in (rows, columns))
    # The middle of what each pixel stands for; the nearest element, never a mean of several.
    ys = _middle(rows, height)
    xs = _middle(columns, width)
    values = np.full((height, width), np.nan)
    unread = np.ones((height, width), bool)
    boxes, total = _choose_cells(array, at, ys, xs)
    for y, x in boxes:
        selection = (*at, ys[y], xs[x])
        values[np.ix_(y, x)] = as_numbers(array, array.oindex[selection]).reshape(len(y), len(x))
        unread[np.ix_(y, x)] = False
    low, high, diverging = _find_limits(values)
    # North is up, where a latitude says so.
    flipped = _grows_upwards(array)
    pixels = color_indices(values, low, high, unread)[:: -1 if flipped else 1]
    # Small slices are enlarged whole times, so that a pixel of theirs can be seen.
    factor = max(1, min(PIXELS // 2 // max(height, width), 16))
    pixels = np.repeat(np.repeat(pixels, factor, axis=0), factor, axis=1)
    data = encode_png(pixels, palette(diverging))
    notes = _notes(array, (height, width), values, unread, len(boxes), total)
    return Picture("image/png", data, notes, low, high, diverging, *pixels.shape[::-1])


def _middle(extent: int, count: int) -> NDArray[np.int64]:
    """Return evenly chosen indices of an axis."""
    step = extent / count
    return np.minimum(((np.arange(count) + 0.5) * step).astype(np.int64), extent - 1)


def _choose_cells(
    array: Array, at: tuple[int, ...], ys: NDArray[np.int64], xs: NDArray[np.int64]
) -> tuple[list[tuple[NDArray[np.int64], NDArray[np.int64]]], int]:
    """Return which pixels are read, by stored chunks, and how many chunks there would be.

    All of them if they are few; else some, evenly chosen.
    """
    grid = array.grid
    if not isinstance(grid, SeparableGrid):
        return [(np.arange(len(ys)), np.arange(len(xs)))], 1
    row_cells, column_cells = (
        axis.cell_of(indices) for axis, indices in zip(grid.axes[-2:], (ys, xs), strict=True)
    )
    rows, columns = np.unique(row_cells), np.unique(column_cells)
    total = len(rows) * len(columns)
    lengths = [int(axis.runs()[0].max(initial=1)) for axis in grid.axes]
    most = max(1, min(MAX_CHUNKS, MAX_BYTES // max(math.prod(lengths) * array.dtype.itemsize, 1)))
    if math.prod(lengths) * array.dtype.itemsize > MAX_BYTES and not _is_partly_read(array):
        raise NoPictureError("the chunks are too large for a picture")
    if total <= most:
        return [(np.arange(len(ys)), np.arange(len(xs)))], total
    chosen = _middle(total, most)
    boxes = []
    for number in chosen.tolist():
        row, column = rows[number // len(columns)], columns[number % len(columns)]
        boxes.append((np.flatnonzero(row_cells == row), np.flatnonzero(column_cells == column)))
    return boxes, total


def _is_partly_read(array: Array) -> bool:
    """Whether parts of chunks are read alone: those that are not compressed."""
    return len(array.metadata.pipeline.codecs) == 1 and not array.dtype.hasobject


def as_numbers(array: Array, values: Any) -> NDArray[np.float64]:
    """Return values as the attributes say what they mean, and NaN where they are missing."""
    raw = np.asarray(values)
    if raw.dtype.kind in "mM":
        numbers = np.where(np.isnat(raw), np.nan, raw.astype("i8").astype("f8"))
        return np.asarray(numbers)
    numbers = np.abs(raw) if raw.dtype.kind == "c" else raw.astype("f8")
    attributes = array.metadata.attributes
    missing = np.zeros(raw.shape, bool)
    masks = [get_mask(array.metadata), *_as_list(attributes.get("missing_value"))]
    for mask in masks:
        exact = as_exact_mask(mask, array.dtype, attributes.get("_Unsigned"))
        if exact is not None:
            missing |= raw == exact
    scale, offset = (_number(attributes.get(name)) for name in ("scale_factor", "add_offset"))
    numbers = numbers * (1.0 if scale is None else scale) + (offset or 0.0)
    return np.where(missing | ~np.isfinite(numbers), np.nan, numbers)


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def _number(value: Any) -> float | None:
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _find_limits(values: NDArray[np.float64]) -> tuple[float, float, bool]:
    """Return the values of the first and last colour, and whether zero is in the middle.

    Of the values, 1 % may lie beyond on either side: a single one must not take all colours.
    """
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0.0, 1.0, False
    low, high = (float(x) for x in np.percentile(finite, [1, 99]))
    if low == high:
        low, high = float(finite.min()), float(finite.max())
    if low < 0 < high and min(-low, high) > 0.2 * max(-low, high):
        most = max(-low, high)
        return -most, most, True
    return low, high, False


def _grows_upwards(array: Array) -> bool:
    name = (array.dims[-2] or "").lower()
    return name in ("lat", "latitude", "y", "nav_lat") and not name.startswith("pixel")


def _notes(
    array: Array,
    shape: tuple[int, int],
    values: NDArray[np.float64],
    unread: NDArray[np.bool_],
    read: int,
    total: int,
) -> str:
    """Return what is said below a picture."""
    rows, columns = array.shape[-2:]
    notes = []
    if shape != (rows, columns):
        notes.append(f"{shape[0]:,} of {rows:,} rows and {shape[1]:,} of {columns:,} columns")
    if unread.any():
        notes.append(f"{read:,} of {total:,} chunks were read; the rest is hatched in red")
    missing = int((np.isnan(values) & ~unread).sum())
    if missing:
        share = missing / max(int((~unread).sum()), 1)
        notes.append(f"{share:.0%} of the values are missing (hatched)" if share >= 0.005 else
                     "less than 1 % of the values are missing (hatched)")  # fmt: skip
    return "; ".join(notes) or "all values"


def _draw_line(array: Array) -> Picture:
    """Draw an array with one axis: the least and greatest value of each column of pixels."""
    grid, (extent,) = array.grid, array.shape
    stop, notes = extent, "all values"
    if isinstance(grid, SeparableGrid):
        axis = grid.axes[0]
        most = min(axis.ncells, MAX_CHUNKS * 16)
        stop = min(extent, MAX_BYTES // max(array.dtype.itemsize, 1), int(axis.start(most)))
    if stop < extent:
        notes = f"the first {stop:,} of {extent:,} values were read"
    values = as_numbers(array, array[: max(stop, 1)])
    # As many columns as pixels: the least and greatest of each keep peaks that a sample would miss.
    columns = np.array_split(values, min(PIXELS, len(values)))
    low, high = _extremes(values)
    width, height, left = 640, 200, 4
    span = high - low or 1.0

    def place(value: float) -> float:
        return round(height - 8 - (value - low) / span * (height - 16), 1)

    step = (width - 2 * left) / max(len(columns) - 1, 1)
    parts, gap = [], True
    for number, column in enumerate(columns):
        finite = column[np.isfinite(column)]
        if not len(finite):
            gap = True
            continue
        x = round(left + number * step, 1)
        bottom, top = place(float(finite.min())), place(float(finite.max()))
        parts.append(f"{'M' if gap else 'L'}{x} {bottom}" + (f"V{top}" if top != bottom else "h.1"))
        gap = False
    missing = int(np.isnan(values).sum())
    if missing:
        notes += f"; {missing:,} of them are missing"
    label = escape(f"{array.name}: {low:.6g} to {high:.6g}", quote=True)
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{label}"><rect width="{width}" height="{height}" fill="#fff"/>'
        f'<path d="{"".join(parts)}" fill="none" stroke="#31688e" stroke-width="1.5" '
        'stroke-linecap="round"/></svg>'
    )
    return Picture("image/svg+xml", svg.encode(), notes, low, high, False, width, height)


def _extremes(values: NDArray[np.float64]) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)


def legend_text(picture: Picture, attributes: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the lowest and highest value of a picture, and their unit."""
    units = attributes.get("units")
    low, high = (f"{0.0 if value is None else value:.5g}" for value in (picture.low, picture.high))
    return low, high, units if isinstance(units, str) else ""
