"""All objects of an HDF5 file that hard links lead to, read in as few rounds as possible."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from virtualzarr.errors import SourceError, UnsupportedError, VirtualZarrError
from virtualzarr.formats.hdf5 import (
    attributes,
    cache_image,
    external_files,
    header,
    indexes,
    links,
    superblock,
)
from virtualzarr.formats.hdf5.external_files import Slot
from virtualzarr.formats.hdf5.header import ObjectHeader
from virtualzarr.formats.hdf5.heaps import GlobalHeap
from virtualzarr.formats.hdf5.indexes import ChunkIndex
from virtualzarr.formats.hdf5.layouts import Layout, layout
from virtualzarr.formats.hdf5.links import Link
from virtualzarr.formats.hdf5.space import Space, space
from virtualzarr.formats.hdf5.unsupported import ByteSource, PageCache, Unknown

_MAX_OBJECTS = 1_000_000
_DRIVER = 0x14


@dataclass(slots=True)
class Object:
    """One object; each part is what it should be, or the error that prevented it.

    Parameters
    ----------
    address : int
        Of its header.
    header : ObjectHeader or VirtualZarrError
    kind : str
        "group", "dataset" or "type".
    links : list of Link or VirtualZarrError
        Of a group.
    attributes : list or VirtualZarrError
    space, layout, index
        Of a dataset; the index is None where no chunk is stored.
    mappings : bytes
        Of a virtual dataset, as stored.
    external : tuple of Slot or VirtualZarrError
        The pieces of other files that hold the values of a dataset, if they do.
    """

    address: int
    header: ObjectHeader | VirtualZarrError
    kind: str = ""
    links: Sequence[Link] | VirtualZarrError = ()
    attributes: Sequence[attributes.Found] | VirtualZarrError = ()
    space: Space | VirtualZarrError | None = None
    layout: Layout | VirtualZarrError | None = None
    index: ChunkIndex | VirtualZarrError | None = None
    mappings: bytes = b""
    external: tuple[Slot, ...] | VirtualZarrError = ()


class Objects:
    """The objects of one file by address.

    Parameters
    ----------
    source : ByteSource

    Raises
    ------
    SourceError
        If there is no superblock, or the file is shorter than that says.
    Unknown
        If the superblock is of a kind that is not known.
    """

    def __init__(self, source: ByteSource) -> None:
        self.source: ByteSource = source
        source.rebase(0)
        (base,) = source.run([superblock.find(source.size)])
        source.rebase(base)
        (self.superblock,) = source.run([superblock.read(source.size)])
        self.superblock.verify()
        self._extend()
        self._start()
        try:
            self.load([self.superblock.root])
            self.superblock.verify()
        except SourceError:
            # Something is damaged: find out what, so that only that is lost.
            self.superblock.strict = True
            self._start()
            self.load([self.superblock.root])

    def _start(self) -> None:
        self._objects: dict[int, Object] = {}
        self.superblock.forget()
        self.heap = GlobalHeap(self.superblock)

    def _extend(self) -> None:
        """Read the superblock extension."""
        if self.superblock.extension is None:
            return
        (found,) = self.source.run([header.read(self.superblock, self.superblock.extension)])
        if _DRIVER in found.messages:
            raise Unknown("a file of several parts (driver info message)")
        for kind, body in found.messages.items():
            self.superblock.extend(kind, body)
        if cache_image.MESSAGE in found.messages:
            message = found.messages[cache_image.MESSAGE]
            (entries,) = self.source.run([cache_image.read(self.superblock, message)])
            self.superblock.verify()
            self.source = cache_image.Overlay(self.source, entries)
        if self.superblock.page and isinstance(self.source, PageCache):
            self.source.widen(self.superblock.page)

    def __getitem__(self, address: int) -> Object:
        """Return the object whose header is at an address, reading it if that was not done."""
        if address not in self._objects:
            self.load([address])
        return self._objects[address]

    def messages(self, address: int) -> Mapping[int, bytes]:
        """Return the messages of an object. Raises the error that prevented reading them."""
        found = self[address].header
        if isinstance(found, VirtualZarrError):
            raise found
        return found.messages

    def extent(self, address: int) -> bytes | None:
        """Return the dataspace message of a dataset that was read already; None for any other."""
        found = self._objects.get(address)
        if found is None or isinstance(found.header, VirtualZarrError):
            return None
        return found.header.messages.get(header.SPACE)

    def load(self, addresses: Iterable[int]) -> None:
        """Read objects and all that hard links lead to from there."""
        self.source.run([self._read(address) for address in addresses])

    def _read(self, address: int) -> Generator[Any, Any, None]:
        if address in self._objects:
            return
        if len(self._objects) >= _MAX_OBJECTS:
            raise UnsupportedError(f"the file has more than {_MAX_OBJECTS} objects")
        one = self._objects[address] = Object(address, SourceError("not read"))
        try:
            found = one.header = yield from header.read(self.superblock, address)
            one.kind = found.kind
        except VirtualZarrError as error:
            one.header = error
            return
        if one.kind == "group":
            self.source.spawn(self._links(one, found))
        elif one.kind == "dataset":
            self._describe(one, found)
        try:
            one.attributes = yield from attributes.read(self.superblock, self.heap, found)
        except VirtualZarrError as error:
            one.attributes = error

    def _links(self, one: Object, found: ObjectHeader) -> Generator[Any, Any, None]:
        try:
            one.links = yield from links.read(self.superblock, found)
        except VirtualZarrError as error:
            one.links = error
            return
        for link in one.links:
            if link.kind == "hard" and link.address not in self._objects:
                self.source.spawn(self._read(link.address))

    def _describe(self, one: Object, found: ObjectHeader) -> None:
        messages = found.messages
        try:
            one.space = space(messages[header.SPACE], self.superblock.length_size)
        except VirtualZarrError as error:
            one.space = error
            return
        try:
            if header.LAYOUT not in messages:
                raise SourceError("the object header has no layout message")
            one.layout = layout(messages[header.LAYOUT], self.superblock)
        except VirtualZarrError as error:
            one.layout = error
            return
        if one.layout.kind == "chunked" and one.space.shape and 0 not in one.space.shape:
            self.source.spawn(self._index(one, one.layout, one.space))
        if one.layout.kind == "contiguous" and header.EXTERNAL in messages:
            self.source.spawn(self._external(one, messages[header.EXTERNAL]))
        if one.layout.kind == "virtual" and one.layout.address is not None:
            at = 2 + self.superblock.address_size
            number = int.from_bytes(messages[header.LAYOUT][at : at + 4], "little")
            self.source.spawn(self._mappings(one, one.layout.address, number))

    def _mappings(self, one: Object, address: int, number: int) -> Generator[Any, Any, None]:
        try:
            one.mappings = yield from self.heap.get(address, number)
        except VirtualZarrError as error:
            one.layout = error

    def _external(self, one: Object, message: bytes) -> Generator[Any, Any, None]:
        try:
            one.external = yield from external_files.read(self.superblock, message)
        except VirtualZarrError as error:
            one.external = error

    def _index(self, one: Object, how: Layout, extent: Space) -> Generator[Any, Any, None]:
        assert extent.shape is not None
        try:
            one.index = yield from indexes.read(
                self.superblock, self.source.base, how, extent.shape, extent.limits
            )
        except VirtualZarrError as error:
            one.index = error
