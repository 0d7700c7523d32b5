"""The `sharding_indexed` codec: sub-chunks in one object, and an index of their byte ranges."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualzarr.codecs.core.base import (
    ArrayBytes,
    Block,
    Buffer,
    ChunkSpec,
    Codec,
    Endian,
    as_hashable,
    as_view,
    nbytes_of,
)
from virtualzarr.codecs.core.fill_value import full_block, is_filled
from virtualzarr.codecs.core.pipeline import Pipeline
from virtualzarr.codecs.core.scratch import allocate
from virtualzarr.codecs.shard_decoder import ShardDecoder
from virtualzarr.codecs.transpose import Transpose, inverse
from virtualzarr.errors import CodecError, UnsupportedError, VirtualZarrError

INDEX_CODECS = ({"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"})
"""How an index is encoded where nothing else is asked for."""

MAX_ENTRIES = 1 << 30
"""A shard with more sub-chunks is refused: its index alone has 16 bytes for each."""

_MEMBERS = ("chunk_shape", "codecs", "index_codecs", "index_location")
_EMPTY = np.uint64(2**64 - 1)
_FURTHEST = 2**62


class Index(NamedTuple):
    """Where the sub-chunks of a shard lie, in C order of the sub-chunks.

    Attributes
    ----------
    offset : int64 array
        From the start of the shard; -1 for a sub-chunk that is not stored.
    length : int64 array
    """

    offset: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]


class Sharding(ArrayBytes):
    """Sub-chunks, each encoded on its own, and an index of their places.

    Source: zarr-specs, codecs/sharding-indexed. Sub-chunks are written in C order without gaps,
    those with nothing but the fill value left out; any order, gaps and overlaps are read.

    Attributes
    ----------
    chunk_shape : tuple of int
        The shape of a sub-chunk.
    pipeline, index_pipeline : Pipeline
        How a sub-chunk and the index are encoded.
    at_start : bool
        Whether the index comes before the sub-chunks.

    Examples
    --------
    >>> codec = Sharding("sharding_indexed", {"chunk_shape": [2], "codecs": ["bytes"]})
    >>> block = Pipeline([codec]).for_block((4,), "u1", fill=0)
    >>> shard = block.encode(np.array([0, 0, 5, 6], "u1"))
    >>> shard[:2], len(shard), block.decode(shard)
    (b'\\x05\\x06', 38, array([0, 0, 5, 6], dtype=uint8))
    """

    needs_fill = True
    decodes_in_place = True

    def validate(self) -> None:
        """Build the two pipelines; check that the index has a fixed size."""
        fields = self.configuration
        check_sharding_members(self)
        self.chunk_shape = as_chunk_shape(self, fields.get("chunk_shape"))
        self.pipeline = self._chain("codecs", fields.get("codecs"))
        self.index_pipeline = self._chain("index_codecs", fields.get("index_codecs", INDEX_CODECS))
        location = fields.get("index_location", "end")
        self.at_start = location == "start"
        ndim = len(self.chunk_shape)
        try:
            size = self.index_pipeline.for_block((1,) * ndim + (2,), "u8").encoded_size
        except CodecError as error:
            raise self.invalid(f"index_codecs: {error.message}") from error
        if size is None:
            raise self.invalid("index_codecs must give an index of fixed size: none may compress")
        self.pipeline.check_edges([[length] for length in self.chunk_shape])
        # In full, with defaults: equal shards have equal configurations however they were written.
        self.configuration = {
            "chunk_shape": list(self.chunk_shape),
            "codecs": self.pipeline.to_v3(ndim),
            "index_codecs": self.index_pipeline.to_v3(ndim + 1),
            "index_location": location,
        }

    def _chain(self, member: str, value: Any) -> Pipeline:
        try:
            return value if isinstance(value, Pipeline) else Pipeline.from_v3(value)
        except VirtualZarrError as error:
            raise type(error)(f"codec {self.name}: {member}: {error.message}") from error

    def check_edges(self, edges: Sequence[Sequence[int] | npt.NDArray[np.int64]]) -> None:
        """Refuse shards that are not cut into whole sub-chunks."""
        if len(edges) != len(self.chunk_shape):
            raise self.invalid(
                f"chunk_shape {list(self.chunk_shape)} has {len(self.chunk_shape)} axes, "
                f"the shard {len(edges)}"
            )
        for axis, (lengths, inner) in enumerate(zip(edges, self.chunk_shape, strict=True)):
            wrong = np.flatnonzero(np.asarray(lengths) % inner)
            if len(wrong):
                raise self.invalid(
                    f"sub-chunks of {inner} do not divide a shard of {lengths[wrong[0]]} "
                    f"along axis {axis}"
                )
        largest = [int(np.max(lengths, initial=0)) for lengths in edges]
        # The index is read and decoded as a whole, so its size bounds what a request takes.
        entries = math.prod(n // c for n, c in zip(largest, self.chunk_shape, strict=True))
        if entries > MAX_ENTRIES:
            raise self.invalid(f"{entries} sub-chunks in a shard; at most 2^30 are supported")

    @property
    def order(self) -> Sequence[int]:
        """The axes in the order in which the index runs through them, the last one fastest."""
        return range(len(self.chunk_shape))

    def shard(self, shape: Sequence[int]) -> Shard:
        """Return the layout of a shard of some shape."""
        return _shard(self, tuple(shape))

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable:
        """Return what decoding sub-chunks and the index depends on."""
        return (
            self.name,
            self.chunk_shape,
            self.pipeline.decoding_key(dtype),
            self.index_pipeline.decoding_key(np.dtype("u8")),
            self.at_start,
        )

    def is_portable(self, zarr_format: int) -> bool:
        """Whether all codecs inside are portable."""
        inside = self.pipeline.codecs + self.index_pipeline.codecs
        return all(codec.is_portable(zarr_format) for codec in inside)

    def to_v2(self, spec: ChunkSpec, endian: Endian) -> dict[str, Any]:
        """Refuse: v2 has no shards."""
        raise UnsupportedError(f"codec {self.name} has no form in v2 metadata: v2 has no shards")

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return the block of a whole shard."""
        shard, view = self.shard(spec.shape), as_view(data)
        index = shard.read_index(shard.slice_index(view), len(view))
        # Filled only if a sub-chunk is missing: otherwise every element is written anyway.
        if (index.offset < 0).any():
            block = full_block(spec.shape, default_fill(spec), spec.dtype)
        else:
            block = allocate(spec.shape, spec.dtype)
        ShardDecoder(shard, index, spec, block).decode(view)
        return block

    def decode_into(self, data: Buffer, spec: ChunkSpec, out: Block) -> None:
        """Decode a whole shard into an array of its shape."""
        shard, view = self.shard(spec.shape), as_view(data)
        index = shard.read_index(shard.slice_index(view), len(view))
        if (index.offset < 0).any():
            out[...] = default_fill(spec)
        ShardDecoder(shard, index, spec, out).decode(view)

    def encode(self, block: Block, spec: ChunkSpec) -> Buffer:
        """Return a shard with the sub-chunks that hold more than the fill value."""
        shard = self.shard(spec.shape)
        inner = self.pipeline.for_block(self.chunk_shape, spec.dtype, spec.fill)
        fill = default_fill(spec)
        parts: dict[int, Buffer] = {}
        for i, slices in enumerate(shard.iter_slices(np.arange(shard.entries))):
            part = block[slices]
            if not is_filled(part, fill):
                parts[i] = inner.encode(part)
        return shard.join(parts)


