"""Decoding of whole shards, a part after the other: all at once, or while their bytes come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from virtualzarr.codecs.core.base import Block, Buffer, ChunkSpec
from virtualzarr.codecs.core.pipeline import BatchDecoder
from virtualzarr.errors import CodecError

if TYPE_CHECKING:
    from virtualzarr.codecs.sharding import Index, Shard

_PART_BYTES = 512 * 1024  # more of fresh memory takes longer than it saves


class ShardDecoder:
    """Decodes the sub-chunks that are stored in a shard into an array of its shape.

    A part is a few sub-chunks that follow one another in the index, half a megabyte decoded, or a
    larger one. Elements that are not stored are left as they are.

    Parameters
    ----------
    shard : Shard
    index : Index
        Of this very shard.
    spec : ChunkSpec
    out : array

    Attributes
    ----------
    missing : int64 array
        The entries of the index that are not stored.
    stops : int64 array
        For each part, how many bytes from the start of the shard on it takes to decode it.
    """

    def __init__(self, shard: Shard, index: Index, spec: ChunkSpec, out: Block) -> None:
        codec = shard.codec
        block = codec.chunk_shape, spec.dtype, spec.fill
        self._shard, self._out = shard, out
        self._inner = codec.pipeline.for_block(*block)
        self._batches = codec.pipeline.batch_decoder(*block)
        self.missing = np.flatnonzero(index.offset < 0)
        self._stored = np.flatnonzero(index.offset >= 0)
        self._starts = index.offset[self._stored]
        self._ends = self._starts + index.length[self._stored]
        self._parts, self._boxes = self._plan_parts()
        firsts = [part.start for part in self._parts]
        self.stops: npt.NDArray[np.int64] = (
            np.maximum.reduceat(self._ends, firsts) if firsts else np.empty(0, np.int64)
        )

    def _plan_parts(self) -> tuple[list[slice], list[Any]]:
        """Return which of the stored sub-chunks each part has, and boxes of what they decode to.

        Where those are elements, they are copied in one go: threads that copy many small blocks
        take turns for each.
        """
        count, most = len(self._stored), max(_PART_BYTES // max(self._inner.nbytes, 1), 1)
        if count == self._shard.entries and _decodes_to_elements(self._batches, self._shard):
            parts, boxes = zip(*self._shard.iter_boxes(most), strict=True)
            self._subchunks = self._shard.view_subchunks(self._out)
            return [*parts], [*boxes]
        return [slice(i, min(i + most, count)) for i in range(0, count, most)], []

    def decode(self, view: memoryview, parts: Iterable[int] | None = None) -> None:
        """Decode some parts of a shard, or all, whose bytes are in a view from its start on."""
        for part in range(len(self._parts)) if parts is None else parts:
            stored = self._parts[part]
            bounds = zip(self._starts[stored].tolist(), self._ends[stored].tolist(), strict=True)
            encoded = [view[start:end] for start, end in bounds]
            if not (self._boxes and self._decode_box(encoded, self._boxes[part])):
                self._decode_each(encoded, self._stored[stored])

    def _decode_box(self, encoded: list[memoryview], box: Any) -> bool:
        """Decode sub-chunks that are a box; False where they have to be decoded one by one."""
        assert self._batches is not None
        decoded = self._batches.decode_last(encoded)
        if decoded is None:
            return False
        assert self._batches.others.raw is not None
        dtype, _ = self._batches.others.raw
        out = self._subchunks[box]
        out[...] = np.frombuffer(b"".join(decoded), dtype).reshape(out.shape)
        return True

    def _decode_each(self, encoded: list[memoryview], entries: npt.NDArray[np.int64]) -> None:
        batches, shard = self._batches, self._shard
        steps: Iterator[tuple[bool, Buffer]]
        steps = zip(repeat(False), encoded) if batches is None else batches.decode(encoded)
        places = zip(entries.tolist(), shard.iter_slices(entries), steps, strict=True)
        for i, target, (is_begun, data) in places:
            codec = batches.others if batches and is_begun else self._inner
            try:
                codec.decode_into(data, self._out[target])
            except CodecError as error:
                text = f"sub-chunk {shard.coordinates(i)}: {error.message}"
                raise shard.codec.error(text) from error


def _decodes_to_elements(batches: BatchDecoder | None, shard: Shard) -> bool:
    """Tell whether what the last codec decodes to are elements, in the order of the array."""
    if batches is None or batches.others.raw is None:
        return False
    order = [*batches.others.raw[1]]
    return order == [*shard.codec.order] == [*range(len(order))]
