"""Copies by executors: parts of the work elsewhere, and whether what they write arrives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any

from virtualzarr.array import Array
from virtualzarr.array.chunk_source import ListedChunks, StoreChunks
from virtualzarr.array.cut_array import cut_array, cut_box
from virtualzarr.array.executors import map_in_order
from virtualzarr.errors import AccessError, UnsupportedError
from virtualzarr.manifest.cut import Cells
from virtualzarr.nodes.documents import join
from virtualzarr.rechunk.stored_boxes import Boxes
from virtualzarr.rechunk.transfer import (
    PROGRESS_STEP,
    ArrayTransfer,
    Int64,
    Progress,
    TransferCounts,
    split_batches,
)
from virtualzarr.stores import Store
from virtualzarr.stores.zip import ZipStore


@dataclass(frozen=True)
class PartReport:
    """What was done of a copy, for the process that plans it.

    Attributes
    ----------
    counts : dict of str to int
        To be added to `TransferCounts`.
    progress : int
        Bytes of elements.
    key : str, optional
        A key that was written.
    """

    counts: dict[str, int]
    progress: int
    key: str | None


def run_parallel(
    transfers: Iterable[ArrayTransfer],
    store: Store,
    parallel: Any,
    counts: TransferCounts,
    progress: Progress,
) -> None:
    """Copy arrays by the workers of an executor, which write to the store themselves.

    Raises
    ------
    UnsupportedError
        The store cannot be written to by several processes.
    AccessError
        What a worker wrote is not in the store, or it cannot see what is copied: its disk or its
        memory is another one.
    """
    if isinstance(store, ZipStore):
        raise UnsupportedError("a zip file is written by one process", file=store.uri)
    transfers = [*transfers]
    for transfer in transfers:
        transfer.document = _read_document(transfer.source)
    parts = (part for transfer in transfers for part in split(transfer))
    for report in map_in_order(copy_part, parts, parallel, name=_name):
        counts.add(**report.counts)
        progress(report.progress)
        # Workers elsewhere may have disks of their own, and those of a fork copies of a dict.
        if report.key is not None and store.get(report.key, (0, 1)) is None:
            raise AccessError(
                f"a worker wrote {report.key}, which did not arrive: workers must be able to write "
                "where the copy is to be",
                file=store.uri,
            )


def _read_document(array: Array) -> bytes | None:
    """Return the document of an array whose chunks are a store's own; None of others."""
    chunks = array.chunk_source
    if not isinstance(chunks, StoreChunks):
        return None
    name = "zarr.json" if array.metadata.zarr_format == 3 else ".zarray"
    return chunks.store.get(join(chunks.path, name))


def _name(part: ArrayTransfer) -> str:
    return part.source.path


def split(transfer: ArrayTransfer) -> Iterator[ArrayTransfer]:
    """Yield the work of a transfer in parts that write other chunks each.

    A part has the references that it needs, and no others. Together they write what the transfer
    would, byte for byte: its plan is that of all of them.
    """
    if transfer.objects is not None:
        objects, sizes = transfer.objects
        for first, last in split_batches(sizes, min(transfer.memory, PROGRESS_STEP)):
            some = objects[first:last]
            source = _keep(cut_array(transfer.source, _bound(some)), some)
            yield _cut(transfer, source, objects=(some, sizes[first:last]))
    if transfer.repack:
        assert transfer.boxes is not None
        low, high, order, bounds = transfer.boxes
        sizes = transfer.sizes
        for first, last in split_batches(2 * sizes, min(transfer.memory, PROGRESS_STEP)):
            rows = order[bounds[first] : bounds[last]]
            ends = bounds[first : last + 1] - bounds[first]
            boxes = Boxes(low[first:last], high[first:last], rows, ends)
            # Between stored chunks there may be missing ones.
            box = boxes.low.min(axis=0).tolist(), boxes.high.max(axis=0).tolist()
            assert transfer.cells is not None
            source = _keep(cut_box(transfer.source, *box), transfer.cells[rows])
            yield _cut(transfer, source, repack=True, boxes=boxes, sizes=sizes[first:last])
    elif transfer.blocks is not None:
        for box, stored in transfer.iter_boxes():
            source = _keep(cut_box(transfer.source, *box), stored)
            yield _cut(transfer, source, blocks=transfer.blocks, chosen=[(box, stored)])


def _keep(source: Array, cells: Int64 | None) -> Array:
    """Return an array that knows of some stored chunks, and of no others."""
    chunks = source.chunk_source
    if cells is None or not isinstance(chunks, ListedChunks):
        return source
    return source.replace(chunk_source=ListedChunks(chunks, chunks.shape, cells))


def _bound(cells: Int64) -> Cells:
    """Return the box around some cells."""
    first, last = cells.min(axis=0).tolist(), cells.max(axis=0).tolist()
    return tuple((a, b + 1) for a, b in zip(first, last, strict=True))


def _cut(transfer: ArrayTransfer, source: Array, **work: Any) -> ArrayTransfer:
    """Return a transfer that has some of the work, and the source that this needs."""
    part = copy(transfer)
    nothing = {"objects": None, "boxes": None, "blocks": None, "cells": None, "repack": False}
    vars(part).update(nothing | work, source=source)
    return part


def copy_part(part: ArrayTransfer) -> PartReport:
    """Do a part of a copy, in whatever process this is."""
    chunks = part.target.chunk_source
    if not isinstance(chunks, StoreChunks):
        raise UnsupportedError("arrays with storage transformers are written by one process")
    store: Any = _WatchedStore(chunks.store)
    part.target = part.target.replace(chunk_source=chunks.replace(store))
    counts = TransferCounts()
    done: list[int] = []
    # Of chunks that a worker cannot see, nothing else tells it that they are not missing.
    if part.document != _read_document(part.source):
        raise AccessError(
            "a worker does not see what is copied, or not as it was when the copy was planned: "
            "workers must be able to read it where it is",
            variable=part.source.path,
        )
    assert part.claim is not None
    with part.claim.hold():
        part.run(counts, done.append)
    numbers = {name: value for name, value in vars(counts).items() if name != "lock"}
    return PartReport(numbers, sum(done), store.last)


class _WatchedStore:
    """A store that notes which key was written last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.last: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def set(self, key: str, data: Any) -> None:
        self._store.set(key, data)
        self.last = key
