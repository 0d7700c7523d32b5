"""Chunk records of fixed arrays, extensible arrays and v2 B-trees: address, size, filter mask."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.indexes.columns import Chunks
from virtualzarr.formats.hdf5.superblock import Superblock
from virtualzarr.formats.templates.recorder import ChunkSlots, Recorder

_MASK_BYTES = 4
CHECKED_BYTES = 1 << 16
"""Of larger arrays only the heads are checked by their checksums: those of the elements would take
many times longer than reading them. All chunks must lie within the file in any case."""


@lru_cache(64)
def make_element_dtype(
    width: int, address_size: int, filtered: bool, axes: int = 0
) -> np.dtype[Any]:
    """Return the dtype of an element.

    Raises `SourceError` if the bytes are too few or too many.

    Parameters
    ----------
    width : int
        Its bytes, of which the size takes what the others leave.
    filtered : bool
        Whether it holds a size and a mask.
    axes : int
        Numbers of 8 bytes at its end.
    """
    corner_start = width - 8 * axes
    # Sizes of filtered chunks take as many bytes as the unfiltered size may need (sections VII.C to
    # VII.E), which the width of the whole element tells.
    size = corner_start - address_size - (_MASK_BYTES if filtered else 0)
    if not (1 <= size <= 8 if filtered else size == 0):
        raise SourceError(f"a chunk index has elements of {width} bytes")
    kind = "i" if address_size == 8 else "u"
    fields: dict[str, tuple[Any, int]] = {"address": (np.dtype(f"<{kind}{address_size}"), 0)}
    if filtered:
        number = np.dtype(f"<u{size}") if size in (1, 2, 4, 8) else np.dtype(("u1", (size,)))
        fields["size"] = (number, address_size)
        fields["mask"] = (np.dtype("<u4"), address_size + size)
    if axes:
        fields["cell"] = (np.dtype(("<i8", (axes,))), corner_start)
    return np.dtype(
        {
            "names": list(fields),
            "formats": [dtype for dtype, _ in fields.values()],
            "offsets": [offset for _, offset in fields.values()],
            "itemsize": width,
        }
    )


def declare_elements(
    recorder: Recorder, index_at: int, starts: NDArray[np.int64], dtype: np.dtype[Any]
) -> None:
    """Declare where in the file the addresses and lengths of elements are.

    Parameters
    ----------
    index_at : int
        Address of the chunk index.
    starts : int64 array
        Where the elements are.
    """
    fields = dtype.fields
    assert fields is not None
    address_at = starts + fields["address"][1]
    if "size" not in fields:
        recorder.add_index(index_at, ChunkSlots(address_at))
        return
    size, offset = fields["size"][:2]
    recorder.add_index(index_at, ChunkSlots(address_at, starts + offset, size.itemsize))


def to_chunks(elements: NDArray[Any], superblock: Superblock, size: int) -> Chunks:
    """Return the columns of elements, which have any number of axes.

    Parameters
    ----------
    elements : structured array
    size : int
        Bytes of a chunk, where elements do not say.
    """
    address = elements["address"].astype(np.int64).reshape(-1)
    # Undefined is all bits set: as int64 that is -1 only where addresses have 8 bytes.
    if superblock.address_size < 8:
        address[address == superblock.undefined] = -1
    if "size" not in (elements.dtype.names or ()):
        return Chunks(address, size, 0)
    mask = elements["mask"]
    # A copy of the masks is only needed if one is set, which is rare.
    masks = mask.astype(np.uint32).reshape(-1) if mask.any() else 0
    lengths = elements["size"]
    wide = lengths.ndim > elements.ndim
    return Chunks(
        address,
        (_decode_odd_widths(lengths) if wide else lengths.astype(np.int64)).reshape(-1),
        masks,
    )


def join_chunks(parts: Sequence[NDArray[Any]], superblock: Superblock, size: int) -> Chunks:
    """Return the columns of elements that lie in several places, one after the other.

    They are copied once: joining the columns of each part would copy them twice.
    """
    if len(parts) == 1:
        return to_chunks(parts[0], superblock, size)
    address = _join([part["address"] for part in parts], np.dtype(np.int64))
    # Undefined is all bits set: as int64 that is -1 only where addresses have 8 bytes.
    if superblock.address_size < 8:
        address[address == superblock.undefined] = -1
    if "size" not in (parts[0].dtype.names or ()):
        return Chunks(address, size, 0)
    masks = [part["mask"] for part in parts]
    lengths = [part["size"] for part in parts]
    if lengths[0].ndim > parts[0].ndim:
        lengths = [_decode_odd_widths(column) for column in lengths]
    mask = _join(masks, np.dtype(np.uint32)) if any(map(np.any, masks)) else 0
    return Chunks(address, _join(lengths, np.dtype(np.int64)), mask)


def _join(columns: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    joined, done = np.empty(sum(column.size for column in columns), dtype), 0
    for column in columns:
        joined[done : done + column.size].reshape(column.shape)[...] = column
        done += column.size
    return joined


def _decode_odd_widths(column: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return numbers whose bytes are the last axis."""
    # Byte by byte from the most significant: numpy has no integers of 3, 5, 6 or 7 bytes.
    numbers = column[..., -1].astype(np.int64)
    for k in range(column.shape[-1] - 2, -1, -1):
        numbers <<= 8
        numbers |= column[..., k]
    return numbers
