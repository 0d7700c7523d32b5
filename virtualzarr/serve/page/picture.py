"""Picture of a variable: a slice, coloured or as a line, and what is to be said of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.combine.cf_time import as_datetimes
from virtualzarr.display.numbers import as_numbers
from virtualzarr.serve.page.line import HEIGHT, WIDTH, draw_line, read_line
from virtualzarr.serve.page.png import color_indices, encode_png, palette
from virtualzarr.serve.page.sampling import (
    NoPictureError,
    Sample,
    is_partly_read,
    read_plane,
    spread,
    thin_rows,
)
from virtualzarr.serve.page.values import is_drawable, limit_text
from virtualzarr.serve.page.view import PIXELS, View, choose_axes

_UNITS = 80
"""Longer units are cut: they go into the head of an answer, too."""

MAX_PICTURE = 64 << 10
"""Bytes of a picture, at most: noise does not compress, and links are slow."""


@dataclass(frozen=True)
class Picture:
    """A picture and what is to be said of it.

    Attributes
    ----------
    media_type : str
    data : bytes
    caption : str
    low, high : str
        Values of the first and last colour, or ends of a line.
    units : str
    kind : {"line", "sequential", "diverging"}
        How values are coloured.
    width, height : int
    """

    media_type: str
    data: bytes
    caption: str
    low: str = ""
    high: str = ""
    units: str = ""
    kind: Literal["line", "sequential", "diverging"] = "sequential"
    width: int = 0
    height: int = 0


def draw(view: View | Array, at: Sequence[int] = ()) -> Picture:
    """Draw an array: two of its axes, or its only one.

    Parameters
    ----------
    view : View or Array
    at : sequence of int
        Where along all other axes.

    Raises
    ------
    NoPictureError
        The elements are no numbers, there are none, or too much would have to be read.
    IndexError
        `at` is no place.
    """
    if isinstance(view, Array):
        view = View(view, choose_axes(view), view.shape)
    if not is_drawable(view.array):
        raise NoPictureError("there is no picture of these values")
    indices = view.locate(at)
    return _draw_line(view) if view.array.ndim == 1 else _draw_plane(view, indices)


def _draw_line(view: View) -> Picture:
    array = view.array
    sample, indices = read_line(array)
    svg, low, high = draw_line(array, sample, indices)
    values = as_numbers(array, sample.values)
    ends = limit_text(array, low), limit_text(array, high)
    caption = "; ".join(_notes(view, (len(indices),), values, sample)) or "all values"
    return Picture(
        "image/svg+xml", svg.encode(), caption, *ends, _units(array), "line", WIDTH, HEIGHT
    )


def _draw_plane(view: View, indices: dict[int, int]) -> Picture:
    array, axes = view.array, (view.axes[0], view.axes[1])
    rows, columns = (array.shape[axis] for axis in axes)
    scale = max(rows, columns) / PIXELS
    height, width = (max(1, min(n, math.ceil(n / max(scale, 1)))) for n in (rows, columns))
    # The nearest element of each pixel, never a mean of several.
    ys, xs = spread(rows, height), spread(columns, width)
    if is_partly_read(array):
        ys = thin_rows(array, axes, ys)
    sample = read_plane(array, axes, indices, ys, xs)
    values = as_numbers(array, sample.values)
    values[sample.unread] = np.nan
    low, high, diverging = find_limits(values)
    # North is up, where a coordinate grows to the north.
    pixels = color_indices(values, low, high, sample.unread)[:: -1 if view.upwards else 1]
    # Small slices are enlarged whole times, so that a pixel of theirs can be seen.
    factor = max(1, min(PIXELS // 2 // max(height, width), 16))
    enlarged = np.repeat(np.repeat(pixels, factor, axis=0), factor, axis=1)
    data, step = encode_png(enlarged, palette(diverging)), 1
    while len(data) > MAX_PICTURE:
        step += 1
        data = encode_png(enlarged[::step, ::step], palette(diverging))
    shape = len(np.unique(ys[::step])), len(xs[::step])
    caption = "; ".join(_notes(view, shape, values, sample)) or "all values"
    kind: Any = "diverging" if diverging else "sequential"
    limits = limit_text(array, low), limit_text(array, high), _units(array)
    return Picture("image/png", data, caption, *limits, kind, *enlarged.shape[::-1])


def find_limits(values: NDArray[np.float64]) -> tuple[float, float, bool]:
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


def _units(array: Array) -> str:
    """Return the unit of values as they are shown: dates have none."""
    units = array.metadata.attributes.get("units")
    is_date = as_datetimes(np.zeros(1), array.metadata.attributes) is not None
    if not isinstance(units, str) or array.dtype.kind in "mM" or is_date:
        return ""
    return units[:_UNITS]


def _notes(
    view: View, shape: tuple[int, ...], values: NDArray[np.float64], sample: Sample
) -> Iterator[str]:
    """Yield what is said below a picture: which part of the array it shows."""
    array = view.array
    if array.dtype.kind == "c":
        yield "absolute values"
    full = tuple(array.shape[axis] for axis in view.axes)
    if view.level:
        size = " by ".join(f"{n:,}" for n in full)
        yield f"drawn from the level {view.level} of the pyramid ({size})"
    if shape != full:
        nouns = ("rows", "columns") if len(full) == 2 else ("values",)
        parts = zip(shape, full, nouns, strict=True)
        yield " and ".join(f"{n:,} of {m:,} {noun}" for n, m, noun in parts)
    if sample.failed:
        yield f"{sample.failed:,} parts cannot be read"
    if sample.unread.any():
        hatched = "; the rest is hatched in red" if len(full) == 2 else ""
        yield f"{sample.chunks:,} of {sample.total:,} chunks were read{hatched}"
    elif sample.chunks < sample.total:
        yield f"{sample.chunks:,} of {sample.total:,} chunks were read"
    missing = int((np.isnan(values) & ~sample.unread).sum())
    if missing:
        share = missing / max(int((~sample.unread).sum()), 1)
        count = f"{share:.0%}" if share >= 0.005 else "less than 1 %"
        hatched = " (hatched)" if len(full) == 2 else " (gaps)"
        yield f"{count} of the values are missing{hatched}"
