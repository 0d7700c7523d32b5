"""The heaps of HDF5: local (names of links), global (variable-length values), fractal."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.btree import records
from virtualzarr.formats.hdf5.source import Buffer, Gather, Unknown, exactly
from virtualzarr.formats.hdf5.superblock import Superblock

_GLOBAL_GUESS = 4096
_SIGNATURE = b"GCOL\x01"
# So many collections are listed side by side; fewer of them one after the other.
_MANY = 64
_MAX_BLOCKS = 1 << 20
_MAX_ROWS = 64
_CHECKED = 2

# Address and length of what is to be read, and where in it an object starts and how long it is.
_Place = tuple[int, int, int, int]

# Of objects of global heaps: collection and index in one number, in order; start; length.
_Listed = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def local(superblock: Superblock, address: int) -> Generator[Any, Any, bytes]:
    """Return the data of a local heap.

    HDF5 file format specification, section III.D.

    Raises
    ------
    SourceError
    """
    width = superblock.length_size
    length = 8 + 2 * width + superblock.address_size
    header = yield from exactly(address, length, "local heap")
    if header[:4] != b"HEAP" or header[4] != 0:
        raise SourceError(f"there is no local heap at {address}")
    size, place = superblock.length(header, 8), superblock.address(header, 8 + 2 * width)
    if size > superblock.size:
        raise SourceError(f"the local heap at {address} does not fit into the file")
    superblock.spend(size)
    data = yield from exactly(place, size, "data of a local heap")
    return bytes(data)


def text(heap: bytes, at: int) -> bytes:
    """Return a text of a local heap, which ends with a NUL.

    Raises
    ------
    SourceError
    """
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
        self._columns: dict[int, NDArray[np.int64]] = {}
        self._collections: dict[int, tuple[Buffer, dict[int, tuple[int, int]]]] = {}

    def known(self, address: int, index: int) -> bytes | None:
        """Return an object of a collection that was read already."""
        collection = self._collections.get(address)
        if collection is None or index not in collection[1]:
            return None
        start, stop = collection[1][index]
        return bytes(collection[0][start:stop])

    def get(self, address: int, index: int) -> Generator[Any, Any, bytes]:
        """Return an object.

        Raises
        ------
        SourceError
            If there is none.
        """
        if address not in self._collections:
            self._collections[address] = yield from self._read(address)
        data, places = self._collections[address]
        if index not in places:
            raise SourceError(f"the global heap at {address} has no object {index}")
        start, stop = places[index]
        return bytes(data[start:stop])

    def get_all(
        self,
        addresses: NDArray[np.uint64],
        indexes: NDArray[np.uint32],
        lengths: NDArray[np.int64] | None = None,
    ) -> Generator[Any, Any, list[bytes]]:
        """Return many objects, or their first bytes, of which the collections are read together.

        Parameters
        ----------
        addresses, indexes : array
            Of the collections, and of the objects in them.
        lengths : array, optional
            Of what is wanted; by default all.

        Raises
        ------
        SourceError
            If there are no such objects.
        """
        if not len(addresses):
            return []
        if int(addresses.max()) >= self.superblock.size:
            raise SourceError(f"there is no global heap at {addresses.max()}")
        known, which = np.unique(addresses.astype(np.int64), return_inverse=True)
        data, bounds = yield from self._collections_at(known)
        whole = data.tobytes()
        keys, start, size = self._listed(known.tolist(), whole, data, bounds)
        wanted = which.astype(np.int64) << 32 | indexes
        place = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        bad = np.flatnonzero(keys[place] != wanted) if len(keys) else np.zeros(1, np.int64)
        if len(bad):
            raise SourceError(
                f"the global heap at {addresses[bad[0]]} has no object {indexes[bad[0]]}"
            )
        lengths = size[place] if lengths is None else lengths
        if (lengths > size[place]).any():
            raise SourceError("a sequence is longer than what the global heap holds of it")
        first = start[place]
        return [whole[a:b] for a, b in zip(first.tolist(), (first + lengths).tolist(), strict=True)]

    @property
    def _head(self) -> int:
        """Bytes of the head of an object or a collection: a multiple of 8, as of objects."""
        return -(-(8 + self.superblock.length_size) // 8) * 8

    def _collections_at(
        self, addresses: NDArray[np.int64]
    ) -> Generator[Any, Any, tuple[NDArray[np.uint8], NDArray[np.int64]]]:
        """Return the bytes of collections, and where each starts and ends in them."""
        rows: NDArray[np.uint8] = yield Gather(addresses, _GLOBAL_GUESS)
        wrong = (rows[:, :5] != np.frombuffer(_SIGNATURE, np.uint8)).any(axis=1)
        if wrong.any():
            raise SourceError(f"there is no global heap at {addresses[wrong][0]}")
        size = _numbers(rows.reshape(-1), np.arange(len(rows)) * _GLOBAL_GUESS + 8,
                        self.superblock.length_size)  # fmt: skip
        if (size < self._head).any() or (size > self.superblock.size - addresses).any():
            raise SourceError("a global heap does not fit into the file")
        # Collections do not overlap.
        if int(size.sum()) > self.superblock.size:
            raise SourceError("global heaps overlap")
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
        whole = np.concatenate([rows.reshape(-1), *(np.frombuffer(p, np.uint8) for p in parts)])
        return whole, np.stack([start, start + size])

    def _read(self, address: int) -> Generator[Any, Any, Any]:
        width = self.superblock.length_size
        data: Buffer = yield address, _GLOBAL_GUESS
        if data[:5] != _SIGNATURE or len(data) < 8 + width:
            raise SourceError(f"there is no global heap at {address}")
        size = self.superblock.length(data, 8)
        if size > self.superblock.size:
            raise SourceError(f"the global heap at {address} does not fit into the file")
        if size > len(data):
            data = yield from exactly(address, size, "global heap")
        indexes, starts, sizes = self._chain(data, 0, size)
        pairs = [(start, start + length) for start, length in zip(starts, sizes, strict=True)]
        return data, dict(zip(indexes, pairs, strict=True))

    def _chain(self, data: Buffer, start: int, end: int) -> tuple[list[int], list[int], list[int]]:
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
                break
            at += head
            if length > end - at:
                raise SourceError("an object reaches over the end of its global heap")
            indexes.append(index)
            starts.append(at)
            sizes.append(length)
            at += length + 7 & ~7
        return indexes, starts, sizes

    def _listed(
        self,
        addresses: list[int],
        whole: bytes,
        data: NDArray[np.uint8],
        bounds: NDArray[np.int64],
    ) -> _Listed:
        """List the objects of collections, in order."""
        if bounds.shape[1] >= _MANY:
            found = _side_by_side(data, bounds, self._head, self.superblock.length_size)
        else:
            found = []
            for number, (address, (start, end)) in enumerate(
                zip(addresses, bounds.T.tolist(), strict=True)
            ):
                if address not in self._columns:  # datasets share collections
                    chain = np.array(self._chain(whole, start, end), np.int64)
                    self._columns[address] = chain - np.array([[0], [start], [0]])
                index, at, size = self._columns[address]
                found.append((number << 32 | index, at + start, size))
        keys, at, size = (np.concatenate(column) for column in zip(*found, strict=True))
        order = np.argsort(keys, kind="stable")
        return keys[order], at[order], size[order]


def _side_by_side(
    data: NDArray[np.uint8], bounds: NDArray[np.int64], head: int, width: int
) -> list[_Listed]:
    """List the objects of many collections, the first of all, the second of all, and so on."""
    number = np.arange(bounds.shape[1])
    at, end = bounds[0] + head, bounds[1]
    found = []
    while len(number):
        inside = at + head <= end
        number, at, end = number[inside], at[inside], end[inside]
        index = _numbers(data, at, 2)
        used = index > 0  # what follows is free
        number, at, end, index = number[used], at[used], end[used], index[used]
        size = _numbers(data, at + 8, width)
        at = at + head
        if (size < 0).any() or (size > end - at).any():
            raise SourceError("an object reaches over the end of its global heap")
        found.append((number << 32 | index, at, size))
        at = at + (size + 7 & ~7)
    return found


def _numbers(data: NDArray[np.uint8], at: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """Return little-endian numbers at many places."""
    every = np.ndarray((len(data) - width + 1,), f"<u{width}", data, strides=(1,))
    return every[at].astype(np.int64)


class FractalHeap:
    """A fractal heap: where links, attributes and shared messages lie when they are many.

    HDF5 file format specification, section III.G.
    """

    def __init__(self, superblock: Superblock, address: int, header: Buffer) -> None:
        wide, width = superblock.address_size, superblock.length_size
        self.superblock, self.address = superblock, address
        self.id_bytes, filters, self.flags, largest = struct.unpack_from("<HHBI", header, 5)
        if filters:
            raise Unknown("a fractal heap with filters")
        self.huge_tree = superblock.address(header, 14 + width)
        at = 14 + 2 * wide + 10 * width
        (self.width,) = struct.unpack_from("<H", header, at)
        self.start = superblock.length(header, at + 2)
        self.most = superblock.length(header, at + 2 + width)
        at += 2 + 2 * width
        self.bits, _ = struct.unpack_from("<HH", header, at)
        self.root = superblock.address(header, at + 4)
        (self.rows,) = struct.unpack_from("<H", header, at + 4 + wide)
        powers = all(n and n & (n - 1) == 0 for n in (self.width, self.start, self.most))
        if not powers or self.most < self.start or self.bits > 64 or self.rows > _MAX_ROWS:
            raise SourceError(f"the fractal heap at {address} has impossible parameters")
        self.offset_bytes = -(-self.bits // 8)
        exponent = self.most.bit_length() - 1
        self.length_bytes = min(-(-exponent // 8), -(-max(largest.bit_length(), 1) // 8))
        self.prefix = 5 + wide + self.offset_bytes
        # Rows of direct blocks: all that are not longer than the longest.
        self.direct_rows = exponent - (self.start.bit_length() - 1) + 2
        self.blocks: list[tuple[int, int, int]] = []
        self._direct: set[int] = set()
        self._read: dict[int, bytes] = {}

    @staticmethod
    def read(superblock: Superblock, address: int) -> Generator[Any, Any, FractalHeap]:
        """Read the header and where the blocks are. Raises SourceError, Unknown."""
        known: dict[int, FractalHeap] = superblock.fractal_heaps
        if address not in known:
            length = 26 + 3 * superblock.address_size + 12 * superblock.length_size
            header = yield from exactly(address, length, "fractal heap")
            if header[:4] != b"FRHP" or header[4] != 0:
                raise SourceError(f"there is no fractal heap at {address}")
            heap = FractalHeap(superblock, address, header)
            superblock.check(header, "fractal heap", address)
            yield from heap._list()
            heap._direct = {block[1] for block in heap.blocks}
            known[address] = heap
        return known[address]

    def _list(self) -> Generator[Any, Any, None]:
        """List the direct blocks: offset in the heap, address, size."""
        undefined = self.superblock.undefined
        if self.root == undefined:
            return
        if not self.rows:
            self.blocks.append((0, self.root, self.start))
            return
        todo, seen = [(self.root, self.rows, 0)], 0
        while todo:
            lengths = [self.prefix + n * self.width * self.superblock.address_size + 4
                       for _, n, _ in todo]  # fmt: skip
            seen += len(todo)
            if seen > _MAX_BLOCKS or max(lengths) > self.superblock.size:
                raise SourceError(f"the fractal heap at {self.address} does not fit into the file")
            parts = yield [(a, n) for (a, _, _), n in zip(todo, lengths, strict=True)]
            wanted, todo = todo, []
            for (address, rows, offset), length, data in zip(wanted, lengths, parts, strict=True):
                if len(data) < length or data[:4] != b"FHIB":
                    raise SourceError(f"there is no block of a fractal heap at {address}")
                self.superblock.check(data, "indirect block of a fractal heap", address)
                todo += self._children(data, rows, offset)
        self.blocks.sort()

    def _children(self, data: Buffer, rows: int, offset: int) -> list[tuple[int, int, int]]:
        """Note the direct blocks that an indirect block names; return the indirect ones."""
        at, inner = self.prefix, []
        for row in range(rows):
            size = self.start << max(row - 1, 0)
            for _ in range(self.width):
                address = self.superblock.address(data, at)
                at += self.superblock.address_size
                if address != self.superblock.undefined:
                    if row < self.direct_rows:
                        self.blocks.append((offset, address, size))
                    else:
                        # An indirect block has the rows that make up its size, fewer than here.
                        below = (size // (self.start * self.width)).bit_length()
                        if not 0 < below < rows:
                            raise SourceError(f"the fractal heap at {self.address} is no heap")
                        inner.append((address, below, offset))
                offset += size
        return inner

    def get_all(self, places: list[bytes]) -> Generator[Any, Any, list[bytes]]:
        """Return the objects with these IDs.

        Raises
        ------
        SourceError, Unknown
        """
        found: list[bytes | _Place] = []
        for place in places:
            found.append((yield from self._locate(place)))
        blocks = {where[0]: where[1] for where in found if not isinstance(where, bytes)}
        wanted = [block for block in blocks.items() if block[0] not in self._read]
        if sum(length for _, length in wanted) > self.superblock.size:
            raise SourceError(f"the fractal heap at {self.address} does not fit into the file")
        parts: list[Buffer] = yield wanted
        for (address, length), data in zip(wanted, parts, strict=True):
            if len(data) < length:
                raise SourceError(f"the file ends inside a fractal heap, at {address}")
            self._keep(address, bytes(data))
        objects = []
        for where in found:
            if not isinstance(where, bytes):
                self.superblock.spend(where[3])
                address, start, stop = where[0], where[2], where[2] + where[3]
                where = self._read[address][start:stop]
            objects.append(where)
        return objects

    def _keep(self, address: int, data: bytes) -> None:
        """Keep a block, and its checksum to be checked: that is in its head, and counts as 0."""
        self._read[address] = data
        if self.flags & _CHECKED and address in self._direct:
            at = self.prefix
            whole = data[:at] + bytes(4) + data[at + 4 :] + data[at : at + 4]
            self.superblock.check(whole, "direct block of a fractal heap", address)

    def _locate(self, place: bytes) -> Generator[Any, Any, bytes | _Place]:
        """Return where an object is, or the object itself if its ID holds it."""
        if not place or place[0] >> 6:
            raise Unknown("a fractal heap with IDs of another version")
        kind = place[0] >> 4 & 3
        if kind == 0:
            return self._managed(place)
        if kind == 1:
            return (yield from self._huge(place))
        if kind != 2:
            raise Unknown("a fractal heap with IDs of another kind")
        wide = self.id_bytes > 18
        length = (place[0] & 15) + 1
        if wide:
            length = ((place[0] & 15) << 8 | place[1]) + 1
        return place[1 + wide : 1 + wide + length]

    def _managed(self, place: Buffer) -> _Place:
        split = 1 + self.offset_bytes
        offset = int.from_bytes(place[1:split], "little")
        length = int.from_bytes(place[split : split + self.length_bytes], "little")
        found = bisect_right(self.blocks, offset, key=lambda block: block[0]) - 1
        if found >= 0:
            start, address, size = self.blocks[found]
            if offset + length <= start + size:
                return address, size, offset - start, length
        raise SourceError(f"the fractal heap at {self.address} has no object at {offset}")

    def _huge(self, place: Buffer) -> Generator[Any, Any, _Place]:
        """Find an object that is too large for the blocks of the heap."""
        superblock = self.superblock
        wide, width = superblock.address_size, superblock.length_size
        if self.id_bytes >= 1 + wide + width:  # the ID itself says where it is
            length = superblock.length(place, 1 + wide)
            return superblock.address(place, 1), length, 0, length
        key = int.from_bytes(place[1 : 1 + min(width, self.id_bytes - 1)], "little")
        _, rows = yield from records(superblock, self.huge_tree, (1,))
        for row in rows:
            raw = row.tobytes()
            if superblock.length(raw, wide + width) == key:
                length = superblock.length(raw, wide)
                return superblock.address(raw, 0), length, 0, length
        raise SourceError(f"the fractal heap at {self.address} has no huge object {key}")
