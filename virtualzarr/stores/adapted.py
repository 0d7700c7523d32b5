"""Adapted stores: what stores of other libraries have in common once they are ours."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TypeAlias

from virtualzarr.errors import SourceNotFoundError
from virtualzarr.stores.conditional import Replaced, replace_value
from virtualzarr.stores.files import Buffer, ByteFile
from virtualzarr.stores.fingerprints import Fingerprint, check_length, truncated_error
from virtualzarr.stores.invalidation import notify_change
from virtualzarr.stores.store import (
    ByteRange,
    Change,
    check_key,
    check_within,
    read_only_error,
    thread_lock,
)

ByteSpan: TypeAlias = tuple[int, int | None]
"""First byte, from the end if it is negative, and where to stop."""


class AdaptedStore(ABC):
    """A store of another library.

    Parameters
    ----------
    uri : str
        Names it in messages.
    writable : bool
    """

    remote = True
    guarantees = (
        "update excludes threads of this process that use the same object; of others that change "
        "one key at the same time, the last wins, and none is lost where obstore keeps conditions"
    )

    def __init__(self, uri: str, writable: bool = True) -> None:
        self.uri = uri
        self.writable = writable

    @abstractmethod
    def fetch(self, key: str, span: ByteSpan) -> tuple[bytes, Fingerprint | None] | None:
        """Return bytes of a value, and its version if that is told; None if there is no value."""

    @abstractmethod
    def put(self, key: str, data: Buffer, replaced: Replaced | None = None) -> None:
        """Store a value; where it can be told, only in the place of what may be replaced.

        Raises
        ------
        ConflictError
            Something else is there.
        """

    @abstractmethod
    def remove(self, key: str) -> None:
        """Delete a value, there or not."""

    @abstractmethod
    def list_dir(self, prefix: str) -> Iterator[str]:
        """Yield the names under a prefix, sorted."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield keys and sizes under a prefix."""

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes | None:
        """Return the value of a key, or some of its bytes, or None."""
        check_within(key, self.uri)
        start, stop = (0, None) if byte_range is None else byte_range
        if stop is not None and (start < 0 or stop <= start):
            # Others have no range that counts both ends from the back, and no empty one.
            content = self.get(key)
            return None if content is None else content[start:stop]
        answer = self.fetch(key, (start, stop))
        return None if answer is None else answer[0]

    def file(self, key: str) -> ByteFile:
        """Return a value as a file, there or not."""
        return AdaptedFile(self, key)

    def set(self, key: str, data: Buffer) -> None:
        """Give a key a value."""
        self._check_writable(key)
        with thread_lock(id(self), key):
            self._change(key, data)

    def delete(self, key: str) -> None:
        """Take a key's value away, if it has one."""
        self._check_writable(key)
        with thread_lock(id(self), key):
            self._change(key, None)

    def delete_dir(self, prefix: str) -> None:
        """Take away all keys under a prefix."""
        for key, _ in [*self.list(prefix)]:
            self.delete(key)

    def update(self, key: str, change: Change) -> None:
        """Replace a key's value by what `change` makes of it; see `guarantees`."""
        self._check_writable(key)

        def read() -> tuple[bytes | None, str | None]:
            data, version = self.fetch(key, (0, None)) or (None, None)
            return data, None if version is None else version.etag

        with thread_lock(id(self), key):
            replace_value(read, partial(self._change, key), change)

    def _change(self, key: str, data: Buffer | None, replaced: Replaced | None = None) -> None:
        try:
            if data is None:
                self.remove(key)
            else:
                self.put(key, data, replaced)
        finally:
            notify_change(f"{self.uri}/{key}")

    def _check_writable(self, key: str) -> None:
        if not self.writable:
            raise read_only_error(self.uri)
        check_key(key, self.uri)


class AdaptedFile:
    """A value of an adapted store; each read is one request."""

    remote = True

    def __init__(self, store: AdaptedStore, key: str) -> None:
        self.uri = f"{store.uri}/{key}"
        self._store = store
        self._key = key

    def read(self, start: int, stop: int | None, limit: int | None = None) -> bytes:  # noqa: D102
        if stop is not None and start >= stop:
            return b""
        data = self._fetch((start, stop))
        if stop is not None and len(data) != stop - start:
            raise truncated_error(self.uri, start, stop, start + len(data))
        check_length(self.uri, len(data), limit)
        return data

    def tail(self, nbytes: int) -> bytes:
        """Return the last bytes of the value, or all of it where it has no more."""
        return self._fetch((-nbytes, None))

    def read_into(self, start: int, out: memoryview) -> None:  # noqa: D102
        out[:] = self.read(start, start + out.nbytes)

    def open(self) -> AbstractContextManager[ByteFile]:  # noqa: D102
        return nullcontext(self)

    def check_version(self, version: Fingerprint | None) -> None:
        """Refuse an answer of another version; a store that tells none is not asked again."""

    def _fetch(self, span: ByteSpan) -> bytes:
        answer = self._store.fetch(self._key, span)
        if answer is None:
            raise SourceNotFoundError("there is no such key", file=self.uri)
        self.check_version(answer[1])
        return answer[0]
