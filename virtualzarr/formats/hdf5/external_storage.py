"""External storage: contiguous values that an HDF5 file keeps in other files."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from grids import RectilinearGrid, RegularGrid
from grids.grid import SeparableGrid
from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.context import FileContext
from virtualzarr.formats.hdf5.external_file_list import Slot
from virtualzarr.formats.hdf5.inline_values import check_size
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.stores.files import open_file

_UNLIMITED = (1 << 64) - 1

Segment = tuple[Source, int, int]
"""A file, the first byte in it, and how many are for the dataset."""


def list_segments(slots: Sequence[Slot], nbytes: int, context: FileContext) -> list[Segment]:
    """Return the pieces of files that together hold a dataset.

    Raises `SourceError` if they hold too little, or one is not there; `AccessError` if one may not
    be reached.

    Parameters
    ----------
    nbytes : int
        Bytes of the dataset.
    """
    files: list[Segment] = []
    remaining = nbytes
    for raw, offset, size in slots:
        if not remaining:
            break
        # No size means as much as there is to come.
        length = remaining if size in (0, _UNLIMITED) else min(int(size), remaining)
        files.append(
            (
                context.find_external_file(raw.decode("utf-8", "surrogateescape")),
                int(offset),
                length,
            )
        )
        remaining -= length
    if remaining:
        raise SourceError(f"external files hold {nbytes - remaining} bytes, {nbytes} are needed")
    return files


def lay_out_segments(
    parts: list[Segment], shape: tuple[int, ...], itemsize: int
) -> tuple[SeparableGrid, Manifest]:
    """Return the grid and the references of values in pieces, one cell for each piece.

    They are copied where a piece ends within a row, or a file is too short: HDF5 reads zeros there.
    """
    ndim = len(shape)
    one_cell = RegularGrid(shape, shape)
    short = any((s.size or 0) < offset + length for s, offset, length in parts)
    if len(parts) == 1 and not short:
        return one_cell, Manifest.single(*parts[0], ndim)
    row = math.prod(shape[1:]) * itemsize
    if short or not shape or any(length % row for _, _, length in parts):
        check_size(math.prod(shape) * itemsize)
        return one_cell, Manifest.inline(b"".join(map(_read_segment, parts)), ndim)
    # Pieces of whole rows are cells along the first axis: contiguous values are cut nowhere else.
    edges = [length // row for _, _, length in parts]
    grid: SeparableGrid = RectilinearGrid(shape, [edges, *([n] for n in shape[1:])])
    if len(set(edges)) == 1:
        grid = RegularGrid(shape, (edges[0], *shape[1:]))
    source_rows: dict[Source, int] = {}
    source = [source_rows.setdefault(part[0], len(source_rows)) for part in parts]
    columns = (source, [part[1] for part in parts], [part[2] for part in parts])
    cells = grid.grid_shape
    first, offset, length = (np.array(column, np.int64).reshape(cells) for column in columns)
    return grid, Manifest(cells, Sources(source_rows), first, offset, length)


def _read_segment(part: Segment) -> bytes:
    """Return the bytes of a piece, and zeros for what the file does not have."""
    source, offset, length = part
    size = source.size or 0
    stop = min(offset + length, size)
    if offset >= stop:
        return bytes(length)
    data = open_file(source.location, source.fingerprint).read(offset, stop)
    return bytes(data).ljust(length, b"\0")
