"""Watching a folder: files that have settled are appended to a dataset, one commit for each batch.

Nothing is remembered outside of the dataset. A file is done if the dataset has rows of it, or if
a commit brought it that is in the history: so rows that were replaced, dropped or rolled back do
not return when the program is started anew.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from virtualzarr.dataset.arrivals import Arrivals
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.dataset.editing import Addable, request_replace
from virtualzarr.dataset.head import find_version, walk_log
from virtualzarr.errors import (
    AccessError,
    CommitFailedError,
    CommitUnknownError,
    SourceChangedError,
    VirtualZarrError,
)
from virtualzarr.stores.files import resolve_uri

Policy = Literal["retry", "skip", "raise", "fill"]
"""What is done about a file that cannot be appended."""

_LONGEST_WAIT = 3600.0
"""Seconds between two attempts at most."""


@dataclass(frozen=True)
class Event:
    """What a watch tells.

    Attributes
    ----------
    kind : {"commit", "present", "version unknown", "bad file", "store", "listing"}
        Files were committed; they were there already; they were, but nothing says in which version,
        so that they may have changed; one cannot be appended; the dataset, or the folder, cannot be
        reached.
    files : sequence of str
    version : int, optional
        Of the commit.
    commit : str
        Its id.
    error : str
    retry_in : float, optional
        Seconds until it is tried again, at the latest; None if only after the file has changed.
    """

    kind: str
    files: tuple[str, ...] = ()
    version: int | None = None
    commit: str = ""
    error: str = ""
    retry_in: float | None = None


@dataclass
class Watch:
    """A folder whose files go to a dataset.

    Attributes
    ----------
    dataset : Dataset
    arrivals : Arrivals
    options : mapping
        Of `Dataset.append`.
    policy : {"retry", "skip", "raise", "fill"}
    replace_changed : bool
        Whether a file that has changed since it was appended takes the place of what it was.
    batch : int
        The most files of one commit.
    first_wait : float
        Seconds until a file that failed is tried again; then twice as long, and so on.
    is_patient : bool
        Whether to wait until the dataset and the folder can be reached, and not raise an error.
    """

    dataset: Dataset
    arrivals: Arrivals
    report: Callable[[Event], None]
    options: Mapping[str, Any] = field(default_factory=dict)
    policy: Policy = "retry"
    replace_changed: bool = False
    batch: int = 256
    first_wait: float = 10.0
    is_patient: bool = True
    message: str | None = None
    _failures: dict[str, int] = field(default_factory=dict)
    _store_failures: int = 0
    _failing: str = ""
    _in_doubt: tuple[tuple[str, ...], str] | None = None
    _past: dict[str, datetime] = field(default_factory=dict)
    _past_start: int | None = None

    def step(self, is_stopped: Callable[[], bool] = lambda: False) -> float | None:
        """Append what has settled; return in how many seconds there will be more to do.

        Parameters
        ----------
        is_stopped : callable
            Asked before each commit whether to begin it.

        Returns
        -------
        float or None
            None if nothing is under way.
        """
        try:
            files = self.arrivals.look()
        except (VirtualZarrError, OSError) as error:
            return self._wait_for("listing", error)
        if self._failing == "listing":
            self._recover()
        try:
            files = self._without_past(files)
        except (VirtualZarrError, OSError) as error:
            return self._wait_for("store", error)
        while files and not is_stopped():
            batch, files = files[: self.batch], files[self.batch :]
            if (wait := self._commit(batch)) is not None:
                return wait
        return self.arrivals.delay()

    @property
    def is_waiting(self) -> bool:
        """Whether something is to be done still that is not left for good."""
        if self._failing:
            return True
        return any(not self.arrivals.is_left_out(file) for file in self.arrivals.open)

    def _without_past(self, files: Sequence[str]) -> list[str]:
        """Return files but those whose rows a commit brought that are no longer there."""
        if not files:
            return []
        dataset = self.dataset.refresh()
        # Where there are rows, `append` compares the file with what it was.
        present = dataset.find_files(files)
        absent = [file for file in files if resolve_uri(file) not in present]
        if absent:
            self._read_past(dataset, min(self.arrivals.facts(file)[1] for file in absent))
        gone = {file for file in absent if self._is_past(file)}
        if gone:
            self.arrivals.finish(gone)
            self.report(Event("present", tuple(sorted(gone))))
        return [file for file in files if file not in gone]

    def _read_past(self, dataset: Dataset, time: int) -> None:
        """Read which files commits brought since a time, as far as that was not read before.

        Older ones brought older files, whatever their names.
        """
        version = dataset.run(walk_log(dataset.head, lambda head: find_version(head, time)))
        start = max(version, 1)
        # What others commit from now on is there by name, when it is appended.
        stop = dataset.version + 1 if self._past_start is None else self._past_start
        if start < stop:
            older = {
                file: version.time
                for version in dataset.history(start, stop)
                for file in version.about.get("files", ())
            }
            self._past = older | self._past
        self._past_start = min(start, stop)

    def _is_past(self, file: str) -> bool:
        time = self._past.get(resolve_uri(file))
        if time is None:
            return False
        # A newer file of that name is another one.
        return bool(self.arrivals.facts(file)[1] <= time.timestamp() * 1e9)

    def _commit(self, files: Sequence[str]) -> float | None:
        """Append files; return how long to wait if the dataset cannot be reached."""
        name = tuple(files)
        try:
            before = self.dataset.refresh()
        except (VirtualZarrError, OSError) as error:
            return self._wait_for("store", error)
        commit_id = _new_id(before)
        # With the same name as before, it is done once, whatever became of the last attempt.
        if self._in_doubt is not None and self._in_doubt[0] == name:
            commit_id = self._in_doubt[1]
        try:
            self._append(before, files, commit_id)
        except (CommitFailedError, CommitUnknownError) as error:
            self._in_doubt = (name, commit_id)
            return self._wait_for("store", error, commit_id)
        except Exception as error:
            if isinstance(error, AccessError) and error.file == before.path:
                raise  # no commit to this place will ever succeed
            return self._sort_out(files, error)
        self._in_doubt = None
        self._recover()
        for file in files:
            self._failures.pop(file, None)
        return None

    def _append(self, before: Dataset, files: Sequence[str], commit_id: str) -> None:
        options = dict(self.options)
        if self.policy != "fill":
            # Whatever the dataset was made with: who watches is told of each file.
            options["bad_files"] = "raise"
        after = before.append(
            [*files], duplicates="skip", message=self.message, commit_id=commit_id, **options
        )
        self._finish(before, after, files, commit_id)

    def _finish(
        self, before: Dataset, after: Dataset, files: Sequence[str], commit_id: str
    ) -> None:
        self.dataset = after
        commits = [v for v in after.history(before.version + 1) if v.commit == commit_id]
        self.arrivals.finish(files)
        added = {file for version in commits for file in version.about.get("files", ())}
        new = tuple(file for file in files if resolve_uri(file) in added)
        if new:
            self.report(Event("commit", new, commits[0].version, commit_id))
        if old := tuple(file for file in files if file not in new):
            unclear = after.find_unclear_files(old)
            unknown = tuple(file for file in old if resolve_uri(file) in unclear)
            present = tuple(file for file in old if file not in unknown)
            for kind, some in (("present", present), ("version unknown", unknown)):
                if some:
                    self.report(Event(kind, some))

    def _sort_out(self, files: Sequence[str], error: Exception) -> float | None:
        """Go on without a file that is in the way, which is found by halves if need be."""
        if len(files) == 1:
            return self._put_off(files[0], error)
        uri = getattr(error, "file", None)
        culprits = [file for file in files if uri in (file, resolve_uri(file))]
        if culprits:
            parts = [culprits, [file for file in files if file not in culprits]]
        else:
            middle = len(files) // 2
            parts = [[*files[:middle]], [*files[middle:]]]
        for part in parts:
            if (wait := self._commit(part)) is not None:
                return wait
        return None

    def _put_off(self, file: str, error: Exception) -> float | None:
        if isinstance(error, SourceChangedError) and self.replace_changed:
            try:
                self._replace(file)
                return None
            except (CommitFailedError, CommitUnknownError) as failure:
                return self._wait_for("store", failure)
            except Exception as failure:
                error = failure
        if self.policy == "raise":
            raise error
        wait = None
        if self.policy == "retry":
            attempts = self._failures[file] = self._failures.get(file, -1) + 1
            wait = min(self.first_wait * 2 ** min(attempts, 20), _LONGEST_WAIT)
        self.arrivals.put_off(file, math.inf if wait is None else wait)
        self.report(Event("bad file", (file,), error=_text(error), retry_in=wait))
        return None

    def _replace(self, file: str) -> None:
        before = self.dataset.refresh()
        with suppress(SourceChangedError):
            if not before.select_new_files([file], "skip"):
                # Another watch of the folder was quicker.
                self._finish(before, before, [file], "")
                return
        commit_id = _new_id(before)
        # A window may have moved on, so that only some rows can take their place again.
        addable = Addable(file, {**before.access, **self.options}, "skip")
        request = request_replace(addable, [file])
        after = before.change(request, self.message, commit_id).merge()
        self._finish(before, after, [file], commit_id)

    def _recover(self) -> None:
        self._failing, self._store_failures = "", 0

    def _wait_for(self, kind: str, error: Exception, commit_id: str = "") -> float:
        if not self.is_patient:
            raise error
        self._failing = kind
        wait = min(self.first_wait * 2 ** min(self._store_failures, 20), _LONGEST_WAIT)
        self._store_failures += 1
        self.report(Event(kind, error=_text(error), retry_in=wait, commit=commit_id))
        return wait


def _new_id(dataset: Dataset) -> str:
    """Return a name for a commit, which says after which version to look for it."""
    return f"{dataset.version}-{secrets.token_hex(8)}"


def _text(error: Exception) -> str:
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    name = "" if isinstance(error, VirtualZarrError) else f"{type(error).__name__}: "
    return f"{name}{str(error) or type(error).__name__}{notes}"
