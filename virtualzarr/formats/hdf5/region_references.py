"""Selections of region references."""

from __future__ import annotations

import struct
from typing import Any

from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.hdf5.byte_source import UnknownStructureError
from virtualzarr.formats.hdf5.h5py_fallback import H5PY_ERRORS

NONE, POINTS, BLOCKS, ALL = range(4)
MAX_BLOCKS = 10_000
"""Points or blocks that one reference may point to."""

_REGULAR = 1


def decode_selection(extent: bytes, selection: bytes, length_size: int) -> Any:
    """Return a selection as the HDF5 library has it.

    Raises `SourceError` if there is no such selection; `UnsupportedError` if it has too many points
    or blocks; `UnknownStructureError` if its form is not known.

    Parameters
    ----------
    extent : bytes
        Dataspace message of the dataset.
    selection : bytes
        As serialized.
    length_size : int
        Bytes of a length in the file.
    """
    from h5py import h5s

    rank = extent[1] if len(extent) > 1 else 0
    try:
        need = _count_bytes(selection, rank)
    except (struct.error, IndexError) as error:
        raise SourceError("a selection ends early") from error
    # The library trusts the numbers in it.
    if need > len(selection):
        raise SourceError(f"a selection of {need} bytes is stored in {len(selection)}")
    # What `H5Sencode` puts before a selection: message kind, version of the encoding, length size.
    head = bytes([1, 0, length_size]) + struct.pack("<I", len(extent))
    try:
        return h5s.decode(head + extent + selection[:need] + bytes(64))
    except H5PY_ERRORS as error:
        raise SourceError(f"HDF5 cannot read a selection: {error}") from error


def _count_bytes(data: bytes, rank: int) -> int:
    """Return the bytes of a selection. HDF5 file format specification, section VIII."""
    # The length is computed before the library decodes: it takes no length, and reads past the end
    # of the buffer where counts are wrong.
    kind, version = struct.unpack_from("<II", data)
    if kind in (NONE, ALL) and version == 1:
        return 16
    if kind not in (POINTS, BLOCKS) or version not in (1, 2, 3) or (kind, version) == (POINTS, 3):
        raise UnknownStructureError(f"selection {kind} of version {version}")
    if version == 1:
        ndim, count = struct.unpack_from("<II", data, 16)
        at, width = 24, 4
    elif kind == BLOCKS and version == 2:
        flags, _, ndim = struct.unpack_from("<BII", data, 8)
        if flags != _REGULAR:
            raise UnknownStructureError("a selection with other flags")
        _check_rank(ndim, rank, 1)
        return 17 + 32 * rank
    else:
        flags = data[8] if kind == BLOCKS else 0
        at = 10 if kind == BLOCKS else 9
        width = data[at - 1]
        (ndim,) = struct.unpack_from("<I", data, at)
        at += 4
        if width not in (2, 4, 8) or flags not in (0, _REGULAR):
            raise UnknownStructureError("a selection with other flags")
        if flags == _REGULAR:
            _check_rank(ndim, rank, 1)
            return at + 4 * width * rank
        count = int.from_bytes(data[at : at + width], "little")
        at += width
    _check_rank(ndim, rank, count)
    return at + count * rank * width * (2 if kind == BLOCKS else 1)


def _check_rank(ndim: int, rank: int, count: int) -> None:
    if ndim != rank or not rank:
        raise SourceError(f"a selection has {ndim} axes, its dataset {rank}")
    if count > MAX_BLOCKS:
        raise UnsupportedError("a reference points to too many elements or blocks")


def describe_selection(path: str, space: Any) -> dict[str, Any]:
    """Return what a selection holds: path and blocks (first and last corner), or points.

    Raises `UnsupportedError` if it has too many points or blocks.
    """
    from h5py import h5s

    kind = space.get_select_type()
    if kind == h5s.SEL_ALL:
        return {"path": path}
    if kind == h5s.SEL_NONE:
        return {"path": path, "points": []}
    if kind == h5s.SEL_POINTS:
        if space.get_select_elem_npoints() > MAX_BLOCKS:
            raise UnsupportedError("a reference points to too many elements")
        return {"path": path, "points": space.get_select_elem_pointlist().tolist()}
    if space.get_select_hyper_nblocks() > MAX_BLOCKS:
        raise UnsupportedError("a reference points to too many blocks")
    return {"path": path, "blocks": space.get_select_hyper_blocklist().tolist()}
