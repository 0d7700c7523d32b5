"""Cuts of a manifest: the references of some cells, with the sources that these need."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.manifest.decoders import Decoder
from virtualzarr.manifest.manifest import MISSING, TO_END, Affine, Manifest
from virtualzarr.manifest.sources import Source

Cells = tuple[tuple[int, int], ...]
"""The first cell and the one behind the last, for each axis."""


def cut_manifest(manifest: Manifest, cells: Cells) -> tuple[Any, ...]:
    """Return the references of some cells, as arguments of `Manifest` after the shape.

    Of sources that are inline bytes only those are left that these cells refer to.

    Examples
    --------
    >>> from virtualzarr.manifest import Sources
    >>> manifest = Manifest((3,), Sources([Source.inline(b"abcdef")]), 0, [0, 2, 4], 2)
    >>> sources, row, offset, length = cut_manifest(manifest, ((1, 2),))
    >>> sources[0].data, row, offset, length
    (b'cd', 0, 0, 2)
    """
    is_plain = manifest.decoder is None and manifest.origin is None
    if not is_plain or any(end - first > 1 for first, end in cells):
        return _cut_box(manifest, tuple(slice(*pair) for pair in cells))
    # The commonest, and made a million times: without arrays of numpy.
    cell = tuple(first for first, _ in cells)
    row = int(manifest.source[cell])
    if row < 0:
        return (), MISSING, 0, 0
    source, offset, length = manifest.sources[row], *_pick(manifest, cell)
    if source.data is not None and 0 <= offset <= offset + length <= len(source.data):
        return (Source.inline(source.data[offset : offset + length]),), 0, 0, length
    return (source,), 0, offset, length


def _pick(manifest: Manifest, cell: tuple[int, ...]) -> tuple[int, int]:
    """Return offset and length of a chunk."""
    columns = manifest.offset, manifest.length
    offset, length = (
        column.base + sum(map(operator.mul, column.strides, cell))
        if isinstance(column, Affine)
        else int(column[cell])
        for column in columns
    )
    return offset, length


def _cut_box(manifest: Manifest, box: tuple[slice, ...]) -> tuple[Any, ...]:
    """Return the references of a box of cells, with the sources and decoders that they have."""
    source, offset, length = (
        np.asarray(column[box]) for column in (manifest.source, manifest.offset, manifest.length)
    )
    used, row = _renumber(source)
    sources = []
    for number, one in enumerate(manifest.sources[k] for k in used):
        if one.data is not None:
            is_here = row == number
            ends = np.where(length == TO_END, len(one.data), offset + length)[is_here]
            first = int(offset[is_here].min())
            one = Source.inline(one.data[first : int(ends.max())])
            offset = offset - np.where(is_here, first, 0)
        sources.append(one)
    columns = tuple(sources), row, offset, length
    if manifest.decoder is None and manifest.origin is None:
        return columns
    decoders: tuple[Decoder, ...] = ()
    decoder = None
    if manifest.decoder is not None:
        used, decoder = _renumber(manifest.decoder[box])
        decoders = tuple(manifest.decoders[k] for k in used)
    origin = None if manifest.origin is None else manifest.origin[box].copy()
    return *columns, decoders, decoder, origin


def _renumber(column: NDArray[np.int32]) -> tuple[list[int], NDArray[np.int32]]:
    """Return which rows of a table a column has, and the column in their numbers; -1 stays."""
    used, rows = np.unique(column, return_inverse=True)
    # -1, which sorts first, is no row of the table.
    absent = int((used < 0).sum())
    rows = rows.reshape(column.shape) - absent
    return used[absent:].tolist(), rows.astype(np.int32)
