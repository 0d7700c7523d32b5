"""Transports: bytes of remote files, with what each response tells of the file's version."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from virtualzarr.stores.changed_methods import is_unchanged
from virtualzarr.stores.conditional import Replaced
from virtualzarr.stores.credentials import Keyring
from virtualzarr.stores.files_in_memory import Buffer
from virtualzarr.stores.fingerprints import Fingerprint, check_length
from virtualzarr.stores.ftp import FtpTransport
from virtualzarr.stores.http import HttpTransport
from virtualzarr.stores.listing import Entry, Listings, beneath_caches
from virtualzarr.stores.location import Location
from virtualzarr.stores.retry import TransientError
from virtualzarr.stores.s3 import S3Transport

Answer = tuple[bytes, Fingerprint | None]
"""Bytes, and what tells the version of the file that they are of; None if nothing does."""

BufferAnswer = tuple[Buffer, Fingerprint | None]
"""An answer whose bytes may be in memory that is filled sooner."""


class Transport(Protocol):
    """Reads files of one file system, named by their paths there.

    All methods raise whatever the file system does, and `SourceError` for answers that are wrong.
    Of these, the caller retries what `as_transient` names, and nothing else.

    Attributes
    ----------
    fs : fsspec.AbstractFileSystem
    knows_lengths : bool
        Whether a limit costs no other request.
    must_ask_versions : bool
        Whether answers tell nothing of versions, which have to be asked for before and after.
    has_conditions : bool
        Whether `write` keeps conditions, as far as is known.
    """

    fs: Any

    has_conditions: bool

    knows_lengths: bool

    must_ask_versions: bool

    def fetch(self, path: str, start: int, stop: int | None, limit: int | None = None) -> Answer:
        """Return bytes ``start:stop``, fewer where the file ends; from its end if negative."""
        ...

    def fetch_many(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Answer]:
        """Return several ranges of a file, side by side where that can be."""
        ...

    def fingerprint(self, path: str) -> Fingerprint:
        """Return what tells the version of a file now, never from memory."""
        ...

    def entries(self, path: str) -> list[Entry]:
        """Return what is in a folder now."""
        ...

    def walk(self, path: str) -> list[Entry]:
        """Return all files below a folder; whatever cannot be listed is an error."""
        ...

    def write(self, path: str, data: bytes, replaced: Replaced | None = None) -> None:
        """Give a file these bytes; where the service keeps conditions, only if it may.

        Raises
        ------
        ConflictError
            What is there is not what may be replaced.
        """
        ...

    def put(self, path: str, local: str, *, has_folders: bool) -> None:
        """Give a file the bytes of a local one, in its folder where there are folders."""
        ...

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it, where they are not there."""
        ...

    def remove(self, path: str) -> None:
        """Delete a file."""
        ...

    def remove_links(self, path: str) -> None:
        """Remove links to folders, at a path and below, where there may be some."""
        ...

    def remove_below(self, path: str, first: Collection[str]) -> None:
        """Delete a folder and all in it; files of the names `first` before others, if it can."""
        ...

    def as_transient(self, error: Exception) -> TransientError | None:
        """Return what another attempt may put right; None for all that lasts."""
        ...

    def is_refusal(self, error: Exception) -> bool:
        """Tell whether other credentials may be accepted."""
        ...


_S3 = "s3fs.core.S3FileSystem", ("_call_s3", "set_session", "get_s3", "connect")
_HTTP = "fsspec.implementations.http.HTTPFileSystem", ("encode_url", "set_session")
_FTP = "fsspec.implementations.ftp.FTPFileSystem", ("_connect",)
"""Kinds of file systems that have a transport of their own, and what that calls of them."""


def transport_for(fs: Any, location: Location, keyring: Keyring | None = None) -> Transport:
    """Return how files of a file system of fsspec are read.

    Those of subclasses, such as of one that decrypts, by what these do.
    """
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(fs).__mro__}
    if "fsspec.implementations.local.LocalFileSystem" in kinds:
        return LocalTransport(fs)
    if _is_http(fs):
        return HttpTransport(fs, location, keyring)
    if is_unchanged(fs, *_S3):
        return S3Transport(fs)
    if is_unchanged(fs, *_FTP):
        return FtpTransport(fs)
    beneath = beneath_caches(fs)
    if beneath is not fs and _is_http(beneath):
        return WebCopyTransport(fs, HttpTransport(beneath, location, keyring))
    if "fsspec.implementations.cached.WholeFileCacheFileSystem" in kinds:
        return CopyTransport(fs)
    return FsspecTransport(fs)


def _is_http(fs: Any) -> bool:
    return is_unchanged(fs, *_HTTP)


