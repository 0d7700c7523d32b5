"""Commits: one change of a dataset, there once or not at all, whatever stops it.

A commit is done when the head is replaced and at no other moment. Whoever loses the race against
another writer goes on from what that one left. Whoever gets no answer looks whether its commit is
in the history.

Source: ``specs/dataset.md``, *Committing*.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from virtualzarr.dataset.head import Head, read_documents
from virtualzarr.dataset.limits import LIMITS, Limits
from virtualzarr.dataset.operations import (
    HEAD,
    BackOff,
    EndTurn,
    Get,
    NewId,
    Now,
    Protocol,
    RefusedError,
    Replace,
    UnreachableError,
    WaitTurn,
)
from virtualzarr.dataset.snapshot import Record, Snapshot
from virtualzarr.errors import (
    CommitFailedError,
    CommitUnknownError,
    MetadataError,
    NodeExistsError,
    SourceNotFoundError,
    VersionExpiredError,
    VirtualZarrError,
)

_ID = re.compile(r"(\d+)-[0-9a-f]{16}")
"""Ids that `new_id` returns. Those that users think of are looked for in all of the history."""

_GONE = (SourceNotFoundError, VersionExpiredError)

Change = Callable[[Head], Protocol[Record]]
"""A change: what it does to a head, as a record, with what the record names put in the store.

