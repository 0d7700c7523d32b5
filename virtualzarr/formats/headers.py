"""Reading a file's header from its beginning, however long it turns out to be."""

from __future__ import annotations

from virtualzarr.errors import SourceError
from virtualzarr.manifest import Source
from virtualzarr.stores.files import ByteFile, LocalFile, RemoteFile, is_url

FIRST = 64 * 1024
"""Bytes read at first."""


def byte_file(source: Source) -> ByteFile:
    """Return the file of a source, to read bytes from."""
    if is_url(source.uri):
        return RemoteFile(source.location, source.fingerprint)
    return LocalFile(source.uri)


class HeaderReader:
    """Gives out a file's bytes from its beginning; reads twice as many whenever they run out.

    Parameters
    ----------
    source : Source
    start : int
        Where to begin.

    Attributes
    ----------
    position : int
        Where the next bytes are taken from.
    size : int
        Bytes in the file.
    """

    def __init__(self, source: Source, start: int = 0) -> None:
        if source.size is None:
            raise SourceError("the server does not say how long the file is", file=source.uri)
        self.file = byte_file(source)
        self.size = source.size
        self.position = start
        self._start = start
        self._data = b""

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes.

        Raises
        ------
        SourceError
            If the file ends before.
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
        """Go on elsewhere; what is far ahead is read anew."""
        if position > self.size:
            raise SourceError(f"the file ends at {self.size}; it is truncated or damaged")
        if not self._start <= position <= self._start + len(self._data):
            self._start, self._data = position, b""
        elif position > self.position:
            # What was passed over is not kept, and how much is read at a time begins anew.
            self._data, self._start = self._data[position - self._start :], position
        self.position = position

    def _grow(self, needed: int) -> None:
        start = self._start + len(self._data)
        stop = min(self.size, max(needed, self._start + max(FIRST, 2 * len(self._data))))
        self._data += bytes(self.file.read(start, stop))
