"""Files whose bytes are in memory, and files that do not exist."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Self, TypeAlias

from virtualzarr.errors import SourceNotFoundError
from virtualzarr.stores import fingerprints

Buffer: TypeAlias = bytes | bytearray | memoryview


class InlineFile:
    """Bytes in memory."""

    __slots__ = ("data", "uri")
    remote = False

    def __init__(self, data: bytes, uri: str = "inline data") -> None:
        self.data = memoryview(data).cast("B")
        self.uri = uri

    def read(self, start: int, stop: int | None, limit: int | None = None) -> Buffer:  # noqa: D102
        stop = self.data.nbytes if stop is None else stop
        if stop > self.data.nbytes or start > stop:
            raise fingerprints.truncated_error(self.uri, start, stop, self.data.nbytes)
        return self.data[start:stop]

    def read_into(self, start: int, out: memoryview) -> None:  # noqa: D102
        out[:] = self.read(start, start + out.nbytes)

    def open(self) -> AbstractContextManager[Self]:  # noqa: D102
        return nullcontext(self)


class FileInMemory(InlineFile):
    """All of a file, or its beginning, in memory, with what an open local file has."""

    __slots__ = ()

    @property
    def size(self) -> int:
        """Bytes that are here."""
        return self.data.nbytes

    def open(self) -> AbstractContextManager[Self]:  # noqa: D102
        return nullcontext(self)

    def take(self, start: int, nbytes: int) -> bytes:
        """Return so many bytes. Raises `SourceError` if there are not."""
        return bytes(self.read(start, start + nbytes))

    def fill(self, start: int, view: memoryview) -> None:
        """Copy as many bytes as there is room for."""
        self.read_into(start, view)


class FetchedFile(InlineFile):
    """All of a remote file, which has come already."""

    __slots__ = ()
    remote = True


class MissingFile:
    """A file that does not exist."""

    __slots__ = ("uri",)
    remote = False

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def read(self, start: int, stop: int | None, limit: int | None = None) -> Buffer:  # noqa: D102
        raise SourceNotFoundError("there is no such file", file=self.uri)

    def read_into(self, start: int, out: memoryview) -> None:  # noqa: D102
        self.read(start, None)

    def open(self) -> AbstractContextManager[Self]:  # noqa: D102
        return nullcontext(self)
