"""Small values of remote files that were parsed: their bytes came with the scan, and are kept."""

from __future__ import annotations

import numpy as np

from virtualzarr.array import Array
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import iter_arrays
from virtualzarr.stores.file_heads import keep

_MOST_BYTES = 64 << 10
"""Coordinates whose chunks take up more of the file are requested when they are asked for."""


def keep_small_values(group: Group) -> None:
    """Keep the bytes of scalars and coordinates of a file whose head is in use, for its join."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for path, array in iter_arrays(group):
        names = [path.rpartition("/")[2]] if array.ndim else []
        if [*array.dims] == names and (span := _find_span(array)) is not None:
            uri, start, stop = span
            spans.setdefault(uri, []).append((start, stop))
    for uri, some in spans.items():
        keep(uri, some)


def _find_span(array: Array) -> tuple[str, int, int] | None:
    """Return the file that all chunks of an array are in, and the bytes from first to last."""
    manifest = array.manifest
    if len(manifest.sources) != 1 or manifest.sources[0].is_inline:
        return None
    is_there = np.asarray(manifest.source) >= 0
    start, length = (
        np.broadcast_to(np.asarray(column), is_there.shape)[is_there]
        for column in (manifest.offset, manifest.length)
    )
    if not len(start) or (length < 0).any():
        return None
    first, last = int(start.min()), int((start + length).max())
    if last - first > _MOST_BYTES:
        return None
    return manifest.sources[0].uri, first, last
