"""The vacuum: objects that no version names any more are deleted, and none that one may name.

A commit first takes versions out and raises the epoch (the fence). Then only objects of older
epochs are looked at: whoever was slow and has put some of those finds, before they are named, that
the head has another epoch, and puts them anew.

Source: ``specs/dataset.md``, *Vacuum*.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from virtualzarr.dataset import objects
from virtualzarr.dataset.commit import commit, record
from virtualzarr.dataset.head import Head, Node, nodes_of, read_records, read_version
from virtualzarr.dataset.operations import Delete, ListNames, Protocol
from virtualzarr.dataset.snapshot import Named, Record, Snapshot


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


def vacuum(base: Head, keep_from: int, name: str | None = None) -> Protocol[VacuumReport]:
    """Delete what only versions before one need.

    Parameters
    ----------
    base : Head
    keep_from : int
        The oldest version to keep, besides those with a tag.
    name : str, optional
        The id of the commit that is the fence.
    """

    def fence(head: Head) -> Protocol[Record]:
        now = head.snapshot
        # The version that this replaces stays: a reader may have opened it just now.
        oldest = max(now.expired, min(keep_from, now.version), 1)
        fenced = yield from record(head, {"verb": "vacuum"}, epoch=now.epoch + 1, expired=oldest)
        ended = {name: None for name, until in now.leases.items() if until < fenced.time}
        return replace(fenced, tags=ended)

    head = yield from commit(base, fence, name)
    # Someone may have committed after the fence: what is kept now is at least what was kept then,
    # or newer, as versions that have expired do not come back.
    needed = yield from mark(head)
    swept = []
    for object_name in (yield ListNames()):
        if (
            "/" in object_name
            and objects.epoch_of(object_name) < head.snapshot.epoch
            and object_name not in needed
        ):
            yield Delete(object_name)
            swept.append(object_name)
    return VacuumReport(head.snapshot.expired, tuple(swept))


def mark(head: Head) -> Protocol[set[str]]:
    """Return the names of all objects that versions which can be opened need."""
    now = head.snapshot
    names: set[str] = set()

    def keep(*items: Named | None) -> None:
        names.update(item.name for item in items if item is not None)

    def keep_state(state: Snapshot) -> None:
        keep(state.schema)
        for entry in state.entries.values():
            keep(entry.segment, *entry.data)

    oldest = max(now.expired, 1)
    keep(head.checkpoint)
    keep_state((yield from read_version(head, oldest)))
    for change in (yield from read_records(head, oldest + 1)):
        keep(change.schema)
        for entry in change.added:
            keep(entry.segment, *entry.data)
    for version in sorted({version for version in now.tags.values() if version < oldest}):
        keep_state((yield from read_version(head, version)))
    # The history stays readable where versions are not: blocks, pages and checkpoints are kept.
    nodes = list(nodes_of(head))
    while nodes:
        depth, node = nodes.pop()
        keep(node.checkpoint, node.content)
        if depth:
            (data,) = yield from objects.read([node.content])
            nodes += [(depth - 1, Node.from_json(item)) for item in objects.decode(data)]
    return names
