"""Own data of entries of which some rows are gone: which objects their other rows still need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from grids import Axis
from virtualzarr.dataset.arrays import Opener
from virtualzarr.dataset.entry import Entry
from virtualzarr.dataset.runs import Runs
from virtualzarr.dataset.segment import Cells, list_own_objects

Trim = Callable[[Entry, str, Runs], Entry]
"""Returns an entry without the objects of data that none of its rows needs that are there."""


def trim_data(axes: Mapping[str, tuple[int, int]], open_segment: Opener) -> Trim:
    """Return what trims entries.

    Parameters
    ----------
    axes : mapping of str to (int, int)
        By path, how many axes an array has, and which of them grows.
    """

    def trim(entry: Entry, dimension: str, runs: Runs) -> Entry:
        ids = _list_ids(entry, dimension)
        rows = np.flatnonzero(runs.count_ids(ids, ids + 1))
        # Only who has objects to lose is read.
        if not len(entry.data) or len(rows) in (0, len(ids)):
            return entry
        segment, cells = open_segment(entry.segment), {}
        for path in segment.paths:
            ndim, axis = axes[path]
            part = segment.part(path, ndim)
            assert part is not None
            manifest = part.load([slice(n) for n in part.shape])
            lengths = entry.chunks_of(path) or ((len(ids), 1),)
            along = Axis(len(ids), *zip(*lengths, strict=True))
            source = manifest.source.copy()
            touched = np.zeros(along.ncells, bool)
            touched[along.cell_of(rows)] = True
            np.moveaxis(source, axis, 0)[~touched] = -1
            cells[path] = Cells(manifest.replace(source=source), None)
        used = list_own_objects(cells, segment.folder)
        return replace(entry, data=tuple(item for item in entry.data if item.name in used))

    return trim


def _list_ids(entry: Entry, dimension: str) -> NDArray[np.int64]:
    """Return the ids of the rows of an entry's segment."""
    layer = entry.layer
    runs = [entry.rows.get(dimension, (0, 0))] if layer is None else layer.ids
    return np.concatenate([np.arange(first, first + count) for first, count in runs])


def find_trimmed(entry: Entry, runs: Mapping[str, Runs], trim: Trim) -> Entry | None:
    """Return an entry with less data, None if it needs all that it has."""
    for dimension in [*entry.rows] if entry.layer is None else [entry.layer.dimension]:
        new = trim(entry, dimension, runs[dimension])
        if len(new.data) < len(entry.data):
            return new
    return None
