"""Fixed arrays: the chunk index of datasets without unlimited dimensions."""

from __future__ import annotations

import numpy as np

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.byte_source import Parsing, read_exactly
from virtualzarr.formats.hdf5.indexes.columns import Chunks, Grids, NumberedChunks
from virtualzarr.formats.hdf5.indexes.elements import (
    CHECKED_BYTES,
    join_chunks,
    make_element_dtype,
    to_chunks,
)
from virtualzarr.formats.hdf5.indexes.implicit import count_chunk_bytes
from virtualzarr.formats.hdf5.layout_message import Layout
from virtualzarr.formats.hdf5.superblock import Superblock

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
    header = yield from read_exactly(layout.address, 12 + sum(sizes), "header of a fixed array")
    if header[:4] != b"FAHD" or header[4] != 0 or header[5] > 1:
        raise SourceError(f"there is no fixed array at {layout.address}")
    superblock.check(header, "fixed array", layout.address)
    filtered, width, bits = header[5] == 1, header[6], header[7]
    count, address = superblock.length(header, 8), superblock.address(header, 8 + sizes[1])
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
    data = yield from read_exactly(address, length, "data block of a fixed array")
    if data[:4] != b"FADB":
        raise SourceError(f"there is no data block of a fixed array at {address}")
    if not paged:
        superblock.check(data, "data block of a fixed array", address)
        stored = np.ndarray((count,), dtype, data, prefix)
        return NumberedChunks([(0, to_chunks(stored, superblock, count_chunk_bytes(layout)))])
    start = prefix + bitmap + _CHECKSUM
    superblock.check(data[:start], "data block of a fixed array", address)
    written = np.unpackbits(np.frombuffer(data, np.uint8, bitmap, prefix))[:pages]
    full = count // per_page
    step = per_page * width + _CHECKSUM
    # The last page is shorter, and cannot be in the same strided view as the others.
    parts = [np.ndarray((full, per_page), dtype, data, start, (step, width))]
    if count % per_page:
        parts.append(np.ndarray((1, count % per_page), dtype, data, start + full * step))
    if count * width <= CHECKED_BYTES:
        pages_at = np.ndarray((full, step), np.uint8, data, start)
        written_at = np.flatnonzero(written[:full])
        if len(written_at):
            ends = np.full(len(written_at), step)
            addresses = address + start + step * written_at
            superblock.check_rows(pages_at[written_at], ends, "page of a fixed array", addresses)
        if pages > full and written[full]:
            superblock.check(data[start + full * step :], "page of a fixed array", address)
    columns = join_chunks(parts, superblock, count_chunk_bytes(layout))
    # Pages are allocated with the block, but neither cleared nor checksummed until they are
    # written.
    for page in np.flatnonzero(written == 0).tolist():
        _clear_page(columns, page * per_page, per_page)
    return NumberedChunks([(0, columns)])


def _clear_page(part: Chunks, start: int, count: int) -> None:
    """Forget the elements of a page that was never written: what lies there is no element."""
    part.address[start : start + count] = -1
    for column in (part.size, part.mask):
        if not isinstance(column, int):
            column[start : start + count] = 0
