"""Relative URIs of sources, as seen from the array that refers to them."""

from __future__ import annotations

import os
import posixpath

from virtualzarr.errors import BadReferenceError
from virtualzarr.stores import FsspecStore, LocalStore, Store
from virtualzarr.stores.read_only import unwrap
from virtualzarr.stores.uris import from_name, is_url, to_name


def folder_of(store: Store, path: str) -> str | None:
    """Return the folder or URL of a node; None where the store lies in no folder."""
    store = unwrap(store)
    if isinstance(store, LocalStore | FsspecStore):
        return f"{store.uri.rstrip('/')}/{path}".rstrip("/")
    return None


def absolute(uri: str, folder: str | None) -> str:
    """Return the absolute form of a URI that may be relative to a folder.

    Raises `BadReferenceError` if there is no folder, or the URI leads above the root of a server.

    Examples
    --------
    >>> absolute("../../raw/a.nc", "/data/x.zarr/air"), absolute("s3://b/a.nc", "/data/x.zarr")
    ('/data/raw/a.nc', 's3://b/a.nc')
    >>> absolute("../a.nc", "s3://bucket/x.zarr")
    's3://bucket/a.nc'
    """
    if is_url(uri) or os.path.isabs(uri) or ":/" in uri:
        return uri
    if folder is None:
        raise BadReferenceError(f"the relative path {uri!r} means nothing in a store in memory")
    if not is_url(folder):
        return os.path.normpath(os.path.join(folder, uri))
    if "::" in folder:
        raise BadReferenceError(f"the relative path {uri!r} means nothing within {folder!r}")
    scheme, _, path = folder.partition("://")
    resolved = posixpath.normpath(posixpath.join(path, from_name(uri, folder)))
    if resolved.startswith("..") or resolved.split("/")[0] != path.split("/")[0]:
        raise BadReferenceError(f"the relative path {uri!r} leads out of {folder!r}")
    return f"{scheme}://{resolved}"


def relative(uri: str, folder: str | None) -> str:
    """Return a URI relative to a folder where there is a way from there, else as it is.

    Examples
    --------
    >>> relative("/data/raw/a.nc", "/data/x.zarr/air"), relative("s3://b/a.nc", "s3://b/x.zarr")
    ('../../raw/a.nc', '../a.nc')
    >>> relative("s3://b/a.nc", "/data/x.zarr")
    's3://b/a.nc'
    """
    if folder is None or is_url(folder) != is_url(uri) or (is_url(uri) and "::" in uri + folder):
        return uri
    if not is_url(uri):
        path = os.path.relpath(uri, folder)
    else:
        scheme, _, target = uri.partition("://")
        other, _, start = folder.partition("://")
        if scheme != other or target.split("/")[0] != start.split("/")[0]:
            return uri
        path = posixpath.relpath(f"/{target}", f"/{start}")
    name = to_name(path, folder)
    return name if name is not None and absolute(name, folder) == uri else uri
