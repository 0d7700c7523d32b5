"""Opening of TIFF files with tifffile, local and remote, and of the files an OME series spans."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING, Any, cast

from virtualzarr import errors
from virtualzarr.formats.paging import pages_of
from virtualzarr.formats.tiff.declare import RecordedFile
from virtualzarr.formats.tiff.directories import Directories
from virtualzarr.formats.tiff.remote import PagedFile, read_ahead
from virtualzarr.manifest import Source
from virtualzarr.stores.files import is_url

if TYPE_CHECKING:
    from virtualzarr.formats.templates.recorder import Recorder

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
    recorded : RecordedFile, optional
        The same file, if what is read of it is recorded.
    """

    def __init__(
        self,
        tiff: Any,
        source: Source,
        directories: Directories | None = None,
        recorded: RecordedFile | None = None,
    ) -> None:
        self.tiff = tiff
        self.recorded = recorded
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
            recorder = None if self.recorded is None else self.recorded.recorder
            directories = Directories(tiff.tiff, tiff.filehandle, recorder=recorder)
            self._directories[id(tiff)] = directories
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
def open_tiff(source: Source, recorder: Recorder | None = None) -> Iterator[Files]:
    """Open a file with tifffile; what it reads of a local one is recorded.

    Raises `SourceError` if it cannot be read; `MissingDependencyError` if there is no tifffile.
    """
    problem = "tifffile is needed to scan TIFF files: pip install 'virtualzarr[tiff]'"
    tifffile = errors.import_optional("tifffile", problem)
    if not is_url(source.uri):
        with ExitStack() as stack:
            with parsing(source.uri):
                recorded = None
                if recorder is not None:
                    recorded = stack.enter_context(RecordedFile(source.uri, recorder))
                tiff = stack.enter_context(tifffile.TiffFile(recorded or source.uri))
            yield Files(tiff, source, recorded=recorded)
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
