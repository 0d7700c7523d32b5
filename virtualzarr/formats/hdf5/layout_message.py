"""Data layout messages, versions 1 to 5."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import lru_cache

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.byte_source import UnknownStructureError
from virtualzarr.formats.hdf5.superblock import Superblock

_CLASSES = ("compact", "contiguous", "chunked", "virtual")
_INDEXES = {1: "single chunk", 2: "implicit", 3: "fixed array", 4: "extensible array",
            5: "B-tree v2"}  # fmt: skip
# Bytes of parameters that precede the address of an index; they are repeated in its header.
_PARAMETERS = {2: 0, 3: 1, 4: 5, 5: 6}
_MAX_CHUNK = 1 << 62


@dataclass(frozen=True)
class Layout:
    """A layout message.

    Parameters
    ----------
    kind : {"compact", "contiguous", "chunked", "virtual"}
    address : int, optional
        Of the values or of the chunk index; None where nothing was allocated.
    size : int, optional
        Bytes of contiguous values, or of the only chunk of a single chunk index with filters.
        None where the message does not say.
    data : bytes
        Compact values.
    chunk : tuple of int
        Elements of a chunk along each axis.
    itemsize : int
        Bytes of an element of chunked values.
    index : str
        Kind of chunk index.
    mask : int
        Filters that were skipped for the only chunk.
    raw_edges : bool
        Whether chunks that reach over the edge of the dataset are stored without filters.
    address_at, size_at : int
        Where in the message address and size are; 0 where they are not.
    """

    kind: str
    address: int | None = None
    size: int | None = None
    data: bytes = b""
    chunk: tuple[int, ...] = ()
    itemsize: int = 0
    index: str = ""
    mask: int = 0
    raw_edges: bool = False
    address_at: int = 0
    size_at: int = 0


def parse_layout(body: bytes, superblock: Superblock) -> Layout:
    """Read a layout message.

    HDF5 file format specification, section IV.A.2.i, versions 1 to 5.

    Raises `SourceError` if the message ends early or contradicts itself; `UnknownStructureError` if
    its version, class or index is not known.
    """
    return _parse_layout(body, superblock.address_size, superblock.length_size)


@lru_cache(4096)
def _parse_layout(body: bytes, address_size: int, length_size: int) -> Layout:
    # Cached by the bytes of the message: thousands of datasets of a file have the same one.
    superblock = Superblock(0, address_size, length_size)
    version = body[0] if body else 0
    try:
        if version in (1, 2):
            return _parse_v1_v2(body, superblock)
        if version in (3, 4, 5):
            return _parse_v3_to_v5(body, version, superblock)
    except (struct.error, IndexError) as error:
        raise SourceError("the layout message ends early") from error
    raise UnknownStructureError(f"layout message version {version}")


def _parse_class(number: int) -> str:
    if number >= len(_CLASSES):
        raise UnknownStructureError(f"layout class {number}")
    return _CLASSES[number]


def _parse_address(body: bytes, at: int, superblock: Superblock) -> int | None:
    address = superblock.address(body, at)
    return None if address == superblock.undefined else address


def _parse_v1_v2(body: bytes, superblock: Superblock) -> Layout:
    # Versions 1 and 2 list the dimensions also for contiguous values, where they say nothing that
    # the dataspace does not; the last of chunked ones is the size of an element.
    rank, kind = body[1], _parse_class(body[2])
    at = 8 if kind == "compact" else 8 + superblock.address_size
    dims = struct.unpack_from(f"<{rank}I", body, at)
    if kind == "compact":
        return Layout(kind, data=_parse_compact(body, at + 4 * rank, 4))
    address = _parse_address(body, 8, superblock)
    if kind == "chunked":
        return _make_btree_layout(address, dims, 8)
    return Layout(kind, address, address_at=8)


def _parse_compact(body: bytes, at: int, width: int) -> bytes:
    size = int.from_bytes(body[at : at + width], "little")
    data = body[at + width : at + width + size]
    if len(data) < size:
        raise SourceError("the layout message ends inside compact values")
    return data


def _make_btree_layout(address: int | None, dims: tuple[int, ...], address_at: int) -> Layout:
    chunk, itemsize = _split_dims(dims)
    return Layout(
        "chunked",
        address,
        chunk=chunk,
        itemsize=itemsize,
        index="B-tree v1",
        address_at=address_at,
    )


def _split_dims(dims: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Split the dimensions of chunks from the bytes of an element, which are the last of them."""
    if len(dims) < 2 or not 0 < math.prod(dims) < _MAX_CHUNK:
        raise SourceError(f"the layout message names chunks of shape {dims}")
    return dims[:-1], dims[-1]


def _parse_v3_to_v5(body: bytes, version: int, superblock: Superblock) -> Layout:
    kind = _parse_class(body[1])
    if kind == "compact":
        return Layout(kind, data=_parse_compact(body, 2, 2))
    if kind == "contiguous":
        size = superblock.length(body, 2 + superblock.address_size)
        return Layout(kind, _parse_address(body, 2, superblock), size, address_at=2)
    if kind == "virtual":
        return Layout(kind, _parse_address(body, 2, superblock))
    if version == 3:
        # Version 3 knows one chunk index, the v1 B-tree; the dimensions follow its address.
        dims = struct.unpack_from(f"<{body[2]}I", body, 3 + superblock.address_size)
        return _make_btree_layout(_parse_address(body, 3, superblock), dims, 3)
    return _parse_chunked(body, superblock)


def _parse_chunked(body: bytes, superblock: Superblock) -> Layout:
    """Read the chunked layout of versions 4 and 5."""
    # Section IV.A.2.i: bit 0, partial chunks at the edge are not filtered; bit 1, a single chunk
    # with filters, of which size and mask are in the message as there is no index to hold them.
    flags, rank, width = body[2:5]
    at = 5 + rank * width
    number = body[at]
    dims = tuple(
        int.from_bytes(body[5 + k * width : 5 + (k + 1) * width], "little") for k in range(rank)
    )
    chunk, itemsize = _split_dims(dims)
    if number not in _INDEXES:
        raise UnknownStructureError(f"chunk index {number}")
    at += 1
    size, mask, size_at = None, 0, 0
    if number != 1:
        at += _PARAMETERS[number]
    elif flags & 2:
        size, size_at = superblock.length(body, at), at
        (mask,) = struct.unpack_from("<I", body, at + superblock.length_size)
        at += superblock.length_size + 4
    address = _parse_address(body, at, superblock)
    return Layout("chunked", address, size, b"", chunk, itemsize, _INDEXES[number], mask,
                  bool(flags & 1), at, size_at)  # fmt: skip
