"""Editing of a dataset: what users ask for, as changes that a commit makes.

Nothing is written here. The same request is prepared anew, without a second scan, when another
commit has changed what it was prepared by.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.choices import Duplicates, check_choice
from virtualzarr.dataset.additions import (
    as_group,
    check_options,
    join_options,
    list_files,
    scan_addition,
    with_remembered,
)
from virtualzarr.dataset.commit import Change
from virtualzarr.dataset.describe import (
    count_rows,
    describe_commit,
    find_growing,
)
from virtualzarr.dataset.file_names import have_files
from virtualzarr.dataset.fitting import Addition, FileRanges, build_gap
from virtualzarr.dataset.gaps import close_gaps
from virtualzarr.dataset.head import Head
from virtualzarr.dataset.joined_changes import join_changes
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.row_tables import read_runs_between
from virtualzarr.dataset.schema import OutdatedError, Schema
from virtualzarr.dataset.snapshot import Record, Snapshot
from virtualzarr.dataset.sources import find_files, find_rows, select_new_files
from virtualzarr.dataset.values import to_bound, to_step
from virtualzarr.dataset.verbs import (
    NothingToDoError,
    Rows,
    add_rows,
    change_schema,
    drop_before,
    drop_ranges,
    drop_rows,
    replace_ranges,
)
from virtualzarr.errors import (
    AccessError,
    MetadataError,
    MismatchError,
    SourceError,
    SourceNotFoundError,
    UnsupportedError,
    VersionExpiredError,
)
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import list_uris
from virtualzarr.ingest.find_files import Paths
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.stores.files import resolve_uri

if TYPE_CHECKING:
    from virtualzarr.dataset.dataset import Dataset


@dataclass(frozen=True)
class Edit:
    """Changes that belong together.

    Attributes
    ----------
    verb : str
        For the history.
    changes : sequence of Change
        In their order.
    files : sequence of str
        Source files that come with them.
    """

    verb: str
    changes: tuple[Change, ...]
    files: tuple[str, ...] = ()


Request = Callable[["Dataset"], Edit]
"""Prepares an edit by the newest version of a dataset."""


_ATTEMPTS = 20
"""How often a change is prepared anew, as others changed what it was prepared by."""

_GONE = (VersionExpiredError, MetadataError, SourceNotFoundError)
"""Errors of what is not there: a vacuum may have taken it away, or it is damaged."""


def commit_request(
    dataset: Dataset, request: Request, message: str | None, commit_id: str | None
) -> Dataset:
    """Commit what a request makes of the newest version; again if that changes meanwhile."""
    with note_repeats(commit_id):
        return _commit_request(dataset, request, message, commit_id)


@contextmanager
def note_repeats(commit_id: str | None) -> Iterator[None]:
    """Say with errors of what cannot be read that they are not about attempts of before."""
    try:
        yield
    except (SourceError, AccessError) as error:
        note = (
            f"nothing was changed by this attempt; one before it with commit_id={commit_id!r}, if "
            "there was one, may still be done"
        )
        if commit_id is not None and note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


def _commit_request(
    dataset: Dataset, request: Request, message: str | None, commit_id: str | None
) -> Dataset:
    for attempt in range(_ATTEMPTS):
        newest, is_last = dataset.refresh(), attempt == _ATTEMPTS - 1
        try:
            if commit_id is not None and newest.has_commit(commit_id):
                return newest
            edit = request(newest)
            files = [newest.schema.name_file(file, newest.path) for file in edit.files]
            about = describe_commit(edit.verb, message, files)
            return newest.commit_change(join_changes(edit.changes, about), commit_id)
        except NothingToDoError:
            return newest
        except OutdatedError:
            if is_last:
                raise
        except _GONE:
            # Also what was stored for the change itself, which no version names yet.
            if is_last or dataset.refresh().snapshot.epoch == newest.snapshot.epoch:
                raise
    raise AssertionError


class Addable:
    """Rows that are to be added: files that are scanned once, or a group."""

    def __init__(self, source: Any, options: Mapping[str, Any], duplicates: Duplicates) -> None:
        check_choice("duplicates", duplicates, Duplicates)
        check_options(options)
        self.options, self.duplicates = options, duplicates
        self.files = list_files(source, options)
        self._group = as_group(source) if self.files is None else None
        self._scanned: dict[tuple[str, ...], tuple[Group, FileRanges]] = {}

    def find(self, dataset: Dataset, *, again: bool = False) -> tuple[Group, FileRanges]:
        """Return what is to be added, and which rows of it are of which files.

        Parameters
        ----------
        again : bool
            Whether files may be there already.

        Raises
        ------
        NothingToDoError
            All files are there, or have no rows.
        MismatchError
            What comes again has no rows.
        """
        group, files = self._find(dataset, again)
        if find_growing(group, dataset.dimension) and not count_rows(group, dataset.dimension):
            kind = MismatchError if again else NothingToDoError
            raise kind(
                f"there are no rows along {dataset.dimension!r}", file=next(iter(files), None)
            )
        return group, files

    def _find(self, dataset: Dataset, again: bool) -> tuple[Group, FileRanges]:
        if self.files is None:
            assert self._group is not None
            return self._group, dict.fromkeys(list_uris(self._group))
        options = with_remembered(dataset.schema, self.options)
        files = self.files
        if not again:
            select = select_new_files(
                dataset.snapshot, dataset.dimension, dataset.schema.axes, dataset.open_segment,
                dataset.path, files, self.duplicates, options.get("storage_options"),
            )  # fmt: skip
            files = dataset.run(select)
        if not files:
            raise NothingToDoError("all files are in the dataset already")
        key = tuple(files)
        if key not in self._scanned:
            self._scanned[key] = scan_addition(files, dataset.dimension, options)
        return self._scanned[key]


def as_paths(paths: Paths) -> list[str]:
    """Return one path, or several, as texts."""
    several = [paths] if isinstance(paths, str | os.PathLike) else paths
    return [os.fspath(path) for path in several]


def request_append(addable: Addable, *, replaced: bool = False) -> Request:
    """Rows come where their coordinates belong, or in place of those that are there."""

    def prepare(dataset: Dataset) -> Edit:
        group, files = addable.find(dataset, again=replaced)
        options = with_remembered(dataset.schema, addable.options)
        addition = dataset.fit(group, join_options(options))
        rows = addition.rows(dataset.snapshot.schema, files)
        add = add_rows(
            rows, dataset.open_segment.coordinates, {},
            replaced=replaced, overlap=options.get("overlap", "raise"),
            old_rows=addable.duplicates, unfilled=find_unfilled(dataset),
        )  # fmt: skip
        if not replaced and (addable.files is not None or addition.coordinates is None):
            # Files were looked for in what is there; those of a group were not.
            is_selected = addable.files is not None
            add = refuse_files(add, dataset, tuple(files), is_selected, repeats=is_selected)
        before, after = _schema_changes(dataset, addition), _gap_changes(dataset, addition, options)
        return Edit("replace" if replaced else "append", (*before, add, *after), tuple(files))

    return prepare


def request_replace(addable: Addable, sources: Collection[str]) -> Request:
    """Rows come in place of those that refer to some files."""
    uris = [resolve_uri(source) for source in sources]
    if not uris:
        raise ValueError("replaced= names no file: which rows go?")

    def prepare(dataset: Dataset) -> Edit:
        group, files = addable.find(dataset, again=True)
        options = with_remembered(dataset.schema, addable.options)
        addition = dataset.fit(group, join_options(options))
        rows = addition.rows(dataset.snapshot.schema, files)

        def find(state: Snapshot) -> Protocol[list[tuple[int, int]]]:
            return (
                yield from find_rows(
                    state, dataset.dimension, dataset.open_segment, dataset.path, uris
                )
            )

        # Without a coordinate, rows take the place of those before; with one, they come where they
        # belong, which may be elsewhere.
        changes: list[Change] = _schema_changes(dataset, addition)
        if rows.coordinates is None:
            changes.append(replace_ranges(rows, find, {}))
        else:
            changes.append(drop_ranges(dataset.dimension, find, {}))
            changes.append(
                add_rows(
                    rows, dataset.open_segment.coordinates, {},
                    overlap=options.get("overlap", "raise"), old_rows=addable.duplicates,
                    unfilled=find_unfilled(dataset),
                )
            )  # fmt: skip
        changes += _gap_changes(dataset, addition, options)
        return Edit("replace", tuple(changes), tuple(files))

    return prepare


def request_drop(start: Any, stop: Any, before: Any) -> Request:
    """Rows go: from one coordinate to another, or all before one, which sets the floor."""
    if before is not None and (start is not None or stop is not None):
        raise ValueError("give start and stop, or before")
    if before is None and start is None and stop is None:
        raise ValueError("give start, stop or before: which rows are dropped?")

    def prepare(dataset: Dataset) -> Edit:
        dimension, coordinates = dataset.dimension, dataset.open_segment.coordinates
        if before is not None:
            least = _bound(dataset, before, "low")
            if abs(least) == math.inf:
                raise ValueError(f"before is {before}: no row could ever come again")
            return Edit("drop", (drop_before(dimension, least, coordinates, {}),))
        low = None if start is None else _bound(dataset, start, "low")
        high = None if stop is None else _bound(dataset, stop, "high")
        return Edit("drop", (drop_rows(dimension, low, high, coordinates, {}),))

    return prepare


def request_attributes(
    path: str, attributes: Mapping[str, Any], delete: Collection[str]
) -> Request:
    """Attributes of a node change, and those of some names go."""

    def prepare(dataset: Dataset) -> Edit:
        new = dataset.schema.with_attributes(path, attributes, delete)
        return Edit("attributes", (change_schema(dataset.snapshot.schema, new, {}),))

    return prepare


def check_seen(request: Request, base: Schema, path: str, names: Collection[str]) -> Request:
    """Return a request that conflicts with changes of attributes since the user has seen them."""

    def prepare(dataset: Dataset) -> Edit:
        dataset.schema.check_unchanged(base, path, names)
        return request(dataset)

    return prepare


def _coordinate(dataset: Dataset) -> ArrayMetadata:
    # By the schema: the group would be told all runs where chunks are cut.
    metadata = dataset.schema.arrays.get(dataset.dimension)
    if metadata is None or metadata.dimension_names != (dataset.dimension,):
        raise UnsupportedError(f"{dataset.dimension!r} has no coordinate that rows are found by")
    if metadata.dtype.kind not in "iuf":
        raise UnsupportedError(
            f"the coordinate of {dataset.dimension!r} is of {metadata.dtype.name}, and rows are "
            "found by numbers or times",
            variable=dataset.dimension,
        )
    return metadata


def _bound(dataset: Dataset, value: Any, side: str) -> Any:
    metadata = _coordinate(dataset)
    return to_bound(value, metadata.attributes, metadata.dtype, side)


def _schema_changes(dataset: Dataset, addition: Addition) -> list[Change]:
    if addition.schema is dataset.schema:
        return []
    base, fixed = dataset.snapshot.schema, addition.fixed_segment()
    return [change_schema(base, addition.schema, {}, fixed)]


def _gap_changes(dataset: Dataset, addition: Addition, options: Mapping[str, Any]) -> list[Change]:
    policy = options.get("gaps", "allow")
    if policy == "allow" or addition.coordinates is None:
        return []
    coordinate, values = _coordinate(dataset), addition.coordinates
    step = options.get("step")
    if step is None:
        raise ValueError(
            f"gaps={policy!r} needs the distance that coordinates should have: give step="
        )
    step = to_step(step, coordinate.attributes, coordinate.dtype)

    def build_rows(missing: NDArray[Any]) -> Rows:
        return build_gap(dataset.schema, missing).rows(None)

    return [
        close_gaps(
            dataset.dimension, values[0], values[-1], step, policy,
            dataset.open_segment.coordinates, build_rows, {},
        )
    ]  # fmt: skip


def refuse_files(
    change: Change, dataset: Dataset, files: Sequence[str], is_selected: bool, *, repeats: bool
) -> Change:
    """Return a change that refuses files which another commit has added.

    `is_selected` says that they are not in the version that the change was prepared by, `repeats`
    that a request which is made again finds those that are left.
    """

    def change_checked(head: Head) -> Protocol[Record]:
        state = head.snapshot
        present: Mapping[str, Any] = {}
        if not is_selected or state is not dataset.snapshot:
            present = yield from find_files(
                state, dataset.dimension, dataset.schema.axes, dataset.open_segment,
                dataset.path, set(files),
            )  # fmt: skip
        if present:
            # Prepared anew, it is an error, or is left out.
            kind = OutdatedError if repeats else MismatchError
            raise kind("the file is in the dataset already", file=next(iter(present)))
        return (yield from change(head))

    return change_checked


def find_unfilled(dataset: Dataset) -> Callable[[Snapshot, int, int], Protocol[NDArray[np.bool_]]]:
    """Return what tells rows that stand for gaps from others."""

    def find(state: Snapshot, start: int, stop: int) -> Protocol[NDArray[np.bool_]]:
        dimension = dataset.dimension
        begin, runs = yield from read_runs_between(state, dimension, start, stop)
        ids = runs.ids(start - begin, stop - begin)
        # References say nothing of it: files may have nothing but fill values, which are not
        # stored, and gaps may have missing values that are.
        return ~(yield from have_files(state, dimension, ids))

    return find
