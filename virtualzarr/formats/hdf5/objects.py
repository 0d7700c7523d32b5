"""Objects of an HDF5 file by address, read in as few rounds of requests as possible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from virtualzarr.errors import SourceError, UnsupportedError, VirtualZarrError
from virtualzarr.formats.hdf5 import (
    attributes,
    cache_image,
    declare,
    external_file_list,
    header,
    indexes,
    links,
    superblock,
)
from virtualzarr.formats.hdf5.byte_source import (
    ByteSource,
    PageCache,
    Parsing,
    UnknownStructureError,
)
from virtualzarr.formats.hdf5.external_file_list import Slot
from virtualzarr.formats.hdf5.header import ObjectHeader
from virtualzarr.formats.hdf5.heaps import GlobalHeap
from virtualzarr.formats.hdf5.indexes import ChunkIndex
from virtualzarr.formats.hdf5.layout_message import Layout, parse_layout
from virtualzarr.formats.hdf5.links import Link
from virtualzarr.formats.hdf5.messages import Dataspace, parse_dataspace

if TYPE_CHECKING:
    from virtualzarr.formats.templates.recorder import Recorder

_MAX_OBJECTS = 1_000_000
_DRIVER = 0x14


@dataclass(slots=True)
class Object:
    """One object; each part is what it should be, or the error that prevented it.

    Parameters
    ----------
    address : int
        Of its header.
    kind : str
        "group", "dataset" or "type".
    links : list of Link or VirtualZarrError
        Of a group.
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
    attributes: Sequence[attributes.Attribute] | VirtualZarrError = ()
    space: Dataspace | VirtualZarrError | None = None
    layout: Layout | VirtualZarrError | None = None
    index: ChunkIndex | VirtualZarrError | None = None
    mappings: bytes = b""
    external: tuple[Slot, ...] | VirtualZarrError = ()


