"""Header reader: sequential reads from the start of a file, with doubling read-ahead."""

from __future__ import annotations

from virtualzarr.errors import SourceError
from virtualzarr.manifest import Source
from virtualzarr.stores.files import open_file

FIRST = 64 * 1024
"""Bytes of the first read."""


def file_size(source: Source) -> int:
    """Return the bytes of a file, or raise `SourceError` if its server does not tell."""
    if source.size is None:
        raise SourceError("the server does not say how long the file is", file=source.uri)
    return source.size


class HeaderReader:
    """Sequential reader of a file's bytes, whose reads double in size.

    Parameters
    ----------
    start : int
        Where to begin.

    Attributes
    ----------
    position : int
        Offset of the next byte.
    size : int
        Bytes in the file.
    """

    def __init__(self, source: Source, start: int = 0) -> None:
        self.file = open_file(source.location, source.fingerprint)
        self.size = file_size(source)
        self.position = start
        self._start = start
        self._data = b""

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes.

        Raises `SourceError` if the file ends before.
        """
        self.check(count)
        first = self.position - self._start
        if first + count > len(self._data):
            self._grow(self.position + count)
        self.position += count
        return self._data[first : first + count]

    def check(self, count: int) -> None:
        """Raise `SourceError` if there are not so many bytes left: before memory is taken."""
        if count > self.size - self.position:
            raise SourceError(
                f"the header is damaged, or the file truncated: {count} bytes are needed at "
                f"{self.position}, and the file ends at {self.size}"
            )

    def seek(self, position: int) -> None:
        """Set the position; bytes that are not in the buffer are read from there on."""
        if position > self.size:
            raise SourceError(f"the file ends at {self.size}; it is truncated or damaged")
        if not self._start <= position <= self._start + len(self._data):
            self._start, self._data = position, b""
        elif position > self.position:
            # Skipped bytes are dropped: a file of many small headers between large data would stay
            # in memory as a whole, and the read-ahead would grow to the size of the data.
            self._data, self._start = self._data[position - self._start :], position
        self.position = position

    def _grow(self, needed: int) -> None:
        start = self._start + len(self._data)
        # Doubling keeps the number of requests logarithmic in the length of a header, which formats
        # of this kind do not state in advance.
        stop = min(self.size, max(needed, self._start + max(FIRST, 2 * len(self._data))))
        self._data += bytes(self.file.read(start, stop))
