"""Opening of TIFF files with tifffile, local and remote, and of the files an OME series spans."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from virtualzarr import errors
from virtualzarr.formats.paging import pages_of
from virtualzarr.formats.tiff.directories import Directories
from virtualzarr.formats.tiff.remote import PagedFile, read_ahead
from virtualzarr.manifest import Source
from virtualzarr.stores.files import is_url

_SMALL_CIRCLE = 100


class Files:
    """An open TIFF file, and the files beside it that tifffile opened for its series.

    Parameters
    ----------
    tiff : tifffile.TiffFile
    source : Source
        Of the same file.
    directories : Directories, optional
        Of the same file.
    """

    def __init__(self, tiff: Any, source: Source, directories: Directories | None = None) -> None:
        self.tiff = tiff
        self.uri = source.uri
        self._sources = {id(tiff): source}
        self._directories = {} if directories is None else {id(tiff): directories}

    def source(self, tiff: Any) -> Source:
        """Return the source of a file that the series spans.

        Raises `AccessError` if it is not in the folder of the file that was scanned.
        """
        source = self._sources.get(id(tiff))
        if source is None:
            path = os.path.realpath(tiff.filehandle.path)
            if os.path.dirname(path) != os.path.dirname(os.path.realpath(self.uri)):
                raise errors.AccessError(f"the TIFF series has planes in another folder, {path}")
            source = self._sources[id(tiff)] = Source.from_file(path)
        return source

    def directories(self, tiff: Any) -> Directories:
        """Return the directories of a file that the series spans."""
        directories = self._directories.get(id(tiff))
        if directories is None:
            directories = self._directories[id(tiff)] = Directories(tiff.tiff, tiff.filehandle)
        return directories

    def check_chain(self) -> None:
        """Raise `SourceError` if directories run in a circle that tifffile does not detect."""
        first = self.tiff.pages.first
        if self.tiff.is_imagej and first.is_final:
            # ImageJ stacks above 4 GiB have one directory and contiguous pages behind it.
            return
        count = self.directories(self.tiff).walk(first.offset)
        # tifffile detects circles of fewer than 100 pages, and then may drop some of their pages.
        if count is not None and (count >= _SMALL_CIRCLE or len(self.tiff.pages) < count):
            raise errors.SourceError("the chain of TIFF directories runs in a circle")

    def check_present(self, series: Any) -> None:
        """Raise if planes of an OME series are in missing files, which tifffile reads as 0."""
        if series.kind != "ome" or all(page is not None for page in series):
            return
        present = {page.parent.filehandle.name for page in series if page is not None}
        names = set(re.findall(r'FileName="([^"]*)"', self.tiff.ome_metadata or ""))
        missing = sorted(name for name in names if os.path.basename(name) not in present)
        # A single name is the file's own, which may have been renamed.
        if missing and len(names) > 1:
            problem = "not looked for at URLs" if is_url(self.uri) else "not readable"
            raise errors.UnsupportedError(
                f"the OME series has planes in a file that is missing, or {problem}, {missing[0]}"
            )


@contextmanager
def open_tiff(source: Source) -> Iterator[Files]:
    """Open a file with tifffile.

    Raises `SourceError` if it cannot be read; `MissingDependencyError` if there is no tifffile.
    """
    problem = "tifffile is needed to scan TIFF files: pip install 'virtualzarr[tiff]'"
    tifffile = errors.import_optional("tifffile", problem)
    if not is_url(source.uri):
        with parsing(source.uri):
            tiff = tifffile.TiffFile(source.uri)
        with tiff:
            yield Files(tiff, source)
        source.check_unchanged()
        return
    # NDPI slides are only known by their extension: it has to be passed on.
    name = os.path.basename(re.split(r"[?#]", source.uri)[0])
    file = PagedFile(pages_of(source))
    with parsing(source.uri):
        # tifffile reads a few bytes at a time: without the pages that this fetches at once, each
        # directory and each value would be a round trip.
        directories = read_ahead(file, name)
        file.seek(0)
        tiff = tifffile.TiffFile(cast("IO[bytes]", file), name=name)
    with tiff:
        yield Files(tiff, source, directories)
    # tifffile logs read errors of pages and goes on without them, which would be missing chunks.
    if file.failure is not None:
        raise file.failure


@contextmanager
def parsing(uri: str) -> Iterator[None]:
    """Convert any error of a parser to a `SourceError` that names the file."""
    try:
        yield
    except errors.VirtualZarrError:
        raise
    except Exception as error:
        # Any type: of damaged files tifffile raises whatever its arithmetic and lookups raise.
        problem = f"{type(error).__name__}: {error}"
        raise errors.SourceError(f"tifffile cannot read the file ({problem})", file=uri) from error
