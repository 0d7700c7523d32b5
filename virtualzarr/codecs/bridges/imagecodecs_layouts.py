"""Codecs of imagecodecs that need the shape and dtype of the block."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

import numpy as np

from virtualzarr.codecs.bridges.imagecodecs import _Bridged
from virtualzarr.codecs.core import base, zfp_stream
from virtualzarr.codecs.core.scratch import allocate
from virtualzarr.errors import UnsupportedError


class _Layout(_Bridged, base.ArrayBytes):
    """One entry per codec: the members its functions take."""

    compressor = True
    takes: ClassVar[Mapping[str, tuple[str, str]]] = {
        "bitshuffle": ("itemsize blocksize", "itemsize blocksize"),
        "byteshuffle": ("axis dist delta reorder", "axis dist delta reorder"),
        "floatpred": ("axis dist", "axis dist"),
        "float24": ("byteorder", "byteorder rounding"),
        "bfloat16": ("byteorder", "byteorder rounding"),
        "packints": ("bitspersample bitorder runlen", "bitspersample bitorder runlen"),
        "ccittrle": ("", ""),
        "ccittfax3": ("t4options", ""),
        "ccittfax4": ("", ""),
        "eer": ("skipbits horzbits vertbits superres", ""),
        "rcomp": ("nblock", "nblock"),
        "zfp": ("", "level mode execution chunksize header"),
    }

    def check_size(self, data: base.Buffer, spec: base.ChunkSpec) -> None:
        """Refuse data that are not as long as the block needs."""
        need = self.compute_encoded_size(spec)
        if need is not None and base.nbytes_of(data) != need:
            raise self.error(f"{base.nbytes_of(data)} bytes, the block needs {need}")

    def resolve(self, spec: base.ChunkSpec) -> base.Codec:
        """Check that elements are bytes: of objects, their addresses would be stored."""
        if spec.dtype.hasobject:
            raise UnsupportedError(f"codec {self.name} cannot hold elements of type {spec.dtype}")
        return super().resolve(spec)

    def as_block(self, result: Any, spec: base.ChunkSpec) -> base.Block:
        """Return a result as the block, or say how it differs."""
        block = np.asarray(result)
        if block.nbytes != spec.nbytes:
            raise self.size_error(block.nbytes, spec.nbytes)
        if block.dtype != spec.dtype:
            block = np.ascontiguousarray(block).reshape(-1).view(spec.dtype)
        return block.reshape(spec.shape)

    def options(self, encode: bool) -> dict[str, Any]:
        """Return the members for decoding or encoding."""
        return self.pick_options(self.takes[self.short][encode])

    def decode(self, data: base.Buffer, spec: base.ChunkSpec) -> base.Block:
        """Return the block."""
        out = allocate(spec.shape, spec.dtype)
        result = self.call(self._decode, data, out=out, **self.options(False))
        return self.as_block(result, spec)

    def encode(self, block: base.Block, spec: base.ChunkSpec) -> base.Buffer:
        """Return the encoded bytes."""
        block = np.ascontiguousarray(block)
        return base.as_u1(self.call(self.function("encode"), block, **self.options(True)))

    def to_v2(self, spec: base.ChunkSpec, endian: base.Endian) -> dict[str, Any]:
        """Return the v2 configuration, with the shape and dtype of its place."""
        fields = {key: value for key, value in self.configuration.items() if key != "squeeze"}
        if self.short in ("byteshuffle", "floatpred", "rcomp"):
            fields.setdefault("shape", list(spec.shape))
            fields["dtype"] = spec.dtype.str
        elif self.short == "packints":
            fields["dtype"] = spec.dtype.str
        elif self.short == "bitshuffle":
            fields.setdefault("itemsize", spec.dtype.itemsize)
        elif self.short.startswith("ccitt"):
            fields["height"], fields["width"] = spec.shape[-2:]
        return {"id": self.name, **fields}

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable | None:
        """Return the members for decoding, and a shape where there is one."""
        return (super().decoding_key(dtype), repr(self.configuration.get("shape")))


class SameSize(_Layout):
    """bitshuffle, byteshuffle and floatpred: the bytes of the elements in another order."""

    def is_portable(self, zarr_format: int) -> bool:
        """Whether imagecodecs' own codec undoes it: its bitshuffle of v3 does not."""
        return self.short != "bitshuffle" or zarr_format == 2

    def compute_encoded_size(self, spec: base.ChunkSpec) -> int | None:
        """Return the bytes of the elements."""
        return spec.nbytes

    def _shape(self, spec: base.ChunkSpec) -> tuple[int, ...]:
        shape = tuple(self.configuration.get("shape") or spec.shape)
        if math.prod(shape) != spec.size:
            raise self.invalid(f"its shape {shape} does not fit a block {spec.shape}")
        return shape

    def decode(self, data: base.Buffer, spec: base.ChunkSpec) -> base.Block:
        """Return the block."""
        if base.nbytes_of(data) != spec.nbytes:
            raise self.size_error(base.nbytes_of(data), spec.nbytes)
        source = base.as_u1(data)
        if self.short == "bitshuffle":
            options = {"itemsize": spec.dtype.itemsize, **self.options(False)}
            result = self.call(self._decode, source.tobytes(), **options)
            return self.as_block(base.as_u1(result), spec)
        array = source.view(spec.dtype).reshape(self._shape(spec))
        return self.as_block(self.call(self._decode, array, **self.options(False)), spec)

    def encode(self, block: base.Block, spec: base.ChunkSpec) -> base.Buffer:
        """Return the bytes in the other order."""
        block = np.ascontiguousarray(block)
        if self.short == "bitshuffle":
            options = {"itemsize": spec.dtype.itemsize, **self.options(True)}
            return base.as_u1(self.call(self.function("encode"), block.tobytes(), **options))
        block = block.reshape(self._shape(spec))
        return base.as_u1(self.call(self.function("encode"), block, **self.options(True)))

    def to_v3(self) -> dict[str, Any]:
        """Return the v3 form, where the element size is that of the array."""
        if "itemsize" in self.configuration:
            raise UnsupportedError(
                f"codec {self.name}: works on elements of {self.configuration['itemsize']} bytes, "
                "which v3 metadata cannot say"
            )
        return super().to_v3()


