"""Memory store, over a mapping of keys to bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from typing import TypeVar

from virtualzarr.errors import SourceError, VirtualZarrError
from virtualzarr.stores.files import Buffer, ByteFile, InlineFile
from virtualzarr.stores.store import (
    ByteRange,
    Change,
    check_key,
    list_children,
    read_only_error,
    slice_bytes,
    thread_lock,
)

T = TypeVar("T")


class MemoryStore:
    """A store over a mapping; a mutable one can be written to.

    Parameters
    ----------
    data : mapping of str to bytes, optional
        Not copied: what is written is written to it.

    Examples
    --------
    >>> store = MemoryStore({"a/zarr.json": b"{}"})
    >>> store.get("a/zarr.json"), store.get("b"), list(store.list_dir(""))
    (b'{}', None, ['a'])
    >>> store.set("a/c/0", b"123")
    >>> list(store.list("a"))
    [('a/zarr.json', 2), ('a/c/0', 3)]
    """

    guarantees = "update excludes all threads that write to the same mapping"

    def __init__(self, data: Mapping[str, bytes] | None = None) -> None:
        self.data: Mapping[str, bytes] = {} if data is None else data
        self.uri = "memory"

    @property
    def writable(self) -> bool:
        """Whether the mapping is mutable."""
        return isinstance(self.data, MutableMapping)

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes | None:
        """Return the value of a key, or None."""
        value = self._find(key)
        return None if value is None else slice_bytes(bytes(value), byte_range)

    def file(self, key: str) -> ByteFile | None:
        """Return the value of a key as a file, or None."""
        value = self._find(key)
        return None if value is None else InlineFile(value, key)

    def list_dir(self, prefix: str) -> Iterator[str]:
        """Yield the names under a prefix."""
        return list_children(iter(list(self.data)), prefix)

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield keys and sizes under a prefix."""
        start = f"{prefix}/" if prefix else ""
        for key, value in [*self.data.items()]:
            if key.startswith(start):
                yield key, len(value)

    def set(self, key: str, data: Buffer) -> None:
        """Give a key a value."""
        mapping, key = self._mutable(), check_key(key, self.uri)
        value = bytes(data)
        with thread_lock(id(mapping), key):
            _change(mapping, key, value)

    def delete(self, key: str) -> None:
        """Take a key's value away, if it has one."""
        mapping = self._mutable()
        with thread_lock(id(mapping), key):
            _change(mapping, key, None)

    def delete_dir(self, prefix: str) -> None:
        """Take away all keys under a prefix."""
        for key, _ in [*self.list(prefix)]:
            self.delete(key)

    def update(self, key: str, change: Change) -> None:
        """Replace a key's value by what `change` makes of it."""
        # Locks are those of the mapping: several stores may be over the same one.
        mapping, key = self._mutable(), check_key(key, self.uri)
        with thread_lock(id(mapping), key):
            old = self._find(key)
            new = change(None if old is None else bytes(old))
            if new is not old:
                _change(mapping, key, None if new is None else bytes(new))

    def _find(self, key: str) -> bytes | None:
        """Return what the mapping has for a key, which may be over anything."""
        return _attempt(partial(_get, self.data, key), key)

    def _mutable(self) -> MutableMapping[str, bytes]:
        if not isinstance(self.data, MutableMapping):
            raise read_only_error(self.uri)
        return self.data


def _get(mapping: Mapping[str, bytes], key: str) -> bytes | None:
    kind = type(mapping)
    is_own = isinstance(mapping, dict) and kind.__getitem__ is not dict.__getitem__
    if is_own and kind.get is dict.get:
        return Mapping.get(mapping, key)  # `dict.get` asks nothing of a subclass
    return mapping.get(key)


def _change(mapping: MutableMapping[str, bytes], key: str, value: bytes | None) -> None:
    if value is None:
        _attempt(partial(_delete, mapping, key), key)
    else:
        _attempt(partial(mapping.__setitem__, key, value), key)


def _delete(mapping: MutableMapping[str, bytes], key: str) -> None:
    with suppress(KeyError):  # not `pop`, which may read the value before
        del mapping[key]


def _attempt(work: Callable[[], T], key: str) -> T:
    try:
        return work()
    except VirtualZarrError:
        raise
    except Exception as error:  # those of mappings have no common base
        problem = str(error) or type(error).__name__
    # Not chained, not even as context: its text may have whole URLs, and logins in them.
    raise SourceError(problem, file=key)
