"""zarr-python store: keys of any store of zarr-python, through its synchronous face."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from virtualzarr.errors import SourceError, VirtualZarrError
from virtualzarr.stores.adapted import AdaptedStore, ByteSpan
from virtualzarr.stores.files import Buffer

T = TypeVar("T")


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
        if not store._is_open:  # those of zarr-python open themselves when they are used, but zip
            self._run(store._open(), "")
        self._lead = f"{path.strip('/')}/" if path.strip("/") else ""

    def fetch(self, key: str, span: ByteSpan) -> tuple[bytes, str | None] | None:
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

        return self._run(find(), key)

    def list_dir(self, prefix: str) -> Iterator[str]:
        """Yield the names under a prefix."""
        names = self._collect(self.store.list_dir, (self._lead + prefix).rstrip("/"))
        yield from sorted({name.strip("/") for name in names} - {""})

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield keys and sizes under a prefix."""
        lead = f"{self._lead}{prefix}/" if prefix else self._lead
        for name in self._collect(self.store.list_prefix, lead):
            key = name[len(self._lead) :]
            size = self.size(key)
            yield key, -1 if size is None else size

    def put(self, key: str, data: Buffer) -> None:
        """Store a value."""
        from zarr.core.buffer import default_buffer_prototype

        buffer = default_buffer_prototype().buffer.from_bytes(bytes(data))
        self._run(self.store.set(self._lead + key, buffer), key)

    def remove(self, key: str) -> None:
        """Delete a value, there or not."""
        self._run(self.store.delete(self._lead + key), key)

    def _collect(
        self, list_names: Callable[[str], AsyncIterator[str]], prefix: str
    ) -> Sequence[str]:
        async def collect() -> Sequence[str]:
            try:
                return [name async for name in list_names(prefix)]
            except FileNotFoundError:
                return []

        return self._run(collect(), prefix)

    def _run(self, work: Coroutine[Any, Any, T], key: str) -> T:
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
