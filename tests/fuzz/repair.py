"""Right checksums for HDF5 files that were damaged: mutations then reach what these protect."""

from __future__ import annotations

import contextlib
import struct
from typing import Any
from unittest import mock

from tests.formats.hdf5.helpers import source_of
from virtualzarr.errors import VirtualZarrError
from virtualzarr.formats.hdf5.checksum import compute_checksums
from virtualzarr.formats.hdf5.objects import Objects
from virtualzarr.formats.hdf5.superblock import SIGNATURE, Superblock

_BLOCK = "direct block of a fractal heap"


def repaired(raw: bytes) -> bytes:
    """Return a file whose checksums, and the place where it ends, are right.

    The reader itself says which structures it would check.
    """
    out = bytearray(raw)
    base = max(raw.find(SIGNATURE), 0)
    _end(out, base)
    for address, length, place in _structures(bytes(out)):
        whole = bytearray(out[base + address : base + address + length])
        if place + 4 < length:  # in its head, and counts as zero there
            whole[place : place + 4] = bytes(4)
        else:
            del whole[place:]
        if base + address + place + 4 <= len(out):
            struct.pack_into("<I", out, base + address + place, compute_checksums([whole])[0])
    return bytes(out)


def _end(out: bytearray, base: int) -> None:
    """Let the superblock say that the file is no longer than it is."""
    if len(out) < base + 48:
        return
    version = out[base + 8]
    size = out[base + (9 if version > 1 else 13)]
    if size in (2, 4, 8):
        place = base + {0: 24, 1: 28}.get(version, 12) + 2 * size
        end = int.from_bytes(out[place : place + size], "little")
        out[place : place + size] = min(end, len(out)).to_bytes(8, "little")[:size]


def _structures(raw: bytes) -> list[tuple[int, int, int]]:
    """Return address and length of what has a checksum, and where in it that is."""
    found: list[tuple[int, int, int]] = []

    def check(self: Any, data: Any, what: str, address: int, _: Any = None) -> None:
        length = len(data) - 4 * (what == _BLOCK)
        place = length - 4
        if what == _BLOCK:  # a copy, with the checksum moved to its end
            heaps = self.fractal_heaps.values()
            place = next((h.prefix for h in heaps if address in h._direct), place)
        found.append((address, length, place))

    def check_rows(self: Any, nodes: Any, ends: Any, what: str, addresses: Any) -> None:
        for address, end in zip(addresses.tolist(), ends.tolist(), strict=True):
            found.append((address, end, end - 4))

    with (
        mock.patch.object(Superblock, "check", check),
        mock.patch.object(Superblock, "check_rows", check_rows),
        contextlib.suppress(VirtualZarrError),
    ):
        Objects(source_of(raw))
    return found
