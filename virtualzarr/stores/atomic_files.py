"""Atomic replacement of files and folders, at a local path or a URL that fsspec opens.

A rename replaces the old content, so that readers see the old or the new. Symbolic links are
followed, and the new file gets the mode of the old one.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Self

from virtualzarr.errors import NodeExistsError, PublishError, VirtualZarrError, WriteError
from virtualzarr.stores.files import Connection, is_file, is_url
from virtualzarr.stores.foreign_errors import hide_requests
from virtualzarr.stores.local import sync_folder
from virtualzarr.stores.location import Location
from virtualzarr.stores.locks import writer_lock
from virtualzarr.stores.uris import is_object_store, resolve_links

_log = logging.getLogger(__name__)

_TEMPORARY, _REPLACED = ".part", ".old"


@contextmanager
def write_errors(uri: str) -> Iterator[None]:
    """Make errors of the system errors that name the file to be written.

    Examples
    --------
    >>> with write_errors("/data/refs.json"):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    virtualzarr.errors.WriteError: cannot write here: No space left on device [file /data/refs.json]
    """
    try:
        yield
    except VirtualZarrError:
        raise
    except (OSError, NotImplementedError) as error:
        raise _as_write_error(error, uri) from error


def _as_write_error(error: Exception, uri: str) -> WriteError:
    hide_requests(error)
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    failed = WriteError(f"cannot write here: {text}", file=uri)
    failed.errno = getattr(error, "errno", None)
    return failed


@contextmanager
def lock_for_writing(uri: str) -> Iterator[None]:
    """Exclude all others that write a file or folder, and remove what those left that died.

    See `virtualzarr.stores.locks.writer_lock`.
    """
    with writer_lock(uri) as is_first:
        if is_first and not is_url(uri):
            # Only the first level of nested locks: within it, the temporary files are our own.
            _remove_leftovers(resolve_links(uri))
        yield


def check_regular(uri: str) -> None:
    """Refuse to replace a device, a pipe, or the like.

    Raises
    ------
    NodeExistsError
    """
    try:
        mode = os.stat(resolve_links(uri)).st_mode
    except OSError:
        return  # nothing is there, or whoever writes says what is wrong
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise NodeExistsError("it is neither a file nor a folder: write to another place", file=uri)


@contextmanager
def replace_atomically(uri: str) -> Iterator[str]:
    """Give the name of a new file, which replaces another, or none, in the end."""
    check_regular(uri)
    temporary = _temporary_name(resolve_links(uri))
    try:
        yield temporary
        with write_errors(uri):
            replace_file(temporary, uri)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _temporary_name(path: str) -> str:
    """Return a name beside a path for its new content: a rename works within one device only."""
    folder, name = os.path.split(path)
    # Names have at most 255 bytes; what is added here takes 23.
    return os.path.join(folder, f".{name[:200]}.{secrets.token_hex(8)}{_TEMPORARY}")


def _remove_leftovers(path: str) -> None:
    """Remove what writers left that died; with the lock held, none is at work."""
    folder, name = os.path.split(path)
    pattern = re.compile(rf"\.{re.escape(name[:200])}\.[0-9a-f]{{16}}{_TEMPORARY}({_REPLACED})?")
    if not os.path.isdir(folder):
        return
    with os.scandir(folder) as entries:
        leftovers = [entry.path for entry in entries if pattern.fullmatch(entry.name)]
    for leftover in leftovers:
        # The writer died between the two renames of `replace_folder`: the old folder comes back.
        if leftover.endswith(_REPLACED) and not os.path.lexists(path):
            os.rename(leftover, path)
    for leftover in leftovers:
        _log.info("removed %s, left by a process that died", leftover)
        if os.path.isdir(leftover):
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            Path(leftover).unlink(missing_ok=True)


def _mode_of(path: str) -> int | None:
    """Return the permissions of a file or folder; None where there is none."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        return None


