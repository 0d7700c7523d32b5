"""Version 1 B-trees of chunks: the index of files for libraries before HDF5 1.10."""

from __future__ import annotations

import struct
from functools import lru_cache
from operator import itemgetter, lt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.config import config
from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.btree_v2 import is_less
from virtualzarr.formats.hdf5.byte_source import Buffer, Gather, Parsing
from virtualzarr.formats.hdf5.indexes import columns
from virtualzarr.formats.hdf5.layout_message import Layout
from virtualzarr.formats.hdf5.superblock import Superblock
from virtualzarr.formats.templates.recorder import ChunkSlots

if TYPE_CHECKING:
    from virtualzarr.formats.templates.recorder import Recorder

_SIGNATURE = int.from_bytes(b"TREE", "little")
_CHUNKS = 1
# Of a node with addresses of 8 bytes, before its entries.
_HEAD = 24
_FEW = 8


@lru_cache(64)
def _dtypes(rank: int, address_size: int) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """Return the dtypes of a node's head, and of a key with the child that follows it."""
    address = np.dtype(f"<{'i' if address_size == 8 else 'u'}{address_size}")
    head = [("signature", "<u4"), ("type", "u1"), ("level", "u1"), ("count", "<u2"),
            ("left", address), ("right", address)]  # fmt: skip
    # The last of a corner's numbers belongs to the bytes of an element and is 0.
    entry = [("size", "<u4"), ("mask", "<u4"), ("corner", "<i8", (rank + 1,)), ("child", address)]
    return np.dtype(head), np.dtype(entry)


class _Level:
    """The nodes of one level, as one array of their bytes."""

    def __init__(self, nodes: NDArray[np.uint8], room: int, dtypes: Any) -> None:
        head, entry = dtypes
        length = nodes.shape[1]
        self.heads = np.ndarray((len(nodes),), head, nodes, strides=(length,))
        self.entries = np.ndarray(
            (len(nodes), room), entry, nodes, head.itemsize, (length, entry.itemsize)
        )
        # A key more than there are children: where the last of them ends.
        corner, offset = entry.fields["corner"][:2]
        rank, start = corner.shape[0], head.itemsize + offset
        self.keys = np.ndarray(
            (len(nodes), room + 1, rank), "<i8", nodes, start, (length, entry.itemsize, 8)
        )
        self.used: NDArray[np.bool_] | None = None
        if (self.heads["count"] < room).any():
            self.used = np.arange(room) < self.heads["count"][:, None]

    def column(self, name: str) -> NDArray[Any]:
        """Return a field of all entries that are in use."""
        return self.select_used(self.entries[name])

    def select_used(self, column: NDArray[Any]) -> NDArray[Any]:
        """Return what belongs to entries that are in use."""
        if self.used is None:
            return column.reshape(-1, *column.shape[2:])
        return column[self.used]

    def check_order(self, above: tuple[NDArray[np.int64], NDArray[np.int64]] | None) -> None:
        """Check that whoever looks for a chunk by its corner, as HDF5 does, finds it.

        Raises `SourceError` if keys are out of order: chunks would be missing elsewhere.

        Parameters
        ----------
        above : tuple of int64 arrays, optional
            The keys around each node in the level above.
        """
        node, count = np.arange(len(self.heads)), self.heads["count"].astype(np.int64)
        # HDF5 descends where key[k] <= corner < key[k + 1]. Every entry may be intact and yet be
        # out of reach of that search: h5py then reads the fill value, and so must no reader show
        # the chunk.
        last = self.keys[node, np.maximum(count - 1, 0)]
        wrong = ~is_less(last, self.keys[node, count])
        if above is not None:
            wrong |= is_less(self.keys[:, 0], above[0]) | ~is_less(last, above[1])
        if (wrong & (count > 0)).any():
            raise SourceError("the keys of a B-tree are out of order")


