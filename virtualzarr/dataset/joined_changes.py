"""Several changes of a dataset as the record of one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from virtualzarr.dataset.commit import Change, record
from virtualzarr.dataset.head import Head, change_parts
from virtualzarr.dataset.limits import LIMITS
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.snapshot import Record
from virtualzarr.dataset.tables import Pack
from virtualzarr.dataset.verbs import NothingToDoError


def join_changes(changes: Sequence[Change], about: Mapping[str, Any]) -> Change:
    """Several changes, one after the other, as one commit.

    Those that would change nothing are left out, unless all are.

    Raises
    ------
    NothingToDoError
    """

    def change(head: Head) -> Protocol[Record]:
        total, state = (yield from record(head, dict(about))), head.snapshot
        count = 0
        # What one does to tables is not stored before all are done, and read by the next one.
        pack = Pack("index", state.epoch)
        for one in changes:
            try:
                part = yield from pack.serve(one(replace(head, snapshot=state)))
            except NothingToDoError:
                continue
            count += 1
            total = _join_records(total, part)
            if len(changes) == 1:
                continue
            part = yield from pack.serve(change_parts(state, part, pack, LIMITS))
            # The version stays that of the head: what follows is of the same commit.
            state = replace(state.apply(part), version=state.version, time=state.time)
        if not count:
            raise NothingToDoError("there is nothing to change")
        return total

    return change


def apply_changes(head: Head, changes: Sequence[Change]) -> Protocol[Head]:
    """Return a head as changes would leave it, of the same version: no commit has made it yet.

    Where they change tables these are put in the store, to be read there. Those of the commit are
    others.
    """
    state, pack = head.snapshot, Pack("index", head.snapshot.epoch)
    try:
        joined = yield from join_changes(changes, {})(head)
    except NothingToDoError:
        return head
    state = state.apply((yield from change_parts(state, joined, pack, LIMITS)))
    if puts := pack.puts():
        yield puts
    then = head.snapshot
    return replace(head, snapshot=replace(state, version=then.version, time=then.time), _data=None)


def _join_records(first: Record, second: Record) -> Record:
    """Return the record of one change after another, with the time and words of the first."""
    keys = {entry.key for entry in first.added}
    splices = {
        dimension: (*first.splices.get(dimension, ()), *second.splices.get(dimension, ()))
        for dimension in dict.fromkeys([*first.splices, *second.splices])
    }
    files = {
        dimension: [part.files[dimension] for part in (first, second) if dimension in part.files]
        for dimension in dict.fromkeys([*first.files, *second.files])
    }
    return replace(
        first,
        splices=splices,
        # What both add and remove was never there.
        added=(*(e for e in first.added if e.key not in second.removed), *second.added),
        removed=(*first.removed, *(key for key in second.removed if key not in keys)),
        files={
            dimension: parts[0] if len(parts) == 1 else np.concatenate(parts)
            for dimension, parts in files.items()
        },
        schema=second.schema or first.schema,
        tags={**first.tags, **second.tags},
        leases={**first.leases, **second.leases},
        floors={**first.floors, **second.floors},
    )
