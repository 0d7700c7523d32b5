"""Array-to-bytes compressors of numcodecs: zfpy and pcodec."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from virtualzarr.codecs.core.base import ArrayBytes, Block, Buffer, ChunkSpec, as_u1, nbytes_of
from virtualzarr.codecs.core.scratch import allocate
from virtualzarr.codecs.core.zfp_stream import (
    FIXED_ACCURACY,
    FIXED_PRECISION,
    FIXED_RATE,
    REVERSIBLE,
    decode_stream,
    encode_stream,
    read_header,
)
from virtualzarr.errors import import_optional

# The member of the configuration that says how much.
_ZFP_MODES = {FIXED_RATE: "rate", FIXED_PRECISION: "precision", FIXED_ACCURACY: "tolerance"}


class _Numeric(ArrayBytes):
    """A compressor of numbers of few types, in C order; times are 64-bit integers to it."""

    compressor = True
    decoding_fields = ()
    types: ClassVar[str]

    def _numbers(self, spec: ChunkSpec) -> np.dtype[Any]:
        """Return the dtype of the numbers that are compressed."""
        dtype = np.dtype("i8") if spec.dtype.kind in "mM" else spec.dtype
        if f"{dtype.kind}{dtype.itemsize}" not in self.types.split():
            raise self.invalid(f"cannot hold {spec.dtype}, only {self.types}")
        return dtype


class Zfpy(_Numeric):
    """ZFP streams with a header (numcodecs ``zfpy``), by imagecodecs."""

    types = "i4 i8 f4 f8"

    def validate(self) -> None:
        """Check the mode."""
        mode = self.configuration.get("mode", FIXED_ACCURACY)
        if mode not in _ZFP_MODES:
            raise self.invalid(f"mode must be one of {sorted(_ZFP_MODES)}, not {mode!r}")
        for name in _ZFP_MODES.values():
            if not isinstance(self.configuration.get(name, -1), int | float):
                raise self.invalid(f"{name} must be a number, not {self.configuration[name]!r}")

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return the array; what the header says of it must fit the block."""
        numbers = self._numbers(spec)
        header = read_header(bytes(as_u1(data)[:19]))
        if header is None:
            raise self.error("the data do not begin with a header of ZFP")
        shape, dtype = header.shape, header.dtype
        # Stream and metadata must agree, as the library takes shape and type from the stream.
        if dtype != numbers or np.prod(shape, dtype=object) != spec.size:
            raise self.error(f"holds {dtype} of shape {shape}, not {spec.dtype} of {spec.shape}")
        return decode_stream(self, data, header).reshape(spec.shape).view(spec.dtype)

    def encode(self, block: Block, spec: ChunkSpec) -> Buffer:
        """Compress as zfpy does."""
        numbers = self._numbers(spec)
        if not 1 <= block.ndim <= 4:
            raise self.invalid(f"compresses arrays of one to four dimensions, not {block.ndim}")
        mode = self.configuration.get("mode", FIXED_ACCURACY)
        level = self.configuration.get(_ZFP_MODES[mode], -1)
        if level < 0:
            mode, level = REVERSIBLE, None
        return encode_stream(self, np.ascontiguousarray(block).view(numbers), mode, level)


class Pcodec(_Numeric):
    """pcodec's standalone form (numcodecs ``pcodec``), by the package pcodec."""

    types = "u2 u4 u8 i2 i4 i8 f2 f4 f8"

    @property
    def _package(self) -> tuple[Any, Any]:
        """The package and its module for streams that stand alone."""
        problem = "codec pcodec: pip install 'virtualzarr[pcodec]'"
        return import_optional("pcodec", problem), import_optional("pcodec.standalone", problem)

    @cached_property
    def _chunk_config(self) -> Any:
        (package, _), fields = self._package, self.configuration
        order = fields.get("delta_encoding_order")
        delta = fields.get("delta_spec") or "auto"
        if order is not None and delta == "auto":
            delta = "try_consecutive"
        modes = {"auto": package.ModeSpec.auto, "classic": package.ModeSpec.classic}
        deltas = {
            "auto": package.DeltaSpec.auto,
            "none": getattr(package.DeltaSpec, "none", None) or package.DeltaSpec.no_op,
            "try_lookback": package.DeltaSpec.try_lookback,
            "try_consecutive": lambda: package.DeltaSpec.try_consecutive(order),
        }
        try:
            return package.ChunkConfig(
                compression_level=fields.get("level", 8),
                mode_spec=modes[fields.get("mode_spec", "auto")](),
                delta_spec=deltas[delta](),
                paging_spec=package.PagingSpec.equal_pages_up_to(
                    fields.get("equal_pages_up_to", 262144)
                ),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise self.invalid(f"wrong configuration: {error}") from error

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return the array."""
        numbers = self._numbers(spec)
        _, standalone = self._package
        out = allocate((spec.size + 1,), numbers)  # one more tells whether there is more
        try:
            got = standalone.simple_decompress_into(bytes(as_u1(data)), out).n_processed
        except (RuntimeError, ValueError, TypeError) as error:
            raise self.error(f"{nbytes_of(data)} bytes do not decode ({error})") from error
        if got != spec.size:
            prefix = "more than " if got > spec.size else ""
            count = min(got, spec.size)
            raise self.error(f"decoded {prefix}{count} elements, the block needs {spec.size}")
        return out[: spec.size].reshape(spec.shape).view(spec.dtype)

    def encode(self, block: Block, spec: ChunkSpec) -> Buffer:
        """Compress as numcodecs does."""
        numbers = self._numbers(spec)
        _, standalone = self._package
        flat = np.ascontiguousarray(block).reshape(-1).view(numbers)
        try:
            return standalone.simple_compress(flat, self._chunk_config)
        except (RuntimeError, ValueError, TypeError) as error:
            raise self.error(f"cannot compress ({error})") from error
