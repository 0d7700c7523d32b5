"""The vacuum: objects that no version names any more are deleted, and none that one may name.

A commit first takes versions out and raises the epoch (the fence). Then only objects of older
epochs are looked at: whoever was slow and has put some of those finds, before they are named, that
the head has another epoch, and puts them anew.

Source: ``specs/dataset.md``, *Vacuum*.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from virtualzarr.dataset import objects
from virtualzarr.dataset.commit import Change, commit, record
from virtualzarr.dataset.dead_data import Trim, find_trimmed
from virtualzarr.dataset.entry import Entry
from virtualzarr.dataset.file_names import leave_out_gone
from virtualzarr.dataset.head import (
    BLOCKS,
    Head,
    find_version,
    read_documents,
    read_head,
    read_records,
    read_version,
)
from virtualzarr.dataset.limits import LIMITS, Limits
from virtualzarr.dataset.named import Named, Node
from virtualzarr.dataset.operations import Delete, ListNames, Protocol
from virtualzarr.dataset.row_tables import ENTRIES, has_rows, read_contents
from virtualzarr.dataset.runs import Runs
from virtualzarr.dataset.snapshot import Entries, FileNames, Parts, Record, Snapshot, StoredRows
from virtualzarr.dataset.tables import Pack, choose_all, read_children
from virtualzarr.errors import MismatchError, SourceNotFoundError

_BATCH = 1000
"""Objects that are deleted at once: as many as S3 takes in one request."""


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """What a vacuum did.

    Attributes
    ----------
    expired : int
        The oldest version that can still be opened, but for those with a tag.
    deleted : sequence of str
        Names of objects.
    """

    expired: int
    deleted: tuple[str, ...]


def vacuum(
    base: Head,
    keep: int = 1,
    period: int | None = None,
    name: str | None = None,
    limits: Limits = LIMITS,
    *,
    before: int | None = None,
    forget: bool = False,
    trim: Trim | None = None,
) -> Protocol[VacuumReport]:
    """Delete what only versions need that expire.

    Parameters
    ----------
    base : Head
    keep : int
        How many of the last versions stay, besides those with a tag.
    period : int, optional
        Nanoseconds: versions that were the newest at any time since so long ago stay, too.
    name : str, optional
        The id of the commit that is the fence.
    before : int, optional
        The newest version before the commits that were made for the vacuum: these show the same,
        and do not count.
    forget : bool
        Whether records of versions that can no longer be opened go from the history, too.
    trim : callable, optional
        Finds out which of its data an entry needs.
    """
    newest = base.snapshot.version if before is None else before

    def fence(head: Head) -> Protocol[Record]:
        now = head.snapshot
        new_record = yield from record(head, {"verb": "vacuum"})
        # The version that this replaces stays: a reader may have opened it just now.
        oldest = now.version if keep <= 1 else max(1, newest - keep + 1)
        if period is not None:
            oldest = min(oldest, (yield from find_version(head, new_record.time - period)))
        ended = [tag for tag, until in now.leases.items() if until < new_record.time]
        expired = max(now.expired, oldest, 1)
        held = [version for tag, version in now.tags.items() if tag not in ended]
        return replace(
            new_record,
            epoch=now.epoch + 1,
            expired=expired,
            tags=dict.fromkeys(ended),
            history=find_oldest_needed(expired, held) if forget else None,
        )

    with suppress(MismatchError):
        base = yield from commit(base, take_out_unused(trim), limits=limits)
    head = yield from commit(base, fence, name, limits)
    # Someone may have committed after the fence: what is kept now is at least what was kept then,
    # or newer, as versions that have expired do not come back.
    head, needed = yield from mark_newest(head)
    swept = [
        object_name
        for object_name in (yield ListNames())
        if (epoch := objects.epoch_of(object_name)) is not None
        and epoch < head.snapshot.epoch
        and object_name not in needed
    ]
    for start in range(0, len(swept), _BATCH):
        yield [Delete(object_name) for object_name in swept[start : start + _BATCH]]
    return VacuumReport(head.snapshot.expired, tuple(swept))


def find_oldest_needed(expired: int, held: Iterable[int]) -> int:
    """Return the oldest version that can be opened, given those that tags hold."""
    return min([expired, *held])


def take_out_unused(trim: Trim | None = None) -> Change:
    """Entries go none of whose rows is there any more, and data that no row of others needs.

    Raises
    ------
    MismatchError
        By the change: there are none.
    """

    def change(head: Head) -> Protocol[Record]:
        contents = yield from read_contents(head.snapshot)
        unused, trimmed = [], []
        for entry in contents.entries:
            if entry.is_static:
                continue
            if not any(_is_used(entry, name, runs) for name, runs in contents.runs.items()):
                unused.append(entry)
            elif trim is not None and (new := find_trimmed(entry, contents.runs, trim)):
                unused.append(entry)
                trimmed.append(new)
        if not unused:
            raise MismatchError("all segments are used")
        new_record = yield from record(head, {"verb": "vacuum"})
        removed = tuple(entry.key for entry in unused)
        return replace(new_record, removed=removed, added=tuple(trimmed))

    return change


def take_out_names(dimension: str, limits: Limits = LIMITS) -> Change:
    """Take out names of files none of whose rows is there any more.

    Raises
    ------
    MismatchError
        By the change: there are few.
    """

    def change(head: Head) -> Protocol[Record]:
        pack = Pack("index", head.snapshot.epoch)
        names = yield from leave_out_gone(head.snapshot, dimension, pack, limits)
        if names is None:
            raise MismatchError("most names are used")
        yield pack.puts()
        new_record = yield from record(head, {"verb": "vacuum"})
        return replace(new_record, parts=Parts(names={dimension: names}))

    return change


def _is_used(entry: Entry, dimension: str, runs: Runs) -> bool:
    """Tell whether any of the rows is there that an entry has, or has a second time."""
    layer = entry.layer
    if layer is None or layer.dimension != dimension:
        return has_rows(entry, dimension, runs)
    low, count = np.array(layer.ids, np.int64).T
    return bool(runs.count_ids(low, low + count).any())


def mark(head: Head, marker: Marker | None = None) -> Protocol[set[str]]:
    """Return the names of all objects that versions which can be opened need."""
    marker = Marker() if marker is None else marker
    now = head.snapshot
    oldest = max(now.expired, 1)
    tagged = sorted({version for version in now.tags.values() if version < oldest})
    yield from marker.keep_log(head, [*tagged, *range(oldest, now.version + 1)])
    state = yield from read_version(head, oldest)
    yield from marker.keep_state(state)
    for change in (yield from read_records(head, oldest + 1)):
        state = state.apply(change)
        marker.keep(change.schema)
        marker.keep_entries(change.added)
        if change.parts is not None:
            yield from marker.keep_parts(
                change.parts.rows.values(), change.parts.entries, change.parts.names.values()
            )
    for version in tagged:
        yield from marker.keep_state((yield from read_version(head, version)))
    return marker.names


def mark_newest(head: Head) -> Protocol[tuple[Head, set[str]]]:
    """Mark what a head needs, or a newer one; return that head, too.

    Raises
    ------
    SourceNotFoundError
        What the newest head names is not there.
    """
    while True:
        try:
            return head, (yield from mark(head))
        except SourceNotFoundError:
            # Another vacuum may have swept what has expired since: the newest head decides.
            current = yield from read_head(head)
            if current.tag == head.tag:
                raise
            head = current


class Marker:
    """Names of objects that are needed; nodes of tables are read once.

    Attributes
    ----------
    names : set of str
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._seen: set[tuple[str, int | None]] = set()

    def keep(self, *items: Named | None) -> None:
        """Keep objects."""
        self.names.update(item.name for item in items if item is not None)

    def keep_entries(self, entries: Iterable[Entry]) -> None:
        """Keep segments, and the data that they refer to."""
        for entry in entries:
            self.keep(entry.segment, *entry.data)

    def keep_state(self, state: Snapshot) -> Protocol[None]:
        """Keep what a version needs."""
        self.keep(state.schema)
        yield from self.keep_parts(state.rows.values(), state.entries, state.names.values())

    def keep_parts(
        self, rows: Iterable[StoredRows], entries: Entries | None, names: Iterable[FileNames]
    ) -> Protocol[None]:
        """Keep tables, and what entries name."""
        for stored in rows:
            yield from self._walk([stored.table])
        for item in names:
            yield from self._walk(item.tables)
        if entries is not None:
            for leaf in (yield from self._walk([entries.table])):
                self.keep_entries((yield from ENTRIES.scan(leaf, choose_all))[0])
            self.keep_entries(entries.tail)

    def keep_log(self, head: Head, versions: list[int]) -> Protocol[None]:
        """Keep all of the history, and what some versions are made from."""
        self.keep(head.checkpoint)
        self._keep_records(head.tail)
        yield from self._walk([head.log])
        blocks, _ = yield from BLOCKS.scan(head.log, choose_all)
        firsts = [block.first for block in blocks] + [head.tail_start]
        needed = set(versions)
        for block, first, stop in zip(blocks, firsts, firsts[1:], strict=False):
            self.keep(block.content)
            if first == head.first:
                self.keep(block.checkpoint)  # which has the time of the last one that is forgotten
            if not needed.isdisjoint(range(first, stop)):
                self.keep(block.checkpoint)
                documents = yield from read_documents(head, first, stop - first)
                self._keep_records(documents)

    def _keep_records(self, documents: Iterable[object]) -> None:
        for document in documents:
            if isinstance(document, dict) and "record" in document:
                self.keep(Named.from_json(document["record"]))

    def _walk(self, roots: Iterable[Node | None]) -> Protocol[list[Node]]:
        """Keep all nodes below some that were not seen yet; return the new leaves."""
        nodes, leaves = [root for root in roots if root is not None], []
        while nodes:
            new = [n for n in nodes if (n.named.name, n.named.offset) not in self._seen]
            self._seen.update((node.named.name, node.named.offset) for node in new)
            self.keep(*(node.named for node in new))
            leaves += [node for node in new if not node.height]
            inner = [node for node in new if node.height]
            nodes = (yield from read_children(inner)) if inner else []
        return leaves
