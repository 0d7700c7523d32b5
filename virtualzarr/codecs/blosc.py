"""The `blosc` codec: Blosc (version 1) buffers, whose header states the decoded size."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from virtualzarr.codecs.core.base import Block, Buffer, ChunkSpec, Codec, Endian, as_u1, as_view
from virtualzarr.codecs.core.libraries import find_imagecodecs, require_imagecodecs
from virtualzarr.codecs.core.streams import SizedStream
from virtualzarr.errors import UnsupportedError

_NAMES = ("lz4", "lz4hc", "blosclz", "snappy", "zlib", "zstd")
_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
_RANGES = {"clevel": (0, 9), "blocksize": (0, 2**31 - 1), "typesize": (0, 2**31 - 1)}
MAX_TYPESIZE = 255
"""Bytes of the elements that Blosc shuffles; those of longer ones stay as they are."""


class Blosc(SizedStream):
    """A Blosc buffer; source: zarr-specs, codecs/blosc."""

    def validate(self) -> None:
        """Check the members that encoding needs."""
        fields = self.configuration
        if fields.get("cname", "lz4") not in _NAMES:
            raise self.invalid(f"cname must be one of {', '.join(_NAMES)}, not {fields['cname']!r}")
        for name, (low, high) in _RANGES.items():
            value = fields.get(name)
            if value is not None and not (_is_integer(value) and low <= value <= high):
                raise self.invalid(f"{name} must be an integer from {low} to {high}, not {value!r}")
        shuffle = fields.get("shuffle", 1)
        if not isinstance(shuffle, str | int):
            raise self.invalid(f"shuffle must be a name or a number, not {shuffle!r}")
        if isinstance(shuffle, str) and shuffle not in _SHUFFLES:
            raise self.invalid(f"shuffle must be one of {', '.join(_SHUFFLES)}, not {shuffle!r}")
        if isinstance(shuffle, int) and not -1 <= shuffle <= 2:
            raise self.invalid(f"shuffle must be -1, 0, 1 or 2, not {shuffle}")

    def resolve(self, spec: ChunkSpec) -> Codec:
        """Return the codec with the element size of the array where none is given."""
        if self.configuration.get("typesize") is not None:
            return self
        size = spec.dtype.itemsize
        # One byte of Blosc's header holds the element size.
        typesize = size if 1 <= size <= MAX_TYPESIZE else 1
        return type(self)(self.name, {**self.configuration, "typesize": typesize})

    def _shuffle(self) -> int:
        """Return the shuffle as a number; -1 (v2) means by bits for one-byte elements only."""
        shuffle = self.configuration.get("shuffle", 1)
        if isinstance(shuffle, str):
            return _SHUFFLES.index(shuffle)
        if shuffle == -1:
            return 2 if self.configuration.get("typesize", 1) == 1 else 1
        return int(shuffle)

    def read_size(self, data: Buffer) -> int:
        """Return the size in the header: bytes 4 to 7 (c-blosc, README_CHUNK_FORMAT)."""
        if len(data) < 16:
            raise self.error(f"{len(data)} bytes are too few for a Blosc header")
        return int.from_bytes(data[4:8], "little")

    def decode_into(self, data: Buffer, out: Block) -> None:
        """Decompress straight into `out`."""
        view = data if type(data) is bytes else as_view(data)
        # Both sizes are checked before the library is given input and memory: the encoded one is in
        # bytes 12 to 15 of the header.
        announced = self.read_size(view)
        if announced != out.size:
            raise self.size_error(announced, out.size)
        stored = int.from_bytes(view[12:16], "little")
        if stored > len(view):
            raise self.error(f"the buffer is truncated: {len(view)} of {stored} bytes")
        if stored < len(view):
            # The library would not look, and decode what was shifted to other values.
            raise self.error(f"the buffer has {len(view)} bytes, its header says {stored}")
        if not announced:
            return
        try:
            got = _blosc_decode()(view, out)
        except (RuntimeError, ValueError) as error:
            raise self.error(f"the buffer is corrupt ({error})") from error
        if got != out.size:
            raise self.size_error(got, out.size)

    def encode(self, data: Buffer) -> Buffer:
        """Compress with numcodecs, so that the bytes are those of other Zarr writers."""
        import numcodecs.blosc

        fields = self.configuration
        size = max(int(fields.get("typesize") or 1), 1)
        block = as_u1(data)
        # Blosc shuffles whole elements only; others are bytes to it.
        if block.size % size or size > MAX_TYPESIZE:
            size = 1
        cname, level = fields.get("cname") or "lz4", fields.get("clevel")
        level, blocksize = 5 if level is None else level, fields.get("blocksize") or 0
        try:
            if cname == "snappy":
                return self._encode_snappy(block, level, size, blocksize)
            block = block.view(f"V{size}") if size > 1 else block
            return numcodecs.blosc.compress(
                block, cname.encode(), level, self._shuffle(), blocksize
            )
        except (RuntimeError, ValueError) as error:
            raise self.error(f"cannot compress ({error})") from error

    def _encode_snappy(self, block: Block, level: int, size: int, blocksize: int) -> Buffer:
        """Compress with imagecodecs, as numcodecs is built without snappy."""
        encoded: Buffer = require_imagecodecs(f"{self.name} (snappy)").blosc_encode(
            block,
            level,
            compressor="snappy",
            shuffle=self._shuffle(),
            typesize=size,
            blocksize=blocksize,
            numthreads=1,
        )
        return encoded

    def to_v3(self) -> dict[str, Any]:
        """Return the v3 form; the core codec names its shuffle, numcodecs' own numbers it."""
        fields = dict(self.configuration)
        if self.name != "blosc":
            return super().to_v3()
        shuffle = _SHUFFLES[self._shuffle()]
        if fields.get("typesize") is not None:
            # Elements of other sizes are single bytes to Blosc, and v3 has no other name for that.
            size = fields["typesize"]
            typesize = {"typesize": size if 1 <= size <= MAX_TYPESIZE else 1}
        elif shuffle == "noshuffle":
            typesize = {}
        else:
            raise UnsupportedError("codec blosc: v3 metadata need a typesize; give one")
        return {"name": self.name, "configuration": typesize | self._fields(shuffle)}

    def to_v2(self, spec: ChunkSpec, endian: Endian) -> dict[str, Any]:
        """Return the v2 form."""
        return {"id": "blosc", **self._fields(self._shuffle())}

    def _fields(self, shuffle: int | str) -> dict[str, Any]:
        """Return what documents of both formats have."""
        fields = self.configuration
        return {
            "cname": fields.get("cname", "lz4"),
            "clevel": fields.get("clevel", 5),
            "shuffle": shuffle,
            "blocksize": fields.get("blocksize", 0),
        }


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@lru_cache(maxsize=1)
def _blosc_decode() -> Callable[[Buffer, Block], int]:
    """Return a decoder that uses one thread and nothing shared."""
    decode = find_imagecodecs("blosc_decode", "BLOSC")
    if decode is None:
        return _numcodecs_blosc
    return lambda data, out: int(decode(data, numthreads=1, out=out).size)


def _numcodecs_blosc(data: Buffer, out: Block) -> int:
    import numcodecs.blosc

    numcodecs.blosc.decompress(data, out)
    return out.size
