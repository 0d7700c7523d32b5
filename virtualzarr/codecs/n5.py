"""The `n5_default` codec: blocks of N5, which say their own shape before the data."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any, ClassVar

import numpy as np

from virtualzarr.codecs.core.base import ArrayBytes, Block, Buffer, ChunkSpec, as_view, nbytes_of
from virtualzarr.codecs.core.fill_value import full_block
from virtualzarr.codecs.core.pipeline import Pipeline
from virtualzarr.codecs.transpose import Transpose
from virtualzarr.errors import VirtualZarrError

_LARGER = 256  # times that a block may be larger than the cell that it is cut to
_SMALL = 1 << 20


class N5Default(ArrayBytes):
    """Blocks of N5 in mode "default": two numbers, the shape, and the encoded elements.

    Source: zarr-extensions, codecs/n5_default. A block that is larger than its cell is cut, one
    that is smaller, as N5 writes it at the ends of an array, filled up with the fill value.
    Blocks are written as large as their cells.
    """

    needs_fill = True
    in_v2: ClassVar[bool] = False

    def validate(self) -> None:
        """Build the chain; it reverses the axes, and is big-endian."""
        self.check_members(["codecs"])
        codecs = self.configuration["codecs"]
        try:
            chain = codecs if isinstance(codecs, Pipeline) else Pipeline.from_v3(codecs)
        except VirtualZarrError as error:
            raise type(error)(f"codec {self.name}: codecs: {error.message}") from error
        turn, serializer, *after = chain.codecs if len(chain.codecs) > 1 else (None, None)
        order = turn.configuration["order"] if isinstance(turn, Transpose) else None
        if not isinstance(order, list) or order != sorted(order, reverse=True):
            raise self.invalid("codecs: the first must be a transpose that reverses the axes")
        if serializer is not chain.serializer or serializer.name != "bytes" or len(after) > 1:
            raise self.invalid(
                "codecs: after the transpose comes bytes, and at most one compressor"
            )
        if serializer.configuration.get("endian", "big") != "big":
            raise self.invalid("codecs: N5 is big-endian")
        self.pipeline, self.ndim = chain, len(order)
        self.configuration = {"codecs": chain.to_v3(self.ndim)}

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable:
        """Return what decoding the elements depends on."""
        return (self.name, self.pipeline.decoding_key(dtype))

    def is_portable(self, zarr_format: int) -> bool:
        """Whether the codecs inside are portable."""
        return all(codec.is_portable(zarr_format) for codec in self.pipeline.codecs)

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return the cell."""
        view = as_view(data)
        shape = self._shape(view, spec)
        start = 4 + 4 * len(shape)
        block = self.pipeline.for_block(shape, spec.dtype).decode(view[start:])
        # Blocks at the ends of N5 arrays are cut off, those of Zarr are not.
        if shape == spec.shape:
            return block
        fill = np.zeros((), spec.dtype)[()] if spec.fill is None else spec.fill
        cell = full_block(spec.shape, fill, spec.dtype)
        part = tuple(slice(min(a, b)) for a, b in zip(shape, spec.shape, strict=True))
        cell[part] = block[part]
        return cell

    def _shape(self, view: memoryview, spec: ChunkSpec) -> tuple[int, ...]:
        """Return the shape that the block says it has."""
        mode, ndim = (int.from_bytes(view[at : at + 2], "big") for at in (0, 2))
        if mode:
            raise self.error(f"the block has the mode {mode}, not the default, 0")
        if ndim != len(spec.shape) or nbytes_of(view) < 4 + 4 * ndim:
            raise self.error(f"the block has {ndim} dimensions, the array {len(spec.shape)}")
        # Lengths are big-endian u4; they bound the memory that is taken before a byte is decoded.
        shape = tuple(np.frombuffer(view, ">u4", ndim, 4).tolist())
        need = math.prod(shape) * spec.dtype.itemsize
        if need > max(_LARGER * spec.nbytes, _SMALL):
            raise self.error(f"the block has the shape {shape}, far more than {spec.shape}")
        return shape

    def encode(self, block: Block, spec: ChunkSpec) -> Buffer:
        """Return a block of the cell's shape."""
        if len(spec.shape) != self.ndim:
            raise self.invalid(f"is for {self.ndim} dimensions, not {len(spec.shape)}")
        head = np.array(spec.shape, ">u4").tobytes()
        data = self.pipeline.for_block(spec.shape, spec.dtype).encode(block)
        return b"".join((bytes(2), len(spec.shape).to_bytes(2, "big"), head, data))