def read(
    superblock: Superblock, layout: Layout, grids: columns.Grids
) -> Parsing[columns.ChunkIndex | columns.SmallIndex | None]:
    """Read the tree level by level. HDF5 file format specification, section III.A.1.

    Raises
    ------
    SourceError
        If a node is none, is met twice or is of the wrong level.
    UnsupportedError
        If the grid is large and almost empty.
    """
    # Most trees are one leaf of a few chunks, for which setting up numpy costs more than reading.
    few = yield from _read_small(superblock, layout)
    if few is not None:
        return few
    rank, room = len(layout.chunk), 2 * superblock.chunk_k
    dtypes = _dtypes(rank, superblock.address_size)
    head, entry = dtypes
    # After the last entry there is one more key.
    length = head.itemsize + (room + 1) * entry.itemsize - superblock.address_size
    # Signed, as all columns are: an address above 2**63 becomes negative, and is refused below.
    addresses: NDArray[Any] = np.array([layout.address], dtype=np.uint64).astype(np.int64)
    expected: int | None = None
    above: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    # Nodes of large trees would take far more memory at once than the columns made of them.
    step = config.tuning.hdf5_node_count
    while True:
        _check_addresses(addresses, superblock)
        below: list[NDArray[np.int64]] = []
        around: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        builder: columns.ColumnBuilder | None = None
        for start in range(0, len(addresses), step):
            some = addresses[start : start + step]
            # Nodes are as long as the file's chunk K says, full or not, but the last may be cut
            # off.
            superblock.spend(len(some) * length)
            nodes = yield from _read_nodes(superblock, some, length)
            level = _Level(nodes, room, dtypes)
            heads = level.heads
            expected = int(heads["level"][0]) if expected is None else expected
            valid = (heads["signature"] == _SIGNATURE) & (heads["type"] == _CHUNKS)
            valid &= (heads["level"] == expected) & (heads["count"] <= room)
            ends = head.itemsize + entry.itemsize * heads["count"].astype(np.int64)
            valid &= some + ends <= superblock.size
            if not valid.all():
                wrong = int(some[np.flatnonzero(~valid)[0]])
                raise SourceError(f"there is no node of level {expected} of a B-tree at {wrong}")
            stop = start + len(some)
            if superblock.recorder is not None:
                _declare_nodes(superblock.recorder, layout, some, level, dtypes)
                _point_below(superblock, some, level, dtypes)
            level.check_order(above and (above[0][start:stop], above[1][start:stop]))
            if expected:
                below.append(level.column("child").astype(np.int64))
                around.append(
                    (level.select_used(level.keys[:, :-1]), level.select_used(level.keys[:, 1:]))
                )
            else:
                builder = builder or columns.ColumnBuilder(grids, len(addresses) * room)
                _add_leaf(builder, level, layout)
        if builder is not None:
            return builder.build()
        addresses = np.concatenate(below)
        lower, upper = (np.concatenate(part) for part in zip(*around, strict=True))
        if not is_less(lower, upper).all():
            raise SourceError("the keys of a B-tree are out of order")
        above = lower, upper
        assert expected is not None
        expected -= 1
        if not len(addresses):
            raise SourceError("an inner node of a B-tree is empty")


def _read_small(superblock: Superblock, layout: Layout) -> Parsing[columns.SmallIndex | None]:
    """Read a tree that is one node of few entries, without numpy: most trees of a file are."""
    assert layout.address is not None
    if superblock.address_size != 8:
        return None
    entry = _entry_struct(len(layout.chunk))
    with superblock.region(layout.address) as position:
        data: Buffer = yield layout.address, _HEAD + (_FEW + 1) * entry.size
    recorder = superblock.recorder
    if len(data) < _HEAD or data[:6] != b"TREE\1\0":
        if recorder is not None and len(data) >= _HEAD:
            recorder.ignore(position + 6, position + _HEAD + (_FEW + 1) * entry.size)
        return None
    count = data[6] | data[7] << 8
    end = _HEAD + (count + 1) * entry.size
    if recorder is not None and (count > _FEW or end <= len(data)):
        _declare_small(recorder, layout.address, position, count, entry.size)
    if count > _FEW or end > len(data):
        return None
    superblock.spend(end)
    # One more than there are: of the last only the key means something.
    records = list(entry.iter_unpack(data[_HEAD:end]))
    keys = [record[2:-1] for record in records]
    if not all(map(lt, keys, keys[1:])) or any(map(_last, keys[:-1])):
        raise SourceError("the keys of a B-tree are out of order")
    return columns.SmallIndex(records[:-1], layout.chunk)