class Float(_Layout):
    """float24 and bfloat16: narrow floats, decoded to float32."""

    def compute_encoded_size(self, spec: base.ChunkSpec) -> int | None:
        """Return three or two bytes an element."""
        return spec.size * (3 if self.short == "float24" else 2)

    def decode(self, data: base.Buffer, spec: base.ChunkSpec) -> base.Block:
        """Return the block."""
        self.check_size(data, spec)
        result = self.call(self._decode, bytes(base.as_u1(data)), **self.options(False))
        block = np.asarray(result)
        if block.size != spec.size or block.dtype != spec.dtype:
            raise self.error(f"decoded {block.size} {block.dtype}, the block needs {spec}")
        return block.reshape(spec.shape)


class PackInts(_Layout):
    """Integers of any number of bits; each run of `runlen` begins on a byte."""

    def compute_encoded_size(self, spec: base.ChunkSpec) -> int | None:
        """Return the bytes of all runs."""
        bits = int(self.configuration.get("bitspersample", 8))
        run = int(self.configuration.get("runlen") or 0) or max(spec.size, 1)
        return -(-spec.size // run) * -(-run * bits // 8)

    def decode(self, data: base.Buffer, spec: base.ChunkSpec) -> base.Block:
        """Return the integers."""
        self.check_size(data, spec)
        bits = int(self.configuration.get("bitspersample", 8))
        options = self.pick_options("bitorder runlen")
        block = np.asarray(
            self.call(self._decode, bytes(base.as_u1(data)), spec.dtype, bits, **options)
        )
        if block.size < spec.size or block.dtype != spec.dtype:
            raise self.error(f"decoded {block.size} {block.dtype}, the block needs {spec}")
        return block.reshape(-1)[: spec.size].reshape(spec.shape)

    def encode(self, block: base.Block, spec: base.ChunkSpec) -> base.Buffer:
        """Return the packed bytes."""
        bits = int(self.configuration.get("bitspersample", 8))
        block = np.ascontiguousarray(block)
        options = self.pick_options("bitorder runlen")
        return base.as_u1(self.call(self.function("encode"), block, bits, **options))


class Fax(_Layout):
    """CCITT fax coding of black-and-white images; it cannot be encoded."""

    def decode(self, data: base.Buffer, spec: base.ChunkSpec) -> base.Block:
        """Return the image, one byte a pixel."""
        if len(spec.shape) < 2:
            raise self.invalid(f"needs an image, not a block {spec.shape}")
        height, width = spec.shape[-2:]
        out = allocate((height, width), spec.dtype)
        options = {"height": height, "width": width, **self.options(False)}
        return self.as_block(self.call(self._decode, data, out=out, **options), spec)

    def encode(self, block: base.Block, spec: base.ChunkSpec) -> base.Buffer:
        """Refuse: imagecodecs has no encoder of fax codes."""
        raise self.read_only_error()


class Shaped(_Layout):
    """Codecs whose decoder is told shape and dtype."""

    def options(self, encode: bool) -> dict[str, Any]:
        """Return the members for decoding or encoding."""
        options = super().options(encode)
        if self.short == "zfp" and isinstance(mode := options.get("mode"), str):
            options["mode"] = zfp_stream.MODE_NUMBERS.get(mode, mode)
        return options

    def decode(self, data: base.Buffer, spec: base.ChunkSpec) -> base.Block:
        """Return the block."""
        if self.short == "zfp":
            return self._decode_zfp(data, spec)
        out = allocate(spec.shape, spec.dtype)
        arguments: dict[str, Any] = {"out": out, **self.options(False)}
        args: tuple[Any, ...] = (data,)
        if self.short == "eer":
            args = (data, tuple(self.configuration.get("shape") or spec.shape[-2:]))
        else:
            arguments |= {"shape": spec.shape, "dtype": spec.dtype}
        return self.as_block(self.call(self._decode, *args, **arguments), spec)

    def _decode_zfp(self, data: base.Buffer, spec: base.ChunkSpec) -> base.Block:
        """Return the block of a ZFP stream; without header it still begins with a mode."""
        raw = bytes(base.as_u1(data)[:19])
        if self.configuration.get("header") is not False:
            header = zfp_stream.read_header(raw)
            if header is None or math.prod(header.shape) != spec.size:
                raise self.error(f"the data do not begin with the header of {spec.size} elements")
            return self.as_block(zfp_stream.decode_stream(self, data, header), spec)
        header = zfp_stream.read_short_header(raw, spec.shape, spec.dtype)

        def decode(padded: bytes, shape: tuple[int, ...]) -> base.Block:
            out = allocate(shape, spec.dtype)
            return self.call(self._decode, padded, out=out, shape=shape, dtype=spec.dtype)

        return self.as_block(zfp_stream.decode_whole(self, data, header, decode), spec)