def check_sharding_members(codec: Codec) -> None:
    """Refuse members of a sharding configuration that have no meaning."""
    codec.check_members((), _MEMBERS)
    location = codec.configuration.get("index_location", "end")
    if location not in ("start", "end"):
        raise codec.invalid(f"index_location must be 'start' or 'end', not {location!r}")


def as_chunk_shape(codec: Codec, value: Any) -> tuple[int, ...]:
    """Return the shape of sub-chunks, if it is one."""
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(n, (int, np.integer)) and not isinstance(n, bool) and 1 <= n < _FURTHEST
        for n in value
    ):
        raise codec.invalid(f"chunk_shape must be a list of integers from 1 on, not {value!r}")
    return tuple(int(n) for n in value)


class _TransposedSharding(Sharding):
    """Shards behind a transpose, as the array sees them: it is the sub-chunks that are turned."""

    def __init__(self, codec: Sharding, order: tuple[int, ...]) -> None:
        self._order = order
        turn = Transpose("transpose", {"order": order})
        changes = {
            "chunk_shape": [codec.chunk_shape[i] for i in inverse(order)],
            "codecs": Pipeline([turn, *codec.pipeline.codecs]),
        }
        super().__init__(codec.name, codec.configuration | changes)

    @property
    def order(self) -> Sequence[int]:
        return self._order

    @cached_property
    def _identity(self) -> Hashable:
        # A sharding codec of its own with this configuration would have another index.
        return (self.kind, self.name, as_hashable(self.configuration), self._order)


