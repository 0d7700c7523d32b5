"""Object headers of both versions, with continuations and shared messages."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.byte_source import (
    Buffer,
    Parsing,
    UnknownStructureError,
    read_exactly,
)
from virtualzarr.formats.hdf5.fractal_heap import FractalHeap
from virtualzarr.formats.hdf5.regions import read_regions
from virtualzarr.formats.hdf5.superblock import Superblock

if TYPE_CHECKING:
    from virtualzarr.formats.templates.recorder import Recorder

SPACE, LINK_INFO, TYPE, FILL_V0, FILL, LINK, EXTERNAL, LAYOUT = 1, 2, 3, 4, 5, 6, 7, 8
FILTERS, ATTRIBUTE, SYMBOL_TABLE, ATTRIBUTE_INFO = 0x0B, 0x0C, 0x11, 0x15
_CONTINUATION = 0x10
_SHARED, _MUST_UNDERSTAND = 0x02, 0x80
_RARE_FLAGS = _SHARED | _MUST_UNDERSTAND
# Comment and modification times, which no parser looks at.
_TIMES = frozenset((0x0D, 0x0E, 0x12))
_WITH_ADDRESSES = frozenset((LAYOUT, LINK_INFO, ATTRIBUTE_INFO))
# Kind 9 is none that files are meant to have.
_KNOWN_KINDS = frozenset(range(0x19)) - {9}
_MAX_BLOCKS = 4096
_MAX_SHARED = 8
# Most headers are not longer; what is too much here saves another request where it is not.
_GUESS = 512


@dataclass(slots=True)
class ObjectHeader:
    """The messages of one object.

    Parameters
    ----------
    messages : dict of int to bytes
        The first of each kind.
    links, attributes : list of bytes
        All link and attribute messages.
    attributes_at : list of int
        Where each attribute message lies in the file; -1 if others may share it.
    positions : dict of int to int
        Where layout, attribute info and link info messages lie; -1 likewise.
    """

    address: int
    messages: dict[int, bytes] = field(default_factory=dict)
    links: list[bytes] = field(default_factory=list)
    attributes: list[bytes] = field(default_factory=list)
    attributes_at: list[int] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What the object is: "group", "dataset" or "type"."""
        messages = self.messages
        if SYMBOL_TABLE in messages or LINK_INFO in messages:
            return "group"
        if TYPE in messages and SPACE in messages:
            return "dataset"
        if TYPE in messages:
            return "type"
        raise SourceError(f"the object at {self.address} is neither group nor dataset nor type")


_Message = tuple[int, int, bytes, int]


def read(superblock: Superblock, address: int) -> Parsing[ObjectHeader]:
    """Read an object header with all that continues it.

    HDF5 file format specification, section IV.A.1, versions 1 and 2.
    """
    header = ObjectHeader(address)
    first, attributes = header.messages, header.attributes
    messages = yield from _read_messages(superblock, address)
    for kind, flags, body, at in messages:
        # Flags of section IV.A.1.a, "Header Message Flags": bit 1 shared, bit 7 "fail if unknown
        # always". Bit 3, "fail if unknown and open for writing", does not concern a reader.
        if flags & _RARE_FLAGS:  # which is rare
            if flags & _MUST_UNDERSTAND and kind not in _KNOWN_KINDS:
                raise UnknownStructureError(
                    f"message {kind}, which the object at {address} says must be known"
                )
            if flags & _SHARED and kind != LINK:
                at = -1
                body = yield from resolve_shared(superblock, body, kind, 0)
        if kind == ATTRIBUTE:
            attributes.append(body)
            header.attributes_at.append(at)
        elif kind == LINK:
            header.links.append(body)
        # HDF5 itself takes the first of several messages of a kind that may occur once only.
        elif kind not in first:
            first[kind] = body
            if kind in _WITH_ADDRESSES:
                header.positions[kind] = at
    return header


