"""Targets of other libraries: stores, open files and chains of URLs as what this package opens."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from virtualzarr.errors import UnsupportedError, name_type
from virtualzarr.stores.changed_methods import replaced_methods
from virtualzarr.stores.listing import beneath_caches
from virtualzarr.stores.literal_mapping import LiteralMapping
from virtualzarr.stores.obstore import ObstoreStore
from virtualzarr.stores.zarr_python import ZarrPythonStore

_REFERENCE = ("reference://::", "reference::")

_PLAIN_PROTOCOLS = frozenset(["file", "http", "https", "s3", "gs", "gcs", "az", "abfs"])
"""Of whose file systems options and a URL say all; others are over a further one."""

_MISSING = {FileNotFoundError, IsADirectoryError, NotADirectoryError, KeyError}
"""What zarr-python takes for missing, unless it is told to take more for that."""

READ_ONLY = "the store was opened to be read only, by zarr-python"

Adapted = tuple[Any, Mapping[str, Any] | None]


def adapt(target: Any, storage_options: Mapping[str, Any] | None = None) -> Adapted:
    """Return what this package opens of something that another library has opened.

    Paths and URLs where the target is nothing else, and `storage_options` for these; stores of
    others as stores of ours. Anything else is returned as it is.

    Raises
    ------
    UnsupportedError
        For open files that have no path: bytes in memory, pipes; and for those of h5py.
    TypeError
        For bytes, and for objects of xarray.

    Examples
    --------
    >>> adapt("reference::refs.json")
    ('refs.json', None)
    """
    if isinstance(target, str):
        for prefix in _REFERENCE:
            target = target.removeprefix(prefix)
        return target, storage_options
    if isinstance(target, bytes | bytearray | memoryview):
        raise TypeError("a path is text, not bytes, and the content of a file is none")
    # By the names of packages, so that none of them is imported.
    roots = {kind.__module__.partition(".")[0] for kind in type(target).__mro__}
    if "xarray" in roots:
        raise TypeError(f"{name_type(target)}: give the path or the store that it was opened from")
    if "h5py" in roots:
        raise UnsupportedError("what h5py has opened is read by its path: give the file's name")
    if "obstore" in roots and hasattr(target, "get_range"):
        return _adapt_obstore(target, storage_options)
    if "zarr" in roots or "icechunk" in roots:
        return _adapt_zarr(target, storage_options)
    if isinstance(target, dict) and _is_filled_by_zarr(target):
        return _adapt_zarr(import_module("zarr.storage").MemoryStore(target), storage_options)
    if _is_kind(target, "fsspec.mapping", "FSMap"):
        return _adapt_mapping(target, storage_options)
    # Open files: of fsspec, which know where they are, and any others.
    if hasattr(target, "fs") and isinstance(getattr(target, "path", None), str):
        return _adapt_fsspec_file(target, storage_options)
    if hasattr(target, "read") and hasattr(target, "seek"):
        return _adapt_file(target), storage_options
    return target, storage_options


def adapt_paths(paths: Any, storage_options: Mapping[str, Any] | None = None) -> Adapted:
    """Do what `adapt` does with paths, or one of them; options are those of the first that has any.

    Examples
    --------
    >>> adapt_paths(["reference::a.json", "b.nc"])
    (['a.json', 'b.nc'], None)
    """
    if not isinstance(paths, list | tuple):
        return adapt(paths, storage_options)
    adapted = [adapt_paths(path, storage_options) for path in paths]
    options = next((options for _, options in adapted if options), storage_options)
    return [path for path, _ in adapted], options


def as_session_store(target: Any) -> Any:
    """Return the store of a session of Icechunk; anything else as it is."""
    return target.store if _is_kind(target, "icechunk", "Session") else target


def is_read_only(target: Any) -> bool:
    """Tell whether zarr-python has opened a store, or a node in one, only to read it."""
    store = getattr(target, "store_path", target)
    store = store.store if _is_kind(store, "zarr.storage", "StorePath") else store
    roots = {kind.__module__.partition(".")[0] for kind in type(store).__mro__}
    return "zarr" in roots and bool(getattr(store, "read_only", False))


def _is_kind(target: Any, module: str, name: str) -> bool:
    """Tell whether it is of a class of a package itself: subclasses may do anything."""
    kind = type(target)
    return kind.__name__ == name and f"{kind.__module__}.".startswith(f"{module}.")


def _is_filled_by_zarr(data: dict[Any, Any]) -> bool:
    """Tell whether values are buffers of zarr-python, which opens mappings as its `MemoryStore`."""
    value = next(iter(data.values()), None)
    return type(value).__module__.startswith("zarr.") and hasattr(value, "to_bytes")


def _adapt_obstore(store: Any, options: Mapping[str, Any] | None, path: str = "") -> Adapted:
    # One made of a relative path stays where it was made, which only obstore knows.
    is_local = _is_kind(store, "obstore", "LocalStore") and store.prefix is not None
    if is_local and os.path.isabs(root := os.fspath(store.prefix)):
        return os.path.join(root, path) if path else root, options
    return ObstoreStore(store, path), options


def _adapt_zarr(target: Any, options: Mapping[str, Any] | None) -> Adapted:
    """Return what a store, a place in one, an array or a group of zarr-python is over."""
    node, path = getattr(target, "store_path", target), ""  # of arrays and groups
    store = node
    if _is_kind(node, "zarr.storage", "StorePath"):
        store, path = node.store, node.path
    if _is_kind(store, "icechunk", "IcechunkStore"):
        if path:
            raise UnsupportedError(f"open the session instead, with path={path!r}")
        return store.session, options
    if _is_kind(store, "icechunk", "Repository"):
        return store.readonly_session("main"), options
    if _is_kind(store, "zarr.storage", "LocalStore"):
        return os.path.join(os.fspath(store.root), path), options
    if _is_kind(store, "zarr.storage", "ObjectStore"):
        return _adapt_obstore(store.store, options, path)
    if _is_kind(store, "zarr.storage", "FsspecStore"):
        fs = getattr(store.fs, "sync_fs", store.fs)
        # Through zarr-python, listings are old ones, and nothing is written conditionally.
        if _is_plain(fs) and {*store.allowed_exceptions} <= _MISSING:
            return _adapt_fsspec(fs, f"{store.path.rstrip('/')}/{path}".rstrip("/"), options)
    if hasattr(store, "get_partial_values"):
        return ZarrPythonStore(store, path), options
    return target, options


def _adapt_mapping(mapping: Any, options: Mapping[str, Any] | None) -> Adapted:
    """Return the folder or URL that a mapping of fsspec is over, where that says all of it."""
    if _is_plain(mapping.fs):
        return _adapt_fsspec(mapping.fs, mapping.root, options)
    return LiteralMapping(mapping), options


def _protocols_of(fs: Any) -> set[str]:
    return {fs.protocol} if isinstance(fs.protocol, str) else {*fs.protocol}


def _is_plain(fs: Any) -> bool:
    """Tell whether options and a URL say all of a file system of fsspec."""
    return bool(_protocols_of(fs) & _PLAIN_PROTOCOLS) and _is_made_by_url(fs)


def _is_made_by_url(fs: Any) -> bool:
    """Tell whether fsspec makes the same file system of a URL and options.

    Subclasses, and what was changed afterwards, may read and write otherwise.
    """
    from fsspec import get_filesystem_class

    kinds = []
    for name in _protocols_of(fs):
        with suppress(ImportError, ValueError):
            kinds.append(get_filesystem_class(name))
    return type(fs) in kinds and not fs.storage_args and not replaced_methods(fs)


def _adapt_fsspec_file(file: Any, options: Mapping[str, Any] | None) -> Adapted:
    if getattr(file, "compression", None) is not None:
        raise UnsupportedError(
            "an open file is read by its path, and this one is decompressed as it is read"
        )
    fs = beneath_caches(file.fs)  # whose options are not those of what is beneath
    if not (_is_made_by_url(file.fs) and _is_made_by_url(fs)):
        raise UnsupportedError(
            "an open file is read by its path, and that of a file system of one's own, or made "
            "otherwise than by keywords, says not all of it"
        )
    return _adapt_fsspec(fs, file.path, options)


def _adapt_fsspec(fs: Any, path: str, options: Mapping[str, Any] | None) -> Adapted:
    if "file" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol):
        return os.path.abspath(path), options
    url = str(fs.unstrip_protocol(path))
    harmless = {name: value for name, value in fs.storage_options.items()
                if name not in ("asynchronous", "loop")}  # fmt: skip
    return url, {**harmless, **(options or {})} or None


def _adapt_file(file: Any) -> str:
    """Return the path of an open local file, which has to lead to that very file."""
    # Of members of archives and of bytes in memory, the name is that of no file, or of another one.
    opened = getattr(file, "file", file)  # of what tempfile has made
    raw = getattr(getattr(opened, "buffer", opened), "raw", opened)
    path = raw.name if isinstance(raw, io.FileIO) else None
    if not isinstance(path, str | bytes) or not _leads_to(path, raw):
        raise UnsupportedError(
            "an open file is read by its path, and this one has none, or none any more; give the "
            "path, of a member of an archive zip://member::archive.zip, or write it to a file"
        )
    return os.path.abspath(os.fsdecode(path))


def _leads_to(path: str | bytes, raw: io.FileIO) -> bool:
    """Tell whether a path is that of an open file: the folder may be another one by now."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(raw.fileno()))
    except (OSError, ValueError):  # it is gone, or closed
        return False
