"""Opening of stores: which kind a path, URL, mapping or object is."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

from virtualzarr.errors import SourceNotFoundError, name_type
from virtualzarr.stores.adapt import READ_ONLY, adapt, as_session_store, is_read_only
from virtualzarr.stores.credentials import names_of, without_keyring
from virtualzarr.stores.fingerprints import as_source_error
from virtualzarr.stores.fsspec import FsspecStore
from virtualzarr.stores.literal_mapping import LiteralMapping
from virtualzarr.stores.local import LocalStore
from virtualzarr.stores.location import Location
from virtualzarr.stores.memory import MemoryStore
from virtualzarr.stores.read_only import ReadOnlyStore, unwrap
from virtualzarr.stores.store import Store
from virtualzarr.stores.uris import is_cached
from virtualzarr.stores.zarr_python import ZarrPythonStore
from virtualzarr.stores.zip import ZipStore

_CACHED = (
    "through a cache of fsspec, which goes on showing what was there before, nothing is written: "
    "open the URL without it"
)


def open_store(target: Any, storage_options: Mapping[str, Any] | None = None) -> Store:
    """Return a store over a directory, a zip file, a URL, a mapping of bytes, or another store.

    Stores of obstore and of zarr-python are adapted; those that were opened read-only stay so.

    A local zip file is recognized by its content, one elsewhere by its name. None is created here.

    Raises
    ------
    SourceNotFoundError
        The name is that of a local zip file, and there is none.

    Examples
    --------
    >>> open_store({"zarr.json": b"{}"}).get("zarr.json")
    b'{}'
    """
    store = _open_store(target, storage_options)
    may_write = getattr(store, "writable", False)
    return ReadOnlyStore(store, READ_ONLY) if may_write and is_read_only(target) else store


def _open_store(target: Any, storage_options: Mapping[str, Any] | None) -> Store:
    target, storage_options = adapt(target, storage_options)
    if (session_store := as_session_store(target)) is not target:
        return ZarrPythonStore(session_store)
    if isinstance(target, Mapping):
        mapped = MemoryStore(target)
        is_over_cache = isinstance(target, LiteralMapping) and target.is_cached
        return ReadOnlyStore(mapped, _CACHED) if is_over_cache else mapped
    if isinstance(target, (str, os.PathLike, Location)):
        location = Location.of(target, storage_options)
        uri, storage_options = location.uri, location.storage_options
        if not location.is_remote:
            return _local_store(uri)
        if uri.endswith(".zip") and "::" not in uri:
            # As fsspec chains them, with options for each.
            protocol = uri.partition("://")[0]
            options = {protocol: without_keyring(storage_options), **names_of(storage_options)}
            return FsspecStore(f"zip://::{uri}", options)
        store = FsspecStore(uri, storage_options)
        return ReadOnlyStore(store, _CACHED) if is_cached(uri) else store
    if all(hasattr(target, name) for name in ("get", "file", "list_dir")):
        return target
    raise TypeError(f"a store is a path, a URL, a mapping or a store, not {name_type(target)}")


def store_location(
    store: Store,
    allowed: str | Iterable[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Location:
    """Return where a store is: its manifests may refer to what a reference file there may."""
    inner: Any = unwrap(store)
    uri = inner.uri if isinstance(inner, LocalStore | FsspecStore) else None
    return Location.of(uri, storage_options or getattr(inner, "storage_options", None), allowed)


def _local_store(uri: str) -> Store:
    if uri.endswith(".zip") and not os.path.exists(uri):
        # What is written to it can be read when it is closed, and nobody closes a path.
        raise SourceNotFoundError(
            "there is no such zip file; virtualzarr.copy makes one, and to write arrays into one, "
            'give a store that you close: with virtualzarr.stores.ZipStore(path, "w") as store',
            file=uri,
        )
    return ZipStore(uri) if _is_zip(uri) else LocalStore(uri)


def _is_zip(path: str) -> bool:
    if not os.path.isfile(path):
        return False
    if path.endswith(".zip"):
        return True
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PK\x03\x04" and zipfile.is_zipfile(file)
    except OSError as error:  # the file may not be read, or its disk fails
        raise as_source_error(error, path) from error