class FsspecTransport(Listings):
    """Files of any file system of fsspec: what it returns does not say of which version it is."""

    knows_lengths = False
    must_ask_versions = True

    def fetch(self, path: str, start: int, stop: int | None, limit: int | None = None) -> Answer:
        """Return bytes of a file."""
        # Without a range: fsspec then needs no length, which costs another request.
        everything = start == 0 and stop is None
        if everything and limit is not None:
            # What a listing says is only to spare memory: reading says whether there is a file.
            with suppress(OSError, NotImplementedError):
                check_length(path, self._fs.info(path).get("size") or 0, limit)
        data = self._fs.cat_file(path, start=None if everything else start, end=stop)
        return bytes(data), None

    def fetch_many(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Answer]:
        """Return several ranges of a file."""
        starts, stops = zip(*ranges, strict=True)
        results = self._fs.cat_ranges([path] * len(ranges), list(starts), list(stops))
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [(bytes(result), None) for result in results]

    def fingerprint(self, path: str) -> Fingerprint:
        """Return what the file system tells of a file."""
        self._fs.invalidate_cache(path)  # its listing may be stale
        info = self._fs.info(path)
        if info.get("type") == "directory":
            raise IsADirectoryError(21, "it is a folder, not a file")
        return Fingerprint.from_info(info)

    def is_refusal(self, error: Exception) -> bool:
        """Tell whether other credentials may be accepted."""
        return isinstance(error, PermissionError)

    def as_transient(self, error: Exception) -> TransientError | None:
        """Return what another attempt may put right: a connection that broke or was not made."""
        broken = isinstance(error, ConnectionError | TimeoutError | EOFError)
        return TransientError(error) if broken else None


class CopyTransport(FsspecTransport):
    """Files that fsspec copies whole before it reads them: all reads are of the copy."""

    must_ask_versions = False

    def fetch(self, path: str, start: int, stop: int | None, limit: int | None = None) -> Answer:
        """Return bytes of a file."""
        if start >= 0:
            return super().fetch(path, start, stop, limit)
        with self._fs.open(path, "rb") as file:  # fsspec's `cat_file` counts back from no end
            file.seek(max(file.seek(0, 2) + start, 0))
            return file.read(), None


class WebCopyTransport(CopyTransport):
    """Files of web servers that fsspec copies, or blocks of them.

    Caches of fsspec say of every answer that is no success, such as 503, that there is no file.

    Parameters
    ----------
    fs : fsspec.AbstractFileSystem
    web : HttpTransport
        Asks the server itself whether what is missing is.
    """

    def __init__(self, fs: Any, web: HttpTransport) -> None:
        super().__init__(fs)
        self._web = web

    def fetch(self, path: str, start: int, stop: int | None, limit: int | None = None) -> Answer:
        """Return bytes of a file."""
        with self._missing_if_told(path):
            return super().fetch(path, start, stop, limit)

    def fetch_many(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Answer]:
        """Return several ranges of a file."""
        with self._missing_if_told(path):
            return super().fetch_many(path, ranges)

    def fingerprint(self, path: str) -> Fingerprint:
        """Return what the file system tells of a file."""
        try:
            return super().fingerprint(path)
        except FileNotFoundError:  # which caches say where a server lists nothing, too
            return self._web.fingerprint(path)

    @contextmanager
    def _missing_if_told(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            self._web.fingerprint(path)  # raises what the server says
            raise ConnectionError("fsspec did not get a file that is there") from error


class MemberTransport(FsspecTransport):
    """Members of an archive, which are of the version that the archive is of.

    Parameters
    ----------
    fs : fsspec.AbstractFileSystem
        Reads nothing of another version of the archive.
    archive : Fingerprint
        Of what the archive is as a whole.
    """

    must_ask_versions = False

    def __init__(self, fs: Any, archive: Fingerprint) -> None:
        super().__init__(fs)
        self._archive = archive

    def fetch(self, path: str, start: int, stop: int | None, limit: int | None = None) -> Answer:
        """Return bytes of a member, and what tells of which version they are."""
        data, _ = super().fetch(path, start, stop, limit)
        return data, self.fingerprint(path)

    def fetch_many(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Answer]:
        """Return several ranges of a member."""
        fingerprint = self.fingerprint(path)
        return [(data, fingerprint) for data, _ in super().fetch_many(path, ranges)]

    def fingerprint(self, path: str) -> Fingerprint:
        """Return the version of the archive, and the size of a member."""
        # Of a member, archives tell little more than its size: another one may have the same.
        return self._archive.of_member(super().fingerprint(path).size)


class LocalTransport(FsspecTransport):
    """Local files behind URLs of fsspec, which has their dates as floats: too coarse to compare."""

    knows_lengths = True

    def fingerprint(self, path: str) -> Fingerprint:
        """Return what the system tells of a file, its date in whole nanoseconds."""
        fingerprint, status = super().fingerprint(path), os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for who writes to it
            raise OSError(errno.EINVAL, "not a regular file", path)
        return Fingerprint(fingerprint.size, status.st_mtime_ns)
