"""Declarations of parsers: which bytes of superblock, layout messages and attributes may differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from virtualzarr.formats.hdf5.header import EXTERNAL, LAYOUT, ObjectHeader
from virtualzarr.formats.hdf5.layout_message import Layout
from virtualzarr.formats.hdf5.superblock import Superblock
from virtualzarr.formats.templates.recorder import AttributeSlot, ChunkSlots

if TYPE_CHECKING:
    from virtualzarr.formats.templates.recorder import Recorder

# Attributes that name axes: other values of them make other arrays.
_STRUCTURE = frozenset(
    ("CLASS", "NAME", "DIMENSION_LABELS", "DIMENSION_LIST", "REFERENCE_LIST", "_Netcdf4Dimid",
     "_Netcdf4Coordinates", "_nc3_strict", "_NCProperties", "_NCCOPY")
)  # fmt: skip


def declare_end(recorder: Recorder, superblock: Superblock) -> None:
    """Declare where the superblock says how long the file is, right after it was read."""
    if superblock.address_size != 8 or superblock.length_size != 8:
        recorder.forbid("addresses or lengths of other than 8 bytes")
    # Nothing but the superblock was asked for yet: all that asked for these bytes is its parser.
    at = recorder.end_at = superblock.end_at
    nuses = sum(start <= at < stop for start, stop, _ in recorder.uses)
    recorder.end_slots += [(at, at + 8)] * nuses
    if superblock.checked_bytes:
        recorder.add_check(0, superblock.checked_bytes)


def declare_layout(
    recorder: Recorder, superblock: Superblock, header: ObjectHeader, layout: Layout
) -> None:
    """Declare where a layout message says that values are: those of one piece, in this file."""
    at = header.positions.get(LAYOUT, -1)
    if at < 0:
        recorder.forbid("a layout that objects share")
    if at < 0 or layout.address is None or EXTERNAL in header.messages:
        return
    address_at = np.array([at + layout.address_at])
    if layout.kind == "chunked" and layout.index not in ("single chunk", "implicit"):
        recorder.index_of[header.address] = layout.address
        recorder.point(at + layout.address_at, layout.address)
    if layout.kind == "contiguous":
        recorder.add_values(header.address, ChunkSlots(address_at))
    elif layout.index == "single chunk":
        size_at = np.array([at + layout.size_at]) if layout.size_at else None
        recorder.add_values(header.address, ChunkSlots(address_at, size_at, superblock.length_size))


def declare_attribute(
    recorder: Recorder, address: int, name: str, message: bytes, start: int, stop: int, at: int
) -> None:
    """Declare the values of an attribute that names no axes, of the object at an address.

    Parameters
    ----------
    start, stop : int
        Bytes of the message that are values.
    at : int
        Where the message lies in the file.
    """
    if name not in _STRUCTURE:
        slot = AttributeSlot(name, message, start, stop, at + start)
        recorder.add_attribute(address, slot)
