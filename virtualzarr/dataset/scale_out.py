"""Scale-out: many workers stage the files of an archive as segments, and one commit names them.

References never reach the process that commits. Source: ``specs/dataset.md``, *Staging by many
workers*.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from grids import SeparableGrid
from virtualzarr.array.executors import open_executor
from virtualzarr.config import config, settings_for_workers
from virtualzarr.dataset.additions import with_remembered
from virtualzarr.dataset.batch_runner import BatchRunner
from virtualzarr.dataset.deadly_files import find_deadly_files
from virtualzarr.dataset.editing import Addable, Edit, Request, note_repeats, request_append
from virtualzarr.dataset.named import Named
from virtualzarr.dataset.schema import Schema
from virtualzarr.dataset.snapshot import Snapshot
from virtualzarr.dataset.staged_batch import (
    Batch,
    UnlikeBatchError,
    identify_process,
    stage_batch,
)
from virtualzarr.dataset.staged_records import Staged
from virtualzarr.dataset.staging import NewSchemaError, StagedRows, request_commit
from virtualzarr.errors import ExecutorError, warn_caller
from virtualzarr.ingest.progress import show_progress
from virtualzarr.ingest.scan_files import name_for_workers
from virtualzarr.stores.uris import resolve_uri

if TYPE_CHECKING:
    from virtualzarr.dataset.dataset import Dataset

_NOT_SENT = frozenset({"parallel", "progress", "step"})

_UNLIKE = (UnlikeBatchError, NewSchemaError)


@dataclass(frozen=True)
class StagedArchive:
    """Files that are staged, of a dataset that is not there yet.

    Attributes
    ----------
    schema : Schema
        Of all of them.
    fixed : Named, optional
        The segment of arrays that do not grow.
    fixed_content : str
        Digest of all bytes of it.
    rows : sequence of StagedRows
        In their order.
    """

    schema: Schema
    fixed: Named | None
    fixed_content: str
    rows: Sequence[StagedRows]


def is_staged_by_workers(files: Sequence[str] | None, options: Mapping[str, Any]) -> bool:
    """Tell whether workers stage files, and not only scan them.

    What asks for all files at once is left to one join: gaps, overlaps, missing files that are
    filled, harmonizing, values for each file. A ledger is written by one process.
    """
    if files is None or options.get("parallel") is None:
        return False
    is_plain = (
        options.get("bad_files", "raise") != "fill"
        and options.get("gaps", "allow") == "allow"
        and options.get("overlap", "raise") == "raise"
        and options.get("missing", "raise") == "raise"
        and not any(options.get(name) for name in ("harmonize", "ledger"))
        and (options.get("coordinate") is None or callable(options["coordinate"]))
    )
    return is_plain and len(set(files)) == len(files) > config.tuning.staged_files


def stage_archive(
    folder: str,
    files: Sequence[str],
    dimension: str,
    options: Mapping[str, Any],
    *,
    relative: bool,
    single_writer: bool,
) -> StagedArchive | None:
    """Stage files of a dataset that is not there yet; None if only one join of all can join them.

    Parameters
    ----------
    folder, files, dimension, relative, single_writer
        As for `create_dataset`.
    options : mapping
        Those of scans and joins, and how files are reached.
    """
    batches = _split(
        files, folder=folder, dimension=dimension, options=_select_sent(options),
        epoch=Snapshot(0, "", 0).epoch, schema=None, version=0, relative=relative,
        single_writer=single_writer,
    )  # fmt: skip
    try:
        with closing(_run(batches[:1], options, False)) as results:
            _, first = next(results)
        if first.rows is None or first.schema is None:
            raise UnlikeBatchError("the first files have no rows", file=files[0])
        others = [replace(batch, first=first.first) for batch in batches[1:]]
        staged = [first] * len(batches)
        classes = _Classes(first)
        with closing(_run(others, options, True)) as results:
            for number, one in results:
                classes.add(one, others[number])
                staged[number + 1] = replace(one, schema=None)
        rows = [one.rows for one in staged if one.rows is not None]
        rows = _sort(rows, is_given=options.get("combine") == "nested")
    except _UNLIKE as error:
        _explain_join(error)
        return None
    return StagedArchive(classes.schema, first.fixed, first.fixed_content, rows)


def request_staged(dataset: Dataset, addable: Addable, commit_id: str | None) -> Request | None:
    """Stage files that are added to a dataset; None for those that this process is to join.

    Raises
    ------
    VirtualZarrError
        What is wrong with a file, or that it is there already.
    """
    files = addable.files
    if files is None or addable.options.get("parallel") is None:
        return None
    newest = dataset.refresh()
    options = with_remembered(newest.schema, addable.options)
    if not is_staged_by_workers(files, options):
        return None
    with note_repeats(commit_id):
        if commit_id is not None and newest.has_commit(commit_id):
            return None
        files = newest.select_new_files(files, addable.duplicates)
        if not is_staged_by_workers(files, options):
            return None
        staged = _stage_more(newest, files, options)
    if staged is None:
        return None
    commit, join = request_commit(staged, addable.duplicates, repeats=True), request_append(addable)
    attempts = itertools.count()

    def prepare(dataset: Dataset) -> Edit:
        # Others may have added some of the files meanwhile: this process joins what they have left.
        if next(attempts) and dataset.select_new_files(files, addable.duplicates) != files:
            return join(dataset)
        return commit(dataset)

    return prepare


def _stage_more(
    dataset: Dataset, files: Sequence[str], options: Mapping[str, Any]
) -> list[StagedRows] | None:
    """Stage files in the terms of a dataset; None if only one join of all can join them."""
    batches = _split(
        files, folder=dataset.path, dimension=dataset.dimension, options=_select_sent(options),
        epoch=dataset.snapshot.epoch, schema=dataset.snapshot.schema, version=dataset.version,
        relative=dataset.schema.relative, single_writer=dataset.is_single_writer,
    )  # fmt: skip
    staged: dict[int, StagedRows] = {}
    try:
        with closing(_run(batches, options, True)) as results:
            for number, one in results:
                if one.rows is not None:
                    staged[number] = one.rows
    except _UNLIKE as error:
        _explain_join(error)
        return None
    return [staged[number] for number in sorted(staged)]


def _explain_join(error: Exception) -> None:
    warn_caller(
        f"files are joined by this process, not by workers, as they differ: {error}", UserWarning
    )


def _select_sent(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that workers need."""
    sent = {name: value for name, value in options.items() if name not in _NOT_SENT}
    return {**sent, "progress": False}


