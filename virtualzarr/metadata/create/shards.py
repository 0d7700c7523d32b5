"""Sharding codecs with optional members, which are completed once the array is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from virtualzarr.codecs import Codec, Pipeline
from virtualzarr.codecs.core.base import ArrayBytes, ChunkSpec
from virtualzarr.codecs.sharding import INDEX_CODECS, as_chunk_shape, check_sharding_members
from virtualzarr.codecs.transpose import Transpose, inverse
from virtualzarr.errors import MetadataError
from virtualzarr.metadata.json_documents import member

Complete = Callable[[Any, ChunkSpec, bool], Sequence[Codec]]
"""Returns the codecs of a list of them in any notation; of sub-chunks, or of an index."""


class ShardingRequest(ArrayBytes):
    """A `sharding_indexed` codec with any of its members; `Sharding`, of arrays, has all.

    Attributes
    ----------
    chunk_shape : tuple of int or None
        The shape of the sub-chunks.
    """

    def validate(self) -> None:
        """Check the members that do not depend on the array."""
        check_sharding_members(self)
        shape = self.configuration.get("chunk_shape")
        self.chunk_shape = None if shape is None else as_chunk_shape(self, shape)

    def complete(self, spec: ChunkSpec, complete: Complete) -> Codec:
        """Return the codec with its chains completed, for shards of `spec`."""
        from virtualzarr.codecs import make

        configuration = self.configuration
        if self.chunk_shape is None:
            raise MetadataError(f"codec {self.name}: chunk_shape: missing")
        ndim = len(self.chunk_shape)
        if ndim != len(spec.shape):
            raise self.invalid(
                f"chunk_shape {list(self.chunk_shape)} has {ndim} axes, the shard {len(spec.shape)}"
            )
        # The index is a chunk, too: two uint64 (offset, length) for each sub-chunk, which adds an
        # axis ("Binary shard format" of the sharding codec).
        index = configuration.get("index_codecs", list(INDEX_CODECS))
        with member(f"codec {self.name}: codecs"):
            inside = complete(configuration.get("codecs"), ChunkSpec((1,) * ndim, spec.dtype), True)
        with member(f"codec {self.name}: index_codecs"):
            around = complete(index, ChunkSpec((1,) * (ndim + 1), np.dtype("u8")), False)
        return make(
            self.name,
            **configuration
            | {
                "chunk_shape": list(self.chunk_shape),
                "codecs": Pipeline(inside),
                "index_codecs": Pipeline(around),
            },
        )


def to_array_axes(filters: Sequence[Codec], shape: Sequence[int]) -> tuple[int, ...]:
    """Return a sub-chunk shape in the array's axes, from one behind its transposes."""
    return tuple(shape[axis] for axis in inverse(find_axis_order(filters, len(shape))))


def to_stored_axes(filters: Sequence[Codec], shape: Sequence[int]) -> tuple[int, ...]:
    """Return a sub-chunk shape behind the transposes of an array, from one in its axes."""
    return tuple(shape[axis] for axis in find_axis_order(filters, len(shape)))


def find_axis_order(filters: Sequence[Codec], ndim: int) -> tuple[int, ...]:
    """Return the order of an array's axes behind its transposes."""
    order = tuple(range(ndim))
    for codec in filters:
        if isinstance(codec, Transpose):
            order = tuple(order[axis] for axis in codec.axes(ndim))
    return order
