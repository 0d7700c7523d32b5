"""Array-to-array filters of numcodecs, each with the dtypes of its place in the chain."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from virtualzarr.codecs.core import base
from virtualzarr.codecs.core.byte_order import native
from virtualzarr.codecs.core.scratch import allocate
from virtualzarr.errors import import_optional


class Filter(base.ArrayArray):
    """A filter that numcodecs computes, element by element or over the flattened block.

    The dtypes in the configuration are kept native: the byte order of what is stored belongs to
    the `bytes` codec.
    """

    outer: ClassVar[str | None] = "dtype"  # the member that names the decoded dtype
    inner: ClassVar[str | None] = "astype"  # the member that names the encoded dtype

    def validate(self) -> None:
        """Make the dtypes plain native strings."""
        for key in (self.outer, self.inner):
            if key is None:
                continue
            value = self.configuration.get(key)
            if value is None:
                self.configuration.pop(key, None)
                continue
            try:
                dtype = np.dtype(value)
            except TypeError as error:
                raise self.invalid(f"{key} {value!r} is no dtype") from error
            if dtype.hasobject or dtype.names is not None:
                raise self.invalid(f"{key} {value!r} is not a plain dtype")
            self.configuration[key] = native(dtype).str

    def resolve(self, spec: base.ChunkSpec) -> base.Codec:
        """Return the codec with the array's dtype where none is given."""
        if self.outer is None:
            return self
        declared = self.configuration.get(self.outer)
        if declared is None:
            return type(self)(self.name, {**self.configuration, self.outer: spec.dtype.str})
        if np.dtype(declared) != spec.dtype:
            raise self.invalid(f"decodes to {declared}, but the array there is {spec.dtype}")
        return self

    def encode_spec(self, spec: base.ChunkSpec) -> base.ChunkSpec:
        """Return the spec with the encoded dtype."""
        dtype = self.configuration.get(self.inner) if self.inner else None
        return base.ChunkSpec(spec.shape, spec.dtype if dtype is None else np.dtype(dtype))

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable | None:
        """Return the configuration with all dtypes filled in."""
        codec = self.resolve(base.ChunkSpec((1,), dtype))
        fields = dict(codec.configuration)
        if self.inner is not None:
            fields[self.inner] = self.encode_spec(base.ChunkSpec((1,), dtype)).dtype.str
        return (type(self).__name__, base.as_hashable(fields))

    @cached_property
    def _codec(self) -> Any:
        problem = f"codec {self.name} needs the package numcodecs: install it"
        numcodecs = import_optional("numcodecs", problem)
        try:
            return numcodecs.get_codec({"id": self.v2_id, **self.configuration})
        except (TypeError, ValueError, KeyError) as error:
            raise self.invalid(f"wrong configuration: {error}") from error

    def decode(self, block: base.Block, spec: base.ChunkSpec) -> base.Block:
        """Return the decoded array."""
        # numcodecs' filters run over the flat block, in C order of the encoded array.
        flat = np.ascontiguousarray(block).reshape(-1)
        try:
            result = np.asarray(self._codec.decode(flat))
        except (ValueError, TypeError, RuntimeError) as error:
            raise self.error(f"cannot decode ({error})") from error
        if result.size != spec.size:
            raise self.error(f"decoded {result.size} elements, the block needs {spec.size}")
        return result.reshape(spec.shape)

    def encode(self, block: base.Block, spec: base.ChunkSpec) -> base.Block:
        """Return the encoded array."""
        inner = self.encode_spec(spec)
        if not spec.size:
            return allocate(inner.shape, inner.dtype)
        try:
            result = np.asarray(self._codec.encode(np.ascontiguousarray(block).reshape(-1)))
        except (ValueError, TypeError, RuntimeError) as error:
            raise self.error(f"cannot encode ({error})") from error
        return result.view(inner.dtype).reshape(inner.shape)

    def to_v2(self, spec: base.ChunkSpec, endian: base.Endian) -> dict[str, Any]:
        """Return the v2 configuration: its dtypes carry the byte order of what is stored."""
        # In v2 it is the filters that carry the byte order of what is stored.
        fields = dict(self.configuration)
        inner = self.encode_spec(spec).dtype
        if self.outer is not None:
            fields[self.outer] = spec.dtype.newbyteorder(endian).str
        if self.inner is not None:
            fields[self.inner] = inner.newbyteorder(endian).str
        return {"id": self.v2_id, **fields}


