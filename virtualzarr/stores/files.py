"""One file as bytes, wherever it is: local, remote through fsspec, or in memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from virtualzarr.config import config
from virtualzarr.errors import SourceError, SourceNotFoundError, UnsupportedError

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What tells one version of a file from another."""

    size: int | None
    mtime_ns: int | None = None
    etag: str | None = None


def is_url(uri: str) -> bool:
    """Tell whether a text names a place by protocol, as fsspec understands it."""
    return "://" in uri or "::" in uri


def resolve_uri(path_or_url: Any) -> str:
    """Return a URL as it is and a local path (or ``file://`` URL) as an absolute path.

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
    return text if is_url(text) else str(Path(text).absolute())


def filesystem(uri: str, storage_options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path within it.

    Raises
    ------
    UnsupportedError
        If fsspec knows no such protocol, or the package it needs is not installed.
    """
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(uri, **(storage_options or {}))
    except (ValueError, ImportError) as error:
        raise UnsupportedError(f"cannot open the URL: {error}", file=uri) from error
    return fs, path


def file_facts(uri: str, storage_options: Mapping[str, Any] | None = None) -> FileFacts:
    """Take a file's fingerprint.

    Raises
    ------
    SourceError
        If the file is not there or cannot be looked at.
    """
    try:
        if not is_url(uri):
            stat = os.stat(uri)
            return FileFacts(stat.st_size, stat.st_mtime_ns)
        fs, path = filesystem(uri, storage_options)
        info = fs.info(path)
    except OSError as error:
        raise _failed(error, uri) from error
    etag = info.get("ETag") or info.get("etag")
    return FileFacts(info.get("size"), None, None if etag is None else str(etag))


class ByteFile(Protocol):
    """What readers need of a file. Methods may be called from several threads at once."""

    uri: str
    remote: bool

    def read(self, start: int, stop: int | None) -> Buffer:
        """Return the bytes from `start` up to `stop`, or to the end.

        The buffer may be overwritten by the next read in the same thread.

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
        if nbytes > 64 * 1024 * 1024:
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

    def read(self, start: int, stop: int | None) -> Buffer:  # noqa: D102
        with self.opened() as file:
            return file.read(start, stop)

    def read_into(self, start: int, out: memoryview) -> None:  # noqa: D102
        with self.opened() as file:
            file.read_into(start, out)

    @contextmanager
    def opened(self) -> Iterator[ByteFile]:  # noqa: D102
        try:
            file = FileIO(self.uri)
        except OSError as error:
            raise _failed(error, self.uri) from error
        with file:
            stat = os.fstat(file.fileno())
            _check_unchanged(self.uri, self.facts, FileFacts(stat.st_size, stat.st_mtime_ns))
            yield _OpenFile(self.uri, file, stat.st_size)


class _OpenFile:
    """A local file while it is open."""

    __slots__ = ("file", "size", "uri")
    remote = False

    def __init__(self, uri: str, file: FileIO, size: int) -> None:
        self.uri = uri
        self.file = file
        self.size = size

    def read(self, start: int, stop: int | None) -> Buffer:
        stop = self.size if stop is None else stop
        self._check(start, stop)
        view = _scratch.take(stop - start)
        self._fill(start, view)
        return view

    def read_into(self, start: int, out: memoryview) -> None:
        self._check(start, start + out.nbytes)
        self._fill(start, out.cast("B"))

    def opened(self) -> AbstractContextManager[ByteFile]:
        return nullcontext(self)

    def _check(self, start: int, stop: int) -> None:
        # Before memory is taken: a reference may claim any length.
        if stop > self.size or start > stop:
            raise _too_short(self.uri, start, stop, self.size)

    def _fill(self, start: int, view: memoryview) -> None:
        self.file.seek(start)
        done = 0
        while done < view.nbytes:
            try:
                count = self.file.readinto(view[done:] if done else view)
            except OSError as error:
                raise _failed(error, self.uri) from error
            if not count:
                raise _too_short(self.uri, start, start + view.nbytes, start + done)
            done += count


class InlineFile:
    """Bytes that are here already."""

    __slots__ = ("data", "uri")
    remote = False

    def __init__(self, data: bytes, uri: str = "inline data") -> None:
        self.data = memoryview(data)
        self.uri = uri

    def read(self, start: int, stop: int | None) -> Buffer:  # noqa: D102
        stop = self.data.nbytes if stop is None else stop
        if stop > self.data.nbytes or start > stop:
            raise _too_short(self.uri, start, stop, self.data.nbytes)
        return self.data[start:stop]

    def read_into(self, start: int, out: memoryview) -> None:  # noqa: D102
        out[:] = self.read(start, start + out.nbytes)

    def opened(self) -> AbstractContextManager[ByteFile]:  # noqa: D102
        return nullcontext(self)


class RemoteFile:
    """A file that fsspec opens; each read is one request."""

    __slots__ = ("facts", "fs", "path", "storage_options", "uri")
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
        self.storage_options = storage_options
        self.fs, self.path = filesystem(uri, storage_options)

    @classmethod
    def within(cls, fs: Any, path: str, uri: str) -> RemoteFile:
        """Make a file of an fsspec file system that is open already."""
        self = cls.__new__(cls)
        self.uri, self.fs, self.path = uri, fs, path
        self.facts = self.storage_options = None
        return self

    def read(self, start: int, stop: int | None) -> Buffer:  # noqa: D102
        size = None if self.facts is None else self.facts.size
        if size is not None and (start > size or (stop is not None and stop > size)):
            raise _too_short(self.uri, start, stop or size, size)
        if stop is not None and start >= stop:
            return b""
        if self.facts is not None and (self.uri, self.facts) not in self._verified:
            # One request more for each file and process buys that no changed file is misread.
            _check_unchanged(self.uri, self.facts, file_facts(self.uri, self.storage_options))
            self._verified.add((self.uri, self.facts))
        try:
            data: bytes = self.fs.cat_file(self.path, start=start, end=stop)
        except OSError as error:
            raise _failed(error, self.uri) from error
        if stop is not None and len(data) != stop - start:
            raise _too_short(self.uri, start, stop, start + len(data))
        return data

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
        raise SourceError("the file changed since it was scanned; scan it again", file=uri)


def _differ(old: object, new: object) -> bool:
    return old is not None and new is not None and old != new


def _too_short(uri: str, start: int, stop: int, size: int) -> SourceError:
    return SourceError(
        f"bytes {start} to {stop} are needed, but the file has only {size}", file=uri
    )


def _failed(error: OSError, uri: str) -> SourceError:
    kind = SourceNotFoundError if isinstance(error, FileNotFoundError) else SourceError
    return kind(error.strerror or str(error) or type(error).__name__, file=uri)
