"""Context of HDF5 datasets: their file, and the other files that it names."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import count

from virtualzarr.config import config
from virtualzarr.errors import AccessError, SourceNotFoundError, UnsupportedError
from virtualzarr.formats.hdf5.open_file import OpenFile
from virtualzarr.formats.other_files import note_other_file
from virtualzarr.manifest import Source
from virtualzarr.stores.files import is_url
from virtualzarr.stores.location import Location

_MAX_DEPTH = 8


@dataclass(frozen=True)
class FileContext:
    """The file that a dataset lies in.

    Parameters
    ----------
    location : Location
        Which other files it may reach.
    open : callable
        Opens another file: takes its URI.
    names : mapping
        Path of each object of the file by address: what references are replaced by.
    depth : int
        Through how many virtual datasets, and links to their sources, the file was reached.
    visits : iterator of int
        Counts the sources of virtual datasets that one scan looks for.
    """

    file: OpenFile
    location: Location
    open: Callable[[str], AbstractContextManager[OpenFile]]
    names: Mapping[int, str] = field(default_factory=dict)
    depth: int = 0
    visits: Iterator[int] = field(default_factory=lambda: count(1))

    def enter(self, file: OpenFile) -> FileContext:
        """Return the surroundings in a file that a virtual dataset of this one names.

        Raises `UnsupportedError` if virtual datasets are nested too deeply, or have too many
        sources.
        """
        if self.depth >= _MAX_DEPTH:
            raise UnsupportedError(f"virtual datasets are nested more than {_MAX_DEPTH} deep")
        config.limits.check("virtual_sources", next(self.visits), "sources of virtual datasets")
        return replace(self, file=file, names={}, depth=self.depth + 1)

    def find_linked_file(self, name: str, variable: str) -> Source | None:
        """Return a file that a virtual dataset or an external link names, None where there is none.

        As HDF5 does, relative names are looked for in the folders of an environment variable,
        beside the file, in the current folder, and beside what the file itself is a link to;
        absolute ones that are not there in the same places.

        Raises `AccessError` if it may not be reached.

        Parameters
        ----------
        variable : str
            ``HDF5_VDS_PREFIX`` or ``HDF5_EXT_PREFIX``.
        """
        note_other_file()
        if self.file.recorder is not None:
            self.file.recorder.forbid("files that it names")
        home = self.file.source.uri
        if is_url(home):
            return self._find_linked_url(home, name)
        # In the order of the library (`H5F_prefix_open_file`): another order would open another
        # file of the same name.
        for folder in self._search_folders(variable):
            for candidate in (name, os.path.basename(name)) if os.path.isabs(name) else (name,):
                path = os.path.join(folder, candidate)
                if os.path.isfile(path):
                    return self._source(_normalize_path(path))
        return None

    def _find_linked_url(self, home: str, name: str) -> Source | None:
        if is_url(name):
            return self._source(name)
        # An absolute path is one of the machine where the file was written.
        absolute = posixpath.isabs(name)
        source = self._source(_join_url(home, posixpath.basename(name) if absolute else name))
        return self._source(name) if source is None and absolute else source

    def _search_folders(self, variable: str) -> list[str]:
        """Return the folders where HDF5 looks for files that a local file names."""
        home = self.file.source.uri
        folder, real = os.path.dirname(home), os.path.dirname(os.path.realpath(home))
        return [*_list_prefixes(variable, folder), folder, os.getcwd(), real]

    def find_external_file(self, name: str) -> Source:
        """Return a file that holds values.

        Raises `AccessError` if it may not be reached; `SourceError` if it is not there.
        """
        note_other_file()
        if self.file.recorder is not None:
            self.file.recorder.forbid("files that it names")
        for prefix in _list_prefixes(
            "HDF5_EXTFILE_PREFIX", posixpath.dirname(self.file.source.uri)
        ):
            name = os.path.join(prefix, name)
        source = self._source(name)
        if source is None:
            raise SourceNotFoundError(f"there is no external file {name!r}")
        return source

    def _source(self, name: str) -> Source | None:
        try:
            return Source.from_file(self.location.resolve(name))
        except SourceNotFoundError:
            return None


def _list_prefixes(variable: str, origin: str) -> list[str]:
    """Return the folders that an environment variable of HDF5 names."""
    folders = os.environ.get(variable, "").split("\0" if variable == "HDF5_EXTFILE_PREFIX" else ":")
    if variable != "HDF5_EXT_PREFIX":
        folders = [folder.replace("${ORIGIN}", origin) for folder in folders]
    return [folder for folder in folders if folder not in ("", ".")]


def _join_url(home: str, name: str) -> str:
    """Return the URL of a file that another at a URL names."""
    scheme, _, location = home.partition("://")
    folder = location.rpartition("/")[0]
    host = folder.partition("/")[0]
    # Bucket or host is the first part: names with too many ".." must not reach another one.
    target = posixpath.normpath(posixpath.join(folder, name))
    if target.split("/")[0] in ("..", "") or (host and not target.startswith(f"{host}/")):
        raise AccessError(f"{name!r} leads out of the host", file=home)
    return f"{scheme}://{target}"


def _normalize_path(path: str) -> str:
    """Return a path without ``..``, if it then still is the same file."""
    plain = os.path.normpath(path)
    return plain if os.path.exists(plain) and os.path.samefile(plain, path) else path