_last = itemgetter(-1)


def _declare_small(recorder: Recorder, address: int, position: int, count: int, width: int) -> None:
    """Declare which bytes of a node of few entries, or of one that turned out large, may differ."""
    stop = position + _HEAD + (_FEW + 1) * width
    if count > _FEW:
        recorder.ignore(position + 8, stop)
        return
    starts = position + _HEAD + width * np.arange(count)
    recorder.add_index(address, columns_slots(starts, width))
    # Of the key after the last entry, only the corner means something.
    last = position + _HEAD + width * count
    recorder.ignore(last, last + 8)
    recorder.ignore(last + width - 8, stop)


def columns_slots(starts: NDArray[np.int64], width: int) -> ChunkSlots:
    """Return the slots of entries: length first, address last."""
    return ChunkSlots(starts + (width - 8), starts, 4)


@lru_cache(64)
def _entry_struct(rank: int) -> struct.Struct:
    return struct.Struct(f"<II{rank + 1}QQ")


def _declare_nodes(
    recorder: Recorder, layout: Layout, addresses: NDArray[np.int64], level: _Level, dtypes: Any
) -> None:
    """Declare which bytes of nodes may differ: lengths and masks of inner keys mean nothing."""
    assert layout.address is not None
    addresses = recorder.positions(addresses)
    head, entry = (dtype.itemsize for dtype in dtypes)
    counts = level.heads["count"].astype(np.int64)
    starts = addresses[:, None] + head + entry * np.arange(level.entries.shape[1])
    used = starts[np.arange(starts.shape[1]) < counts[:, None]]
    if int(level.heads["level"][0]):
        recorder.ignore_rows(used, used + 8)
    else:
        recorder.add_index(layout.address, columns_slots(used, entry))
    ends = addresses + head + entry * counts
    recorder.ignore_rows(ends, ends + 8)
    # Nodes have room for one entry more than the last one's key, but for its child.
    recorder.ignore_rows(ends + entry - 8, addresses + head + entry * (starts.shape[1] + 1) - 8)


def _read_nodes(
    superblock: Superblock, addresses: NDArray[np.int64], length: int
) -> Parsing[NDArray[np.uint8]]:
    if superblock.recorder is None:
        return (yield Gather(addresses, length))
    rows = []
    for number, address in enumerate(addresses.tolist()):
        with superblock.region(address):
            rows.append((yield Gather(addresses[number : number + 1], length)))
    return np.concatenate(rows)


def _point_below(
    superblock: Superblock, addresses: NDArray[np.int64], level: _Level, dtypes: Any
) -> None:
    """Declare where inner nodes have the addresses of those below."""
    assert superblock.recorder is not None
    if not int(level.heads["level"][0]):
        return
    head, entry = (dtype.itemsize for dtype in dtypes)
    positions = superblock.recorder.positions(addresses)
    nodes = level.entries["child"].tolist(), level.heads["count"].tolist()
    for position, children, count in zip(positions.tolist(), *nodes, strict=True):
        for number, child in enumerate(children[:count]):
            superblock.point(position + head + (number + 1) * entry - 8, child)


def _check_addresses(addresses: NDArray[np.int64], superblock: Superblock) -> None:
    if int(addresses.min()) < 0 or int(addresses.max()) >= superblock.size:
        raise SourceError("a B-tree names a node outside the file")
    if len(addresses) > 1 and (np.diff(np.sort(addresses)) == 0).any():
        raise SourceError("a B-tree names a node twice")


def _add_leaf(builder: columns.ColumnBuilder, level: _Level, layout: Layout) -> None:
    corners = level.column("corner")
    cells = columns.corners_to_cells(corners[:, : len(layout.chunk)], layout.chunk)
    if corners[:, -1].any():
        raise SourceError("the keys of a B-tree are out of order")
    address = level.column("child").astype(np.int64)
    chunks = columns.Chunks(address, level.column("size"), level.column("mask"))
    builder.add(cells, chunks, ascending=True)
