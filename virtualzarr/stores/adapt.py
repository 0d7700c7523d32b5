"""Targets of other libraries: stores, open files and chains of URLs as what this package opens."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from virtualzarr.errors import UnsupportedError
from virtualzarr.stores.obstore import ObstoreStore
from virtualzarr.stores.uris import is_url
from virtualzarr.stores.zarr_python import ZarrPythonStore

_REFERENCE = ("reference://::", "reference::")

_PLAIN_PROTOCOLS = frozenset(["file", "http", "https", "s3", "gs", "gcs", "az", "abfs"])
"""Of whose file systems options and a URL say all; others are over a further one."""

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
        For bytes.

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
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(target).__mro__}
    roots = {kind.partition(".")[0] for kind in kinds}
    if "h5py" in roots:
        raise UnsupportedError("what h5py has opened is read by its path: give the file's name")
    if "obstore" in roots and hasattr(target, "get_range"):
        return _adapt_obstore(target, storage_options)
    if "zarr" in roots or "icechunk" in roots:
        return _adapt_zarr(target, storage_options)
    if "fsspec.mapping.FSMap" in kinds:
        return _adapt_mapping(target, storage_options)
    if hasattr(target, "fs") and isinstance(getattr(target, "path", None), str):
        return _adapt_fsspec(target.fs, target.path, storage_options)
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


def _adapt_obstore(store: Any, options: Mapping[str, Any] | None, path: str = "") -> Adapted:
    if type(store).__name__ == "LocalStore" and store.prefix is not None:
        root = os.fspath(store.prefix)
        return os.path.join(root, path) if path else root, options
    return ObstoreStore(store, path), options


def _adapt_zarr(target: Any, options: Mapping[str, Any] | None) -> Adapted:
    """Return what a store, a place in one, an array or a group of zarr-python is over."""
    node, path = getattr(target, "store_path", target), ""  # of arrays and groups
    name = type(node).__name__
    store = node
    if name == "StorePath":
        store, path = node.store, node.path
        name = type(store).__name__
    if name == "IcechunkStore":
        if path:
            raise UnsupportedError(f"open the session instead, with path={path!r}")
        return store.session, options
    if name == "Repository":
        return store.readonly_session("main"), options
    if name == "LocalStore":
        return os.path.join(os.fspath(store.root), path), options
    if name == "ObjectStore":
        return _adapt_obstore(store.store, options, path)
    if hasattr(store, "get_partial_values"):
        return ZarrPythonStore(store, path), options
    return target, options


def _adapt_mapping(mapping: Any, options: Mapping[str, Any] | None) -> Adapted:
    """Return the folder or URL that a mapping of fsspec is over, where that says all of it."""
    protocol = mapping.fs.protocol
    names = {protocol} if isinstance(protocol, str) else {*protocol}
    if names & _PLAIN_PROTOCOLS:
        return _adapt_fsspec(mapping.fs, mapping.root, options)
    return mapping, options


def _adapt_fsspec(fs: Any, path: str, options: Mapping[str, Any] | None) -> Adapted:
    if "file" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol):
        return os.path.abspath(path), options
    url = str(fs.unstrip_protocol(path))
    harmless = {name: value for name, value in fs.storage_options.items()
                if name not in ("asynchronous", "loop")}  # fmt: skip
    return url, {**harmless, **(options or {})} or None


def _adapt_file(file: Any) -> str:
    """Return the path of an open local file."""
    path = getattr(file, "path", None) or getattr(file, "name", None)
    if not isinstance(path, str) or is_url(path) or not os.path.isfile(path):
        raise UnsupportedError(
            "an open file is read by its path, and this one has none; write it to a file, or to "
            "memory:// of fsspec"
        )
    return os.path.abspath(path)
