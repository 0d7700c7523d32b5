"""Files and folders that appear whole or not at all: a local path or a URL that fsspec opens.

What is there is replaced by a rename, so that readers see the old or the new. Symbolic links are
followed, and what is replaced gives its mode to what comes in its place.
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
from virtualzarr.stores.files import filesystem, is_file, is_url
from virtualzarr.stores.location import Location
from virtualzarr.stores.locks import writer_lock

_log = logging.getLogger(__name__)

_PART, _ASIDE = ".part", ".old"


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
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        failed = WriteError(f"cannot write here: {text}", file=uri)
        failed.errno = getattr(error, "errno", None)
        raise failed from error


def resolve_links(uri: str) -> str:
    """Return the path that a local path leads to by symbolic links; a URL as it is."""
    return uri if is_url(uri) else os.path.realpath(uri)


@contextmanager
def lock_for_writing(uri: str) -> Iterator[None]:
    """Exclude all others that write a file or folder, and tidy up after those that died.

    See `virtualzarr.stores.locks.writer_lock`.
    """
    with writer_lock(uri) as is_first:
        if is_first and not is_url(uri):
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
    """Give the name of a new file, which takes the place of another, or of none, in the end."""
    check_regular(uri)
    part = _temporary_name(resolve_links(uri))
    try:
        yield part
        with write_errors(uri):
            replace_file(part, uri)
    finally:
        Path(part).unlink(missing_ok=True)


def _temporary_name(place: str) -> str:
    """Return a name beside a place for what is to be put there."""
    folder, name = os.path.split(place)
    return os.path.join(folder, f".{name[:200]}.{secrets.token_hex(8)}{_PART}")


def _remove_leftovers(place: str) -> None:
    """Remove what writers left that died; with the lock held, none is at work."""
    folder, name = os.path.split(place)
    pattern = re.compile(rf"\.{re.escape(name[:200])}\.[0-9a-f]{{16}}{_PART}({_ASIDE})?")
    if not os.path.isdir(folder):
        return
    with os.scandir(folder) as entries:
        left = [entry.path for entry in entries if pattern.fullmatch(entry.name)]
    for path in left:
        if path.endswith(_ASIDE) and not os.path.lexists(place):
            os.rename(path, place)  # it was to be replaced, and was not
    for path in left:
        _log.info("removed %s, left by a process that died", path)
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            Path(path).unlink(missing_ok=True)


def _mode_of(place: str) -> int | None:
    """Return the permissions of what is at a place."""
    try:
        return stat.S_IMODE(os.stat(place).st_mode)
    except FileNotFoundError:
        return None


class _Atomic:
    """What is written beside its place, and put there when all of it is on the disk."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.uri = location.uri
        self.nbytes = 0

    def _send(self, files: Mapping[str, str], uri: str) -> None:
        """Put files at paths below a URL, "" for the URL itself, one after the other."""
        fs, root = filesystem(self.location.with_uri(uri))
        for name, part in files.items():
            path = f"{root.rstrip('/')}/{name}" if name else root
            fs.makedirs(fs._parent(path), exist_ok=True)
            fs.put_file(part, path)


class AtomicFile(_Atomic):
    """A file written beside its place and put there when all of it is on the disk.

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
                handle, self.part = tempfile.mkstemp(_PART)
                self._file = os.fdopen(handle, "wb")
            else:
                self.part = _temporary_name(resolve_links(self.uri))
                self._file = open(self.part, "xb")
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
        """Put the file in its place, or in another in the same folder."""
        assert self._file is not None
        self.uri = uri or self.uri
        with write_errors(self.uri):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
            if is_url(self.uri):
                self._send({"": self.part}, self.uri)
            else:
                replace_file(self.part, self.uri)

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            with suppress(OSError):  # what cannot be written any more is not wanted any more
                self._file.close()
        Path(self.part).unlink(missing_ok=True)


def replace_file(part: str, uri: str) -> None:
    """Put a file that is on the disk in the place of another, or of none."""
    place = resolve_links(uri)
    mode = _mode_of(place)
    if mode is not None:
        os.chmod(part, mode)
    os.replace(part, place)
    _sync_folder(os.path.dirname(place))


def _sync_folder(folder: str) -> None:
    """Make the new name itself durable, where folders can be opened."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class AtomicFolder(_Atomic):
    """A folder written beside its place and put there when all of it is on the disk.

    Parameters
    ----------
    location : Location
    growing : bool
        Whether the folder is there, and what is written is put into it, file by file.

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
                self._part = tempfile.mkdtemp(_PART)
            else:
                self._part = _temporary_name(resolve_links(self.uri))
                os.mkdir(self._part)
        return self

    def file(self, name: str) -> str:
        """Return the path at which a file is to be written."""
        path = os.path.join(self._part, *name.split("/"))
        with write_errors(self.uri):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def write(self, name: str, data: bytes) -> None:
        """Write a file."""
        with write_errors(self.uri):
            Path(self.file(name)).write_bytes(data)

    def commit(self, last: str) -> None:
        """Put everything in its place: where that is done file by file, one of them last."""
        files = [
            os.path.relpath(os.path.join(folder, name), self._part)
            for folder, _, names in os.walk(self._part)
            for name in names
        ]
        files.sort(key=lambda name: (name == last, name))
        with write_errors(self.uri):
            self.nbytes = sum(os.path.getsize(self.file(name)) for name in files)
            if is_url(self.uri):
                self._upload(files)
                return
            for name in files:
                with open(self.file(name), "rb+") as file:
                    os.fsync(file.fileno())
            if self._growing:
                self._put_into(files)
            else:
                replace_folder(self._part, resolve_links(self.uri))
            _sync_folder(os.path.dirname(resolve_links(self.uri)))

    def _put_into(self, files: list[str]) -> None:
        for name in files:
            place = os.path.join(self.uri, name)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            replace_file(self.file(name), place)

    def _upload(self, files: list[str]) -> None:
        if not self._growing and is_file(self.location.with_uri(f"{self.uri}/{files[-1]}")):
            raise PublishError(
                "there are references already, and they cannot be replaced all at once: "
                "write to another place, or delete them before",
                file=self.uri,
            )
        self._send({name: self.file(name) for name in files}, self.uri)

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._part, ignore_errors=True)


def replace_folder(new: str, place: str) -> None:
    """Put a folder in the place of another, which is then at `new`, or of none."""
    mode = _mode_of(place)
    if mode is None:
        os.rename(new, place)
        return
    os.chmod(new, mode)
    if not exchange_names(new, place):
        # Not at once; but neither of them is ever incomplete.
        aside = f"{new}{_ASIDE}"
        os.rename(place, aside)
        os.rename(new, place)
        os.rename(aside, new)


def exchange_names(one: str, other: str) -> bool:
    """Exchange two names at once, where the system can; tell whether it could."""
    import ctypes

    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    here, exchanged = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), exchanged) == 0)
