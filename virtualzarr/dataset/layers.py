"""Layers of a dataset: rows that are stored a second time, in other chunks.

Source: ``specs/dataset.md``, *Layers*.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import SeparableGrid
from virtualzarr.array import Array
from virtualzarr.array.read.layers import Chunking, Layer, Layers, Span, join_spans
from virtualzarr.dataset.arrays import VersionChunks, build_array, list_axes
from virtualzarr.dataset.commit import Change, record
from virtualzarr.dataset.entry import Entry, LayerRows
from virtualzarr.dataset.head import Head
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.row_cells import CutCells
from virtualzarr.dataset.row_tables import Contents, at_ids, read_entries
from virtualzarr.dataset.runs import Runs
from virtualzarr.dataset.segment_opener import SegmentOpener
from virtualzarr.dataset.snapshot import Record
from virtualzarr.dataset.stretches import Stretch, Stretches
from virtualzarr.errors import MismatchError
from virtualzarr.metadata import ArrayMetadata

Key = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class LayerInfo:
    """What a layer has of a version.

    Attributes
    ----------
    chunks : mapping of str to int
        Chunk lengths by dimension.
    rows : int
        How many rows it has, at most those of the version.
    arrays : sequence of str
        The arrays that some of its rows are of.
    """

    chunks: Mapping[str, int]
    rows: int
    arrays: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Covered:
    """Rows of a version that lie next to each other in a segment of a layer.

    Attributes
    ----------
    position : int
        Of the first one.
    stretch : Stretch
    """

    position: int
    stretch: Stretch

    @property
    def stop(self) -> int:
        """The position after the last one."""
        return self.position + self.stretch.stop - self.stretch.start


def find_layers(contents: Contents, dimension: str) -> dict[Key, list[Covered]]:
    """Return which rows of a version each layer has, in their order; each row once."""
    by_key: dict[Key, list[Entry]] = {}
    for entry in contents.entries:
        if entry.layer is not None and entry.layer.dimension == dimension:
            by_key.setdefault(entry.layer.key, []).append(entry)
    runs = contents.runs.get(dimension)
    if runs is None:
        return {}
    return {key: [*_cover(entries, runs)] for key, entries in by_key.items()}


def _cover(entries: Sequence[Entry], runs: Runs) -> Iterator[Covered]:
    """Yield the rows that entries of one layer have, by increasing positions."""
    pieces = []
    for number, entry in enumerate(entries):
        assert entry.layer is not None
        row = 0
        for first, count in entry.layer.ids:
            pieces.append((first, count, row, number))
            row += count
    # Both are sorted by ids: of each run, only pieces that overlap it are looked at. Those of one
    # layer never have an id twice, as no commit adds rows that it has.
    table = np.array(sorted(pieces), np.int64).reshape(-1, 4)
    ends = table[:, 0] + table[:, 1]
    joined: Covered | None = None
    for position, first, count in zip(
        runs.starts[:-1].tolist(), runs.first.tolist(), runs.count.tolist(), strict=True
    ):
        low, high = (
            np.searchsorted(ends, first, "right"),
            np.searchsorted(table[:, 0], first + count),
        )
        for begin, size, row, number in table[low:high].tolist():
            start, stop = max(begin, first), min(begin + size, first + count)
            at = Covered(
                position + start - first,
                Stretch(entries[number], row + start - begin, row + stop - begin),
            )
            if joined is not None and _goes_on(joined, at):
                at = Covered(
                    joined.position,
                    replace(at.stretch, start=joined.stretch.start),
                )
            elif joined is not None:
                yield joined
            joined = at
    if joined is not None:
        yield joined


def _goes_on(one: Covered, other: Covered) -> bool:
    """Tell whether rows are next to others both in the version and in the segment."""
    a, b = one.stretch, other.stretch
    return a.entry is b.entry and a.stop == b.start and one.stop == other.position


def add_layers(
    arrays: Mapping[str, Array],
    documents: Mapping[str, ArrayMetadata],
    contents: Contents,
    dimension: str,
    open_segment: SegmentOpener,
) -> None:
    """Let arrays of a version be read from its layers, too."""
    layers = find_layers(contents, dimension)
    if not layers:
        return
    for path, array in arrays.items():
        source = array.chunk_source
        if dimension not in array.dims or not isinstance(source, VersionChunks):
            continue
        others = []
        for covered in layers.values():
            chosen = [each for each in covered if path in each.stretch.entry.layer.arrays]  # type: ignore[union-attr]
            if chosen:
                others.append(_build_layer(path, documents[path], chosen, dimension, open_segment))
        if others:
            axis = array.dims.index(dimension)
            base = Chunking(source.without_layers(), _grid(array), _list_spans(source, axis, array))
            source.layers = Layers(axis, base, tuple(others))


def _grid(array: Array) -> SeparableGrid:
    assert isinstance(array.grid, SeparableGrid)
    return array.grid


def _build_layer(
    path: str,
    metadata: ArrayMetadata,
    covered: Sequence[Covered],
    dimension: str,
    open_segment: SegmentOpener,
) -> Layer:
    cells = CutCells(path, Stretches.of(each.stretch for each in covered), dimension)
    array = build_array(path, metadata, dimension, cells, open_segment)
    source = array.chunk_source
    assert isinstance(source, VersionChunks)
    return Layer(
        source, _grid(array), _list_spans(source, array.dims.index(dimension), array),
        np.array([each.position for each in covered], np.int64),
        np.array([each.stop for each in covered], np.int64),
    )  # fmt: skip


def _list_spans(source: VersionChunks, axis: int, array: Array) -> tuple[Span, ...]:
    """Return how the stored blocks of an array are cut along its other axes."""
    spans, position, along = [], 0, _grid(array).axes[axis]
    assert source.rows is not None
    for stretch in source.rows.load().stretches:
        stop = position + stretch.stop - stretch.start
        axes = list_axes(stretch.entry, source.path, source.axes, axis)
        spans.append(Span(position, stop, (*axes[:axis], along, *axes[axis + 1 :])))
        position = stop
    return join_spans(spans)


def list_layers(contents: Contents, dimension: str) -> list[LayerInfo]:
    """Return what layers a version has."""
    result = []
    for key, covered in find_layers(contents, dimension).items():
        arrays: dict[str, None] = {}
        for each in covered:
            assert each.stretch.entry.layer is not None
            arrays.update(dict.fromkeys(each.stretch.entry.layer.arrays))
        rows = sum(each.stop - each.position for each in covered)
        result.append(LayerInfo(dict(key), rows, tuple(arrays)))
    return result


def mask_covered(covered: Sequence[Covered], count: int) -> NDArray[np.bool_]:
    """Tell for each of some rows whether a layer has it."""
    mask = np.zeros(count, bool)
    for each in covered:
        mask[each.position : each.stop] = True
    return mask


def delete_layer(chunks: Mapping[str, int], about: Mapping[str, Any]) -> Change:
    """A layer goes; nothing else changes.

    Raises
    ------
    MismatchError
        By the change: there is none.
    """
    key = tuple(sorted(chunks.items()))

    def change(head: Head) -> Protocol[Record]:
        entries = yield from read_entries(head.snapshot)
        gone = tuple(e.key for e in entries if e.layer is not None and e.layer.key == key)
        if not gone:
            raise MismatchError(f"there is no layer with the chunks {dict(chunks)}")
        new_record = yield from record(head, dict(about))
        return replace(new_record, removed=gone)

    return change


def check_not_covered(head: Head, layer: LayerRows) -> Protocol[None]:
    """Refuse rows that a layer has already.

    Raises
    ------
    MismatchError
        Another commit was quicker.
    """
    low = min(first for first, _ in layer.ids)
    high = max(first + count for first, count in layer.ids)
    entries = yield from read_entries(head.snapshot, at_ids(layer.dimension, low, high))
    runs = Runs.of(layer.ids)
    for entry in entries:
        if entry.layer is None or entry.layer.key != layer.key:
            continue
        first, count = np.array(entry.layer.ids, np.int64).T
        if runs.count_ids(first, first + count).any():
            raise MismatchError("the layer has some of these rows already")
