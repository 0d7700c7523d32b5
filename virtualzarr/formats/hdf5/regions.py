"""Reads of blocks that files which are alike may have elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from virtualzarr.formats.hdf5.byte_source import Buffer, Parsing
from virtualzarr.formats.hdf5.superblock import Superblock


def read_regions(
    superblock: Superblock, blocks: list[tuple[int, int]]
) -> Parsing[Sequence[Buffer]]:
    """Read blocks, each at an address of its own, in one round."""
    if superblock.recorder is None:
        return (yield blocks)
    parts: list[Buffer] = []
    for block in blocks:
        with superblock.region(block[0]):
            parts += yield [block]
    return parts
