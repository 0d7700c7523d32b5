"""One file as bytes, wherever it is: local, remote through fsspec, or in memory."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, ClassVar, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from virtualzarr.config import config
from virtualzarr.errors import (
    SourceChangedError,
    SourceError,
    SourceNotFoundError,
    UnsupportedError,
)

Buffer = bytes | bytearray | memoryview

SMALL = 96 * 1024
"""Files of fewer bytes may be read by one call, into memory that does not come from the system."""

KEPT = 16 * 1024 * 1024
"""Memory for larger reads is not kept for the next one."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What tells one version of a file from another."""

    size: int | None
    mtime_ns: int | None = None
    etag: str | None = None


def is_url(uri: str) -> bool:
    """Tell whether a text names a place by protocol, as fsspec understands it.

    Examples
    --------
    >>> is_url("s3://bucket/a.nc"), is_url("zip://a.nc::b.zip"), is_url("/data/run::2/a.nc")
    (True, True, False)
    """
    return ("://" in uri or "::" in uri) and not uri.startswith("/")


def resolve_uri(path_or_url: Any) -> str:
    """Return a URL as it is and a local path (or ``file://`` URL) as an absolute path.

    What follows ``file://`` is taken literally, as fsspec does: ``%20`` is not a blank.

    Examples
    --------
    >>> resolve_uri("s3://bucket/a.nc"), resolve_uri("file:///tmp/a.nc")
    ('s3://bucket/a.nc', '/tmp/a.nc')
    """
    text = os.fspath(path_or_url)
    if not isinstance(text, str):
        raise TypeError(f"a path or URL is text, not {type(text).__name__}")
    for prefix in ("file://", "local://"):
        if text.startswith(prefix):
            text = text.removeprefix(prefix)
    local = isinstance(path_or_url, PurePath) or not is_url(text)
    return str(Path(text).absolute()) if local else text


