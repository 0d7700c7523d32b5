"""Files and folders that appear whole or not at all: a local path or a URL that fsspec opens."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from virtualzarr.errors import PublishError
from virtualzarr.stores.files import filesystem, is_url


class Target:
    """A file written beside its place and put there when all of it is on the disk.

    Parameters
    ----------
    uri : str
        An absolute local path, or a URL.
    storage_options : mapping, optional
        How fsspec opens the URL.
    digest : bool
        Whether `digest` will be asked for.

    Examples
    --------
    >>> with Target("/tmp/virtualzarr-doctest.json") as target:
    ...     target.write(b"{}")
    ...     target.commit()
    >>> open("/tmp/virtualzarr-doctest.json").read()
    '{}'
    """

    def __init__(
        self,
        uri: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        digest: bool = False,
    ) -> None:
        self.uri = uri
        self.nbytes = 0
        self._storage_options = storage_options
        self._digest = hashlib.sha256() if digest else None
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        folder = tempfile.gettempdir() if is_url(self.uri) else os.path.dirname(self.uri)
        self._temporary = os.path.join(folder, f".{secrets.token_hex(8)}.part")
        try:
            self._file = open(self._temporary, "xb")
        except OSError as error:
            raise PublishError(f"cannot write here: {error.strerror}", file=self.uri) from error
        return self

    def write(self, data: bytes) -> None:
        """Append bytes."""
        assert self._file is not None
        self._file.write(data)
        if self._digest is not None:
            self._digest.update(data)
        self.nbytes += len(data)

    @property
    def digest(self) -> str:
        """What was written so far, as 16 hexadecimal digits."""
        assert self._digest is not None
        return self._digest.hexdigest()[:16]

    def commit(self, uri: str | None = None) -> None:
        """Put the file in its place, or in another in the same folder."""
        assert self._file is not None
        self.uri = uri or self.uri
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        if is_url(self.uri):
            self._upload()
        else:
            os.replace(self._temporary, self.uri)
            _sync_folder(os.path.dirname(self.uri))

    def _upload(self) -> None:
        fs, path = filesystem(self.uri, self._storage_options)
        try:
            fs.makedirs(fs._parent(path), exist_ok=True)
            fs.put_file(self._temporary, path)
        except (OSError, NotImplementedError) as error:
            raise PublishError(f"cannot write here: {error}", file=self.uri) from error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()
        Path(self._temporary).unlink(missing_ok=True)


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


class TargetFolder:
    """A folder written beside its place and put there when all of it is on the disk.

    Parameters
    ----------
    uri : str
        An absolute local path, or a URL.
    storage_options : mapping, optional
        How fsspec opens the URL.
    growing : bool
        Whether the folder is there, and what is written is put into it, file by file.
    """

    def __init__(
        self,
        uri: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        growing: bool = False,
    ) -> None:
        self.uri = uri.rstrip("/")
        self.nbytes = 0
        self._storage_options = storage_options
        self._growing = growing

    def __enter__(self) -> Self:
        place = tempfile.gettempdir() if is_url(self.uri) else os.path.dirname(self.uri)
        self._temporary = os.path.join(place, f".{secrets.token_hex(8)}.part")
        try:
            os.mkdir(self._temporary)
        except OSError as error:
            raise PublishError(f"cannot write here: {error.strerror}", file=self.uri) from error
        return self

    def file(self, name: str) -> str:
        """Return the path at which a file is to be written."""
        path = os.path.join(self._temporary, *name.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def write(self, name: str, data: bytes) -> None:
        """Write a file."""
        Path(self.file(name)).write_bytes(data)

    def commit(self, last: str) -> None:
        """Put everything in its place: where that is done file by file, one of them last."""
        files = [
            os.path.relpath(os.path.join(folder, name), self._temporary)
            for folder, _, names in os.walk(self._temporary)
            for name in names
        ]
        files.sort(key=lambda name: (name == last, name))
        self.nbytes = sum(os.path.getsize(self.file(name)) for name in files)
        if is_url(self.uri):
            self._upload(files)
            return
        for name in files:
            with open(self.file(name), "rb+") as file:
                os.fsync(file.fileno())
        if self._growing:
            for name in files:
                place = os.path.join(self.uri, name)
                os.makedirs(os.path.dirname(place), exist_ok=True)
                os.replace(self.file(name), place)
        else:
            replace_folder(self._temporary, self.uri)
        _sync_folder(os.path.dirname(self.uri))

    def _upload(self, files: list[str]) -> None:
        fs, root = filesystem(self.uri, self._storage_options)
        root = root.rstrip("/")
        try:
            if not self._growing and fs.exists(f"{root}/{files[-1]}"):
                raise PublishError(
                    "there are references already, and they cannot be replaced all at once: "
                    "write to another place, or delete them before",
                    file=self.uri,
                )
            for name in files:
                fs.makedirs(fs._parent(f"{root}/{name}"), exist_ok=True)
                fs.put_file(self.file(name), f"{root}/{name}")
        except (OSError, NotImplementedError) as error:
            raise PublishError(f"cannot write here: {error}", file=self.uri) from error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)


def replace_folder(new: str, place: str) -> None:
    """Put a folder in the place of another, which is then at `new`, or of none."""
    if not os.path.lexists(place):
        os.rename(new, place)
    elif not exchange(new, place):
        # Not at once; but neither of them is ever incomplete.
        aside = f"{new}.old"
        os.rename(place, aside)
        os.rename(new, place)
        os.rename(aside, new)


def exchange(one: str, other: str) -> bool:
    """Exchange two names at once, where the system can; tell whether it could."""
    import ctypes

    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    here, exchanged = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), exchanged) == 0)
