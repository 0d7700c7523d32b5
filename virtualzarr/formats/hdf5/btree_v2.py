"""Version 2 B-trees of any kind: their records, as rows of bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.byte_source import Gather, read_exactly
from virtualzarr.formats.hdf5.superblock import Superblock

_PREFIX, _CHECKSUM = 6, 4
_MAX_DEPTH = 32
# Bytes of nodes that are in memory at a time.
_AT_ONCE = 1 << 22
_PARAMETERS = struct.Struct("<IHH")


def records(
    superblock: Superblock, address: int, kinds: tuple[int, ...]
) -> Generator[Any, Any, tuple[int, NDArray[np.uint8]]]:
    """Return the kind of a tree's records, and the records, in no particular order.

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
    superblock : Superblock
    address : int
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
    def read(
        cls, superblock: Superblock, address: int, kinds: tuple[int, ...]
    ) -> Generator[Any, Any, Tree]:
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
        header = yield from read_exactly(address, length, "header of a v2 B-tree")
        if header[:4] != b"BTHD" or header[4] != 0 or header[5] not in kinds:
            raise SourceError(f"there is no v2 B-tree of the kind that is needed at {address}")
        superblock.check(header, "v2 B-tree", address)
        node_bytes, width, depth = _PARAMETERS.unpack_from(header, 6)
        root = superblock.address(header, 16)
        count = int.from_bytes(header[16 + wide : 18 + wide], "little")
        total = superblock.length(header, 18 + wide)
        if root == superblock.undefined:
            if count:
                raise SourceError(f"the v2 B-tree at {address} has {count} records and no root")
            total = 0
        if total and (not width or depth > _MAX_DEPTH or total * width > superblock.size):
            raise SourceError(f"the v2 B-tree at {address} has impossible parameters")
        return cls(superblock, address, header[5], node_bytes, width, depth, root, count, total)

    def records(self, take: Callable[[NDArray[np.uint8]], Any]) -> Generator[Any, Any, None]:
        """Read the records, some nodes at a time: of large trees, that is far less than all.

        Parameters
        ----------
        take : callable
            Called with some of the records, as rows of bytes, until it got all of them.

        Raises
        ------
        SourceError
            If a node is met twice or is of the wrong level.
        """
        if not self.total:
            return
        shape = _Shape(self)
        nrecords = 0
        addresses = np.array([self.root], np.uint64).astype(np.int64)
        counts = np.array([self.count], np.int64)
        for level in range(self.depth, -1, -1):
            _check(self.superblock, shape, level, addresses, counts)
            nrecords += int(counts.sum())
            if nrecords > self.total:
                break
            below = []
            step = max(_AT_ONCE // self.node_bytes, 1)
            for start in range(0, len(addresses), step):
                some = slice(start, start + step)
                nodes: NDArray[np.uint8] = yield Gather(addresses[some], self.node_bytes)
                self.superblock.spend(nodes.nbytes)
                _check_nodes(self.superblock, shape, level, nodes, addresses[some], counts[some])
                take(_rows(nodes, self.width, shape.most[level], counts[some]))
                if level:
                    below.append(_children(self.superblock, shape, level, nodes, counts[some]))
            if level:
                addresses, counts = (np.concatenate(column) for column in zip(*below, strict=True))
        if nrecords != self.total:
            raise SourceError(
                f"the v2 B-tree at {self.address} holds {nrecords} records, not {self.total}"
            )


class _Shape:
    """How many records and pointers of which size fit into a node of each level.

    Parameters
    ----------
    tree : Tree
    """

    def __init__(self, tree: Tree) -> None:
        node_bytes, width, address_size = tree.node_bytes, tree.width, tree.superblock.address_size
        self.width = width
        room = node_bytes - _PREFIX - _CHECKSUM
        self.most = [room // width]
        self.count_bytes = _number_bytes(self.most[0])
        self.pointer = [0]
        below, total_bytes = self.most[0], 0
        for _ in range(tree.depth):
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
    superblock: Superblock,
    shape: _Shape,
    level: int,
    addresses: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    # Nodes take their full length in the file, but the last may be cut off after what it holds.
    if int(addresses.min()) < 0 or int(addresses.max()) >= superblock.size:
        raise SourceError("a v2 B-tree names a node outside the file")
    if int((addresses + counts * shape.width).max()) > superblock.size:
        raise SourceError("the file ends inside a node of a v2 B-tree")
    if len(addresses) > 1 and (np.diff(np.sort(addresses)) == 0).any():
        raise SourceError("a v2 B-tree names a node twice")
    if int(counts.max()) > shape.most[level] or (level and int(counts.min()) < 1):
        raise SourceError("a node of a v2 B-tree claims an impossible number of records")


def _check_nodes(
    superblock: Superblock,
    shape: _Shape,
    level: int,
    nodes: NDArray[np.uint8],
    addresses: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    signature = np.frombuffer(b"BTIN" if level else b"BTLF", np.uint8)
    others = (nodes[:, :4] != signature).any(axis=1)
    if others.any():
        wrong = int(addresses[np.flatnonzero(others)[0]])
        raise SourceError(f"there is no node of level {level} of a v2 B-tree at {wrong}")
    ends = _PREFIX + counts * shape.width
    if level:
        ends = ends + (counts + 1) * shape.pointer[level]
    superblock.check_rows(nodes, ends + _CHECKSUM, "node of a v2 B-tree", addresses)


def _rows(
    nodes: NDArray[np.uint8], width: int, most: int, counts: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Return the records of nodes, each copied once."""
    one = np.dtype((np.void, width))
    every = np.ndarray((len(nodes), most), one, nodes, _PREFIX, (nodes.shape[1], width))
    used = every[np.arange(most) < counts[:, None]]
    return used.view(np.uint8).reshape(len(used), width)


def _children(
    superblock: Superblock,
    shape: _Shape,
    level: int,
    nodes: NDArray[np.uint8],
    counts: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the addresses of the nodes below, and their numbers of records."""
    pointer, wide = shape.pointer[level], superblock.address_size
    groups = []
    for count in np.unique(counts).tolist():
        start = _PREFIX + count * shape.width
        stop = start + (count + 1) * pointer
        groups.append(nodes[counts == count, start:stop].reshape(-1, pointer))
    pointers = np.concatenate(groups)
    numbers = np.zeros((2, len(pointers), 8), np.uint8)
    numbers[0, :, :wide] = pointers[:, :wide]
    numbers[1, :, : shape.count_bytes] = pointers[:, wide : wide + shape.count_bytes]
    addresses, child_counts = numbers.view("<i8")[..., 0]
    return addresses, child_counts
