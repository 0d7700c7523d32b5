"""Files as bytes: local, remote through fsspec, inline, or missing."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from virtualzarr.config import config
from virtualzarr.errors import SourceError, SourceNotFoundError
from virtualzarr.stores import fingerprints
from virtualzarr.stores.file_heads import find_bytes, find_head
from virtualzarr.stores.files_in_memory import FetchedFile as FetchedFile
from virtualzarr.stores.files_in_memory import FileInMemory as FileInMemory
from virtualzarr.stores.files_in_memory import InlineFile as InlineFile
from virtualzarr.stores.files_in_memory import MissingFile as MissingFile
from virtualzarr.stores.fingerprints import Fingerprint as Fingerprint
from virtualzarr.stores.fingerprints import check_length as check_length
from virtualzarr.stores.forks import ForkSafeLock
from virtualzarr.stores.fsspec_connection import Connection as Connection
from virtualzarr.stores.fsspec_connection import filesystem as filesystem
from virtualzarr.stores.location import Location as Location
from virtualzarr.stores.scratch import ScratchBuffer
from virtualzarr.stores.transport import Answer
from virtualzarr.stores.uris import is_url as is_url
from virtualzarr.stores.uris import resolve_uri as resolve_uri

Buffer = bytes | bytearray | memoryview

SMALL_FILE_BYTES = 96 * 1024
"""Files of fewer bytes may be read by one call: their memory needs no mapping by the system."""

MAX_SCRATCH_BYTES = 16 * 1024 * 1024
"""Memory for larger reads is not reused: it would stay for as long as the thread."""


def take_fingerprint(location: Location) -> Fingerprint:
    """Take a file's fingerprint as it is now: no listing that fsspec keeps is believed.

    Raises
    ------
    SourceError
        If the file is not there or cannot be looked at.
    """
    uri = location.uri
    if location.is_remote:
        if (head := find_head(location)) is not None:
            return head.fingerprint
        connection = Connection(location)
        return connection.fingerprint(connection.path, uri)
    try:
        status = os.stat(uri)
    except (OSError, ValueError) as error:
        raise fingerprints.as_source_error(error, uri) from error
    return Fingerprint(status.st_size, status.st_mtime_ns)


def is_file(location: Location) -> bool:
    """Tell whether a file is there; no answer is an error, and not the same as none."""
    try:
        take_fingerprint(location)
    except SourceNotFoundError:
        return False
    return True


def open_file(location: Location, fingerprint: Fingerprint | None = None) -> ByteFile:
    """Return the file at a location, which must still have a fingerprint when it is read."""
    if location.is_remote:
        return RemoteFile(location, fingerprint)
    return LocalFile(location.uri, fingerprint)


def read_head(location: Location, nbytes: int) -> bytes:
    """Return the first bytes of a file, all of them if it is shorter.

    Raises
    ------
    SourceError
        If the file is not there or cannot be read.
    """
    if (head := find_head(location)) is not None:
        return head.data[:nbytes]
    size = take_fingerprint(location).size
    return bytes(open_file(location).read(0, nbytes if size is None else min(size, nbytes)))


class ByteFile(Protocol):
    """What readers need of a file. Methods may be called from several threads at once."""

    uri: str
    remote: bool

    def read(self, start: int, stop: int | None, limit: int | None = None) -> Buffer:
        """Return the bytes from `start` up to `stop`, or to the end.

        The buffer may be overwritten by the next read in the same thread. More than `limit` bytes
        are an error; where that can be known before, nothing is read.

        Raises
        ------
        SourceError
            If the file is not there, changed since it was scanned, or too short.
        """
        ...

    def read_into(self, start: int, out: memoryview) -> None:
        """Fill `out` with the bytes from `start` on. Raises as `read` does."""
        ...

    def open(self) -> AbstractContextManager[ByteFile]:
        """Return the file ready for several reads, by one thread, within a with statement."""
        ...


_scratch = ScratchBuffer(MAX_SCRATCH_BYTES)


class LocalFile:
    """A local file, opened anew for each use, so that no descriptor outlives it."""

    __slots__ = ("fingerprint", "uri")
    remote = False

    def __init__(self, path: str, fingerprint: Fingerprint | None = None) -> None:
        self.uri = path
        self.fingerprint = fingerprint

    def read(self, start: int, stop: int | None, limit: int | None = None) -> Buffer:  # noqa: D102
        file = self._open()
        try:
            return file.read(start, stop, limit)
        finally:
            os.close(file.descriptor)

    def read_into(self, start: int, out: memoryview) -> None:  # noqa: D102
        with self.open() as file:
            file.read_into(start, out)

    @contextmanager
    def open(self) -> Iterator[OpenFile]:  # noqa: D102
        file = self._open()
        try:
            yield file
        finally:
            os.close(file.descriptor)

    def _open(self) -> OpenFile:
        try:
            descriptor = os.open(self.uri, _FLAGS)
        except FileNotFoundError as error:
            if os.path.islink(self.uri):
                # Not the same as nothing: its content was left behind, or not fetched yet.
                raise SourceError("a symbolic link to a missing file", file=self.uri) from error
            raise fingerprints.as_source_error(error, self.uri) from error
        except OSError as error:
            raise fingerprints.as_source_error(error, self.uri) from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise _irregular(self.uri, status.st_mode)
            fingerprint, current = self.fingerprint, (status.st_size, status.st_mtime_ns)
            # Plain comparison first: nearly all files are unchanged, and every read does this.
            if fingerprint is not None and (fingerprint.size, fingerprint.mtime_ns) != current:
                fingerprints.check_unchanged(self.uri, fingerprint, Fingerprint(*current))
        except BaseException:
            os.close(descriptor)
            raise
        return OpenFile(self.uri, descriptor, status.st_size)


def _irregular(uri: str, mode: int) -> SourceError:
    error = SourceError("not a regular file", file=uri)
    if stat.S_ISDIR(mode):
        error.__cause__ = IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return error


# Opening a pipe would wait for who writes to it.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def read_small(path: str) -> bytes | None:
    """Return what a file holds, in three system calls, or None if a full read must say more.

    That is: it is missing, no plain file, empty, or has `SMALL_FILE_BYTES` bytes or more.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return None
    try:
        data = os.read(descriptor, SMALL_FILE_BYTES)
        return data if 0 < len(data) < SMALL_FILE_BYTES and not os.read(descriptor, 1) else None
    except OSError:
        return None
    finally:
        os.close(descriptor)