def _split(files: Sequence[str], **common: Any) -> list[Batch]:
    settings = settings_for_workers()
    common |= {"first": None, "settings": settings, "home": identify_process()}
    size, files = config.tuning.staged_files, [name_for_workers(file) for file in files]
    return [Batch(files=tuple(files[k : k + size]), **common) for k in range(0, len(files), size)]


def _run(
    batches: Sequence[Batch], options: Mapping[str, Any], shows: bool
) -> Generator[tuple[int, Staged]]:
    """Stage batches by an executor; warn here of what workers warn of."""
    with open_executor(options["parallel"]) as executor:
        yield from _run_by(executor, batches, options, shows)


def _run_by(
    executor: Any, batches: Sequence[Batch], options: Mapping[str, Any], shows: bool
) -> Generator[tuple[int, Staged]]:
    runner = BatchRunner(
        executor, stage_batch, _examine,
        partial(_leave_out, bad_files=options.get("bad_files", "raise")), _describe,
    )  # fmt: skip
    results = runner.run(batches)
    with (
        closing(results),
        show_progress(
            options.get("progress") if shows else False, sum(len(batch.files) for batch in batches)
        ) as bar,
    ):
        for number, answer in results:
            staged, caught = _check_answer(answer, batches[number])
            for message, category in caught:
                warn_caller(message, category)
            bar.update(len(batches[number].files))
            yield number, _with_own_names(staged, batches[number])


def _check_answer(answer: Any, batch: Batch) -> tuple[Staged, list[Any]]:
    """Return what a worker sent, if it is about the files that it was asked for.

    Raises `ExecutorError` if the executor mixes up what it is given, or loses it.
    """
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], Staged)):
        problem = f"the executor gave {answer!r:.100} for {_describe(batch)}"
        raise ExecutorError(problem)
    rows = answer[0].rows
    others = () if rows is None else set(rows.files) - {resolve_uri(file) for file in batch.files}
    if others:
        problem = f"the executor gave what came of others, such as {min(others)}, for"
        raise ExecutorError(f"{problem} {_describe(batch)}")
    return answer


def _with_own_names(staged: Staged, batch: Batch) -> Staged:
    """Return what a worker sent with the texts of names that are in this process already."""
    if staged.rows is None:
        return staged
    unrenamed = {name: name for name in batch.files}
    names = tuple(unrenamed.get(name, name) for name in staged.rows.files)
    return replace(staged, rows=replace(staged.rows, files=names))


