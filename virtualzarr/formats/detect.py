"""Which format a file has: by its first bytes, then by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from virtualzarr.errors import UnsupportedError
from virtualzarr.formats.kerchunk.folder import is_folder
from virtualzarr.group import Group
from virtualzarr.stores.files import LocalFile, RemoteFile, file_facts, is_url, resolve_uri
from virtualzarr.stores.icechunks import is_repository

HEAD_BYTES = 4096

FORMATS: dict[str, str] = {
    "hdf5": "virtualzarr.formats.hdf5",
    "tiff": "virtualzarr.formats.tiff",
    "kerchunk": "virtualzarr.formats.kerchunk",
    "icechunk": "virtualzarr.formats.icechunk",
    "zarr": "virtualzarr.formats.zarr",
}
"""Modules by the name of the format they scan."""

_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_HDF5 = b"\x89HDF\r\n\x1a\n"

Scanner = Callable[..., Group]


def detect(path_or_url: Any, storage_options: Mapping[str, Any] | None = None) -> str:
    """Tell the format of a file or directory.

    Returns
    -------
    str
        A name in `FORMATS`.

    Raises
    ------
    SourceError
        If there is nothing to read.
    UnsupportedError
        If no format fits; the message says what was tried.
    """
    uri = resolve_uri(path_or_url)
    if is_folder(uri):
        return "kerchunk"
    if is_repository(uri):
        return "icechunk"
    if _is_zarr(uri, storage_options):
        return "zarr"
    head = _head(uri, storage_options)
    if head.startswith(_TIFF):
        return "tiff"
    # HDF5's signature lies at 0, or behind a user block of 512 bytes, 1024, 2048, ...
    if any(head[start : start + 8] == _HDF5 for start in (0, 512, 1024, 2048)):
        return "hdf5"
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return "kerchunk"
    raise UnsupportedError(
        f"the first bytes, {bytes(head[:8])!r}, are of no known format "
        f"(tried {', '.join(FORMATS)}); force one with format=",
        file=uri,
    )


def scan(
    path_or_url: Any,
    *,
    format: str | None = None,
    on_error: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
) -> Group:
    """Scan one file into a group of arrays whose chunks lie in that file.

    Parameters
    ----------
    path_or_url : path or str
    format : str, optional
        One of `FORMATS`; by default it is detected.
    on_error : {"raise", "warn"}
        What to do about a variable that cannot be virtualized: raise, or warn, leave it out and
        note it in the group's `refused`.
    storage_options : mapping, optional
        How fsspec opens a URL.
    allowed : str or iterable of str, optional
        Places that a reference file may reach: folders, or URLs up to a ``/``. Other formats reach
        nothing but themselves, or files beside them.

    Examples
    --------
    >>> scan("notes.txt", format="notes")
    Traceback (most recent call last):
    virtualzarr.errors.UnsupportedError: no format is called 'notes'; there are hdf5, tiff, \
kerchunk, icechunk, zarr
    """
    if on_error not in ("raise", "warn"):
        raise ValueError(f"on_error is 'raise' or 'warn', not {on_error!r}")
    name = format or detect(path_or_url, storage_options)
    if name not in FORMATS:
        raise UnsupportedError(f"no format is called {name!r}; there are {', '.join(FORMATS)}")
    scanner: Scanner = import_module(FORMATS[name]).scan
    limits = {"allowed": allowed} if name in ("kerchunk", "icechunk") else {}
    return scanner(path_or_url, on_error=on_error, storage_options=storage_options, **limits)


def _is_zarr(uri: str, storage_options: Mapping[str, Any] | None) -> bool:
    from virtualzarr.formats.zarr import is_hierarchy
    from virtualzarr.stores import open_store

    # A file's own content decides; asking a server for keys below it would only cost requests.
    if is_url(uri) and uri.rstrip("/").rsplit(".", 1)[-1] in ("nc", "h5", "hdf5", "tif", "json"):
        return False
    return is_hierarchy(open_store(uri, storage_options))


def _head(uri: str, storage_options: Mapping[str, Any] | None) -> bytes:
    if not is_url(uri) and Path(uri).is_dir():
        raise UnsupportedError("the directory holds no Zarr metadata", file=uri)
    size = file_facts(uri, storage_options).size
    file = RemoteFile(uri, storage_options) if is_url(uri) else LocalFile(uri)
    return bytes(file.read(0, HEAD_BYTES if size is None else min(size, HEAD_BYTES)))