class OpenFile:
    """A local file while it is open."""

    __slots__ = ("descriptor", "size", "uri")
    remote = False

    def __init__(self, uri: str, descriptor: int, size: int) -> None:
        self.uri = uri
        self.descriptor = descriptor
        self.size = size

    def read(self, start: int, stop: int | None, limit: int | None = None) -> Buffer:  # noqa: D102
        stop = self.size if stop is None else stop
        self._check(start, stop)
        check_length(self.uri, stop - start, limit)
        view = _scratch.take(stop - start).data
        self.fill(start, view)
        return view

    def read_into(self, start: int, out: memoryview) -> None:  # noqa: D102
        self._check(start, start + out.nbytes)
        self.fill(start, out.cast("B"))

    def open(self) -> AbstractContextManager[ByteFile]:  # noqa: D102
        return nullcontext(self)

    def _check(self, start: int, stop: int) -> None:
        # Before memory is taken: a reference may claim any length.
        if stop > self.size or start > stop:
            raise fingerprints.truncated_error(self.uri, start, stop, self.size)

    def take(self, start: int, nbytes: int) -> bytes:
        """Read so many bytes into memory of their own.

        Raises
        ------
        SourceError
            If the file ends before.
        """
        if hasattr(os, "pread"):
            try:
                data = os.pread(self.descriptor, nbytes, start)
            except OSError as error:
                raise fingerprints.as_source_error(error, self.uri) from error
            if len(data) == nbytes:
                return data
        view = memoryview(bytearray(nbytes))
        self.fill(start, view)
        return bytes(view)

    def fill(self, start: int, view: memoryview) -> None:
        """Read as many bytes as there is room for."""
        done, nbytes = 0, view.nbytes
        while done < nbytes:
            try:
                count = _read_at(self.descriptor, start + done, view[done:] if done else view)
            except OSError as error:
                raise fingerprints.as_source_error(error, self.uri) from error
            if not count:
                raise fingerprints.truncated_error(self.uri, start, start + nbytes, start + done)
            done += count


