"""The head of a dataset: its newest snapshot, and the way to all others.

The head has the last commits' records itself. When they are many, they become a block of the log,
beside a checkpoint: the snapshot that the block's first record is applied to. A table has all
blocks, so that a version is found in few reads however many there are.

Source: ``specs/dataset.md``, *Snapshots*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from virtualzarr.dataset import objects
from virtualzarr.dataset.file_names import add_files
from virtualzarr.dataset.limits import LIMITS, Limits
from virtualzarr.dataset.named import Named, Node
from virtualzarr.dataset.operations import HEAD, Get, Protocol
from virtualzarr.dataset.row_tables import change_entries, splice_rows
from virtualzarr.dataset.snapshot import FORMAT, Parts, Record, Snapshot
from virtualzarr.dataset.storage import ROOT
from virtualzarr.dataset.tables import Choice, Pack, Summaries, Table, choose_all, choose_last
from virtualzarr.errors import (
    MetadataError,
    SourceNotFoundError,
    UnsupportedError,
    VersionExpiredError,
)
from virtualzarr.stores.upgraded import is_dataset_root

T = TypeVar("T")

_LARGEST = 1 << 16
"""Bytes of a head, which every commit and every opening moves, at most."""

_LEVEL = 15
"""Of the compression of blocks, which are written once in many commits, and stay for ever."""


@dataclass(frozen=True, slots=True)
class Block:
    """Records of commits that follow each other.

    Attributes
    ----------
    first, time : int
        The version that its first record makes, and that record's time.
    checkpoint : Named, optional
        The snapshot before its first record; None below version 1.
    content : Named
        The records.
    """

    first: int
    time: int
    checkpoint: Named | None
    content: Named

    @classmethod
    def from_json(cls, document: Sequence[Any]) -> Block:
        """Read what `to_json` returned."""
        first, time, checkpoint, content = document
        named = None if checkpoint is None else Named.from_json(checkpoint)
        return cls(int(first), int(time), named, Named.from_json(content))

    def to_json(self) -> list[Any]:
        """Return the block as JSON, but for its records."""
        named = None if self.checkpoint is None else self.checkpoint.to_json()
        return [self.first, self.time, named, self.content.to_json()]


class BlockTable(Table[list[Block]]):
    """Blocks of the log; the summary has the first version, and its time."""

    def encode(self, items: list[Block]) -> bytes:
        """Return a leaf."""
        return objects.encode([block.to_json() for block in items])

    def decode(self, data: bytes) -> list[Block]:
        """Return the items of a leaf."""
        return [Block.from_json(item) for item in objects.decode(data)]

    def join(self, parts: Sequence[list[Block]]) -> list[Block]:
        """Return items of several leaves, one after the other."""
        return [block for part in parts for block in part]

    def summarize(self, items: list[Block]) -> tuple[Any, ...]:
        """Return the summary of a leaf."""
        return items[0].first, items[0].time

    def combine(self, summaries: Summaries) -> tuple[Any, ...]:
        """Return the summary of a node with such children."""
        return summaries[0]


BLOCKS = BlockTable(1, 1)
"""For reading, which depends on no limits."""


def _at(column: int, value: int) -> Choice:
    """Choose the last child that begins at a version (0) or a time (1), or before."""

    def choose(summaries: Summaries, start: int) -> tuple[Sequence[int], int]:
        return [max(sum(summary[column] <= value for summary in summaries) - 1, 0)], start

    return choose


@dataclass(frozen=True, slots=True)
class Head:
    """The newest snapshot with the log that led to it.

    Attributes
    ----------
    snapshot : Snapshot
    log : Node, optional
        The table of all blocks.
    checkpoint : Named, optional
        The snapshot before the first record of the tail; None for an empty one.
    tail : sequence of mapping
        The commits since the last block, as JSON: records, or the names of long ones.
    tag : str, optional
        What the store calls this state of the head; not stored.
    is_pending : bool
        Whether an upgrade put it there, which decides by the root's document alone.
    """

    snapshot: Snapshot
    log: Node | None = None
    checkpoint: Named | None = None
    tail: tuple[Mapping[str, Any], ...] = ()
    tag: str | None = field(default=None, compare=False)
    is_pending: bool = field(default=False, compare=False)
    _data: bytes | None = field(default=None, compare=False, repr=False)

    @classmethod
    def from_bytes(cls, data: bytes, tag: str) -> Head:
        """Read what `to_bytes` returned.

        Raises
        ------
        MetadataError
        """
        with objects.parse_errors(HEAD):
            return cls._parse(objects.decode(data), tag)

    @classmethod
    def _parse(cls, document: Mapping[str, Any], tag: str) -> Head:
        if document.get("format") != FORMAT:
            raise MetadataError(f"datasets of format {document.get('format')!r} cannot be read")
        log = document["log"]
        checkpoint, blocks = log["checkpoint"], log["blocks"]
        result = cls(
            Snapshot.from_json(document["snapshot"]),
            None if blocks is None else Node.from_json(blocks),
            None if checkpoint is None else Named.from_json(checkpoint),
            tuple(log["tail"]),
            tag,
            document.get("upgrade") is True,
        )
        if result.tail_start < 1 or result.first != log.get("first", 1):
            raise MetadataError("the log does not have a record for each version")
        return result

    def to_bytes(self) -> bytes:
        """Return the object that is stored."""
        if self._data is not None:
            return self._data
        log: dict[str, Any] = {
            "blocks": None if self.log is None else self.log.to_json(),
            "checkpoint": None if self.checkpoint is None else self.checkpoint.to_json(),
            "tail": list(self.tail),
        }
        if self.first > 1:
            log["first"] = self.first
        return objects.encode({"format": FORMAT, "snapshot": self.snapshot.to_json(), "log": log})

    @property
    def first(self) -> int:
        """The first version whose record is there: what was before may be forgotten."""
        return self.tail_start if self.log is None else int(self.log.summary[0])

    @property
    def tail_start(self) -> int:
        """The version that the first record of the tail makes."""
        return self.snapshot.version - len(self.tail) + 1

    def commit(self, record: Record, limits: Limits = LIMITS) -> Protocol[Head]:
        """Return the head after a commit, with what it names put in the store."""
        # Objects have the epoch that their commit leaves: a fence's own must outlive its sweep.
        epoch = self.snapshot.epoch if record.epoch is None else record.epoch
        index, log = Pack("index", epoch), Pack("log", epoch)
        result = yield from self._build(record, limits, index, log)
        data = result.to_bytes()
        if len(data) > limits.head_bytes:
            smallest = replace(limits, runs=1, entries=1, names=1, records=1)
            index, log = Pack("index", epoch), Pack("log", epoch)
            result = yield from self._build(record, smallest, index, log)
            data = result.to_bytes()
        if len(data) > _LARGEST:
            raise UnsupportedError("a head of a dataset has no room for so many tags or dimensions")
        if puts := [*index.puts(), *log.puts()]:
            yield puts
        return replace(result, _data=data)

    def _build(self, record: Record, limits: Limits, index: Pack, log: Pack) -> Protocol[Head]:
        record = yield from change_parts(self.snapshot, record, index, limits)
        snapshot = self.snapshot.apply(record)
        document = record.to_json()
        raw = objects.dump(document)
        if len(raw) > limits.record_bytes:
            named, raw = (yield from log.add(objects.compress(raw))), b""
            # What history shows of it is there even when its version has expired.
            about = {
                name: value
                for name, value in record.about.items()
                if len(objects.dump(value)) <= limits.record_bytes // 4
            }
            document = {
                "commit": record.commit,
                "time": record.time,
                "about": about,
                "record": named.to_json(),
            }
        if record.history is not None and record.history >= self.snapshot.version:
            # All that is left of the past is the version that this one follows.
            checkpoint = yield from index.add(objects.encode(self.snapshot.to_json()))
            return Head(snapshot, None, checkpoint, (document,))
        table = BlockTable(limits.leaf_blocks, limits.fan_out)
        if record.history is not None and self.log is not None:
            root = yield from _forget(self.log, table, record.history, self.tail_start, index)
            self = replace(self, log=root)
        if len(self.tail) < limits.records:
            return replace(
                self, snapshot=snapshot, tail=(*self.tail, document), tag=None, _data=None
            )
        # What history is made of stays when versions expire; nodes and snapshots go with those.
        content = yield from log.add(objects.encode(list(self.tail), _LEVEL))
        block = Block(self.tail_start, int(self.tail[0]["time"]), self.checkpoint, content)
        root = yield from table.edit(
            self.log, choose_last, lambda blocks, start: [*blocks, block], index
        )
        checkpoint = yield from index.add(objects.encode(self.snapshot.to_json()))
        return Head(snapshot, root, checkpoint, (document,))


def _forget(
    root: Node, table: BlockTable, oldest: int, end: int, index: Pack
) -> Protocol[Node | None]:
    """Return the blocks without those of versions before one; they stop before `end`."""

    def drop(blocks: list[Block], start: int) -> list[Block]:
        stops = [*(block.first for block in blocks[1:]), end]
        return [block for block, stop in zip(blocks, stops, strict=True) if stop > oldest]

    return (yield from table.edit(root, choose_all, drop, index))


def change_parts(state: Snapshot, record: Record, pack: Pack, limits: Limits) -> Protocol[Record]:
    """Return a record with the parts of a snapshot whose tables it changes, as they become."""
    if record.parts is not None:
        return record
    rows, names = {}, {}
    for dimension, splices in record.splices.items():
        stored, is_new = yield from splice_rows(state.rows_of(dimension), splices, pack, limits)
        if is_new:
            rows[dimension] = stored
    entries, is_new = yield from change_entries(
        state.entries, record.added, record.removed, pack, limits
    )
    for dimension, files in record.files.items():
        stored_names, are_new = yield from add_files(state, dimension, files, pack, limits)
        if are_new:
            names[dimension] = stored_names
    parts = Parts(rows, entries if is_new else None, names)
    # What tables of names have is not written twice: a commit may bring a million.
    left = {name: items for name, items in record.files.items() if name not in names}
    return replace(record, parts=parts, files=left) if parts != Parts() else record


def read_head(known: Head | None = None) -> Protocol[Head]:
    """Read the newest version.

    Parameters
    ----------
    known : Head, optional
        One that was read before, which is returned if it is the newest still.

    Raises
    ------
    SourceNotFoundError
        There is no dataset.
    """
    answer = yield Get(HEAD)
    if answer is None:
        raise SourceNotFoundError("there is no dataset", file=HEAD)
    if known is not None and answer[1] == known.tag and not known.is_pending:
        return known
    head = Head.from_bytes(*answer)
    if head.is_pending:
        root = yield Get(ROOT)
        if root is None or not is_dataset_root(root[0]):
            raise SourceNotFoundError(
                "there is no dataset yet, as an upgrade was interrupted: repeat it", file=HEAD
            )
    return head


def walk_log(
    head: Head, walk: Callable[[Head], Protocol[T]], start: int | None = None
) -> Protocol[T]:
    """Read in the log of a head, or of the newest one, where vacuums took what that one names.

    Parameters
    ----------
    head : Head
    walk : callable
    start : int, optional
        The first version whose record is asked for.

    Raises
    ------
    VersionExpiredError
        A record was forgotten since the head was read.
    SourceNotFoundError
        The log is damaged.
    """
    first = head.first if start is None else max(start, head.first)
    while True:
        try:
            return (yield from walk(head))
        except SourceNotFoundError:
            newest = yield from read_head()
            # Not the epoch: a vacuum of the same one may have swept after a tag was taken away.
            if newest.tag == head.tag:
                raise
            if start is not None and newest.first > first:
                raise VersionExpiredError(
                    "a vacuum has forgotten history since the dataset was opened: refresh() it"
                ) from None
            head = newest


def read_version(head: Head, version: int) -> Protocol[Snapshot]:
    """Read the snapshot of a version.

    Raises
    ------
    VersionExpiredError, IndexError
    """
    snapshot = head.snapshot
    if not 1 <= version <= snapshot.version:
        raise IndexError(f"there is no version {version}; the newest is {snapshot.version}")
    if snapshot.is_expired(version):
        raise VersionExpiredError(
            f"version {version} has expired; the oldest that can be opened is {snapshot.expired}"
        )
    if version == snapshot.version:
        return snapshot
    if version == head.tail_start - 1:
        return (yield from read_checkpoint(head.checkpoint))
    first, checkpoint, documents = yield from _read_block(head, _at(0, version), version)
    state = yield from read_checkpoint(checkpoint)
    for record in (yield from _read_long(documents[: version - first + 1])):
        with objects.parse_errors("log"):
            state = state.apply(record)
    return state


def read_checkpoint(checkpoint: Named | None) -> Protocol[Snapshot]:
    """Read the snapshot before the first record of a block."""
    if checkpoint is None:
        return Snapshot(0, "", 0)
    (data,) = yield from objects.read([checkpoint])
    with objects.parse_errors(checkpoint.name):
        return Snapshot.from_json(objects.decode(data))


def _read_block(head: Head, choose: Choice, version: int) -> Protocol[Any]:
    """Return the first version of a block, its checkpoint, and its records as JSON."""
    if version >= head.tail_start:
        return head.tail_start, head.checkpoint, head.tail
    blocks, _ = yield from BLOCKS.scan(head.log, choose)
    chosen, _ = choose([(block.first, block.time) for block in blocks], 0)
    block = blocks[chosen[0]]
    (data,) = yield from objects.read([block.content])
    return block.first, block.checkpoint, objects.decode(data)


def _read_long(documents: Iterable[Mapping[str, Any]]) -> Protocol[list[Record]]:
    """Return records, those that are objects of their own read, all at once."""
    listed = list(documents)
    with objects.parse_errors("log"):
        long = [Named.from_json(item["record"]) for item in listed if "record" in item]
    blobs = iter((yield from objects.read(long)) if long else [])
    with objects.parse_errors("log"):
        return [
            Record.from_json(objects.decode(next(blobs)) if "record" in item else item)
            for item in listed
        ]


def read_records(head: Head, start: int, count: int | None = None) -> Protocol[list[Record]]:
    """Read the records of the versions from one on, or of some of them, oldest first.

    Long ones of versions that have expired have nothing but commit, time, verb, writer and message.
    Those that are forgotten are left out: the first one is that of `head.first` at least.
    """
    documents = yield from read_documents(head, start, count)
    expired = max(head.snapshot.expired - max(start, head.first) + 1, 0)
    short = [
        {name: item for name, item in document.items() if name != "record"}
        for document in documents[:expired]
    ]
    return (yield from _read_long([*short, *documents[expired:]]))


def read_documents(
    head: Head, start: int, count: int | None = None
) -> Protocol[list[Mapping[str, Any]]]:
    """Read records as they are stored, where long ones only name an object."""
    collected: list[Mapping[str, Any]] = []
    version = head.snapshot.version
    if count is not None:
        version = min(version, start + count - 1)
    start = max(start, head.first)
    while version >= start:
        first, _, documents = yield from _read_block(head, _at(0, version), version)
        collected[:0] = documents[max(start - first, 0) : version - first + 1]
        version = first - 1
    return collected


def find_version(head: Head, time: int) -> Protocol[int]:
    """Return the version that was the newest at a time; 0 if there was none.

    Of those that are forgotten, the last one is returned: it has expired as they have.
    """
    if time >= head.snapshot.time:
        return head.snapshot.version
    # Times increase with versions, so that one read of each height finds the block.
    version = head.snapshot.version if head.tail and head.tail[0]["time"] <= time else 0
    if head.log is None:
        version = head.snapshot.version
    first, checkpoint, documents = yield from _read_block(head, _at(1, time), version)
    result = int(first) - 1 + sum(int(document["time"]) <= time for document in documents)
    if result and result == head.first - 1:
        # Its record is forgotten, and what was before it.
        state = yield from read_checkpoint(checkpoint)
        result -= state.time > time
    return result
