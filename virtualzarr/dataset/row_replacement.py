"""Rows exchanged for others that stand for the same: folded to other chunks, or with new values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grids import SeparableGrid
from virtualzarr.array import Array
from virtualzarr.dataset.arrays import Stretch
from virtualzarr.dataset.commit import Change, record
from virtualzarr.dataset.describe import build_cells, read_coordinates
from virtualzarr.dataset.editing import Edit, Request
from virtualzarr.dataset.entry import ChunkRuns, Entry
from virtualzarr.dataset.file_names import move_files
from virtualzarr.dataset.head import Head
from virtualzarr.dataset.merge import group_chunks
from virtualzarr.dataset.named import Named
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.own_chunks import ChunkWriter
from virtualzarr.dataset.row_tables import read_runs
from virtualzarr.dataset.runs import Runs, Splice
from virtualzarr.dataset.schema import OutdatedError
from virtualzarr.dataset.segment import list_other_runs, list_own_objects, pack
from virtualzarr.dataset.snapshot import Record
from virtualzarr.errors import MismatchError
from virtualzarr.hierarchy.group import Group
from virtualzarr.virtual.rechunk import get_axes

if TYPE_CHECKING:
    from virtualzarr.dataset.dataset import Dataset

Build = Callable[[Group, ChunkWriter], Mapping[str, Array]]
"""Returns new arrays by path for some rows of all; those that it leaves out stay as they are."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """A stored segment that takes the place of some rows.

    Attributes
    ----------
    dimension : str
    ids : Runs
        The rows that go. An id means the same values in all versions, whatever segment has them.
    epoch : int
        That the segment and its data were stored in.
    segment, bounds, chunks, grids, commits, data
        See `Entry`.
    """

    dimension: str
    ids: Runs
    epoch: int
    segment: Named
    bounds: Mapping[str, tuple[Any, Any]]
    chunks: tuple[Any, ...]
    grids: Mapping[str, tuple[ChunkRuns, ...]]
    commits: int
    data: tuple[Named, ...]


def request_replacement(ids: Runs, verb: str, build: Build) -> Request:
    """Rows get other chunks or values, which may be stored in the dataset itself.

    Raises
    ------
    MismatchError
        When it is prepared or committed: another commit has changed one of the rows.
    """

    def prepare(dataset: Dataset) -> Edit:
        dimension = dataset.dimension
        start = locate_ids(dataset.read_runs(), ids, dimension)
        part = cut_stretches(dataset.read_stretches(), start, start + len(ids))
        group = dataset.select_rows(part)
        epoch = dataset.snapshot.epoch
        writer = ChunkWriter(lambda kind, data: dataset.put_object(kind, data), dataset.path)
        new = build(group, writer)
        growing_paths = dataset.schema.axes
        arrays = {path: new.get(path, group[path]) for path in growing_paths}
        cells, grids = {}, {}
        for path, array in arrays.items():
            assert isinstance(array, Array)
            cells[path] = build_cells(array, dimension)
            grid, growing = dataset.schema.arrays[path].grid, array.dims.index(dimension)
            assert isinstance(grid, SeparableGrid)
            runs = list_other_runs(get_axes(array), growing)
            if runs != list_other_runs(grid.axes, growing):
                grids[path] = runs
        coordinates = read_coordinates(group, dimension)
        data, digest = pack(cells, coordinates, dataset.path)
        bounds = {}
        if coordinates is not None:
            bounds = {dimension: (coordinates[0].item(), coordinates[-1].item())}
        # Chunks that stay may lie in the objects of the entries that had them.
        used = list_own_objects(cells, dataset.path)
        own = dict.fromkeys([*(item for s in part for item in s.entry.data), *writer.data])
        own_data = tuple(item for item in own if item.name in used)
        item = Replacement(
            dimension, ids, epoch, dataset.put_object("segments", data, digest), bounds,
            group_chunks({path: item.chunks or () for path, item in cells.items()}),
            grids, sum(s.entry.commits for s in part), own_data,
        )  # fmt: skip
        return Edit(verb, (replace_rows(item),))

    return prepare


def replace_rows(item: Replacement) -> Change:
    """Rows go, and others come in their place; others may have come or gone beside them.

    Raises
    ------
    OutdatedError
        By the change: a vacuum may have deleted what was stored for it.
    MismatchError
        By the change: another commit has changed one of the rows.
    """

    def change(head: Head) -> Protocol[Record]:
        state, dimension = head.snapshot, item.dimension
        if state.epoch != item.epoch:
            raise OutdatedError("a vacuum came between")
        runs = yield from read_runs(state, dimension)
        start = locate_ids(runs, item.ids, dimension)
        first, count = state.next_ids.get(dimension, 0), len(item.ids)
        entry = Entry(
            item.segment, state.sequence, {dimension: (first, count)}, item.bounds, item.chunks,
            item.grids, item.commits, item.data,
        )  # fmt: skip
        splice = Splice(start, count, ((first, count),))
        files = yield from move_files(state, dimension, item.ids, first)
        new_record = yield from record(head, {})
        return replace(
            new_record,
            splices={dimension: (splice,)},
            added=(entry,),
            files={dimension: files} if files else {},
        )

    return change


def locate_ids(runs: Runs, ids: Runs, dimension: str) -> int:
    """Return the position of the first of some rows, all of which follow each other.

    Raises
    ------
    MismatchError
        One is not there any more, or others have come between them.
    """
    start = int(runs.positions(np.array([ids.first[0]]))[0])
    if start < 0 or runs.slice(start, start + len(ids)) != ids:
        raise MismatchError(f"another commit has changed some of these rows along {dimension!r}")
    return start


def cut_stretches(stretches: Sequence[Stretch], start: int, stop: int) -> list[Stretch]:
    """Return where the rows at some positions lie."""
    result, position = [], 0
    for stretch in stretches:
        count = stretch.stop - stretch.start
        low, high = max(start - position, 0), min(stop - position, count)
        if low < high:
            result.append(Stretch(stretch.entry, stretch.start + low, stretch.start + high))
        position += count
    return result