def _read_messages(superblock: Superblock, address: int) -> Parsing[list[_Message]]:
    data: Buffer = yield address, _GUESS
    messages: list[_Message] = []
    recorder = superblock.recorder
    parse: Any = _parse_v1
    # Version 1 has no signature: its first byte is the version. The 12 bytes of its prefix are
    # padded to 16 (section IV.A.1.a).
    if len(data) >= 16 and data[0] == 1:
        (size,) = _SIZE_V1.unpack_from(data, 8)
        if recorder is not None:
            recorder.ignore(
                address + (16 + size if size <= len(data) - 16 else 16), address + _GUESS
            )
        if size > len(data) - 16:
            data = yield from read_exactly(address, 16 + size, "object header")
        blocks = _parse_v1(superblock, address + 16, data[16 : 16 + size], messages)
    elif data[:4] == b"OHDR":
        parse, blocks = yield from _parse_first_v2(superblock, address, data, messages)
    else:
        raise SourceError(f"there is no object header at {address}")
    seen = 0
    while blocks:
        # Blocks that continue one another in a circle would be read for ever; real headers have a
        # few.
        seen += len(blocks)
        if seen > _MAX_BLOCKS:
            raise SourceError(f"the object header at {address} has more than {_MAX_BLOCKS} blocks")
        requested, blocks = blocks, []
        parts = yield from read_regions(superblock, requested)
        for (block_address, length), part in zip(requested, parts, strict=True):
            if len(part) < length:
                raise SourceError(
                    f"the file ends inside an object header's block at {block_address}"
                )
            with superblock.region(block_address) as position:
                if parse is _parse_v1:
                    blocks += _parse_v1(superblock, position, part, messages)
                else:
                    blocks += _parse_continuation_v2(
                        superblock, block_address, position, part, parse, messages
                    )
    return messages


def _parse(
    superblock: Superblock,
    position: int,
    block: Buffer,
    head: struct.Struct,
    width: int,
    messages: list[_Message],
) -> list[Any]:
    """Collect the messages of a block; return where the header goes on.

    Parameters
    ----------
    position : int
        Where the block is, as declarations count.
    head : struct.Struct
        What a message begins with: kind, length, flags.
    width : int
        Bytes from the beginning of a message to its body, which may be more.
    """
    block = bytes(block)
    size, at, continuations = len(block), 0, []
    superblock.spend(size)
    unpack = head.unpack_from
    # Less than a message's head may be left over: version 2 calls that a gap.
    while at + width <= size:
        kind, length, flags = unpack(block, at)
        start = at + width
        at = start + length
        if at > size:
            raise SourceError("a message reaches over the end of its object header")
        if kind == _CONTINUATION:
            continuations.append(_parse_continuation(superblock, block[start:at]))
            superblock.point(position + start, continuations[-1][0])
        # Kind 0 is NIL, space that a deleted message left.
        elif kind:
            messages.append((kind, flags, block[start:at], position + start))
            if superblock.recorder is not None and kind in _TIMES and not flags & _RARE_FLAGS:
                superblock.recorder.ignore(position + start, position + at)
    return continuations


def _parse_v1(
    superblock: Superblock, position: int, block: Buffer, messages: list[_Message]
) -> list[Any]:
    return _parse(superblock, position, block, _HEAD_V1, 8, messages)


_SIZE_V1 = struct.Struct("<I")
_HEAD_V1 = struct.Struct("<HHB")
_HEAD_V2 = struct.Struct("<BHB")


def _parse_first_v2(
    superblock: Superblock, address: int, data: Buffer, messages: list[_Message]
) -> Parsing[tuple[Any, list[Any]]]:
    if len(data) < 8 or data[4] != 2:
        raise UnknownStructureError("object header version other than 1 and 2")
    flags = data[5]
    # Section IV.A.1.b: four times (16 bytes) and the phase change of attributes (4 bytes) are there
    # only if the flags say so; bits 0 and 1 give the width of the size of the first block.
    start = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
    width = 1 << (flags & 3)
    size = int.from_bytes(data[start : start + width], "little")
    start += width
    if superblock.recorder is not None:
        complete = start + size + 4 <= len(data)
        end = start + size + 4 if complete else start
        _ignore_unused_v2(superblock.recorder, address, flags, end, 1 if complete else 2)
    if start + size + 4 > len(data):
        data = yield from read_exactly(address, start + size + 4, "object header")
    superblock.check(data[: start + size + 4], "object header", address)
    # Messages carry their creation order (2 bytes) where the object tracks that of attributes.
    head = 6 if flags & 4 else 4
    block = data[start : start + size]
    return head, _parse(superblock, address + start, block, _HEAD_V2, head, messages)


