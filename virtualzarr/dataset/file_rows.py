"""Rows of new references that came from each of several files."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from virtualzarr.dataset.segment import Cells

Int64 = NDArray[np.int64]


def find_file_rows(
    arrays: Mapping[str, tuple[Cells, int]], count: int
) -> dict[str, tuple[int, int]]:
    """Return the first row that came from each file, and how many did.

    Once rows are folded, nothing else tells which of them were a file's.

    Parameters
    ----------
    arrays : mapping of str to (Cells, int)
        The references of arrays that grow, and which of their axes does.
    count : int
        How many rows there are.

    Returns
    -------
    dict of str to (int, int)
        By URI; nothing unless each row refers to just one file, and those of a file lie together.
    """
    numbers: dict[str, int] = {}
    owner = np.full(count, -1, np.int64)
    for cells, axis in arrays.values():
        rows = _find_owners(cells, axis, numbers, count)
        if rows is None or ((rows >= 0) & (owner >= 0) & (rows != owner)).any():
            return {}
        owner = np.maximum(owner, rows)
    first = np.flatnonzero(np.diff(owner, prepend=-2))
    owners = owner[first].tolist()
    if -1 in owners or len(set(owners)) < len(owners):
        return {}
    uris = list(numbers)
    counts = np.diff(first, append=count)
    pairs = zip(first.tolist(), counts.tolist(), strict=True)
    return {uris[number]: pair for number, pair in zip(owners, pairs, strict=True)}


def _find_owners(cells: Cells, axis: int, numbers: dict[str, int], count: int) -> Int64 | None:
    """Return the number of the file that each row refers to, -1 for none; None if to several."""
    manifest = cells.manifest
    source = np.moveaxis(np.asarray(manifest.source), axis, 0)
    source = source.reshape(len(source), -1)
    # The last one is that of chunks that are missing, whose source is -1.
    table = np.full(len(manifest.sources) + 1, -1, np.int64)
    for row in np.unique(source[source >= 0]).tolist():
        if uri := manifest.sources[row].uri:
            table[row] = numbers.setdefault(uri, len(numbers))
    owners = table[source]
    highest = owners.max(axis=1, initial=-1)
    if ((owners >= 0) & (owners != highest[:, None])).any():
        return None
    runs = np.array(cells.chunks or ((count, 1),), np.int64)
    return np.repeat(highest, np.repeat(runs[:, 0], runs[:, 1]))[:count]
