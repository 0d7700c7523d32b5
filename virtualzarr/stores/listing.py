"""Directory listings of remote file systems, complete or an error, and what follows them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from virtualzarr.errors import SourceNotFoundError

if TYPE_CHECKING:
    from virtualzarr.stores.conditional import Replaced


class Entry(NamedTuple):
    """A file or folder in a listing.

    Attributes
    ----------
    path : str
        As the file system has it, without a slash at the end.
    size : int, optional
        Bytes, where the listing tells.
    is_folder : bool
    """

    path: str
    size: int | None
    is_folder: bool


class SupportsListing(Protocol):
    """Lists folders."""

    def entries(self, path: str) -> list[Entry]: ...  # noqa: D102
    def walk(self, path: str) -> list[Entry]: ...  # noqa: D102


def walk_entries(
    entries: Callable[[str], list[Entry]],
    path: str,
    depth: int | None = None,
    folders: bool = False,
) -> list[Entry]:
    """Return all files below a folder, and folders on request, so many levels down.

    Parameters
    ----------
    entries : callable
        Lists one folder. What it raises ends the walk, as a listing with gaps would be taken for
        missing files; except that a folder below may be gone meanwhile.
    path : str
    depth : int, optional
    folders : bool
    """
    # Some file systems list a folder among its own entries: that would never end.
    children = [entry for entry in entries(path) if not entry.is_folder or entry.path != path]
    result = [entry for entry in children if folders or not entry.is_folder]
    if depth == 1:
        return result
    deeper = None if depth is None else depth - 1
    for entry in children:
        if entry.is_folder:
            with suppress(SourceNotFoundError, FileNotFoundError):
                result += walk_entries(entries, entry.path, deeper, folders)
    return result


def list_folder(fs: Any, path: str) -> list[Entry]:
    """Return what is in a folder of a file system of fsspec, and not what it remembers."""
    fs = beneath_caches(fs)
    fs.invalidate_cache(path)
    return [as_entry(info) for info in fs.ls(path, detail=True)]


def list_files_below(fs: Any, path: str) -> list[Entry]:
    """Return all files below a folder of a file system of fsspec.

    What fsspec itself offers leaves out folders that cannot be listed. Object stores have a way of
    their own, which does not.
    """
    from fsspec import AbstractFileSystem
    from fsspec.asyn import AsyncFileSystem

    fs = beneath_caches(fs)
    kind = type(fs)
    if fs.async_impl:
        overridden = kind._find is not AsyncFileSystem._find
    else:
        overridden = kind.find is not AbstractFileSystem.find
    if not overridden:
        return walk_entries(lambda folder: list_folder(fs, folder), path)
    fs.invalidate_cache(path)
    entries = map(as_entry, fs.find(path, detail=True).values())
    return [entry for entry in entries if not entry.is_folder]


def beneath_caches(fs: Any) -> Any:
    """Return the file system of which one of fsspec caches files, or else itself."""
    while type(fs).__module__ == "fsspec.implementations.cached":
        fs = fs.fs
    return fs


class Listings:
    """Listings of a file system of fsspec, and changes of its files and folders.

    Parameters
    ----------
    fs : fsspec.AbstractFileSystem
    """

    has_conditions = False
    """Whether `write` keeps conditions."""

    def __init__(self, fs: Any) -> None:
        self.fs = self._fs = fs

    def entries(self, path: str) -> list[Entry]:
        """Return what is in a folder now."""
        return list_folder(self._fs, path)

    def walk(self, path: str) -> list[Entry]:
        """Return all files below a folder."""
        return list_files_below(self._fs, path)

    def write(self, path: str, data: bytes, replaced: Replaced | None = None) -> None:
        """Give a file these bytes, whatever is there: few services keep conditions."""
        self.fs.pipe_file(path, data)

    def put(self, path: str, local: str, *, has_folders: bool) -> None:
        """Give a file the bytes of a local one, in its folder where there are folders."""
        if has_folders:  # where there are none, it would make the bucket that a typing error names
            self.fs.makedirs(self.fs._parent(path), exist_ok=True)
        # From a file on disk: `put_file` sends it in parts, object stores show it at the end.
        self.fs.put_file(local, path)

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it, where they are not there."""
        self.fs.makedirs(path, exist_ok=True)

    def remove(self, path: str) -> None:
        """Delete a file."""
        self.fs.rm_file(path)

    def remove_links(self, path: str) -> None:
        """Remove links to folders, at a path and below; object stores have none."""

    def remove_below(self, path: str, first: Collection[str]) -> None:
        """Delete a folder and what is in it; `first` is for those that do it file by file."""
        self.fs.rm(path, recursive=True)


def as_entry(info: Any) -> Entry:
    """Return a member of a listing of fsspec."""
    name = str(info["name"])
    # Consoles of object stores leave empty objects for folders, with a slash at the end.
    is_folder = info["type"] == "directory" or name.endswith("/")
    return Entry(name.rstrip("/"), info.get("size"), is_folder)


def glob(lists: SupportsListing, pattern: str) -> list[str]:
    """Return the paths of files and folders that match a pattern with ``*`` and ``**``.

    Raises
    ------
    SourceError
        A folder cannot be listed.
    """
    from fsspec.utils import glob_translate

    root = pattern[: pattern.index("*")].rpartition("/")[0]
    depth = None if "**" in pattern else pattern[len(root) + 1 :].count("/") + 1
    # Not the file system's own glob: most skip folders that they cannot list.
    try:
        if depth is None:
            names = _add_folders(entry.path for entry in lists.walk(root))
        else:
            names = {entry.path for entry in walk_entries(lists.entries, root, depth, True)}
    except (SourceNotFoundError, FileNotFoundError):
        return []
    matches = re.compile(glob_translate(pattern))
    return sorted(name for name in names if matches.match(name))


def _add_folders(files: Iterable[str]) -> set[str]:
    """Return paths of files, and of all folders that they lie in."""
    names = set()
    for name in files:
        while name and name not in names:
            names.add(name)
            name = name.rpartition("/")[0]
    return names
