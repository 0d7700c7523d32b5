"""Store protocol: keys with ``/`` between their parts, and bytes for each."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from virtualzarr.errors import AccessError
from virtualzarr.stores.files import Buffer, ByteFile

ByteRange = tuple[int, int | None]
"""Bytes ``start:stop`` of a value, as a slice has them: a negative start counts from the end."""

Change = Callable[[bytes | None], Buffer | None]
"""Makes the new value of a key from the old one; None stands for no value."""

DOCUMENTS = frozenset(("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"))
"""Names of metadata documents, of which a store need not take any length."""

LOCK_SUFFIX = ".__lock"
"""Keys must not end so: a directory's lock files do."""


class Store(Protocol):
    """Keys and their bytes. Methods may be called from several threads at once.

    Attributes
    ----------
    uri : str
        Names the store in messages.
    writable : bool
        Whether keys can be set and deleted.
    guarantees : str
        What `update` excludes, in words.
    """

    uri: str

    @property
    def writable(self) -> bool: ...  # noqa: D102

    @property
    def guarantees(self) -> str: ...  # noqa: D102

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes | None:
        """Return the value of a key, or some of its bytes; None where there is no value."""
        ...

    def file(self, key: str) -> ByteFile | None:
        """Return a key's value as a file to read from; None where it is known to be missing."""
        ...

    def list_dir(self, prefix: str) -> Iterator[str]:
        """Yield the next part of each key under a prefix, once each, sorted."""
        ...

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield each key under a prefix with the size of its value in bytes, in no given order."""
        ...

    def set(self, key: str, data: Buffer) -> None:
        """Give a key a value. Readers see the old value or the new one, never a part."""
        ...

    def delete(self, key: str) -> None:
        """Take a key's value away, if it has one."""
        ...

    def delete_dir(self, prefix: str) -> None:
        """Take away all keys under a prefix; all keys there are for an empty prefix."""
        ...

    def update(self, key: str, change: Change) -> None:
        """Replace a key's value by what `change` makes of it.

        `guarantees` says who cannot come between. `change` may return the very object that it was
        given: then nothing is written.
        """
        ...


def is_remote(store: object) -> bool:
    """Tell whether each access to a store is a request that takes a while."""
    return bool(getattr(store, "remote", False))


def check_key(key: str, uri: str) -> str:
    """Return a key that may be written.

    Raises
    ------
    AccessError
        The key is not relative, normal, and free of what stores keep for themselves.

    Examples
    --------
    >>> check_key("a/c/0/1", "memory")
    'a/c/0/1'
    """
    parts = key.split("/")
    if {"", ".", ".."} & {*parts} or "\\" in key or "\0" in key or key.endswith(LOCK_SUFFIX):
        raise AccessError(f"{key!r} is not a key that can be written", file=uri)
    return key


def check_within(key: str, uri: str) -> str:
    """Return a key that stays in the store: paths may come from documents that are hostile.

    Raises
    ------
    AccessError
        The key leads out.
    """
    # Elsewhere than on Windows, a backslash is a character of names.
    backslash = os.name == "nt" and "\\" in key
    if key.startswith("/") or ".." in key.split("/") or "\0" in key or backslash:
        raise AccessError(f"the key {key!r} leads out of the store", file=uri)
    return key


def read_only_error(uri: str) -> AccessError:
    """Return the error for writing to what can only be read."""
    return AccessError("the store is read-only", file=uri)


def slice_bytes(data: bytes, byte_range: ByteRange | None) -> bytes:
    """Return the bytes in a range."""
    return data if byte_range is None else data[slice(*byte_range)]


def list_children(keys: Iterator[str], prefix: str) -> Iterator[str]:
    """Yield the next part of each key under a prefix, once each, sorted."""
    start = f"{prefix}/" if prefix else ""
    yield from sorted({key[len(start) :].split("/", 1)[0] for key in keys if key.startswith(start)})


class HeldLocks(threading.local):
    """Paths of the dataset locks that this thread holds."""

    def __init__(self) -> None:
        self.paths: set[str] = set()


held_locks = HeldLocks()
# A fixed number of locks, shared by all keys that hash to one: none is ever to be removed.
_stripes: list[threading.RLock] = []
_key_locks: list[threading.RLock] = []


def _new_stripes() -> None:
    held_locks.paths = set()
    _stripes[:] = [threading.RLock() for _ in range(256)]
    _key_locks[:] = [threading.RLock() for _ in range(256)]


_new_stripes()
if hasattr(os, "register_at_fork"):
    # A lock that another thread of the parent held would never be released in the child.
    os.register_at_fork(after_in_child=_new_stripes)


def thread_lock(owner: Hashable, key: str) -> threading.RLock:
    """Return the lock of this process for one key of a store; several keys may share one."""
    return _stripes[hash((owner, key)) % len(_stripes)]


def lock_key(store: Store, key: str) -> AbstractContextManager[Any]:
    """Exclude others that lock the same key, while keys are read and written as usual.

    Those are all threads of this process and, where the store has a method `lock_key` that does
    more, other processes.
    """
    method: Callable[[str], AbstractContextManager[Any]] | None = getattr(store, "lock_key", None)
    # Not the locks of `update`: threads that help must not wait for the one they help.
    return _key_locks[hash((store.uri, key)) % len(_key_locks)] if method is None else method(key)
