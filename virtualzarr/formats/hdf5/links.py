"""Links of HDF5 groups: symbol tables, link messages and dense storage."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5 import heaps
from virtualzarr.formats.hdf5.btree_v2 import records
from virtualzarr.formats.hdf5.byte_source import Buffer, Parsing, UnknownStructureError
from virtualzarr.formats.hdf5.fractal_heap import FractalHeap
from virtualzarr.formats.hdf5.header import LINK_INFO, SYMBOL_TABLE, ObjectHeader
from virtualzarr.formats.hdf5.superblock import Superblock

# Bytes to ask for when a node's length is not known yet.
_NODE = 1024
_BY_NAME = 5
_HARD, _SOFT, _EXTERNAL = 0, 1, 64


@dataclass(slots=True)
class Link:
    """One link of a group.

    Parameters
    ----------
    kind : {"hard", "soft", "external", "user-defined"}
    address : int
        Of the object header that a hard link leads to.
    value : bytes
        Path of a soft link; file and path of an external one, each ending with a NUL.
    order : int
        Of its creation, where the group keeps that.
    """

    name: bytes
    kind: str
    address: int = 0
    value: bytes = b""
    order: int = 0


def read(superblock: Superblock, group: ObjectHeader) -> Parsing[list[Link]]:
    """Return the links of a group, in the order of creation if that is kept, else by name."""
    header_messages = group.messages
    if LINK_INFO not in header_messages:
        links = yield from _read_symbol_table(superblock, header_messages[SYMBOL_TABLE])
        return sorted(links, key=lambda link: link.name)
    info = header_messages[LINK_INFO]
    if len(info) < 2 or info[0] != 0:
        raise UnknownStructureError("link info message of another version")
    # Bit 0 of section IV.A.2.c: creation order is tracked, and a maximum of 8 bytes comes first.
    tracked = info[1] & 1
    at = 10 if tracked else 2
    heap, tree = (
        superblock.address(info, at),
        superblock.address(info, at + superblock.address_size),
    )
    # Compact storage has the links as messages of the header; dense storage has the same messages
    # in a fractal heap. Groups that cross the threshold move all, but neither excludes the other
    # here.
    messages, info_at = list(group.links), group.positions[LINK_INFO]
    if heap != superblock.undefined:
        superblock.point(info_at + at if info_at >= 0 else -1, heap)
        superblock.point(info_at + at + superblock.address_size if info_at >= 0 else -1, tree)
        dense, _ = yield from read_dense(superblock, heap, tree, _BY_NAME, 4)
        messages += dense
    links = [_parse_link(superblock, message) for message in messages]
    return sorted(links, key=lambda link: link.order if tracked else link.name)


def read_dense(
    superblock: Superblock, heap_at: int, tree_at: int, kind: int, start: int
) -> Parsing[tuple[list[bytes], list[int]]]:
    """Return messages that lie in a fractal heap, listed by a v2 B-tree, and where in the file.

    Parameters
    ----------
    heap_at, tree_at : int
        Addresses.
    kind : int
        Of the tree's records.
    start : int
        Byte of a record where the heap's ID starts.
    """
    heap = yield from FractalHeap.read(superblock, heap_at)
    _, rows = yield from records(superblock, tree_at, (kind,))
    if len(rows) and rows.shape[1] < start + heap.id_bytes:
        raise SourceError(f"the records of the B-tree at {tree_at} are too short")
    heap_ids = [row[start : start + heap.id_bytes].tobytes() for row in rows]
    return (yield from heap.get_all(heap_ids))


def _parse_link(superblock: Superblock, body: bytes) -> Link:
    """Read a link message. HDF5 file format specification, section IV.A.2.g."""
    try:
        if body[0] != 1:
            raise UnknownStructureError(f"link message version {body[0]}")
        # Section IV.A.2.g: bits 0-1 width of the name's length, 2 creation order, 3 link type (hard
        # without it), 4 character set, which is UTF-8 or ASCII and therefore the same here.
        flags, at, kind, order = body[1], 2, _HARD, 0
        if flags & 8:
            kind, at = body[at], at + 1
        if flags & 4:
            (order,) = struct.unpack_from("<q", body, at)
            at += 8
        if flags & 16:
            at += 1
        width = 1 << (flags & 3)
        length = int.from_bytes(body[at : at + width], "little")
        at += width
        name = body[at : at + length]
        at += length
        if len(name) < length or not name:
            raise SourceError("a link message ends inside the link's name")
        if kind == _HARD:
            return Link(name, "hard", superblock.address(body, at), order=order)
        (length,) = struct.unpack_from("<H", body, at)
        value = body[at + 2 : at + 2 + length]
        if len(value) < length:
            raise SourceError("a link message ends inside the link's value")
    except (IndexError, struct.error) as error:
        raise SourceError("a link message ends early") from error
    if kind == _SOFT:
        return Link(name, "soft", value=value, order=order)
    # The first byte of an external link's value is version and flags; file and path follow.
    if kind == _EXTERNAL:
        return Link(name, "external", value=value[1:], order=order)
    return Link(name, "user-defined", value=value, order=order)


def _read_symbol_table(superblock: Superblock, message: bytes) -> Parsing[list[Link]]:
    """Read the symbol table of an old group, level by level.

    HDF5 file format specification, sections III.A.1, III.B and III.C.
    """
    wide = superblock.address_size
    tree = superblock.address(message, 0)
    yield [(tree, _NODE), (superblock.address(message, wide), _NODE)]  # both in one round
    if superblock.recorder is not None:
        superblock.recorder.ignore(tree, tree + _NODE)
        heap_at = superblock.address(message, wide)
        superblock.recorder.ignore(heap_at, heap_at + _NODE)
    heap = yield from heaps.read_local(superblock, superblock.address(message, wide))
    addresses, seen, links = [tree], {tree}, []
    level: int | None = None
    # Below level 0 are the nodes of the symbol table.
    while level is None or level >= 0:
        nodes: list[Buffer] = yield [(address, _NODE) for address in addresses]
        below: list[int] = []
        for address, node in zip(addresses, nodes, strict=True):
            node_level, children = yield from _parse_btree_node(superblock, address, node)
            if level not in (None, node_level):
                raise SourceError(f"the node at {address} is of another level of its B-tree")
            level = node_level
            below += children
        # A node that is below two parents would list its links twice, in a circle for ever.
        if len(seen) + len(below) != len(seen | set(below)):
            raise SourceError(f"the B-tree at {tree} names a node twice")
        seen |= set(below)
        addresses, level = below, (level or 0) - 1
    nodes = yield [(address, _NODE) for address in addresses]
    for address, node in zip(addresses, nodes, strict=True):
        links += yield from _parse_symbol_node(superblock, heap, address, node)
    return links


def _parse_btree_node(
    superblock: Superblock, address: int, node: Buffer
) -> Parsing[tuple[int, list[int]]]:
    """Return the level of a node of a group's B-tree, and what is below it."""
    wide, width = superblock.address_size, superblock.length_size
    if node[:4] != b"TREE" or len(node) < 8 or node[4] != 0:
        raise SourceError(f"there is no node of a group's B-tree at {address}")
    count, start = int.from_bytes(node[6:8], "little"), 8 + 2 * wide + width
    length = start + count * (wide + width)
    node = yield from _read_whole(superblock, address, node, length, length - width)
    step = wide + width
    return node[5], [superblock.address(node, start + k * step) for k in range(count)]


