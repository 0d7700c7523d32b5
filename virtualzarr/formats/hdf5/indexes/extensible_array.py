"""Extensible arrays: the chunk index of datasets with one unlimited dimension."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.byte_source import Buffer, Parsing, read_exactly
from virtualzarr.formats.hdf5.indexes.columns import Chunks, Grids, NumberedChunks
from virtualzarr.formats.hdf5.indexes.elements import (
    CHECKED_BYTES,
    declare_elements,
    make_element_dtype,
    to_chunks,
)
from virtualzarr.formats.hdf5.indexes.implicit import count_chunk_bytes
from virtualzarr.formats.hdf5.layout_message import Layout
from virtualzarr.formats.hdf5.regions import read_regions
from virtualzarr.formats.hdf5.superblock import Superblock

_CHECKSUM = 4
# Of every block: signature, version, client; then the header's address.
_PREFIX = 6


@dataclass
class _Array:
    """What the header says.

    Parameters
    ----------
    dtype : numpy dtype
        Of an element.
    direct : int
        Elements in the index block itself.
    least : int
        Elements of the smallest data block; a power of two.
    pointers : int
        Least number of data block addresses in a secondary block; a power of two.
    bits : int
        The array has fewer than 2 to this many elements.
    per_page : int
        Elements of a page of a data block.
    used : int
        Elements up to the last that was set.
    """

    superblock: Superblock
    address: int
    dtype: np.dtype[Any]
    direct: int
    least: int
    pointers: int
    bits: int
    per_page: int
    used: int

    @property
    def prefix(self) -> int:
        """Bytes of a secondary or data block before what it holds: its own number comes last."""
        return _PREFIX + self.superblock.address_size + -(-self.bits // 8)


@dataclass
class _DataBlock:
    """A data block to read: its address, the number of its first element, which pages it has."""

    address: int
    first: int
    count: int
    pages: NDArray[np.uint8] | None = None


def read(superblock: Superblock, layout: Layout, grids: Grids) -> Parsing[NumberedChunks]:
    """Read the array. HDF5 file format specification, section VII.D.

    Chunks are numbered with the unlimited axis first, and the others after it.

    Raises
    ------
    SourceError
        If a block is none or the file ends inside it.
    """
    # The library chooses this index for exactly one unlimited axis, and numbers that one slowest.
    axis = _find_unlimited_axis(grids)
    array, index = yield from _read_header(superblock, layout)
    if index == superblock.undefined:
        return NumberedChunks([], axis)
    size = count_chunk_bytes(layout)
    direct, blocks = yield from _read_index_block(array, index)
    runs = [(0, to_chunks(direct, superblock, size))] if len(direct) else []
    lengths = [_count_block_bytes(array, block) for block in blocks]
    superblock.spend(sum(lengths))
    requests = [(block.address, n) for block, n in zip(blocks, lengths, strict=True)]
    read = yield from read_regions(superblock, requests)
    for block, length, data in zip(blocks, lengths, read, strict=True):
        if len(data) < length or data[:4] != b"EADB":
            raise SourceError(f"there is no data block of an extensible array at {block.address}")
        with superblock.region(block.address) as position:
            runs.append((block.first, _parse_data_block(array, block, position, data, size)))
    return NumberedChunks(_drop_empty_runs(runs), axis)


def _find_unlimited_axis(grids: Grids) -> int:
    axes = [axis for axis, most in enumerate(grids.most) if most is None]
    if len(axes) != 1:
        raise SourceError("the chunk index is of a kind that this dataset cannot have")
    return axes[0]


def _read_header(superblock: Superblock, layout: Layout) -> Parsing[tuple[_Array, int]]:
    width = superblock.length_size
    address = layout.address
    assert address is not None
    length = 12 + 6 * width + superblock.address_size + _CHECKSUM
    with superblock.region(address) as position:
        data = yield from read_exactly(address, length, "header of an extensible array")
        if data[:4] != b"EAHD" or data[4] != 0 or data[5] > 1:
            raise SourceError(f"there is no extensible array at {address}")
        superblock.check(data, "extensible array", address)
        superblock.point(position + 12 + 6 * width, superblock.address(data, 12 + 6 * width))
    filtered = data[5] == 1
    element_bytes, bits, direct, least, pointers, page_bits = data[6:12]
    used = superblock.length(data, 12 + 4 * width)
    powers = all(n and n & (n - 1) == 0 for n in (least, pointers))
    # Anything else makes the arithmetic on powers of two below meaningless, or its numbers huge.
    if not powers or pointers < 2 or bits > 64 or page_bits > 40 or least.bit_length() > bits + 1:
        raise SourceError(f"the extensible array at {address} has impossible parameters")
    dtype = make_element_dtype(element_bytes, superblock.address_size, filtered)
    array = _Array(superblock, address, dtype, direct, least, pointers, bits, 1 << page_bits, used)
    return array, superblock.address(data, 12 + 6 * width)


def _read_index_block(
    array: _Array, address: int
) -> Parsing[tuple[NDArray[Any], list[_DataBlock]]]:
    """Return the elements in the index block, and the data blocks with used elements."""
    superblock, wide = array.superblock, array.superblock.address_size
    # Secondary block k holds 2**(k // 2) data blocks of least * 2**((k + 1) // 2) elements; the
    # index block holds the data blocks of the first few of them itself.
    groups = 1 + array.bits - (array.least.bit_length() - 1)
    flattened = 2 * (array.pointers.bit_length() - 1)
    naddresses = 2 * (array.pointers - 1)
    nsecondary = max(groups - flattened, 0)
    start = _PREFIX + wide
    blocks_at = start + array.direct * array.dtype.itemsize
    length = blocks_at + (naddresses + nsecondary) * wide + _CHECKSUM
    with superblock.region(address) as position:
        data = yield from read_exactly(address, length, "index block of an extensible array")
        if data[:4] != b"EAIB":
            raise SourceError(f"there is no index block of an extensible array at {address}")
        superblock.check(data, "index block of an extensible array", address)
        if superblock.recorder is not None:  # the address of the header
            superblock.recorder.ignore(position + _PREFIX, position + start)
    direct = np.ndarray((array.direct,), array.dtype, data, start)
    if superblock.recorder is not None:
        elements_at = position + start + array.dtype.itemsize * np.arange(array.direct)
        declare_elements(superblock.recorder, array.address, elements_at, array.dtype)
    first, at = array.direct, blocks_at
    blocks: list[_DataBlock] = []
    secondary: list[tuple[int, int, int, int]] = []
    for group in range(groups):
        # Blocks past the last element that was set may not exist, whatever their addresses say.
        if first >= array.used:
            break
        count, each = 1 << group // 2, array.least << (group + 1) // 2
        if group < flattened:
            for k in range(count):
                block = superblock.address(data, at)
                blocks.append(_DataBlock(block, first + k * each, each))
                superblock.point(position + at, block)
                at += wide
        else:
            secondary.append((superblock.address(data, at), first, count, each))
            at += wide
        first += count * each
    blocks += yield from _read_secondary_blocks(array, secondary)
    undefined = superblock.undefined
    used = [b for b in blocks if b.address != undefined and b.first < array.used]
    if len({block.address for block in used}) < len(used):
        raise SourceError("an extensible array names a data block twice")
    return direct[: array.used], used


def _read_secondary_blocks(
    array: _Array, secondary: list[tuple[int, int, int, int]]
) -> Parsing[list[_DataBlock]]:
    """Return the data blocks that secondary blocks hold."""
    superblock, wide = array.superblock, array.superblock.address_size
    secondary = [block for block in secondary if block[0] != superblock.undefined]
    lengths = [array.prefix + n * (_count_bitmap_bytes(array, each) + wide) + _CHECKSUM
               for _, _, n, each in secondary]  # fmt: skip
    # Before they are read: a damaged header may claim blocks of any length.
    if any(length > superblock.size for length in lengths):
        raise SourceError("a secondary block of an extensible array does not fit into the file")
    read = yield [(block[0], length) for block, length in zip(secondary, lengths, strict=True)]
    blocks = []
    for (address, first, count, each), length, data in zip(secondary, lengths, read, strict=True):
        if len(data) < length or data[:4] != b"EASB":
            raise SourceError(f"there is no secondary block of an extensible array at {address}")
        superblock.check(data, "secondary block of an extensible array", address)
        bitmap = _count_bitmap_bytes(array, each)
        pages = each // array.per_page
        bits = np.unpackbits(np.frombuffer(data, np.uint8, count * bitmap, array.prefix))
        blocks_at = array.prefix + count * bitmap
        for k in range(count):
            block = _DataBlock(
                superblock.address(data, blocks_at + k * wide), first + k * each, each
            )
            superblock.point(address + blocks_at + k * wide, block.address)
            if bitmap:
                block.pages = bits[k * pages : (k + 1) * pages]
            blocks.append(block)
    return blocks


def _count_bitmap_bytes(array: _Array, each: int) -> int:
    """Bytes of a bit for each page of a data block; none for a data block without pages."""
    return -(-(each // array.per_page) // 8) if each > array.per_page else 0


def _is_paged(array: _Array, block: _DataBlock) -> bool:
    return block.count > array.per_page


def _count_block_bytes(array: _Array, block: _DataBlock) -> int:
    """Bytes of a data block, as far as elements are used."""
    size = array.prefix + _CHECKSUM
    if not _is_paged(array, block):
        return size + block.count * array.dtype.itemsize
    used = min(block.count, array.used - block.first)
    pages = -(-used // array.per_page)
    return size + pages * (array.per_page * array.dtype.itemsize + _CHECKSUM)


def _parse_data_block(
    array: _Array, block: _DataBlock, position: int, data: Buffer, size: int
) -> Chunks:
    superblock, width = array.superblock, array.dtype.itemsize
    if superblock.recorder is not None:  # the address of the header
        superblock.recorder.ignore(position + _PREFIX, position + _PREFIX + superblock.address_size)
    if not _is_paged(array, block):
        if array.used * width <= CHECKED_BYTES:
            superblock.check(data, "data block of an extensible array", block.address)
        elif superblock.recorder is not None:
            end = position + len(data)
            superblock.recorder.ignore(end - _CHECKSUM, end)
        if superblock.recorder is not None:
            elements_at = position + array.prefix + width * np.arange(block.count)
            declare_elements(superblock.recorder, array.address, elements_at, array.dtype)
        stored = np.ndarray((block.count,), array.dtype, data, array.prefix)
        return to_chunks(stored, superblock, size)
    start = array.prefix + _CHECKSUM
    superblock.check(data[:start], "data block of an extensible array", block.address)
    step = array.per_page * width + _CHECKSUM
    pages = (len(data) - start) // step
    # A strided view that leaves the checksum of each page out: nothing is copied yet.
    if superblock.recorder is not None:
        number = np.arange(pages * array.per_page)
        page_at = position + start + number // array.per_page * step
        elements_at = page_at + number % array.per_page * width
        declare_elements(superblock.recorder, array.address, elements_at, array.dtype)
        ends = position + start + step * np.arange(1, pages + 1)
        superblock.recorder.ignore_rows(ends - _CHECKSUM, ends)
    stored = np.ndarray((pages, array.per_page), array.dtype, data, start, (step, width))
    columns = to_chunks(stored, superblock, size)
    if block.pages is not None:
        for page in np.flatnonzero(block.pages[:pages] == 0).tolist():
            unset = slice(page * array.per_page, (page + 1) * array.per_page)
            columns.address[unset] = -1
            for column in (columns.size, columns.mask):
                if not isinstance(column, int):
                    column[unset] = 0
    return columns


def _drop_empty_runs(runs: list[tuple[int, Chunks]]) -> list[tuple[int, Chunks]]:
    """Leave out blocks that hold nothing, so that sparse arrays stay small."""
    return [run for run in runs if _is_any_stored(run[1].address)]


def _is_any_stored(address: NDArray[np.int64]) -> bool:
    # Mostly the first is, which spares the others.
    return bool(len(address)) and bool(address[0] >= 0 or (address >= 0).any())
