"""Line of an array with one axis: the least and the greatest value of each column of pixels."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.display.numbers import as_numbers
from virtualzarr.serve.page import sampling
from virtualzarr.serve.page.sampling import Indices, Sample, grid_of, run_bounded, spread
from virtualzarr.serve.page.values import limit_text

WIDTH, HEIGHT = 640, 200
_LEFT, _TOP = 4, 8


def read_line(array: Array) -> tuple[Sample, Indices]:
    """Read the values of a line, and return where they are: all, or evenly chosen chunks."""
    indices, chunks, total = _choose_indices(array)
    runs = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
    values = np.zeros(len(indices), array.dtype)
    unread = np.ones(len(indices), bool)
    starts = np.cumsum([0, *(len(run) for run in runs[:-1])]).tolist()

    def read(part: tuple[int, Indices]) -> None:
        start, run = part
        inside = slice(start, start + len(run))
        values[inside] = array[int(run[0]) : int(run[-1]) + 1]
        unread[inside] = False

    done, failed = run_bounded(read, list(zip(starts, runs, strict=True)))
    count = chunks if done == len(runs) else done
    return Sample(values, unread, count, total, failed), indices


def _choose_indices(array: Array) -> tuple[Indices, int, int]:
    """Return which elements are read, of how many chunks, and how many chunks there are."""
    grid, (extent,) = grid_of(array), array.shape
    nbytes = sampling.chunk_bytes(array)
    if nbytes > sampling.MAX_BYTES:
        if not sampling.is_partly_read(array):
            raise sampling.NoPictureError("the chunks are too large for a picture")
        return np.arange(sampling.MAX_BYTES // array.dtype.itemsize), 1, 1
    if grid is None:
        return np.arange(extent), 1, 1
    axis = grid.axes[0]
    # Chunks of coordinates are small, and many of them lie side by side.
    most = min(sampling.MAX_CHUNKS * 4, sampling.MAX_BYTES // max(nbytes, 1))
    if axis.ncells <= most:
        return np.arange(extent), axis.ncells, axis.ncells
    cells = spread(axis.ncells, most)
    starts, stops = axis.start(cells), np.minimum(axis.start(cells + 1), extent)
    runs = [np.arange(a, b) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
    return np.concatenate(runs), most, axis.ncells


def draw_line(array: Array, sample: Sample, indices: Indices) -> tuple[str, float, float]:
    """Return the line as SVG, and its lowest and highest value."""
    values = as_numbers(array, sample.values)
    values[sample.unread] = np.nan
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    path = "".join(_segments(values, indices, array.shape[0], low, high))
    label = f"{array.name}: {limit_text(array, low)} to {limit_text(array, high)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(_printable(label), quote=True)}">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
        f'<path d="{path}" fill="none" stroke="#31688e" stroke-width="1.5" '
        'stroke-linecap="round"/></svg>'
    ), low, high  # fmt: skip


def _printable(text: str) -> str:
    """Return text that XML may have: a picture with a control character would not load."""
    return "".join(c if c >= " " and not "\ud800" <= c <= "\udfff" else "?" for c in text[:200])


def _segments(
    values: NDArray[np.float64], indices: Indices, extent: int, low: float, high: float
) -> Iterator[str]:
    """Yield the parts of the path, a column of pixels each; a gap where values are missing."""
    columns = min(WIDTH, extent)
    # The least and greatest of each column keep peaks that a sample would miss.
    of_column = indices * columns // extent
    cuts = np.flatnonzero(np.diff(of_column)) + 1
    step = (WIDTH - 2 * _LEFT) / max(columns - 1, 1)
    span = high / 2 - low / 2  # halves, as the difference of two large numbers may be infinite
    gap = True
    for column, part in zip(of_column[[0, *cuts]], np.split(values, cuts), strict=True):
        finite = part[np.isfinite(part)]
        if not len(finite):
            gap = True
            continue
        x = round(_LEFT + float(column) * step, 1)
        bottom, top = (
            round(HEIGHT - _TOP - (v / 2 - low / 2) / (span or 1.0) * (HEIGHT - 2 * _TOP), 1)
            for v in (float(finite.min()), float(finite.max()))
        )
        yield f"{'M' if gap else 'L'}{x} {bottom}" + (f"V{top}" if top != bottom else "h.1")
        gap = False