It is asked again with each head that another writer leaves, and raises an error if that does not
go together with it. Objects that it put under another epoch than the head's must be put anew.
"""


def create(
    change: Change | None = None, commit: str | None = None, limits: Limits = LIMITS
) -> Protocol[Head]:
    """Make a dataset: version 1 is what a change makes of nothing.

    Raises
    ------
    NodeExistsError
        There is one already.
    CommitFailedError, CommitUnknownError
    """

    def empty(head: Head) -> Protocol[Record]:
        return _record(head, {"verb": "create"})

    nothing = Head(Snapshot(0, "", 0))
    name = commit or (yield from new_id(nothing))
    return (yield from _commit(nothing, change or empty, name, limits, commit is not None))


def commit(
    base: Head,
    change: Change,
    commit: str | None = None,
    limits: Limits = LIMITS,
    *,
    is_first: bool = False,
) -> Protocol[Head]:
    """Change a dataset.

    Parameters
    ----------
    base : Head
        What was read when the change was decided on.
    change : callable
    commit : str, optional
        The id of a commit that was begun before, and whose outcome is not known: it is done once.
    limits : Limits
        How much the head has itself.
    is_first : bool
        Whether the id was never committed with before.

    Returns
    -------
    Head
        The version that the commit made, or a later one if that was found when asking.

    Raises
    ------
    CommitFailedError
        It was not done, and never will be: the store refused too long.
    CommitUnknownError
        It may have been done or not, as the store cannot be asked, or has not shown yet that
        requests of an attempt before are void.
    VirtualZarrError
        What `change` raises: it was not done.
    """
    if commit is None:
        return (yield from _commit(base, change, (yield from new_id(base)), limits, False))
    # Whoever repeats a commit may have read a head that has it already.
    head, is_done = yield from _search(base, commit, 0)
    if is_done:
        return head
    return (yield from _commit(base, change, commit, limits, not is_first))


def record(head: Head, about: dict[str, object], **changes: object) -> Protocol[Record]:
    """Return a record of a change to a head, with a time after that of the last commit."""
    new_record = yield from _record(head, about)
    return replace(new_record, **changes)  # type: ignore[arg-type]


def _record(head: Head, about: dict[str, object]) -> Protocol[Record]:
    # A clock that is behind must not make time run backwards: versions are found by it.
    now = yield Now()
    # Whole microseconds, which dates of Python have: a version is found by the time it shows.
    return Record("", max(now // 1000 * 1000, head.snapshot.time + 1000), about)


def new_id(base: Head) -> Protocol[str]:
    """Return an id for a commit to a head, which says after which version to look for it."""
    return f"{base.snapshot.version}-{(yield NewId())}"


def find_commit(head: Head, commit: str, after: int) -> Protocol[bool]:
    """Tell whether a commit is in the history of a head, after a version."""
    after = max(after, int(match[1]) if (match := _ID.fullmatch(commit)) else 0)
    if head.snapshot.version <= after:
        return False
    documents = yield from read_documents(head, after + 1)
    return any(document["commit"] == commit for document in documents)


def _search(head: Head, commit: str, after: int) -> Protocol[tuple[Head, bool]]:
    """Tell whether a commit is in the history of a head; or of a newer one, which is returned."""
    while True:
        try:
            return head, (yield from find_commit(head, commit, after))
        except SourceNotFoundError:
            # A vacuum may have taken what an older head has of the log: the newest one decides.
            current = yield from _look(head)
            if current is None:
                raise
            head = current


def _commit(
    base: Head, change: Change, commit: str, limits: Limits, is_repeat: bool
) -> Protocol[Head]:
    head, after, attempts = base, base.snapshot.version, 0
    while True:
        # A request of an earlier attempt may still arrive, until the head is replaced that this
        # one has read: the first lost race shows it, the next one that it is gone.
        is_open = is_repeat and attempts < 2
        try:
            head, new_record = yield from _prepare(head, base, change, commit, after, is_repeat)
            after = head.snapshot.version
            # What it names is stored now. Only what is quick is done while others wait in line.
            if new_record is not None and (yield WaitTurn()):
                current = yield from _look(head)
                if current is not None:
                    head, new_record = yield from _prepare(
                        current, base, change, commit, after, is_repeat
                    )
            if new_record is None:
                return head
            try:
                result = yield from head.commit(new_record, limits)
            except SourceNotFoundError:
                # A vacuum may have taken tables of an older head.
                current = yield from _look(head)
                if current is None:
                    raise
                head = current
                continue
        except (UnreachableError, RefusedError) as error:
            raise _fail(f"nothing was changed: {error}", commit, is_open) from error
        current, is_done = yield from _replace(head, result, commit, is_open)
        yield EndTurn(current.snapshot.version - base.snapshot.version - is_done)
        if is_done:
            return current
        # What was looked through is not again: who is late would have ever more to read.
        head, after, attempts = current, current.snapshot.version, attempts + 1
        if not (yield BackOff(attempts, is_lost_race=True)):
            text = f"{attempts} other commits were quicker; nothing was changed"
            raise _fail(text, commit, is_repeat and attempts < 2)


def _fail(text: str, commit: str, is_open: bool) -> VirtualZarrError:
    """Return the error of a commit that this attempt has not done; an earlier one may have."""
    if not is_open:
        return CommitFailedError(text)
    return CommitUnknownError(
        f"{text} by this attempt, but a request of an earlier one may still be done; repeat it "
        f"with commit_id={commit!r}, and it is done once",
        commit,
    )


def _prepare(
    head: Head, base: Head, change: Change, commit: str, after: int, is_repeat: bool
) -> Protocol[tuple[Head, Record | None]]:
    """Return a head and what a change is to do to it; None if the commit is in it already.

    Versions until `after` were looked through.
    """
    # An older head may refuse what another attempt was sent with to a newer one, or has done there.
    by_newest = (VirtualZarrError, LookupError) if is_repeat else _GONE
    while True:
        head, is_done = yield from _search(head, commit, after)
        if is_done:
            return head, None
        after = head.snapshot.version
        if not base.snapshot.version and head.snapshot.version:
            raise NodeExistsError("there is a dataset already")
        # A conflict that `change` finds is a true failure: no earlier request of ours can land any
        # more. The head that it was conditional on did not refuse the same change, so it was
        # another one, and has been replaced.
        try:
            return head, replace((yield from change(head)), commit=commit)
        except by_newest:
            # A vacuum may have taken what an older head names: the newest one decides.
            current = yield from _look(head)
            if current is None:
                raise
            head = current


def _replace(base: Head, result: Head, commit: str, is_open: bool) -> Protocol[tuple[Head, bool]]:
    """Replace one head by another: what is there then, and whether the commit is in it.

    A request that was not answered may still arrive, as long as the head is the one that it asks
    for. So it is sent again, with the same bytes, until the head has changed, by it or by another.
    """
    data, attempts, is_sent = result.to_bytes(), 0, False
    while True:
        refusal: RefusedError | None = None
        doubt: Exception | None = None
        try:
            tag = yield Replace(data, base.tag)
            if tag is not None:
                return replace(result, tag=tag), True
            is_sent = True
        except RefusedError as error:
            # Final, unless an earlier request was not answered, which may arrive still; but what
            # stands before a store may refuse what was done.
            refusal = None if is_sent else error
        except UnreachableError:
            is_sent = True
        try:
            current = yield from _look(base)
            if current is not None:
                current, is_done = yield from _search(current, commit, base.snapshot.version)
                if is_done:
                    return current, True
                if refusal is None:
                    _check_remembered(current, base, commit)
                    return current, False
        except (UnreachableError, RefusedError) as error:
            doubt = error
        except (SourceNotFoundError, MetadataError) as error:
            raise CommitUnknownError(
                f"whether the commit was done is not known: {error.message}", commit
            ) from error
        if refusal is not None:
            if doubt is None:
                raise _fail(f"nothing was changed: {refusal}", commit, is_open) from refusal
            raise CommitUnknownError(
                f"the store refused the commit ({refusal}), and does not say whether it was done "
                f"({doubt}); repeat it with commit_id={commit!r}, and it is done once",
                commit,
            ) from refusal
        attempts += 1
        if not (yield BackOff(attempts)):
            raise CommitUnknownError(
                "the store does not say whether the commit was done; repeat it with "
                f"commit_id={commit!r}, and it is done once",
                commit,
            )


def _check_remembered(current: Head, base: Head, commit: str) -> None:
    """Refuse to say whether a commit was done after a version whose record is forgotten."""
    if current.first > base.snapshot.version + 1:
        raise CommitUnknownError(
            f"a vacuum has forgotten the history up to version {current.first}, in which the "
            "commit may be or not: look at the data",
            commit,
        )


def _look(base: Head) -> Protocol[Head | None]:
    """Read the head; None if it is still the one that was there."""
    answer = yield Get(HEAD)
    if answer is None and base.tag is not None:
        raise SourceNotFoundError("there is no dataset any more", file=HEAD)
    # Its tag says enough of one that has not changed: reading it costs milliseconds.
    return None if answer is None or answer[1] == base.tag else Head.from_bytes(*answer)
