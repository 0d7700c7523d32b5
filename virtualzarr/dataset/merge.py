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

from grids import Axis
from virtualzarr.config import config
from virtualzarr.dataset.arrays import Opener
from virtualzarr.dataset.commit import Change, record
from virtualzarr.dataset.entry import ChunkRuns, Entry
from virtualzarr.dataset.head import Head
from virtualzarr.dataset.named import Named
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.placing import Coordinates
from virtualzarr.dataset.row_search import find_live
from virtualzarr.dataset.row_tables import at_sequences, has_rows, read_entries, read_runs
from virtualzarr.dataset.runs import Runs
from virtualzarr.dataset.segment import Cells, pack
from virtualzarr.dataset.snapshot import Record, Snapshot
from virtualzarr.dataset.tables import choose_last
from virtualzarr.dataset.verbs import Stored, plain
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

_MOST_OBJECTS = 256
"""Objects of data of one entry, which names all of them: tables of entries are read often."""

_MOST_GONE = 10
"""Of so many rows of a segment, one may be gone before a vacuum writes it anew."""

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
    head, tail : int
        How many rows of the first and of the last one are left out, as they are gone.
    """

    dimension: str
    entries: tuple[Entry, ...]
    dead: tuple[Entry, ...]
    head: int = 0
    tail: int = 0

    @property
    def first(self) -> int:
        """The first row id."""
        return self.entries[0].rows[self.dimension][0] + self.head

    @property
    def count(self) -> int:
        """How many ids there are, with those of gaps."""
        return sum(self.entries[-1].rows[self.dimension]) - self.tail - self.first

    @property
    def folded(self) -> int:
        """The chunk length that all rows were folded for; 0 where there is no one."""
        lengths = {entry.folded for entry in (*self.entries, *self.dead)}
        return lengths.pop() if len(lengths) == 1 else 0

    def kept_rows(self, number: int) -> tuple[int, int]:
        """Return which rows of an entry there are to be."""
        count = self.entries[number].rows[self.dimension][1]
        is_last = number == len(self.entries) - 1
        return 0 if number else self.head, count - self.tail if is_last else count

    def gaps(self) -> Iterator[tuple[Entry, int]]:
        """Yield entries, and how many ids without references come before each."""
        stop = self.first - self.head
        for entry in self.entries:
            first, count = entry.rows[self.dimension]
            yield entry, first - stop
            stop = first + count


def find_due(
    state: Snapshot,
    dimension: str,
    fan_in: int | None = None,
    coordinates: Coordinates | None = None,
) -> Protocol[Due | None]:
    """Return entries that should be merged, the oldest of the lowest level that has enough.

    The last ones are looked at, among which new ones become due. Those whose rows are gone are left
    out, as far as that is found without reading much: by coordinates, if these can be read.
    """
    entries = yield from read_entries(state, choose_last)
    groups = _group(entries, dimension, AFTER_APPENDS)
    chosen = _choose(groups, fan_in or config.tuning.merge_fan_in)
    if not chosen:
        return None
    live = yield from find_live(state, dimension, chosen, coordinates, entries)
    return _with_dead(chosen, dimension, [each is not False for each in live])


def find_small(state: Snapshot, dimension: str) -> Protocol[list[Due]]:
    """Return all neighbours that are small together, and segments that begin or end with many rows
    that are gone: what a vacuum merges.
    """
    due_sets = []
    entries = yield from read_entries(state)
    runs = yield from read_runs(state, dimension)
    for group in _group(entries, dimension, IN_VACUUMS):
        for chosen in pack_small(group):
            live = [has_rows(entry, dimension, runs) for entry in chosen]
            due = _trim(_with_dead(chosen, dimension, live), runs)
            if len(chosen) > 1 or due.head + due.tail > due.count // _MOST_GONE:
                due_sets.append(due)
    return due_sets


def pack_small(group: Sequence[Entry]) -> Iterator[tuple[Entry, ...]]:
    """Yield neighbours that are not large together."""
    chosen: list[Entry] = []
    cells = nbytes = objects = 0
    for entry in group:
        cells, nbytes = cells + entry.cells, nbytes + entry.segment.size
        objects += len(entry.data)
        is_large = cells > IN_VACUUMS.cells or nbytes > IN_VACUUMS.nbytes
        if chosen and (is_large or objects > _MOST_OBJECTS):
            yield tuple(chosen)
            chosen, cells, nbytes = [], entry.cells, entry.segment.size
            objects = len(entry.data)
        chosen.append(entry)
    if chosen:
        yield tuple(chosen)


def _trim(due: Due, runs: Runs) -> Due:
    """Leave out rows at the ends that are gone, as far as no chunk is cut."""
    first, last = due.entries[0], due.entries[-1]
    (begin, count), (low, size) = first.rows[due.dimension], last.rows[due.dimension]
    live = np.flatnonzero(runs.positions(np.arange(begin, begin + count)) >= 0)
    head = _find_border(first, count, int(live[0])) if len(live) else 0
    live = np.flatnonzero(runs.positions(np.arange(low, low + size)) >= 0)
    # From the other end: the first border from the row after the last one on.
    end = _find_border(last, size, int(live[-1]) + 1, is_end=True) if len(live) else size
    return replace(due, head=head, tail=size - end)


def _find_border(entry: Entry, count: int, row: int, *, is_end: bool = False) -> int:
    """Return the last row up to one, or the first from it on, at which no array's chunk is cut."""
    axes = [Axis(count, *zip(*chunks, strict=True)) for chunks, _ in entry.chunks]
    while True:
        moved = row
        for axis in axes:
            if is_end and 0 < moved < count:
                cell = axis.cell_of(moved - 1)
                moved = min(axis.start(cell) + axis.edge(cell), count)
            elif not is_end:
                moved = axis.start(axis.cell_of(moved))
        if moved == row:
            return row
        row = moved


