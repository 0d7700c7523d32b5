"""Byte source of one HDF5 file, for parsers as `virtualzarr.formats.paging` describes them.

Addresses are those of the file's own metadata: byte 0 is where the superblock lies. All parsers
raise `SourceError` for what is damaged, `UnknownStructureError` for what only the library reads.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, Protocol, TypeVar

from virtualzarr.errors import SourceError, VirtualZarrError
from virtualzarr.formats.local_pages import LocalPages
from virtualzarr.formats.paging import GAP, PAGE, Buffer, Gather, PageCache, Parser

__all__ = [
    "GAP",
    "PAGE",
    "Buffer",
    "ByteSource",
    "Gather",
    "LocalPages",
    "PageCache",
    "Parser",
    "Parsing",
    "UnknownStructureError",
    "read_exactly",
]

_Result = TypeVar("_Result")
Parsing = Generator[Any, Any, _Result]
"""A parser and what it returns."""


class UnknownStructureError(VirtualZarrError):
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

        Raises `VirtualZarrError`, the first that a parser does not handle.
        """
        ...

    def spawn(self, parser: Parser) -> None:
        """Run one more parser beside those that are running, for what it does."""
        ...


def read_exactly(address: int, length: int, structure: str) -> Parsing[Buffer]:
    """Ask for bytes that must be there.

    Raises `SourceError` if the file ends before; the message names the structure and its address.
    """
    data: Buffer = yield address, length
    if len(data) < length:
        raise SourceError(f"the file ends inside the {structure} at {address}")
    return data
