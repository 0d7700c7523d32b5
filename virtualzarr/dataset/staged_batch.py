"""Batches of files that workers stage: each becomes one segment, which a commit names.

Source: ``specs/dataset.md``, *Staging by many workers*.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from virtualzarr.array import Array
from virtualzarr.config import config
from virtualzarr.dataset.additions import scan_addition
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.dataset.describe import count_rows
from virtualzarr.dataset.file_rows import Ranges
from virtualzarr.dataset.fitting import Addition, FileRanges, describe_first
from virtualzarr.dataset.named import Named
from virtualzarr.dataset.objects import digest
from virtualzarr.dataset.open_storage import open_storage
from virtualzarr.dataset.schema import Schema
from virtualzarr.dataset.staged_records import BatchKey, Staged, find_record, put_record
from virtualzarr.dataset.staging import describe_staged, put_segment, stage
from virtualzarr.errors import MismatchError, Warnings, collect_warnings
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Source
from virtualzarr.stores.files import resolve_uri
from virtualzarr.stores.location import Location

if TYPE_CHECKING:
    from virtualzarr.dataset.storage import Storage

_TOKEN = secrets.token_hex(8)


class UnlikeBatchError(MismatchError):
    """Files of a batch differ from others in a way that only a join of all files resolves."""


@dataclass(frozen=True)
class Batch:
    """Files that a worker stages as one segment.

    Attributes
    ----------
    folder : str
        Of the dataset.
    files : sequence of str
    dimension : str
        The growing one.
    options : mapping
        How files are scanned, joined and reached.
    epoch : int
        Of the dataset, in whose names objects are put.
    schema : Named, optional
        In whose terms references are; None before there is one.
    version : int
        Of the dataset, to which rows are fitted; 0 before there is one.
    first : str, optional
        Before there is a schema: the file with which all others are joined, to be like it. None
        for the batch that it is in.
    relative, single_writer : bool
        As for `create_dataset`.
    settings : mapping
        Of the process that commits, which hold in workers, too.
    home : str
        Which process that is, see `identify_process`.
    """

    folder: str
    files: tuple[str, ...]
    dimension: str
    options: Mapping[str, Any]
    epoch: int
    schema: Named | None
    version: int
    first: str | None
    relative: bool
    single_writer: bool
    settings: Mapping[str, Any]
    home: str

    @property
    def access(self) -> dict[str, Any]:
        """How the dataset and the files are reached."""
        return {name: self.options.get(name) for name in ("storage_options", "allowed")}

    @property
    def key(self) -> BatchKey:
        """What decides what is staged, but for the files' contents."""
        return BatchKey(
            [resolve_uri(file) for file in self.files], self.dimension, self.options,
            None if self.schema is None else self.schema.digest,
            None if self.first is None else resolve_uri(self.first), self.relative, self.settings,
        )  # fmt: skip


def identify_process() -> str:
    """Return what no other process has: numbers alone are the same on several machines."""
    return f"{_TOKEN} {os.getpid()}"


def stage_batch(batch: Batch) -> tuple[Staged, Warnings]:
    """Store the references of some files; return what a commit has to know, and all warnings.

    The same files become the same object, however often this is done.

    Raises
    ------
    UnlikeBatchError
        Rows are not of the classes of others.
    VirtualZarrError
        What is wrong with a file.
    """
    if identify_process() != batch.home:
        vars(config).update(batch.settings)
    location = Location.of(batch.folder, **batch.access)
    storage = open_storage(location, batch.single_writer)
    name = batch.key.build_name(batch.epoch)
    scanned = batch.files if batch.first is None else (batch.first, *batch.files)
    files = {resolve_uri(file): file for file in scanned}
    if name is not None:
        present = storage.run(find_record(name, files, batch.options))
        if present is not None:
            return present, []
    with collect_warnings() as caught:
        staged, addition = _stage_fitted(batch) if batch.version else _stage_first(batch, storage)
    # What was warned of is said each time: such files are scanned again.
    if name is not None and not caught:
        storage.run(put_record(name, staged, files, _list_sources(addition)))
    return staged, caught


def _list_sources(addition: Addition | None) -> dict[str, Source]:
    """Return all files that references may lead to, as they were scanned."""
    if addition is None:
        return {}
    cells = [*addition.cells.values(), *addition.fixed.values()]
    tables = {id(one.manifest.sources): one.manifest.sources for one in cells}
    return {source.uri: source for some in tables.values() for source in some if source.uri}


def _stage_fitted(batch: Batch) -> tuple[Staged, Addition]:
    """Store rows in the terms of a dataset."""
    dataset = Dataset(
        batch.folder, version=batch.version, single_writer=batch.single_writer, **batch.access
    )
    rows, addition = stage(dataset, list(batch.files), batch.options)
    return Staged(rows), addition


def _stage_first(batch: Batch, storage: Storage) -> tuple[Staged, Addition | None]:
    """Store rows in the terms of the first file, of a dataset that is not there yet."""
    is_first = batch.first is None
    files = batch.files if batch.first is None else (batch.first, *batch.files)
    names: FileRanges
    group, names = scan_addition(files, batch.dimension, batch.options)
    if batch.first is not None:
        group, names = _drop_rows_of(resolve_uri(batch.first), group, names, batch.dimension)
    if not count_rows(group, batch.dimension):
        return Staged(None), None
    addition = describe_first(group, Schema(growing=batch.dimension, relative=batch.relative))
    addition = replace(addition, folder=batch.folder)
    rows = addition.rows(None, names)
    named = storage.run(put_segment(rows.segment, batch.epoch))
    staged = Staged(describe_staged(rows, named, tuple(names), False), addition.schema)
    if is_first:
        staged = _with_first_file(batch, storage, staged, addition, names)
    return staged, addition


def _with_first_file(
    batch: Batch, storage: Storage, staged: Staged, addition: Addition, names: FileRanges
) -> Staged:
    """Return what was staged, with what the first file alone decides."""
    first = next(file for file in batch.files if resolve_uri(file) in names)
    alone, _ = scan_addition([first], batch.dimension, {**batch.options, "bad_files": "raise"})
    attributes = {path: tuple(node.attrs) for path, node in [("", alone), *alone.members(None)]}
    segment, fixed, content = addition.fixed_segment(), None, ""
    if segment is not None:
        fixed = storage.run(put_segment(segment, batch.epoch))
        content = digest(segment.data)
    return replace(staged, first=first, attributes=attributes, fixed=fixed, fixed_content=content)


def _drop_rows_of(
    uri: str, group: Group, names: FileRanges, dimension: str
) -> tuple[Group, FileRanges]:
    """Return rows without those of the first file, with which they were joined."""
    others: dict[str, Ranges | None] = {
        name: ranges for name, ranges in names.items() if name != uri
    }
    ranges = names.get(uri)
    total = count_rows(group, dimension)
    if ranges is None or len(ranges) != 1 or any(pairs is None for pairs in others.values()):
        raise UnlikeBatchError("which rows are of which file is not certain")
    ((first, count),) = ranges
    if first and first + count != total:
        raise UnlikeBatchError("rows of the first file lie between those of others", file=uri)
    rows = slice(0, first) if first else slice(count, total)

    def select(array: Array) -> Array:
        if dimension not in array.dims:
            return array
        return array.lazy[tuple(rows if dim == dimension else slice(None) for dim in array.dims)]

    moved: dict[str, Ranges | None] = {
        name: [(start - rows.start, length) for start, length in pairs or ()]
        for name, pairs in others.items()
    }
    return group.map_arrays(select), moved
