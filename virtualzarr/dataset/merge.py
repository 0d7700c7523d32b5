"""Merging of segments: ten neighbours of about the same age become one, so that there stay few.

Like the levels of a log-structured merge tree, which bounds how often each reference is rewritten.
Merging is a commit of its own, after the one that made it due was answered.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from virtualzarr.dataset.arrays import Opener
from virtualzarr.dataset.commit import Change, record
from virtualzarr.dataset.head import Head
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.segment import Cells, pack
from virtualzarr.dataset.snapshot import ChunkRuns, Entry, Record, Snapshot
from virtualzarr.dataset.verbs import Stored
from virtualzarr.errors import MismatchError
from virtualzarr.manifest import Manifest

FAN_IN = 10
LARGEST = 4 << 20
"""Bytes from which on a segment is not merged any more."""


def find_due(state: Snapshot, dimension: str) -> list[Entry]:
    """Return entries that should be merged: the last of one level, if they are enough.

    Examples
    --------
    >>> find_due(Snapshot(1, "", 0), "time")
    []
    """
    entries = [entry for entry in state.entries.values() if dimension in entry.rows]
    entries.sort(key=lambda entry: entry.rows[dimension][0])
    for level, group in itertools.groupby(reversed(entries), _level):
        run: list[Entry] = []
        for entry in group:
            # Only rows whose ids go on can be described by one range of ids.
            if run and sum(entry.rows[dimension]) != run[-1].rows[dimension][0]:
                break
            if entry.segment.size >= LARGEST or (run and entry.grids != run[-1].grids):
                break
            run.append(entry)
        if len(run) >= FAN_IN:
            return run[:FAN_IN][::-1] if level == 0 else run[-FAN_IN:][::-1]
    return []


def _level(entry: Entry) -> int:
    return len(str(entry.commits)) - 1


def merge(
    head: Head, dimension: str, axes: Mapping[str, tuple[int, int]], open_segment: Opener
) -> Change | None:
    """Return the change that makes one segment of those that are due; None if none are.

    Parameters
    ----------
    axes : mapping of str to (int, int)
        By path, how many axes an array has, and which of them grows.
    """
    due = find_due(head.snapshot, dimension)
    if not due:
        return None
    cells = {
        path: merge_cells(due, path, ndim, axis, open_segment)
        for path, (ndim, axis) in axes.items()
    }
    segments = [open_segment(entry.segment) for entry in due]
    coordinates = None
    if all(segment.has_coordinates for segment in segments):
        coordinates = np.concatenate([segment.coordinates() for segment in segments])
    merged = {path: entry_cells for path, entry_cells in cells.items() if entry_cells is not None}
    stored = Stored("segments", *pack(merged, coordinates, segments[0].folder))

    def change(head: Head) -> Protocol[Record]:
        entries = head.snapshot.entries
        if any(entries.get(entry.segment.name) != entry for entry in due):
            raise MismatchError("the segments are not there any more")
        named = yield from stored.put(head.snapshot.epoch)
        first = due[0].rows[dimension][0]
        count = sum(entry.rows[dimension][1] for entry in due)
        bounds = {}
        if all(dimension in entry.bounds for entry in due):
            lows, highs = zip(*(entry.bounds[dimension] for entry in due), strict=True)
            bounds = {dimension: (min(lows), max(highs))}
        entry = Entry(
            named,
            max(entry.sequence for entry in due),
            {dimension: (first, count)},
            bounds,
            group_chunks({path: item.chunks or () for path, item in merged.items()}),
            due[0].grids,
            sum(entry.commits for entry in due),
            tuple(dict.fromkeys(item for entry in due for item in entry.data)),
        )
        new_record = yield from record(head, {"verb": "merge"})
        return replace(new_record, added=(entry,), removed=tuple(e.segment.name for e in due))

    return change


def merge_cells(
    entries: Sequence[Entry], path: str, ndim: int, axis: int, open_segment: Opener
) -> Cells | None:
    """Return the references of an array in several segments as those of one."""
    parts = [open_segment(entry.segment).part(path, ndim) for entry in entries]
    shape = next((list(part.shape) for part in parts if part is not None), None)
    if shape is None:
        return None
    manifests, runs = [], []
    for entry, part in zip(entries, parts, strict=True):
        chunks = list(entry.chunks_of(path))
        if part is None:
            # The array is newer than these rows, or they stand for a gap.
            shape[axis] = sum(count for _, count in chunks)
            manifests.append(Manifest.missing(shape))
        else:
            manifests.append(part.load([slice(n) for n in part.shape]))
        runs += chunks
    return Cells(Manifest.concatenate(manifests, axis), join_runs(runs))


def join_runs(runs: Sequence[tuple[int, int]]) -> ChunkRuns:
    """Return runs of chunk lengths with equal neighbours joined.

    Examples
    --------
    >>> join_runs([(3, 2), (3, 1), (1, 1)])
    ((3, 3), (1, 1))
    """
    groups = itertools.groupby(runs, lambda run: run[0])
    return tuple((length, sum(count for _, count in group)) for length, group in groups)


def group_chunks(chunks: Mapping[str, ChunkRuns]) -> Any:
    """Return how rows are chunked, by which arrays; the commonest way is that of all others."""
    by_runs: dict[Any, list[str]] = {}
    for path, runs in chunks.items():
        by_runs.setdefault(runs, []).append(path)
    ordered = sorted(by_runs.items(), key=lambda item: len(item[1]))
    return tuple(
        (runs, None if k == len(ordered) - 1 else tuple(paths))
        for k, (runs, paths) in enumerate(ordered)
    )
