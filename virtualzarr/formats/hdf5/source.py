"""The bytes of one HDF5 file, for parsers as `virtualzarr.formats.paging` describes them.

Addresses are those of the file's own metadata: byte 0 is where the superblock lies.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Generator, Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from virtualzarr.errors import SourceError, VirtualZarrError
from virtualzarr.formats.paging import (
    FIRST,
    GAP,
    PAGE,
    Buffer,
    Gather,
    PageCache,
    Parser,
    as_rows,
    check,
)

__all__ = [
    "FIRST",
    "GAP",
    "PAGE",
    "Buffer",
    "ByteSource",
    "Gather",
    "MappedFile",
    "PageCache",
    "Parser",
    "Unknown",
    "exactly",
]

# After so many bytes at once, the pages they were copied from are let go.
_FORGET = 1 << 20


class Unknown(VirtualZarrError):
    """Legal HDF5 that this reader does not know; the HDF5 library is asked instead."""


class ByteSource(Protocol):
    """The bytes of a file, numbered as its metadata number them.

    `size` is that of the file from `base` on, which is where the superblock lies.
    """

    size: int
    base: int

    def rebase(self, base: int) -> None:
        """Count addresses from another byte of the file."""
        ...

    def run(self, parsers: Iterable[Parser]) -> list[Any]:
        """Run parsers to their ends and return their results.

        Raises
        ------
        VirtualZarrError
            The first that a parser does not handle.
        """
        ...

    def spawn(self, parser: Parser) -> None:
        """Run one more parser beside those that are running, for what it does."""
        ...


def exactly(address: int, length: int, what: str) -> Generator[Any, Any, Buffer]:
    """Ask for bytes that must be there.

    Raises
    ------
    SourceError
        If the file ends before; the message names the structure and its address.
    """
    data: Buffer = yield address, length
    if len(data) < length:
        raise SourceError(f"the file ends inside the {what} at {address}")
    return data


class MappedFile:
    """A local file, mapped into memory: parsers run straight through.

    Parameters
    ----------
    path : str

    Raises
    ------
    SourceError
        If the file cannot be mapped.
    """

    def __init__(self, path: str) -> None:
        try:
            with open(path, "rb") as file:
                if not os.fstat(file.fileno()).st_size:
                    raise SourceError("the file is empty", file=path)
                self._map: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise SourceError(f"the file cannot be mapped: {error}", file=path) from error
        self._all = memoryview(self._map)
        self._spawned: list[Parser] = []
        self.rebase(0)

    def rebase(self, base: int) -> None:
        """Count addresses from another byte of the file."""
        self.base = base
        self._view = self._all[base:]
        self.size = len(self._view)

    def run(self, parsers: Iterable[Parser]) -> list[Any]:
        """Run parsers one after the other and return their results."""
        results = [self._finish(parser) for parser in parsers]
        while self._spawned:
            self._finish(self._spawned.pop())
        return results

    def spawn(self, parser: Parser) -> None:
        """Run one more parser, after those that are running."""
        self._spawned.append(parser)

    def _finish(self, parser: Parser) -> Any:
        send, view = parser.send, self._view
        found: Any = None
        try:
            while True:
                wanted = send(found)
                if type(wanted) is tuple:
                    address, length = wanted
                    check(address, length)
                    found = view[address : address + length]
                elif type(wanted) is Gather:
                    found = self._gather(*wanted)
                else:
                    found = []
                    for address, length in wanted:
                        check(address, length)
                        found.append(view[address : address + length])
        except StopIteration as stop:
            return stop.value

    def _gather(self, addresses: NDArray[np.int64], length: int) -> NDArray[np.uint8]:
        """Copy each block once: the file is looked at as overlapping blocks, one at each byte."""
        check(int(addresses.min()), length)
        inside = addresses <= self.size - length
        if not inside.all():
            blocks = [bytes(self._view[k : k + length]) for k in addresses.tolist()]
            return as_rows(blocks, length)
        count = self.size - length + 1
        every = np.ndarray((count,), np.dtype((np.void, length)), self._view, strides=(1,))
        rows = every[addresses].view(np.uint8).reshape(len(addresses), length)
        if rows.nbytes > _FORGET and hasattr(mmap, "MADV_DONTNEED"):
            # What was copied need not stay in this process's memory; the system still has it.
            self._map.madvise(mmap.MADV_DONTNEED)
        return rows
