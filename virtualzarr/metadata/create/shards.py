"""The sharding codec as it is asked for: what is left out is chosen when the array is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from virtualzarr.codecs import Codec, Pipeline
from virtualzarr.codecs.core.base import ArrayBytes, ChunkSpec
from virtualzarr.codecs.sharding import INDEX_CODECS, as_chunk_shape, check_members
from virtualzarr.codecs.transpose import Transpose, inverse
from virtualzarr.errors import MetadataError
from virtualzarr.metadata.json_documents import member

Complete = Callable[[Any, ChunkSpec, bool], Sequence[Codec]]
"""Returns the codecs that a list of them in any notation stands for; of sub-chunks, or an index."""


class ShardingRequest(ArrayBytes):
    """A `sharding_indexed` codec of which every member may be left out.

    Its configuration is what was given. `Sharding`, which arrays have, is complete.

    Attributes
    ----------
    chunk_shape : tuple of int or None
        The shape of the sub-chunks.
    """

    def validate(self) -> None:
        """Check the members that do not depend on the array."""
        check_members(self, self.configuration)
        shape = self.configuration.get("chunk_shape")
        self.chunk_shape = None if shape is None else as_chunk_shape(self, shape)

    def complete(self, spec: ChunkSpec, complete: Complete) -> Codec:
        """Return the codec with its chains completed, for shards of an array as `spec` says."""
        from virtualzarr.codecs import make

        given = self.configuration
        if self.chunk_shape is None:
            raise MetadataError(f"codec {self.name}: chunk_shape: missing")
        ndim = len(self.chunk_shape)
        if ndim != len(spec.shape):
            raise self.invalid(
                f"chunk_shape {list(self.chunk_shape)} has {ndim} axes, the shard {len(spec.shape)}"
            )
        index = given.get("index_codecs", list(INDEX_CODECS))
        with member(f"codec {self.name}: codecs"):
            inside = complete(given.get("codecs"), ChunkSpec((1,) * ndim, spec.dtype), True)
        with member(f"codec {self.name}: index_codecs"):
            around = complete(index, ChunkSpec((1,) * (ndim + 1), np.dtype("u8")), False)
        return make(
            self.name,
            **given
            | {
                "chunk_shape": list(self.chunk_shape),
                "codecs": Pipeline(inside),
                "index_codecs": Pipeline(around),
            },
        )


def array_axes(filters: Sequence[Codec], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of sub-chunks as the array has it, from that behind its transposes."""
    return tuple(shape[axis] for axis in inverse(order_of_axes(filters, len(shape))))


def stored_axes(filters: Sequence[Codec], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of sub-chunks behind the transposes of an array, from that of the array."""
    return tuple(shape[axis] for axis in order_of_axes(filters, len(shape)))


def order_of_axes(filters: Sequence[Codec], ndim: int) -> tuple[int, ...]:
    """Return the order of an array's axes behind its transposes."""
    order = tuple(range(ndim))
    for codec in filters:
        if isinstance(codec, Transpose):
            order = tuple(order[axis] for axis in codec.axes(ndim))
    return order