class Delta(Filter):
    """Differences between neighbours (numcodecs ``delta``)."""


class FixedScaleOffset(Filter):
    """``(x - offset) * scale``, rounded (numcodecs ``fixedscaleoffset``)."""


class Quantize(Filter):
    """Fewer decimal digits (numcodecs ``quantize``); decoding only casts."""

    def is_identity(self, spec: base.ChunkSpec) -> bool:
        """Whether there is nothing to cast."""
        return self.encode_spec(spec).dtype == spec.dtype

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable | None:
        """Return the encoded dtype, None when it is the array's."""
        inner = self.encode_spec(base.ChunkSpec((1,), dtype)).dtype
        return None if inner == dtype else ("AsType", inner.str)


class AsType(Quantize):
    """A cast (numcodecs ``astype``), which quantized numbers are decoded by, too."""

    outer = "decode_dtype"
    inner = "encode_dtype"


class BitRound(base.LossyFilter, Filter):
    """Fewer mantissa bits (numcodecs ``bitround``); decoding changes nothing."""

    outer = inner = None


class PackBits(Filter):
    """Eight booleans to a byte, first most significant, after a byte that counts the padding."""

    outer = inner = None

    def encode_spec(self, spec: base.ChunkSpec) -> base.ChunkSpec:
        """Return the spec of the packed bytes."""
        if spec.dtype != np.dtype(bool):
            raise self.invalid(f"packs booleans, the array is {spec.dtype}")
        return base.ChunkSpec((1 + -(-spec.size // 8),), np.dtype("u1"))


class Categorize(base.ArrayArray):
    """Text as numbers of labels, from 1; 0 is text that is no label, and reads as none at all."""

    # In v3, no other package has a codec of this name.
    portable_formats = (2,)
    elementwise = True

    def validate(self) -> None:
        """Check labels and dtypes."""
        labels, stored = self.configuration.get("labels"), self.configuration.get("astype", "u1")
        if not isinstance(labels, list | tuple) or not all(isinstance(x, str) for x in labels):
            raise self.invalid("labels must be a list of text")
        try:
            dtype = native(np.dtype(stored))
        except TypeError as error:
            raise self.invalid(f"astype {stored!r} is no dtype") from error
        if dtype.kind not in "iu" or len(labels) > np.iinfo(dtype).max:
            raise self.invalid(f"astype {stored!r} cannot hold the numbers of {len(labels)} labels")
        self.configuration["astype"] = dtype.str

    def encode_spec(self, spec: base.ChunkSpec) -> base.ChunkSpec:
        """Return the spec of the numbers."""
        if spec.dtype.kind not in "UO":
            raise self.invalid(f"is for text, the array is {spec.dtype}")
        return base.ChunkSpec(spec.shape, np.dtype(self.configuration["astype"]))

    def decode(self, block: base.Block, spec: base.ChunkSpec) -> base.Block:
        """Return the labels."""
        labels = np.array(["", *self.configuration["labels"]], spec.dtype)
        is_label = (block >= 0) & (block < len(labels))
        return labels[np.where(is_label, block, 0)]

    def encode(self, block: base.Block, spec: base.ChunkSpec) -> base.Block:
        """Return the numbers; of labels that are the same the last, as numcodecs does."""
        result = np.zeros(spec.shape, self.encode_spec(spec).dtype)
        for number, label in enumerate(self.configuration["labels"], 1):
            result[block == label] = number
        return result

    def to_v2(self, spec: base.ChunkSpec, endian: base.Endian) -> dict[str, Any]:
        """Return the v2 configuration."""
        stored = np.dtype(self.configuration["astype"]).newbyteorder(endian).str
        dtype = "|O" if spec.dtype.hasobject else spec.dtype.newbyteorder(endian).str
        labels = list(self.configuration["labels"])
        return {"id": self.v2_id, "labels": labels, "dtype": dtype, "astype": stored}
