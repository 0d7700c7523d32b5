"""The superblock: base address, widths of addresses and lengths, root group."""

from __future__ import annotations

import struct
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.hdf5.byte_source import (
    Buffer,
    Parsing,
    UnknownStructureError,
    read_exactly,
)
from virtualzarr.formats.hdf5.checksum import compute_checksums, find_damaged_rows

if TYPE_CHECKING:
    from virtualzarr.formats.templates.recorder import Recorder

SIGNATURE = b"\x89HDF\r\n\x1a\n"
USER_BLOCKS = (512, 1024, 2048)
"""Where the signature is looked for in any file, before other formats are thought of."""
_BTREE_K, _SHARED_TABLE, _FILE_SPACE = 0x13, 0x0F, 0x17
_WIDTHS = (2, 4, 8)
# Written by one process, or read by others meanwhile.
_OPEN = 1 | 4
# How often every byte of a file may be looked at, and how many bytes are nothing to speak of.
_MAX_PASSES, _FREE_BYTES = 4, 1 << 20
# Cells of grids, of which few may be stored.
_FREE_CELLS = 1 << 24


@dataclass
class Superblock:
    """What the parsers of all other structures need to know about a file.

    Parameters
    ----------
    root : int
        Address of the root group's object header.
    address_size, length_size : int
        Bytes that an address and a length take.
    extension : int, optional
        Address of the superblock extension.
    chunk_k : int
        Half of the entries that a v1 B-tree node of chunks has room for.
    shared_table : int, optional
        Address of the table of messages that objects share, and the number of its indexes.
    page : int
        Length of the pages that metadata lie in; 0 where they do not.
    size : int
        Bytes of the file from the superblock on: nothing lies beyond.
    strict : bool
        Whether checksums are checked one by one, so that errors come where their cause is.
    end_at : int
        Where the superblock says how long the file is.
    checked_bytes : int
        Bytes of the superblock, if it has a checksum.
    recorder : Recorder, optional
        Is told which of the bytes that parsers ask for may differ in files that are alike.
    """

    root: int
    address_size: int = 8
    length_size: int = 8
    extension: int | None = None
    chunk_k: int = 32
    shared_table: tuple[int, int] | None = None
    page: int = 0
    size: int = 0
    strict: bool = False
    end_at: int = 0
    checked_bytes: int = 0
    recorder: Recorder | None = None

    def __post_init__(self) -> None:
        # All bits set is the "undefined address" (section I.B): what it would point to was never
        # allocated.
        self.undefined = (1 << 8 * self.address_size) - 1
        self.forget()

    def forget(self) -> None:
        """Forget what several parsers need and only one of them reads."""
        self.committed: dict[tuple[int, int], bytes] = {}
        self.heap_messages: dict[tuple[bytes, int], bytes] = {}
        self.fractal_heaps: dict[int, Any] = {}
        self._spent = self._cells = 0
        self._unchecked: list[tuple[Buffer, str, int]] = []

    def address(self, data: Buffer, at: int) -> int:
        """Decode an address; the undefined one is `undefined`.

        Raises `SourceError` if the data end before.
        """
        raw = data[at : at + self.address_size]
        if len(raw) < self.address_size:
            raise SourceError("a structure ends inside an address")
        return int.from_bytes(raw, "little")

    def length(self, data: Buffer, at: int) -> int:
        """Decode a length. Raises as `address` does."""
        raw = data[at : at + self.length_size]
        if len(raw) < self.length_size:
            raise SourceError("a structure ends inside a length")
        return int.from_bytes(raw, "little")

    @property
    def spent(self) -> tuple[int, int]:
        """Bytes that were parsed, and cells that were taken."""
        return self._spent, self._cells

    def region(self, address: int) -> AbstractContextManager[int]:
        """Return within what to ask for bytes that lie at an address, and as far from it as always.

        It returns where these bytes are, as declarations count.
        """
        return nullcontext(address) if self.recorder is None else self.recorder.region(address)

    def point(self, at: int, address: int) -> None:
        """Declare that an address, which may be another in files that are alike, lies somewhere."""
        if self.recorder is not None and address != self.undefined:
            self.recorder.point(at, address)

    def spend(self, nbytes: int) -> None:
        """Take note of bytes that are parsed, or of what is made of them.

        Structures have their own bytes. Many that share some would cost far more than the file's
        size.

        Raises `SourceError` if these are many times more bytes than the file has.
        """
        # A limit on the sum, not on each structure: a file of a few kilobytes whose nodes all point
        # to one another stays within each limit, and takes hours.
        self._spent += nbytes
        if self._spent > max_spent(self.size):
            raise SourceError("the file's structures lie in one another: they are not all read")

    def take_cells(self, count: int) -> None:
        """Take note of cells of grids, which take memory also where no chunk is stored.

        Raises `UnsupportedError` if they are many more than the file has bytes.
        """
        self._cells += count
        if self._cells > max_cells(self.size):
            raise UnsupportedError("the grids of the file are too many and too large for its size")

    def check(
        self, data: Buffer, structure: str, address: int, stored_at: int | None = None
    ) -> None:
        """Take note of a structure whose last 4 bytes are the checksum of those before.

        Raises `SourceError` if it is wrong and `strict`; otherwise `verify` raises that later.

        Parameters
        ----------
        stored_at : int, optional
            Where the checksum lies in the structure, if it was moved to the end, and 4 zeros to
            where it was.
        """
        if self.recorder is not None:
            length = len(data) if stored_at is None else len(data) - 4
            self.recorder.add_check(address, length, stored_at)
        # Checksums of small structures are collected: without the library's function, hashing many
        # together costs far less. `Objects` reads again with `strict` if one differs.
        self._unchecked.append((data, structure, address))
        if self.strict:
            self.verify()

    def check_rows(
        self, nodes: NDArray[np.uint8], ends: NDArray[np.int64], structure: str, addresses: Any
    ) -> None:
        """Check structures in rows of bytes, each up to its end. Raises as `verify` does."""
        if self.recorder is not None:
            self.recorder.add_check_rows(np.asarray(addresses), ends)
        if int(ends.max()) > nodes.shape[1]:
            raise SourceError(f"a {structure} holds more than fits into it")
        # Rows come from one array of nodes: hashing them where they lie spares a copy for each.
        wrong = find_damaged_rows(nodes, ends)
        if len(wrong):
            raise _damage_error(structure, int(addresses[wrong[0]]))

    def verify(self) -> None:
        """Check what was noted.

        Raises `SourceError` for the first structure that is not what was written.
        """
        unchecked, self._unchecked = self._unchecked, []
        sums = compute_checksums([data[:-4] for data, _, _ in unchecked])
        for (data, structure, address), computed in zip(unchecked, sums, strict=True):
            if int.from_bytes(data[-4:], "little") != computed:
                raise _damage_error(structure, address)

    def extend(self, kind: int, body: Buffer) -> None:
        """Take note of a message of the superblock extension."""
        try:
            if kind == _BTREE_K:
                (self.chunk_k,) = struct.unpack_from("<H", body, 1)
            elif kind == _SHARED_TABLE:
                self.shared_table = self.address(body, 1), body[1 + self.address_size]
            elif kind == _FILE_SPACE and body[0] == 1:
                self.page = self.length(body, 3 + self.length_size)
        except (struct.error, IndexError) as error:
            raise SourceError("a message of the superblock extension ends early") from error


