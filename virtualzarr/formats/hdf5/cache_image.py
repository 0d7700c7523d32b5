"""Metadata cache images: metadata in one block, laid over the file's own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5 import byte_source
from virtualzarr.formats.hdf5.superblock import Superblock

MESSAGE = 0x18
"""Kind of the message of the superblock extension that says where the image lies."""

_SIGNATURE = b"MDCI"
# Of an entry: type, flags, ring, age, three counts of dependencies, and the rank.
_HEAD = 14


@dataclass(frozen=True)
class Entry:
    """Bytes that are to be read instead of those at an address."""

    address: int
    data: bytes


def read(superblock: Superblock, message: byte_source.Buffer) -> byte_source.Parsing[list[Entry]]:
    """Read the cache image that a message of the superblock extension names.

    HDF5 file format specification, section IV.A.2.x.

    Raises
    ------
    SourceError
        If it is damaged.
    UnknownStructureError
        If it is of another version.
    """
    # The image is written on closing by programs that ask for it (`H5Pset_mdc_image_config`): until
    # the file is opened for writing again, what lies at the entries' own addresses is stale.
    wide, width = superblock.address_size, superblock.length_size
    if not message or message[0] != 0:
        raise byte_source.UnknownStructureError("a metadata cache image of another version")
    address = superblock.address(message, 1)
    if address == superblock.undefined:
        return []
    length = superblock.length(message, 1 + wide)
    if address + length > superblock.size:
        raise SourceError("the metadata cache image lies outside the file")
    data = yield from byte_source.read_exactly(address, length, "metadata cache image")
    data = bytes(data)
    if data[:4] != _SIGNATURE:
        raise SourceError(f"there is no metadata cache image at {address}")
    if data[4] != 0:
        raise byte_source.UnknownStructureError("a metadata cache image of another version")
    superblock.check(data, "metadata cache image", address)
    at = 6 + width
    count = int.from_bytes(data[at : at + 4], "little")
    at += 4
    entries = []
    for _ in range(count):
        # Flush dependencies of the entry follow as addresses; they only matter to a writer.
        parents = int.from_bytes(data[at + 8 : at + 10], "little")
        start = at + _HEAD
        entry_address, size = superblock.address(data, start), superblock.length(data, start + wide)
        start += wide + width + parents * wide
        at = start + size
        if at > length - 4:
            raise SourceError("the metadata cache image ends inside an entry")
        entries.append(Entry(entry_address, data[start:at]))
    if at != length - 4:
        raise SourceError("the metadata cache image is longer than its entries")
    return sorted(entries, key=lambda entry: entry.address)


class Overlay:
    """The bytes of a file, with those of a cache image over them; a `ByteSource`.

    Raises `SourceError` if entries overlap.

    Parameters
    ----------
    entries : list of Entry
        In order of their addresses.
    """

    def __init__(self, source: byte_source.ByteSource, entries: list[Entry]) -> None:
        self._source, self._entries = source, entries
        self._starts = [entry.address for entry in entries]
        ends = [entry.address + len(entry.data) for entry in entries]
        if any(end > start for end, start in zip(ends, self._starts[1:], strict=False)):
            raise SourceError("entries of the metadata cache image overlap")
        self.size, self.base = source.size, source.base

    def rebase(self, base: int) -> None:
        """Count addresses from another byte of the file."""
        self._source.rebase(base)
        self.size, self.base = self._source.size, self._source.base

    def run(self, parsers: Iterable[byte_source.Parser]) -> list[Any]:
        """Run parsers to their ends and return their results."""
        return self._source.run([self._patch(parser) for parser in parsers])

    def spawn(self, parser: byte_source.Parser) -> None:
        """Run one more parser beside those that are running."""
        self._source.spawn(self._patch(parser))

    def _patch(self, parser: byte_source.Parser) -> byte_source.Parsing[Any]:
        """Run a parser, with the image's bytes in what it is sent."""
        answer: Any = None
        try:
            while True:
                # Parsers do not know of the image: whatever they are sent has its bytes laid over
                # it here.
                request = parser.send(answer)
                answer = yield request
                if type(request) is tuple:
                    answer = self._over(request[0], answer)
                elif type(request) is byte_source.Gather:
                    rows = [
                        self._over(address, row.tobytes())
                        for address, row in zip(request.addresses.tolist(), answer, strict=True)
                    ]
                    answer = np.frombuffer(b"".join(rows), np.uint8).reshape(answer.shape)
                else:
                    answer = [
                        self._over(extent[0], piece)
                        for extent, piece in zip(request, answer, strict=True)
                    ]
        except StopIteration as stop:
            return stop.value

    def _over(self, address: int, data: byte_source.Buffer) -> byte_source.Buffer:
        """Return bytes of the file with those of the image over them."""
        stop = address + len(data)
        # Entries do not overlap: only the last that starts before the range can reach into it.
        first = max(bisect_right(self._starts, address) - 1, 0)
        patched: bytearray | None = None
        for entry in self._entries[first:]:
            if entry.address >= stop:
                break
            low, high = max(entry.address, address), min(entry.address + len(entry.data), stop)
            if low < high:
                patched = bytearray(data) if patched is None else patched
                patched[low - address : high - address] = entry.data[
                    low - entry.address : high - entry.address
                ]
        return data if patched is None else bytes(patched)
