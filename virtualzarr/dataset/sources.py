"""Source files of a dataset: which are in it, and which rows refer to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import Axis
from virtualzarr.choices import Duplicates
from virtualzarr.dataset import file_names
from virtualzarr.dataset.arrays import Opener
from virtualzarr.dataset.entry import Entry
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.row_tables import read_overlapping, read_runs
from virtualzarr.dataset.runs import Runs
from virtualzarr.dataset.segment import DATA
from virtualzarr.dataset.snapshot import Snapshot
from virtualzarr.errors import MismatchError, SourceChangedError, UnsupportedError
from virtualzarr.manifest import Source
from virtualzarr.references.native.parts import NO_SIZE, NO_TIME
from virtualzarr.stores.files import resolve_uri

Axes = Mapping[str, tuple[int, int]]
"""By path of each array that grows, how many axes it has and which of them grows."""

Facts = tuple[int, int, str]
"""Size, time of modification and entity tag of a file when it was scanned."""


def select_new_files(
    state: Snapshot,
    dimension: str,
    axes: Axes,
    open_segment: Opener,
    folder: str,
    files: Sequence[str],
    duplicates: Duplicates,
    storage_options: Mapping[str, Any] | None,
) -> Protocol[list[str]]:
    """Return those of several files that are not in a version yet.

    Raises
    ------
    MismatchError
        Files are there, and that is an error.
    SourceChangedError
        A file is there, but was another one when it was scanned.
    """
    by_uri = {resolve_uri(file): file for file in files}
    stored = yield from find_files(state, dimension, axes, open_segment, folder, by_uri)
    for uri, facts in stored.items():
        source = Source.from_file(by_uri[uri], storage_options)
        if facts and facts_of(source) not in facts:
            raise SourceChangedError(
                "the file is in the dataset, but has changed since it was scanned; replace() it",
                file=uri,
            )
    if stored and duplicates == "raise":
        raise MismatchError(
            f'{len(stored)} of the files are in the dataset already; duplicates="skip" leaves them '
            "out",
            file=next(iter(stored)),
        )
    return [file for uri, file in by_uri.items() if uri not in stored]


def facts_of(source: Source) -> Facts:
    """Return what is stored of a source besides its name."""
    return (
        NO_SIZE if source.size is None else source.size,
        NO_TIME if source.mtime_ns is None else source.mtime_ns,
        source.etag or "",
    )


def find_files(
    state: Snapshot,
    dimension: str,
    axes: Axes,
    open_segment: Opener,
    folder: str,
    uris: Collection[str],
) -> Protocol[dict[str, set[Facts]]]:
    """Return which files rows of a version came from, among some, as they were scanned.

    Nothing is known of those whose rows were folded.
    """
    facts_by_uri: dict[str, set[Facts]] = {}
    ranges = yield from file_names.find_files(state, dimension, uris, folder)
    entries = yield from _read_entries(state, dimension, ranges)
    for entry in entries:
        for uri, facts in _iter_named(entry, axes, open_segment, set(ranges)):
            facts_by_uri.setdefault(uri, set()).add(facts)
    # What was folded into data of the dataset itself names its file no more.
    folded: dict[str, set[Facts]] = {uri: set() for uri in ranges if uri not in facts_by_uri}
    if not facts_by_uri:
        return folded
    runs = yield from read_runs(state, dimension)
    # Rows that were dropped do not count, though their segment still names the file. Where all are
    # there that came with it, nothing need be looked up.
    return folded | {
        uri: facts
        for uri, facts in facts_by_uri.items()
        if _has_all(runs, ranges[uri])
        or _rows_in(entries, runs, dimension, axes, open_segment, [uri])
    }


def _has_all(runs: Runs, ranges: Sequence[tuple[int, int]]) -> bool:
    first, count = np.array(ranges, np.int64).T
    return bool((runs.count_ids(first, first + count) == count).any())


def _read_entries(
    state: Snapshot, dimension: str, ranges: Mapping[str, Sequence[tuple[int, int]]]
) -> Protocol[list[Entry]]:
    """Read the entries of rows that came with files."""
    bounds = np.array([pair for pairs in ranges.values() for pair in pairs], np.int64).reshape(
        -1, 2
    )
    runs = Runs(bounds[:, 0], bounds[:, 1])
    return (yield from read_overlapping(state, dimension, runs))


def _iter_named(
    entry: Entry, axes: Axes, open_segment: Opener, uris: Collection[str]
) -> Iterable[tuple[str, Facts]]:
    segment = open_segment(entry.segment)
    for path, (ndim, _) in axes.items():
        part = segment.part(path, ndim)
        if part is not None:
            for uri, size, time, etag in part.uris():
                if uri in uris:
                    yield uri, (size, time, etag)


def find_rows(
    state: Snapshot,
    dimension: str,
    axes: Axes,
    open_segment: Opener,
    folder: str,
    uris: Collection[str],
) -> Protocol[list[tuple[int, int]]]:
    """Return the rows of a version that came from any of some files, as ranges of positions.

    Raises
    ------
    UnsupportedError
        Some refer to no file any more, as they were folded, and may have come from another.
    """
    runs = yield from read_runs(state, dimension)
    ranges = yield from file_names.find_files(state, dimension, uris, folder, runs)
    entries = yield from _read_entries(state, dimension, ranges)
    ids = [_ids_of(entry, dimension, axes, open_segment, uris) for entry in entries]
    named = np.concatenate([np.empty(0, np.int64), *ids])
    unclear = [
        (uri, pair)
        for uri, pairs in ranges.items()
        for pair in pairs
        # Where all rows that came with a file refer to it, nothing else need be looked at.
        if not np.isin(np.arange(pair[0], sum(pair)), named).all()
        and _has_unclear(entries, runs, dimension, axes, open_segment, pair)
    ]
    if unclear:
        shared = yield from file_names.find_shared(
            state, dimension, uris, folder, [pair for _, pair in unclear]
        )
        for (uri, (first, count)), is_shared in zip(unclear, shared, strict=True):
            if is_shared:
                raise UnsupportedError(
                    "which rows came from the file is not known any more, as they were folded; "
                    "replace or drop rows by their coordinates",
                    file=uri,
                )
            ids.append(np.arange(first, first + count))
    return _as_positions(ids, runs)


def _has_unclear(
    entries: Iterable[Entry],
    runs: Runs,
    dimension: str,
    axes: Axes,
    open_segment: Opener,
    pair: tuple[int, int],
) -> bool:
    """Tell whether some of the rows that came with a file refer to no file."""
    for entry in entries:
        first, count = entry.rows[dimension]
        low, high = max(first, pair[0]), min(first + count, sum(pair))
        if low < high:
            uris = _list_files(entry, axes, open_segment)
            rows = rows_with_sources(entry, dimension, axes, open_segment, uris)
            ids = np.flatnonzero(~rows[low - first : high - first]) + low
            if (runs.positions(ids) >= 0).any():
                return True
    return False


def _list_files(entry: Entry, axes: Axes, open_segment: Opener) -> set[str]:
    """Return all files that an entry refers to, but for data of the dataset itself."""
    segment = open_segment(entry.segment)
    parts = [segment.part(path, ndim) for path, (ndim, _) in axes.items()]
    uris = {uri for part in parts if part is not None for uri in part.names()}
    return {uri for uri in uris if uri and not uri.startswith(f"{segment.folder}/{DATA}/")}


def _rows_in(
    entries: Iterable[Entry],
    runs: Runs,
    dimension: str,
    axes: Axes,
    open_segment: Opener,
    uris: Collection[str],
) -> list[tuple[int, int]]:
    return _as_positions(
        [_ids_of(entry, dimension, axes, open_segment, uris) for entry in entries], runs
    )


def _ids_of(
    entry: Entry, dimension: str, axes: Axes, open_segment: Opener, uris: Collection[str]
) -> NDArray[np.int64]:
    """Return the ids of the rows of an entry that refer to any of some files."""
    rows = rows_with_sources(entry, dimension, axes, open_segment, uris)
    return np.flatnonzero(rows) + entry.rows[dimension][0]


def _as_positions(ids: Sequence[NDArray[np.int64]], runs: Runs) -> list[tuple[int, int]]:
    positions = np.unique(runs.positions(np.concatenate([np.empty(0, np.int64), *ids])))
    return as_ranges(positions[positions >= 0])


def as_ranges(positions: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return sorted positions as ranges.

    Examples
    --------
    >>> as_ranges(np.array([1, 2, 5]))
    [(1, 3), (5, 6)]
    """
    if not len(positions):
        return []
    parts = np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1)
    return [(int(part[0]), int(part[-1]) + 1) for part in parts]


def rows_with_sources(
    entry: Entry,
    dimension: str,
    axes: Axes,
    open_segment: Opener,
    uris: Collection[str],
) -> NDArray[np.bool_]:
    """Return which rows of an entry have references to some files."""
    segment = open_segment(entry.segment)
    count = entry.rows[dimension][1]
    rows = np.zeros(count, bool)
    for path, (ndim, axis) in axes.items():
        part = segment.part(path, ndim)
        if part is None:
            continue
        # What is inline has no name, and is the last row of the table.
        names = part.names()
        chosen = [k for k, uri in enumerate(names) if uri in uris]
        if not chosen:
            continue
        hit = np.isin(part.load_source_rows(), chosen)
        cells = np.atleast_1d(hit.any(axis=tuple(i for i in range(ndim) if i != axis)))
        lengths, repeats = zip(*(entry.chunks_of(path) or ((count, 1),)), strict=True)
        edges = Axis(count, lengths, repeats).edge(np.arange(len(cells)))
        rows |= np.repeat(cells, edges)[:count]
    return rows
