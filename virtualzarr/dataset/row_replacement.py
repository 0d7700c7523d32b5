"""Rows that are stored again: exchanged for others, folded or with new values, or for a layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grids import SeparableGrid
from virtualzarr.array import Array
from virtualzarr.dataset.commit import Change, record
from virtualzarr.dataset.describe import build_cells, read_coordinates
from virtualzarr.dataset.editing import Edit, Request
from virtualzarr.dataset.entry import ChunkRuns, Entry, LayerRows
from virtualzarr.dataset.file_names import NO_FILE, hash_uri, move_files
from virtualzarr.dataset.file_versions import UNKNOWN
from virtualzarr.dataset.head import Head
from virtualzarr.dataset.layers import check_not_covered
from virtualzarr.dataset.merge import group_chunks
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.own_chunks import ChunkWriter
from virtualzarr.dataset.row_tables import read_runs
from virtualzarr.dataset.runs import Runs, Splice
from virtualzarr.dataset.schema import OutdatedError
from virtualzarr.dataset.segment import list_other_runs, list_own_objects, pack
from virtualzarr.dataset.snapshot import Record, Snapshot, as_names
from virtualzarr.errors import MismatchError
from virtualzarr.hierarchy.group import Group
from virtualzarr.virtual.rechunk import get_axes

if TYPE_CHECKING:
    from virtualzarr.dataset.dataset import Dataset

Build = Callable[[Group, ChunkWriter], Mapping[str, Array]]
"""Returns new arrays by path for some rows of all; those that it leaves out stay as they are."""


@dataclass(frozen=True, slots=True)
class StoredAgain:
    """A stored segment with the values of some rows.

    Attributes
    ----------
    dimension : str
    ids : Runs
        The rows. An id means the same values in all versions, whatever segment has them.
    epoch : int
        That the segment and its data were stored in.
    entry : Entry
        All of it that does not depend on the snapshot that it is committed to.
    """

    dimension: str
    ids: Runs
    epoch: int
    entry: Entry


def request_replacement(ids: Runs, verb: str, build: Build, folded: int = 0) -> Request:
    """Rows get other chunks or values, which may be stored in the dataset itself.

    `folded` is what the entry says of it.

    Raises
    ------
    MismatchError
        When it is prepared or committed: another commit has changed one of the rows.
    """

    def prepare(dataset: Dataset) -> Edit:
        item = _store(dataset, ids, build)
        item = replace(item, entry=replace(item.entry, folded=folded))
        return Edit(verb, (replace_rows(item, verb == "write"),))

    return prepare


def request_layer(ids: Runs, chunks: Mapping[str, int], build: Build) -> Request:
    """A layer gets some rows; those that all versions have stay as they are.

    Raises
    ------
    MismatchError
        When it is prepared or committed: another commit has changed one of the rows, or the layer
        has one already.
    """

    def prepare(dataset: Dataset) -> Edit:
        item = _store(dataset, ids, build, chunks)
        return Edit("compact", (add_layer_rows(item),))

    return prepare


def _store(
    dataset: Dataset, ids: Runs, build: Build, layer: Mapping[str, int] | None = None
) -> StoredAgain:
    """Store a segment for some rows: for all arrays, or for those that a layer is to have."""
    dimension = dataset.dimension
    start = locate_ids(dataset.read_runs(), ids, dimension)
    part = dataset.read_stretches().cut(start, start + len(ids))
    group = dataset.select_rows(part)
    epoch = dataset.snapshot.epoch
    writer = ChunkWriter(lambda kind, data: dataset.put_object(kind, data), dataset.path)
    new = build(group, writer)
    arrays: Mapping[str, Any] = new
    if layer is None:
        arrays = {path: new.get(path, group[path]) for path in dataset.schema.axes}
    cells, grids = {}, {}
    for path, array in arrays.items():
        assert isinstance(array, Array)
        cells[path] = build_cells(array, dimension)
        grid, growing = dataset.schema.arrays[path].grid, array.dims.index(dimension)
        assert isinstance(grid, SeparableGrid)
        runs = list_other_runs(get_axes(array), growing)
        if runs != list_other_runs(grid.axes, growing):
            grids[path] = runs
    coordinates = read_coordinates(group, dimension) if layer is None else None
    data, digest = pack(cells, coordinates, dataset.path, relative=dataset.schema.relative)
    bounds = {}
    if coordinates is not None:
        bounds = {dimension: (coordinates[0].item(), coordinates[-1].item())}
    # Chunks that stay may lie in the objects of the entries that had them.
    used = list_own_objects(cells, dataset.path)
    objects = dict.fromkeys([*(item for s in part for item in s.entry.data), *writer.data])
    entry = Entry(
        dataset.put_object("segments", data, digest), 0, {}, bounds,
        group_chunks({path: item.chunks or () for path, item in cells.items()}), grids,
        sum(s.entry.commits for s in part), tuple(item for item in objects if item.name in used),
        None if layer is None else LayerRows(layer, dimension, _as_pairs(ids), tuple(cells)),
        sum(item.manifest.ncells for item in cells.values()),
    )  # fmt: skip
    return StoredAgain(dimension, ids, epoch, entry)


def _as_pairs(ids: Runs) -> ChunkRuns:
    return tuple((first, count) for first, count in ids.pairs)


def replace_rows(item: StoredAgain, is_filled: bool = False) -> Change:
    """Rows go, and others come in their place; others may have come or gone beside them.

    `is_filled` says that they stand for no gap any more.

    Raises
    ------
    OutdatedError
        By the change: a vacuum may have deleted what was stored for it.
    MismatchError
        By the change: another commit has changed one of the rows.
    """

    def change(head: Head) -> Protocol[Record]:
        state, dimension = head.snapshot, item.dimension
        start = yield from _check(item, state)
        first, count = state.next_ids.get(dimension, 0), len(item.ids)
        entry = replace(item.entry, sequence=state.sequence, rows={dimension: (first, count)})
        splice = Splice(start, count, ((first, count),))
        files = yield from move_files(state, dimension, item.ids, first)
        if is_filled:
            nameless = as_names([(hash_uri(NO_FILE), first, count, UNKNOWN)])
            files = np.concatenate([files, nameless])
        new_record = yield from record(head, {})
        return replace(
            new_record,
            splices={dimension: (splice,)},
            added=(entry,),
            files={dimension: files} if len(files) else {},
        )

    return change


def add_layer_rows(item: StoredAgain) -> Change:
    """A layer has some rows from now on, too.

    Raises
    ------
    OutdatedError, MismatchError
        By the change: as for `replace_rows`; or the layer has one of the rows already.
    """

    def change(head: Head) -> Protocol[Record]:
        state, layer = head.snapshot, item.entry.layer
        assert layer is not None
        yield from _check(item, state)
        yield from check_not_covered(head, layer)
        entry = replace(item.entry, sequence=state.sequence)
        return replace((yield from record(head, {})), added=(entry,))

    return change


def _check(item: StoredAgain, state: Snapshot) -> Protocol[int]:
    """Return the position of the first row, if what was stored can be committed."""
    if state.epoch != item.epoch:
        raise OutdatedError("a vacuum came between")
    runs = yield from read_runs(state, item.dimension)
    return locate_ids(runs, item.ids, item.dimension)


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
