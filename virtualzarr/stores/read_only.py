"""Read-only stores, read-only views of others, and views that protect some keys."""

from __future__ import annotations

from typing import Any

from virtualzarr.errors import AccessError, UnsupportedError, VirtualZarrError
from virtualzarr.stores.files import Buffer
from virtualzarr.stores.store import Change, Store, read_only_error


class UnwritableStore:
    """What stores that nothing can be written to have in common."""

    uri: str
    writable = False
    guarantees = "nothing is written"

    def set(self, key: str, data: Buffer) -> None:
        """Refuse to write."""
        raise read_only_error(self.uri)

    def delete(self, key: str) -> None:
        """Refuse to delete."""
        raise read_only_error(self.uri)

    def delete_dir(self, prefix: str) -> None:
        """Refuse to delete."""
        raise read_only_error(self.uri)

    def update(self, key: str, change: Change) -> None:
        """Refuse to write."""
        raise read_only_error(self.uri)


class ReadOnlyStore:
    """A store that is not to be written to.

    Parameters
    ----------
    store : Store
    problem : str
        Why, as errors say it.

    Examples
    --------
    >>> from virtualzarr.stores import MemoryStore
    >>> store = ReadOnlyStore(MemoryStore({}))
    >>> store.set("a", b"")
    Traceback (most recent call last):
    virtualzarr.errors.AccessError: it was opened for reading; open it with mode="r+" to write
    """

    writable = False

    def __init__(
        self,
        store: Store,
        problem: str = 'it was opened for reading; open it with mode="r+" to write',
    ) -> None:
        self.store = store
        self.problem = problem

    def __getattr__(self, name: str) -> Any:
        if name == "store":  # not there yet, while it is unpickled
            raise AttributeError(name)
        return getattr(self.store, name)

    def refusal(self, key: str) -> VirtualZarrError | None:
        """Return the error for writing a key, if it may not be written."""
        return AccessError(self.problem)

    def _check(self, key: str) -> None:
        error = self.refusal(key)
        if error is not None:
            raise error

    def set(self, key: str, data: Buffer) -> None:
        """Give a key a value, if the rule allows it."""
        self._check(key)
        self.store.set(key, data)

    def delete(self, key: str) -> None:
        """Take a key's value away, if the rule allows it."""
        self._check(key)
        self.store.delete(key)

    def delete_dir(self, prefix: str) -> None:
        """Take away all keys under a prefix, if the rule allows it."""
        self._check(prefix)
        self.store.delete_dir(prefix)

    def update(self, key: str, change: Change) -> None:
        """Replace a key's value, if the rule allows it."""
        self._check(key)
        self.store.update(key, change)


class AssumedStore(ReadOnlyStore):
    """A store of an array whose metadata were assumed: what is stored of them is left alone."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.writable = store.writable

    def refusal(self, key: str) -> VirtualZarrError | None:
        """Return the error for writing a metadata document."""
        if key.rsplit("/", 1)[-1] not in ("zarr.json", ".zarray", ".zattrs"):
            return None
        return UnsupportedError(
            "the array's metadata were assumed, not read: they stay as they are"
        )


def as_read_only(store: Store) -> Store:
    """Return a store that cannot be written to."""
    return ReadOnlyStore(store) if getattr(store, "writable", False) else store


def unwrap(store: Any) -> Any:
    """Return the store itself, without the rules it is seen through."""
    return unwrap(store.store) if isinstance(store, ReadOnlyStore) else store
