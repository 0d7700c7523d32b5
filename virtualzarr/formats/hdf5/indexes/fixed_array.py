"""Fixed arrays: the chunk index of datasets without unlimited dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.byte_source import Buffer, Parsing, read_exactly
from virtualzarr.formats.hdf5.indexes.columns import Chunks, Grids, NumberedChunks
from virtualzarr.formats.hdf5.indexes.elements import (
    CHECKED_BYTES,
    declare_elements,
    join_chunks,
    make_element_dtype,
    to_chunks,
)
from virtualzarr.formats.hdf5.indexes.implicit import count_chunk_bytes
from virtualzarr.formats.hdf5.layout_message import Layout
from virtualzarr.formats.hdf5.superblock import Superblock

if TYPE_CHECKING:
    from virtualzarr.formats.templates.recorder import Recorder

_CHECKSUM = 4
# Of a data block before its elements: signature, version, client; then the header's address.
_PREFIX = 6


def read(superblock: Superblock, layout: Layout, grids: Grids) -> Parsing[NumberedChunks]:
    """Read the array. HDF5 file format specification, section VII.C.

    Raises
    ------
    SourceError
        If a block is none or the file ends inside it.
    """
    sizes = superblock.address_size, superblock.length_size
    assert layout.address is not None
    with superblock.region(layout.address) as position:
        header = yield from read_exactly(layout.address, 12 + sum(sizes), "header of a fixed array")
        if header[:4] != b"FAHD" or header[4] != 0 or header[5] > 1:
            raise SourceError(f"there is no fixed array at {layout.address}")
        superblock.check(header, "fixed array", layout.address)
    filtered, width, bits = header[5] == 1, header[6], header[7]
    count, address = superblock.length(header, 8), superblock.address(header, 8 + sizes[1])
    superblock.point(position + 8 + sizes[1], address)
    if address == superblock.undefined:
        return NumberedChunks([])
    if bits > 40 or count * width > superblock.size:
        raise SourceError(f"a fixed array of {count} elements does not fit into the file")
    dtype = make_element_dtype(width, superblock.address_size, filtered)
    prefix = _PREFIX + superblock.address_size
    per_page = 1 << bits
    # Section VII.C: above 2**bits elements, a data block is pages with a checksum each, and a
    # bitmap of those that were ever written.
    paged = count > per_page
    pages = -(-count // per_page) if paged else 0
    bitmap = -(-pages // 8)
    length = prefix + bitmap + _CHECKSUM + count * width + _CHECKSUM * pages
    superblock.spend(length)
    with superblock.region(address) as position:
        data = yield from read_exactly(address, length, "data block of a fixed array")
        block = _Block(address, position, data, count, per_page, dtype)
        return NumberedChunks([(0, _parse_data_block(superblock, layout, block))])


@dataclass(frozen=True)
class _Block:
    """A data block: its address, where that is as declarations count, and what is in it."""

    address: int
    position: int
    data: Buffer
    count: int
    per_page: int
    dtype: np.dtype[Any]

    @property
    def bitmap(self) -> int:
        """Bytes with a bit for each page."""
        return -(-self.pages // 8)

    @property
    def pages(self) -> int:
        """Number of pages; 0 if elements are not in pages."""
        return -(-self.count // self.per_page) if self.count > self.per_page else 0


def _parse_data_block(superblock: Superblock, layout: Layout, block: _Block) -> Chunks:
    address, data, width = block.address, block.data, block.dtype.itemsize
    prefix = _PREFIX + superblock.address_size
    if data[:4] != b"FADB":
        raise SourceError(f"there is no data block of a fixed array at {address}")
    start = prefix + block.bitmap + (_CHECKSUM if block.pages else 0)
    if superblock.recorder is not None:
        _declare_block(superblock.recorder, layout, block, prefix, start)
    if not block.pages:
        superblock.check(data, "data block of a fixed array", address)
        stored = np.ndarray((block.count,), block.dtype, data, prefix)
        return to_chunks(stored, superblock, count_chunk_bytes(layout))
    superblock.check(data[:start], "data block of a fixed array", address)
    bitmap = np.frombuffer(data, np.uint8, block.bitmap, prefix)
    written = np.unpackbits(bitmap)[: block.pages]
    count, per_page = block.count, block.per_page
    full = count // per_page
    step = per_page * width + _CHECKSUM
    # The last page is shorter, and cannot be in the same strided view as the others.
    parts = [np.ndarray((full, per_page), block.dtype, data, start, (step, width))]
    if count % per_page:
        parts.append(np.ndarray((1, count % per_page), block.dtype, data, start + full * step))
    if count * width <= CHECKED_BYTES:
        pages_at = np.ndarray((full, step), np.uint8, data, start)
        written_at = np.flatnonzero(written[:full])
        if len(written_at):
            ends = np.full(len(written_at), step)
            addresses = address + start + step * written_at
            superblock.check_rows(pages_at[written_at], ends, "page of a fixed array", addresses)
        if block.pages > full and written[full]:
            last_at = address + start + full * step
            superblock.check(data[start + full * step :], "page of a fixed array", last_at)
    columns = join_chunks(parts, superblock, count_chunk_bytes(layout))
    # Pages are allocated with the block, but neither cleared nor checksummed until they are
    # written.
    for page in np.flatnonzero(written == 0).tolist():
        _clear_page(columns, page * per_page, per_page)
    return columns


def _declare_block(
    recorder: Recorder, layout: Layout, block: _Block, prefix: int, start: int
) -> None:
    """Declare what of a data block may differ in files that are alike."""
    assert layout.address is not None
    position, width, number = block.position, block.dtype.itemsize, np.arange(block.count)
    recorder.ignore(position + _PREFIX, position + prefix)  # the address of the header
    step = block.per_page * width + (_CHECKSUM if block.pages else 0)
    page = number // block.per_page
    elements_at = position + start + page * step + number % block.per_page * width
    declare_elements(recorder, layout.address, elements_at, block.dtype)
    if block.pages and block.count * width > CHECKED_BYTES:  # checksums that no one looks at
        ends = step * np.arange(1, block.pages + 1)
        ends = position + start + np.minimum(ends, block.count * width + _CHECKSUM * block.pages)
        recorder.ignore_rows(ends - _CHECKSUM, ends)


def _clear_page(part: Chunks, start: int, count: int) -> None:
    """Forget the elements of a page that was never written: what lies there is no element."""
    part.address[start : start + count] = -1
    for column in (part.size, part.mask):
        if not isinstance(column, int):
            column[start : start + count] = 0