def _ignore_unused_v2(
    recorder: Recorder, address: int, flags: int, end: int, nrequests: int
) -> None:
    """Declare what no one looks at: bytes beyond the end, and times in each request."""
    recorder.ignore(address + end, address + _GUESS)
    if flags & 0x20:  # times of access, modification, change and birth
        for _ in range(nrequests):
            recorder.ignore(address + 6, address + 22)


def _parse_continuation_v2(
    superblock: Superblock,
    address: int,
    position: int,
    block: Buffer,
    head: int,
    messages: list[_Message],
) -> list[Any]:
    if block[:4] != b"OCHK" or len(block) < 8:
        raise SourceError(f"no object header goes on at {address}")
    superblock.check(block, "block of an object header", address)
    return _parse(superblock, position + 4, block[4:-4], _HEAD_V2, head, messages)


def _parse_continuation(superblock: Superblock, body: bytes) -> tuple[int, int]:
    address = superblock.address(body, 0)
    length = superblock.length(body, superblock.address_size)
    if address + length > superblock.size:
        raise SourceError(f"an object header goes on outside the file, at {address}")
    return address, length


def resolve_shared(superblock: Superblock, body: bytes, kind: int, depth: int) -> Parsing[bytes]:
    """Return the message that a shared message stands for.

    HDF5 file format specification, section IV.A.2, "Shared Message", versions 1 to 3.
    """
    version, location = body[:2] if len(body) > 1 else (0, 0)
    if version not in (1, 2, 3):
        raise UnknownStructureError(f"shared message version {version}")
    if depth > _MAX_SHARED:
        raise SourceError("a shared message leads to itself, or through too many others")
    # Type 1 of version 3 is a heap ID in the file's shared message table; all else is the address
    # of an object whose own message is meant, as of committed datatypes.
    if version == 3 and location == 1:
        heap_key = body[2:10], kind
        if heap_key not in superblock.heap_messages:
            superblock.heap_messages[heap_key] = yield from _read_from_heap(superblock, *heap_key)
        return superblock.heap_messages[heap_key]
    # Version 1 has what was once a symbol table entry: the offset of a name comes before the
    # address.
    address = superblock.address(body, 8 + superblock.length_size if version == 1 else 2)
    key = address, kind
    if key not in superblock.committed:
        for message_kind, flags, inner, _ in (yield from _read_messages(superblock, address)):
            if message_kind == kind:
                if flags & _SHARED:
                    inner = yield from resolve_shared(superblock, inner, kind, depth + 1)
                superblock.committed[key] = inner
                break
        else:
            raise SourceError(f"the object at {address} has no message of kind {kind} to share")
    return superblock.committed[key]


def _read_from_heap(superblock: Superblock, heap_id: bytes, kind: int) -> Parsing[bytes]:
    """Find a message in the heap that the whole file shares."""
    if superblock.recorder is not None:
        superblock.recorder.forbid("messages in a heap that all objects share")
    if superblock.shared_table is None:
        raise SourceError("a message is shared through a table that the file does not have")
    address, count = superblock.shared_table
    wide = superblock.address_size
    step = 14 + 2 * wide
    table = yield from read_exactly(address, 8 + count * step, "table of shared messages")
    if table[:4] != b"SMTB":
        raise SourceError(f"there is no table of shared messages at {address}")
    superblock.check(table, "table of shared messages", address)
    for at in range(4, 4 + count * step, step):
        # Bit k of an index's flags says that messages of kind k may be in its heap (section III.I).
        if int.from_bytes(table[at + 2 : at + 4], "little") >> kind & 1:
            heap = yield from FractalHeap.read(
                superblock, superblock.address(table, at + 14 + wide)
            )
            objects, _ = yield from heap.get_all([heap_id])
            return objects[0]
    raise SourceError(f"the table of shared messages has no heap for kind {kind}")
