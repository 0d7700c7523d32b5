"""Datasets with versions, changed by commits."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, Unpack

from virtualzarr.array.executors import open_executor
from virtualzarr.choices import Duplicates, Keep
from virtualzarr.dataset.additions import Addable as Source
from virtualzarr.dataset.additions import AppendOptions
from virtualzarr.dataset.commit import Change, commit, new_id
from virtualzarr.dataset.compact import CompactReport, compact
from virtualzarr.dataset.describe import describe_commit
from virtualzarr.dataset.editing import (
    Addable,
    Request,
    as_paths,
    check_seen,
    commit_request,
    note_repeats,
    request_append,
    request_attributes,
    request_drop,
    request_replace,
)
from virtualzarr.dataset.history import to_nanoseconds
from virtualzarr.dataset.layers import delete_layer
from virtualzarr.dataset.staging import StagedRows, request_commit, stage
from virtualzarr.dataset.transaction import Transaction
from virtualzarr.dataset.upkeep import merge_due_segments, vacuum_dataset
from virtualzarr.dataset.vacuum import VacuumReport
from virtualzarr.dataset.values import to_time_span
from virtualzarr.dataset.verbs import roll_back, set_tag
from virtualzarr.dataset.version import DatasetVersion
from virtualzarr.dataset.write_elements import request_write
from virtualzarr.errors import CommitUnknownError, VirtualZarrError
from virtualzarr.ingest.find_files import Paths
from virtualzarr.keywords import strict_keywords


class Dataset(DatasetVersion):
    """A dataset at one version.

    Everything that is taken from it (arrays, lazy views, pickles, datasets of xarray) stays at
    that version. Methods that change the dataset do so to its newest version, as one commit, and
    return the dataset at the version that this made.

    Parameters
    ----------
    path : path or str
        A directory, or the URL of a folder: ``s3://``, ``gs://`` or ``az://`` (the last two with
        the extra ``object-stores``), ``memory://``, and any other that can be read, such as
        ``https://``.
    version : int, optional
    at : datetime or str, optional
        The version that was the newest then; in UTC if there is no time zone.
    tag : str, optional
    allowed, storage_options
        As for `virtualzarr.open`.
    single_writer : bool
        Whether commits are made where the store cannot keep several writers apart: you answer for
        it that nobody else writes at the same time.

    Raises
    ------
    SourceNotFoundError
        There is no dataset.
    VersionExpiredError, IndexError, KeyError
        There is no such version or tag.

    Examples
    --------
    >>> Dataset("air.dataset").group["air"][-1]  # doctest: +SKIP
    >>> Dataset("air.dataset", at="2026-11-01T12:00").group  # doctest: +SKIP
    """

    @strict_keywords(AppendOptions)
    def append(
        self,
        source: Source,
        *,
        message: str | None = None,
        commit_id: str | None = None,
        duplicates: Duplicates = "raise",
        **options: Unpack[AppendOptions],
    ) -> Dataset:
        """Add rows where their coordinates belong: at the end, or between others.

        Parameters
        ----------
        source : path, URL, several of them, Group, or xarray.Dataset
            Files (or patterns with ``*``), which are scanned and joined; or what `virtualize` or
            xarray made of them.
        message : str, optional
            For the history.
        commit_id : str, optional
            A name of the commit that no other has: repeated with the same one, it is done once.
        duplicates : {"raise", "skip"}
            What to do about files that are in the dataset already, and rows that are older than
            what `drop` has dropped with `before`.
        **options
            As for `virtualize`; by default those that the dataset was made with. Attributes stay as
            they are, unless `combine_attrs` says otherwise; ``missing="fill"`` lets new variables
            come, and others be lacking. `overlap` is also about coordinates that are stored: an
            error; the stored row stays ("first"), or the new one comes in its place ("last").
            `gaps` is about distances longer than `step` (a number, a time span, or a text such as
            "1h"): "raise", or "fill" with rows that have a coordinate, and missing values until
            their file comes. With `parallel`, workers store the references of 256 files each in the
            dataset's folder, and one commit names all: what stopped is done again by repeating the
            call.

        Returns
        -------
        Dataset
            At the new version; at the newest one if there was nothing to add.

        Raises
        ------
        MismatchError
            Files are there already, or there are rows of these coordinates; or files differ in what
            must be equal.
        SourceChangedError
            A file is there already, but was another one when it was scanned: `replace` it.
        ExecutorError
            A file ends the process that scans it, each time; or the executor was stopped.
        BelowFloorError
            There are rows older than what `drop` has dropped with `before`.
        CommitFailedError
            Nothing was changed, and will not be.
        CommitUnknownError
            The store cannot be asked: repeat it with the same `commit_id`.

        Examples
        --------
        >>> dataset.append("2026-11-*.nc", message="November")  # doctest: +SKIP
        <Dataset air.dataset version 2 (time: 720), 3 arrays>
        """
        addable = Addable(source, {**self.access, **options}, duplicates)
        # Its workers open datasets.
        request_staged = import_module("virtualzarr.dataset.scale_out").request_staged
        request = request_staged(self, addable, commit_id) or request_append(addable)
        return self.change(request, message, commit_id).merge()

    @strict_keywords(AppendOptions)
    def replace(
        self,
        source: Source,
        *,
        replaced: Paths | None = None,
        message: str | None = None,
        commit_id: str | None = None,
        **options: Unpack[AppendOptions],
    ) -> Dataset:
        """Put rows in the place of others, such as final ones of preliminary ones.

        Parameters
        ----------
        source
            As for `append`.
        replaced : path or several, optional
            Files whose rows go, whatever their coordinates; each must have some. By default, all
            rows from the first to the last of the new coordinates go. There may be more or fewer
            rows than before.
        message, commit_id, **options
            As for `append`.

        Returns
        -------
        Dataset
            At the new version; older ones still have the rows that went.

        Raises
        ------
        MismatchError
            There are no such rows; see `append`.
        """
        addable = Addable(source, {**self.access, **options}, "raise")
        if replaced is None:
            request = request_append(addable, replaced=True)
        else:
            request = request_replace(addable, as_paths(replaced))
        return self.change(request, message, commit_id).merge()

    def drop(
        self,
        start: Any = None,
        stop: Any = None,
        *,
        before: Any = None,
        message: str | None = None,
        commit_id: str | None = None,
    ) -> Dataset:
        """Drop rows, also in the middle of a chunk. No data are read or written.

        Parameters
        ----------
        start, stop : number, str or datetime, optional
            The first and the last coordinate to drop; by default the first and last there are.
        before : number, str or datetime, optional
            All rows with lesser coordinates go, and such rows do not come back: files that have
            any are refused from then on, or come without these rows (``duplicates="skip"`` of
            `append`).
        message, commit_id
            As for `append`.

        Raises
        ------
        MismatchError
            There are no such rows.
        """
        return self.change(request_drop(start, stop, before), message, commit_id)

    def update_attributes(
        self,
        path: str,
        attributes: Mapping[str, Any],
        *,
        delete: Collection[str] = (),
        message: str | None = None,
        commit_id: str | None = None,
    ) -> Dataset:
        """Change attributes of an array or group; those that are not named stay.

        Parameters
        ----------
        path : str
            Of the node; "" or "/" for the root.
        attributes : mapping
        delete : collection of str
            Names of attributes to take away.
        message, commit_id
            As for `append`.

        Raises
        ------
        NodeNotFoundError
            There is no such node, or no attribute to delete.
        MismatchError
            Another commit has changed the same attribute meanwhile.
        """
        request = request_attributes(path, attributes, delete)
        request = check_seen(request, self.schema, path, {*attributes, *delete})
        return self.change(request, message, commit_id)

    def transaction(
        self, *, message: str | None = None, commit_id: str | None = None
    ) -> Transaction:
        """Make many changes as one commit: readers see all of them, or none.

        Parameters
        ----------
        message, commit_id
            As for `append`.

        Returns
        -------
        Transaction
            To be used in a ``with`` statement: it has `append`, `replace`, `drop`,
            `update_attributes` and `tag`. An exception inside of it changes nothing.

        Examples
        --------
        >>> with dataset.transaction(message="day 5") as changes:  # doctest: +SKIP
        ...     changes.drop(before="2026-10-05")
        ...     changes.append("2026-11-05.nc")
        """
        return Transaction(self, message, commit_id)

    def stage(self, source: Source, **options: Any) -> StagedRows:
        """Store rows that nobody sees until `commit` names them: the part of a worker.

        Parameters
        ----------
        source, **options
            As for `append`.

        Returns
        -------
        StagedRows
            A small value that can be pickled and sent to who commits.

        Raises
        ------
        UnsupportedError
            The rows have new variables or attributes; append some first.
        """
        return stage(self.refresh(), source, {**self.access, **options})[0]

    def commit(
        self,
        staged: Iterable[StagedRows],
        *,
        message: str | None = None,
        commit_id: str | None = None,
    ) -> Dataset:
        """Add all rows that workers have staged, as one commit.

        Parameters
        ----------
        staged : iterable of StagedRows
        message, commit_id
            As for `append`.

        Raises
        ------
        MismatchError
            See `append`; or a vacuum has deleted what was staged before it: stage it again.
        """
        return self.change(request_commit(list(staged)), message, commit_id).merge()

    def merge(self) -> Dataset:
        """Make one segment of several small ones if it is time to; return the dataset then.

        Each commit does one merge at most, and none of large segments, so that none takes long: ten
        make one due, and ten of these another. A later merge, or a vacuum, does what this one
        cannot, as it met another writer. Of those who write at the same time one is enough, whoever
        it is.
        """
        if random.random() * (1 + self._place.rivals) > 1:
            return self
        return merge_due_segments(self)

    def tag(
        self,
        name: str,
        version: int | None = None,
        *,
        until: datetime | str | None = None,
        commit_id: str | None = None,
    ) -> Dataset:
        """Give a version a name, by which it stays: this one by default.

        Parameters
        ----------
        name : str
        version : int, optional
        until : datetime or str, optional
            After which a vacuum may take the tag away; in UTC if there is no time zone.
        commit_id
            As for `append`.
        """
        end = None if until is None else to_nanoseconds(until)
        tagged = self.version if version is None else version
        change = set_tag(name, tagged, describe_commit("tag", name), end)
        return self.refresh().commit_change(change, commit_id)

    def delete_tag(self, name: str, *, commit_id: str | None = None) -> Dataset:
        """Take a tag away; the version may expire then."""
        change = set_tag(name, None, describe_commit("delete tag", name))
        return self.refresh().commit_change(change, commit_id)

    def rollback(
        self, version: int, *, message: str | None = None, commit_id: str | None = None
    ) -> Dataset:
        """Make everything as it was at a version, in a new one; nothing leaves the history."""
        about = describe_commit("rollback", message) | {"to": version}
        return self.refresh().commit_change(roll_back(version, about), commit_id)

    def vacuum(
        self,
        keep: int = 1,
        *,
        older_than: timedelta | str | None = None,
        grace: timedelta | str | None = None,
        forget: bool = False,
    ) -> VacuumReport:
        """Let old versions expire, and delete what nothing but these needs.

        What appends have left small, or with many rows that are gone, is merged first.

        Parameters
        ----------
        keep : int
            How many of the last versions stay, whatever their age, those not counted that the
            vacuum makes itself. With 1, the newest one may be such a one, which shows the same, and
            that of before expires. Those with a tag stay as well.
        older_than : timedelta or str, optional
            Versions that were the newest at any time since so long ago, such as "30d", stay, too.
        grace : timedelta or str, optional
            Likewise, for readers who opened one when it was the newest.
        forget : bool
            Whether to forget the history before the oldest version that can still be opened, which
            otherwise stays: who made versions that have expired, when, and of which files. A
            `commit_id` of that time is no longer known either.
        """
        ages = [each for each in (older_than, grace) if each is not None]
        period = max(map(to_time_span, ages), default=None)
        return vacuum_dataset(self, keep, period, forget)

    def compact(
        self,
        chunks: int | Mapping[str, int],
        *,
        memory: int = 1 << 28,
        keep: Keep = "new",
        shards: int | Mapping[str, int] | None = None,
        budget: int | None = None,
        message: str | None = None,
        parallel: Any = None,
    ) -> CompactReport:
        """Fold small chunks into the shape that is read, some rows a commit.

        Parameters
        ----------
        chunks : int or mapping of str to int
            Chunk length along the growing dimension, or along this and others.
        memory : int
            Bytes of values that are in memory at a time, unless one chunk needs more.
        shards : int or mapping of str to int, optional
            Lengths of shards of Zarr v3 in which chunks are stored together, in whole chunks.
        keep : {"new", "both"}
            With "both", rows keep their chunks, and get others beside them: a layer, named by its
            chunk lengths. Each read takes what costs it less. Rows that change leave the layer.
        budget : int, optional
            It stops, between commits, once so many bytes were written; the next one goes on.
        message : str, optional
            For the history.
        parallel : int, concurrent.futures.Executor or dask.distributed.Client, optional
            Its workers read and encode, each in as much memory; this process stores and commits.

        Raises
        ------
        UnsupportedError
            The codecs of an array do not give its values back.
        """
        options: Any = {"memory": memory, "budget": budget, "message": message, "keep": keep}
        with open_executor(parallel) as executor:
            return compact(self.refresh(), chunks, shards=shards, parallel=executor, **options)

    def delete_layer(
        self, chunks: Mapping[str, int], *, message: str | None = None, commit_id: str | None = None
    ) -> Dataset:
        """Let a layer go that `compact` has made with ``keep="both"``.

        `chunks` are its name, as in `layers`. A MismatchError says that there is none.
        """
        about = describe_commit("delete layer", message)
        return self.refresh().commit_change(delete_layer(chunks, about), commit_id)

    def write(
        self,
        path: str,
        selection: Any,
        values: Any,
        *,
        message: str | None = None,
        commit_id: str | None = None,
    ) -> Dataset:
        """Write elements of an array; the chunks that they are in are stored in the dataset.

        Parameters
        ----------
        path : str
        selection : int, slice, ellipsis, or a tuple of them
            By position in this version.
        values : array-like
            Broadcast to the selection.
        message, commit_id
            As for `append`.

        Returns
        -------
        Dataset
            At the new version.

        Raises
        ------
        MismatchError
            Another commit has changed rows of the selection since this version.
        UnsupportedError
            The array does not have the growing dimension, or its codecs lose digits.
        """
        if commit_id is not None and (newest := self.refresh()).has_commit(commit_id):
            return newest  # where the selection may be out of bounds
        return self.change(request_write(self, path, selection, values), message, commit_id)

    def change(
        self, request: Request, message: str | None, commit_id: str | None = None
    ) -> Dataset:
        """Commit what a request makes of the newest version; again if that changes meanwhile."""
        return commit_request(self, request, message, commit_id)

    def commit_change(self, change: Change, commit_id: str | None = None) -> Dataset:
        """Commit one change, which is made to the newest version."""
        name = commit_id or self._place.run(new_id(self.head))
        with note_repeats(commit_id):
            head = self._place.run(commit(self.head, change, name, is_first=commit_id is None))
        try:
            return self._at(head)
        except VirtualZarrError as error:
            # It is done, which no error may deny.
            raise CommitUnknownError(
                f"the commit {name!r} was done, but the store does not say what it left: {error}",
                name,
            ) from error
