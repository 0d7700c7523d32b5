"""Source files of a dataset: which are in it, and which rows refer to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.choices import Duplicates
from virtualzarr.dataset import file_names
from virtualzarr.dataset.arrays import Opener
from virtualzarr.dataset.coordinates import SegmentCoordinates
from virtualzarr.dataset.entry import Entry
from virtualzarr.dataset.file_versions import (
    UNKNOWN,
    compare_versions,
    hash_version,
    version_of,
)
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.placing import Coordinates
from virtualzarr.dataset.row_search import find_ids, locate, merge_pairs
from virtualzarr.dataset.row_tables import read_overlapping
from virtualzarr.dataset.snapshot import Snapshot
from virtualzarr.errors import MismatchError, SourceChangedError, UnsupportedError
from virtualzarr.manifest import Source
from virtualzarr.stores.files import resolve_uri

Axes = Mapping[str, tuple[int, int]]
"""By path of each array that grows, how many axes it has and which of them grows."""


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
    for uri, versions in stored.items():
        source = Source.from_file(by_uri[uri], storage_options)
        if compare_versions(versions, version_of(source)) == "changed":
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


def find_files(
    state: Snapshot,
    dimension: str,
    axes: Axes,
    open_segment: Opener,
    folder: str,
    uris: Collection[str],
) -> Protocol[dict[str, set[str]]]:
    """Return which files rows of a version came from, among some, with their versions.

    Names that older writers stored have none: then references say it, as long as there are some.

    Raises
    ------
    UnsupportedError
        Rows that refer to no file may be of one of them, and have no coordinates that would tell.
    """
    read = _reader(open_segment)
    ranges = yield from file_names.find_files(state, dimension, uris, folder, read)
    others = [uri for uri in uris if uri not in ranges]
    if dimension not in axes:
        unclear = yield from file_names.find_files(
            state, dimension, others, folder, None, file_names.MAYBE
        )
        if unclear:
            raise UnsupportedError(
                "whether rows of the file are there is not known: some that came with it, and with "
                "other files, refer to none of them, and have no coordinate",
                file=next(iter(unclear)).removeprefix(file_names.MAYBE),
            )
    versions = {uri: {version for *_, version in rows} for uri, rows in ranges.items()}
    unclear = {uri: rows for uri, rows in ranges.items() if UNKNOWN in versions[uri]}
    for entry in (yield from _read_entries(state, dimension, unclear)):
        for uri, version in _iter_named(entry, axes, open_segment, unclear):
            if version != UNKNOWN:
                versions[uri].discard(UNKNOWN)
                versions[uri].add(version)
    return versions


def _reader(open_segment: Opener) -> Coordinates:
    """Return what reads the coordinates of an entry's rows."""

    def read(entry: Entry) -> Protocol[SegmentCoordinates]:
        return open_segment(entry.segment).coordinates()
        yield  # a protocol that asks for nothing: segments never change

    return read


def _read_entries(
    state: Snapshot, dimension: str, files: Mapping[str, Sequence[file_names.RowsOfFile]]
) -> Protocol[list[Entry]]:
    """Read the entries of rows that came with files."""
    ids = merge_pairs((first, count) for rows in files.values() for first, count, _ in rows)
    return (yield from read_overlapping(state, dimension, ids))


def _iter_named(
    entry: Entry, axes: Axes, open_segment: Opener, uris: Collection[str]
) -> Iterable[tuple[str, str]]:
    segment = open_segment(entry.segment)
    for path, (ndim, _) in axes.items():
        part = segment.part(path, ndim)
        if part is not None:
            for uri, size, time, etag in part.uris():
                if uri in uris:
                    yield uri, hash_version(size, time, etag)


def find_rows(
    state: Snapshot,
    dimension: str,
    open_segment: Opener,
    folder: str,
    uris: Collection[str],
) -> Protocol[list[tuple[int, int]]]:
    """Return the rows of a version that came from any of some files, as ranges of positions.

    Raises
    ------
    MismatchError
        No rows came from one of them.
    UnsupportedError
        Rows that refer to no file came with one of them, and with others.
    """
    read = _reader(open_segment)
    maybe = file_names.MAYBE
    names = _as_pairs((yield from file_names.read_names(state, dimension, uris, folder, "", maybe)))
    pairs = {uri: names.pop(uri) for uri in uris if uri in names}
    for uri, pair in (yield from _find_unclear(state, dimension, names)):
        stretches = yield from find_ids(state, dimension, [pair], read)
        if not locate(stretches, [pair]):
            continue
        (is_shared,) = yield from file_names.find_shared(state, dimension, uris, folder, [pair])
        if is_shared:
            raise UnsupportedError(
                "which rows came from the file is not known, as some that came with it, and with "
                "other files, refer to none of them; replace or drop rows by their coordinates",
                file=uri,
            )
        pairs.setdefault(uri, []).append(pair)
    every = [pair for each in pairs.values() for pair in each]
    stretches = yield from find_ids(state, dimension, every, read)
    for uri in uris:
        if not locate(stretches, pairs.get(uri, [])):
            raise MismatchError("no rows of the file are in the dataset", file=uri)
    return locate(stretches, every)


def _as_pairs(
    names: Mapping[str, Sequence[file_names.RowsOfFile]],
) -> dict[str, list[tuple[int, int]]]:
    return {uri: [(first, count) for first, count, _ in rows] for uri, rows in names.items()}


def _find_unclear(
    state: Snapshot, dimension: str, shared: Mapping[str, Sequence[tuple[int, int]]]
) -> Protocol[list[tuple[str, tuple[int, int]]]]:
    """Return ids of rows that refer to no file among those of which some are a file's.

    `shared` has the latter by URI after the prefix `MAYBE`.
    """
    if not shared:
        return []
    without = yield from file_names.read_names(state, dimension, [file_names.NO_FILE])
    nameless = merge_pairs(pair for pairs in _as_pairs(without).values() for pair in pairs)
    return [
        (name.removeprefix(file_names.MAYBE), (first, count))
        for name, pairs in shared.items()
        for pair in pairs
        for first, count in nameless.intersect(*pair).pairs
    ]


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
