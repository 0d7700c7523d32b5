"""zarr-python store: keys of any store of zarr-python, through its synchronous face."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from virtualzarr.errors import SourceError, UnsupportedError, VirtualZarrError
from virtualzarr.stores.adapted import AdaptedStore, ByteSpan
from virtualzarr.stores.conditional import Replaced
from virtualzarr.stores.files import Buffer
from virtualzarr.stores.forks import check_not_forked
from virtualzarr.stores.fsspec import is_pattern
from virtualzarr.stores.invalidation import notify_change_below
from virtualzarr.stores.store import read_only_error

T = TypeVar("T")

_SESSION = (
    "sessions of Icechunk are read only here: publish references into them, or write arrays by "
    "zarr-python"
)


class ZarrPythonStore(AdaptedStore):
    """A store over one of zarr-python.

    Parameters
    ----------
    store : zarr.abc.store.Store
        Its answers do not say which version they are of: a shard that is replaced while it is read
        may not be noticed.
    path : str
        The part of it that is meant.
    """

    def __init__(self, store: Any, path: str = "") -> None:
        super().__init__(f"{store}/{path}".rstrip("/"), writable=not store.read_only)
        self.store = store
        if self.is_session:
            # Of a chunk that is not in its array any more, or not yet, Icechunk forgets changes.
            self.writable, self.problem = False, _SESSION
        if not store._is_open:  # those of zarr-python open themselves when they are used, but zip
            self._run(store._open(), "")
        self._lead = f"{path.strip('/')}/" if path.strip("/") else ""

    def fetch(self, key: str, span: ByteSpan) -> tuple[bytes, None] | None:
        """Return bytes of a value; None if there is none."""
        from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
        from zarr.core.buffer import default_buffer_prototype

        start, stop = span
        request: Any = None
        if start < 0:
            request = SuffixByteRequest(-start)
        elif stop is not None:
            request = RangeByteRequest(start, stop)
        elif start:
            request = OffsetByteRequest(start)
        self._forget_listings(self._lead + key)
        prototype = default_buffer_prototype()
        buffer = self._run(self.store.get(self._lead + key, prototype, request), key)
        return None if buffer is None else (buffer.to_bytes(), None)

    def size(self, key: str) -> int | None:
        """Return the bytes of a value; None if there is none."""

        async def find() -> int | None:
            try:
                size: int = await self.store.getsize(self._lead + key)
            except FileNotFoundError:
                return None
            return size

        self._forget_listings(self._lead + key)
        return self._run(find(), key)

    guarantees = (
        "update excludes threads of this process that use the same object; of others that change "
        "one key at the same time, the last wins"
    )

    def list_dir(self, prefix: str) -> Iterator[str]:
        """Yield the names under a prefix."""
        names = self._collect(self.store.list_dir, (self._lead + prefix).rstrip("/"))
        yield from sorted({name.strip("/") for name in names} - {""})

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield keys and sizes under a prefix."""
        lead = f"{self._lead}{prefix}/" if prefix else self._lead
        for name in self._list_names(lead):
            key = name[len(self._lead) :]
            size = self.size(key)
            yield key, -1 if size is None else size

    def put(self, key: str, data: Buffer, replaced: Replaced | None = None) -> None:
        """Store a value, whatever is there: stores of zarr-python have no conditions."""
        from zarr.core.buffer import default_buffer_prototype

        buffer = default_buffer_prototype().buffer.from_bytes(bytes(data))
        self._run(self.store.set(self._lead + key, buffer), key)

    def remove(self, key: str) -> None:
        """Delete a value, there or not."""
        beneath = self._find_pattern_store(key)
        if not self.store.supports_deletes:
            if self.size(key) is not None:
                kind = type(self.store).__name__
                raise UnsupportedError(f"a {kind} of zarr-python deletes nothing", file=self.uri)
        elif beneath is None:
            self._run(self.store.delete(self._lead + key), key)
        elif beneath is self.store:
            self._run(_remove_file(beneath, self._lead + key), key)
        else:
            raise UnsupportedError(
                "zarr-python would delete all that the name matches as a pattern", file=key
            )

    def delete_dir(self, prefix: str) -> None:
        """Take away all keys under a prefix, and folders that they are in, if there are any."""
        if not self.writable:
            raise read_only_error(self.uri)
        if self.store.supports_deletes and self._find_pattern_store(prefix) is None:
            try:
                self._run(self.store.delete_dir((self._lead + prefix).rstrip("/")), prefix)
            finally:
                notify_change_below(f"{self.uri}/{prefix}" if prefix else self.uri)
        super().delete_dir(prefix)  # not all stores say what they did not delete

    def _find_pattern_store(self, key: str) -> Any:
        """Return the store beneath for which a name is a pattern when it deletes; None if none."""
        store = self._beneath
        if not any(kind.__name__ == "FsspecStore" for kind in type(store).__mro__):
            return None
        return store if is_pattern(f"{store.path}/{self._lead}{key}") else None

    def _forget_listings(self, path: str) -> None:
        """Have fsspec ask for what it remembers of a path, and of what is above it."""
        store = self._beneath
        if (fs := getattr(store, "fs", None)) is not None:
            fs.invalidate_cache(f"{store.path.rstrip('/')}/{path}".rstrip("/"))

    @property
    def _beneath(self) -> Any:
        """The store that others only wrap."""
        store = self.store
        # Not of Icechunk's: what it calls so is none of zarr-python.
        while (beneath := getattr(store, "_store", None)) is not None and hasattr(beneath, "_open"):
            store = beneath
        return store

    @property
    def is_session(self) -> bool:
        """Whether it is that of a session of Icechunk, in which nothing but Zarr is stored."""
        return type(self._beneath).__module__.partition(".")[0] == "icechunk"

    def _list_names(self, lead: str) -> Sequence[str]:
        """Return the names that begin with a folder and a slash, or all."""
        if not self.is_session:
            return self._collect(self.store.list_prefix, lead)
        # Icechunk lists groups and arrays only, and not the folders of chunk keys.
        node = lead.rstrip("/")
        while True:
            try:
                names = self._collect(self.store.list_prefix, node)
                return [name for name in names if name.startswith(lead)]
            except SourceError:
                if not node:
                    raise
                node = node.rpartition("/")[0]

    def _collect(
        self, list_names: Callable[[str], AsyncIterator[str]], prefix: str
    ) -> Sequence[str]:
        self._forget_listings(prefix)

        async def collect() -> Sequence[str]:
            names: list[str] = []
            try:
                async for name in list_names(prefix):
                    names.append(name)
            except FileNotFoundError:
                if names:  # a folder has vanished meanwhile: that is not all
                    raise
            return names

        return self._run(collect(), prefix)

    def _run(self, work: Coroutine[Any, Any, T], key: str) -> T:
        if self.is_session:
            check_not_forked("Icechunk", work)
        # In zarr-python's own loop: what the store has opened belongs to that.
        from zarr.core.sync import sync

        try:
            return sync(work)
        except VirtualZarrError:
            raise
        except Exception as error:  # those of stores have no common base
            problem = str(error) or type(error).__name__
        # Not chained, not even as context: its text may have whole URLs, and logins in them.
        raise SourceError(problem, file=f"{self.uri}/{key}")


async def _remove_file(store: Any, key: str) -> None:
    """Delete a file of a `FsspecStore` by its name, there or not."""
    root = store.path.rstrip("/")
    with suppress(*store.allowed_exceptions):
        await store.fs._rm_file(f"{root}/{key}" if root else key)
