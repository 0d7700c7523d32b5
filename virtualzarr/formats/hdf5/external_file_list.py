"""External data files message: which parts of other files hold the values of a dataset."""

from __future__ import annotations

from typing import NamedTuple

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5 import heaps
from virtualzarr.formats.hdf5.byte_source import Parsing, UnknownStructureError
from virtualzarr.formats.hdf5.superblock import Superblock


class Slot(NamedTuple):
    """A piece of another file: its name, the first byte, and how many there are at most."""

    name: bytes
    offset: int
    size: int


def read(superblock: Superblock, message: bytes) -> Parsing[tuple[Slot, ...]]:
    """Read the external data files message.

    HDF5 file format specification, section IV.A.2.h.

    Raises
    ------
    SourceError
        If it ends early, or a name is none.
    UnknownStructureError
        If its version is not known.
    """
    if len(message) < 8 or message[0] != 1:
        raise UnknownStructureError("a list of external files of another version")
    width = superblock.length_size
    count = int.from_bytes(message[6:8], "little")
    start = 8 + superblock.address_size
    if len(message) < start + 3 * width * count:
        raise SourceError("the list of external files ends early")
    names = yield from heaps.read_local(superblock, superblock.address(message, 8))
    slots = []
    for at in range(start, start + 3 * width * count, 3 * width):
        name = heaps.get_text(names, superblock.length(message, at))
        offset, size = (superblock.length(message, at + k * width) for k in (1, 2))
        slots.append(Slot(name, offset, size))
    return tuple(slots)
