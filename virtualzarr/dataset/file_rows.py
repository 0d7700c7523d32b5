"""Rows of new references that came from each of several files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from grids import RegularGrid
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.dataset.describe import build_cells, find_growing
from virtualzarr.dataset.segment import Cells
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata

Int64 = NDArray[np.int64]

Ranges = list[tuple[int, int]]
"""Rows, as the first one and the count of those that follow each other, in their order."""

_MARKS = "virtualzarr: the file of each row"


def find_file_rows(
    arrays: Mapping[str, tuple[Cells, int]], count: int, uris: Collection[str]
) -> tuple[dict[str, Ranges], Ranges]:
    """Return which rows refer to each of some files, and which refer to none of them.

    Once rows are folded, nothing else tells which of them were a file's.

    Parameters
    ----------
    arrays : mapping of str to (Cells, int)
        The references of arrays that grow, and which of their axes does.
    count : int
        How many rows there are.
    uris : collection of str

    Returns
    -------
    by_uri : dict of str to list of (int, int)
        One row may refer to several files.
    others : list of (int, int)
    """
    names = [*uris]
    numbers = {uri: number for number, uri in enumerate(names)}
    parts = [_find_intervals(cells, axis, numbers, count) for cells, axis in arrays.values()]
    file, start, stop = np.concatenate([np.empty((3, 0), np.int64), *parts], axis=1)
    by_uri: dict[str, Ranges] = {}
    for number, first, end in zip(*_unite(file, start, stop, count), strict=True):
        by_uri.setdefault(names[number], []).append((first, end - first))
    return by_uri, list_others([pair for ranges in by_uri.values() for pair in ranges], count)


def list_others(ranges: Sequence[tuple[int, int]], count: int) -> Ranges:
    """Return the rows of so many that are in none of some ranges.

    Examples
    --------
    >>> list_others([(4, 2), (1, 1)], 8)
    [(0, 1), (2, 2), (6, 2)]
    """
    first, length = np.array([*ranges], np.int64).reshape(-1, 2).T
    _, starts, stops = _unite(np.zeros_like(first), first, first + length, count)
    pairs = zip([0, *stops], [*starts, count], strict=True)
    return [(low, high - low) for low, high in pairs if low < high]


def _find_intervals(cells: Cells, axis: int, numbers: Mapping[str, int], count: int) -> Int64:
    """Return numbers of files, and the first row and the one after the last that refer to each."""
    manifest = cells.manifest
    source = np.moveaxis(np.asarray(manifest.source), axis, 0)
    # The last one is that of chunks that are missing, whose source is -1.
    table = np.full(len(manifest.sources) + 1, -1, np.int64)
    for row in np.unique(source[source >= 0]).tolist():
        table[row] = numbers.get(manifest.sources[row].uri, -1)
    owners = table[source.reshape(len(source), -1)]
    # Most chunks of a row are of one file: of neighbours that are alike one is enough.
    is_first = np.ones(owners.shape, bool)
    is_first[:, 1:] = owners[:, 1:] != owners[:, :-1]
    row, column = np.nonzero(is_first & (owners >= 0))
    lengths, repeats = np.array(cells.chunks or ((count, 1),), np.int64).T
    edges = np.concatenate([[0], np.cumsum(np.repeat(lengths, repeats))]).clip(max=count)
    return np.array([owners[row, column], edges[row], edges[row + 1]])


def _unite(
    file: Int64, start: Int64, stop: Int64, count: int
) -> tuple[list[int], list[int], list[int]]:
    """Return intervals of each file that overlap or touch as one, by file and then by row."""
    if not len(file):
        return [], [], []
    # Those of different files never touch: one is left out between them.
    shift = file * (count + 1)
    order = np.argsort(shift + start, kind="stable")
    low, high = (shift + start)[order], np.maximum.accumulate((shift + stop)[order])
    at = np.concatenate([[0], np.flatnonzero(low[1:] > high[:-1]) + 1])
    first, last = order[at], np.append(at[1:], len(low)) - 1
    return file[first].tolist(), start[first].tolist(), (high[last] - shift[first]).tolist()


# Files that are scanned: which rows are whose is known also where they refer to something else.


def mark_rows(
    groups: Sequence[Group | None], marks: Sequence[str], dimension: str
) -> list[Group | None]:
    """Return the groups of files with an array that refers to the file of each row.

    Whatever a join does to rows, it does to these references. Those of files whose rows are merged
    must be the same, as must all that is in both. Groups stay as they are where some have the
    dimension and others do not.
    """
    growing = [{} if group is None else find_growing(group, dimension) for group in groups]
    if any(group is not None and len(group) and not growing[k] for k, group in enumerate(groups)):
        return [*groups]
    marked = []
    for group, uri, arrays in zip(groups, marks, growing, strict=True):
        if group is not None and arrays:
            array = next(iter(arrays.values()))
            mark = _build_mark(uri, array.shape[array.dims.index(dimension)], dimension)
            group = group.replace(members={**{name: group[name] for name in group}, _MARKS: mark})
        marked.append(group)
    return marked


def _build_mark(uri: str, count: int, dimension: str) -> Array:
    # Nothing is ever read of it, as it is compared with equal references only. Data that are
    # missing are NaN, as in any array of floats.
    grid = RegularGrid((count,), (max(count, 1),))
    metadata = ArrayMetadata(
        (count,), np.dtype("<f4"), grid, Pipeline([make("bytes", endian="little")]),
        np.float32(np.nan), dimension_names=(dimension,),
    )  # fmt: skip
    manifest = Manifest(grid.grid_shape, Sources([Source(uri)]), 0, 0, 4 * count)
    return Array.from_manifest(metadata, manifest, _MARKS)


def read_marks(
    joined: Group,
    groups: Sequence[Group | None],
    uris: Sequence[str],
    marks: Sequence[str],
    dimension: str,
) -> tuple[Group, dict[str, Ranges | None]]:
    """Return a group without marks, and which rows came from each file that is not left out.

    Parameters
    ----------
    joined : Group
        Made of `groups`, each of which has marks or none.
    groups : sequence of Group, optional
        None for files that are left out.
    uris, marks : sequence of str
        Each file, and the one that its rows were marked with.

    Returns
    -------
    group : Group
    ranges : dict of str to list of (int, int), or None
        None where it is not certain.
    """
    names = [uri for group, uri in zip(groups, uris, strict=True) if group is not None]
    marked = joined.get(_MARKS)
    if isinstance(marked, Array):
        joined = joined.replace(members={name: joined[name] for name in joined if name != _MARKS})
    count = _count_rows(joined, dimension)
    if len(names) == 1:
        return joined, {names[0]: [(0, count)]}
    if not isinstance(marked, Array):
        # Files without the dimension are stacked: a row each.
        is_stacked = count == len(names)
        return joined, {uri: [(k, 1)] if is_stacked else None for k, uri in enumerate(names)}
    rows, others = find_file_rows({"": (build_cells(marked, dimension), 0)}, count, marks)
    rows = {uri: rows.get(mark, []) for uri, mark in zip(uris, marks, strict=True)}
    filled = [
        uri for group, uri in zip(groups, uris, strict=True) if group is not None and not len(group)
    ]
    # What stands for files that cannot be read is of one of them, or of any.
    unclear: Ranges | None = others if len(filled) == 1 else None
    ranges = {uri: unclear if uri in filled else rows[uri] for uri in names}
    return joined, ranges


def _count_rows(group: Group, dimension: str) -> int:
    arrays = find_growing(group, dimension).values()
    return next((array.shape[array.dims.index(dimension)] for array in arrays), 0)
