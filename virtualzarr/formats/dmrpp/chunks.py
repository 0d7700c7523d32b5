"""Chunks of a DMR++ variable as columns of references."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs import Codec, Pipeline, make
from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.dmrpp.document import Document, Element, get_attr, iter_children
from virtualzarr.formats.dmrpp.types import parse_int
from virtualzarr.formats.plain import plain_pipeline
from virtualzarr.manifest import Decoder, Manifest, Sources
from virtualzarr.manifest.manifest import MISSING

MOST_CELLS = 1 << 22
"""Cells of a variable most of which have no chunk: columns have a number for each."""
_FILTERS = ("shuffle", "deflate", "fletcher32")

Ints = NDArray[np.int64]


class ChunkList:
    """Where chunks are, as a document says it, in its order.

    Attributes
    ----------
    offset, length, mask, file : int64 arrays
        `file` counts those of `hrefs`.
    position : int64 array, shape (chunks, axes)
        Of the first element of each in the array.
    hrefs : list of str or None
        Other files than that of the document.
    """

    def __init__(self, document: Document, chunks: Element, ndim: int, kind: str = "chunk") -> None:
        parts: list[tuple[Ints, Ints, Ints, Ints, Ints]] = []
        self.hrefs: list[str | None] = []
        rows: dict[str | None, int] = {}
        single: list[tuple[int, int, int, int, list[int]]] = []

        def flush() -> None:
            if single:
                offset, length, mask, file, position = zip(*single, strict=True)
                table = np.array(position, np.int64).reshape(len(single), ndim)
                numbers = (np.array(column, np.int64) for column in (offset, length, mask, file))
                parts.append((*numbers, table))  # type: ignore[arg-type]
                single.clear()

        for chunk in iter_children(chunks, kind):
            # Runs are columns already; single elements between them are collected until the next
            # run, so that the order of the document is kept: block storage depends on it.
            run = document.run(chunk)
            if run is None:
                href = get_attr(chunk, "href")
                file = rows.setdefault(href, len(rows))
                single.append((*_parse_numbers(chunk), file, _parse_position(chunk, ndim)))
                continue
            flush()
            count, none = len(run.offset), np.zeros((len(run.offset), ndim), np.int64)
            position = none if run.position is None else run.position
            if position.shape != none.shape:
                raise SourceError(f"chunks have {position.shape[1]} positions for {ndim} axes")
            zero = np.zeros(count, np.int64)
            mask = zero if run.mask is None else run.mask
            file = rows.setdefault(None, len(rows))
            parts.append((run.offset, run.length, mask, zero + file, position))
        flush()
        self.hrefs = list(rows)
        empty = np.zeros(0, np.int64)
        columns = (
            zip(*parts, strict=True) if parts else ((empty,),) * 4 + ((empty.reshape(0, ndim),),)
        )
        self.offset, self.length, self.mask, self.file, self.position = map(np.concatenate, columns)

    def __len__(self) -> int:
        return len(self.offset)


def _parse_numbers(chunk: Element) -> tuple[int, int, int]:
    offset, length = (parse_int(get_attr(chunk, name), name) for name in ("offset", "nBytes"))
    mask = get_attr(chunk, "fm")
    return offset, length, 0 if mask is None else parse_int(mask, "a filter mask", 2**32 - 1)


def _parse_position(chunk: Element, ndim: int) -> list[int]:
    text = get_attr(chunk, "chunkPositionInArray")
    if text is None:
        return [0] * ndim
    match = re.fullmatch(r"\s*\[([0-9, ]*)\]\s*", text)
    words = match[1].replace(",", " ").split() if match else []
    if len(words) != ndim:
        raise SourceError(f"a chunk is at {text!r} in an array of {ndim} axes")
    return [parse_int(word, "the position of a chunk") for word in words]


def compute_cells(places: ChunkList, shape: Sequence[int], edges: Sequence[int]) -> Ints:
    """Return the number of each chunk's cell, in order C.

    Raises `SourceError` if a chunk lies beside the grid, out of the array, or where another one is.
    """
    grid = [-(-n // edge) for n, edge in zip(shape, edges, strict=True)]
    if not grid:
        cells = np.zeros(len(places), np.int64)
    else:
        index, remainder = np.divmod(places.position, np.array(edges, np.int64))
        if remainder.any() or (index >= np.array(grid, np.int64)).any():
            wrong = remainder.any(axis=1) | (index >= np.array(grid, np.int64)).any(axis=1)
            raise SourceError(
                f"a chunk is at {places.position[int(wrong.argmax())].tolist()} in an array of "
                f"shape {tuple(shape)} in chunks of {tuple(edges)}"
            )
        cells = np.ravel_multi_index(tuple(index.T), grid).astype(np.int64)
    # Which of two would win depends on the order of scattering: neither is what the file says.
    if len(np.unique(cells)) != len(cells):
        raise SourceError("the document has two chunks for one place")
    return cells


def split_blocks(places: ChunkList, row: int, rows: int) -> list[int]:
    """Return how many rows there are in each of the blocks that an array is stored in.

    What lies in the last of them behind the array is left out.

    Raises `UnsupportedError` if a row lies in two blocks; `SourceError` if there are not enough.
    """
    # HDF4 lists linked blocks in order without positions: rows follow from the lengths alone.
    ends = np.cumsum(places.length)
    if (ends[:-1] % row).any():
        raise UnsupportedError("arrays in several blocks that do not hold whole rows")
    edges = np.diff(np.minimum(ends // row, rows), prepend=0)
    if edges.sum() != rows or not edges.all():
        raise SourceError(f"blocks of {int(ends[-1])} bytes for {rows} rows of {row} bytes")
    places.length = edges * row
    places.position[:, 0] = np.arange(len(edges))
    return [int(edge) for edge in edges]


def make_pipeline(
    chunks: Element, stored: np.dtype, paddings: Sequence[Codec], old: bool
) -> Pipeline:
    """Return the codecs of the chunks of a variable.

    Raises `UnsupportedError` if there is a filter that is not known.

    Parameters
    ----------
    stored : numpy dtype
    paddings : sequence of Codec
        What is done about the padding of texts.
    old : bool
        Whether the document is of a time when the order of filters was not written.
    """
    names = (get_attr(chunks, "compressionType") or "").split()
    # Documents before DMR++ had a version list filters in any order; HDF5 files have them in this
    # one.
    if old and set(names) <= set(_FILTERS) and len(set(names)) == len(names):
        names.sort(key=_FILTERS.index)
    codecs: list[Codec] = [*plain_pipeline(stored).codecs, *paddings]
    for name in names:
        if name == "shuffle":
            codecs.append(make("numcodecs.shuffle", elementsize=stored.itemsize))
        elif name == "deflate":
            codecs.append(make("numcodecs.zlib"))
        elif name == "fletcher32":
            codecs.append(make("numcodecs.fletcher32"))
        else:
            raise UnsupportedError(f"the filter {name!r} of a DMR++ document")
    return Pipeline(codecs)


def make_manifest(
    places: ChunkList,
    shape: Sequence[int],
    edges: Sequence[int],
    pipeline: Pipeline,
    skip: int,
    sources: Callable[[list[str | None]], Sources],
) -> Manifest:
    """Return the references of a variable; the first `skip` codecs are no filters.

    Raises `SourceError` if chunks are where none can be.
    """
    grid = tuple(-(-n // edge) for n, edge in zip(shape, edges, strict=True))
    count = math.prod(grid)
    if not len(places):
        return Manifest.missing(grid)
    if count > MOST_CELLS and count > 16 * len(places):
        raise UnsupportedError(f"a variable of {count} chunks, most of which are not stored")
    cells = compute_cells(places, shape, edges)
    table = sources(places.hrefs)
    # The difference, not the sum, is compared: offsets near 2**62 must not overflow.
    ends = np.array([2**62 if each.size is None else each.size for each in table])[places.file]
    beyond = places.offset > ends - places.length
    if beyond.any():
        row = int(beyond.argmax())
        raise SourceError(
            f"a chunk has bytes {places.offset[row]} to {places.offset[row] + places.length[row]}, "
            f"but {table[int(places.file[row])].uri} ends at {ends[row]}"
        )

    def column(values: Ints, dtype: type, missing: int) -> NDArray:
        values_by_cell: NDArray = np.full(count, missing, dtype)
        values_by_cell[cells] = values
        return values_by_cell.reshape(grid)

    decoders, decoder = _make_decoders(places.mask, pipeline, skip)
    return Manifest(
        grid, table,
        column(places.file, np.int32, MISSING),
        column(places.offset, np.int64, 0),
        column(places.length, np.int64, 0),
        decoders, None if decoder is None else column(decoder, np.int32, -1),
    )  # fmt: skip


def _make_decoders(mask: Ints, pipeline: Pipeline, skip: int) -> tuple[list[Decoder], Ints | None]:
    """Return what decodes chunks that did not go through all filters, and which of it they need."""
    filters = len(pipeline.codecs) - skip
    mask = mask & ((1 << filters) - 1)
    if not mask.any():
        return [], None
    values = np.unique(mask[mask > 0])
    decoders = [
        Decoder(pipeline.without(*(skip + i for i in range(filters) if value >> i & 1)))
        for value in values.tolist()
    ]
    return decoders, np.where(mask > 0, np.searchsorted(values, mask), -1)