def _examine(batch: Batch) -> list[str]:
    return find_deadly_files(batch.files, batch.dimension, batch.options, batch.settings)


def _describe(batch: Batch) -> str:
    return f"{len(batch.files)} files from {batch.files[0]} to {batch.files[-1]}"


def _leave_out(batch: Batch, deadly: Sequence[str], bad_files: str) -> Batch:
    """Return a batch without files that end the process that scans them, or raise an error."""
    error = ExecutorError("the process that scans the file dies, each time", file=deadly[0])
    if bad_files != "skip" or len(deadly) == len(batch.files):
        raise error
    for file in deadly:
        warn_caller(f"a file is left out: {ExecutorError(error.message, file=file)}")
    return replace(batch, files=tuple(file for file in batch.files if file not in deadly))


class _Classes:
    """What batches say of their arrays: all must say the same, but for attributes that differ.

    Each batch was joined with the first file, whose attributes are left out of all where one file
    has another value.
    """

    def __init__(self, first: Staged) -> None:
        assert first.schema is not None
        assert first.attributes is not None
        self.schema = first.schema
        self._documents = _describe_arrays(first.schema)
        self._attributes = first.attributes

    def add(self, staged: Staged, batch: Batch) -> None:
        """Compare a batch with those before.

        Raises
        ------
        UnlikeBatchError
            It is described otherwise.
        """
        if staged.schema is None:
            return
        file = batch.files[0]
        documents = _describe_arrays(staged.schema)
        for path in self._documents.keys() | documents.keys():
            if self._documents.get(path) != documents.get(path):
                raise UnlikeBatchError("an array is described otherwise", file=file, variable=path)
        for path, document in self.schema.nodes.items():
            ours = _read_attributes(self.schema, path)
            theirs = _read_attributes(staged.schema, path)
            gone = [name for name in ours if name not in theirs]
            new = [name for name in theirs if name not in ours]
            names = [*gone, *new, *(n for n in ours if n in theirs and ours[n] != theirs[n])]
            for name in names:
                if name not in self._attributes.get(path, ()) or (name in ours and name in theirs):
                    raise UnlikeBatchError(
                        f"the attribute {name!r} is not the same in all", file=file, variable=path
                    )
            if gone and document.get("attributes"):
                self.schema = self.schema.with_attributes(path, {}, gone)


def _read_attributes(schema: Schema, path: str) -> dict[str, tuple[str, Any]]:
    """Return attributes of a node, each as what is compared: types as well as values."""
    dtypes = schema.dtypes.get(path, {})
    attributes = schema.nodes[path].get("attributes", {})
    return {name: (repr(value), dtypes.get(name)) for name, value in attributes.items()}


def _describe_arrays(schema: Schema) -> dict[str, Any]:
    """Return documents by path, but for attributes and for lengths along the growing dimension."""
    documents: dict[str, Any] = {}
    for path, document in schema.nodes.items():
        documents[path] = {
            name: repr(value)
            for name, value in document.items()
            if name not in ("attributes", "shape", "chunk_grid")
        }
    for path, metadata in schema.arrays.items():
        growing = schema.axes.get(path, (0, -1))[1]
        assert isinstance(metadata.grid, SeparableGrid)
        documents[path]["axes"] = [
            (length, [part.tolist() for part in axis.runs()])
            for number, (length, axis) in enumerate(
                zip(metadata.shape, metadata.grid.axes, strict=True)
            )
            if number != growing
        ]  # fmt: skip
    return documents


def _sort(rows: Sequence[StagedRows], *, is_given: bool) -> list[StagedRows]:
    """Return rows in the order of coordinates, which must not overlap.

    Raises
    ------
    UnlikeBatchError
        They do.
    """
    if any(one.coordinates is None for one in rows):
        return [*rows]
    bounds = [one.coordinates[[0, -1]].tolist() for one in rows if one.coordinates is not None]
    order = sorted(range(len(rows)), key=lambda number: bounds[number])
    if is_given and order != [*range(len(rows))]:
        raise UnlikeBatchError("coordinates do not increase in the order given")
    for before, after in pairwise(order):
        if bounds[before][1] >= bounds[after][0]:
            raise UnlikeBatchError(
                f"coordinates of files up to {bounds[before][1]} lie among those of others from "
                f"{bounds[after][0]}"
            )
    return [rows[number] for number in order]