def max_spent(size: Any) -> Any:
    """Return how many bytes may be parsed of a file of a size."""
    return _MAX_PASSES * size + _FREE_BYTES


def max_cells(size: Any) -> Any:
    """Return how many cells the grids of a file of a size may have."""
    return size + _FREE_CELLS


def _damage_error(structure: str, address: int) -> SourceError:
    return SourceError(f"the {structure} at {address} is damaged: its checksum is another")


def find(size: int) -> Parsing[int]:
    """Find where the superblock starts: at byte 0, 512, 1024, 2048, ...

    Raises `SourceError` if there is none.
    """
    address = 0
    while address < size:
        if (yield address, 8) == SIGNATURE:
            return address
        # A user block before the superblock is a power of two of at least 512 bytes (section II.A),
        # so that logarithmically many reads find the signature, however large the block is.
        address = address * 2 or 512
    raise SourceError("HDF5 cannot open the file: it has no superblock")


def read(size: int) -> Parsing[Superblock]:
    """Read the superblock at address 0 of a file of `size` bytes.

    HDF5 file format specification, section II.A, versions 0 to 3.
    """
    head = yield from read_exactly(0, 24, "superblock")
    version = head[8]
    if version > 3:
        raise UnknownStructureError(f"superblock version {version}")
    # Versions 0 and 1 have versions of other structures before the widths, which versions 2 and 3
    # dropped.
    at = 13 if version < 2 else 9
    superblock = Superblock(0, head[at], head[at + 1], size=size)
    if superblock.address_size not in _WIDTHS or superblock.length_size not in _WIDTHS:
        raise UnknownStructureError(
            f"addresses of {superblock.address_size} and lengths of {superblock.length_size} bytes"
        )
    if version < 2:
        end = yield from _read_v0_v1(superblock, version)
    else:
        width = superblock.address_size
        data = yield from read_exactly(12, 4 * width, "superblock")
        # Version 3 came with single-writer/multiple-reader access: metadata of a file that a writer
        # has open may be half flushed, and h5py refuses it, too.
        if version == 3 and head[11] & _OPEN:
            raise SourceError(
                "the file is marked as open for writing: a writer is at work or did not finish; "
                "`h5clear --status` takes the mark away"
            )
        extension = superblock.address(data, width)
        superblock.extension = None if extension == superblock.undefined else extension
        # All addresses count from the base address; the end-of-file address counts from byte 0.
        superblock.end_at = 12 + 2 * width
        end = superblock.address(data, 2 * width) - superblock.address(data, 0)
        superblock.root = superblock.address(data, 3 * width)
        checked = yield from read_exactly(0, 16 + 4 * width, "superblock")
        superblock.check(checked, "superblock", 0)
        superblock.checked_bytes = len(checked)
    # Noticed here, as chunks past the end would otherwise be found missing one by one when read.
    if end > size:
        raise SourceError(f"HDF5 cannot open the file: it was cut off at byte {size} of {end}")
    return superblock


def _read_v0_v1(superblock: Superblock, version: int) -> Parsing[int]:
    """Read the rest of versions 0 and 1; return where the file ends."""
    width = superblock.address_size
    start = 24 if version == 0 else 28
    entry = start - 16 + 4 * width
    data = yield from read_exactly(16, entry + superblock.length_size + width, "superblock")
    if version == 1:
        (superblock.chunk_k,) = struct.unpack_from("<H", data, 8)
    # Base, free space, end of file and driver addresses come first, then the root's entry, of
    # which the place of its name is the first member.
    driver = superblock.address(data, start - 16 + 3 * width)
    if driver != superblock.undefined:
        raise UnknownStructureError("a file of several parts (driver information block)")
    superblock.root = superblock.address(data, entry + superblock.length_size)
    superblock.end_at = start + 2 * width
    return superblock.address(data, start - 16 + 2 * width) - superblock.address(data, start - 16)
