"""Key-value stores: a Zarr hierarchy's keys in memory, in a directory, or at a URL."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from virtualzarr.errors import AccessError, SourceError
from virtualzarr.stores.files import (
    ByteFile,
    Connection,
    InlineFile,
    LocalFile,
    RemoteFile,
    is_url,
    resolve_uri,
)

_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class Store(Protocol):
    """Keys with ``/`` between their parts, and bytes for each."""

    uri: str

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, or None where there is none."""
        ...

    def file(self, key: str) -> ByteFile | None:
        """Return a key's value as a file to read from; None where it is known to be missing."""
        ...

    def list_dir(self, prefix: str) -> Iterator[str]:
        """Yield the next part of each key under a prefix, once each."""
        ...


class MemoryStore:
    """A store over a mapping.

    Examples
    --------
    >>> store = MemoryStore({"a/zarr.json": b"{}"})
    >>> store.get("a/zarr.json"), store.get("b"), list(store.list_dir(""))
    (b'{}', None, ['a'])
    """

    def __init__(self, data: Mapping[str, bytes] | None = None) -> None:
        self.data: Mapping[str, bytes] = {} if data is None else data
        self.uri = "memory"

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, or None."""
        value = self.data.get(key)
        return None if value is None else bytes(value)

    def file(self, key: str) -> ByteFile | None:
        """Return the value of a key as a file, or None."""
        value = self.data.get(key)
        return None if value is None else InlineFile(value, key)

    def list_dir(self, prefix: str) -> Iterator[str]:
        """Yield the names under a prefix."""
        start = f"{prefix}/" if prefix else ""
        names = (key[len(start) :].split("/", 1)[0] for key in self.data if key.startswith(start))
        yield from sorted(set(names))


class LocalStore:
    """A store over a directory."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.uri = resolve_uri(root)
        self.root = Path(self.uri)

    def _path(self, key: str) -> str:
        # Keys come from metadata that may be hostile.
        if key.startswith("/") or ".." in key.split("/") or "\\" in key or "\0" in key:
            raise AccessError(f"the key {key!r} leads out of the store", file=self.uri)
        return f"{self.uri}/{key}"

    def get(self, key: str) -> bytes | None:
        """Return the contents of a file, or None."""
        path = Path(self._path(key))
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise SourceError(str(error), file=f"{self.uri}/{key}") from error

    def file(self, key: str) -> ByteFile | None:
        """Return the file under a key, there or not."""
        return LocalFile(self._path(key))

    def list_dir(self, prefix: str) -> Iterator[str]:
        """Yield the names in a directory."""
        try:
            yield from sorted(os.listdir(self._path(prefix) if prefix else self.uri))
        except (FileNotFoundError, NotADirectoryError):
            return


class FsspecStore:
    """A store over any URL that fsspec opens."""

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self.uri = url.rstrip("/")
        self.storage_options = storage_options
        self.connection = Connection(self.uri, storage_options)
        self.root = self.connection.path.rstrip("/")

    def get(self, key: str) -> bytes | None:
        """Return the contents of an object, or None."""
        try:
            return bytes(
                self.connection.call("cat_file", f"{self.root}/{key}", f"{self.uri}/{key}")
            )
        except SourceError as error:
            if isinstance(error.__cause__, _ABSENT):
                return None
            raise

    def file(self, key: str) -> ByteFile | None:
        """Return the object under a key, there or not."""
        return RemoteFile.within(self.connection, f"{self.root}/{key}", f"{self.uri}/{key}")

    def list_dir(self, prefix: str) -> Iterator[str]:
        """Yield the names under a prefix; nothing where the server cannot list."""
        path = f"{self.root}/{prefix}" if prefix else self.root
        try:
            entries = self.connection.call("ls", path, self.uri, detail=False)
        except SourceError as error:
            if isinstance(error.__cause__, _ABSENT):
                return
            raise
        names = {str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in entries}
        yield from sorted(names - {""})


def open_store(target: Any, storage_options: Mapping[str, Any] | None = None) -> Store:
    """Return a store over a directory, a URL, a mapping of bytes, or a store itself.

    Examples
    --------
    >>> open_store({"zarr.json": b"{}"}).get("zarr.json")
    b'{}'
    """
    if isinstance(target, Mapping):
        return MemoryStore(target)
    if isinstance(target, (str, os.PathLike)):
        uri = resolve_uri(target)
        return FsspecStore(uri, storage_options) if is_url(uri) else LocalStore(uri)
    if all(hasattr(target, name) for name in ("get", "file", "list_dir")):
        return target
    raise TypeError(f"a store is a path, a URL, a mapping or a store, not {type(target).__name__}")
