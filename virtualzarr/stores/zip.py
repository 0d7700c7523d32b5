"""A store in one zip file."""

from __future__ import annotations

import lzma
import os
import threading
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Literal, Self

from virtualzarr.errors import SourceError, SourceNotFoundError
from virtualzarr.stores.files import Buffer, ByteFile, InlineFile, check_most, resolve_uri
from virtualzarr.stores.store import (
    ByteRange,
    Change,
    check_key,
    first_parts,
    read_only,
    sliced,
)

_DAMAGED = (
    *(OSError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    *(NotImplementedError, RuntimeError),  # encrypted, or compressed in a way unknown here
)


class ZipStore:
    """A store in one zip file, written by one process and closed at the end.

    Values are stored as they are: chunks are compressed already. Replaced and deleted ones leave
    the archive's directory, but their bytes stay in the file.

    Parameters
    ----------
    path : str or path
    mode : {"r", "w", "a"}
        Read; write anew; or add to what is there.

    Raises
    ------
    SourceError
        The file is not there, or not a zip file.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/a.zip"
    >>> with ZipStore(path, "w") as store:
    ...     store.set("zarr.json", b"{}")
    >>> ZipStore(path).get("zarr.json")
    b'{}'
    """

    guarantees = (
        "update excludes threads that use this very store; no other process may write to the "
        "file, and what was written cannot be read by others before close()"
    )

    def __init__(self, path: str | os.PathLike[str], mode: Literal["r", "w", "a"] = "r") -> None:
        self.uri = resolve_uri(path)
        self.mode = mode
        self._open()

    def _open(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()
        try:
            self._zip = zipfile.ZipFile(self.uri, self.mode)
        except FileNotFoundError as error:
            raise SourceNotFoundError("there is no such zip file", file=self.uri) from error
        except (OSError, zipfile.BadZipFile) as error:
            raise SourceError(f"cannot open the zip file: {error}", file=self.uri) from error

    @contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        """Lend the archive to one thread at a time.

        A process that was forked shares lock and file position with its parent: it opens its own.
        """
        if self._process != os.getpid():
            if self.writable:
                raise SourceError("the zip file is being written by another process", file=self.uri)
            self._open()
        with self._lock:
            yield self._zip

    @property
    def writable(self) -> bool:
        """Whether the file was opened to be written."""
        return self.mode != "r"

    def close(self) -> None:
        """Write the archive's directory; without it the file cannot be read."""
        with self._archive() as archive:
            archive.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[ZipStore], tuple[str]]:
        if self.writable:
            raise TypeError("a zip file that is being written cannot be pickled")
        return ZipStore, (self.uri,)

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes | None:
        """Return the value of a key, or None."""
        with self._archive() as archive:
            entry = archive.NameToInfo.get(key)
            if entry is None:
                return None
            try:
                return sliced(archive.read(entry), byte_range)
            except _DAMAGED as error:
                raise SourceError(str(error), file=f"{self.uri}/{key}") from error

    def file(self, key: str) -> ByteFile | None:
        """Return the value of a key as a file, or None."""
        with self._archive() as archive:
            entry = archive.NameToInfo.get(key)
        return None if entry is None else _Entry(self, key, entry.file_size)

    def list_dir(self, prefix: str) -> Iterator[str]:
        """Yield the names under a prefix."""
        return first_parts((key for key, _ in self.list()), prefix)

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield keys and sizes under a prefix."""
        start = f"{prefix}/" if prefix else ""
        with self._archive() as archive:
            entries = [*archive.NameToInfo.items()]
        for key, entry in entries:
            if key.startswith(start) and not entry.is_dir():
                yield key, entry.file_size

    def set(self, key: str, data: Buffer) -> None:
        """Give a key a value."""
        check_key(key, self.uri)
        with self._archive() as archive:
            self._drop(key)
            archive.writestr(key, bytes(data))

    def delete(self, key: str) -> None:
        """Take a key's value away, if it has one."""
        with self._archive():
            self._drop(key)

    def _drop(self, key: str) -> None:
        if not self.writable:
            raise read_only(self.uri)
        entry = self._zip.NameToInfo.pop(key, None)
        if entry is not None:
            self._zip.filelist = [other for other in self._zip.filelist if other is not entry]
            # Assigned so that the directory is written anew.
            self._zip.comment = self._zip.comment

    def delete_dir(self, prefix: str) -> None:
        """Take away all keys under a prefix."""
        for key, _ in [*self.list(prefix)]:
            self.delete(key)

    def update(self, key: str, change: Change) -> None:
        """Replace a key's value by what `change` makes of it."""
        check_key(key, self.uri)
        with self._archive():
            old = self.get(key)
            new = change(old)
            if new is None:
                self.delete(key)
            elif new is not old:
                self.set(key, new)


class _Entry(InlineFile):
    """A value of a zip file, read when it is needed."""

    __slots__ = ("_data", "_key", "_size", "_store")

    def __init__(self, store: ZipStore, key: str, size: int) -> None:
        self.uri = f"{store.uri}/{key}"
        self._store, self._key, self._size = store, key, size
        self._data: memoryview | None = None

    @property
    def data(self) -> memoryview:  # type: ignore[override]
        if self._data is None:
            data = self._store.get(self._key)
            if data is None:
                raise SourceNotFoundError("deleted in the meantime", file=self.uri)
            self._data = memoryview(data)
        return self._data

    def read(self, start: int, stop: int | None, most: int | None = None) -> Buffer:
        check_most(self.uri, self._size, most)
        return super().read(start, stop)
