"""What an HDF5 object header says beyond h5py: kind of index, unfiltered edges, all filters."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from virtualzarr.errors import SourceError

LAYOUT = 0x08
FILTERS = 0x0B
_CONTINUATION = 0x10
_SHARED = 0x02
_MAX_BLOCKS = 4096
_MAX_BLOCK_BYTES = 1 << 24

_INDEXES = {1: "single chunk", 2: "implicit", 3: "fixed array", 4: "extensible array",
            5: "B-tree v2"}  # fmt: skip


@dataclass(frozen=True)
class HeaderBytes:
    """The bytes of one HDF5 file, addressed as its metadata address them.

    Parameters
    ----------
    read : callable
        ``read(offset, length)`` gives at most that many bytes of the file.
    base : int
        Bytes before address 0: the user block.
    address_size, length_size : int
        Bytes that an address and a length take.
    """

    read: Callable[[int, int], bytes]
    base: int
    address_size: int
    length_size: int

    def at(self, address: int, length: int) -> bytes:
        """Read exactly `length` bytes.

        Raises
        ------
        SourceError
            If the file ends before, or the length is absurd for a header.
        """
        if not 0 <= length <= _MAX_BLOCK_BYTES or not 0 <= address < 1 << 62:
            raise SourceError(f"an object header claims {length} bytes at {address}")
        data = self.read(self.base + address, length)
        if len(data) != length:
            raise SourceError(f"the file ends inside the object header at {address}")
        return data


@dataclass(frozen=True)
class ChunkLayout:
    """How the chunks of a dataset are found.

    Parameters
    ----------
    index : str
        Name of the index structure.
    raw_edges : bool
        Whether chunks that reach over the edge of the dataset are stored without filters.
    """

    index: str
    raw_edges: bool = False


@dataclass(frozen=True)
class Filter:
    """One step of a filter pipeline: its registered number, its name and its parameters."""

    number: int
    name: str
    values: tuple[int, ...]


def messages(file: HeaderBytes, address: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield (type, flags, body) of the messages of the object header at `address`.

    HDF5 file format specification, section IV.A.1 (both versions of the header).

    Raises
    ------
    SourceError
        If the header is not one, or ends early.
    """
    prefix = file.at(address, 6)
    if prefix[:4] == b"OHDR":
        yield from _messages_v2(file, address, prefix)
    elif prefix[0] == 1:
        yield from _messages_v1(file, address)
    else:
        raise SourceError(f"there is no object header at {address}")


def _messages_v1(file: HeaderBytes, address: int) -> Iterator[tuple[int, int, bytes]]:
    blocks = [(address + 16, *struct.unpack_from("<I", file.at(address + 8, 4)))]
    for count, (start, size) in enumerate(blocks):
        _limit(count)
        block = file.at(start, size)
        at = 0
        while at + 8 <= size:
            kind, length, flags = struct.unpack_from("<HHB", block, at)
            body = block[at + 8 : at + 8 + length]
            at += 8 + length
            if kind == _CONTINUATION:
                blocks.append(_continuation(file, body))
            else:
                yield kind, flags, body


def _messages_v2(
    file: HeaderBytes, address: int, prefix: bytes
) -> Iterator[tuple[int, int, bytes]]:
    flags = prefix[5]
    start = address + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
    width = 1 << (flags & 3)
    size = int.from_bytes(file.at(start, width), "little")
    head = 6 if flags & 4 else 4
    blocks = [(start + width, size)]
    for count, (start, size) in enumerate(blocks):
        _limit(count)
        block = file.at(start, size)
        at = 0
        while at + head <= size:
            kind, length, flags = struct.unpack_from("<BHB", block, at)
            body = block[at + head : at + head + length]
            at += head + length
            if kind == _CONTINUATION:
                place, extent = _continuation(file, body)
                blocks.append((place + 4, extent - 8))
            else:
                yield kind, flags, body


def _continuation(file: HeaderBytes, body: bytes) -> tuple[int, int]:
    split = file.address_size
    return (
        int.from_bytes(body[:split], "little"),
        int.from_bytes(body[split : split + file.length_size], "little"),
    )


def _limit(count: int) -> None:
    if count > _MAX_BLOCKS:
        raise SourceError(f"an object header has more than {_MAX_BLOCKS} blocks")


def chunk_layout(body: bytes) -> ChunkLayout:
    """Read the layout message of a chunked dataset.

    HDF5 file format specification, section IV.A.2.i.

    Raises
    ------
    SourceError
        If the message is of a version or an index that is not known.
    """
    version = body[0] if body else 0
    if version in (1, 2, 3):
        return ChunkLayout("B-tree v1")
    if version not in (4, 5):
        raise SourceError(f"the layout message has version {version}, which is not known")
    try:
        flags, rank, width = body[2], body[3], body[4]
        number = body[5 + rank * width]
    except IndexError as error:
        raise SourceError("the layout message ends early") from error
    if number not in _INDEXES:
        raise SourceError(f"the layout message names chunk index {number}, which is not known")
    return ChunkLayout(_INDEXES[number], bool(flags & 1))


def filters(body: bytes) -> list[Filter]:
    """Read the filter pipeline message.

    HDF5 file format specification, section IV.A.2.l.

    Raises
    ------
    SourceError
        If the message ends early or has a version that is not known.
    """
    version, count = body[:2] if len(body) > 1 else (0, 0)
    if version not in (1, 2):
        raise SourceError(f"the filter message has version {version}, which is not known")
    at = 8 if version == 1 else 2
    found = []
    try:
        for _ in range(count):
            (number,) = struct.unpack_from("<H", body, at)
            at += 2
            length = 0
            if version == 1 or number >= 256:
                (length,) = struct.unpack_from("<H", body, at)
                at += 2
            _, nvalues = struct.unpack_from("<HH", body, at)
            at += 4
            name = body[at : at + length].split(b"\0")[0].decode("utf-8", "replace")
            at += -(-length // 8) * 8 if version == 1 else length
            values = struct.unpack_from(f"<{nvalues}I", body, at)
            at += 4 * nvalues + (4 if version == 1 and nvalues % 2 else 0)
            found.append(Filter(number, name, values))
    except struct.error as error:
        raise SourceError("the filter message ends early") from error
    return found


def find(file: HeaderBytes, address: int, *kinds: int) -> dict[int, bytes]:
    """Return the bodies of the messages of these kinds, without those that are shared.

    Raises
    ------
    SourceError
        If the header cannot be read.
    """
    wanted = set(kinds)
    found: dict[int, bytes] = {}
    try:
        for kind, flags, body in messages(file, address):
            if kind in wanted and not flags & _SHARED:
                found.setdefault(kind, body)
                if len(found) == len(wanted):
                    break
    except (struct.error, IndexError) as error:
        raise SourceError(f"the object header at {address} is broken") from error
    return found
