"""Version 2 B-trees: their records of any type, as rows of bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from virtualzarr.config import config
from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.byte_source import Gather, Parsing, read_exactly
from virtualzarr.formats.hdf5.superblock import Superblock

Ints = NDArray[np.int64]
Rows = NDArray[np.uint8]

PREFIX, _CHECKSUM = 6, 4
_MAX_DEPTH = 32
_PARAMETERS = struct.Struct("<IHH")


def records(
    superblock: Superblock, address: int, kinds: tuple[int, ...]
) -> Parsing[tuple[int, Rows]]:
    """Return the kind of a tree's records, and the records, level by level.

    Parameters and errors are those of `Tree.read` and `Tree.records`.
    """
    tree = yield from Tree.read(superblock, address, kinds)
    parts = [np.empty((0, tree.width), np.uint8)]
    yield from tree.records(parts.append)
    return tree.kind, np.concatenate(parts)


@dataclass
class Tree:
    """What the header of a tree says.

    Parameters
    ----------
    kind : int
        Of the records.
    node_bytes, width : int
        Bytes of a node and of a record.
    depth : int
        Level of the root.
    root, count : int
        Address of the root, and the number of records in it.
    total : int
        Number of records in all.
    """

    superblock: Superblock
    address: int
    kind: int
    node_bytes: int
    width: int
    depth: int
    root: int
    count: int
    total: int

    @classmethod
    def read(cls, superblock: Superblock, address: int, kinds: tuple[int, ...]) -> Parsing[Tree]:
        """Read the header. HDF5 file format specification, section III.A.2.

        Parameters
        ----------
        superblock : Superblock
        address : int
        kinds : tuple of int
            Kinds of records that are expected.

        Raises
        ------
        SourceError
            If there is no such tree.
        """
        wide = superblock.address_size
        length = 22 + wide + superblock.length_size
        with superblock.region(address) as position:
            header = yield from read_exactly(address, length, "header of a v2 B-tree")
            if header[:4] != b"BTHD" or header[4] != 0 or header[5] not in kinds:
                raise SourceError(f"there is no v2 B-tree of the kind that is needed at {address}")
            superblock.check(header, "v2 B-tree", address)
            superblock.point(position + 16, superblock.address(header, 16))
        node_bytes, width, depth = _PARAMETERS.unpack_from(header, 6)
        root = superblock.address(header, 16)
        count = int.from_bytes(header[16 + wide : 18 + wide], "little")
        total = superblock.length(header, 18 + wide)
        if root == superblock.undefined:
            if count:
                raise SourceError(f"the v2 B-tree at {address} has {count} records and no root")
            total = 0
        if superblock.recorder is not None:
            superblock.recorder.require_size(max(total * width, node_bytes) if total else 0)
        if total and (
            not width or depth > _MAX_DEPTH or max(total * width, node_bytes) > superblock.size
        ):
            raise SourceError(f"the v2 B-tree at {address} has impossible parameters")
        return cls(superblock, address, header[5], node_bytes, width, depth, root, count, total)

    def records(self, take: Callable[[Rows], Ints | None]) -> Parsing[None]:
        """Read the records, some nodes at a time: of large trees, that is far less than all.

        Raises `SourceError` if a node is met twice or is of the wrong level, or keys are out of
        order.

        Parameters
        ----------
        take : callable
            Called with some of the records, as rows of bytes, until it got all of them. Returns
            None, or their keys, shape (records, numbers), that must lie between those of the nodes
            above: it checks itself that each is less than the next.
        """
        if not self.total:
            return
        between: Ints | None = None  # keys of the levels above, in order
        shape = _Shape(self)
        nrecords = 0
        addresses = np.array([self.root], np.uint64).astype(np.int64)
        counts = np.array([self.count], np.int64)
        for level in range(self.depth, -1, -1):
            _check(self.superblock, shape, level, addresses, counts)
            nrecords += int(counts.sum())
            # Nodes that claim more than the header promises may be a circle of levels: stop
            # reading.
            if nrecords > self.total:
                break
            below, level_keys = [], []
            # In batches: all nodes of a level of a large tree at once would be the file's index in
            # memory twice.
            step = max(config.tuning.hdf5_node_bytes // self.node_bytes, 1)
            for start in range(0, len(addresses), step):
                some = slice(start, start + step)
                # Of the root, what comes before says where it is; of the others, their parents do.
                at = self.root if level == self.depth else -1
                with self.superblock.region(at) as position:
                    # Before they are read, as blocks that reach past the end are filled up.
                    self.superblock.spend(len(addresses[some]) * self.node_bytes)
                    nodes: Rows = yield Gather(addresses[some], self.node_bytes)
                    if self.superblock.recorder is not None and position >= 0 and not level:
                        end = position + PREFIX + self.count * self.width + _CHECKSUM
                        self.superblock.recorder.ignore(end, position + self.node_bytes)
                    _check_nodes(
                        self.superblock, shape, level, nodes, addresses[some], counts[some]
                    )
                keys = take(_rows(nodes, self.width, shape.most[level], counts[some]))
                if keys is not None:
                    between = keys[:0] if between is None else between
                    _check_order(keys, counts[some], between, start)
                    level_keys.append(keys if level else keys[:0])
                if level:
                    below.append(_children(self.superblock, shape, level, nodes, counts[some]))
            if level:
                if between is not None:
                    # In order, one record of the levels above lies between each two nodes.
                    keys, ends = np.concatenate(level_keys), np.cumsum(counts)
                    between = np.insert(keys, ends[:-1], between, axis=0)
                addresses, counts = (np.concatenate(column) for column in zip(*below, strict=True))
        if nrecords != self.total:
            raise SourceError(
                f"the v2 B-tree at {self.address} holds {nrecords} records, not {self.total}"
            )


class _Shape:
    """How many records and pointers of which size fit into a node of each level."""

    def __init__(self, tree: Tree) -> None:
        node_bytes, width, address_size = tree.node_bytes, tree.width, tree.superblock.address_size
        self.width = width
        # Section III.A.2: nodes do not say how wide the counts in their pointers are. They follow
        # from the most records that a subtree can hold, level by level from the leaves.
        room = node_bytes - PREFIX - _CHECKSUM
        self.most = [room // width]
        self.count_bytes = _number_bytes(self.most[0])
        self.pointer = [0]
        below, total_bytes = self.most[0], 0
        for _ in range(tree.depth):
            # A pointer has the records in the child and, above level 1, the total below it as well.
            pointer = address_size + self.count_bytes + total_bytes
            most = (room - pointer) // (width + pointer)
            if most < 1:
                raise SourceError(f"nodes of {node_bytes} bytes are too small for a v2 B-tree")
            self.pointer.append(pointer)
            self.most.append(most)
            below = (most + 1) * below + most
            total_bytes = _number_bytes(below)
        if self.most[0] < 1 or total_bytes > 8:
            raise SourceError(f"nodes of {node_bytes} bytes cannot make this v2 B-tree")


def _number_bytes(limit: int) -> int:
    return -(-max(limit.bit_length(), 1) // 8)


def _check(
    superblock: Superblock, shape: _Shape, level: int, addresses: Ints, counts: Ints
) -> None:
    # Nodes take their full length in the file, but the last may be cut off after what it holds.
    if int(addresses.min()) < 0 or int(addresses.max()) >= superblock.size:
        raise SourceError("a v2 B-tree names a node outside the file")
    if int((addresses + counts * shape.width).max()) > superblock.size:
        raise SourceError("the file ends inside a node of a v2 B-tree")
    if len(addresses) > 1 and (np.diff(np.sort(addresses)) == 0).any():
        raise SourceError("a v2 B-tree names a node twice")
    if int(counts.max()) > shape.most[level] or (len(shape.most) > 1 and int(counts.min()) < 1):
        raise SourceError("a node of a v2 B-tree claims an impossible number of records")


def _check_nodes(
    superblock: Superblock, shape: _Shape, level: int, nodes: Rows, addresses: Ints, counts: Ints
) -> None:
    signature = np.frombuffer(b"BTIN" if level else b"BTLF", np.uint8)
    others = (nodes[:, :4] != signature).any(axis=1)
    if others.any():
        wrong = int(addresses[np.flatnonzero(others)[0]])
        raise SourceError(f"there is no node of level {level} of a v2 B-tree at {wrong}")
    ends = PREFIX + counts * shape.width
    if level:
        ends = ends + (counts + 1) * shape.pointer[level]
    superblock.check_rows(nodes, ends + _CHECKSUM, "node of a v2 B-tree", addresses)


def is_less(a: Ints, b: Ints) -> NDArray[np.bool_]:
    """Compare keys, one in each row: their first different number decides."""
    # From the last axis to the first, so that each step is vectorised over all keys.
    less: NDArray[np.bool_] = a[:, -1] < b[:, -1]
    for axis in range(a.shape[1] - 2, -1, -1):
        less = (a[:, axis] < b[:, axis]) | ((a[:, axis] == b[:, axis]) & less)
    return less


def _check_order(keys: Ints, counts: Ints, between: Ints, start: int) -> None:
    """Check that nodes, the first of which is number `start` of its level, lie between others."""
    # HDF5 looks a chunk up by binary search, from the root. Records out of order may be intact and
    # still not be met: h5py then reads the fill value.
    ends = np.cumsum(counts)
    lower, upper = between[max(start - 1, 0) :][: len(ends) - (not start)], between[start:]
    upper = upper[: len(ends)]
    first, last = keys[ends - counts][len(ends) - len(lower) :], keys[ends - 1][: len(upper)]
    if not is_less(lower, first).all() or not is_less(last, upper).all():
        raise SourceError("the keys of a B-tree are out of order")


def _rows(nodes: Rows, width: int, most: int, counts: Ints) -> Rows:
    """Return the records of nodes, each copied once."""
    # Records as opaque elements: the mask selects whole records in one step, each copied once, and
    # the nodes' tails of unused space are never touched.
    one = np.dtype((np.void, width))
    every = np.ndarray((len(nodes), most), one, nodes, PREFIX, (nodes.shape[1], width))
    used = every[np.arange(most) < counts[:, None]]
    return used.view(np.uint8).reshape(len(used), width)


def _children(
    superblock: Superblock, shape: _Shape, level: int, nodes: Rows, counts: Ints
) -> tuple[Ints, Ints]:
    """Return the addresses of the nodes below, and their numbers of records."""
    pointer, wide = shape.pointer[level], superblock.address_size
    first = np.cumsum(counts + 1) - (counts + 1)
    pointers = np.empty((int((counts + 1).sum()), pointer), np.uint8)
    # Pointers start behind the records in use, so their position differs with the count. Nodes of a
    # level have few different counts: a step for each of these, not for each node.
    for count in np.unique(counts).tolist():
        start = PREFIX + count * shape.width
        stop, some = start + (count + 1) * pointer, counts == count
        rows = nodes[some, start:stop].reshape(-1, count + 1, pointer)
        pointers[first[some][:, None] + np.arange(count + 1)] = rows
    # Numbers of odd widths (3, 5 bytes), zero-extended to 8, are viewed as integers.
    numbers = np.zeros((2, len(pointers), 8), np.uint8)
    numbers[0, :, :wide] = pointers[:, :wide]
    numbers[1, :, : shape.count_bytes] = pointers[:, wide : wide + shape.count_bytes]
    addresses, child_counts = numbers.view("<i8")[..., 0]
    return addresses, child_counts
