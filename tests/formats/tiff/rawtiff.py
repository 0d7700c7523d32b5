"""Writing TIFF files tag by tag: those of microscopes, and what no writer makes any more."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

CODES = {1: "B", 2: "s", 3: "H", 4: "I", 6: "b", 7: "s", 8: "h", 9: "i", 12: "d", 13: "I", 16: "Q"}
STRIPS, TILES = (273, 279), (324, 325)


@dataclass
class Page:
    """A directory.

    Parameters
    ----------
    tags : mapping
        Of numbers to numbers, text, or ``(type, values)`` or ``(type, values, count)``.
    segments : sequence of bytes or None
        Strips, or tiles if the tags have their length; None is one that was never written.
    inner : sequence of Page
        Sub-directories.
    """

    tags: Mapping[int, Any]
    segments: Iterable[bytes | None] = ()
    inner: Iterable[Page] = field(default=())


class Writer:
    """Lays out directories one after the other, each after its data.

    Parameters
    ----------
    byteorder : {"<", ">"}
    big : bool
        BigTIFF.
    ndpi : bool
        Offsets of directories have 8 bytes, and the higher bits of values follow each of them.
    start : bytes
        What follows the header.
    """

    def __init__(
        self, byteorder: str = "<", big: bool = False, ndpi: bool = False, start: bytes = b""
    ) -> None:
        self.byteorder, self.big, self.ndpi = byteorder, big, ndpi
        head = b"II" if byteorder == "<" else b"MM"
        start = bytes(4 if ndpi else 0) + start
        head += self.pack("HHHQ", 43, 8, 0, 0) if big else self.pack("HI", 42, 0)
        self.data = bytearray(head + start)
        self.link = 8 if big else 4

    def pack(self, form: str, *values: int) -> bytes:
        return struct.pack(self.byteorder + form, *values)

    def put(self, raw: bytes) -> int:
        """Append bytes at an even place, and return where."""
        self.data += bytes(len(self.data) % 2)
        at = len(self.data)
        self.data += raw
        return at

    def chain(self, page: Page) -> None:
        """Append a directory to the chain."""
        at, after = self.directory(page)
        word = self.pack("Q" if self.big else "I", at)
        self.data[self.link : self.link + len(word)] = word
        self.link = after

    def directory(self, page: Page) -> tuple[int, int]:
        """Append a directory; return where it is, and where the offset of the next one goes."""
        tags = {code: self.value(value) for code, value in page.tags.items()}
        segments = list(page.segments)
        if segments:
            where, size = TILES if 322 in tags else STRIPS
            offsets = [0 if raw is None else self.put(raw) for raw in segments]
            lengths = [0 if raw is None else len(raw) for raw in segments]
            tags = {where: self.value((4, offsets)), size: self.value((4, lengths)), **tags}
        inner = [self.directory(each)[0] for each in page.inner]
        if inner:
            tags[330] = self.value((4, inner))
        room, table = (8, b"") if self.big else (4, b"")
        for code in sorted(tags):
            kind, count, raw = tags[code]
            if len(raw) > room:
                raw = self.pack("Q" if self.big else "I", self.put(raw))
            table += self.pack("HHQ" if self.big else "HHI", code, kind, count)
            table += raw.ljust(room, b"\0")
        at = self.put(self.pack("Q" if self.big else "H", len(tags)) + table)
        after = len(self.data)
        self.data += bytes(8 + 4 * len(tags) if self.ndpi else room)
        return at, after

    def value(self, value: Any) -> tuple[int, int, bytes]:
        """Return type, count and bytes of a tag's value."""
        if isinstance(value, str):
            raw = value.encode() + b"\0"
            return 2, len(raw), raw
        if isinstance(value, int):
            value = (3 if 0 <= value < 1 << 16 else 4, [value])
        kind, values, *count = value
        if isinstance(values, bytes):
            return kind, count[0] if count else len(values), values
        raw = self.pack(f"{len(values)}{CODES[kind]}", *values)
        return kind, count[0] if count else len(values), raw


def write(path: Any, pages: Iterable[Page], **options: Any) -> Writer:
    """Write a file of pages."""
    writer = Writer(**options)
    for page in pages:
        writer.chain(page)
    path.write_bytes(writer.data)
    return writer


def image(data: Any, rows: int | None = None, **tags: Any) -> Page:
    """Return a page of an array of rows, columns and samples, uncompressed in strips.

    Tags are given by keywords like ``t270``.
    """
    length, width = data.shape[:2]
    rows = rows or length
    samples = data.shape[2] if data.ndim > 2 else 1
    kind = {"u": 1, "i": 2, "f": 3}[data.dtype.kind]
    given = {int(name[1:]): value for name, value in tags.items()}
    bits = (3, [8 * data.dtype.itemsize] * samples)
    own = {256: width, 257: length, 258: bits, 259: 1, 262: 2 if samples == 3 else 1, 277: samples}
    own |= {278: rows, 339: (3, [kind] * samples)}
    return Page(own | given, [data[at : at + rows].tobytes() for at in range(0, length, rows)])
