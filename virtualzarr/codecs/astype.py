"""The `virtualzarr.astype` codec: elements stored in another dtype, cast as numpy casts."""

from __future__ import annotations

from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import Block, ChunkSpec, Codec, ElementCast


class AsType(ElementCast):
    """Blocks are stored as `data_type`, numpy's name of a dtype, and decoded by ``astype``.

    Unless `lossy` is set, an element that is not the same number, text or time afterwards is an
    error. For what `cast_value` does not cast: complex numbers, texts, times, and casts that lose.
    """

    def validate(self) -> None:
        """Check the members."""
        self.check_members(["data_type"], ["lossy"])
        if self.dtype.hasobject or self.dtype.names is not None:
            raise self.invalid(f"does not cast {self.dtype}")

    def resolve(self, spec: ChunkSpec) -> Codec:
        """Check that there is such a cast."""
        if spec.dtype.names is not None or not np.can_cast(self.dtype, spec.dtype, "unsafe"):
            raise self.invalid(f"cannot cast {self.dtype} to {spec.dtype}")
        return self

    def is_identity(self, spec: ChunkSpec) -> bool:
        """Whether there is nothing to cast."""
        return spec.dtype == self.dtype

    def decode(self, block: Block, spec: ChunkSpec) -> Block:
        """Return the elements in the array's dtype."""
        return self._cast(block, spec.dtype)

    def encode(self, block: Block, spec: ChunkSpec) -> Block:
        """Return the elements in the stored dtype."""
        return self._cast(np.asarray(block, spec.dtype), self.dtype)

    def _cast(self, block: Block, dtype: np.dtype[Any]) -> Block:
        with np.errstate(all="ignore"):
            cast = block.astype(dtype)
            if self.configuration.get("lossy"):
                return cast
            real = dtype.kind == "c" and block.dtype.kind != "c"
            # The way back tells losses of any kind: digits, range, signs, characters.
            back = (cast.real if real else cast).astype(block.dtype)
        same = back == block
        if block.dtype.kind in "fcmM":
            same |= (back != back) & (block != block)
        if not np.all(same):
            wrong = block[~same].reshape(-1)[0]
            raise self.error(f"{wrong!r} is not the same as {dtype}")
        return cast
