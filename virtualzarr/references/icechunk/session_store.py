"""Read-only store over a session of Icechunk: it reads virtual chunks itself, by its own rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from virtualzarr.references.icechunk import bindings
from virtualzarr.stores.files import ByteFile, InlineFile
from virtualzarr.stores.read_only import UnwritableStore
from virtualzarr.stores.store import ByteRange, slice_bytes


class SessionStore(UnwritableStore):
    """The keys of a session, those of chunks included.

    Parameters
    ----------
    session : icechunk.Session
        What it has set but not committed is seen, too.
    """

    def __init__(self, session: Any) -> None:
        self.uri = f"icechunk session at {session.snapshot_id}"
        self._store = session.store

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes | None:
        """Return the value of a key, or None."""
        from zarr.core.buffer import default_buffer_prototype

        with bindings.reading_errors(f"{self.uri}: {key}"):
            value = bindings.run(self._store.get(key, default_buffer_prototype()))
        return None if value is None else slice_bytes(value.to_bytes(), byte_range)

    def file(self, key: str) -> ByteFile | None:
        """Return the value of a key as a file, or None."""
        value = self.get(key)
        return None if value is None else InlineFile(value, key)

    def list_dir(self, prefix: str) -> Iterator[str]:
        """Yield the names under a prefix, sorted."""

        async def names() -> list[str]:
            return [name async for name in self._store.list_dir(prefix)]

        with bindings.reading_errors(self.uri):
            yield from sorted({name.rstrip("/") for name in bindings.run(names())})

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield keys and sizes under a prefix."""
        start = f"{prefix}/" if prefix else ""

        async def sizes() -> list[tuple[str, int]]:
            node = start
            while True:
                try:
                    keys = [key async for key in self._store.list_prefix(node)]
                    break
                except bindings.icechunk().IcechunkError:
                    # Icechunk lists groups and arrays only, and not the folders of chunk keys.
                    if not node:
                        raise
                    node = node.rstrip("/").rpartition("/")[0]
                    node = f"{node}/" if node else ""
            keys = [key for key in keys if key.startswith(start)]
            return [(key, await self._store.getsize(key)) for key in keys]

        with bindings.reading_errors(self.uri):
            yield from bindings.run(sizes())