def default_fill(spec: ChunkSpec) -> Any:
    """Return what elements not stored are; zero where nothing is said."""
    return np.zeros((), spec.dtype)[()] if spec.fill is None else spec.fill


class Shard:
    """The layout of shards of one shape: how many sub-chunks there are, and how to index them.

    Attributes
    ----------
    counts : tuple of int
        Sub-chunks along each axis, the axes in the codec's order.
    entries : int
        Sub-chunks in all.
    index_size : int
        Bytes of the encoded index.
    """

    def __init__(self, codec: Sharding, shape: tuple[int, ...]) -> None:
        codec.check_edges([[length] for length in shape])
        self.codec = codec
        self.counts = tuple(shape[i] // codec.chunk_shape[i] for i in codec.order)
        self.entries = math.prod(self.counts)
        self._index = codec.index_pipeline.for_block((*self.counts, 2), np.dtype("u8"))
        assert self._index.encoded_size is not None
        self.index_size: int = self._index.encoded_size

    def coordinates(self, i: int) -> tuple[int, ...]:
        """Return which sub-chunk an entry of the index is of."""
        position = np.unravel_index(i, self.counts) if self.counts else ()
        return tuple(int(position[axis]) for axis in inverse(tuple(self.codec.order)))

    def iter_slices(self, entries: npt.NDArray[np.int64]) -> Iterator[tuple[Any, ...]]:
        """Yield where in the block of the shard the sub-chunks of entries lie: views of it."""
        position = np.unravel_index(entries, self.counts) if self.counts else ()
        along = [position[axis] for axis in inverse(tuple(self.codec.order))]
        slices = [
            [slice(start, start + edge) for start in (number * edge).tolist()]
            for number, edge in zip(along, self.codec.chunk_shape, strict=True)
        ]
        return zip(*slices, repeat(...)) if slices else repeat((...,), len(entries))

    def iter_boxes(self, most: int) -> Iterator[tuple[slice, tuple[Any, ...]]]:
        """Yield boxes of sub-chunks that follow one another in the index: together they are all.

        Parameters
        ----------
        most : int
            Sub-chunks in a box, or one if that is less.

        Yields
        ------
        slice
            Entries of the index, in C order.
        tuple
            The box in what `view_subchunks` returns.
        """
        axis, count = len(self.counts), 1
        while axis and count * self.counts[axis - 1] <= most:
            axis -= 1
            count *= self.counts[axis]
        if not axis:
            yield slice(0, count), (...,)
            return
        length, step, first = self.counts[axis - 1], max(most // count, 1), 0
        for outer in np.ndindex(self.counts[: axis - 1]):
            for start in range(0, length, step):
                stop = min(start + step, length)
                last = first + (stop - start) * count
                yield slice(first, last), (*outer, slice(start, stop))
                first = last

    def view_subchunks(self, block: Block) -> Block:
        """Return a view of a block: first the axes that count sub-chunks, then those of one."""
        pairs = zip(self.counts, self.codec.chunk_shape, strict=True)
        axes = np.arange(2 * len(self.counts)).reshape(-1, 2)
        return block.reshape([n for pair in pairs for n in pair]).transpose(axes.T.reshape(-1))

    def too_short_error(self, size: int) -> CodecError:
        """Return the error for a shard that has no room for its index."""
        return self.codec.error(
            f"the shard has {size} bytes, its index alone would have {self.index_size}"
        )

    def slice_index(self, view: memoryview) -> memoryview:
        """Return the part of a whole shard that is the index."""
        size = self.index_size
        if len(view) < size:
            raise self.too_short_error(len(view))
        return view[:size] if self.codec.at_start else view[len(view) - size :]

    def read_index(self, data: Buffer, size: int | None) -> Index:
        """Decode an index.

        Parameters
        ----------
        data : bytes-like
            The encoded index.
        size : int or None
            Bytes of the shard, where that is known: no sub-chunk may reach further.

        Raises
        ------
        CodecError
            The index is corrupt.
        """
        try:
            pairs = self._index.decode(data).reshape(-1, 2)
        except CodecError as error:
            raise self.codec.error(f"the index is corrupt: {error.message}") from error
        offset, length = pairs[:, 0], pairs[:, 1]
        # codecs/sharding-indexed, binary shard format: both numbers 2^64 - 1 mark an empty sub-
        # chunk.
        absent = offset == _EMPTY
        half = np.flatnonzero(absent != (length == _EMPTY))
        if len(half):
            raise self.codec.error(
                f"the index is corrupt: sub-chunk {self.coordinates(half[0])} has one half of the "
                "mark of an empty one"
            )
        limit = np.uint64(_FURTHEST if size is None else size)
        # `limit - offset` does not wrap where the first test fails: u8 sums could.
        far = np.flatnonzero(((offset > limit) | (length > limit - offset)) & ~absent)
        if len(far):
            i = int(far[0])
            raise self.codec.error(
                f"the index is corrupt: sub-chunk {self.coordinates(i)} has {length[i]} bytes from "
                f"{offset[i]} on, the shard has {limit}"
            )
        # The mark of empty sub-chunks becomes -1.
        return Index(offset.astype(np.int64), length.astype(np.int64))

    def join(self, parts: Mapping[int, Buffer]) -> bytes:
        """Return a shard of encoded sub-chunks, given by their entries in the index."""
        order = np.array(sorted(parts), np.int64)
        body = [parts[i] for i in order.tolist()]
        lengths = np.fromiter(map(nbytes_of, body), np.uint64, len(order))
        pairs = np.full((self.entries, 2), _EMPTY)
        first = self.index_size if self.codec.at_start else 0
        # Each starts where the lengths of those before it end.
        pairs[order, 0] = np.uint64(first) + np.cumsum(lengths, dtype=np.uint64) - lengths
        pairs[order, 1] = lengths
        index = self._index.encode(pairs.reshape(*self.counts, 2))
        return b"".join([index, *body] if self.codec.at_start else [*body, index])

    def split(self, data: Buffer) -> dict[int, Buffer]:
        """Return the encoded sub-chunks of a whole shard, by their entries in the index."""
        view = as_view(data)
        index = self.read_index(self.slice_index(view), len(view))
        stored = np.flatnonzero(index.offset >= 0)
        bounds = zip(index.offset[stored].tolist(), index.length[stored].tolist(), strict=True)
        return {
            i: view[start : start + length]
            for i, (start, length) in zip(stored.tolist(), bounds, strict=True)
        }


@lru_cache(maxsize=256)
def _shard(codec: Sharding, shape: tuple[int, ...]) -> Shard:
    return Shard(codec, shape)


def find_sharding(pipeline: Pipeline) -> Sharding | None:
    """Return the sharding codec of a pipeline whose sub-chunks can be read and written alone.

    There may be transposes before it: it is returned as the array sees it, with its axes. Others
    change the elements, and those behind it need the whole shard.
    """
    # Anything behind it encodes whole shards, of which no part can be read.
    codec = pipeline.codecs[-1]
    if not isinstance(codec, Sharding):
        return None
    return codec if len(pipeline.codecs) == 1 else _transpose_sharding(pipeline)


@lru_cache(maxsize=256)
def _transpose_sharding(pipeline: Pipeline) -> Sharding | None:
    *turns, codec = pipeline.codecs
    assert isinstance(codec, Sharding)
    ndim = len(codec.chunk_shape)
    order = tuple(range(ndim))
    # Before any is looked at: others may change the number of axes.
    transposes = [turn for turn in turns if isinstance(turn, Transpose)]
    if len(transposes) < len(turns):
        return None
    for turn in transposes:
        order = tuple(order[axis] for axis in turn.axes(ndim))
    return _TransposedSharding(codec, order)


def find_innermost_sharding(codec: Sharding) -> Sharding:
    """Return the sharding codec of the smallest sub-chunks, where shards are nested."""
    while (inner := find_sharding(codec.pipeline)) is not None:
        codec = inner
    return codec