class _Atomic:
    """Content that is written under another name, and renamed when all of it is on the disk."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.uri = location.uri
        self.nbytes = 0

    def _send(self, files: Mapping[str, str], uri: str) -> None:
        """Upload files to paths below a URL, "" for the URL itself, one after the other."""
        connection = Connection(self.location.with_uri(uri))
        root = connection.path
        has_folders = not is_object_store(uri)
        try:
            for name, local in files.items():
                path = f"{root.rstrip('/')}/{name}" if name else root
                connection.put(path, uri, local, has_folders=has_folders)
        except Exception as error:  # those of file systems have no common base
            raise _as_write_error(error, uri) from error


class AtomicFile(_Atomic):
    """A file that replaces another when all of it is on the disk.

    Parameters
    ----------
    location : Location
    digest : bool
        Whether `digest` will be asked for.

    Raises
    ------
    WriteError
        It cannot be written; what was there is there still.

    Examples
    --------
    >>> with AtomicFile(Location("/tmp/virtualzarr-doctest.json")) as target:
    ...     target.write(b"{}")
    ...     target.commit()
    >>> open("/tmp/virtualzarr-doctest.json").read()
    '{}'
    """

    def __init__(self, location: Location, *, digest: bool = False) -> None:
        super().__init__(location)
        self._digest = hashlib.sha256() if digest else None
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        with write_errors(self.uri):
            if is_url(self.uri):
                handle, self.temporary = tempfile.mkstemp(_TEMPORARY)
                self._file = os.fdopen(handle, "wb")
            else:
                self.temporary = _temporary_name(resolve_links(self.uri))
                self._file = open(self.temporary, "xb")
        return self

    def write(self, data: bytes) -> None:
        """Append bytes."""
        assert self._file is not None
        with write_errors(self.uri):
            self._file.write(data)
        if self._digest is not None:
            self._digest.update(data)
        self.nbytes += len(data)

    @property
    def digest(self) -> str:
        """The beginning of the SHA-256 digest of what was written."""
        assert self._digest is not None
        return self._digest.hexdigest()[:16]

    def commit(self, uri: str | None = None) -> None:
        """Rename the file to its path, or to another in the same folder."""
        assert self._file is not None
        self.uri = uri or self.uri
        with write_errors(self.uri):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
            if is_url(self.uri):
                self._send({"": self.temporary}, self.uri)
            else:
                replace_file(self.temporary, self.uri)

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            with suppress(OSError):  # buffered bytes that cannot be written are dropped anyway
                self._file.close()
        Path(self.temporary).unlink(missing_ok=True)


def replace_file(temporary: str, uri: str) -> None:
    """Rename a file that is on the disk to the path of another, or of none."""
    path = resolve_links(uri)
    mode = _mode_of(path)
    if mode is not None:
        os.chmod(temporary, mode)
    os.replace(temporary, path)
    _sync_name(path)


def _sync_name(path: str) -> None:
    """Make a new name itself durable: it is part of the folder, not of the file."""
    # Windows opens no folders; there a name is as durable as the system makes it.
    with suppress(PermissionError):
        sync_folder(os.path.dirname(path))


class AtomicFolder(_Atomic):
    """A folder that replaces another when all of it is on the disk.

    Parameters
    ----------
    location : Location
    growing : bool
        Whether the folder exists, and files are added to it, one by one.

    Raises
    ------
    WriteError
        It cannot be written.
    """

    def __init__(self, location: Location, *, growing: bool = False) -> None:
        super().__init__(location.with_uri(location.uri.rstrip("/")))
        self._growing = growing

    def __enter__(self) -> Self:
        with write_errors(self.uri):
            if is_url(self.uri):
                self._temporary = tempfile.mkdtemp(_TEMPORARY)
            else:
                self._temporary = _temporary_name(resolve_links(self.uri))
                os.mkdir(self._temporary)
        return self

    def file(self, name: str) -> str:
        """Return the path at which a file is to be written."""
        path = os.path.join(self._temporary, *name.split("/"))
        with write_errors(self.uri):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def write(self, name: str, data: bytes) -> None:
        """Write a file."""
        with write_errors(self.uri):
            Path(self.file(name)).write_bytes(data)

    def list_files(self) -> dict[str, str]:
        """Return the files that were written, by name: the paths where they are until they move."""
        files = {}
        for folder, _, names in os.walk(self._temporary):
            for name in names:
                path = os.path.join(folder, name)
                files[os.path.relpath(path, self._temporary).replace(os.sep, "/")] = path
        self.nbytes = sum(map(os.path.getsize, files.values()))
        return files

    def commit(self, last: str) -> None:
        """Rename everything to its path: where that is done file by file, one of them last."""
        with write_errors(self.uri):
            # Readers begin with that file: by then, all that it names must be there.
            files = sorted(self.list_files(), key=lambda name: (name == last, name))
            if is_url(self.uri):
                self._upload(files)
                return
            for name in files:
                with open(self.file(name), "rb+") as file:
                    os.fsync(file.fileno())
            if self._growing:
                self._add(files)
            else:
                replace_folder(self._temporary, resolve_links(self.uri))
            _sync_name(resolve_links(self.uri))

    def _add(self, files: list[str]) -> None:
        for name in files:
            path = os.path.join(self.uri, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            replace_file(self.file(name), path)

    def _upload(self, files: list[str]) -> None:
        if not self._growing and is_file(self.location.with_uri(f"{self.uri}/{files[-1]}")):
            raise PublishError(
                "there are references already, and they cannot be replaced all at once: "
                "write to another place, or delete them before",
                file=self.uri,
            )
        self._send({name: self.file(name) for name in files}, self.uri)

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)


def replace_folder(temporary: str, path: str) -> None:
    """Rename a folder to the path of another, which is then at `temporary`, or of none."""
    mode = _mode_of(path)
    if mode is None:
        os.rename(temporary, path)
        return
    os.chmod(temporary, mode)
    # POSIX renames a folder onto an empty one only.
    if not exchange_names(temporary, path):
        # Not at once; but neither of them is ever incomplete.
        replaced = f"{temporary}{_REPLACED}"
        os.rename(path, replaced)
        os.rename(temporary, path)
        os.rename(replaced, temporary)


def exchange_names(one: str, other: str) -> bool:
    """Exchange two names at once, where the system can; tell whether it could."""
    import ctypes

    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    at_fdcwd, rename_exchange = -100, 2
    names = os.fsencode(one), os.fsencode(other)
    return bool(rename(at_fdcwd, names[0], at_fdcwd, names[1], rename_exchange) == 0)
