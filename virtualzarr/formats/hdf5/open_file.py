"""An open HDF5 file: its bytes, the objects in it, and the HDF5 library for what is not known."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from virtualzarr.errors import VirtualZarrError
from virtualzarr.formats.hdf5.describe import Described, describe
from virtualzarr.formats.hdf5.h5py_fallback import H5PY_ERRORS, Library, Remote
from virtualzarr.formats.hdf5.inlined import Copied
from virtualzarr.formats.hdf5.objects import Object, Objects
from virtualzarr.formats.hdf5.space import Space
from virtualzarr.formats.hdf5.unsupported import ByteSource, LocalPages, Unknown
from virtualzarr.formats.hdf5.walk import Walker
from virtualzarr.formats.paging import pages_of
from virtualzarr.manifest import Source, Sources
from virtualzarr.stores.files import is_url


@dataclass(frozen=True)
class OpenFile:
    """An open file.

    Parameters
    ----------
    source : Source
        The file, as manifests name it.
    data : ByteSource
    objects : Objects, optional
        None where even the superblock is not known.
    library : Library
    """

    source: Source
    data: ByteSource
    objects: Objects | None
    library: Library
    _copies: dict[int, Copied | Exception] = field(default_factory=dict)

    @cached_property
    def sources(self) -> Sources:
        """The table that the references into this file alone point to."""
        return Sources([self.source])

    def object(self, address: int) -> Object | None:
        """Return an object; None where only the library knows the file."""
        return None if self.objects is None else self.objects[address]

    def asked(self, path: str, target: bytes, reason: str) -> Remote:
        """Return an object as the HDF5 library has it, and note why."""
        self.library.ask(path, reason)
        return self.library.open(target)

    def describe(self, address: int, path: str, target: bytes) -> Described:
        """Describe the dataset whose object header is at an address.

        Raises
        ------
        SourceError, UnsupportedError
        """

        def opened(reason: str) -> Remote:
            return self.asked(path, target, reason)

        return describe(self.object(address), self.data.base, self.data.size, opened)

    def extent(self, address: int, path: str, target: bytes) -> Space:
        """Return how long the axes of a dataset are, and how far they may grow.

        Raises
        ------
        SourceError
        """
        found = self.object(address)
        if found is not None and isinstance(found.space, Space):
            return found.space
        if (
            found is not None
            and isinstance(found.space, VirtualZarrError)
            and not isinstance(found.space, Unknown)
        ):
            raise found.space
        return self.asked(path, target, "its dataspace").space()

    def copy(self, address: int | None, make: Callable[[], Generator[Any, Any, Copied]]) -> Copied:
        """Return the values of a dataset that lie in heaps, as `copy_all` or now `make` reads them.

        Raises
        ------
        VirtualZarrError
            `Unknown` if only h5py can read them.
        """
        if address is None:
            raise Unknown("values that lie elsewhere")
        if address not in self._copies:
            self.copy_all({address: make()})
        found = self._copies[address]
        if isinstance(found, Exception):
            raise found
        return found

    def copy_all(self, parsers: Mapping[int, Generator[Any, Any, Copied]]) -> None:
        """Read values that lie in heaps for `copy`, of many datasets in the same rounds."""

        def keep(address: int, parser: Generator[Any, Any, Copied]) -> Generator[Any, Any, None]:
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
def opened(
    path_or_url: Any, storage_options: Mapping[str, Any] | None = None
) -> Iterator[OpenFile]:
    """Open a file.

    Raises
    ------
    SourceError
        If there is no such file, or it is no HDF5 file.
    """
    source = Source.from_file(path_or_url, storage_options)
    library = Library(source)
    data = _bytes(source)
    objects = None
    try:
        objects = Objects(data)
    except Unknown as error:
        library.ask("", error.message)
    except VirtualZarrError as error:
        raise error.at(file=source.uri) from error.__cause__
    yield OpenFile(source, data if objects is None else objects.source, objects, library)


def _bytes(source: Source) -> ByteSource:
    """Return a file as parsers want it."""
    if not is_url(source.uri):
        return LocalPages(source.uri)
    return pages_of(source)
