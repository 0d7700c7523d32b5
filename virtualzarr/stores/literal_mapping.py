"""Mappings of fsspec, of which every key is the name of a file, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, nullcontext, suppress
from threading import Lock
from typing import Any, TypeVar

from virtualzarr.errors import SourceNotFoundError
from virtualzarr.stores.listing import beneath_caches, list_files_below
from virtualzarr.stores.location import Location
from virtualzarr.stores.retry import retry_blocking
from virtualzarr.stores.transport import transport_for

T = TypeVar("T")


class LiteralMapping(MutableMapping[str, bytes]):
    """A mapping of fsspec whose keys are no patterns.

    Its own takes keys with ``*``, ``?`` or ``[`` in them for patterns when it reads and deletes,
    leaves out folders that cannot be listed, and says that a key is missing if it may not be
    deleted.

    Parameters
    ----------
    mapping : fsspec.FSMap

    Attributes
    ----------
    is_cached : bool
        Whether it is over a cache of fsspec.

    Examples
    --------
    >>> import fsspec
    >>> mapping = LiteralMapping(fsspec.get_mapper("memory://literal"))
    >>> mapping["a*"], mapping["ab"] = b"1", b"2"
    >>> del mapping["a*"]
    >>> dict(mapping)
    {'ab': b'2'}
    >>> mapping.clear()
    """

    def __init__(self, mapping: Any) -> None:
        self.mapping = mapping
        self._transport = transport_for(mapping.fs, Location(mapping.root))
        self.is_cached = beneath_caches(mapping.fs) is not mapping.fs
        self._guard: AbstractContextManager[Any] = Lock() if self.is_cached else nullcontext()

    def __reduce__(self) -> tuple[Any, ...]:
        return LiteralMapping, (self.mapping,)

    def _path(self, key: str) -> str:
        path: str = self.mapping._key_to_str(key)
        return path

    def __getitem__(self, key: str) -> bytes:
        path = self._path(key)
        return self._attempt(lambda: self._transport.fetch(path, 0, None)[0], key)

    def _attempt(self, work: Callable[[], T], key: str) -> T:
        """Do something that may be done twice; `KeyError` where there is no such file."""

        def attempt() -> T:
            with self._guard:
                try:
                    return work()
                except Exception as error:
                    if (transient := self._transport.as_transient(error)) is None:
                        raise
                    raise transient from error

        try:
            return retry_blocking(attempt)
        except (SourceNotFoundError, *self.mapping.missing_exceptions) as error:
            raise KeyError(key) from error

    def __setitem__(self, key: str, value: bytes) -> None:
        fs, path = self.mapping.fs, self._path(key)
        self._attempt(lambda: fs.makedirs(fs._parent(path), exist_ok=True), key)
        self._attempt(lambda: fs.pipe_file(path, value), key)

    def __delitem__(self, key: str) -> None:
        path = self._path(key)
        self._attempt(lambda: self.mapping.fs.rm_file(path), key)

    def __iter__(self) -> Iterator[str]:
        fs, root = self.mapping.fs, self.mapping.root
        with suppress(KeyError):
            entries = self._attempt(lambda: list_files_below(fs, root), "")
            yield from [self.mapping._str_to_key(entry.path) for entry in entries]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        # Not `isfile`, to which whatever fails is no file.
        return isinstance(key, str) and self.get(key) is not None
