"""Fractal heaps: storage of links, attributes and shared messages where they are many."""

from __future__ import annotations

import struct
from bisect import bisect_right

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.btree_v2 import records
from virtualzarr.formats.hdf5.byte_source import (
    Buffer,
    Parsing,
    UnknownStructureError,
    read_exactly,
)
from virtualzarr.formats.hdf5.regions import read_regions
from virtualzarr.formats.hdf5.superblock import Superblock

_MAX_BLOCKS = 1 << 20
_MAX_ROWS = 64
_CHECKED = 2

# Address and length of what is to be read, and where in it an object starts and how long it is.
_Location = tuple[int, int, int, int]


class FractalHeap:
    """A fractal heap: where links, attributes and shared messages lie when they are many.

    HDF5 file format specification, section III.G.
    """

    def __init__(self, superblock: Superblock, address: int, header: Buffer) -> None:
        wide, width = superblock.address_size, superblock.length_size
        self.superblock, self.address = superblock, address
        self.id_bytes, filters, self.flags, largest = struct.unpack_from("<HHBI", header, 5)
        if filters:
            raise UnknownStructureError("a fractal heap with filters")
        self.huge_tree = superblock.address(header, 14 + width)
        # Free space and statistics lie in between, which a reader does not need.
        at = 14 + 2 * wide + 10 * width
        (self.width,) = struct.unpack_from("<H", header, at)
        self.start = superblock.length(header, at + 2)
        self.most = superblock.length(header, at + 2 + width)
        at += 2 + 2 * width
        self.bits, _ = struct.unpack_from("<HH", header, at)
        self.root = superblock.address(header, at + 4)
        (self.rows,) = struct.unpack_from("<H", header, at + 4 + wide)
        # The doubling table (section III.G) is only defined for powers of two: anything else would
        # make the sizes of its rows meaningless.
        powers = all(n and n & (n - 1) == 0 for n in (self.width, self.start, self.most))
        if not powers or self.most < self.start or self.bits > 64 or self.rows > _MAX_ROWS:
            raise SourceError(f"the fractal heap at {address} has impossible parameters")
        self.offset_bytes = -(-self.bits // 8)
        exponent = self.most.bit_length() - 1
        # Lengths in heap IDs are as wide as the longest object needs: the smaller of the largest
        # direct block and the largest managed object.
        self.length_bytes = min(-(-exponent // 8), -(-max(largest.bit_length(), 1) // 8))
        self.prefix = 5 + wide + self.offset_bytes
        # Rows of direct blocks: all that are not longer than the longest.
        self.direct_rows = exponent - (self.start.bit_length() - 1) + 2
        self.blocks: list[tuple[int, int, int]] = []
        self._direct: set[int] = set()
        self._read: dict[int, bytes] = {}

    @staticmethod
    def read(superblock: Superblock, address: int) -> Parsing[FractalHeap]:
        """Read the header and where the blocks are. Raises SourceError, UnknownStructureError."""
        heaps: dict[int, FractalHeap] = superblock.fractal_heaps
        if address not in heaps:
            wide, width = superblock.address_size, superblock.length_size
            length = 26 + 3 * wide + 12 * width
            with superblock.region(address) as position:
                header = yield from read_exactly(address, length, "fractal heap")
                if header[:4] != b"FRHP" or header[4] != 0:
                    raise SourceError(f"there is no fractal heap at {address}")
                heap = FractalHeap(superblock, address, header)
                superblock.check(header, "fractal heap", address)
                free_at = 14 + wide + width
                if superblock.recorder is not None:  # free space and statistics
                    free_at += position
                    superblock.recorder.ignore(free_at, free_at + wide + 9 * width)
                superblock.point(position + length - 6 - wide, heap.root)
            yield from heap._list_blocks()
            heap._direct = {block[1] for block in heap.blocks}
            heaps[address] = heap
        return heaps[address]

    def _list_blocks(self) -> Parsing[None]:
        """List the direct blocks: offset in the heap, address, size."""
        undefined = self.superblock.undefined
        if self.root == undefined:
            return
        # A root without rows is a direct block itself: heaps start with one.
        if not self.rows:
            self.blocks.append((0, self.root, self.start))
            return
        pending, nblocks = [(self.root, self.rows, 0)], 0
        while pending:
            lengths = [self.prefix + n * self.width * self.superblock.address_size + 4
                       for _, n, _ in pending]  # fmt: skip
            nblocks += len(pending)
            if nblocks > _MAX_BLOCKS or max(lengths) > self.superblock.size:
                raise SourceError(f"the fractal heap at {self.address} does not fit into the file")
            blocks = [(a, n) for (a, _, _), n in zip(pending, lengths, strict=True)]
            parts = yield from read_regions(self.superblock, blocks)
            level, pending = pending, []
            for (address, rows, offset), length, data in zip(level, lengths, parts, strict=True):
                if len(data) < length or data[:4] != b"FHIB":
                    raise SourceError(f"there is no block of a fractal heap at {address}")
                with self.superblock.region(address) as position:
                    self.superblock.check(data, "indirect block of a fractal heap", address)
                    pending += self._parse_indirect(data, position, rows, offset)
        self.blocks.sort()

    def _parse_indirect(
        self, data: Buffer, position: int, rows: int, offset: int
    ) -> list[tuple[int, int, int]]:
        """Note the direct blocks that an indirect block names; return the indirect ones."""
        at, inner = self.prefix, []
        if self.superblock.recorder is not None:  # the address of the heap
            start = position + 5
            self.superblock.recorder.ignore(start, start + self.superblock.address_size)
        # Rows 0 and 1 both have blocks of the starting size; each row after doubles it.
        for row in range(rows):
            size = self.start << max(row - 1, 0)
            for _ in range(self.width):
                address = self.superblock.address(data, at)
                self.superblock.point(position + at, address)
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

    def get_all(self, heap_ids: list[bytes]) -> Parsing[tuple[list[bytes], list[int]]]:
        """Return the objects with these IDs, and where they lie in the file, -1 if nowhere."""
        locations: list[bytes | _Location] = []
        for heap_id in heap_ids:
            locations.append((yield from self._locate(heap_id)))
        blocks = {
            location[0]: location[1] for location in locations if not isinstance(location, bytes)
        }
        missing = [block for block in blocks.items() if block[0] not in self._read]
        nbytes = sum(length for _, length in missing)
        if self.superblock.recorder is not None:
            self.superblock.recorder.require_size(nbytes)
        # Before they are read: blocks of a damaged heap may claim any length.
        if nbytes > self.superblock.size:
            raise SourceError(f"the fractal heap at {self.address} does not fit into the file")
        parts = yield from read_regions(self.superblock, missing)
        for (address, length), data in zip(missing, parts, strict=True):
            if len(data) < length:
                raise SourceError(f"the file ends inside a fractal heap, at {address}")
            with self.superblock.region(address) as position:
                self._store_block(address, position, bytes(data))
        objects, positions = [], []
        for location in locations:
            position = -1
            if not isinstance(location, bytes):
                self.superblock.spend(location[3])
                address, start, stop = location[0], location[2], location[2] + location[3]
                location = self._read[address][start:stop]
                if self.superblock.recorder is not None:
                    with self.superblock.region(address) as block_at:
                        self.superblock.recorder.use(block_at + start, block_at + stop)
                        position = block_at + start
            objects.append(location)
            positions.append(position)
        return objects, positions

    def _store_block(self, address: int, position: int, data: bytes) -> None:
        """Keep a block, and its checksum to be checked: that is in its head, and counts as 0."""
        self._read[address] = data
        if self.superblock.recorder is not None:  # but for its objects, each where it is got
            self.superblock.recorder.ignore(position, position + len(data))
            self.superblock.recorder.need(position + len(data))
        if self.flags & _CHECKED and address in self._direct:
            at = self.prefix
            # Other structures end with their checksum. Moved to the end, this one can be hashed
            # with theirs.
            checked = data[:at] + bytes(4) + data[at + 4 :] + data[at : at + 4]
            self.superblock.check(checked, "direct block of a fractal heap", address, at)

    def _locate(self, heap_id: bytes) -> Parsing[bytes | _Location]:
        """Return where an object is, or the object itself if its ID holds it."""
        if not heap_id or heap_id[0] >> 6:
            raise UnknownStructureError("a fractal heap with IDs of another version")
        kind = heap_id[0] >> 4 & 3
        if kind == 0:
            return self._locate_managed(heap_id)
        if kind == 1:
            return (yield from self._locate_huge(heap_id))
        if kind != 2:
            raise UnknownStructureError("a fractal heap with IDs of another kind")
        # Tiny objects lie in the ID itself; IDs that can hold more than 16 bytes have a longer
        # length.
        wide = self.id_bytes > 18
        length = (heap_id[0] & 15) + 1
        if wide:
            length = ((heap_id[0] & 15) << 8 | heap_id[1]) + 1
        return heap_id[1 + wide : 1 + wide + length]

    def _locate_managed(self, heap_id: Buffer) -> _Location:
        split = 1 + self.offset_bytes
        offset = int.from_bytes(heap_id[1:split], "little")
        length = int.from_bytes(heap_id[split : split + self.length_bytes], "little")
        # IDs hold offsets in the heap's own linear address space, in which blocks are sorted.
        number = bisect_right(self.blocks, offset, key=lambda block: block[0]) - 1
        if number >= 0:
            start, address, size = self.blocks[number]
            if offset + length <= start + size:
                return address, size, offset - start, length
        raise SourceError(f"the fractal heap at {self.address} has no object at {offset}")

    def _locate_huge(self, heap_id: Buffer) -> Parsing[_Location]:
        """Find an object that is too large for the blocks of the heap."""
        superblock = self.superblock
        wide, width = superblock.address_size, superblock.length_size
        if superblock.recorder is not None:
            superblock.recorder.forbid("huge objects of a fractal heap")
        # Huge objects are addressed directly if that fits in an ID, else by a key of a v2 B-tree.
        if self.id_bytes >= 1 + wide + width:  # the ID itself says where it is
            length = superblock.length(heap_id, 1 + wide)
            return superblock.address(heap_id, 1), length, 0, length
        key = int.from_bytes(heap_id[1 : 1 + min(width, self.id_bytes - 1)], "little")
        _, rows = yield from records(superblock, self.huge_tree, (1,))
        for row in rows:
            raw = row.tobytes()
            if superblock.length(raw, wide + width) == key:
                length = superblock.length(raw, wide)
                return superblock.address(raw, 0), length, 0, length
        raise SourceError(f"the fractal heap at {self.address} has no huge object {key}")
