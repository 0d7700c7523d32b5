"""The HDF5 filter Blosc2 (32026): one chunk in a frame, in blocks of several axes."""

from __future__ import annotations

import math
import struct
from functools import cached_property

import numpy as np

from virtualzarr.codecs.core.base import U1, Block, Buffer, Codec, as_u1
from virtualzarr.codecs.core.libraries import require_imagecodecs
from virtualzarr.codecs.core.scratch import allocate
from virtualzarr.codecs.hdf5.filter import Filter
from virtualzarr.codecs.hdf5.library_filters import Filters, filters_message

_NUMBER = 32026
_MAGIC = b"\x9e\xa8b2frame\0"
# Length of the head and the frame, flags, bytes of the elements and of those as compressed.
_HEAD = struct.Struct(">10sxixQ5xxQxQxi")
_LAYERS = 87
_MOST_LAYERS = 16
_MOST_AXES = 8


class Blosc2(Filter):
    """HDF5 filter 32026 (``virtualzarr.hdf5_blosc2``): Blosc2.

    Parameters are those of the filter. The chunk inside a contiguous frame is decoded on its own,
    and its blocks are put in their places (Blosc2 contiguous frame and b2nd formats). Whatever is
    not as the filter writes it is left to the HDF5 library.
    """

    compressor = True

    def decode(self, data: Buffer, size: int | None, limit: int) -> Buffer:
        """Return the elements' bytes."""
        raw = as_u1(data)
        decoded = None if size is None else self._direct(raw, size)
        return self._library.decode(raw, size, limit) if decoded is None else decoded

    @cached_property
    def _library(self) -> Filters:
        entry = (_NUMBER, "blosc2", self.configuration["parameters"])
        codec: Codec = Filters("virtualzarr.hdf5_chunk", {"filters": filters_message([entry])})
        assert isinstance(codec, Filters)
        return codec

    def _direct(self, raw: Block, size: int) -> Block | None:
        """Decode a frame; None for one that is not as expected."""
        try:
            magic, start, length, nbytes, _, typesize = _HEAD.unpack_from(raw.data)
            inner, _, stored = struct.unpack_from("<4xiii", raw.data, start)
            grid = _read_shapes(bytes(raw[:start]))
        except (struct.error, IndexError, ValueError):
            return None
        # The head is checked against the bytes at hand: anything else is for the library to judge.
        complete = magic == _MAGIC and length == raw.size and inner == nbytes
        if not complete or stored < 16 or start + stored > length:
            return None
        shape, blocks = grid or ([nbytes], [nbytes])
        unit = typesize if grid else 1
        counts = [-(-n // edge) for n, edge in zip(shape, blocks, strict=True)]
        padded = [count * edge for count, edge in zip(counts, blocks, strict=True)]
        if math.prod(padded) * unit != nbytes or math.prod(shape) * unit != size:
            return None
        out = allocate((nbytes,), U1)
        try:
            codecs = require_imagecodecs(self.name)
            codecs.blosc2_decode(raw[start : start + stored], numthreads=1, out=out)
        except (RuntimeError, ValueError, TypeError):
            return None
        return _order_blocks(out, shape, blocks, counts, unit)


def _read_shapes(head: bytes) -> tuple[list[int], list[int]] | None:
    """Return the edges of the chunk and of the blocks in it; None where it has no axes.

    Raises
    ------
    ValueError, IndexError, struct.error
        If the layers of metadata are not laid out as they should be.
    """
    array, width, _, table, count = struct.unpack_from(">BBHBH", head, _LAYERS)
    if (array, width, table) != (0x93, 0xCD, 0xDE) or count > _MOST_LAYERS:
        raise ValueError("no list of layers")
    at = _LAYERS + 7
    for _ in range(count):
        length = head[at] & 31
        name = head[at + 1 : at + 1 + length]
        marker, offset = struct.unpack_from(">Bi", head, at + 1 + length)
        at += length + 6
        if head[at - length - 6] >> 5 != 5 or marker != 0xD2:
            raise ValueError("no layer")
        if name == b"b2nd":
            return _read_b2nd_layer(head, offset)
    return None


def _read_b2nd_layer(head: bytes, at: int) -> tuple[list[int], list[int]]:
    """Read the layer b2nd: version, number of axes, edges of array, chunk and blocks."""
    ndim = head[at + 7]
    lists = f">x{'xq' * ndim}x{'xi' * ndim}x{'xi' * ndim}"
    start = at + 8
    if head[at] != 0xC6 or head[at + 5] != 0x97 or not 0 < ndim <= _MOST_AXES:
        raise ValueError("no layer b2nd")
    numbers = struct.unpack_from(lists, head, start)
    shape, chunk, blocks = numbers[:ndim], numbers[ndim : 2 * ndim], numbers[2 * ndim :]
    marks = [head[start], head[start + 1 + 9 * ndim], head[start + 2 + 14 * ndim]]
    if marks != [0x90 + ndim] * 3 or shape != chunk or min(numbers) < 1:
        raise ValueError("not one chunk")
    return list(chunk), list(blocks)


def _order_blocks(
    data: Block, shape: list[int], blocks: list[int], counts: list[int], unit: int
) -> Block:
    """Return elements in C order that lie block after block."""
    if all(n == edge for n, edge in zip(shape, blocks, strict=True)):
        return data
    ndim = len(shape)
    parts = data.reshape(*counts, *blocks, unit)
    # Axes of blocks in the grid and within a block alternate: together they are those of the chunk.
    order = [axis + half for axis in range(ndim) for half in (0, ndim)]
    padded = [count * edge for count, edge in zip(counts, blocks, strict=True)]
    ordered = parts.transpose(*order, 2 * ndim).reshape(*padded, unit)
    return np.ascontiguousarray(ordered[tuple(map(slice, shape))]).reshape(-1)
