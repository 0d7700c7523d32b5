"""Staged rows: stored by workers, and named by one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.choices import Duplicates, Overlap
from virtualzarr.dataset import objects
from virtualzarr.dataset.additions import join_options, with_remembered
from virtualzarr.dataset.editing import Addable, Edit, Request, find_unfilled, refuse_files
from virtualzarr.dataset.fitting import Addition
from virtualzarr.dataset.operations import Get, Protocol
from virtualzarr.dataset.snapshot import ChunkRuns, Named, Names
from virtualzarr.dataset.verbs import Rows, Stored, add_rows
from virtualzarr.errors import MismatchError, UnsupportedError

if TYPE_CHECKING:
    from virtualzarr.dataset.dataset import Dataset


class NewSchemaError(UnsupportedError):
    """Rows have variables or attributes that the dataset does not have."""


@dataclass(frozen=True)
class StagedRows:
    """Rows whose references are stored, and which no version has yet.

    A vacuum that runs meanwhile may delete them: a commit says so, and nothing is lost but work.

    Attributes
    ----------
    dimension : str
    segment : Named
    content : str
        Digest of all bytes of the segment.
    count : int
    coordinates : array, optional
    chunks, grids, cells
        See `Entry`.
    schema : Named, optional
        In whose terms the references are.
    files : sequence of str
    names : array
        Those of these files, see `Rows`.
    is_whole : bool
        Whether the rows are all that these files have: each may be in the dataset only once.
    overlap : {"raise", "first", "last"}
        Which rows stay where there are stored ones at the same coordinates.
    """

    dimension: str
    segment: Named
    content: str
    count: int
    coordinates: NDArray[Any] | None
    chunks: tuple[Any, ...]
    grids: Mapping[str, tuple[ChunkRuns, ...]]
    schema: Named | None
    files: tuple[str, ...]
    names: Names
    is_whole: bool
    overlap: Overlap
    cells: int = 0

    def to_rows(self, segment: Stored) -> Rows:
        """Return the rows as a commit adds them."""
        return Rows(
            self.dimension, segment, self.count, self.coordinates, self.chunks, self.schema,
            self.grids, self.names, self.cells,
        )  # fmt: skip

    def __repr__(self) -> str:
        where = ""
        if self.coordinates is not None:
            where = f" from {self.coordinates[0]} to {self.coordinates[-1]}"
        return f"<StagedRows: {self.count} along {self.dimension}{where}>"


class StagedObject(Stored):
    """An object that is in the store already, and is copied where a vacuum's fence came between."""

    def __init__(self, named: Named, content: str) -> None:
        super().__init__("segments", b"", named.digest)
        self._content = content
        self._original = named
        epoch = objects.epoch_of(named.name)
        if epoch is not None:
            self._named[epoch] = named

    def put(self, epoch: int) -> Protocol[Named]:
        """Return the object's name of this epoch.

        Raises
        ------
        MismatchError
            A vacuum has deleted it.
        """
        if epoch not in self._named and not self.data:
            answer = yield Get(self._original.name)
            if answer is None or objects.digest(answer[0]) != self._content:
                raise MismatchError(
                    "a vacuum has deleted what was staged before it; stage it again",
                    file=self._original.name,
                )
            self.data = answer[0]
        return (yield from super().put(epoch))


def stage(dataset: Dataset, source: Any, options: Mapping[str, Any]) -> tuple[StagedRows, Addition]:
    """Store rows in the terms of a version of a dataset; return them with their references."""
    addable = Addable(source, options, "raise")
    group, files = addable.find(dataset)
    options = with_remembered(dataset.schema, options)
    addition = dataset.fit(group, join_options(options))
    if addition.schema is not dataset.schema:
        raise NewSchemaError(
            "staged rows have new variables or attributes, which are not in the dataset yet: "
            "append some first"
        )
    rows = addition.rows(dataset.snapshot.schema, files)
    named = dataset.run(put_segment(rows.segment, dataset.snapshot.epoch))
    is_whole = addable.files is not None or rows.coordinates is None
    staged = describe_staged(rows, named, tuple(files), is_whole, options.get("overlap", "raise"))
    return staged, addition


def put_segment(segment: Stored, epoch: int) -> Protocol[Named]:
    """Store a segment under the hash of its bytes."""
    return objects.put_by_content("segments", epoch, segment.data, segment.digest)


def describe_staged(
    rows: Rows, named: Named, files: tuple[str, ...], is_whole: bool, overlap: Overlap = "raise"
) -> StagedRows:
    """Return what a commit has to know of rows whose segment is stored."""
    return StagedRows(
        rows.dimension, named, objects.digest(rows.segment.data), rows.count,
        None if rows.coordinates is None else np.array(rows.coordinates),
        rows.chunks, rows.grids, rows.schema, files, rows.files, is_whole, overlap, rows.cells,
    )  # fmt: skip


def request_commit(
    staged: Sequence[StagedRows], old_rows: Duplicates = "raise", *, repeats: bool = False
) -> Request:
    """Rows come that were staged; `old_rows` is about those below the floor, see `add_rows`.

    `repeats` says that another request takes its place if files of theirs have come meanwhile.
    """
    objects_of = {item.segment.name: StagedObject(item.segment, item.content) for item in staged}
    if len(objects_of) < len(staged):
        raise ValueError("the same staged rows are given twice")

    def prepare(dataset: Dataset) -> Edit:
        changes = []
        for item in staged:
            rows = item.to_rows(objects_of[item.segment.name])
            read = dataset.open_segment.coordinates
            add = add_rows(
                rows, read, {}, overlap=item.overlap, old_rows=old_rows,
                unfilled=find_unfilled(dataset),
            )  # fmt: skip
            if item.is_whole:
                add = refuse_files(add, dataset, item.files, False, repeats=repeats)
            changes.append(add)
        files = tuple(file for item in staged for file in item.files)
        return Edit("append", tuple(changes), files)

    return prepare
