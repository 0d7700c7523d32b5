"""Merging of segments: ten neighbours of about the same age become one, so that there stay few.

Like the levels of a log-structured merge tree, which bounds how often each reference is rewritten.
Merging is a commit of its own, after the one that made it due was answered.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.config import config
from virtualzarr.dataset.arrays import Opener
from virtualzarr.dataset.commit import Change, record
from virtualzarr.dataset.entry import ChunkRuns, Entry
from virtualzarr.dataset.head import Head
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.row_tables import at_sequences, has_rows, read_entries, read_runs
from virtualzarr.dataset.segment import Cells, pack
from virtualzarr.dataset.snapshot import Record, Snapshot
from virtualzarr.dataset.tables import choose_all, choose_last
from virtualzarr.dataset.verbs import Stored
from virtualzarr.errors import MismatchError
from virtualzarr.manifest import Manifest, Sources
from virtualzarr.references.native.parts import Part


@dataclass(frozen=True, slots=True)
class Largest:
    """Segments that are not merged any more: those of so many bytes, or cells, and more."""

    nbytes: int
    cells: int

    def has_room(self, entry: Entry) -> bool:
        """Tell whether a segment is smaller."""
        return entry.segment.size < self.nbytes and entry.cells < self.cells


AFTER_APPENDS = Largest(32 << 10, 8 << 10)
"""What a merge costs is bounded by ten times that: an append is never far behind."""

IN_VACUUMS = Largest(4 << 20, 256 << 10)

_MOST_MISSING = 64
"""Cells, at most, that rows which are gone are divided in so that chunks stay regular."""


@dataclass(frozen=True, slots=True)
class Due:
    """Entries that are to become one.

    Attributes
    ----------
    dimension : str
    entries : sequence of Entry
        By increasing ids.
    dead : sequence of Entry
        Those between whose rows are all gone: they leave a gap of ids without references.
    """

    dimension: str
    entries: tuple[Entry, ...]
    dead: tuple[Entry, ...]

    @property
    def first(self) -> int:
        """The first row id."""
        return self.entries[0].rows[self.dimension][0]

    @property
    def count(self) -> int:
        """How many ids there are, with those of gaps."""
        return sum(self.entries[-1].rows[self.dimension]) - self.first

    def gaps(self) -> Iterator[tuple[Entry, int]]:
        """Yield entries, and how many ids without references come before each."""
        stop = self.first
        for entry in self.entries:
            first, count = entry.rows[self.dimension]
            yield entry, first - stop
            stop = first + count


def find_due(
    state: Snapshot,
    dimension: str,
    fan_in: int | None = None,
    largest: Largest = AFTER_APPENDS,
) -> Protocol[Due | None]:
    """Return entries that should be merged, the oldest of the lowest level that has enough.

    After appends, the last ones are looked at, among which new ones become due.
    """
    choice = choose_last if largest is AFTER_APPENDS else choose_all
    entries = yield from read_entries(state, choice)
    chosen = _choose(_group(entries, dimension, largest), fan_in or config.tuning.merge_fan_in)
    if not chosen:
        return None
    runs = yield from read_runs(state, dimension)
    live = tuple(entry for entry in chosen if has_rows(entry, dimension, runs))
    dead = tuple(entry for entry in chosen if entry not in live)
    # One at least is left to stand for all.
    return Due(dimension, live or chosen[:1], dead if live else tuple(chosen[1:]))


def _choose(all_groups: Sequence[list[Entry]], fan_in: int) -> tuple[Entry, ...]:
    groups = [group for group in all_groups if len(group) >= fan_in]
    levels = sorted({_level(entry) for group in groups for entry in group})
    for level, group in itertools.product(levels, groups):
        for is_higher, run in itertools.groupby(group, lambda entry: _level(entry) > level):  # noqa: B023
            members = [] if is_higher else list(run)
            at = [k for k, entry in enumerate(members) if _level(entry) == level]
            if len(at) >= fan_in:
                # Younger ones between them, which writers left that were in each other's way.
                return tuple(members[at[0] : at[fan_in - 1] + 1])
    return ()


def _group(entries: Sequence[Entry], dimension: str, largest: Largest) -> list[list[Entry]]:
    """Return entries that can be described by one range of ids and one sequence.

    Where the ids of the next entry, in the order of sequences, do not come after those before it
    covers others, and must stay above them.
    """
    groups: list[list[Entry]] = [[]]
    stop = 0
    for entry in entries:
        if dimension not in entry.rows:
            continue
        first, count = entry.rows[dimension]
        last = groups[-1][-1] if groups[-1] else entry
        has_room = largest.has_room(entry)
        if first < stop or not has_room or entry.grids != last.grids:
            groups.append([])
        stop = max(stop, first + count)
        if has_room:
            groups[-1].append(entry)
    return groups


def _level(entry: Entry) -> int:
    return len(str(entry.commits)) - 1


def merge(due: Due, axes: Mapping[str, tuple[int, int]], open_segment: Opener) -> Change:
    """Return the change that makes one segment of several.

    Parameters
    ----------
    axes : mapping of str to (int, int)
        By path, how many axes an array has, and which of them grows.
    """
    merged, tables = {}, _SourceTables()
    for path, (ndim, axis) in axes.items():
        cells = merge_cells(due, path, ndim, axis, open_segment, tables)
        if cells is not None:
            merged[path] = cells
    coordinates = None
    if all(open_segment(entry.segment).has_coordinates for entry in due.entries):
        parts: list[Any] = []
        for entry, gap in due.gaps():
            # Rows in gaps are gone: nobody asks for their coordinates.
            parts += [parts[-1][-1:].repeat(gap)] if gap else []
            parts.append(open_segment(entry.segment).coordinates())
        coordinates = np.concatenate(parts)
    folder = open_segment(due.entries[0].segment).folder
    stored = Stored("segments", *pack(merged, coordinates, folder))
    return replace_entries(
        due, stored, group_chunks({path: item.chunks or () for path, item in merged.items()}),
        sum(item.manifest.ncells for item in merged.values()),
    )  # fmt: skip


def replace_entries(due: Due, stored: Stored, chunks: tuple[Any, ...], cells: int = 0) -> Change:
    """One entry takes the place of others, with a segment that has their rows, and gaps."""
    dimension = due.dimension

    def change(head: Head) -> Protocol[Record]:
        state = head.snapshot
        yield from check_due(due, state)
        named = yield from stored.put(state.epoch)
        bounds = {}
        if all(dimension in entry.bounds for entry in due.entries):
            lows, highs = zip(*(entry.bounds[dimension] for entry in due.entries), strict=True)
            bounds = {dimension: (min(lows), max(highs))}
        old = (*due.entries, *due.dead)
        entry = Entry(
            named,
            max(entry.sequence for entry in old),
            {dimension: (due.first, due.count)},
            bounds,
            chunks,
            due.entries[0].grids,
            sum(entry.commits for entry in old),
            tuple(dict.fromkeys(name for entry in due.entries for name in entry.data)),
            cells=cells,
        )
        new_record = yield from record(head, {"verb": "merge"})
        return replace(new_record, added=(entry,), removed=tuple(entry.key for entry in old))

    return change


def check_due(due: Due, state: Snapshot) -> Protocol[None]:
    """Check that entries are there still, and that what was left out has not come back.

    Raises
    ------
    MismatchError
        Another writer merged them, or the dataset was rolled back.
    """
    old = (*due.entries, *due.dead)
    sequences = [entry.sequence for entry in old]
    stored = yield from read_entries(state, at_sequences(min(sequences), max(sequences)))
    if any(entry not in stored for entry in old):
        raise MismatchError("the segments are not there any more")
    if due.dead:
        runs = yield from read_runs(state, due.dimension)
        if any(has_rows(entry, due.dimension, runs) for entry in due.dead):
            raise MismatchError("rows that were dropped are there again")


class _SourceTables:
    """Tables of sources that arrays share: most files have a chunk of each array."""

    def __init__(self) -> None:
        self._tables: dict[Hashable, Sources] = {}
        self._joined: dict[tuple[int, ...], tuple[Any, Sources, list[NDArray[np.int32]]]] = {}

    def load(self, part: Part) -> Manifest:
        """Return the references of a part, whose sources are named as they are stored."""
        key = part.sources_key()
        if key not in self._tables:
            self._tables[key] = part.stored_sources()
        return part.load([slice(n) for n in part.shape], self._tables[key])

    def share(self, manifests: Sequence[Manifest]) -> list[Manifest]:
        """Return manifests with one table of all their sources."""
        tables = [manifest.sources for manifest in manifests]
        key = tuple(map(id, tables))
        if key not in self._joined:
            # Tables are kept with their identities, which no others get as long as they are there.
            self._joined[key] = tables, *Sources.merge(tables)
        _, sources, remaps = self._joined[key]
        return [
            manifest.replace(sources=sources, source=remap[manifest.source])
            for manifest, remap in zip(manifests, remaps, strict=True)
        ]


def merge_cells(
    due: Due, path: str, ndim: int, axis: int, open_segment: Opener, tables: _SourceTables
) -> Cells | None:
    """Return the references of an array in several segments as those of one."""
    parts = [open_segment(entry.segment).part(path, ndim) for entry in due.entries]
    shape = next((list(part.shape) for part in parts if part is not None), None)
    if shape is None:
        return None
    manifests: list[Manifest] = []
    runs: list[tuple[int, int]] = []
    for part, (entry, gap) in zip(parts, due.gaps(), strict=True):
        chunks = list(entry.chunks_of(path))
        if gap:
            length = max((length for length, _ in chunks), default=gap)
            is_regular = gap % length == 0 and gap <= length * _MOST_MISSING
            shape[axis] = gap // length if is_regular else 1
            manifests.append(Manifest.missing(shape))
            runs.append((gap // shape[axis], shape[axis]))
        if part is None:
            # The array is newer than these rows, or they stand for a gap.
            shape[axis] = sum(count for _, count in chunks)
            manifests.append(Manifest.missing(shape))
        else:
            manifests.append(tables.load(part))
        runs += chunks
    return Cells(Manifest.concatenate(tables.share(manifests), axis), join_runs(runs))


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
