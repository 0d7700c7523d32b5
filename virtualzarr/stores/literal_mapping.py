"""Mappings of fsspec, of which every key is the name of a file, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from threading import Lock
from typing import Any

from virtualzarr.errors import SourceNotFoundError
from virtualzarr.stores.listing import beneath_caches, list_files_below
from virtualzarr.stores.location import Location
from virtualzarr.stores.retry import retry_blocking
from virtualzarr.stores.transport import transport_for


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
        try:
            return retry_blocking(partial(self._read, self._path(key)))
        except (SourceNotFoundError, *self.mapping.missing_exceptions) as error:
            raise KeyError(key) from error

    def _read(self, path: str) -> bytes:
        with self._guard:
            try:
                return self._transport.fetch(path, 0, None)[0]
            except Exception as error:
                if (transient := self._transport.as_transient(error)) is None:
                    raise
                raise transient from error

    def __setitem__(self, key: str, value: bytes) -> None:
        fs, path = self.mapping.fs, self._path(key)
        fs.makedirs(fs._parent(path), exist_ok=True)
        fs.pipe_file(path, value)

    def __delitem__(self, key: str) -> None:
        try:
            self.mapping.fs.rm_file(self._path(key))
        except self.mapping.missing_exceptions as error:
            raise KeyError(key) from error

    def __iter__(self) -> Iterator[str]:
        fs, root = self.mapping.fs, self.mapping.root
        try:
            paths = [entry.path for entry in list_files_below(fs, root)]
        except FileNotFoundError:
            return
        yield from map(self.mapping._str_to_key, paths)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(self.mapping.fs.isfile(self._path(key)))
