"""Version 2 B-trees of any kind: their records, as rows of bytes."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.source import Gather, exactly
from virtualzarr.formats.hdf5.superblock import Superblock

_PREFIX, _CHECKSUM = 6, 4
_MAX_DEPTH = 32


def records(
    superblock: Superblock, address: int, kinds: tuple[int, ...]
) -> Generator[Any, Any, tuple[int, NDArray[np.uint8]]]:
    """Return the kind of a tree's records, and the records, in no particular order.

    HDF5 file format specification, section III.A.2.

    Parameters
    ----------
    superblock : Superblock
    address : int
    kinds : tuple of int
        Kinds of records that are expected.

    Raises
    ------
    SourceError
        If there is no such tree, or a node is met twice or is of the wrong level.
    """
    wide = superblock.address_size
    length = 22 + wide + superblock.length_size
    header = yield from exactly(address, length, "header of a v2 B-tree")
    if header[:4] != b"BTHD" or header[4] != 0 or header[5] not in kinds:
        raise SourceError(f"there is no v2 B-tree of the kind that is needed at {address}")
    superblock.check(header, "v2 B-tree", address)
    node_bytes = int.from_bytes(header[6:10], "little")
    width = int.from_bytes(header[10:12], "little")
    depth = int.from_bytes(header[12:14], "little")
    root = superblock.address(header, 16)
    count = int.from_bytes(header[16 + wide : 18 + wide], "little")
    total = superblock.length(header, 18 + wide)
    if not total or root == superblock.undefined:
        return header[5], np.empty((0, width), np.uint8)
    if not width or depth > _MAX_DEPTH or total * width > superblock.size:
        raise SourceError(f"the v2 B-tree at {address} has impossible parameters")
    shape = _Shape(node_bytes, width, depth, wide)
    parts = yield from _levels(superblock, shape, root, count)
    found = np.concatenate(parts)
    if len(found) != total:
        raise SourceError(f"the v2 B-tree at {address} holds {len(found)} records, not {total}")
    return header[5], found


class _Shape:
    """How many records and pointers of which size fit into a node of each level.

    Parameters
    ----------
    node_bytes, width, depth : int
        Bytes of a node and of a record, level of the root.
    address_size : int
    """

    def __init__(self, node_bytes: int, width: int, depth: int, address_size: int) -> None:
        self.node_bytes, self.width, self.depth = node_bytes, width, depth
        room = node_bytes - _PREFIX - _CHECKSUM
        self.most = [room // width]
        self.count_bytes = _number_bytes(self.most[0])
        self.pointer = [0]
        below, total_bytes = self.most[0], 0
        for _ in range(depth):
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


def _levels(
    superblock: Superblock, shape: _Shape, root: int, count: int
) -> Generator[Any, Any, list[NDArray[np.uint8]]]:
    """Read the levels, from the root down."""
    parts = []
    addresses, counts = np.array([root], np.uint64).astype(np.int64), np.array([count], np.int64)
    for level in range(shape.depth, -1, -1):
        _check(superblock, shape, level, addresses, counts)
        nodes: NDArray[np.uint8] = yield Gather(addresses, shape.node_bytes)
        signature = np.frombuffer(b"BTIN" if level else b"BTLF", np.uint8)
        if (nodes[:, :4] != signature).any():
            wrong = int(addresses[np.flatnonzero((nodes[:, :4] != signature).any(axis=1))[0]])
            raise SourceError(f"there is no node of level {level} of a v2 B-tree at {wrong}")
        most, width = shape.most[level], shape.width
        used = np.arange(most) < counts[:, None]
        rows = nodes[:, _PREFIX : _PREFIX + most * width].reshape(len(nodes), most, width)
        parts.append(rows[used])
        ends = _PREFIX + counts * width
        if level:
            ends = ends + (counts + 1) * shape.pointer[level]
        superblock.check_rows(nodes, ends + _CHECKSUM, "node of a v2 B-tree", addresses)
        if level:
            addresses, counts = _children(superblock, shape, level, nodes, counts)
    return parts


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


def _children(
    superblock: Superblock,
    shape: _Shape,
    level: int,
    nodes: NDArray[np.uint8],
    counts: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the addresses of the nodes below, and their numbers of records."""
    pointer, wide = shape.pointer[level], superblock.address_size
    found = []
    for node, count in zip(nodes, counts.tolist(), strict=True):
        start = _PREFIX + count * shape.width
        found.append(node[start : start + (count + 1) * pointer].reshape(count + 1, pointer))
    pointers = np.concatenate(found)
    numbers = np.zeros((2, len(pointers), 8), np.uint8)
    numbers[0, :, :wide] = pointers[:, :wide]
    numbers[1, :, : shape.count_bytes] = pointers[:, wide : wide + shape.count_bytes]
    addresses, below = numbers.view("<i8")[..., 0]
    return addresses, below
