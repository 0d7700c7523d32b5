"""Files as bytes: local, remote, inline, or missing."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import BinaryIO, Protocol

from virtualzarr.config import config
from virtualzarr.errors import SourceChangedError, SourceError, SourceNotFoundError
from virtualzarr.stores import fingerprints
from virtualzarr.stores.file_heads import find_head
from virtualzarr.stores.files_in_memory import FetchedFile as FetchedFile
from virtualzarr.stores.files_in_memory import FileInMemory as FileInMemory
from virtualzarr.stores.files_in_memory import InlineFile as InlineFile
from virtualzarr.stores.files_in_memory import MissingFile as MissingFile
from virtualzarr.stores.fingerprints import Fingerprint as Fingerprint
from virtualzarr.stores.fingerprints import check_length as check_length
from virtualzarr.stores.fsspec_connection import Connection as Connection
from virtualzarr.stores.location import Location as Location
from virtualzarr.stores.pins import Pin as Pin
from virtualzarr.stores.remote_file import FileWithEnd as FileWithEnd
from virtualzarr.stores.remote_file import RemoteFile as RemoteFile
from virtualzarr.stores.scratch import ScratchBuffer
from virtualzarr.stores.uris import is_url as is_url
from virtualzarr.stores.uris import resolve_uri as resolve_uri
from virtualzarr.stores.url_file_systems import filesystem as filesystem

Buffer = bytes | bytearray | memoryview

SMALL_FILE_BYTES = 96 * 1024
"""Files of fewer bytes may be read by one call: their memory needs no mapping by the system."""

_ATTEMPTS = 9
"""How often a head is read again of a file that is replaced all the time, as references may be."""

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
    for _ in range(_ATTEMPTS):
        # Nothing of it was used yet: one that was replaced after its size was asked for is new.
        with suppress(SourceChangedError):
            return _read_head(location, nbytes)
    return _read_head(location, nbytes)


def _read_head(location: Location, nbytes: int) -> bytes:
    fingerprint = take_fingerprint(location)
    size, file = fingerprint.size, open_file(location)
    if isinstance(file, RemoteFile) and file.connection.tells_versions:
        file.pin(fingerprint.as_recorded())
    return bytes(file.read(0, nbytes if size is None else min(size, nbytes)))


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
    """A local file, opened anew for each use, so that no descriptor outlives it.

    Attributes
    ----------
    uri : str
    fingerprint : Fingerprint, optional
        The version that is read: any other is an error.
    pin : Pin, optional
        The same, where none was noted: that which is read first by any of those who share it.
    """

    __slots__ = ("fingerprint", "pin", "uri")
    remote = False

    def __init__(
        self, path: str, fingerprint: Fingerprint | None = None, pin: Pin | None = None
    ) -> None:
        self.uri = path
        self.fingerprint = fingerprint
        self.pin = pin

    @property
    def place(self) -> str | None:
        """Where a file lies that has a pin: a link in its name may lead elsewhere one day."""
        return None if self.pin is None else self.pin.path

    def read(self, start: int, stop: int | None, limit: int | None = None) -> Buffer:  # noqa: D102
        file = self._open()
        try:
            data = file.read(start, stop, limit)
            self._check_kept(file)
            return data
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
            self._check_kept(file)
        finally:
            os.close(file.descriptor)

    def _check_kept(self, file: OpenFile) -> None:
        """Raise `SourceChangedError` if a file was written to after it was looked at."""
        has_date = self.fingerprint is not None and self.fingerprint.mtime_ns is not None
        if not (has_date or self.pin) or not config.verify_sources:
            return
        status = os.fstat(file.descriptor)
        if (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns):
            raise SourceChangedError("the file was written to while it was read", file=self.uri)

    def _open(self) -> OpenFile:
        try:
            descriptor = os.open(self.uri, _FLAGS)
        except FileNotFoundError as error:
            # Not the same as nothing: its content was left behind, or not fetched yet.
            if (problem := describe_dangling(self.uri)) is not None:
                raise SourceError(problem, file=self.uri) from error
            raise fingerprints.as_source_error(error, self.uri) from error
        except OSError as error:
            raise fingerprints.as_source_error(error, self.uri) from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise _irregular(self.uri, status.st_mode)
            self._check_status(status)
        except BaseException:
            os.close(descriptor)
            raise
        return OpenFile(self.uri, descriptor, status.st_size, status.st_mtime_ns)

    def _check_status(self, status: os.stat_result) -> None:
        """Raise `SourceChangedError` if a status is not of the version that is read."""
        fingerprint, current = self.fingerprint, (status.st_size, status.st_mtime_ns)
        # Plain comparison first: nearly all files are unchanged, and every read does this.
        if fingerprint is not None and (fingerprint.size, fingerprint.mtime_ns) != current:
            fingerprints.check_unchanged(self.uri, fingerprint, Fingerprint(*current))
        if self.pin is not None:
            self.pin.check(self.uri, Fingerprint(*current))


def describe_dangling(path: str, what: str = "file") -> str | None:
    """Name the link to nothing that a path which leads nowhere is, or goes through."""
    link = path
    while not os.path.islink(link):
        link, above = os.path.dirname(link), link
        if link == above or os.path.isdir(link):
            return None
    return f"a symbolic link to a missing {what if link == path else f'directory, {link}'}"


def _irregular(uri: str, mode: int) -> SourceError:
    error = SourceError("not a regular file", file=uri)
    if stat.S_ISDIR(mode):
        error.__cause__ = IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return error


# Opening a pipe would wait for who writes to it.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a local file to read it; anything else, such as a pipe, is an `OSError`."""
    descriptor = os.open(path, _FLAGS)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return os.fdopen(descriptor, "rb")


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

    __slots__ = ("descriptor", "mtime_ns", "size", "uri")
    remote = False

    def __init__(self, uri: str, descriptor: int, size: int, mtime_ns: int) -> None:
        self.uri = uri
        self.descriptor = descriptor
        self.size = size
        self.mtime_ns = mtime_ns

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