if hasattr(os, "preadv"):

    def _read_at(descriptor: int, start: int, out: memoryview) -> int:
        return os.preadv(descriptor, [out], start)

else:

    def _read_at(descriptor: int, start: int, out: memoryview) -> int:
        os.lseek(descriptor, start, os.SEEK_SET)
        data = os.read(descriptor, out.nbytes)
        out[: len(data)] = data
        return len(data)


_pinning = ForkSafeLock()


class Pin:
    """The version of a remote file that all of its handles read, once a response has told it.

    Attributes
    ----------
    fingerprint : Fingerprint, optional
    """

    __slots__ = ("fingerprint",)

    def __init__(self) -> None:
        self.fingerprint: Fingerprint | None = None


class RemoteFile:
    """A remote file; each read is one request, and every response must be of one version.

    Attributes
    ----------
    uri : str
    fingerprint : Fingerprint, optional
        What the file had when it was scanned.
    pinned : Fingerprint, optional
        What the first response said of it: nothing of another version is read by this object.
    version : Pin
        Holds `pinned`; several objects of one file may share it.
    """

    __slots__ = ("connection", "fingerprint", "path", "uri", "version")
    remote = True

    def __init__(self, location: Location, fingerprint: Fingerprint | None = None) -> None:
        self.uri = location.uri
        self.fingerprint = fingerprint
        self.version = Pin()
        self.connection = Connection(location)
        self.path = self.connection.path

    @classmethod
    def within(cls, connection: Connection, path: str, uri: str) -> RemoteFile:
        """Return a file of a file system that is connected already."""
        self = cls.__new__(cls)
        self.uri, self.connection, self.path = uri, connection, path
        self.fingerprint, self.version = None, Pin()
        return self

    @property
    def pinned(self) -> Fingerprint | None:
        """See the attributes of the class."""
        return self.version.fingerprint

    def read(self, start: int, stop: int | None, limit: int | None = None) -> Buffer:  # noqa: D102
        self._check_inside(start, stop)
        if stop is not None and start >= stop:
            return b""
        answer = self._find_bytes(start, stop)
        if answer is None:
            answer = self.connection.fetch(self.path, self.uri, start, stop, limit)
        return self.accept(answer, start, stop, limit)

    async def fetch(self, start: int, stop: int | None, limit: int | None = None) -> Answer:
        """Request bytes in the event loop of the connection; `accept` returns them, checked."""
        self._check_inside(start, stop)
        if stop is not None and start >= stop:
            return b"", None
        if (answer := self._find_bytes(start, stop)) is not None:
            return answer
        return await self.connection.fetch_in_loop(self.path, self.uri, start, stop, limit)

    def accept(self, answer: Answer, start: int, stop: int | None, limit: int | None) -> bytes:
        """Return the bytes of an answer, which must be of the file's version. Raises as `read`."""
        data, fingerprint = answer
        if stop is not None and start >= stop:
            return data
        if stop is None and start == 0 and fingerprint is None:
            fingerprint = Fingerprint(len(data))
        if stop is not None and len(data) != stop - start:
            self._check_version(fingerprint)  # which tells more of what is wrong
            raise fingerprints.truncated_error(self.uri, start, stop, start + len(data))
        self._check_version(fingerprint)
        check_length(self.uri, len(data), limit)
        return data

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several ranges, requested side by side where that can be. Raises as `read`."""
        for span in ranges:
            self._check_inside(*span)
        ready = [answer for span in ranges if (answer := self._find_bytes(*span)) is not None]
        complete = len(ready) == len(ranges)
        responses = ready if complete else self.connection.fetch_many(self.path, self.uri, ranges)
        # Nearly always they are of one version, which is then compared once.
        for fingerprint in dict.fromkeys(fingerprint for _, fingerprint in responses):
            self._check_version(fingerprint)
        for (start, stop), (data, _) in zip(ranges, responses, strict=True):
            if len(data) != stop - start:
                raise fingerprints.truncated_error(self.uri, start, stop, start + len(data))
        return [data for data, _ in responses]

    def tail(self, nbytes: int) -> Buffer:
        """Return the last bytes of the file, or all of it where it has no more."""
        return self._fetch_part(-nbytes, None)[0]

    def fetch_end(self, start: int, stop: int | None) -> ByteFile:
        """Return the file with its first or last bytes in memory, by one request.

        Parameters
        ----------
        start, stop : int or None
            Bytes ``0:stop``, or ``start:None`` from the end; fewer of a file that has no more.
        """
        data, fingerprint = self._fetch_part(start, stop)
        size = None if fingerprint is None else fingerprint.size
        if stop is None and size is None:
            return self  # which bytes these are is not known
        return FileWithEnd(self, data, 0 if stop is not None else (size or 0) - len(data), size)

    def _fetch_part(self, start: int, stop: int | None) -> Answer:
        # Servers that do not understand ranges from the end send all of the file.
        limit = max(config.remote_read, abs(stop or start))
        answer = self.connection.fetch(self.path, self.uri, start, stop, limit)
        self._check_version(answer[1])
        return answer

    def pin(self, fingerprint: Fingerprint | None = None) -> None:
        """Read nothing of another version than the current one, or that of a fingerprint.

        Where responses tell their version, the first one does this without another request.
        """
        self.version.fingerprint = (
            self.connection.fingerprint(self.path, self.uri) if fingerprint is None else fingerprint
        )

    def _find_bytes(self, start: int, stop: int | None) -> Answer | None:
        # Paths within a shared connection are no URLs of their own.
        location = self.connection.location
        same = location.uri == self.uri
        return find_bytes(location, self.fingerprint, start, stop) if same else None

    def _check_inside(self, start: int, stop: int | None) -> None:
        size = None if self.fingerprint is None else self.fingerprint.size
        if size is not None and (start > size or (stop is not None and stop > size)):
            raise fingerprints.truncated_error(self.uri, start, stop or size, size)

    def _check_version(self, current: Fingerprint | None) -> None:
        """Compare what a response told of its version with the fingerprints of the file.

        If it told too little, the fingerprint is taken now, after the bytes have come: if the file
        still is of the expected version, they are.
        """
        if not config.verify_sources:
            return
        expected = [
            fingerprint
            for fingerprint in (self.fingerprint, self.pinned)
            if fingerprint and not fingerprint.is_empty
        ]
        if expected and (
            current is None
            or not all(fingerprints.is_comparable(fingerprint, current) for fingerprint in expected)
        ):
            current = self.connection.fingerprint(self.path, self.uri)
        if current is None:
            return
        for fingerprint in expected:
            fingerprints.check_unchanged(self.uri, fingerprint, current)
        if current.has_version:
            with _pinning:  # of threads that read at the same time, one is the first
                pinned = self.pinned or current.as_recorded()
                self.version.fingerprint = pinned
            fingerprints.check_unchanged(self.uri, pinned, current)

    def read_into(self, start: int, out: memoryview) -> None:  # noqa: D102
        out[:] = self.read(start, start + out.nbytes)

    def open(self) -> AbstractContextManager[ByteFile]:  # noqa: D102
        return nullcontext(self)


class FileWithEnd:
    """A remote file of which the first or last bytes have come already.

    Attributes
    ----------
    file : RemoteFile
        What requests the other bytes: all are of one version.
    size : int, optional
        Bytes of the file.
    """

    __slots__ = ("_data", "_start", "file", "size", "uri")
    remote = True

    def __init__(self, file: RemoteFile, data: bytes, start: int, size: int | None) -> None:
        self.file, self.uri, self.size = file, file.uri, size
        self._data, self._start = memoryview(data), start

    def has(self, start: int, stop: int | None) -> bool:
        """Tell whether a range needs no request."""
        stop = self.size if stop is None else stop
        return stop is not None and self._start <= start <= stop <= self._start + len(self._data)

    def read(self, start: int, stop: int | None, limit: int | None = None) -> Buffer:  # noqa: D102
        if not self.has(start, stop):
            return self.file.read(start, stop, limit)
        stop = self.size if stop is None else stop
        assert stop is not None
        check_length(self.uri, stop - start, limit)
        return self._data[start - self._start : stop - self._start]

    def read_into(self, start: int, out: memoryview) -> None:  # noqa: D102
        out[:] = self.read(start, start + out.nbytes)

    def open(self) -> AbstractContextManager[ByteFile]:  # noqa: D102
        return nullcontext(self)