def _with_dead(chosen: Sequence[Entry], dimension: str, is_live: Sequence[bool]) -> Due:
    live = tuple(itertools.compress(chosen, is_live))
    dead = tuple(entry for entry in chosen if entry not in live)
    # One at least is left to stand for all.
    return Due(dimension, live or tuple(chosen[:1]), dead if live else tuple(chosen[1:]))


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
        is_alike = entry.grids == last.grids
        if largest is IN_VACUUMS and entry.folded != last.folded:
            is_alike = False  # folded rows would have to be folded again with the others
        if first < stop or not has_room or not is_alike:
            groups.append([])
        stop = max(stop, first + count)
        if has_room:
            groups[-1].append(entry)
    return groups


def _level(entry: Entry) -> int:
    return len(str(entry.commits)) - 1


def merge(
    due: Due,
    axes: Mapping[str, tuple[int, int]],
    open_segment: Opener,
    coordinates_of: Coordinates | None = None,
) -> Change:
    """Return the change that makes one segment of several.

    Parameters
    ----------
    axes : mapping of str to (int, int)
        By path, how many axes an array has, and which of them grows.
    coordinates_of : callable, optional
        Reads the coordinates of an entry, by which rows are looked for when it is committed.
    """
    merged, tables = {}, SourceTables()
    for path, (ndim, axis) in axes.items():
        cells = merge_cells(due, path, ndim, axis, open_segment, tables)
        if cells is not None:
            merged[path] = cells
    coordinates = None
    if all(open_segment(entry.segment).has_coordinates for entry in due.entries):
        parts: list[Any] = []
        for number, (entry, gap) in enumerate(due.gaps()):
            # Rows in gaps are gone: nobody asks for their coordinates.
            parts += [parts[-1][-1:].repeat(gap)] if gap else []
            rows = due.kept_rows(number)
            parts.append(open_segment(entry.segment).coordinates().read(*rows))
        coordinates = np.concatenate(parts)
    folder = open_segment(due.entries[0].segment).folder
    stored = Stored("segments", *pack(merged, coordinates, folder))
    return replace_entries(
        due, stored, group_chunks({path: item.chunks or () for path, item in merged.items()}),
        sum(item.manifest.ncells for item in merged.values()),
        None if coordinates is None else (plain(coordinates.min()), plain(coordinates.max())),
        list_data(due.entries, merged), coordinates_of,
    )  # fmt: skip


def list_data(entries: Sequence[Entry], merged: Mapping[str, Cells]) -> tuple[Named, ...]:
    """Return the objects of data that references lie in, whose sources are as they are stored."""
    items = dict.fromkeys(item for entry in entries for item in entry.data)
    used: set[str] = set()
    for cells in merged.values() if items else ():
        rows = np.unique(np.asarray(cells.manifest.source)).tolist()
        used.update(cells.manifest.sources[row].uri for row in rows if row >= 0)
    return tuple(item for item in items if item.name in used)


