"""Local heaps (names of links) and global heaps (variable-length values)."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.config import config
from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.byte_source import Buffer, Gather, Parsing, read_exactly
from virtualzarr.formats.hdf5.superblock import Superblock

Ints = NDArray[np.int64]
Rows = NDArray[np.uint8]

_GLOBAL_GUESS = 4096
_SIGNATURE = b"GCOL\x01"

# Of objects of global heaps: collection and index in one number, in order; start; length.
_ObjectColumns = tuple[Ints, Ints, Ints]


def read_local(superblock: Superblock, address: int) -> Parsing[bytes]:
    """Return the data of a local heap. HDF5 file format specification, section III.D."""
    width = superblock.length_size
    length = 8 + 2 * width + superblock.address_size
    header = yield from read_exactly(address, length, "local heap")
    if header[:4] != b"HEAP" or header[4] != 0:
        raise SourceError(f"there is no local heap at {address}")
    size, data_address = superblock.length(header, 8), superblock.address(header, 8 + 2 * width)
    if size > superblock.size:
        raise SourceError(f"the local heap at {address} does not fit into the file")
    # Symbol tables of different groups may name one heap, each of which reads it.
    superblock.spend(size)
    data = yield from read_exactly(data_address, size, "data of a local heap")
    return bytes(data)


def get_text(heap: bytes, at: int) -> bytes:
    """Return a text of a local heap, which ends with a NUL."""
    end = heap.find(b"\0", at) if at < len(heap) else -1
    if end < 0:
        raise SourceError("a name lies outside its local heap")
    return heap[at:end]


class GlobalHeap:
    """The global heap: collections of objects, each read once.

    HDF5 file format specification, section III.E. What was made of attribute messages, which lead
    there, is kept here, too: `attributes`.
    """

    def __init__(self, superblock: Superblock) -> None:
        self.superblock = superblock
        self.attributes: dict[bytes, Any] = {}
        self._columns: dict[int, Ints] = {}
        self._collections: dict[int, tuple[Buffer, dict[int, tuple[int, int]]]] = {}

    def get_cached(self, address: int, index: int) -> bytes | None:
        """Return an object of a collection that was read already."""
        collection = self._collections.get(address)
        if collection is None or index not in collection[1]:
            return None
        start, stop = collection[1][index]
        return bytes(collection[0][start:stop])

    def get(self, address: int, index: int) -> Parsing[bytes]:
        """Return an object.

        Raises `SourceError` if there is none.
        """
        if address not in self._collections:
            self._collections[address] = yield from self._read_collection(address)
        data, places = self._collections[address]
        if index not in places:
            raise SourceError(f"the global heap at {address} has no object {index}")
        start, stop = places[index]
        return bytes(data[start:stop])

    def get_all(
        self,
        addresses: NDArray[np.uint64],
        indexes: NDArray[np.uint32],
        lengths: Ints | None = None,
    ) -> Parsing[list[bytes]]:
        """Return many objects, or their first bytes, of which the collections are read together.

        Raises `SourceError` if there are no such objects.

        Parameters
        ----------
        addresses, indexes : array
            Of the collections, and of the objects in them.
        lengths : array, optional
            Of what is wanted; by default all.
        """
        if not len(addresses):
            return []
        if int(addresses.max()) >= self.superblock.size:
            raise SourceError(f"there is no global heap at {addresses.max()}")
        collections, collection = np.unique(addresses.astype(np.int64), return_inverse=True)
        data, bounds = yield from self._fetch_collections(collections)
        buffer = data.tobytes()
        keys, start, size = self._list_objects(collections.tolist(), buffer, data, bounds)
        # Collection and object (16 bits, section III.E) in one number: one binary search finds all
        # objects, where a dictionary would need a Python step for each element.
        requested = collection.astype(np.int64) << 32 | indexes
        row = np.minimum(np.searchsorted(keys, requested), max(len(keys) - 1, 0))
        bad = np.flatnonzero(keys[row] != requested) if len(keys) else np.zeros(1, np.int64)
        if len(bad):
            raise SourceError(
                f"the global heap at {addresses[bad[0]]} has no object {indexes[bad[0]]}"
            )
        # The library writes objects at least as long as the sequence; a longer one would read its
        # neighbour.
        lengths = size[row] if lengths is None else lengths
        if (lengths > size[row]).any():
            raise SourceError("a sequence is longer than what the global heap holds of it")
        first = start[row]
        return [
            buffer[a:b] for a, b in zip(first.tolist(), (first + lengths).tolist(), strict=True)
        ]

    @property
    def _head(self) -> int:
        """Bytes of the head of an object or a collection: a multiple of 8, as of objects."""
        return -(-(8 + self.superblock.length_size) // 8) * 8

    def _fetch_collections(self, addresses: Ints) -> Parsing[tuple[Rows, Ints]]:
        """Return the bytes of collections, and where each starts and ends in them."""
        rows: Rows = yield Gather(addresses, _GLOBAL_GUESS)
        wrong = (rows[:, :5] != np.frombuffer(_SIGNATURE, np.uint8)).any(axis=1)
        if wrong.any():
            raise SourceError(f"there is no global heap at {addresses[wrong][0]}")
        size = _gather_numbers(rows.reshape(-1), np.arange(len(rows)) * _GLOBAL_GUESS + 8,
                        self.superblock.length_size)  # fmt: skip
        if (size < self._head).any() or (size > self.superblock.size - addresses).any():
            raise SourceError("a global heap does not fit into the file")
        # Collections do not overlap.
        if int(size.sum()) > self.superblock.size:
            raise SourceError("global heaps overlap")
        if self.superblock.recorder is not None:
            looked_at = np.where(size <= _GLOBAL_GUESS, size, 8 + self.superblock.length_size)
            stops = addresses + _GLOBAL_GUESS
            self.superblock.recorder.ignore_rows(addresses + looked_at, stops)
            self.superblock.recorder.require_size(int(size.sum()))
        start = np.arange(len(rows)) * _GLOBAL_GUESS
        long = np.flatnonzero(size > _GLOBAL_GUESS)
        if not len(long):
            return rows.reshape(-1), np.stack([start, start + size])
        parts: list[Buffer] = yield list(
            zip(addresses[long].tolist(), size[long].tolist(), strict=True)
        )
        start[long] = rows.size + np.cumsum(size[long]) - size[long]
        if any(len(part) < n for part, n in zip(parts, size[long].tolist(), strict=True)):
            raise SourceError("the file ends inside a global heap")
        # One buffer for all collections, long ones behind those that the first read took whole:
        # objects are then sliced by offsets alone, whichever read brought them.
        joined = np.concatenate([rows.reshape(-1), *(np.frombuffer(p, np.uint8) for p in parts)])
        return joined, np.stack([start, start + size])

    def _read_collection(self, address: int) -> Parsing[Any]:
        width = self.superblock.length_size
        data: Buffer = yield address, _GLOBAL_GUESS
        if data[:5] != _SIGNATURE or len(data) < 8 + width:
            raise SourceError(f"there is no global heap at {address}")
        size = self.superblock.length(data, 8)
        if size > self.superblock.size:
            raise SourceError(f"the global heap at {address} does not fit into the file")
        if self.superblock.recorder is not None:
            read = size if size <= len(data) else 8 + width
            self.superblock.recorder.ignore(address + read, address + _GLOBAL_GUESS)
        if size > len(data):
            data = yield from read_exactly(address, size, "global heap")
        indexes, starts, sizes = self._list_collection(data, 0, size)
        pairs = [(start, start + length) for start, length in zip(starts, sizes, strict=True)]
        return data, dict(zip(indexes, pairs, strict=True))

    def _list_collection(
        self, data: Buffer, start: int, end: int
    ) -> tuple[list[int], list[int], list[int]]:
        """List the objects of a collection: index, start and length of each."""
        unpack = struct.Struct({2: "<H6xH", 4: "<H6xI", 8: "<H6xQ"}[self.superblock.length_size])
        read, head = unpack.unpack_from, self._head
        indexes: list[int] = []
        starts: list[int] = []
        sizes: list[int] = []
        at = start + head
        while at + head <= end:
            index, length = read(data, at)
            if not index:  # what follows is free
                if length < head:
                    raise SourceError("the free space of a global heap is less than its head")
                break
            at += head
            if length > end - at:
                raise SourceError("an object reaches over the end of its global heap")
            indexes.append(index)
            starts.append(at)
            sizes.append(length)
            at += length + 7 & ~7
        return indexes, starts, sizes

    def _list_objects(
        self, addresses: list[int], buffer: bytes, data: Rows, bounds: Ints
    ) -> _ObjectColumns:
        """List the objects of collections, in order."""
        if bounds.shape[1] >= config.tuning.hdf5_vectorized_heaps:
            columns = _list_side_by_side(data, bounds, self._head, self.superblock.length_size)
        else:
            columns = []
            for number, (address, (start, end)) in enumerate(
                zip(addresses, bounds.T.tolist(), strict=True)
            ):
                if address not in self._columns:  # datasets share collections
                    chain = np.array(self._list_collection(buffer, start, end), np.int64)
                    self._columns[address] = chain - np.array([[0], [start], [0]])
                index, at, size = self._columns[address]
                columns.append((number << 32 | index, at + start, size))
        keys, at, size = (np.concatenate(column) for column in zip(*columns, strict=True))
        order = np.argsort(keys, kind="stable")
        return keys[order], at[order], size[order]


def _list_side_by_side(data: Rows, bounds: Ints, head: int, width: int) -> list[_ObjectColumns]:
    """List the objects of many collections, the first of all, the second of all, and so on."""
    number = np.arange(bounds.shape[1])
    at, end = bounds[0] + head, bounds[1]
    columns = []
    while len(number):
        inside = at + head <= end
        # Step k looks at object k of every collection: as many numpy steps as the fullest
        # collection has objects, instead of a Python step for each object of each.
        number, at, end = number[inside], at[inside], end[inside]
        index = _gather_numbers(data, at, 2)
        used = index > 0  # what follows is free
        number, at, end, index = number[used], at[used], end[used], index[used]
        size = _gather_numbers(data, at + 8, width)
        at = at + head
        if (size < 0).any() or (size > end - at).any():
            raise SourceError("an object reaches over the end of its global heap")
        columns.append((number << 32 | index, at, size))
        # Objects are padded to multiples of 8 bytes; their sizes do not count that.
        at = at + (size + 7 & ~7)
    return columns


def _gather_numbers(data: Rows, at: Ints, width: int) -> Ints:
    """Return little-endian numbers at many places."""
    # A view with a number at every byte, aligned or not: indexing it gathers without copying rows.
    every = np.ndarray((len(data) - width + 1,), f"<u{width}", data, strides=(1,))
    return every[at].astype(np.int64)
