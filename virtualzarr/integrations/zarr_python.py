"""Stores for zarr-python: ours, and whole virtual hierarchies."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from virtualzarr.array import Array
from virtualzarr.errors import UnsupportedError
from virtualzarr.hierarchy.group import Group
from virtualzarr.nodes.documents import MARKERS
from virtualzarr.nodes.write_nodes import delete_folder
from virtualzarr.redaction import hide_in_url
from virtualzarr.references.virtual_store import VirtualStore
from virtualzarr.stores import MemoryStore, open_store
from virtualzarr.stores.files import LocalFile
from virtualzarr.stores.fsspec import FsspecStore
from virtualzarr.stores.read_only import unwrap
from virtualzarr.stores.store import ByteRange, is_remote
from virtualzarr.stores.store import Store as OurStore

T = TypeVar("T")


class ZarrStore(Store):
    """A store of ours as zarr-python wants it: each call runs in a thread.

    Parameters
    ----------
    store : store, path, URL, mapping, Group or Array
        What `virtualzarr.stores.open_store` opens. Of a group or array, also a virtual one,
        zarr-python sees Zarr v3 metadata and the chunks where they lie.
    storage_options : mapping, optional
        How fsspec opens a URL.
    read_only : bool, optional
        By default what the store is.

    Raises
    ------
    ValueError
        If `read_only` is False and the store cannot be written to.

    Notes
    -----
    The store stays open when this is closed: whoever opened it closes it. What excludes other
    writers is said by its `guarantees`; `set_if_not_exists` keeps to them, too.

    Examples
    --------
    >>> import zarr
    >>> store = ZarrStore({})
    >>> array = zarr.create_array(store, shape=(3,), dtype="i4", fill_value=7)
    >>> array[:2] = 1
    >>> zarr.open_array(store)[:].tolist()
    [1, 1, 7]
    """

    def __init__(
        self,
        store: Any,
        *,
        storage_options: Mapping[str, Any] | None = None,
        read_only: bool | None = None,
    ) -> None:
        hierarchy = isinstance(store, (Group, Array))
        self.store: OurStore = (
            VirtualStore(store) if hierarchy else open_store(store, storage_options)
        )
        writable = bool(getattr(self.store, "writable", False))
        if read_only is False and not writable:
            raise ValueError(f"the store cannot be written to: {self.store.uri}")
        super().__init__(read_only=not writable if read_only is None else read_only)

    def with_read_only(self, read_only: bool = False) -> ZarrStore:
        """Return the same store, to be written to or not."""
        return type(self)(self.store, read_only=read_only)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ZarrStore)
            and self.read_only == other.read_only
            and (self.store is other.store or _identity(self.store) == _identity(other.store))
        )

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return self.store.uri

    def __repr__(self) -> str:
        return f"ZarrStore({type(self.store).__name__}: {hide_in_url(self.store.uri)})"

    @property
    def supports_writes(self) -> bool:
        """Whether the store can be written to."""
        return bool(getattr(self.store, "writable", False))

    @property
    def supports_deletes(self) -> bool:
        """Whether keys can be deleted."""
        return self.supports_writes

    @property
    def supports_listing(self) -> bool:
        """Always: a place that cannot be listed seems empty, or says so."""
        return True

    @property
    def _supports_sync_io(self) -> bool:
        # Requests over a network would wait for each other.
        return not is_remote(self.store)

    async def _run(self, call: Callable[..., T], *arguments: Any) -> T:
        await self._ensure_open()
        return await asyncio.to_thread(call, *arguments)

    # -- reading

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Return the value of a key, or some of its bytes; None where there is no value."""
        self._is_open = True
        # No server understands a range of nothing: then only the size is asked for.
        bounds = _as_slice(byte_range)
        if bounds is None or bounds[1] is None or bounds[0] < bounds[1]:
            data = self.store.get(key, bounds)
        else:
            # No server understands a range of nothing.
            data = None if _size(self.store, key) is None else b""
        if data is None:
            return None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(data)

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Return the value of a key, or some of its bytes; None where there is no value."""
        await self._ensure_open()
        return await asyncio.to_thread(
            self.get_sync, key, prototype=prototype, byte_range=byte_range
        )

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Return some bytes of each of many keys."""
        # One thread each: requests run side by side, as in zarr-python's own stores.
        calls = [self.get(key, prototype, byte_range) for key, byte_range in key_ranges]
        return list(await asyncio.gather(*calls))

    async def exists(self, key: str) -> bool:
        """Whether a key has a value."""
        return await self._run(_size, self.store, key) is not None

    async def getsize(self, key: str) -> int:
        """Return the size of a value in bytes; FileNotFoundError where there is none."""
        size = await self._run(_size, self.store, key)
        if size is None:
            raise FileNotFoundError(key)
        return size

    # -- listing

    async def list(self) -> AsyncIterator[str]:
        """Yield all keys."""
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys that begin so, also in the middle of a name."""
        # Our stores list folders; a prefix may end in the middle of a name.
        folder = prefix.rpartition("/")[0]
        keys = await self._run(lambda: [key for key, _ in self.store.list(folder)])
        for key in keys:
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names right below a prefix."""
        for name in await self._run(_list_dir, self.store, prefix.strip("/")):
            yield name

    async def is_empty(self, prefix: str) -> bool:
        """Whether no key lies below a prefix."""
        first = await self._run(lambda: [*islice(self.store.list(prefix.strip("/")), 1)])
        return not first

    async def getsize_prefix(self, prefix: str) -> int:
        """Return the size of all values below a prefix in bytes, by one listing."""
        return await self._run(_sum_sizes, self.store, prefix.strip("/"))

    # -- writing

    def set_sync(self, key: str, value: Buffer) -> None:
        """Give a key a value."""
        self._check_writable()
        self._is_open = True
        self.store.set(key, _as_bytes(value))

    def delete_sync(self, key: str) -> None:
        """Take a key's value away, if it has one."""
        self._check_writable()
        self._is_open = True
        self.store.delete(key)

    async def set(self, key: str, value: Buffer) -> None:
        """Give a key a value."""
        await self._run(self.set_sync, key, value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Give a key a value if it has none; see the store's `guarantees`."""
        self._check_writable()
        data = _as_bytes(value)
        # `update` excludes other writers as far as the store can; a check before a plain set would
        # leave a gap.
        await self._run(self.store.update, key, lambda old: data if old is None else old)

    async def delete(self, key: str) -> None:
        """Take a key's value away, if it has one."""
        await self._run(self.delete_sync, key)

    async def delete_dir(self, prefix: str) -> None:
        """Take away all keys below a prefix."""
        self._check_writable()
        # Documents first: chunks that are gone read as fill values.
        await self._run(delete_folder, self.store, prefix.strip("/"))


def _as_slice(byte_range: ByteRequest | None) -> ByteRange | None:
    """Return zarr-python's byte request as the start and stop of a slice."""
    if byte_range is None:
        return None
    if isinstance(byte_range, RangeByteRequest):
        return byte_range.start, byte_range.end
    if isinstance(byte_range, OffsetByteRequest):
        return byte_range.offset, None
    if isinstance(byte_range, SuffixByteRequest):
        return (-byte_range.suffix, None) if byte_range.suffix else (0, 0)
    raise ValueError(f"Unexpected byte_range, got {byte_range}.")


def _as_bytes(value: Buffer) -> memoryview:
    if not isinstance(value, Buffer):
        raise TypeError(f"a value is a Buffer of zarr-python, not {type(value).__name__}")
    return np.ascontiguousarray(value.as_numpy_array()).view(np.uint8).data


def _list_dir(store: OurStore, folder: str) -> list[str]:
    """Return the names in a folder; `UnsupportedError` if it is a node that lists nothing."""
    names = [*store.list_dir(folder)]
    if not names and is_remote(store):
        for name in MARKERS:
            if _size(store, f"{folder}/{name}".lstrip("/")) is not None:
                raise UnsupportedError(
                    "the server does not list what is there: consolidate the metadata",
                    file=store.uri,
                    variable=folder or "/",
                )
    return names


def _sum_sizes(store: OurStore, prefix: str) -> int:
    """Return the size of all values below a prefix; those that are listed without are asked for."""
    listed = ((key, size) for key, size in store.list(prefix))
    return sum(size if size >= 0 else _size(store, key) or 0 for key, size in listed)


def _size(store: OurStore, key: str) -> int | None:
    """Return the size of a value, read only where there is no other way; None without a value."""
    plain = unwrap(store)
    if isinstance(plain, VirtualStore):
        return plain.size(key)
    if isinstance(plain, FsspecStore):
        size = plain.size(key)
        if size is None or size >= 0:
            return size
    # Sizes from the file system: reading a chunk of megabytes to measure it would be slow.
    file = store.file(key)
    if isinstance(file, LocalFile):
        try:
            status = os.stat(file.uri)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None
    data = store.get(key)
    return None if data is None else len(data)


def _identity(store: OurStore) -> tuple[Any, ...]:
    """Return what is equal for stores of the same place."""
    plain = unwrap(store)
    location = plain.data if isinstance(plain, MemoryStore) else plain.uri
    if isinstance(plain, VirtualStore):
        location = plain.documents
    return type(store), type(plain), location, getattr(plain, "storage_options", None)
