"""View of a store with the metadata document of one array under another name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from virtualzarr.errors import MetadataError
from virtualzarr.stores.files import Buffer, ByteFile
from virtualzarr.stores.read_only import ReadOnlyStore
from virtualzarr.stores.store import ByteRange, Change, Store

DOCUMENTS = {2: ".zarray", 3: "zarr.json"}
"""What the metadata document of an array is called."""

_TAKEN = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
_CHUNK = re.compile(r"(c\.)?[0-9]+(\.[0-9]+)*|c")


class RenamedDocument(ReadOnlyStore):
    """A store in which two names in one folder are exchanged.

    Parameters
    ----------
    store : Store
    path : str
        The path of an array, normalized.
    metadata_key : str
        What its metadata document is called in `store`.
    zarr_format : {2, 3}

    Raises
    ------
    MetadataError
        A document cannot be called so.

    Examples
    --------
    >>> from virtualzarr.stores import MemoryStore
    >>> store = RenamedDocument(MemoryStore({"a/meta.json": b"{}"}), "a", "meta.json", 3)
    >>> store.get("a/zarr.json"), list(store.list_dir("a"))
    (b'{}', ['zarr.json'])
    """

    def __init__(self, store: Store, path: str, metadata_key: str, zarr_format: int) -> None:
        super().__init__(store)
        self.writable = getattr(store, "writable", False)
        self.metadata_key, self.zarr_format = metadata_key, zarr_format
        # An exchange, so that nothing else is hidden: the other document has the usual name's key.
        usual = DOCUMENTS[zarr_format]
        check_metadata_key(metadata_key, usual)
        start = f"{path}/" if path else ""
        self._folder = path
        self._names = {usual: metadata_key, metadata_key: usual}
        self._keys = {start + name: start + other for name, other in self._names.items()}

    def refusal(self, key: str) -> None:
        """Return no error: all keys may be written that the store itself can write."""
        return

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes | None:
        """Return the value of a key, or some of its bytes; None where there is no value."""
        return self.store.get(self._keys.get(key, key), byte_range)

    def file(self, key: str) -> ByteFile | None:
        """Return a key's value as a file to read from; None where it is known to be missing."""
        return self.store.file(self._keys.get(key, key))

    def list_dir(self, prefix: str) -> Iterator[str]:
        """Yield the next part of each key under a prefix, once each, sorted."""
        names = self.store.list_dir(prefix)
        if prefix != self._folder:
            return names
        return iter(sorted(self._names.get(name, name) for name in names))

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield each key under a prefix with the size of its value in bytes, in no given order."""
        for key, size in self.store.list(prefix):
            yield self._keys.get(key, key), size

    def set(self, key: str, data: Buffer) -> None:
        """Give a key a value."""
        self.store.set(self._keys.get(key, key), data)

    def delete(self, key: str) -> None:
        """Take a key's value away, if it has one."""
        self.store.delete(self._keys.get(key, key))

    def update(self, key: str, change: Change) -> None:
        """Replace a key's value by what `change` makes of it."""
        self.store.update(self._keys.get(key, key), change)


def check_metadata_key(metadata_key: Any, usual: str) -> None:
    """Refuse what a metadata document cannot be called.

    Raises
    ------
    MetadataError
        It is no plain name, or that of another document, or chunks may have it.
    """
    plain = isinstance(metadata_key, str) and metadata_key and "/" not in metadata_key
    if (
        not plain
        or metadata_key in {".", "..", *_TAKEN} - {usual}
        or _CHUNK.fullmatch(metadata_key)
    ):
        raise MetadataError(
            "metadata_key: must be a name without /, and neither that of a chunk nor of another "
            f"document, not {metadata_key!r}"
        )
