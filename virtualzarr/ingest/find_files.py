"""File search by paths and glob patterns."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from virtualzarr.errors import SourceNotFoundError, UnsupportedError, name_type
from virtualzarr.stores.files import Connection, Location, is_url
from virtualzarr.stores.uris import is_object_store, is_web

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def find_files(paths: Paths, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Return the files that paths and patterns name.

    Raises `SourceError` if a pattern finds nothing, or there are no paths.
    """
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    if isinstance(paths, Mapping) or not isinstance(paths, Iterable):
        raise _no_paths_error(paths)
    files = [file for path in paths for file in _glob(path, storage_options)]
    if not files:
        raise SourceNotFoundError("no paths were given")
    return files


def _no_paths_error(given: Any) -> TypeError:
    """Return the error for what is no path: a store is named by where it is."""
    name, where = name_type(given), getattr(given, "uri", None)
    kind = f"the open store {where}" if where and name.startswith("virtualzarr.") else name
    return TypeError(f"give paths, not {kind}; open() and concat() take what is open")


def _glob(path: Any, storage_options: Mapping[str, Any] | None) -> list[str]:
    if not isinstance(path, str | os.PathLike):
        raise _no_paths_error(path)
    path = os.fspath(path)
    if not _is_pattern(path):
        return [path]
    if is_url(path):
        matches = _glob_url(path, storage_options)
    else:
        import glob

        matches = glob.glob(path, recursive=True)
    if not matches:
        raise SourceNotFoundError(f"no file matches the pattern{_explain(path)}", file=path)
    return sorted(matches, key=natural_key)


def _explain(pattern: str) -> str:
    """Return what else may be the reason, where it cannot be told."""
    if is_web(pattern):
        return (
            ": none of the links does on the page that the server shows, which is that of the "
            "folder or one to log in"
        )
    return ", or there is no such bucket" if is_object_store(pattern) else ""


def _is_pattern(path: str) -> bool:
    """Tell whether a path is a pattern, and not a file with odd characters in its name."""
    if is_url(path):
        # A question mark begins a query, and brackets are found in those.
        return "*" in path
    return any(char in path for char in "*?[") and not os.path.lexists(path)


def _glob_url(url: str, storage_options: Mapping[str, Any] | None) -> list[str]:
    # Nothing says which of the chained file systems the pattern is of.
    if "::" in url:
        raise UnsupportedError("a pattern in a chained URL; list the URLs instead", file=url)
    connection = Connection(Location(url, storage_options))
    return [connection.url_of(path) for path in connection.find(connection.path, url)]


def natural_key(path: str) -> list[str | int]:
    """Return a key that sorts numbers within names by value.

    Examples
    --------
    >>> sorted(["day10.nc", "day2.nc"], key=natural_key)
    ['day2.nc', 'day10.nc']
    """
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]+)", path))]
