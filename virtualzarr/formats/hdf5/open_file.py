"""Open HDF5 files: byte source, objects, and the HDF5 library as fallback."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from virtualzarr.errors import VirtualZarrError, error_context
from virtualzarr.formats.hdf5.byte_source import (
    ByteSource,
    LocalPages,
    Parsing,
    UnknownStructureError,
)
from virtualzarr.formats.hdf5.describe import Description, describe
from virtualzarr.formats.hdf5.h5py_fallback import H5PY_ERRORS, Library, LibraryObject
from virtualzarr.formats.hdf5.inline_values import InlineValues
from virtualzarr.formats.hdf5.messages import Dataspace
from virtualzarr.formats.hdf5.objects import Object, Objects
from virtualzarr.formats.hdf5.walk import Walker
from virtualzarr.formats.paging import pages_of
from virtualzarr.formats.templates.recorder import RecordedPages, Recorder
from virtualzarr.manifest import Source, Sources
from virtualzarr.stores.file_heads import find_head
from virtualzarr.stores.files import is_url


@dataclass(frozen=True)
class OpenFile:
    """An open file.

    Parameters
    ----------
    source : Source
        The file, as manifests name it.
    objects : Objects, optional
        None where even the superblock is not known.
    recorder : Recorder, optional
        Is told what the scan of the file depends on.
    """

    source: Source
    data: ByteSource
    objects: Objects | None
    library: Library
    recorder: Recorder | None = None
    _copies: dict[int, InlineValues | Exception] = field(default_factory=dict)

    @cached_property
    def sources(self) -> Sources:
        """The table that the references into this file alone point to."""
        return Sources([self.source])

    def object(self, address: int) -> Object | None:
        """Return an object; None where only the library knows the file."""
        return None if self.objects is None else self.objects[address]

    def open_in_library(self, path: str, target: bytes, reason: str) -> LibraryObject:
        """Return an object as the HDF5 library has it, and note why."""
        self.library.record_request(path, reason)
        return self.library.open(target)

    def describe(self, address: int, path: str, target: bytes) -> Description:
        """Describe the dataset whose object header is at an address.

        Raises `SourceError` or `UnsupportedError`.
        """

        def opened(reason: str) -> LibraryObject:
            return self.open_in_library(path, target, reason)

        return describe(self.object(address), self.data.base, self.data.size, opened)

    def extent(self, address: int, path: str, target: bytes) -> Dataspace:
        """Return how long the axes of a dataset are, and how far they may grow."""
        object_ = self.object(address)
        if object_ is not None and isinstance(object_.space, Dataspace):
            return object_.space
        if (
            object_ is not None
            and isinstance(object_.space, VirtualZarrError)
            and not isinstance(object_.space, UnknownStructureError)
        ):
            raise object_.space
        return self.open_in_library(path, target, "its dataspace").space()

    def get_vlen(
        self, address: int | None, make: Callable[[], Parsing[InlineValues]]
    ) -> InlineValues:
        """Return the values of a dataset that lie in heaps, as `copy_all` or now `make` reads them.

        Raises
        ------
        VirtualZarrError
            `UnknownStructureError` if only h5py can read them.
        """
        if address is None:
            raise UnknownStructureError("values that lie elsewhere")
        if self.recorder is not None:
            self.recorder.pin(address)
        if address not in self._copies:
            self.read_all_vlen({address: make()})
        values = self._copies[address]
        if isinstance(values, Exception):
            raise values
        return values

    def read_all_vlen(self, parsers: Mapping[int, Parsing[InlineValues]]) -> None:
        """Read values that lie in heaps for `copy`, of many datasets in the same rounds."""

        def keep(address: int, parser: Parsing[InlineValues]) -> Parsing[None]:
            try:
                self._copies[address] = yield from parser
            except (VirtualZarrError, *H5PY_ERRORS) as error:
                self._copies[address] = error  # costs this dataset alone

        self.data.run([keep(*pair) for pair in parsers.items()])

    @cached_property
    def walker(self) -> Walker:
        """What finds datasets by their paths."""
        return Walker(self.objects, self.library, lambda path, error: None)


@contextmanager
def open_hdf5(
    path_or_url: Any,
    storage_options: Mapping[str, Any] | None = None,
    recorder: Recorder | None = None,
) -> Iterator[OpenFile]:
    """Open a file.

    Raises `SourceError` if there is no such file, or it is no HDF5 file.

    Parameters
    ----------
    recorder : Recorder, optional
        Is told what is read of the file.
    """
    source = Source.from_file(path_or_url, storage_options)
    library = Library(source)
    data = _open_bytes(source, recorder)
    objects = None
    with error_context(file=source.uri):
        try:
            # What is unusual in the superblock concerns the whole file: the library then lists
            # everything.
            objects = Objects(data, recorder)
        except UnknownStructureError as error:
            library.record_request("", error.message)
    data = data if objects is None else objects.source
    yield OpenFile(source, data, objects, library, recorder)
    # Values and attributes that were read meanwhile would be of another version than references.
    source.check_unchanged()


def _open_bytes(source: Source, recorder: Recorder | None) -> ByteSource:
    """Return a file as parsers want it."""
    if not is_url(source.uri):
        if recorder is None:
            return LocalPages(source.uri, fingerprint=source.fingerprint)
        return RecordedPages(source.uri, recorder, fingerprint=source.fingerprint)
    if recorder is not None:
        head = find_head(source.location)
        if head is not None and head.is_complete:
            return RecordedPages(source.uri, recorder, head.data)
        recorder.forbid("a remote file that is not all here")
    return pages_of(source)
