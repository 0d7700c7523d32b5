"""Transactions: many changes of a dataset as one commit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, Unpack

from virtualzarr.choices import Duplicates
from virtualzarr.dataset.additions import Addable as Source
from virtualzarr.dataset.additions import AppendOptions
from virtualzarr.dataset.commit import Change
from virtualzarr.dataset.editing import (
    Addable,
    Edit,
    Request,
    as_paths,
    request_append,
    request_attributes,
    request_drop,
    request_replace,
)
from virtualzarr.dataset.history import to_nanoseconds
from virtualzarr.dataset.staging import StagedRows, request_commit
from virtualzarr.dataset.verbs import NothingToDoError, set_tag
from virtualzarr.ingest.find_files import Paths
from virtualzarr.keywords import strict_keywords

if TYPE_CHECKING:
    from virtualzarr.dataset.dataset import Dataset


class Transaction:
    """Changes that become one commit at the end of a ``with`` statement.

    They are made in their order, each to what those before leave. Nothing is written before the
    end, but staged rows; arrays that are read meanwhile are those of before. An exception leaves
    the dataset as it is.

    Attributes
    ----------
    dataset : Dataset
        At the newest version before; after the end, at the one that was made.
    """

    def __init__(self, dataset: Dataset, message: str | None, commit_id: str | None) -> None:
        self.dataset = dataset.refresh()
        self._seen = dataset.schema
        self._message, self._commit_id = message, commit_id
        self._requests: list[Request] = []
        self._updated: list[tuple[str, set[str]]] = []
        self._is_open = False

    def __enter__(self) -> Self:
        self._is_open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_open = False
        if kind is None and self._requests:
            changed = self.dataset.change(self._prepare, self._message, self._commit_id)
            self.dataset = changed.merge()

    def _prepare(self, dataset: Dataset) -> Edit:
        for path, names in self._updated:
            # What another commit changed since is a conflict; what this one changes is none.
            dataset.schema.check_unchanged(self._seen, path, names)
        edits: list[Edit] = []
        before: tuple[Change, ...] = ()
        for request in self._requests:
            if before:
                dataset, before = dataset.preview(before), ()
            try:
                edit = request(dataset)
            except NothingToDoError:
                continue  # files that are there already, and are to be skipped
            edits.append(edit)
            before = edit.changes
        if not edits:
            raise NothingToDoError("there is nothing to change")
        verbs = dict.fromkeys(edit.verb for edit in edits)
        return Edit(
            ", ".join(verbs),
            tuple(change for edit in edits for change in edit.changes),
            tuple(file for edit in edits for file in edit.files),
        )

    def _add(self, request: Request) -> None:
        if not self._is_open:
            raise ValueError("changes are made inside of the with statement of a transaction")
        self._requests.append(request)

    @strict_keywords(AppendOptions)
    def append(
        self, source: Source, *, duplicates: Duplicates = "raise", **options: Unpack[AppendOptions]
    ) -> None:
        """Add rows, see `Dataset.append`."""
        self._add(request_append(Addable(source, {**self.dataset.access, **options}, duplicates)))

    @strict_keywords(AppendOptions)
    def replace(
        self,
        source: Source,
        *,
        replaced: Paths | None = None,
        **options: Unpack[AppendOptions],
    ) -> None:
        """Put rows in the place of others, see `Dataset.replace`."""
        addable = Addable(source, {**self.dataset.access, **options}, "raise")
        if replaced is None:
            self._add(request_append(addable, replaced=True))
        else:
            self._add(request_replace(addable, as_paths(replaced)))

    def drop(self, start: Any = None, stop: Any = None, *, before: Any = None) -> None:
        """Drop rows, see `Dataset.drop`."""
        self._add(request_drop(start, stop, before))

    def update_attributes(
        self, path: str, attributes: Mapping[str, Any], *, delete: Collection[str] = ()
    ) -> None:
        """Change attributes, see `Dataset.update_attributes`."""
        self._add(request_attributes(path, attributes, delete))
        self._updated.append((path, {*attributes, *delete}))

    def commit_staged(self, *staged: StagedRows) -> None:
        """Add rows that workers have staged, see `Dataset.commit`."""
        self._add(request_commit(staged))

    def tag(self, name: str, *, until: datetime | str | None = None) -> None:
        """Give the version that the commit makes a name, see `Dataset.tag`."""
        end = None if until is None else to_nanoseconds(until)
        self._add(lambda _: Edit("tag", (set_tag(name, 0, {}, end),)))