def filesystem(uri: str, storage_options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path within it.

    Raises
    ------
    UnsupportedError
        If fsspec knows no such protocol, or the package it needs is not installed.
    SourceError
        If what the path lies in, such as a zip file, cannot be opened.
    """
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(uri, **(storage_options or {}))
    except (ValueError, ImportError) as error:
        raise UnsupportedError(f"cannot open the URL: {error}", file=uri) from error
    except Exception as error:
        raise _failed(error, uri) from error
    return fs, path


def file_facts(
    uri: str, storage_options: Mapping[str, Any] | None = None, *, fresh: bool = False
) -> FileFacts:
    """Take a file's fingerprint.

    Parameters
    ----------
    uri : str
    storage_options : mapping, optional
    fresh : bool
        Whether the store is to be asked even if fsspec keeps a listing that names the file.

    Raises
    ------
    SourceError
        If the file is not there or cannot be looked at.
    """
    if not is_url(uri):
        try:
            found = os.stat(uri)
        except OSError as error:
            raise _failed(error, uri) from error
        return FileFacts(found.st_size, found.st_mtime_ns)
    connection = Connection(uri, storage_options)
    if fresh:
        connection.call("invalidate_cache", connection.path, uri)
    info = connection.call("info", connection.path, uri)
    etag = info.get("ETag") or info.get("etag")
    return FileFacts(info.get("size"), None, None if etag is None else str(etag))


class ByteFile(Protocol):
    """What readers need of a file. Methods may be called from several threads at once."""

    uri: str
    remote: bool

    def read(self, start: int, stop: int | None, most: int | None = None) -> Buffer:
        """Return the bytes from `start` up to `stop`, or to the end.

        The buffer may be overwritten by the next read in the same thread. More than `most` bytes
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

    def opened(self) -> AbstractContextManager[ByteFile]:
        """Return the file ready for several reads, by one thread, within a with statement."""
        ...


class _Scratch(threading.local):
    """Memory that each thread reads into again and again: fresh pages cost more than the copy."""

    def __init__(self) -> None:
        self.memory = np.empty(0, np.uint8)

    def take(self, nbytes: int) -> memoryview:
        if nbytes > KEPT:
            return np.empty(nbytes, np.uint8).data
        if len(self.memory) < nbytes:
            self.memory = np.empty(max(nbytes, 1024 * 1024), np.uint8)
        return self.memory.data[:nbytes]


_scratch = _Scratch()


class LocalFile:
    """A local file, opened anew for each use, so that no descriptor outlives it."""

    __slots__ = ("facts", "uri")
    remote = False

    def __init__(self, path: str, facts: FileFacts | None = None) -> None:
        self.uri = path
        self.facts = facts

    def read(self, start: int, stop: int | None, most: int | None = None) -> Buffer:  # noqa: D102
        file = self._open()
        try:
            return file.read(start, stop, most)
        finally:
            os.close(file.descriptor)

    def read_into(self, start: int, out: memoryview) -> None:  # noqa: D102
        with self.opened() as file:
            file.read_into(start, out)

    @contextmanager
    def opened(self) -> Iterator[OpenFile]:  # noqa: D102
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
            raise _failed(error, self.uri) from error
        except OSError as error:
            raise _failed(error, self.uri) from error
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise _irregular(self.uri, found.st_mode)
            facts, now = self.facts, (found.st_size, found.st_mtime_ns)
            if facts is not None and (facts.size, facts.mtime_ns) != now:
                _check_unchanged(self.uri, facts, FileFacts(*now))
        except BaseException:
            os.close(descriptor)
            raise
        return OpenFile(self.uri, descriptor, found.st_size)


def _irregular(uri: str, mode: int) -> SourceError:
    error = SourceError("not a regular file", file=uri)
    if stat.S_ISDIR(mode):
        error.__cause__ = IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return error


# Opening a pipe would wait for who writes to it.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def read_small(path: str) -> bytes | None:
    """Return what a file holds, quickly, or None if there is more to say of it.

    That is: it is not there, it is no plain file, it is empty, or has `SMALL` bytes or more.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return None
    try:
        data = os.read(descriptor, SMALL)
        return data if 0 < len(data) < SMALL and not os.read(descriptor, 1) else None
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

    def read(self, start: int, stop: int | None, most: int | None = None) -> Buffer:  # noqa: D102
        stop = self.size if stop is None else stop
        self._check(start, stop)
        check_most(self.uri, stop - start, most)
        view = _scratch.take(stop - start)
        self.fill(start, view)
        return view

    def read_into(self, start: int, out: memoryview) -> None:  # noqa: D102
        self._check(start, start + out.nbytes)
        self.fill(start, out.cast("B"))

    def opened(self) -> AbstractContextManager[ByteFile]:  # noqa: D102
        return nullcontext(self)

    def _check(self, start: int, stop: int) -> None:
        # Before memory is taken: a reference may claim any length.
        if stop > self.size or start > stop:
            raise _too_short(self.uri, start, stop, self.size)

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
                raise _failed(error, self.uri) from error
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
                raise _failed(error, self.uri) from error
            if not count:
                raise _too_short(self.uri, start, start + nbytes, start + done)
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


class InlineFile:
    """Bytes that are here already."""

    __slots__ = ("data", "uri")
    remote = False

    def __init__(self, data: bytes, uri: str = "inline data") -> None:
        self.data = memoryview(data).cast("B")
        self.uri = uri

    def read(self, start: int, stop: int | None, most: int | None = None) -> Buffer:  # noqa: D102
        stop = self.data.nbytes if stop is None else stop
        if stop > self.data.nbytes or start > stop:
            raise _too_short(self.uri, start, stop, self.data.nbytes)
        return self.data[start:stop]

    def read_into(self, start: int, out: memoryview) -> None:  # noqa: D102
        out[:] = self.read(start, start + out.nbytes)

    def opened(self) -> AbstractContextManager[ByteFile]:  # noqa: D102
        return nullcontext(self)


class AbsentFile:
    """A file that is known not to be there."""

    __slots__ = ("uri",)
    remote = False

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def read(self, start: int, stop: int | None, most: int | None = None) -> Buffer:  # noqa: D102
        raise SourceNotFoundError("there is no such file", file=self.uri)

    def read_into(self, start: int, out: memoryview) -> None:  # noqa: D102
        self.read(start, None)

    def opened(self) -> AbstractContextManager[ByteFile]:  # noqa: D102
        return nullcontext(self)


class Connection:
    """fsspec's file system for a URL, for any number of threads, and for forked processes.

    Of fsspec's file systems only the asynchronous ones may be used by several threads at once; a
    lock lets threads into the others one by one. A process that was forked shares neither the event
    loop nor the file positions of its parent: it connects anew.

    Attributes
    ----------
    url : str
    storage_options : mapping, optional
    path : str
        What the URL's path is in the file system.
    """

    _locks: ClassVar[WeakKeyDictionary[Any, threading.Lock]] = WeakKeyDictionary()

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self.url = url
        self.storage_options = storage_options
        self._connect()

    def _connect(self) -> None:
        self._fs, self.path = filesystem(self.url, self.storage_options)
        self._guard: AbstractContextManager[Any] = nullcontext()
        if not self._fs.async_impl:
            # It may serve other URLs, too: fsspec keeps and shares file systems.
            self._guard = self._locks.setdefault(self._fs, threading.Lock())
        self._process = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return Connection, (self.url, self.storage_options)

    def call(self, method: str, path: str, uri: str, *values: Any, **options: Any) -> Any:
        """Call a method of the file system on a path; `uri` is its name in messages.

        Raises
        ------
        SourceError
            Whatever goes wrong: the exceptions of file systems have no common base.
        """
        if self._process != os.getpid():
            self._connect()
        try:
            with self._guard:
                return getattr(self._fs, method)(path, *values, **options)
        except Exception as error:
            raise _failed(error, uri) from error


if hasattr(os, "register_at_fork"):
    # A lock that another thread holds while the process forks is never released in the child.
    os.register_at_fork(after_in_child=Connection._locks.clear)


class RemoteFile:
    """A file that fsspec opens; each read is one request."""

    __slots__ = ("connection", "facts", "path", "uri")
    remote = True
    _verified: ClassVar[set[tuple[str, FileFacts]]] = set()

    def __init__(
        self,
        uri: str,
        storage_options: Mapping[str, Any] | None = None,
        facts: FileFacts | None = None,
    ) -> None:
        self.uri = uri
        self.facts = facts
        self.connection = Connection(uri, storage_options)
        self.path = self.connection.path

    @classmethod
    def within(cls, connection: Connection, path: str, uri: str) -> RemoteFile:
        """Make a file of a file system that is connected already."""
        self = cls.__new__(cls)
        self.uri, self.connection, self.path, self.facts = uri, connection, path, None
        return self

    def read(self, start: int, stop: int | None, most: int | None = None) -> Buffer:  # noqa: D102
        size = None if self.facts is None else self.facts.size
        if size is not None and (start > size or (stop is not None and stop > size)):
            raise _too_short(self.uri, start, stop or size, size)
        if stop is not None and start >= stop:
            return b""
        by_size = stop is None and start == 0 and self.facts == FileFacts(size)
        if not by_size:
            self._verify()
        data: bytes = self.connection.call("cat_file", self.path, self.uri, start=start, end=stop)
        if by_size:
            # All that is known of the file is what has just come: nothing else need be asked.
            _check_unchanged(self.uri, self.facts, FileFacts(len(data)))
        if stop is not None and len(data) < stop - start:
            raise _too_short(self.uri, start, stop, start + len(data))
        if stop is not None and len(data) > stop - start:
            raise SourceError(
                f"{stop - start} bytes were asked for and {len(data)} came: "
                "the server does not understand byte ranges",
                file=self.uri,
            )
        check_most(self.uri, len(data), most)
        return data

    def tail(self, nbytes: int) -> Buffer:
        """Return the last bytes of the file, or all of it where it has no more."""
        self._verify()
        data: bytes = self.connection.call("cat_file", self.path, self.uri, start=-nbytes)
        # A server may not understand such a range and send everything.
        return data[-nbytes:]

    def _verify(self) -> None:
        """Ask once for each file and process whether it is as it was when scanned."""
        if self.facts is None or not config.verify_sources:
            return
        if (self.uri, self.facts) not in self._verified:
            options = self.connection.storage_options
            now = file_facts(self.uri, options, fresh=True)
            _check_unchanged(self.uri, self.facts, now)
            self._verified.add((self.uri, self.facts))

    def read_into(self, start: int, out: memoryview) -> None:  # noqa: D102
        out[:] = self.read(start, start + out.nbytes)

    def opened(self) -> AbstractContextManager[ByteFile]:  # noqa: D102
        return nullcontext(self)


def _check_unchanged(uri: str, scanned: FileFacts | None, now: FileFacts) -> None:
    if scanned is None or not config.verify_sources:
        return
    if (
        _differ(scanned.size, now.size)
        or _differ(scanned.mtime_ns, now.mtime_ns)
        or _differ(scanned.etag, now.etag)
    ):
        raise SourceChangedError("the file changed since it was scanned; scan it again", file=uri)


def _differ(old: object, new: object) -> bool:
    return old is not None and new is not None and old != new


def _too_short(uri: str, start: int, stop: int, size: int) -> SourceError:
    return SourceError(
        f"bytes {start} to {stop} are needed, but the file has only {size}", file=uri
    )


def check_most(uri: str, size: int, most: int | None) -> None:
    """Refuse a file that is larger than anything it may hold."""
    if most is not None and size > most:
        raise SourceError(f"{size} bytes are too many: at most {most} are needed", file=uri)


def _failed(error: Exception, uri: str) -> SourceError:
    kind = SourceNotFoundError if isinstance(error, FileNotFoundError) else SourceError
    message = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return kind(str(message), file=uri)
