"""Fractal heaps: links, attributes and shared messages where they are many."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Generator
from typing import Any

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.btree_v2 import records
from virtualzarr.formats.hdf5.superblock import Superblock
from virtualzarr.formats.hdf5.unsupported import Buffer, Unknown, exactly

_MAX_BLOCKS = 1 << 20
_MAX_ROWS = 64
_CHECKED = 2

# Address and length of what is to be read, and where in it an object starts and how long it is.
_Place = tuple[int, int, int, int]


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
