"""Checksums of zip members that references point into, compared when they are first read.

A reference goes past the archive's own reader, and so past the CRC-32 that the archive has of each
member. What is read first of a member makes the rest of it be read, too, where that is little.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.config import config
from virtualzarr.errors import SourceError
from virtualzarr.stores.files import Fingerprint, LocalFile, OpenFile

_STEP = 1024 * 1024


class MemberChecksums:
    """Offsets and checksums of members of one archive, and which of them were compared.

    Parameters
    ----------
    begins, lengths, crcs : iterable of int
        Of each member: its first byte in the archive, its bytes, and their CRC-32.
    """

    def __init__(
        self, begins: Iterable[int] = (), lengths: Iterable[int] = (), crcs: Iterable[int] = ()
    ) -> None:
        self._begins = np.empty(0, np.int64)
        self._lengths, self._crcs, self._good = self._begins, self._begins, np.empty(0, bool)
        self.add(begins, lengths, crcs)

    def add(self, begins: Iterable[int], lengths: Iterable[int], crcs: Iterable[int]) -> None:
        """Add members; those that are there already stay."""
        columns = (np.fromiter(column, np.int64) for column in (begins, lengths, crcs))
        current = self._begins, self._lengths, self._crcs
        begin, length, crc = (np.concatenate(pair) for pair in zip(current, columns, strict=True))
        # Sorted by first byte, for `unchecked`; of equal ones the first, which may be checked.
        unique, first = np.unique(begin, return_index=True)
        good = np.concatenate([self._good, np.zeros(len(begin) - len(self._good), bool)])
        self._begins, self._lengths, self._crcs = unique, length[first], crc[first]
        self._good = good[first]

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process may see another file.
        return MemberChecksums, (self._begins, self._lengths, self._crcs)

    def unchecked(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the rows of members within a range that were not compared yet."""
        # Members do not overlap: the first in the range is the last that begins at or before it.
        first = max(int(np.searchsorted(self._begins, start, "right")) - 1, 0)
        rows = np.arange(first, int(np.searchsorted(self._begins, stop)))
        return rows[~self._good[rows] & (self._begins[rows] + self._lengths[rows] > start)]

    def compare(self, file: OpenFile, row: int, start: int, view: memoryview) -> None:
        """Compare the checksum of a member of which some bytes were read already.

        Raises
        ------
        SourceError
            It is another.
        """
        # CRC-32 goes on from any state: what lies before and behind is read in steps around `view`.
        begin = int(self._begins[row])
        end = begin + int(self._lengths[row])
        low, high = max(begin, start), min(end, start + view.nbytes)
        if end - begin - (high - low) > config.member_check_bytes:
            return
        crc = _extend_crc(file, begin, low, 0)
        crc = zlib.crc32(view[low - start : high - start], crc)
        if _extend_crc(file, high, end, crc) != int(self._crcs[row]):
            raise SourceError(
                f"the archive's member at byte {begin} is damaged: its checksum is another",
                file=file.uri,
            )
        self._good[row] = True


def _extend_crc(file: OpenFile, start: int, stop: int, crc: int) -> int:
    """Return the checksum of a part of a file that follows bytes of another checksum."""
    buffer = memoryview(bytearray(min(_STEP, stop - start)))
    for at in range(start, stop, _STEP):
        part = buffer[: min(_STEP, stop - at)]
        file.fill(at, part)
        crc = zlib.crc32(part, crc)
    return crc


class ArchiveFile(LocalFile):
    """A local zip file whose members are compared with their checksums when they are read first."""

    __slots__ = ("checksums",)

    def __init__(
        self, path: str, fingerprint: Fingerprint | None, checksums: MemberChecksums
    ) -> None:
        super().__init__(path, fingerprint)
        self.checksums = checksums

    def _open(self) -> OpenFile:
        file = super()._open()
        return _OpenArchive(file, self.checksums)


class _OpenArchive(OpenFile):
    __slots__ = ("checksums",)

    def __init__(self, file: OpenFile, checksums: MemberChecksums) -> None:
        super().__init__(file.uri, file.descriptor, file.size, file.mtime_ns)
        self.checksums = checksums

    def read(self, start: int, stop: int | None, limit: int | None = None) -> Any:
        view = memoryview(super().read(start, stop, limit))
        self._compare(start, view)
        return view

    def read_into(self, start: int, out: memoryview) -> None:
        super().read_into(start, out)
        self._compare(start, out.cast("B"))

    def _compare(self, start: int, view: memoryview) -> None:
        if not config.verify_sources:
            return
        for row in self.checksums.unchecked(start, start + view.nbytes).tolist():
            self.checksums.compare(self, row, start, view)
