"""The head of a dataset: its newest snapshot, and the way to all others.

The head has the last commits' records itself. When they are many, they become a block of the log,
beside a checkpoint: the snapshot that the block's first record is applied to. Blocks are listed in
pages, and pages in pages, so that a version is found in few reads however many there are.

Source: ``specs/dataset.md``, *Snapshots*.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from virtualzarr.dataset import objects
from virtualzarr.dataset.operations import HEAD, Get, Protocol
from virtualzarr.dataset.snapshot import FORMAT, Named, Record, Snapshot
from virtualzarr.errors import MetadataError, SourceNotFoundError, VirtualZarrError

FAN_OUT = 128
"""Records in a block, and blocks or pages in a page."""


class VersionExpiredError(VirtualZarrError):
    """A version of a dataset can no longer be opened: a vacuum took it away."""


@dataclass(frozen=True, slots=True)
class Node:
    """A block of records, or a page of nodes, in the tree of the log.

    Attributes
    ----------
    first : int
        The version that its first record makes.
    time : int
        That of its first record.
    checkpoint : Named, optional
        Of a block, the snapshot before its first record; None below version 1.
    content : Named
    """

    first: int
    time: int
    checkpoint: Named | None
    content: Named

    @classmethod
    def from_json(cls, document: Sequence[Any]) -> Node:
        """Read what `to_json` returned."""
        first, time, checkpoint, content = document
        named = None if checkpoint is None else Named.from_json(checkpoint)
        return cls(int(first), int(time), named, Named.from_json(content))

    def to_json(self) -> list[Any]:
        """Return the node as JSON."""
        named = None if self.checkpoint is None else self.checkpoint.to_json()
        return [self.first, self.time, named, self.content.to_json()]


@dataclass(frozen=True, slots=True)
class Head:
    """The newest snapshot with the log that led to it.

    Attributes
    ----------
    snapshot : Snapshot
    levels : sequence of sequence of Node
        Blocks that are in no page yet, then pages of blocks that are in no page, and so on.
    checkpoint : Named, optional
        The snapshot before the first record of the tail; None for an empty one.
    tail : sequence of Record
        The commits since the last block.
    tag : str, optional
        What the store calls this state of the head; not stored.
    """

    snapshot: Snapshot
    levels: tuple[tuple[Node, ...], ...] = ()
    checkpoint: Named | None = None
    tail: tuple[Record, ...] = ()
    tag: str | None = field(default=None, compare=False)

    @classmethod
    def from_bytes(cls, data: bytes, tag: str) -> Head:
        """Read what `to_bytes` returned.

        Raises
        ------
        MetadataError
        """
        document = objects.decode(data)
        if document.get("format") != FORMAT:
            raise MetadataError(f"datasets of format {document.get('format')!r} cannot be read")
        log = document["log"]
        checkpoint = log["checkpoint"]
        return cls(
            Snapshot.from_json(document["snapshot"]),
            tuple(tuple(map(Node.from_json, level)) for level in log["levels"]),
            None if checkpoint is None else Named.from_json(checkpoint),
            tuple(map(Record.from_json, log["tail"])),
            tag,
        )

    def to_bytes(self) -> bytes:
        """Return the object that is stored."""
        checkpoint = None if self.checkpoint is None else self.checkpoint.to_json()
        log = {
            "levels": [[node.to_json() for node in level] for level in self.levels],
            "checkpoint": checkpoint,
            "tail": [record.to_json() for record in self.tail],
        }
        return objects.encode({"format": FORMAT, "snapshot": self.snapshot.to_json(), "log": log})

    def commit(self, record: Record) -> Protocol[Head]:
        """Return the head after a commit, with what it names put in the store."""
        snapshot = self.snapshot.apply(record)
        # Objects have the epoch that their commit leaves: a fence's own must outlive its sweep.
        epoch = snapshot.epoch
        if len(self.tail) < FAN_OUT:
            return replace(self, snapshot=snapshot, tail=(*self.tail, record), tag=None)
        block = objects.encode([record.to_json() for record in self.tail])
        content = yield from objects.put("log", epoch, block)
        first = self.snapshot.version - len(self.tail) + 1
        levels = yield from _add(
            self.levels, Node(first, self.tail[0].time, self.checkpoint, content), epoch
        )
        state = objects.encode(self.snapshot.to_json())
        checkpoint = yield from objects.put("log", epoch, state)
        return Head(snapshot, levels, checkpoint, (record,))


def _add(levels: Sequence[tuple[Node, ...]], node: Node, epoch: int) -> Protocol[Any]:
    """Return the tree with one more block; lists that are full become pages."""
    result = list(levels)
    for depth in range(len(result) + 1):
        if depth == len(result):
            result.append(())
        if len(result[depth]) < FAN_OUT:
            result[depth] = (*result[depth], node)
            break
        full = result[depth]
        page = objects.encode([item.to_json() for item in full])
        result[depth] = (node,)
        content = yield from objects.put("log", epoch, page)
        node = Node(full[0].first, full[0].time, None, content)
    return tuple(result)


def read_head() -> Protocol[Head]:
    """Read the newest version.

    Raises
    ------
    SourceNotFoundError
        There is no dataset.
    """
    answer = yield Get(HEAD)
    if answer is None:
        raise SourceNotFoundError("there is no dataset", file=HEAD)
    return Head.from_bytes(*answer)


def read_version(head: Head, version: int) -> Protocol[Snapshot]:
    """Read the snapshot of a version.

    Raises
    ------
    VersionExpiredError, IndexError
    """
    snapshot = head.snapshot
    if not 1 <= version <= snapshot.version:
        raise IndexError(f"there is no version {version}; the newest is {snapshot.version}")
    if version < snapshot.expired and version not in snapshot.tags.values():
        raise VersionExpiredError(
            f"version {version} has expired; the oldest that can be opened is {snapshot.expired}"
        )
    if version == snapshot.version:
        return snapshot
    first, checkpoint, records = yield from _records_at(head, version)
    state = Snapshot(0, "", 0)
    if checkpoint is not None:
        (data,) = yield from objects.read([checkpoint])
        state = Snapshot.from_json(objects.decode(data))
    for record in records[: version - first + 1]:
        state = state.apply(record)
    return state


def _records_at(head: Head, version: int) -> Protocol[Any]:
    """Return the first version of a block, its checkpoint and its records."""
    start = head.snapshot.version - len(head.tail) + 1
    if version >= start:
        return start, head.checkpoint, head.tail
    # The highest level is the oldest part of the history; within one, nodes are in order.
    nodes = [(depth, node) for depth in range(len(head.levels) - 1, -1, -1)
             for node in head.levels[depth]]  # fmt: skip
    while True:
        depth, node = next(pair for pair in reversed(nodes) if pair[1].first <= version)
        (data,) = yield from objects.read([node.content])
        inside = objects.decode(data)
        if depth == 0:
            return node.first, node.checkpoint, tuple(map(Record.from_json, inside))
        nodes = [(depth - 1, Node.from_json(item)) for item in inside]


def read_records(head: Head, start: int, count: int | None = None) -> Protocol[list[Record]]:
    """Read the records of the versions from one on, or of some of them, oldest first."""
    collected: list[Record] = []
    version = head.snapshot.version
    if count is not None:
        version = min(version, start + count - 1)
    while version >= max(start, 1):
        first, _, records = yield from _records_at(head, version)
        collected[:0] = records[max(start - first, 0) : version - first + 1]
        version = first - 1
    return collected


def nodes_of(head: Head) -> Iterator[tuple[int, Node]]:
    """Yield depth and node of what the head's log names itself."""
    for depth, level in enumerate(head.levels):
        for node in level:
            yield depth, node
