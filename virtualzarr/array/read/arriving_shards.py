"""Whole shards elsewhere, decoded while their bytes come.

Shards that are requested side by side come to their ends at about the same time, and until then
processors would have nothing to decode. Where sub-chunks lie is said by the index at the end, which
a request of its own asks for; it may be that of another version. So nothing is believed of what is
decoded until the whole body has come, after all checks of it: if the index at its end is this very
one, what was decoded is what it holds, and else all of it is decoded anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from grids.projection import Part
from virtualzarr.array.read.output import is_all_slices
from virtualzarr.codecs.core.base import Block, ChunkSpec
from virtualzarr.codecs.shard_decoder import ShardDecoder
from virtualzarr.codecs.sharding import Shard, default_fill, find_sharding
from virtualzarr.errors import CodecError
from virtualzarr.stores.streams import Outcome
from virtualzarr.stores.thread_pools import Task

if TYPE_CHECKING:
    from virtualzarr.array.read.request import ReadRequest

_AT_ONCE = 4
"""Shards of a read that are decoded while they come: of more, others are whole by then."""

_LEAST_BYTES, _MOST_INDEX_BYTES, _STEP_BYTES = 4 << 20, 64 << 10, 1 << 20
"""Of a shard decoded, of an index that is asked for apart, and of what is decoded at once."""


class ArrivingShard:
    """Decodes a shard into new memory while its bytes come: see `Watcher` of streams.

    The event loop tells what comes, and any thread decodes.

    Parameters
    ----------
    shard : Shard
    spec : ChunkSpec
    out : array
        Of the shape of the shard. All of it will be written, or its content never be used.
    span : tuple of (int, int or None)
        Where in its file the shard lies.
    """

    def __init__(
        self, shard: Shard, spec: ChunkSpec, out: Block, span: tuple[int, int | None]
    ) -> None:
        self._shard, self._spec, self._out = shard, spec, out
        self.tail = None if shard.codec.at_start else _find_tail(span[1], shard.index_size)
        self._give: Callable[[Task], None] | None = None
        self._view: memoryview | None = None
        self._index: bytes | None = None
        self._decoder: ShardDecoder | None = None
        self._order = self._stops = np.empty(0, np.int64)  # of parts, as their bytes come
        self._came = self._looked = self._given = 0
        self._is_valid = True
        self._lock = Lock()
        # Under the lock: parts that threads decode, and the answer, once it has come.
        self._running = 0
        self._outcome: Outcome | None = None

    # -- in the event loop -----------------------------------------------------------------------

    def start(self, give: Callable[[Task], None]) -> None:
        """Take what gives work to a thread."""
        self._give = give

    def end(self) -> None:
        """Give no more work: the answer is there, or there is none."""
        self._give = None

    def begin(self, view: memoryview) -> None:
        """Take the memory that a body is received in; a second one is of another attempt."""
        self._is_valid = self._is_valid and self._view is None
        self._view = view

    def advance(self, nbytes: int) -> None:
        """Note how many bytes of the body there are."""
        assert self._view is not None
        self._came, size = nbytes, self._shard.index_size
        if self.tail is None and self._index is None and nbytes >= size:
            self.note_tail(bytes(self._view[:size]))
        elif nbytes - self._looked >= _STEP_BYTES:
            self._give_parts()

    def note_tail(self, data: bytes) -> None:
        """Take the index, of whatever version it is."""
        if len(data) != self._shard.index_size:
            return
        self._index = data
        try:
            index = self._shard.read_index(data, None)
        except CodecError:
            return  # said of the body, if it has that, too
        self._decoder = ShardDecoder(self._shard, index, self._spec, self._out)
        self._order = np.argsort(self._decoder.stops, kind="stable")
        self._stops = self._decoder.stops[self._order]
        self._give_parts()

    def _give_parts(self) -> None:
        """Have the parts decoded whose bytes there are."""
        if self._give is None or self._decoder is None or self._view is None or not self._is_valid:
            return
        self._looked = self._came
        ready = int(np.searchsorted(self._stops, self._came, "right"))
        if ready > self._given:
            parts = self._order[self._given : ready]
            self._given = ready
            with self._lock:
                self._running += 1
            self._give(partial(self._decode, self._decoder, self._view, parts))

    # -- in threads ------------------------------------------------------------------------------

    def _decode(self, decoder: ShardDecoder, view: memoryview, parts: NDArray[np.int64]) -> None:
        try:
            decoder.decode(view, parts.tolist())
        except Exception:
            self._is_valid = False  # raised again where it is that of the whole body

    def take(self, outcome: Outcome | Task) -> Outcome | None:
        """Do some work, or take the answer; return that once no thread is at work."""
        if callable(outcome):
            outcome()
            with self._lock:
                self._running -= 1
                return None if self._running else self._outcome
        with self._lock:
            self._outcome = outcome
            return None if self._running else outcome

    def complete(self, data: memoryview) -> bool:
        """Decode the rest of a body after all checks; False where all has to be decoded anew."""
        decoder, view = self._decoder, self._view
        if decoder is None or view is None or not self._is_valid:
            return False
        # The bytes that parts were decoded from, and all of them.
        if data.obj is not view.obj or len(data) != len(view):
            return False
        if bytes(self._shard.slice_index(data)) != self._index:
            return False
        if len(self._stops) and self._stops[-1] > len(data):
            return False
        try:
            decoder.decode(data, self._order[self._given :].tolist())
        except CodecError:
            return False
        for target in self._shard.iter_slices(decoder.missing):
            self._out[target] = default_fill(self._spec)
        return True


def _find_tail(stop: int | None, size: int) -> tuple[int, int | None]:
    return (-size, None) if stop is None else (stop - size, stop)


def watch_shard(
    request: ReadRequest, i: int, number: int, span: tuple[int, int | None]
) -> ArrivingShard | None:
    """Return what decodes a chunk while it comes, if it is a large shard that is read whole.

    Parameters
    ----------
    request : ReadRequest
        Whose output is new memory.
    i, number : int
        The number of the chunk, and which of the reads is its.
    """
    codec, shape = request.block_codecs[int(request.codec_index[i])]
    sharding = find_sharding(request.pipelines[int(request.codec_index[i])])
    if number >= _AT_ONCE or sharding is None or request.located.origin is not None:
        return None
    if codec.nbytes < _LEAST_BYTES or codec.dtype.hasobject:
        return None
    part: Part = next(iter(request.projection.parts(request.located.cell[i : i + 1])))
    chunk_sel, out_sel, is_complete = part
    if not (is_complete and is_all_slices(out_sel) and is_all_slices(chunk_sel)):
        return None
    out = request.output[out_sel] if out_sel else request.output
    shard = sharding.shard(shape)
    if out.shape != tuple(shape) or shard.index_size > _MOST_INDEX_BYTES:
        return None
    spec = ChunkSpec(tuple(shape), codec.dtype, request.metadata.fill_value)
    return ArrivingShard(shard, spec, out, span)
