"""Base of codecs of FITS, which only decode."""

from __future__ import annotations

from virtualzarr.codecs.core.base import ArrayBytes, Block, ChunkSpec


class ReadOnlyCodec(ArrayBytes):
    """What codecs of FITS have in common: they only decode, and nobody else knows them."""

    portable_formats = ()
    compressor = True
    in_v2 = False
    members: frozenset[str] = frozenset()

    def validate(self) -> None:
        """Check that just the members of the codec are there."""
        self.check_members(self.members)

    def _as_block(self, values: Block, spec: ChunkSpec) -> Block:
        """Return integers in the type of the block, which must hold them."""
        if values.size != spec.size:
            raise self.error(f"decoded {values.size} elements, the block needs {spec.size}")
        cast = values.astype(spec.dtype)
        if values.dtype.itemsize > spec.dtype.itemsize and (cast != values).any():
            raise self.error(f"a decoded number does not fit {spec.dtype}")
        return cast.reshape(spec.shape)