def _read_whole(
    superblock: Superblock, address: int, node: Buffer, length: int, least: int
) -> Parsing[Buffer]:
    """Return a node of a group's tables with all of its bytes, `least` of which must be there."""
    superblock.spend(length)
    if superblock.recorder is not None:
        superblock.recorder.ignore(
            address + (length if length <= len(node) else 8), address + _NODE
        )
    if length > len(node):
        node = yield address, length
        if len(node) < least:
            raise SourceError(f"the file ends inside the node at {address} of a group")
    return node


def _parse_symbol_node(
    superblock: Superblock, heap: bytes, address: int, node: Buffer
) -> Parsing[list[Link]]:
    """Read a symbol table node."""
    width, wide = superblock.length_size, superblock.address_size
    if node[:4] != b"SNOD":
        raise SourceError(f"there is no symbol table node at {address}")
    count, step = int.from_bytes(node[6:8], "little"), width + wide + 24
    length = 8 + count * step
    node = yield from _read_whole(superblock, address, node, length, length)
    links = []
    for at in range(8, length, step):
        name = heaps.get_text(heap, superblock.length(node, at))
        # Names may overlap in the heap: many entries that point into one long name make it long
        # each time.
        superblock.spend(len(name))
        cache = at + width + wide
        cached = int.from_bytes(node[cache : cache + 4], "little")
        # Cache type 2 of a symbol table entry (section III.C): a soft link, whose target's offset
        # in the local heap is in the scratch pad, where hard links of groups cache other addresses.
        if cached == 2:
            value_offset = int.from_bytes(node[cache + 8 : cache + 12], "little")
            links.append(Link(name, "soft", value=heaps.get_text(heap, value_offset)))
        else:
            links.append(Link(name, "hard", superblock.address(node, at + width)))
    return links