def replace_entries(
    due: Due,
    stored: Stored,
    chunks: tuple[Any, ...],
    cells: int = 0,
    ends: tuple[Any, Any] | None = None,
    data: tuple[Named, ...] = (),
    coordinates: Coordinates | None = None,
) -> Change:
    """One entry takes the place of others, with a segment that has their rows, and gaps.

    `ends` are the least and the greatest coordinate: rows come in the order of their ids.
    """
    dimension = due.dimension

    def change(head: Head) -> Protocol[Record]:
        state = head.snapshot
        yield from check_due(due, state, coordinates)
        named = yield from stored.put(state.epoch)
        bounds = {}
        # One entry without bounds would let searches by coordinate pass over its rows.
        if all(dimension in entry.bounds for entry in due.entries):
            lows, highs = zip(*(entry.bounds[dimension] for entry in due.entries), strict=True)
            bounds = {dimension: ends or (min(lows), max(highs))}
        old = (*due.entries, *due.dead)
        entry = Entry(
            named,
            max(entry.sequence for entry in old),
            {dimension: (due.first, due.count)},
            bounds,
            chunks,
            due.entries[0].grids,
            sum(entry.commits for entry in old),
            data,
            cells=cells,
            folded=due.folded,
        )
        new_record = yield from record(head, {"verb": "merge"})
        return replace(new_record, added=(entry,), removed=tuple(entry.key for entry in old))

    return change


def check_due(due: Due, state: Snapshot, coordinates: Coordinates | None = None) -> Protocol[None]:
    """Check that entries are there still, and that what was left out has not come back.

    Raises
    ------
    MismatchError
        Another writer merged them, or the dataset was rolled back.
    """
    yield from check_present((*due.entries, *due.dead), state)
    live = yield from find_live(state, due.dimension, due.dead, coordinates)
    is_back = None in live or any(live)
    if due.head or due.tail:
        is_back |= has_trimmed(due, (yield from read_runs(state, due.dimension)))
    if is_back:
        raise MismatchError("rows that were dropped are there again")


def check_present(entries: Sequence[Entry], state: Snapshot) -> Protocol[None]:
    """Check that entries are there still, as `check_due` does."""
    sequences = [entry.sequence for entry in entries]
    stored = yield from read_entries(state, at_sequences(min(sequences), max(sequences)))
    if any(entry not in stored for entry in entries):
        raise MismatchError("the segments are not there any more")


def has_trimmed(due: Due, runs: Runs) -> bool:
    """Tell whether any of the rows is there that are left out at the ends."""
    first, stop = due.first, due.first + due.count
    counts = runs.count_ids(np.array([first - due.head, stop]), np.array([first, stop + due.tail]))
    return bool(counts.any())


class SourceTables:
    """Tables of sources that arrays share: most files have a chunk of each array."""

    def __init__(self) -> None:
        self._tables: dict[Hashable, Sources] = {}
        self._joined: dict[tuple[int, ...], tuple[Any, Sources, list[NDArray[np.int32]]]] = {}

    def load(self, part: Part, box: Sequence[slice]) -> Manifest:
        """Return the references of a part, whose sources are named as they are stored."""
        key = part.sources_key()
        if key not in self._tables:
            self._tables[key] = part.stored_sources()
        return part.load(box, self._tables[key])

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
    due: Due, path: str, ndim: int, axis: int, open_segment: Opener, tables: SourceTables
) -> Cells | None:
    """Return the references of an array in several segments as those of one."""
    # What is kept of them would be most of what a collection of garbage has to look at.
    parts = [open_segment(entry.segment).open_part(path, ndim) for entry in due.entries]
    shape = next((list(part.shape) for part in parts if part is not None), None)
    if shape is None:
        return None
    manifests: list[Manifest] = []
    runs: list[tuple[int, int]] = []
    for number, (part, (entry, gap)) in enumerate(zip(parts, due.gaps(), strict=True)):
        first, chunks = _cut_runs(entry.chunks_of(path), *due.kept_rows(number))
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
            box = [slice(n) for n in part.shape]
            box[axis] = slice(first, first + sum(count for _, count in chunks))
            manifests.append(tables.load(part, box))
        runs += chunks
    return Cells(Manifest.concatenate(tables.share(manifests), axis), join_runs(runs))


def _cut_runs(runs: ChunkRuns, start: int, stop: int) -> tuple[int, list[tuple[int, int]]]:
    """Return how many chunks come before some rows, which cut none, and those that they have.

    Examples
    --------
    >>> _cut_runs(((2, 4), (3, 2)), 4, 11)
    (2, [(2, 2), (3, 1)])
    """
    skipped, position, result = 0, 0, []
    for length, count in runs:
        low = min(max(start - position, 0) // length, count)
        # The last chunk may reach past the end.
        high = min(-(-max(stop - position, 0) // length), count)
        skipped += low
        if low < high:
            result.append((length, high - low))
        position += length * count
    return skipped, result


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
