"""Merging of a layer's segments, of which each compaction makes more: so there stay few.

Source: ``specs/dataset.md``, *Layers*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from virtualzarr.dataset.arrays import Opener
from virtualzarr.dataset.commit import Change, record
from virtualzarr.dataset.entry import ChunkRuns, Entry
from virtualzarr.dataset.head import Head
from virtualzarr.dataset.merge import (
    IN_VACUUMS,
    SourceTables,
    check_present,
    group_chunks,
    join_runs,
    list_data,
    pack_small,
)
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.row_tables import read_entries, read_runs
from virtualzarr.dataset.segment import Cells, pack
from virtualzarr.dataset.snapshot import Record, Snapshot
from virtualzarr.dataset.verbs import Stored
from virtualzarr.manifest import Manifest


@dataclass(frozen=True, slots=True)
class DueLayer:
    """Entries of one layer that are to become one; by the first ids of their rows."""

    entries: tuple[Entry, ...]


def find_due_layers(state: Snapshot, dimension: str, least: int = 2) -> Protocol[list[DueLayer]]:
    """Return small segments of layers that are to be merged, if so many would become one.

    Those of which no row is there any more are left to the vacuum, which takes them out.
    """
    runs = yield from read_runs(state, dimension)
    groups: dict[Any, list[Entry]] = {}
    for entry in (yield from read_entries(state)):
        layer = entry.layer
        if layer is None or layer.dimension != dimension or not IN_VACUUMS.has_room(entry):
            continue
        first, count = np.array(layer.ids, np.int64).T
        if runs.count_ids(first, first + count).any():
            grids = tuple(sorted(entry.grids.items()))
            groups.setdefault((layer.key, layer.arrays, grids), []).append(entry)
    return [
        DueLayer(chosen)
        for entries in groups.values()
        for chosen in pack_small(sorted(entries, key=_first_id))
        if len(chosen) >= least
    ]


def _first_id(entry: Entry) -> int:
    assert entry.layer is not None
    return min(first for first, _ in entry.layer.ids)


def merge_layer(due: DueLayer, axes: Mapping[str, tuple[int, int]], open_segment: Opener) -> Change:
    """Return the change that makes one segment of several of a layer.

    As an id means the same values in every version, nothing but the entries must be as they were.

    Parameters
    ----------
    axes : mapping of str to (int, int)
        By path, how many axes an array has, and which of them grows.

    Raises
    ------
    MismatchError
        By the change: another writer merged them, or took the layer away.
    """
    old, layer = due.entries, due.entries[0].layer
    assert layer is not None
    # Sources are shared by all arrays, so that the segment lists each file once.
    tables, merged = SourceTables(), {}
    for path in layer.arrays:
        ndim, axis = axes[path]
        manifests: list[Manifest] = []
        runs: list[tuple[int, int]] = []
        for entry in old:
            part = open_segment(entry.segment).part(path, ndim)
            assert part is not None
            manifests.append(tables.load(part, [slice(n) for n in part.shape]))
            runs += entry.chunks_of(path)
        merged[path] = Cells(Manifest.concatenate(tables.share(manifests), axis), join_runs(runs))
    stored = Stored("segments", *pack(merged, None, open_segment(old[0].segment).folder))
    ids = [run for entry in old if entry.layer is not None for run in entry.layer.ids]
    new = Entry(
        old[0].segment, max(entry.sequence for entry in old), {}, {},
        group_chunks({path: item.chunks or () for path, item in merged.items()}), old[0].grids,
        sum(entry.commits for entry in old), list_data(old, merged),
        replace(layer, ids=_join_ids(ids)), sum(item.manifest.ncells for item in merged.values()),
    )  # fmt: skip

    def change(head: Head) -> Protocol[Record]:
        yield from check_present(old, head.snapshot)
        named = yield from stored.put(head.snapshot.epoch)
        new_record = yield from record(head, {"verb": "merge"})
        return replace(
            new_record,
            added=(replace(new, segment=named),),
            removed=tuple(entry.key for entry in old),
        )

    return change


def _join_ids(runs: Iterable[tuple[int, int]]) -> ChunkRuns:
    """Return runs of ids with those joined that go on.

    Examples
    --------
    >>> _join_ids([(0, 2), (2, 3), (7, 1)])
    ((0, 5), (7, 1))
    """
    joined: list[tuple[int, int]] = []
    for first, count in runs:
        if joined and sum(joined[-1]) == first:
            joined[-1] = joined[-1][0], joined[-1][1] + count
        else:
            joined.append((first, count))
    return tuple(joined)