class Objects:
    """The objects of one file by address.

    Raises `SourceError` if there is no superblock, or the file is shorter than that says;
    `UnknownStructureError` if the superblock is of a kind that is not known.

    Parameters
    ----------
    recorder : Recorder, optional
        Is told which of the bytes that are read may differ in files that are alike.
    """

    def __init__(self, source: ByteSource, recorder: Recorder | None = None) -> None:
        self.source: ByteSource = source
        self.recorder = recorder
        source.rebase(0)
        (base,) = source.run([superblock.find(source.size)])
        source.rebase(base)
        (self.superblock,) = source.run([superblock.read(source.size)])
        self.superblock.recorder = recorder
        if recorder is not None:
            declare.declare_end(recorder, self.superblock)
        self.superblock.verify()
        self._extend()
        self._start()
        try:
            # Everything is read at once with checksums noted, not compared: the common case is that
            # all are right, and then one batch of hashing does.
            self.load([self.superblock.root])
            self.superblock.verify()
        except SourceError:
            # Something is damaged: find out what, so that only that is lost.
            self.superblock.strict = True
            if recorder is not None:
                recorder.forbid("damaged structures")
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
        (extension,) = self.source.run([header.read(self.superblock, self.superblock.extension)])
        if _DRIVER in extension.messages:
            raise UnknownStructureError("a file of several parts (driver info message)")
        for kind, body in extension.messages.items():
            self.superblock.extend(kind, body)
        if cache_image.MESSAGE in extension.messages:
            message = extension.messages[cache_image.MESSAGE]
            (entries,) = self.source.run([cache_image.read(self.superblock, message)])
            self.superblock.verify()
            self.source = cache_image.Overlay(self.source, entries)
            if self.recorder is not None:
                self.recorder.forbid("a metadata cache image")
        # Paged aggregation packs metadata into pages: reading whole ones finds neighbours of each
        # object.
        if self.superblock.page and isinstance(self.source, PageCache):
            self.source.widen(self.superblock.page)

    def __getitem__(self, address: int) -> Object:
        """Return the object whose header is at an address, reading it if that was not done."""
        if address not in self._objects:
            self.load([address])
        return self._objects[address]

    def messages(self, address: int) -> Mapping[int, bytes]:
        """Return the messages of an object. Raises the error that prevented reading them."""
        parsed = self[address].header
        if isinstance(parsed, VirtualZarrError):
            raise parsed
        return parsed.messages

    def extent(self, address: int) -> bytes | None:
        """Return the dataspace message of a dataset that was read already; None for any other."""
        obj = self._objects.get(address)
        if obj is None or isinstance(obj.header, VirtualZarrError):
            return None
        return obj.header.messages.get(header.SPACE)

    def load(self, addresses: Iterable[int]) -> None:
        """Read objects and all that hard links lead to from there."""
        self.source.run([self._read(address) for address in addresses])

    def _read(self, address: int) -> Parsing[None]:
        if address in self._objects:
            return
        if len(self._objects) >= _MAX_OBJECTS:
            raise UnsupportedError(f"the file has more than {_MAX_OBJECTS} objects")
        # Entered before it is read: links of other groups to it then do not read it a second time.
        obj = self._objects[address] = Object(address, SourceError("not read"))
        try:
            parsed = obj.header = yield from header.read(self.superblock, address)
            obj.kind = parsed.kind
        except VirtualZarrError as error:
            obj.header = error
            return
        if obj.kind == "group":
            # Spawned, not called: links, index and attributes of all objects share rounds of
            # requests.
            self.source.spawn(self._links(obj, parsed))
        elif obj.kind == "dataset":
            self._describe(obj, parsed)
        yield from _set(obj, "attributes", attributes.read(self.superblock, self.heap, parsed))

    def _links(self, obj: Object, parsed: ObjectHeader) -> Parsing[None]:
        try:
            obj.links = yield from links.read(self.superblock, parsed)
        except VirtualZarrError as error:
            obj.links = error
            return
        for link in obj.links:
            if link.kind == "hard" and link.address not in self._objects:
                self.source.spawn(self._read(link.address))

    def _describe(self, obj: Object, parsed: ObjectHeader) -> None:
        messages = parsed.messages
        try:
            obj.space = parse_dataspace(messages[header.SPACE], self.superblock.length_size)
        except VirtualZarrError as error:
            obj.space = error
            return
        try:
            if header.LAYOUT not in messages:
                raise SourceError("the object header has no layout message")
            obj.layout = parse_layout(messages[header.LAYOUT], self.superblock)
        except VirtualZarrError as error:
            obj.layout = error
            return
        if self.recorder is not None:
            declare.declare_layout(self.recorder, self.superblock, parsed, obj.layout)
        if obj.layout.kind == "chunked" and obj.space.shape and 0 not in obj.space.shape:
            index = indexes.read(
                self.superblock, self.source.base, obj.layout, obj.space.shape, obj.space.limits
            )
            self.source.spawn(_set(obj, "index", index))
        if obj.layout.kind == "contiguous" and header.EXTERNAL in messages:
            external = external_file_list.read(self.superblock, messages[header.EXTERNAL])
            self.source.spawn(_set(obj, "external", external))
        if obj.layout.kind == "virtual" and obj.layout.address is not None:
            # Section IV.A.2.i, class 3: address of the global heap collection, then the index of
            # the object.
            at = 2 + self.superblock.address_size
            number = int.from_bytes(messages[header.LAYOUT][at : at + 4], "little")
            self.source.spawn(self._mappings(obj, obj.layout.address, number))

    def _mappings(self, obj: Object, address: int, number: int) -> Parsing[None]:
        try:
            obj.mappings = yield from self.heap.get(address, number)
        except VirtualZarrError as error:
            obj.layout = error


def _set(obj: Object, name: str, parser: Parsing[Any]) -> Parsing[None]:
    """Set what a parser returns, or the error that it raises, as an attribute of an object."""
    try:
        value = yield from parser
    except VirtualZarrError as error:
        value = error
    setattr(obj, name, value)
